"""The screens of a cluster's state, with their tables: overview, leases, bags, time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

from textual.binding import Binding, BindingType
from textual.widget import Widget

from appliance.formats.shardmap import shard_text
from timeagent.console import counted
from timeagent.units import TimeInterval, span_text

from ..app import LEASE_LEGEND, TopScreen
from ..model import clocks, tables
from ..model import state as model
from ..model.clocks import AXIS_COLUMN, CLOCK_LEGEND, COMMON, LIVE_COLUMNS, SIGNED_COLUMNS, ClockHistory, ClockRows
from ..model.overview import health_lines, leases_count, leases_title, not_known, nothing_words, time_line
from ..model.state import (
    BagCell,
    Cell,
    ClockSubject,
    ClusterState,
    DomainSubject,
    LeaseRow,
    LeaseSubject,
    Subject,
    Tone,
)
from ..model.tables import LEASE_OPTIONS, LEASES, MANY_LEASES, NODE_COLUMNS, Field, cells_of
from ..model.words import clock_text, lease_words, log_words, moment, node_rows
from ..widgets.bag_grid import BAG_GRID_LEGEND, BagGrid, BagStrip
from ..widgets.lines import WordsLine
from ..widgets.row_table import DetailTable, ListTable, PickTable


class LeaseTable(ListTable[LeaseRow, TimeInterval]):
    """Leases; as the overview shows them."""

    LISTING = LEASES

    def show(self, state: ClusterState, wanted: tables.ListOptions) -> None:
        def title(shown: int) -> str:
            return self.heading(state, shown, wanted)

        self.show_list(state.leases, wanted, state.clock.now, title, nothing_words(state, wanted.words))

    def heading(self, state: ClusterState, shown: int, wanted: tables.ListOptions) -> str:
        return leases_title(state, shown, wanted.words)


class LeaseList(LeaseTable):
    LISTING = MANY_LEASES

    def heading(self, state: ClusterState, shown: int, wanted: tables.ListOptions) -> str:
        parts = [f"Leases   {f'{shown} shown of ' if wanted.words else ''}{leases_count(state)}"]
        parts += [f"filter: {wanted.words}"] if wanted.words else []
        parts.append(f"sort: {wanted.order} {'▼' if wanted.backwards else '▲'}")
        parts += [] if wanted.group == "none" else [f"by {wanted.group}"]
        return "   ".join(parts)


class LeaseFacts(WordsLine):
    """The lease under the cursor: a line each, cut where it is too long, so that none pushes another out."""

    def __init__(self) -> None:
        super().__init__(id="lease-facts", cut=True)

    def show(self, row: LeaseRow | None, state: ClusterState) -> None:
        if row is None:
            self.show_title("")
            self.say("")
            return
        self.show_title(row.domain)
        near = state.clock.now.midpoint
        instants = row.granted_ns, row.floor_ns, row.settle_to_ns, row.expiry_ns, row.resumes_ns
        granted, floor, settle_to, expiry, free_by = (moment(instant, near) for instant in instants)
        holder = f"{row.node}/{row.process}"
        waiting, before = ("not known" if each is None else each for each in (row.waiting, row.previous))
        session = "" if row.session is None else f"   under session {row.session[-8:]}"
        written = "" if row.messages is None else f"   {counted(row.messages, 'message')}"
        written += "" if row.watermark_ns is None else f", up to {moment(row.watermark_ns, near)}"
        lines = (
            ("holder", f"{holder}  {row.purpose or '-'}   shard {shard_text(row.shard)}   mode {row.mode}{session}"),
            ("lease", f"{row.correlation_id}   fence {row.fence}"),
            ("from", f"granted {granted}   floor {floor}   settle to {settle_to}"),
            ("until", f"expiry {expiry}   free by {free_by}   waiting {waiting}"),
            ("stands", f"{lease_words(row, state.clock.now) or 'held'}   the one before: {before}{written}"),
        )
        self.say_lines((Cell(f"{label:7} ", Tone.DIM), text) for label, text in lines)


class NodeTable(PickTable):
    def __init__(self) -> None:
        super().__init__(NODE_COLUMNS, "Nodes", id="nodes")

    def show(self, state: ClusterState) -> None:
        rows = [(node.name, row) for node in state.nodes for row in node_rows(node, state.clock.now)]
        self.show_title(f"Nodes {len(state.nodes)}" if state.cluster_id else "Nodes ?")
        self.show_picks(
            len(rows), lambda index: rows[index][1], not_known(state), lambda index: model.NodeSubject(rows[index][0])
        )


class ClockTable(PickTable):
    """One row for each node; the last one, of clocks that are compared, is what they have in common."""

    def __init__(self) -> None:
        super().__init__(SIGNED_COLUMNS, "Clocks", id="clocks")
        self._rows: ClockRows | None = None

    def show(self, rows: ClockRows, nothing: str) -> None:
        columns = LIVE_COLUMNS if rows.asked else SIGNED_COLUMNS
        if columns is not self._columns:
            self._columns, self._laid = columns, None
        self._rows = rows

        def about(index: int) -> object:
            name = rows.name(index)
            return name if name == COMMON else ClockSubject(name)

        self.show_picks(len(rows), lambda index: rows.row(index, self._axis_width), nothing, about)

    @property
    def _axis_width(self) -> int:
        return self.columns_in(max(1, self.scrollable_content_region.width - 1)).widths[AXIS_COLUMN]

    def in_sight(self, index: int) -> Sequence[Field]:
        """Return up to the node's name: the axis is as wide as the columns leave it."""
        return () if self._rows is None else (Cell(""), Cell(self._rows.name(index)))

    @property
    def _heading(self) -> Sequence[Field]:
        fields = tables.heading(self._columns)
        if self._rows is not None:
            fields[AXIS_COLUMN] = Cell(self._rows.heading(self._axis_width), Tone.DIM)
        return fields


