"""The screens of a cluster's state: overview, leases, bags, time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Final

from textual.binding import Binding, BindingType
from textual.widget import Widget

from timeagent.units import span_text

from ..model.clocks import CLOCK_LEGEND, ClockHistory, ClockRows, agreement_words, outside_words, source_lines
from ..model.columns import cells_of, fitted
from ..model.lease_list import LeaseOptions, ListOptions
from ..model.overview import not_known
from ..model.state import BagCell, ClockSubject, ClusterState, LeaseRow, LogView, Subject, Tone
from ..model.words import clock_text, log_words
from ..widgets.bag_grid import BAG_GRID_LEGEND, BagGrid, BagStrip
from ..widgets.cluster_tables import ClockTable, LeaseFacts, LeaseList, LeaseTable, NodeTable
from ..widgets.framing import STYLES
from ..widgets.lines import ClockLine, HealthLine, WordsLine
from ..widgets.row_table import DetailTable
from .screen import LEASE_LEGEND, TopScreen


class LeaseScreen(TopScreen):
    """One with a table of leases: it can be narrowed, and a lease in it revoked."""

    FILTERS = True
    REVOKES = True
    TABLE: ClassVar[type[LeaseTable]] = LeaseTable

    @property
    def table(self) -> LeaseTable:
        return self.query_one(self.TABLE)

    def lease(self) -> LeaseRow | None:
        return self.table.row if self.table.has_focus else None

    @property
    def options(self) -> LeaseOptions:
        return self.table.wanted

    def want(self, options: ListOptions[Any, Any]) -> None:
        assert isinstance(options, LeaseOptions)
        self.table.want(options)


class OverviewScreen(LeaseScreen):
    """One glance at a cluster, worst news first."""

    NAME = "overview"
    AUTO_FOCUS = "#leases"

    def parts(self) -> Iterable[Widget]:
        return HealthLine(), NodeTable(), LeaseTable(), BagStrip(), ClockLine()

    def draw(self, state: ClusterState) -> None:
        self.query_one(HealthLine).show(state)
        self.query_one(NodeTable).show(state)
        self.table.show(state)
        self.query_one(BagStrip).show(state)
        self.query_one(ClockLine).show(state)


class LeasesScreen(LeaseScreen):
    """Many leases, and all that is known of the one under the cursor."""

    NAME = "leases"
    TABLE = LeaseList
    LEGENDS = (LEASE_LEGEND,)
    AUTO_FOCUS = "#lease-list"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "sort", "Sort"),
        Binding("S", "turn", "Other way round", show=False),
        Binding("b", "group", "Group"),
    ]

    def parts(self) -> Iterable[Widget]:
        return LeaseList(), LeaseFacts()

    def draw(self, state: ClusterState) -> None:
        self.table.show(state)
        self.query_one(LeaseFacts).show(self.table.row, state)

    def on_pick_table_moved(self) -> None:
        if self.state is not None:
            self.query_one(LeaseFacts).show(self.table.row, self.state)

    def action_turn(self) -> None:
        super().action_turn()
        self.on_pick_table_moved()  # drawn with it, where the table's word would come after the next drawing


NAME_LEAST: Final = 8
"""So many cells of a log's name are shown in any case."""


