"""States for screens, with good defaults; a recorded source; a feed that is driven by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from appliance.bag.survey import BagState
from appliance.formats.ceiling import CeilingKind
from appliance.formats.lease import Mode, Phase
from appliance.formats.policy import Policy
from timeagent.errors import LeaseholdError
from timeagent.interval import TimeInterval
from timeagent.units import MS, SECOND
from tui.book import Leases
from tui.state import (
    BagCell,
    ClockView,
    ClusterState,
    Freshness,
    LeaseRow,
    LogView,
    NodeView,
    Origin,
    Reach,
    ShardView,
    Spans,
)
from tui.subjects import Details, Line
from tui.words import Cell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from timeagent.units import Instant
    from tui.recorded import Record
    from tui.state import Question
    from tui.subjects import Subject

NOW_NS = 1_795_212_607_400_000_000
"""2026-11-20T22:10:07.4Z."""

POLICY = Policy(number=1, cluster_id=bytes(16))
SPANS = Spans(
    POLICY.lease_term_max_ns,
    POLICY.span_ns,
    POLICY.grace_ns,
    POLICY.radius_ns_max,
    POLICY.takeover_ns(),
    POLICY.restart_ns(),
)
ANSWERS = Freshness(Reach.ANSWERS, 100 * MS)
AFTER_EXPIRY_NS = SPANS.takeover_ns - SPANS.lease_term_max_ns


def silent(span: int, problem: str = "connection refused") -> Freshness:
    return Freshness(Reach.SILENT, span, span, problem)


def clock_view(now_ns: Instant = NOW_NS, radius_ns: int = 5 * MS, *, assumed: bool = False) -> ClockView:
    source = "assumed" if assumed else "kernel"
    return ClockView(TimeInterval.around(now_ns, radius_ns), True, source, "synchronized", assumed)  # noqa: FBT003


def lease(domain: str = "account/01", left_ns: int = 7 * SECOND, **fields: Any) -> LeaseRow:  # noqa: ANN401
    expiry = NOW_NS + left_ns
    row = LeaseRow(
        domain,
        Mode.X,
        Phase.HELD,
        "node1",
        4242,
        "billing",
        "5f" * 16,
        1_795_212_604_003_000_001,
        expiry,
        0,
        Origin.SHARD,
        expiry + AFTER_EXPIRY_NS,
        holder_present=True,
    )
    return msgspec.structs.replace(row, **fields)


def shard(number: int = 0, node: str = "node1", **fields: Any) -> ShardView:  # noqa: ANN401
    view = ShardView(
        number,
        node,
        ANSWERS,
        "ab" * 8,
        leases=1,
        domains=3,
        ceiling_ns=NOW_NS + 11 * SECOND,
        ceiling_kind=CeilingKind.RUNNING,
        blocks_lost=0,
        ledger_bytes=12_345,
        resumes_ns=NOW_NS - 60 * SECOND,
    )
    return replace(view, **fields)


def silent_shard(number: int = 0, node: str = "node1", span: int = 3_200 * MS) -> ShardView:
    resumes = NOW_NS + 9 * SECOND
    return shard(number, node, freshness=silent(span), leases=None, domains=None, blocks_lost=None, resumes_ns=resumes)


def log(name: str = "bank", states: str = "ssscc.coo") -> LogView:
    """A log by one letter per bag: s sealed, c closed, g closing, o open, . nobody wrote."""
    kinds = {"s": BagState.SEALED, "c": BagState.CLOSED, "g": BagState.CLOSING, "o": BagState.OPEN, ".": None}
    first = NOW_NS - NOW_NS % SECOND - (len(states) - 1) * SECOND
    bags = tuple(
        BagCell(first + i * SECOND, first + (i + 3) * SECOND, kinds[letter], int(letter != "."))
        for i, letter in enumerate(states)
    )
    return LogView(name, bags, NOW_NS - 2 * SECOND)


def state(**fields: Any) -> ClusterState:  # noqa: ANN401
    shards = [shard(0, "node1"), shard(1, "node2"), shard(2, "node3")]
    return replace(
        ClusterState(
            "/srv/leasehold",
            clock_view(),
            ANSWERS,
            "5f3a" * 8,
            "",
            SPANS,
            tuple(NodeView(each.node, each.node == "node1", (each,)) for each in shards),
            Leases((lease("account/01"), lease("account/02", 6 * SECOND, node="node2", process=77, purpose="nightly"))),
            (log(),),
        ),
        **fields,
    )


def with_shards(*shards: ShardView, **fields: Any) -> ClusterState:  # noqa: ANN401
    return state(nodes=tuple(NodeView(each.node, False, (each,)) for each in shards), **fields)  # noqa: FBT003


def later(was: ClusterState, span: int) -> ClusterState:
    """The same state, its clock a span further."""
    return replace(was, clock=clock_view(was.clock.now.midpoint + span, was.clock.now.radius))


class RecordedSource:
    """A StateSource that knows a few instants: the state of an instant is the newest that is not after it."""

    def __init__(self, *states: ClusterState, questions: Sequence[Question] = ()) -> None:
        self._states = sorted(states, key=lambda each: each.clock.now.midpoint)
        self._questions = questions
        self.at: Instant | None = None

    def questions(self) -> Sequence[Question]:
        return self._questions

    record = None

    def details(self, subject: Subject, instant: Instant | None = None) -> Details:
        """One line, which leads to the same."""
        del instant
        return Details(subject.title, [Line((Cell(f"about {subject.identifier}"),), subject)])

    def state_at(self, instant: Instant | None = None) -> ClusterState:
        wanted = instant if instant is not None else self.at
        found = [each for each in self._states if wanted is None or each.clock.now.midpoint <= wanted]
        return found[-1] if found else self._states[0]


class HandFeed:
    """A feed that hands over what it is told to, when it is told to."""

    def __init__(self, source: RecordedSource) -> None:
        self.source = source
        self.asked = 0
        self.stopped = False
        self._take: Callable[[ClusterState], None] | None = None

    def start(self, take: Callable[[ClusterState], None], failed: Callable[[BaseException], None]) -> None:
        del failed
        self._take = take
        self.hand_over()

    def hand_over(self) -> None:
        assert self._take is not None
        self._take(self.source.state_at())

    @property
    def record(self) -> Record | None:
        return self.source.record

    def look_at(self, instant: Instant | None) -> None:
        self.source.at = instant
        self.hand_over()

    def look_up(
        self,
        subject: Subject,
        instant: Instant | None,
        take: Callable[[Details | LeaseholdError], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        del failed
        try:
            take(self.source.details(subject, instant))
        except LeaseholdError as problem:
            take(problem)

    def stop(self) -> None:
        self.stopped = True

    def ask_now(self) -> None:
        self.asked += 1
        if not self.stopped:
            self.hand_over()
