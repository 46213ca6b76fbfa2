"""Close what is due, pack what is sealed and delete what is old, each at one's own pace.

Nothing depends on it, and any number of nodes may do it.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from appliance.formats.paths import Grid, Rack
from timeagent.errors import Damaged
from timeagent.interval import TimeInterval
from timeagent.units import HOUR, MINUTE, Instant, Span

from .closer import Closer, NotDue
from .context import BagContext
from .horizon import Horizon
from .packer import Packer, PackState, Retention
from .sealer import Sealer

PACKS_PER_TURN: Final = 2
PACKS_DELETED_PER_TURN: Final = 32
DELAY_NS: Final[Span] = 2 * MINUTE
"""How long after a rack's end it is packed at the earliest: writers that are late still find their directories."""
STAGGER_NS: Final[Span] = 2 * MINUTE
"""Up to so much later, by node and rack."""
RETENTION_PERIOD_NS: Final[Span] = HOUR
_RECENT_RACKS: Final = 64
"""So many racks before the newest sealed one are looked at first when a process begins."""


@dataclass(frozen=True, slots=True)
class PackingReport:
    """What one turn did."""

    packed: int = 0
    deleted: int = 0
    damaged: tuple[Damaged, ...] = ()
    """Racks that cannot be packed, each with what is wrong; nothing of them was deleted."""


def stagger(node: str, path: str, span: Span) -> Span:
    """Return how long this node waits with this bag or rack: the same each time, another for each node."""
    rank = int.from_bytes(sha256(f"{node}\0{path}".encode()).digest()[:8])
    return rank * span >> 64


class Packing:
    """Packs and deletes for one log.

    Each node waits a while of its own before it begins with a rack, so that usually one of them does the work and the
    others find it done (``stagger``). New racks come first; old ones are looked at again one by one, for directories
    that a writer brought back after it was stopped for hours.
    """

    def __init__(self, context: BagContext, grid: Grid, sealer: Sealer, keep_ns: Span | None = None) -> None:
        """Delete packs after ``keep_ns``; None: never. Touch nothing yet."""
        self._time = context.time
        self._node = context.node
        self._grid = grid
        self._sealer = sealer
        self._packer = Packer(context, grid, sealer)
        self._retention = None if keep_ns is None else Retention(context, grid, keep_ns)
        self._retained_boot_ns: int | None = None
        self._next: Instant | None = None
        self._again: Instant = grid.first_ns

    def turn(self, now: TimeInterval) -> PackingReport:
        """Pack at most ``PACKS_PER_TURN`` racks; now and then delete what is old.

        Raises BadTime, Environment, TryAgain; then the next turn goes on. Touches the mount; does not wait.
        """
        packed, damaged = 0, []
        for rack in self._due(now):
            try:
                packed += self._packer.pack(rack).state is PackState.PACKED
            except Damaged as problem:
                damaged.append(problem)
        return PackingReport(packed, self._delete(), tuple(damaged))

    def _due(self, now: TimeInterval) -> list[Rack]:
        """Return the racks of this turn: new ones, or else an old one to look at again."""
        newest = self._sealer.newest
        if newest is None:
            return []
        if self._next is None:
            self._next = max(self._grid.first_ns, newest.end_ns - _RECENT_RACKS * self._grid.birth.rack_ns)
        found: list[Rack] = []
        rack = self._grid.rack(self._next)
        while rack.end_ns <= newest.end_ns and len(found) < PACKS_PER_TURN and self._is_due(rack, now):
            found.append(rack)
            self._next = rack.end_ns
            rack = self._grid.next_rack(rack)
        if not found:
            old = self._grid.rack(self._again)
            if old.end_ns >= self._next:
                self._again = self._grid.first_ns
            else:
                self._again = old.end_ns
                found.append(old)
        return found

    def _is_due(self, rack: Rack, now: TimeInterval) -> bool:
        return now.surely_past(rack.end_ns + DELAY_NS + stagger(self._node, rack.path, STAGGER_NS))

    def _delete(self) -> int:
        if self._retention is None:
            return 0
        boot = self._time.boot_ns()
        if self._retained_boot_ns is not None and boot - self._retained_boot_ns < RETENTION_PERIOD_NS:
            return 0
        deleted = len(self._retention.turn(PACKS_DELETED_PER_TURN))
        if deleted < PACKS_DELETED_PER_TURN:
            self._retained_boot_ns = boot
        return deleted


BAGS_PER_TURN: Final = 64
RACKS_PER_TURN: Final = 8


@dataclass(frozen=True, slots=True)
class MetronomeReport:
    """What one turn did."""

    bags_closed: int
    racks_sealed: int
    reached_ns: Instant
    more: bool
    """Whether the turn ended at its bound: the next one is worth beginning at once."""


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
    ) -> None:
        """Wait up to ``stagger_ns`` with what is due, so that of many nodes usually one does it. Touch nothing yet."""
        self._node = context.node
        self._stagger_ns = stagger_ns
        self._storage = context.storage
        self._grid = grid
        self._horizon = horizon or Horizon(context, grid)

    @property
    def sealer(self) -> Sealer:
        return self._horizon.authority.sealer

    def turn(self, now: TimeInterval) -> MetronomeReport:
        """Close at most ``BAGS_PER_TURN`` bags and seal at most ``RACKS_PER_TURN`` racks that are due.

        Raises BadTime, Environment, Damaged, TryAgain; then the next turn goes on where this one stopped. Touches the
        mount; does not wait.
        """
        sealed = self._seal(now)
        self._horizon.refresh()
        closed = self._close(now)
        return MetronomeReport(
            closed, sealed, self._horizon.reached, more=closed == BAGS_PER_TURN or sealed == RACKS_PER_TURN
        )

    def _seal(self, now: TimeInterval) -> int:
        sealer = self._horizon.authority.sealer
        newest = sealer.newest_sealed()
        rack = self._grid.rack(self._grid.first_ns) if newest is None else self._grid.next_rack(newest)
        count = 0
        while count < RACKS_PER_TURN and now.surely_past(rack.end_ns + self._waits(rack.path)):
            if isinstance(sealer.seal(rack), NotDue):
                break
            count += 1
            rack = self._grid.next_rack(rack)
        return count

    def _close(self, now: TimeInterval) -> int:
        count = 0
        in_use_ns = self._in_use_until()
        while count < BAGS_PER_TURN and self._horizon.reached < in_use_ns:
            bag = self._grid.bag(self._horizon.reached)
            due = Closer.due(bag, now) and now.surely_past(bag.due_ns + self._waits(bag.path))
            if not due or self._horizon.step() is not None:
                break
            count += 1
        return count

    def _waits(self, path: str) -> Span:
        return stagger(self._node, path, self._stagger_ns)

    def _in_use_until(self) -> Instant:
        """Return the end of the newest bag that has a directory, in the horizon's rack or the one after."""
        newest = self._horizon.reached
        rack = self._grid.rack(newest)
        for each in (rack, self._grid.next_rack(rack)):
            bags = (self._grid.parse_bag(each, name) for name in self._storage.list_afresh(each.path) or ())
            newest = max(newest, max((bag.end_ns for bag in bags if bag is not None), default=0))
        return newest
