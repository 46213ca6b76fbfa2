"""What time it is at every node, asked of its shard: readings that can be compared, all carried to one instant here.

A node's word is an interval of its now. This machine's CLOCK_BOOTTIME, read before the question and after the answer,
makes an interval of true time minus that clock out of it; such intervals of several nodes belong on one axis, whenever
each was asked. Each is widened by its round trip, and ages by how fast this machine's clock may run away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from timeagent.errors import ShardUnavailable, TryAgain
from timeagent.interval import TimeInterval
from timeagent.sampled import DRIFT_PPM, drift_ns
from timeagent.signedtime import ClockStatus, SignedTime, TimeFlags
from timeagent.units import SECOND

from ..feed import AskedQuestion
from ..model.state import NodeClock, Reach

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from appliance.cluster import Cluster
    from appliance.node.routes import TimeThere
    from timeagent.clock import MachineClock
    from timeagent.sampled import Look
    from timeagent.units import Instant, Span


CLOCK_PERIOD_NS: Final = SECOND
UNKNOWN_REQUEST: Final = "call-damaged"
"""The code by which a shard refuses a call that its release does not know."""
NO_ADDRESS: Final = "no-address"


@dataclass(frozen=True, slots=True)
class NodeReading:
    """What a node said of its time, and when that was, by this machine's CLOCK_BOOTTIME."""

    ahead: TimeInterval | None
    """True time minus CLOCK_BOOTTIME here. None: the node has no bound, and ``problem`` says why."""
    radius_ns: Span | None
    """As it was said: without the round trip."""
    status: str
    assumed: bool
    trip_ns: Span
    answered_ns: int
    problem: str = ""

    @classmethod
    def of(cls, there: TimeThere) -> NodeReading:
        """Read what a shard answered. Raises Damaged."""
        told, ahead = there.told, there.ahead
        token = None if told.token is None else SignedTime.decode(told.token, f"the clock of node {told.node}")
        trip = there.answered_ns - there.asked_ns
        return cls(
            ahead,
            None if ahead is None else (ahead.latest - ahead.earliest - trip + 1) // 2,
            (ClockStatus.UNKNOWN if token is None else token.status).word,
            token is not None and bool(token.flags & TimeFlags.ASSUMED),
            trip,
            there.answered_ns,
            told.problem if ahead is None else "",
        )

    @classmethod
    def here(cls, look: Look, answered_ns: int) -> NodeReading:
        """Take this machine's own clock, where no shard of it can be asked."""
        trip = answered_ns - look.boot_ns
        ahead = TimeInterval(look.now.earliest - answered_ns, look.now.latest - look.boot_ns)
        return cls(ahead, look.now.radius, look.sample.status.word, look.sample.assumed, trip, answered_ns)


class NodeClocks:
    """A question for each node's clock, and what they said. Told from any thread."""

    def __init__(self, machine: MachineClock) -> None:
        self._machine = machine
        self._questions: dict[str, AskedQuestion[NodeReading]] = {}
        self._mute: set[tuple[str, bytes]] = set()
        """Nodes and incarnations that do not know the question: asked again once another release may run there."""

    def question(
        self, node: str, cluster: Cluster, at: Callable[[], tuple[int, bytes] | None]
    ) -> AskedQuestion[NodeReading] | None:
        """Return the question about a node that runs shards, unless there is one already.

        ``at``: which shard to ask there, and of which incarnation it last was.
        """

        def ask() -> NodeReading:
            shard = at()
            if shard is None:
                raise TryAgain("no-shard", f"{node} runs no shard now that could be asked")
            if (node, shard[1]) in self._mute:
                raise ShardUnavailable(UNKNOWN_REQUEST, "its release does not tell what time it is there")
            try:
                return NodeReading.of(cluster.clock_of(shard[0], node))
            except ShardUnavailable as problem:
                if problem.code == UNKNOWN_REQUEST:
                    self._mute.add((node, shard[1]))
                raise

        return self._new(node, ask)

    def own(self, node: str, look: Callable[[], Look]) -> AskedQuestion[NodeReading] | None:
        """Return the question about this machine's own clock, unless there is one already."""
        return self._new(node, lambda: NodeReading.here(look(), self._machine.boot_ns()))

    def _new(self, node: str, ask: Callable[[], NodeReading]) -> AskedQuestion[NodeReading] | None:
        if node in self._questions:
            return None
        self._questions[node] = AskedQuestion(f"clock of {node}", CLOCK_PERIOD_NS, self._machine, ask)
        return self._questions[node]

    def told(self, nodes: Iterable[str], signed: Mapping[str, SignedTime], now: TimeInterval) -> Iterator[NodeClock]:
        """Yield a clock for each node: of those that answer, their interval at this instant; of others, why not.

        ``signed``: what each last signed where everybody can read it: its age is told where it is all there is.
        """
        for node in nodes:
            question = self._questions.get(node)
            last = signed_clock(node, signed.get(node), now)
            if question is None:
                yield NodeClock(*last, problem="runs no shard that could be asked")
                continue
            freshness, said, error = question.freshness(), question.answer, question.error
            if error is not None and error.code == NO_ADDRESS:
                yield NodeClock(*last, problem="this node's settings have no address of it")
            elif said is None or freshness.reach is not Reach.ANSWERS:
                yield NodeClock(*last, reach=freshness.reach, problem=freshness.problem, silent_ns=freshness.silent_ns)
            else:
                yield self._answered(node, said)

    def _answered(self, node: str, said: NodeReading) -> NodeClock:
        boot = self._machine.boot_ns()
        age = max(0, boot - said.answered_ns)
        ahead = None if said.ahead is None else said.ahead.widened(drift_ns(age, DRIFT_PPM))
        midpoint: Instant | None = None if ahead is None else boot + ahead.midpoint
        return NodeClock(
            node,
            midpoint,
            said.radius_ns,
            said.status,
            said.assumed,
            age,
            reach=Reach.ANSWERS,
            problem=said.problem,
            ahead=ahead,
            trip_ns=said.trip_ns,
            read_ns=said.answered_ns,
        )


def signed_clock(
    node: str, token: SignedTime | None, now: TimeInterval
) -> tuple[str, Instant | None, Span | None, str, bool, Span | None]:
    """Return the first fields of a NodeClock, from what a node signed; None where nothing was seen."""
    if token is None:
        return node, None, None, ClockStatus.UNKNOWN.word, False, None
    age = max(0, now.midpoint - token.midpoint_ns)
    assumed = bool(token.flags & TimeFlags.ASSUMED)
    return node, token.midpoint_ns, token.radius_ns, token.status.word, assumed, age
