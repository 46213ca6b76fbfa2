"""Whose clock it was: two signed times that contradict each other prove one of two wrong, third parties say which.

Everything signed in a tree orders clocks: who carries a signed time, covers it or was told it signed later. So the time
between the two, by either clock, bounds how far the later one's clock can be ahead of the earlier one's. A node is the
one if, were its clock right, the clocks of two others would have to be wrong, which do not contradict each other; and
the other way round that is not so. A clock is a node's in one epoch: what was set right since is another.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Final

from auditor.columns.events import (
    BagClosed,
    CeilingLinked,
    ClockReading,
    Event,
    FrameWritten,
    LeaseEnded,
    RackSealed,
    SessionOver,
)
from auditor.evidence.records import ClusterRecords
from auditor.evidence.signatures import Signatures
from auditor.evidence.tree import Tree
from auditor.walk.facts import Gathering, JudgedFrame
from timeagent.errors import Damaged
from timeagent.signedtime import SignedTime
from timeagent.units import Instant, Span

from ..evidence.finding import FORGED, Finding, NamedInterval
from .what_if import read_one_by_one

type Clock = tuple[str, int]
"""A node, and the epoch of its clock."""

OF_ONE: Final = frozenset({"r1-breach", "premature-lock", "radius-above-policy"})
"""What one clock says of itself."""
OF_TWO: Final = frozenset({"r2-breach"})
"""A signed time, and one of what came after it, in this order: the first two of a finding's."""
OF_SOME: Final = frozenset({"unsettled-write", "hidden-bag", "early-grant"})
"""What a clock that is known to be wrong explains."""


def name_clocks(
    findings: Iterable[Finding], tree: Tree, records: ClusterRecords, signatures: Signatures, staleness: Span
) -> Iterator[Finding]:
    """Yield the findings; those about clocks name the nodes. Reads the tree once more where that is of several.

    ``staleness``: how stale the signed time of a batch may be, of all of them at most.
    """
    named = [_with_nodes(each, records) for each in findings]
    several = any(each.code in OF_TWO | OF_SOME and len(nodes_of(each)) > 1 for each in named)
    ties = _read_ties(tree, records, signatures, staleness) if several else Ties(lambda _: None)
    for each in named:
        yield _judged(each, ties)


def _read_ties(tree: Tree, records: ClusterRecords, signatures: Signatures, staleness: Span) -> Ties:
    def read(raw: bytes) -> ClockReading | None:
        with suppress(Damaged):
            token = SignedTime.decode(raw)
            node = records.keys.node_of(token.key_id) if records.keys else None
            if node is not None and records.keys and signatures.refuses_time(records.keys, token) is None:
                return ClockReading.of(node, token)
        return None

    ties = Ties(read, staleness)

    def judged(each: JudgedFrame) -> None:
        evidence, frame = each.evidence, each.event.clock
        if evidence.refusal is not None:
            return
        ties.stale(evidence.token)
        for held in evidence.carried:
            if held.refusal is None:
                ties.stale(held.token)
                ties.tie(ClockReading.of(held.head.node, held.token), frame)

    read_one_by_one(tree, records, signatures, ties, judged=judged)
    ties.finish()
    return ties


def nodes_of(finding: Finding) -> tuple[str, ...]:
    return tuple(sorted({each.node for each in finding.times if each.node}))


def _with_nodes(finding: Finding, records: ClusterRecords) -> Finding:
    if records.keys is None or finding.code in FORGED or not any(each.key for each in finding.times):
        return finding
    keys = records.keys
    times = (
        replace(each, node=keys.node_of(bytes.fromhex(each.key)) or "") if each.key else each for each in finding.times
    )
    return replace(finding, times=tuple(times))


def _judged(finding: Finding, ties: Ties) -> Finding:
    nodes = nodes_of(finding)
    if finding.code not in OF_ONE | OF_TWO | OF_SOME or not nodes:
        return finding
    wrong = ties.wrong.intersection(nodes)
    if finding.code in OF_TWO and len(nodes) > 1:
        cause, effect = finding.times[:2]
        nodes, words = _of_two(cause, effect, ties)
    elif finding.code in OF_TWO:
        words = f"both are by the clock of {nodes[0]}, which went back, or broke its bound"
    elif len(nodes) > 1 and len(wrong) == 1:
        nodes = tuple(wrong)
        words = f"the clock of {nodes[0]} was wrong, by what else is signed in the tree"
    else:
        times = [each for each in finding.times if each.node]
        words = ", ".join(f"{each.what} is by the clock of {each.node}" for each in times)
        if len(times) > 1 and len(nodes) == 1:
            words = f"both are by the clock of {nodes[0]}"
    return replace(finding, clocks=nodes, explanation=f"{finding.explanation}; {words}")


def _of_two(cause: NamedInterval, effect: NamedInterval, ties: Ties) -> tuple[tuple[str, ...], str]:
    ahead, behind = (cause.node, cause.epoch), (effect.node, effect.epoch)
    by = (cause.earliest_ns + cause.latest_ns - effect.earliest_ns - effect.latest_ns) // 2
    agree, wrong = ties.accusers(ahead, behind, by)
    if wrong is None:
        words = f"it was the clock of {ahead[0]}, ahead, or that of {behind[0]}, behind: nothing else tells which"
        return tuple(sorted((ahead[0], behind[0]))), words
    where = "ahead" if wrong == ahead else "behind"
    return (wrong[0],), f"it was the clock of {wrong[0]}, {where}: those of {' and '.join(agree)} agree"


