"""The dialog of *what if*: switches to turn, and then the copy is read as they say."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from ..columns import Column
from ..lensing import Switches, switch_rows
from ..widgets.pick_table import PickTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult

COLUMNS = (Column("", 3), Column("switch", 20, most=40), Column("taken to have been", 20))


class SwitchTable(PickTable):
    """Enter is handled where the keys before it are: before them, it would not see how they turn the switches."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "screen.apply", "Read it so")]


class WhatIfScreen(ModalScreen[Switches | None]):
    """Returns the switches; None: nothing is to change."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "turn(-1)", "Less"),
        Binding("right,l,space", "turn(1)", "More, or on and off"),
        Binding("0", "clear", "All as it was"),
        Binding("escape,w", "leave", "Leave it"),
    ]
    AUTO_FOCUS = "#switches"

    def __init__(self, switches: Switches, nodes: Sequence[str]) -> None:
        """Take where the switches stand, and the nodes whose clocks can be moved."""
        super().__init__()
        self._switches = switches
        self._clocks = list(nodes)

    def compose(self) -> ComposeResult:
        """Show the switches, and which keys turn them."""
        with Vertical(id="dialog") as box:
            box.border_title = "What if"
            yield SwitchTable(COLUMNS, "", id="switches")
            yield Static("← → turn   enter reads it so   0 as it was   esc leaves it", id="dialog-keys")

    def on_mount(self) -> None:
        """Show them."""
        self._fill()

    def _fill(self) -> None:
        rows = switch_rows(self._switches, self._clocks)
        self.query_one(PickTable).show_picks(len(rows), rows.__getitem__, "", lambda place: place)

    def action_turn(self, steps: int) -> None:
        """Turn the switch under the cursor."""
        self._switches = self._switches.turned(self._clocks, self.query_one(PickTable).cursor, steps)
        self._fill()

    def action_clear(self) -> None:
        """Let everything be as it was."""
        self._switches = Switches()
        self._fill()

    def action_apply(self) -> None:
        """Close, and read the copy so."""
        self.dismiss(self._switches)

    def action_leave(self) -> None:
        """Close; nothing changes."""
        self.dismiss(None)