class LeaseScreen(TopScreen):
    """One with a table of leases: it can be narrowed, and a lease in it revoked."""

    FILTERS = True
    BINDINGS: ClassVar[list[BindingType]] = [Binding("R", "revoke", "Revoke")]
    TABLE: ClassVar[type[LeaseTable]] = LeaseTable
    LISTING = LEASES
    options = LEASE_OPTIONS

    @property
    def table(self) -> LeaseTable:
        return self.query_one(self.TABLE)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self.top.writable if action == "revoke" else super().check_action(action, parameters)

    def action_revoke(self) -> None:
        row = self.table.row if self.table.has_focus else None
        if row is None:
            self.notify("no lease is under the cursor", timeout=2)
        else:
            self.top.revoke(row)


class OverviewScreen(LeaseScreen):
    NAME = "overview"
    AUTO_FOCUS = "#leases"

    def parts(self) -> Iterable[Widget]:
        return (
            WordsLine(id="health"),
            NodeTable(),
            LeaseTable(id="leases"),
            BagStrip(),
            WordsLine(id="clock", title="Time"),
        )

    def subject(self) -> Subject | None:
        """Return of a lease its domain. The cursor stays on the lease: others may hold its domain too."""
        found = super().subject()
        return DomainSubject(found.domain) if isinstance(found, LeaseSubject) else found

    def draw(self, state: ClusterState) -> None:
        self.query_one("#health", WordsLine).say_lines(health_lines(state))
        self.query_one(NodeTable).show(state)
        self.table.show(state, self.options)
        self.query_one(BagStrip).show(state)
        self.query_one("#clock", WordsLine).say(*time_line(state))


class LeasesScreen(LeaseScreen):
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
        return LeaseList(id="lease-list"), LeaseFacts()

    def draw(self, state: ClusterState) -> None:
        self.table.show(state, self.options)
        self.query_one(LeaseFacts).show(self.table.row, state)

    def on_pick_table_moved(self) -> None:
        if self.state is not None:
            self.query_one(LeaseFacts).show(self.table.row, self.state)


NAME_LEAST: Final = 8
"""So many cells of a log's name are shown in any case."""


