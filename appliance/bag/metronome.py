"""Close what is due, pack what is sealed and delete what is old, each at one's own pace.

Nothing depends on it, and any number of nodes may do it. Every turn says when the next one can have something to do, by
what this object has seen: until then the log need not be looked at, unless somebody wakes it (``BagContext.wake``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from appliance.formats.paths import Bag, Grid, Rack
from timeagent.errors import Damaged, TenureError
from timeagent.units import HOUR, INSTANT_MAX, MINUTE, SECOND, Instant, Span, TimeInterval

from .closing import NotDue, Sealer
from .horizon import Horizon
from .packer import Packer, PackState, Retention
from .ports import BagContext

PACKS_PER_TURN: Final = 2
PACKS_DELETED_PER_TURN: Final = 32
DELAY_NS: Final[Span] = 2 * MINUTE
"""How long after a rack's end it is packed at the earliest: writers that are late still find their directories."""
STAGGER_NS: Final[Span] = 2 * MINUTE
"""Up to so much later, by node and rack."""
RETENTION_PERIOD_NS: Final[Span] = HOUR
CALM_NS: Final[Span] = MINUTE
"""After a turn that found everything packed the next one waits so long, or a rack if that is shorter."""
AGAIN_NS: Final[Span] = HOUR
AGAIN_FACTOR: Final = 4
"""A rack is looked at again at this age, and each time it is so many times as old as the last time: a directory that a
writer brought back after it was stopped for a while stands at most so many times as long as that."""
_RECENT_RACKS: Final = 64
"""So many racks before the newest sealed one are looked at first when a process begins."""


@dataclass(frozen=True, slots=True)
class PackingReport:
    """What one turn did."""

    packed: int = 0
    deleted: int = 0
    damaged: tuple[Damaged, ...] = ()
    """Racks that cannot be packed, each with what is wrong; nothing of them was deleted."""
    next_ns: Instant = INSTANT_MAX
    """Before this instant a turn does nothing, unless another rack is sealed: that is the metronome's to see."""


def stagger(node: str, path: str, span: Span) -> Span:
    """Return how long this node waits with this bag or rack: the same each time, another for each node."""
    rank = int.from_bytes(sha256(f"{node}\0{path}".encode()).digest()[:8])
    return rank * span >> 64


class Packing:
    """Packs and deletes for one log.

    Each node waits a while of its own before it begins with a rack, so that usually one of them does the work and the
    others find it done (``stagger``). With each new rack a few old ones are looked at again (``AGAIN_FACTOR``).
    """

    def __init__(self, context: BagContext, grid: Grid, sealer: Sealer, keep_ns: Span | None = None) -> None:
        """Delete packs after ``keep_ns``; None: never. Touch nothing yet."""
        self._node = context.node
        self._grid = grid
        self._sealer = sealer
        self._packer = Packer(context, grid, sealer)
        self._retention = None if keep_ns is None else Retention(context, grid, keep_ns)
        self._retention_ns: Instant | None = None
        self._next: Rack | None = None
        self._began_ns: Instant = 0
        self._calm_until_ns: Instant = 0

    def turn(self, now: TimeInterval) -> PackingReport:
        """Pack at most ``PACKS_PER_TURN`` racks; now and then delete what is old.

        Raises BadTime, Environment, TryAgain; then the next turn begins with the same racks. Touches the mount only for
        what is due; does not wait.
        """
        packed, swept, damaged = 0, 0, []
        racks = self._due(now)
        for rack in racks:
            try:
                report = self._packer.pack(rack)
            except Damaged as problem:
                damaged.append(problem)
            except TenureError:
                self._next = racks[0]
                raise
            else:
                packed += report.state is PackState.PACKED
                swept += report.swept
                self._sealer.forget(rack)  # some hundred kilobytes of each log that is in use
        if racks and not swept:
            self._calm_until_ns = now.latest + min(CALM_NS, self._grid.birth.rack_ns)
        next_deletion = INSTANT_MAX if self._retention_ns is None else self._retention_ns
        return PackingReport(packed, self._delete(now), tuple(damaged), min(self._next_pack(), next_deletion))

    def _due(self, now: TimeInterval) -> list[Rack]:
        """Return the racks of this turn: with each that was sealed since this object began, old ones again."""
        found: list[Rack] = []
        for _ in range(PACKS_PER_TURN):
            if not now.surely_past(self._next_pack()):
                break
            assert self._next is not None
            found.append(self._next)
            if self._next.start_ns >= self._began_ns:
                found += self._older(self._next)
            self._next = self._grid.next_rack(self._next)
        return found

    def _next_pack(self) -> Instant:
        """Return when the next rack is due; far away if it is not sealed."""
        newest = self._sealer.newest
        if newest is None:
            return INSTANT_MAX
        if self._next is None:
            recent = newest.end_ns - _RECENT_RACKS * self._grid.birth.rack_ns
            self._next = self._grid.rack(max(self._grid.first_ns, recent))
            self._began_ns = newest.end_ns
        if self._next.end_ns > newest.end_ns:
            return INSTANT_MAX
        wait = stagger(self._node, self._next.path, STAGGER_NS)
        return max(self._calm_until_ns, self._next.end_ns + DELAY_NS + wait)

    def _older(self, rack: Rack) -> Iterator[Rack]:
        age = AGAIN_NS
        while (start := rack.start_ns - age) >= self._grid.first_ns:
            yield self._grid.rack(start)
            age *= AGAIN_FACTOR

    def _delete(self, now: TimeInterval) -> int:
        if self._retention is None:
            return 0
        if self._retention_ns is None:
            begins_ns = now.latest + stagger(self._node, self._grid.log_path, RETENTION_PERIOD_NS)
            self._retention_ns = max(begins_ns, self._retention.due_ns())
        if not now.surely_past(self._retention_ns):
            return 0
        deleted = len(self._retention.turn(PACKS_DELETED_PER_TURN))
        if deleted < PACKS_DELETED_PER_TURN:
            self._retention_ns = max(now.latest + RETENTION_PERIOD_NS, self._retention.due_ns())
        return deleted


