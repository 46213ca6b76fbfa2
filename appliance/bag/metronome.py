"""Close what is due at one's own pace, so that readers and settlers find it done.

Nothing depends on it: without a metronome every settle closes for itself. It follows logs in use: bags that nobody
wrote to are closed one by one only below a bag that somebody wrote to; an idle log waits until its racks are sealed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .closer import Closer, NotDue
from .horizon import Horizon
from .packing import stagger

if TYPE_CHECKING:
    from appliance.formats.paths import Grid
    from timeagent.interval import TimeInterval
    from timeagent.units import Instant, Span

    from .context import BagContext
    from .sealer import Sealer

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
    """Closes and seals one log."""

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
        """What seals this log's racks."""
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
