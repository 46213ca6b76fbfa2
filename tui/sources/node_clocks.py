"""What time it is at every node, asked of its shard: readings that can be compared, all carried to one instant here.

A node's word is an interval of its now. This machine's CLOCK_BOOTTIME, read before the question and after the answer,
makes an interval of true time minus that clock out of it; such intervals of several nodes belong on one axis, whenever
each was asked. Each is widened by its round trip, and ages by how fast this machine's clock may run away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from appliance.cluster import Cluster
from appliance.node.routes import TimeThere
from timeagent.agent.bounded_clock import Look
from timeagent.clock import DRIFT_PPM, MachineClock, drift_ns
from timeagent.errors import ShardUnavailable, TryAgain
from timeagent.interval import TimeInterval
from timeagent.signedtime import ClockStatus, SignedTime, TimeFlags
from timeagent.units import SECOND

from ..feed import AskedQuestion
from ..model.state import NodeClock, Reach

CLOCK_PERIOD_NS: Final = SECOND
UNKNOWN_REQUEST: Final = "call-damaged"
"""The code by which a shard refuses a call that its release does not know."""
NO_ADDRESS: Final = "no-address"


def told_clock(there: TimeThere) -> NodeClock:
    """Return what a shard answered of its node's clock, as of that answer. Raises Damaged."""
    told, ahead = there.told, there.ahead
    token = None if told.token is None else SignedTime.decode(told.token, f"the clock of node {told.node}")
    trip = there.answered_ns - there.asked_ns
    return NodeClock(
        told.node,
        None,
        None if ahead is None else (ahead.latest - ahead.earliest - trip + 1) // 2,  # without the round trip
        (ClockStatus.UNKNOWN if token is None else token.status).word,
        token is not None and bool(token.flags & TimeFlags.ASSUMED),
        0,
        reach=Reach.ANSWERS,
        problem=told.problem if ahead is None else "",
        ahead=ahead,
        trip_ns=trip,
        read_ns=there.answered_ns,
    )


def own_clock(node: str, look: Look, answered_ns: int) -> NodeClock:
    """Return what this machine's own clock says, where no shard of it can be asked."""
    ahead = TimeInterval(look.now.earliest - answered_ns, look.now.latest - look.boot_ns)
    return NodeClock(
        node,
        None,
        look.now.radius,
        look.status.word,
        look.assumed,
        0,
        reach=Reach.ANSWERS,
        ahead=ahead,
        trip_ns=answered_ns - look.boot_ns,
        read_ns=answered_ns,
    )


class NodeClocks:
    """A question for each node's clock, and what they said. Told from any thread."""

    def __init__(self, machine: MachineClock) -> None:
        self._machine = machine
        self._questions: dict[str, AskedQuestion[NodeClock]] = {}
        self._mute: set[tuple[str, bytes]] = set()
        """Nodes and incarnations that do not know the question: asked again once another release may run there."""

    def question(
        self, node: str, cluster: Cluster, at: Callable[[], tuple[int, bytes] | None]
    ) -> AskedQuestion[NodeClock] | None:
        """Return the question about a node that runs shards, unless there is one already.

        ``at``: which shard to ask there, and of which incarnation it last was.
        """

        def ask() -> NodeClock:
            shard = at()
            if shard is None:
                raise TryAgain("no-shard", f"{node} runs no shard now that could be asked")
            if (node, shard[1]) in self._mute:
                raise ShardUnavailable(UNKNOWN_REQUEST, "its release does not tell what time it is there")
            try:
                return told_clock(cluster.clock_of(shard[0], node))
            except ShardUnavailable as problem:
                if problem.code == UNKNOWN_REQUEST:
                    self._mute.add((node, shard[1]))
                raise

        return self._new(node, ask)

    def own(self, node: str, look: Callable[[], Look]) -> AskedQuestion[NodeClock] | None:
        """Return the question about this machine's own clock, unless there is one already."""
        return self._new(node, lambda: own_clock(node, look(), self._machine.boot_ns()))

    def _new(self, node: str, ask: Callable[[], NodeClock]) -> AskedQuestion[NodeClock] | None:
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
                yield replace(last, problem="runs no shard that could be asked")
                continue
            freshness, said, error = question.freshness(), question.answer, question.error
            if error is not None and error.code == NO_ADDRESS:
                yield replace(last, problem="this node's settings have no address of it")
            elif said is None or freshness.reach is not Reach.ANSWERS:
                yield replace(last, reach=freshness.reach, problem=freshness.problem, silent_ns=freshness.silent_ns)
            else:
                yield replace(self._by_now(said), node=node)

    def _by_now(self, said: NodeClock) -> NodeClock:
        """Return a clock as of this instant: its interval has grown by how fast this machine's clock may run away."""
        assert said.read_ns is not None
        boot = self._machine.boot_ns()
        age = max(0, boot - said.read_ns)
        ahead = None if said.ahead is None else said.ahead.widened(drift_ns(age, DRIFT_PPM))
        return replace(said, midpoint_ns=None if ahead is None else boot + ahead.midpoint, age_ns=age, ahead=ahead)


def signed_clock(node: str, token: SignedTime | None, now: TimeInterval) -> NodeClock:
    """Return a clock of which only is known what it signed; nothing where that was not seen."""
    if token is None:
        return NodeClock(node, None, None, ClockStatus.UNKNOWN.word, assumed=False, age_ns=None)
    age = max(0, now.midpoint - token.midpoint_ns)
    assumed = bool(token.flags & TimeFlags.ASSUMED)
    return NodeClock(node, token.midpoint_ns, token.radius_ns, token.status.word, assumed, age)