class BagsScreen(TopScreen):
    """One log's bags, and what is known of the one under the cursor."""

    NAME = "bags"
    FILTERS = True
    LEGENDS = (("Bags", BAG_GRID_LEGEND),)
    AUTO_FOCUS = "#bag-grid"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("n", "next_log", "Next log"), Binding("enter", "open_bag", "Open")]

    def __init__(self) -> None:
        super().__init__()
        self._log = ""
        self._shown: BagCell | None = None

    def parts(self) -> Iterable[Widget]:
        return WordsLine(id="log", cut=True), BagGrid(), DetailTable(id="bag")

    def draw(self, state: ClusterState) -> None:
        log = self._chosen(state)
        grid = self.query_one(BagGrid)
        nothing = "there are no logs yet" if state.cluster_id else not_known(state)
        grid.show_log(log, nothing)
        grid.show_title(BAG_GRID_LEGEND if grid.zoom == 1 else f"{grid.zoom} bags a cell   {BAG_GRID_LEGEND}")
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

    def on_bag_grid_bag_changed(self) -> None:
        self._ask_about(self.query_one(BagGrid).bag)

    def on_bag_grid_zoomed(self) -> None:
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

    def action_next_log(self) -> None:
        if self.state is not None and self.state.logs:
            names = [log.name for log in self.state.logs]
            place = names.index(self._log) if self._log in names else 0
            self._log = names[(place + 1) % len(names)]
            self.draw(self.state)

    def filter_words(self, words: str) -> None:
        self.query_one(DetailTable).narrow(words)

    def subject(self) -> Subject | None:
        """Return the line's, where the cursor is in the lines; else the bag."""
        pane = self.query_one(DetailTable)
        return pane.subject if self.focused is pane else self.query_one(BagGrid).subject

    def action_open_bag(self) -> None:
        subject = self.query_one(BagGrid).subject
        if subject is not None:
            self.top.open(subject)


def _bag_title(bag: BagCell) -> str:
    damage = f"   ✗ {bag.damage}" if bag.damage else ""
    return f"bag {clock_text(bag.start_ns, 3)}   {bag.state or 'nobody wrote'}{damage}"


SIGNED_WORDS: Final = "each about its own middle: signed at different instants, they cannot be compared"


class TimeScreen(TopScreen):
    """Clocks; enter opens what one of them signed."""

    NAME = "time"
    FILTERS = True
    LEGENDS = (("Clocks", CLOCK_LEGEND),)
    AUTO_FOCUS = "#clocks"

    def __init__(self) -> None:
        super().__init__()
        self._history = ClockHistory()
        self._words = ""

    def parts(self) -> Iterable[Widget]:
        """The nodes and what they agree on, this machine's sources, the history of one clock."""
        return (
            ClockLine(),
            ClockTable(),
            WordsLine(id="agreed"),
            WordsLine(id="sources", cut=True),
            WordsLine(id="history"),
        )

    def draw(self, state: ClusterState) -> None:
        self.query_one(ClockLine).show(state)
        rows = ClockRows(state, self._words)
        self._history.take(state.clocks, rows.agreed.common)
        table = self.query_one(ClockTable)
        count = str(len(state.clocks)) if state.cluster_id else "?"
        narrowed = f"   {rows.shown} shown, filter: {self._words}" if self._words else ""
        what = "each asked now; bars are widened by the round trip" if rows.asked else SIGNED_WORDS
        table.show_title(f"Clocks of nodes   {count}{narrowed}   {what}")
        table.show(rows, "nothing that a node signed was seen yet" if state.cluster_id else not_known(state))
        agreed = self.query_one("#agreed", WordsLine)
        agreed.display = bool(rows.agreed.compared)
        agreed.say((agreement_words(rows.agreed), STYLES[Tone.PLAIN if rows.agreed.good else Tone.BAD]))
        self._show_sources(state)
        self._show_history()

    def _show_sources(self, state: ClusterState) -> None:
        widget = self.query_one("#sources", WordsLine)
        who = "by its agent" if state.times is not None and state.times.agent else "asked for here; no agent runs"
        widget.show_title("This machine's sources" + ("" if state.times is None else f"   {who}"))
        lines = list(source_lines(state.times, max(20, widget.size.width - 2)))
        outside = outside_words(state)
        if outside[0]:
            lines.append(outside)
        widget.say_lines([((line, STYLES[tone]),) for line, tone in lines])

    def _show_history(self) -> None:
        subject = self.query_one(ClockTable).key
        lines = self._history.words(subject.name) if isinstance(subject, ClockSubject) else [""]
        self.query_one("#history", WordsLine).say_lines([(line,) for line in lines])

    def on_pick_table_moved(self) -> None:
        self._show_history()

    def filter_words(self, words: str) -> None:
        self._words = words.strip()
        if self.state is not None:
            self.draw(self.state)
