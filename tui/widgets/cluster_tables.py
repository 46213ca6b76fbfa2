"""The tables of a cluster's state: leases and the facts of one, nodes and their shards, clocks on one axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from timeagent.console import counted
from timeagent.interval import TimeInterval

from ..model.clocks import AXIS_COLUMN, COMMON, LIVE_COLUMNS, SIGNED_COLUMNS, ClockRows
from ..model.columns import LEASE_COLUMNS, MANY_LEASE_COLUMNS, NODE_COLUMNS, Column, Field, heading
from ..model.lease_list import GroupHeading, LeaseArrangement, LeaseGroup, LeaseOptions, LeaseOrder, arrange
from ..model.overview import leases_count, leases_title, not_known, nothing_words
from ..model.state import (
    Cell,
    ClockSubject,
    ClusterState,
    DomainSubject,
    LeaseRow,
    LeaseSubject,
    NodeSubject,
    Subject,
    Tone,
)
from ..model.words import lease_row, lease_words, many_lease_row, moment, node_rows
from .framing import MUTED
from .lines import WordsLine
from .row_table import PickTable

INLINE_MAX: Final = 5_000
"""So many rows are arranged at once; more of them by a thread, and until it has, the rows stay as they were."""


class LeaseTable(PickTable):
    """Leases, narrowed, sorted and in groups as they are wanted; what the overview shows of them."""

    def __init__(self, columns: Sequence[Column] = LEASE_COLUMNS, name: str = "leases") -> None:
        super().__init__(columns, "Leases", id=name)
        self._state: ClusterState | None = None
        self._made: LeaseArrangement | None = None
        self.wanted = LeaseOptions()

    def title_of(self, state: ClusterState, made: LeaseArrangement | None) -> str:
        return leases_title(state, 0 if made is None else made.shown, self.wanted.words)

    def cells_of(self, row: LeaseRow, now: TimeInterval) -> tuple[Cell, ...]:
        return lease_row(row, now)

    def subject_of(self, row: LeaseRow) -> Subject:
        return DomainSubject(row.domain)

    def show(self, state: ClusterState) -> None:
        self._state = state
        made = self._made
        found = None
        if made is None or made.wanted != self.wanted or made.leases is not state.leases:
            if self._at_once(state):
                number = self._number(state)
                self._made = arrange(state.leases, self.wanted, state.clock.now)
                place = self._made.place_of(number) if number >= 0 else None
                found = None if place is None else (self._key, place)
            else:
                self._arrange_behind(state)
        self._fill(found)

    def _at_once(self, state: ClusterState) -> bool:
        """Whether arranging takes no time: there are few rows, or the order is that of the answer, or its reverse."""
        whole = (
            self.wanted.order is LeaseOrder.DOMAIN
            and self.wanted.group is LeaseGroup.NONE
            and not self.wanted.words.split()
        )
        return whole or len(state.leases) <= INLINE_MAX

    def _number(self, state: ClusterState) -> int:
        """Return the number of the row under the cursor; -1 where there is none, or it is one of another answer."""
        made = self._made
        if made is None or made.leases is not state.leases or self.cursor >= len(made.places):
            return -1
        return int(made.places[self.cursor])

    def want(self, wanted: LeaseOptions) -> None:
        """Arrange otherwise. Many rows stay as they are until a thread has arranged them."""
        self.wanted = wanted
        if self._state is None:
            return
        if self._at_once(self._state):
            self.show(self._state)
        else:
            self._arrange_behind(self._state)

    def _arrange_behind(self, state: ClusterState) -> None:
        wanted, key, number = self.wanted, self._key, self._number(state)

        def work() -> None:
            made = arrange(state.leases, wanted, state.clock.now)
            place = made.place_of(number) if number >= 0 else None
            self.app.call_from_thread(self._take, made, None if place is None else (key, place))

        self.run_worker(work, thread=True, exclusive=True, group="arrange")

    def _take(self, made: LeaseArrangement, found: tuple[object, int] | None) -> None:
        """Show rows as a thread has arranged them; ``found``: what the cursor was on then, and where that is now."""
        if made.wanted == self.wanted and self.is_mounted:
            self._made = made
            self._fill(found)

    def _fill(self, found: tuple[object, int] | None = None) -> None:
        state, made = self._state, self._made
        if state is None:
            return
        self.show_title(self.title_of(state, made))
        if made is None:
            self.show_rows(0, lambda _index: (), "arranging …")
            return
        now = state.clock.now

        def row_at(index: int) -> tuple[Field, ...]:
            row = made.at(index)
            return _heading_row(row) if isinstance(row, GroupHeading) else self.cells_of(row, now)

        def about(index: int) -> Subject | str:
            row = made.at(index)
            return row.name if isinstance(row, GroupHeading) else self.subject_of(row)

        nothing = nothing_words(state, self.wanted.words)
        # Whoever arranged the rows knows where one of them has gone.
        place_of = (lambda _key: found[1]) if found is not None and found[0] == self._key else None
        self.show_picks(len(made.places), row_at, nothing, about, place_of)

    @property
    def row(self) -> LeaseRow | None:
        if self._made is None or not self.count:
            return None
        found = self._made.at(self.cursor)
        return None if isinstance(found, GroupHeading) else found


class LeaseList(LeaseTable):
    """The table of the leases screen."""

    def __init__(self) -> None:
        super().__init__(MANY_LEASE_COLUMNS, "lease-list")

    def title_of(self, state: ClusterState, made: LeaseArrangement | None) -> str:
        shown = "" if made is None or not self.wanted.words else f"{made.shown} shown of "
        parts = [f"Leases   {shown}{leases_count(state)}"]
        if self.wanted.words:
            parts.append(f"filter: {self.wanted.words}")
        parts.append(f"sort: {self.wanted.order} {'▼' if self.wanted.backwards else '▲'}")
        if self.wanted.group is not LeaseGroup.NONE:
            parts.append(f"by {self.wanted.group}")
        return "   ".join(parts)

    def cells_of(self, row: LeaseRow, now: TimeInterval) -> tuple[Cell, ...]:
        return many_lease_row(row, now)

    def subject_of(self, row: LeaseRow) -> Subject:
        return LeaseSubject(row.domain, row.correlation_id)


def _heading_row(heading: GroupHeading) -> tuple[Field, ...]:
    blank = Cell("")
    rest = (blank,) * (len(MANY_LEASE_COLUMNS) - 2)
    return (Cell("▾", Tone.STRONG), Cell(f"{heading.name}  {heading.count}", Tone.STRONG), *rest)


NOBODY_SAYS = "not known"


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
        waiting = NOBODY_SAYS if row.waiting is None else str(row.waiting)
        session = "" if row.session is None else f"   under session {row.session[-8:]}"
        written = "" if row.messages is None else f"   {counted(row.messages, 'message')}"
        written += "" if row.watermark_ns is None else f", up to {moment(row.watermark_ns, near)}"
        before = NOBODY_SAYS if row.previous is None else str(row.previous)
        lines = (
            (
                "holder",
                f"{row.node}/{row.process}  {row.purpose or '-'}   shard {row.shard}   mode {row.mode}{session}",
            ),
            ("lease", f"{row.correlation_id}   fence {row.fence}"),
            (
                "from",
                (
                    f"granted {moment(row.granted_ns, near)}   floor {moment(row.floor_ns, near)}   "
                    f"settle to {moment(row.settle_to_ns, near)}"
                ),
            ),
            (
                "until",
                (f"expiry {moment(row.expiry_ns, near)}   free by {moment(row.resumes_ns, near)}   waiting {waiting}"),
            ),
            ("stands", f"{lease_words(row, state.clock.now) or 'held'}   the one before: {before}{written}"),
        )
        self.say_lines([((f"{label:7} ", MUTED), text) for label, text in lines])


class NodeTable(PickTable):
    """One row per shard, and one for each node without shards."""

    def __init__(self) -> None:
        super().__init__(NODE_COLUMNS, "Nodes", id="nodes")

    def show(self, state: ClusterState) -> None:
        rows = [(node.name, row) for node in state.nodes for row in node_rows(node, state.clock.now)]
        self.show_title(f"Nodes {len(state.nodes)}" if state.cluster_id else "Nodes ?")
        self.show_picks(
            len(rows), lambda index: rows[index][1], not_known(state), lambda index: NodeSubject(rows[index][0])
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
        fields = heading(self._columns)
        if self._rows is not None:
            fields[AXIS_COLUMN] = Cell(self._rows.heading(self._axis_width), Tone.DIM)
        return fields
