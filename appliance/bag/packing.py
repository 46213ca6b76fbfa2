"""Pack what is sealed and delete what is old, at one's own pace: what a metronome does besides closing.

Nothing depends on it, and any number of nodes may do it. Each waits a while of its own before it begins with a rack, so
that usually one of them does the work and the others find it done (``stagger``). New racks come first; old ones are
looked at again one by one, for directories that a writer brought back after it was stopped for hours.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from timeagent.errors import Damaged
from timeagent.units import HOUR, MINUTE

from .packer import Packer, PackState
from .retention import Retention

if TYPE_CHECKING:
    from appliance.formats.paths import Grid, Rack
    from timeagent.interval import TimeInterval
    from timeagent.units import Instant, Span

    from .context import BagContext
    from .sealer import Sealer

RACKS_PER_TURN: Final = 2
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
    """Packs and deletes for one log."""

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
        """Pack at most ``RACKS_PER_TURN`` racks; now and then delete what is old.

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
        while rack.end_ns <= newest.end_ns and len(found) < RACKS_PER_TURN and self._is_due(rack, now):
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