BAGS_PER_TURN: Final = 64
RACKS_PER_TURN: Final = 8
SECOND_OPINION_NS: Final[Span] = 10 * SECOND
"""A file server's clock that is behind is asked again after so long."""
_RACKS_IN_USE: Final = 16
"""In so many racks up to now is looked for bags that somebody wrote to; what is older waits for the seal."""


@dataclass(frozen=True, slots=True)
class MetronomeReport:
    """What one turn did."""

    bags_closed: int
    racks_sealed: int
    next_ns: Instant
    """Before this instant nothing is due of all that was seen; long past if the turn ended at its bound."""


class Metronome:
    """Closes and seals one log.

    Without one every settle closes for itself. It follows logs in use: bags that nobody wrote to are closed one by one
    only below a bag that somebody wrote to; an idle log waits until its racks are sealed.
    """

    def __init__(
        self,
        context: BagContext,
        grid: Grid,
        horizon: Horizon | None = None,
        stagger_ns: Span = 0,
        seal_stagger_ns: Span = 0,
    ) -> None:
        """Wait so long at most with bags and racks that are due: of many nodes usually one does it. Touch nothing yet.

        ``seal_stagger_ns`` also spreads the looks at many logs, whose racks all end together; at most half a rack.
        """
        self._node = context.node
        self._stagger_ns = stagger_ns
        self._seal_stagger_ns = min(seal_stagger_ns, grid.birth.rack_ns // 2)
        self._seal_not_before_ns: Instant = 0
        self._storage = context.storage
        self._grid = grid
        self._horizon = horizon or Horizon(context, grid)

    @property
    def sealer(self) -> Sealer:
        return self._horizon.authority.sealer

    @property
    def reached(self) -> Instant:
        """The horizon, as it was last seen here."""
        newest = self.sealer.newest
        return self._horizon.reached if newest is None else max(self._horizon.reached, newest.end_ns)

    def turn(self, now: TimeInterval, follow_to_ns: Instant = INSTANT_MAX) -> MetronomeReport:
        """Close at most ``BAGS_PER_TURN`` bags and seal at most ``RACKS_PER_TURN`` racks that are due.

        Bags from ``follow_to_ns`` on are left to others, or to the seal; for them nothing is looked at. Raises BadTime,
        Environment, Damaged, TryAgain; then the next turn goes on where this one stopped. Touches the mount; does not
        wait.
        """
        sealed, closed, in_use_ns = self._seal(now), 0, 0
        if self.reached < follow_to_ns:
            self._horizon.refresh()
            in_use_ns = min(self._in_use_until(now), follow_to_ns)
            closed = self._close(now, in_use_ns)
        reached = self.reached
        next_ns = self._seal_due(self._unsealed())
        if reached < in_use_ns:
            next_ns = min(next_ns, self._bag_due(self._grid.bag(reached)))
        return MetronomeReport(closed, sealed, next_ns)

    def _seal(self, now: TimeInterval) -> int:
        self.sealer.newest_sealed()
        rack, count = self._unsealed(), 0
        while count < RACKS_PER_TURN and now.surely_past(self._seal_due(rack)):
            sealed = self.sealer.seal(rack)
            if isinstance(sealed, NotDue):
                self._seal_not_before_ns = max(sealed.due_ns, now.latest + SECOND_OPINION_NS)
                break
            count += 1
            rack = self._grid.next_rack(rack)
        return count

    def _close(self, now: TimeInterval, in_use_ns: Instant) -> int:
        count = 0
        while count < BAGS_PER_TURN and self._horizon.reached < in_use_ns:
            bag = self._grid.bag(self._horizon.reached)
            if not now.surely_past(self._bag_due(bag)) or self._horizon.step() is not None:
                break
            count += 1
        return count

    def _unsealed(self) -> Rack:
        """Return the oldest rack that was not seen sealed."""
        newest = self.sealer.newest
        return self._grid.rack(self._grid.first_ns) if newest is None else self._grid.next_rack(newest)

    def _seal_due(self, rack: Rack) -> Instant:
        waits = stagger(self._node, rack.path, self._seal_stagger_ns)
        return max(self._seal_not_before_ns, self.sealer.expected_ns(rack) + waits)

    def _bag_due(self, bag: Bag) -> Instant:
        return bag.due_ns + stagger(self._node, bag.path, self._stagger_ns)

    def _in_use_until(self, now: TimeInterval) -> Instant:
        """Return the end of the newest bag above the horizon that has a directory; the horizon if there is none."""
        reached = self._horizon.reached
        # Whose clock is ahead may write in the next rack already.
        rack = self._grid.rack(now.latest + self._grid.birth.grace_ns)
        for _ in range(_RACKS_IN_USE):
            if rack.end_ns <= reached:
                break
            bags = (self._grid.parse_bag(rack, name) for name in self._storage.list_afresh(rack.path) or ())
            newest = max((bag.end_ns for bag in bags if bag is not None), default=0)
            if newest > reached:
                return newest
            rack = self._grid.rack(rack.start_ns - 1)
        return reached
