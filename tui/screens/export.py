"""The dialog of an export: in which form what is seen is written down."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from ..exporting import Form

if TYPE_CHECKING:
    from textual.app import ComposeResult


class ExportScreen(ModalScreen[Form | None]):
    """Returns the form; None: nothing is written."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "choose('jsonl')", "JSONL"),
        Binding("c", "choose('csv')", "CSV"),
        Binding("s", "choose('svg')", "SVG"),
        Binding("escape,e", "leave", "Nothing"),
    ]

    def __init__(self, what: str) -> None:
        """Take what there is to write, in words; empty where it is only the screen."""
        super().__init__()
        self._what = what

    def compose(self) -> ComposeResult:
        """Show the keys."""
        rows = f"j  {self._what} as JSONL\nc  {self._what} as CSV\n" if self._what else ""
        with Vertical(id="dialog") as box:
            box.border_title = "Export"
            yield Static(f"{rows}s  the screen as SVG", markup=False)
            yield Static("into the directory in which this was started; esc leaves it", id="dialog-keys")

    def action_choose(self, form: str) -> None:
        """Close with a form."""
        if form == Form.SVG or self._what:
            self.dismiss(Form(form))

    def action_leave(self) -> None:
        """Close; nothing is written."""
        self.dismiss(None)
