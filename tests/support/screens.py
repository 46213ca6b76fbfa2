"""States for screens, with good defaults; a recorded source; a feed that is driven by hand."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from appliance.bag.logs import ClosingState
from appliance.formats.chains import CeilingKind
from appliance.formats.lease import LeaseOutcome, Mode, Phase
from appliance.formats.policy import Policy
from tests.support.machine import HandMachine
from timeagent.errors import TenureError
from timeagent.showing import SourceView
from timeagent.units import MS, SECOND, TimeInterval
from tui.feed import AskedQuestion, Feed
from tui.model.state import (
    BagCell,
    Cell,
    ClockView,
    ClusterState,
    DetailLine,
    Freshness,
    LeaseOrigin,
    LeaseRow,
    LeaseRows,
    LogView,
    NodeClock,
    NodeView,
    Reach,
    ShardView,
    TimeSources,
    identifier_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from timeagent.units import Instant
    from tui.model.state import Subject

NOW_NS = 1_795_212_607_400_000_000
"""2026-11-20T22:10:07.4Z."""

POLICY = Policy(number=1, cluster_id=bytes(16))
ANSWERS = Freshness(Reach.ANSWERS, 100 * MS)
AFTER_EXPIRY_NS = POLICY.after_expiry_ns()


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
        LeaseOrigin.SHARD,
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
    kinds = {
        "s": ClosingState.SEALED,
        "c": ClosingState.CLOSED,
        "g": ClosingState.CLOSING,
        "o": ClosingState.OPEN,
        ".": None,
    }
    first = NOW_NS - NOW_NS % SECOND - (len(states) - 1) * SECOND
    bags = tuple(
        BagCell(first + i * SECOND, first + (i + 3) * SECOND, kinds[letter], int(letter != "."))
        for i, letter in enumerate(states)
    )
    return LogView(name, bags, NOW_NS - 2 * SECOND)


def state(**fields: Any) -> ClusterState:  # noqa: ANN401
    fields = {name: LeaseRows(each) if name == "leases" else each for name, each in fields.items()}
    shards = [shard(0, "node1"), shard(1, "node2"), shard(2, "node3")]
    return replace(
        ClusterState(
            "/srv/tenure",
            clock_view(),
            ANSWERS,
            "5f3a" * 8,
            "",
            POLICY.radius_ns_max,
            tuple(NodeView(each.node, each.node == "node1", (each,)) for each in shards),
            LeaseRows(
                (lease("account/01"), lease("account/02", 6 * SECOND, node="node2", process=77, purpose="nightly"))
            ),
            (log(),),
        ),
        **fields,
    )


def with_shards(*shards: ShardView, **fields: Any) -> ClusterState:  # noqa: ANN401
    return state(nodes=tuple(NodeView(each.node, False, (each,)) for each in shards), **fields)  # noqa: FBT003


def later(was: ClusterState, span: int) -> ClusterState:
    """The same state, its clock a span further."""
    return replace(was, clock=clock_view(was.clock.now.midpoint + span, was.clock.now.radius))


def node_clock(
    node: str = "node1",
    radius_ns: int = 620_000,
    offset_ns: int = 0,
    **fields: Any,  # noqa: ANN401
) -> NodeClock:
    """A clock that answered 300 ms ago, after 0.2 ms; this machine booted 1000 s ago."""
    ahead = TimeInterval.around(NOW_NS - 1_000 * SECOND + offset_ns, radius_ns + 160_000)
    clock = NodeClock(
        node,
        NOW_NS + offset_ns,
        radius_ns,
        "synchronized",
        assumed=False,
        age_ns=300 * MS,
        reach=Reach.ANSWERS,
        ahead=ahead,
        trip_ns=200_000,
        read_ns=1_000 * SECOND - 300 * MS,
    )
    return replace(clock, **fields)


def signed_clock(node: str = "node1", radius_ns: int | None = 620_000, **fields: Any) -> NodeClock:  # noqa: ANN401
    """What a node signed 300 ms ago where everybody can read it; nobody asked it."""
    clock = NodeClock(node, NOW_NS - 300 * MS, radius_ns, "synchronized", assumed=False, age_ns=300 * MS)
    return replace(clock, **fields)


def silent_clock(node: str = "node1", span: int = 3_200 * MS) -> NodeClock:
    return replace(
        signed_clock(node, age_ns=14 * SECOND), reach=Reach.SILENT, silent_ns=span, problem="connection refused"
    )


def source_view(name: str, offset_ns: int = 0, radius_ns: int = MS, role: str = "agrees") -> SourceView:
    return SourceView(name, TimeInterval.around(NOW_NS + offset_ns, radius_ns), "synchronized", role, None)


def busy_state() -> ClusterState:
    """A cluster with something of everything: for pictures, and for what must fit a small terminal."""
    leases = (
        lease("account/01", waiting=2, granted_ns=NOW_NS - 3 * SECOND, floor_ns=NOW_NS - 4 * SECOND, settle_to_ns=0),
        lease("account/02", 6 * SECOND, node="node2", process=77, purpose="nightly", waiting=0),
        lease("account/03", 700 * MS, previous=LeaseOutcome.EXPIRED, waiting=0),
        lease("account/04", 2 * SECOND, holder_present=False, waiting=1),
        lease("account/05", -SECOND, node="node3", process=4_194_304, waiting=0),
        lease("index/compact", 8 * SECOND, mode=Mode.IX, waiting=0, messages=411, renewals=90),
        lease("index/merge", 5 * SECOND, phase=Phase.TENTATIVE, node="node2", process=77, waiting=0),
        lease(
            "tenant/088", 4 * SECOND, origin=LeaseOrigin.LAST_ANSWER, as_of_ns=NOW_NS - 3 * SECOND, holder_present=None
        ),
    )
    shards = (shard(0), silent_shard(1, "node2"), shard(2, "node3", resumes_ns=NOW_NS + SECOND))
    clocks = (
        node_clock("node1"),
        silent_clock("node2"),
        node_clock("node3", 12_700_000, 1_400_000, status="free-running"),
        node_clock("node4", 900_000, -350_000),
        signed_clock(
            "node5", midpoint_ns=None, radius_ns=None, age_ns=None, problem="runs no shard that could be asked"
        ),
    )
    sources = (
        source_view("kernel", 200_000, 2 * MS),
        source_view("chrony", -100_000, MS, "shapes"),
        source_view("roughtime.example", 0, 3 * SECOND),
        SourceView("peer node3", None, "unknown", "silent", "no answer within 500 ms"),
    )
    times = TimeSources(ANSWERS, sources, TimeInterval.around(NOW_NS - 50_000, 900_000), agent=True)
    logs = (log("bank", "sssss.sscccc.ccccgcoo"), log("index", "...cccco"))
    return with_shards(*shards, leases=LeaseRows(leases), clocks=clocks, times=times, logs=logs)


class RecordedSource:
    """A StateSource that knows a few instants: the state of an instant is the newest that is not after it."""

    def __init__(self, *states: ClusterState, questions: Sequence[AskedQuestion[Any]] = ()) -> None:
        self._states = sorted(states, key=lambda each: each.clock.now.midpoint)
        self._questions = questions
        self.at: Instant | None = None

    def questions(self) -> Sequence[AskedQuestion[Any]]:
        return self._questions

    record = None

    def details(self, subject: Subject, instant: Instant | None = None) -> Sequence[DetailLine]:
        """One line, which leads to the same."""
        del instant
        return [DetailLine((Cell(f"about {identifier_of(subject)}"),), subject)]

    def state_at(self, instant: Instant | None = None) -> ClusterState:
        wanted = instant if instant is not None else self.at
        found = [each for each in self._states if wanted is None or each.clock.now.midpoint <= wanted]
        return found[-1] if found else self._states[0]


class HandFeed(Feed):
    """A feed that hands over what it is told to, when it is told to."""

    def __init__(self, source: RecordedSource) -> None:
        super().__init__(source, HandMachine())
        self.asked = 0
        self.stopped = False
        self._take: Callable[[ClusterState], object] | None = None

    def start(self, take: Callable[[ClusterState], object], failed: Callable[[BaseException], None]) -> None:
        del failed
        self._take = take
        self.hand_over()

    def hand_over(self) -> None:
        assert self._take is not None
        self._take(self.source.state_at())

    def look_at(self, instant: Instant | None) -> None:
        assert isinstance(self.source, RecordedSource)
        self.source.at = instant
        self.hand_over()

    def do[T](self, body: Callable[[], T], failed: Callable[[BaseException], None]) -> Future[T | TenureError]:
        """At once, on the screen's own thread."""
        del failed
        found: Future[T | TenureError] = Future()
        try:
            found.set_result(body())
        except TenureError as problem:
            found.set_result(problem)
        return found

    def stop(self) -> None:
        self.stopped = True

    def ask_now(self) -> None:
        self.asked += 1
        if not self.stopped:
            self.hand_over()
