"""What is laid over a screen: help, export, what is asked before a lease is revoked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from appliance.formats.names import PURPOSE_BYTES_MAX

from ..model.state import Cell, LeaseRow, Tone
from ..model.tables import ExportForm
from ..model.words import moment
from .lines import WordsLine

LABEL: Final = 10
ROOM: Final = 54
"""For what symbols mean, beside their label, in a terminal of 80 columns."""


def _packed(legend: str) -> str:
    """Return a legend in lines: no symbol stands apart from its meaning."""
    lines = [""]
    for entry in legend.split("  "):
        if lines[-1] and len(lines[-1]) + 2 + len(entry) > ROOM:
            lines.append("")
        lines[-1] += f"  {entry}" if lines[-1] else entry
    return ("\n" + " " * LABEL).join(lines)


class HelpScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q", "dismiss", "Close")]

    def __init__(self, keys: Sequence[tuple[str, str]], legends: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._keys = keys
        self._legends = legends

    def compose(self) -> ComposeResult:
        width = max((len(key) for key, _ in self._keys), default=0)
        lines = [Content.assemble((f"{key:<{width}}  ", "bold $text-accent"), what) for key, what in self._keys]
        symbols = [Content.assemble((f"{what:{LABEL}}", "bold"), _packed(legend)) for what, legend in self._legends]
        with VerticalScroll(id="help") as box:
            box.border_title = "Keys"
            box.border_subtitle = "esc closes"
            yield Static(Content("\n").join(lines), id="keys")
            yield Static(Content("\n\n").join(symbols), id="symbols")


class ExportScreen(ModalScreen[ExportForm | None]):
    """Returns the form; None: nothing is written."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "choose('jsonl')", "JSONL"),
        Binding("c", "choose('csv')", "CSV"),
        Binding("s", "choose('svg')", "SVG"),
        Binding("escape,e", "dismiss", "Nothing"),
    ]

    def __init__(self, what: str) -> None:
        """Take what there is to write, in words; empty where it is only the screen."""
        super().__init__()
        self._what = what

    def compose(self) -> ComposeResult:
        rows = f"j  {self._what} as JSONL\nc  {self._what} as CSV\n" if self._what else ""
        with Vertical(id="dialog") as box:
            box.border_title = "Export"
            yield Static(f"{rows}s  the screen as SVG", markup=False)
            yield Static("into the directory in which this was started; esc leaves it", id="dialog-keys")

    def action_choose(self, form: str) -> None:
        if form == ExportForm.SVG or self._what:
            self.dismiss(ExportForm(form))


class RevokeScreen(ModalScreen[tuple[str, str] | None]):
    """Returns the name as it was typed, and the reason; None: nothing is to change."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Leave it")]
    AUTO_FOCUS = "#typed"

    def __init__(self, row: LeaseRow) -> None:
        super().__init__()
        self._row = row

    def compose(self) -> ComposeResult:
        row = self._row
        with Vertical(id="dialog") as box:
            box.border_title = "Revoke a lease"
            yield WordsLine(row.domain, id="which")
            yield WordsLine(
                f"{row.mode} {row.phase} of {row.node}/{row.process}  {row.purpose or '-'}", id="whose", cut=True
            )
            yield WordsLine(f"until {moment(row.expiry_ns)} as yet", id="until")
            yield Input(placeholder="its name, to revoke it", id="typed")
            yield Input(placeholder="the reason: kept in the ledger for ever", id="reason")
            yield WordsLine("enter goes on and, with both said, revokes; esc leaves it", id="dialog-keys")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        typed = self.query_one("#typed", Input).value
        reason = self.query_one("#reason", Input)
        if typed != self._row.domain:
            self._refuse("that is not its name: nothing is revoked", "#typed")
        elif event.input is not reason:
            self.set_focus(reason)
        elif not reason.value.strip():
            self._refuse("say why: it stays in the ledger", "#reason")
        elif len(reason.value.encode("utf-8", "surrogatepass")) > PURPOSE_BYTES_MAX:
            self._refuse(f"a reason has at most {PURPOSE_BYTES_MAX} bytes", "#reason")
        else:
            self.dismiss((typed, reason.value))

    def _refuse(self, why: str, field: str) -> None:
        self.query_one("#dialog-keys", WordsLine).say(Cell(why, Tone.BAD))
        self.set_focus(self.query_one(field, Input))