class BagsScreen(TopScreen):
    NAME = "bags"
    FILTERS = True
    LEGENDS = (("Bags", BAG_GRID_LEGEND),)
    AUTO_FOCUS = "#bag-grid"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("n", "next_log", "Next log"), Binding("enter", "open_bag", "Open")]

    def __init__(self) -> None:
        super().__init__()
        self._log = ""
        self._shown: tuple[object, ...] = ()
        """Which bag the lines are asked about, how it stood, and at which instant."""

    def parts(self) -> Iterable[Widget]:
        return WordsLine(id="log", cut=True), BagGrid(), DetailTable(id="bag")

    def draw(self, state: ClusterState) -> None:
        log = next((each for each in state.logs if each.name == self._log), next(iter(state.logs), None))
        self._log = self._log or ("" if log is None else log.name)  # another one that comes before it changes nothing
        grid = self.query_one(BagGrid)
        nothing = "there are no logs yet" if state.cluster_id else not_known(state)
        grid.show_log(log, nothing)
        grid.show_title(BAG_GRID_LEGEND if grid.zoom == 1 else f"{grid.zoom} bags a cell   {BAG_GRID_LEGEND}")
        self.query_one("#log", WordsLine).say("" if log is None else self._heading(state, log))
        self._ask_about(grid.bag)
        self.query_one(DetailTable).tick(state)

    def _heading(self, state: ClusterState, log: model.LogView) -> str:
        """Say in one line which log it is and how far it is closed; a long name gives way."""
        place = [each.name for each in state.logs].index(log.name) + 1
        which = f" ({place} of {len(state.logs)})" if len(state.logs) > 1 else ""
        rest = f"{which}   bags of {span_text(log.span_ns)}   {log_words(log, state.clock.now).text}"
        room = max(NAME_LEAST, self.size.width - cells_of(f" log {rest} "))
        return f"log {log.name if cells_of(log.name) <= room else tables.fitted(log.name, room)}{rest}"

    def on_bag_grid_bag_changed(self) -> None:
        self._ask_about(self.query_one(BagGrid).bag)

    def on_bag_grid_zoomed(self) -> None:
        if self.state is not None:
            self.draw(self.state)

    def _ask_about(self, bag: BagCell | None) -> None:
        subject = self.query_one(BagGrid).subject
        shown = subject, bag, self.top.instant
        if shown == self._shown:
            return
        self._shown = shown
        pane = self.query_one(DetailTable)
        if bag is None:
            pane.show_title("")
        else:
            damage = f"   ✗ {bag.damage}" if bag.damage else ""
            pane.show_title(f"bag {clock_text(bag.start_ns, 3)}   {bag.state or 'nobody wrote'}{damage}")
        pane.ask(subject, self.top.look_up)

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


SIGNED_WORDS: Final = "each about its own middle: signed at different instants, they cannot be compared"


class TimeScreen(TopScreen):
    NAME = "time"
    FILTERS = True
    LEGENDS = (("Clocks", CLOCK_LEGEND),)
    AUTO_FOCUS = "#clocks"
    options = tables.ListOptions("node")

    def __init__(self) -> None:
        super().__init__()
        self._history = ClockHistory()

    def parts(self) -> Iterable[Widget]:
        return (
            WordsLine(id="clock", title="Time"),
            ClockTable(),
            WordsLine(id="agreed"),
            WordsLine(id="sources", cut=True),
            WordsLine(id="history"),
        )

    def draw(self, state: ClusterState) -> None:
        self.query_one("#clock", WordsLine).say(*time_line(state))
        words = self.options.words
        rows = ClockRows(state, words)
        self._history.take(state.clocks, rows.agreed.common)
        table = self.query_one(ClockTable)
        count = str(len(state.clocks)) if state.cluster_id else "?"
        narrowed = f"   {rows.shown} shown, filter: {words}" if words else ""
        what = "each asked now; bars are widened by the round trip" if rows.asked else SIGNED_WORDS
        table.show_title(f"Clocks of nodes   {count}{narrowed}   {what}")
        table.show(rows, "nothing that a node signed was seen yet" if state.cluster_id else not_known(state))
        agreed = self.query_one("#agreed", WordsLine)
        agreed.display = bool(rows.agreed.compared)
        agreed.say(Cell(clocks.agreement_words(rows.agreed), Tone.PLAIN if rows.agreed.good else Tone.BAD))
        self._show_sources(state)
        self._show_history()

    def _show_sources(self, state: ClusterState) -> None:
        widget = self.query_one("#sources", WordsLine)
        who = "by its agent" if state.times is not None and state.times.agent else "asked for here; no agent runs"
        widget.show_title("This machine's sources" + ("" if state.times is None else f"   {who}"))
        lines = list(clocks.source_lines(state.times, max(20, widget.size.width - 2)))
        outside = clocks.outside_words(state)
        if outside.text:
            lines.append(outside)
        widget.say_lines([cell] for cell in lines)

    def _show_history(self) -> None:
        subject = self.query_one(ClockTable).key
        lines = self._history.words(subject.name) if isinstance(subject, ClockSubject) else [""]
        self.query_one("#history", WordsLine).say_lines([line] for line in lines)

    def on_pick_table_moved(self) -> None:
        self._show_history()
