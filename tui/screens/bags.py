"""The bags: how far each is closed, what is damaged; one bag's files against its list, and who closed it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from textual.binding import Binding, BindingType

from timeagent.units import span_text

from ..cellwidth import cells_of, fitted
from ..grid import LEGEND
from ..overview import not_known
from ..widgets.bag_grid import BagGrid
from ..widgets.detail_table import DetailTable
from ..widgets.words_line import WordsLine
from ..words import clock_text, log_words
from .base import TopScreen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.widget import Widget

    from timeagent.units import Instant

    from ..state import BagCell, ClusterState, LogView
    from ..subjects import Subject

NAME_LEAST: Final = 8
"""So many cells of a log's name are shown in any case."""


class BagsScreen(TopScreen):
    """One log's bags, and what is known of the one under the cursor."""

    NAME = "bags"
    FILTERS = True
    LEGENDS = (("Bags", LEGEND),)
    AUTO_FOCUS = "#bag-grid"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "next_log", "Next log"),
        Binding("enter", "open_bag", "Open"),
    ]

    def __init__(self) -> None:
        """Begin with the first log."""
        super().__init__()
        self._log = ""
        self._shown: BagCell | None = None

    def parts(self) -> Iterable[Widget]:
        """The log, its bags, and one of them."""
        return WordsLine(id="log", cut=True), BagGrid(), DetailTable(id="bag")

    def draw(self, state: ClusterState) -> None:
        """Show a state."""
        log = self._chosen(state)
        grid = self.query_one(BagGrid)
        nothing = "there are no logs yet" if state.cluster_id else not_known(state)
        grid.show_log(log, nothing)
        grid.show_title(LEGEND if grid.zoom == 1 else f"{grid.zoom} bags a cell   {LEGEND}")
        if log is not None:
            self.query_one("#log", WordsLine).say(self._heading(state, log))
        self._ask_about(grid.bag)
        self.query_one(DetailTable).tick(state)

    def _chosen(self, state: ClusterState) -> LogView | None:
        named = [log for log in state.logs if log.name == self._log]
        return named[0] if named else state.logs[0] if state.logs else None

    def _heading(self, state: ClusterState, log: LogView) -> str:
        """Say in one line which log it is and how far it is closed; a long name gives way."""
        place = [each.name for each in state.logs].index(log.name) + 1
        which = f" ({place} of {len(state.logs)})" if len(state.logs) > 1 else ""
        rest = f"{which}   bags of {span_text(log.span_ns)}   {log_words(log, state.clock.now).text}"
        room = max(NAME_LEAST, self.size.width - cells_of(f" log {rest} "))
        return f"log {log.name if cells_of(log.name) <= room else fitted(log.name, room)}{rest}"

    def on_bag_grid_moved(self) -> None:
        """Ask about the bag under the cursor."""
        self._ask_about(self.query_one(BagGrid).bag)

    def on_bag_grid_zoomed(self) -> None:
        """Say how many bags a cell has."""
        if self.state is not None:
            self.draw(self.state)

    def _ask_about(self, bag: BagCell | None) -> None:
        """Ask once for each bag, and again when it has come further."""
        if bag == self._shown:
            return
        self._shown = bag
        pane = self.query_one(DetailTable)
        pane.show_title("" if bag is None else _bag_title(bag))
        pane.ask(self.query_one(BagGrid).subject, self.top.look_up)

    def show_bag(self, log: str, start: Instant) -> None:
        """Put the cursor on a bag."""
        self._log = log
        if self.state is not None:
            self.query_one(BagGrid).show_log(self._chosen(self.state), "")
        self.query_one(BagGrid).go_to(start)

    def action_next_log(self) -> None:
        """Show the next log."""
        if self.state is not None and self.state.logs:
            names = [log.name for log in self.state.logs]
            place = names.index(self._log) if self._log in names else 0
            self._log = names[(place + 1) % len(names)]
            self.draw(self.state)

    def filter_words(self, words: str) -> None:
        """Narrow what is said of the bag."""
        self.query_one(DetailTable).narrow(words)

    def subject(self) -> Subject | None:
        """Return the line's, where the cursor is in the lines; else the bag."""
        pane = self.query_one(DetailTable)
        return pane.subject if self.focused is pane else self.query_one(BagGrid).subject

    def action_open_bag(self) -> None:
        """Open the bag under the cursor."""
        subject = self.query_one(BagGrid).subject
        if subject is not None:
            self.top.open(subject)


def _bag_title(bag: BagCell) -> str:
    damage = f"   ✗ {bag.damage}" if bag.damage else ""
    return f"bag {clock_text(bag.start_ns, 3)}   {bag.state or 'nobody wrote'}{damage}"