class Ties(Gathering):
    """How the clocks of a tree are tied to each other: bounds only."""

    def __init__(self, read: Callable[[bytes], ClockReading | None], staleness: Span = 0) -> None:
        """Know nothing yet. ``read``: what the bytes of a signed time say, if they hold."""
        self._read = read
        self._most: dict[tuple[Clock, Clock], Span] = {}
        """By how much, at most, the second clock is ahead of the first."""
        self._met: dict[Clock, dict[str, set[Clock]]] = {}
        """The clocks that each is tied to, by node: one that signs by a new epoch each time is met by all of them."""
        self._radius: dict[Clock, Span] = {}
        self._staleness = staleness
        self._in_bag: dict[tuple[str, Instant], dict[Clock, ClockReading]] = {}
        """By log and beginning of a bag, the latest signed times of the frames that it was closed with."""
        self._in_rack: dict[str, dict[Clock, ClockReading]] = {}
        """By rack, the latest of its bags' lock files."""
        self._chains: dict[tuple[int, int], dict[int, ClockReading]] = {}

    # What is asked.

    def accusers(self, ahead: Clock, behind: Clock, by: Span) -> tuple[tuple[str, ...], Clock | None]:
        """Return which of two clocks is wrong, of which the first is ahead by so much; and who agree against it.

        None: nobody can tell.
        """
        by = max(by - self._staleness, -(self._bound(ahead, behind) or 0))
        met = (*self._met.get(ahead, {}).items(), *self._met.get(behind, {}).items())
        others = {each for node, clocks in met if node not in (ahead[0], behind[0]) for each in clocks}
        # Were the first right, these would be behind with the second; were the second right, ahead with the first.
        against_ahead = {
            each[0]
            for each in others
            if not self._contradict(behind, each)
            and (self._is_behind(each, ahead) or self._drawn(by, self._bound(behind, each), ahead, each))
        }
        against_behind = {
            each[0]
            for each in others
            if not self._contradict(ahead, each)
            and (self._is_behind(behind, each) or self._drawn(by, self._bound(each, ahead), behind, each))
        }
        if bool(against_ahead) == bool(against_behind):
            return (), None
        if against_ahead:
            return tuple(sorted({behind[0], *against_ahead})), ahead
        return tuple(sorted({ahead[0], *against_behind})), behind

    @cached_property
    def wrong(self) -> frozenset[str]:
        """The nodes whose clock is known to have been wrong."""
        pairs = [pair for pair in self._most if pair[0][0] != pair[1][0] and self._is_behind(pair[1], pair[0])]
        told = (self.accusers(ahead, behind, 0)[1] for ahead, behind in pairs)
        return frozenset(clock[0] for clock in told if clock is not None)

    def _bound(self, first: Clock, second: Clock) -> Span | None:
        most = self._most.get((first, second))
        return None if most is None else most + self._staleness

    def _is_behind(self, one: Clock, other: Clock) -> bool:
        """Whether a clock is surely behind another by more than the bounds of both."""
        bound = self._bound(other, one)
        return bound is not None and bound < -self._allowed(one, other)

    def _contradict(self, one: Clock, other: Clock) -> bool:
        return self._is_behind(one, other) or self._is_behind(other, one)

    def _drawn(self, by: Span, slack: Span | None, right: Clock, other: Clock) -> bool:
        """Whether a clock is wrong if one is right from which a third differs by so much, and it from that no more."""
        return slack is not None and by - slack > self._allowed(right, other)

    def _allowed(self, one: Clock, other: Clock) -> Span:
        return self._radius.get(one, 0) + self._radius.get(other, 0)

    # What is told.

    def tie(self, cause: ClockReading | None, effect: ClockReading | None) -> None:
        """Take that what one clock signed was there before what the other signed; nothing where one is not known."""
        if cause is None or effect is None:
            return
        pair = _clock(cause), _clock(effect)
        gap = effect.midpoint_ns - cause.midpoint_ns
        self._most[pair] = min(gap, self._most.get(pair, gap))
        for each, other in ((cause, pair[1]), (effect, pair[0])):
            self._radius[_clock(each)] = max(each.radius_ns, self._radius.get(_clock(each), 0))
            self._met.setdefault(_clock(each), {}).setdefault(other[0], set()).add(other)

    def stale(self, token: SignedTime) -> None:
        self._staleness = max(self._staleness, token.staleness_ns)

    def add(self, event: Event, name: bytes | None = None) -> None:
        """Take a ceiling record, what a lock file or a seal covers, and that a shard was told a watermark."""
        del name  # who repeats something knows it too
        match event:
            case CeilingLinked():
                self._chains.setdefault(event.shard, {})[event.record.number] = event.clock
            case LeaseEnded() | SessionOver():
                raw = event.ending.watermark_time
                self.tie(None if raw is None else self._read(raw), event.clock)
            case FrameWritten() if event.listed:
                _take_latest(self._in_bag.setdefault((event.log, event.bag_ns), {}), event.clock)
            case BagClosed():
                for frame in self._in_bag.pop((event.log, event.bag_ns), {}).values():
                    self.tie(frame, event.clock)
                if event.clock is not None:
                    _take_latest(self._in_rack.setdefault(event.path.rpartition("/")[0], {}), event.clock)
            case RackSealed():
                for lock in self._in_rack.pop(event.path, {}).values():
                    self.tie(lock, event.clock)
            case _:
                pass

    def finish(self) -> None:
        """Take what ceiling records followed each other."""
        for chain in self._chains.values():
            for (number, before), (following, after) in itertools.pairwise(sorted(chain.items())):
                if following == number + 1:
                    self.tie(before, after)


def _clock(reading: ClockReading) -> Clock:
    return reading.node, reading.clock_epoch


def _take_latest(known: dict[Clock, ClockReading], reading: ClockReading) -> None:
    before = known.get(_clock(reading))
    if before is None or before.midpoint_ns < reading.midpoint_ns:
        known[_clock(reading)] = reading
