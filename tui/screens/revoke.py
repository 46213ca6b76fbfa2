"""The dialog of a revocation: which lease, its name once more, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input

from ..widgets.words_line import WordsLine
from ..words import moment

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from ..state import LeaseRow

BAD = "bold $text-error"
REASON_BYTES_MAX = 128


class RevokeScreen(ModalScreen[tuple[str, str] | None]):
    """Returns the name as it was typed, and the reason; None: nothing is to change."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Leave it")]
    AUTO_FOCUS = "#typed"

    def __init__(self, row: LeaseRow) -> None:
        """Take the lease."""
        super().__init__()
        self._row = row

    def compose(self) -> ComposeResult:
        """Show whose lease it is, and ask."""
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
        """Go on to the reason; with both said, close."""
        typed = self.query_one("#typed", Input).value
        reason = self.query_one("#reason", Input)
        if typed != self._row.domain:
            self._refuse("that is not its name: nothing is revoked", "#typed")
        elif event.input is not reason:
            self.set_focus(reason)
        elif not reason.value.strip():
            self._refuse("say why: it stays in the ledger", "#reason")
        elif len(reason.value.encode("utf-8", "surrogatepass")) > REASON_BYTES_MAX:
            self._refuse(f"a reason has at most {REASON_BYTES_MAX} bytes", "#reason")
        else:
            self.dismiss((typed, reason.value))

    def _refuse(self, why: str, field: str) -> None:
        self.query_one("#dialog-keys", WordsLine).say((why, BAD))
        self.set_focus(self.query_one(field, Input))

    def action_leave(self) -> None:
        """Close; nothing changes."""
        self.dismiss(None)
