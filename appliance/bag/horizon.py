"""How far a log is closed, and making it so.

The horizon is the instant before which every bag of a log is closed. It only grows, so what is known of it stays true.
It needs no file: the newest seal answers for everything older, and in younger racks a lock file in each bag does, by
the order of authority (closing.py). Bags that nobody wrote to are closed like all others: otherwise one of them could
be made later, in the past.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from appliance.formats.paths import LOCK, Bag, Grid, Rack
from timeagent.errors import TryAgain
from timeagent.units import MS, Instant, Span, TimeInterval, rfc3339

from .closing import Authority, NotDue
from .ports import BagContext

RACKS_AT_ONCE: Final = 64
"""After an outage so many racks are sealed between two calls of ``progress``."""
_SLICE_NS: Final[Span] = 100 * MS
_SLICE_NS_MIN: Final[Span] = MS


class Horizon:
    """The horizon of one log, as this process knows it."""

    def __init__(self, context: BagContext, grid: Grid, authority: Authority | None = None) -> None:
        """Know nothing but the log's birth: before it there is no bag. Touch nothing yet."""
        self._storage = context.storage
        self._time = context.time
        self._parallel = context.parallel
        self._wake = context.wake
        self._grid = grid
        self.authority = authority or Authority(context, grid)
        self.reached: Instant = grid.first_ns
        """Every bag that begins before this instant is closed. Never stale, only behind."""

    def refresh(self) -> Instant:
        """See how far others have come, and return the horizon. Closes nothing. Raises Environment, Damaged, TryAgain.

        Touches the mount: a look or two, and one for every bag that was closed since. Wakes the log's metronome.
        """
        self._wake(self._grid.birth.log)
        newest = self.authority.sealer.newest_sealed()
        if newest is not None:
            self._reach(newest.end_ns)
        while self._follow(self._grid.rack(self.reached)):
            pass
        return self.reached

    def settle(
        self,
        to: Instant,
        progress: Callable[[Instant], None] | None = None,
        deadline_boot_ns: int | None = None,
    ) -> Instant:
        """Return the horizon once it is at ``to`` or beyond: every bag that holds an instant before ``to`` is closed.

        Helps to close what is due and waits, in slices, for what is not. ``progress`` is called with the horizon after
        every step and every slice, so that a holder can renew meanwhile. Raises TryAgain past the deadline (boot time),
        or where the mount has to be asked again; BadTime, Environment, Damaged. What was closed stays closed. Touches
        the mount unless the horizon is known to be there already.
        """
        if self.reached < to:
            self.refresh()
        while self.reached < to:
            due = self.step()
            if progress is not None:
                progress(self.reached)
            if self.reached >= to:
                break
            if deadline_boot_ns is not None and self._time.boot_ns() >= deadline_boot_ns:
                raise TryAgain(
                    "settle-timed-out",
                    f"{self._grid.birth.log} is closed up to {rfc3339(self.reached)}, not yet to {rfc3339(to)}",
                    hint="a bag is closed when its end and grace are surely past; allow more time",
                )
            if due is not None:
                self._wait(due)
                self.refresh()
        return self.reached

    def step(self) -> Instant | None:
        """Close what comes next, as much as is done at once; return None, or when it is worth asking again.

        That is one bag or one rack, unless several requests may be under way: then up to ``RACKS_AT_ONCE`` racks, or as
        many bags of the current rack.

        Raises as ``settle``. Touches the mount; does not wait.
        """
        if self._seal_whole(self._grid.rack(self.reached)):
            return None
        bags = self._next_bags()
        for bag, closed in zip(bags, self._parallel.each(self.authority.close, bags), strict=True):
            if isinstance(closed, NotDue):
                return closed.due_ns if bag is bags[0] else None
            self._reach(bag.end_ns)
        return None

    def _next_bags(self) -> list[Bag]:
        """Return the next bag, and as many more of its rack that are due as are closed at once."""
        bags = [self._grid.bag(self.reached)]
        if self._parallel.width > 1:
            now = self._time.now()
            while len(bags) < self._parallel.width and bags[-1].end_ns < bags[0].rack.end_ns:
                following = self._grid.bag(bags[-1].end_ns)
                if not now.surely_past(following.due_ns):
                    break
                bags.append(following)
        return bags

    def _seal_whole(self, rack: Rack) -> bool:
        """Seal a rack that is long past: nobody need close its empty bags one by one."""
        now = self._time.now()
        if not now.surely_past(rack.end_ns):
            return False
        last = rack
        if self._parallel.width > 1:  # who seals the last of the racks that may be sealed at once seals those before
            span = self._grid.birth.rack_ns
            most = min(rack.start_ns + (RACKS_AT_ONCE - 1) * span, now.earliest - span)
            last = self._grid.rack(max(rack.start_ns, most))
        if last > rack and not isinstance(self.authority.sealer.seal(last), NotDue):
            rack = last
        elif isinstance(self.authority.sealer.seal(rack), NotDue):
            return False
        self._reach(rack.end_ns)
        return True

    def _follow(self, rack: Rack) -> bool:
        """Follow the lock files of a rack; true if it is closed to its end."""
        end = self.reached
        while end < rack.end_ns and self._storage.look((bag := self._grid.bag(end)).path, (LOCK,)):
            end = bag.end_ns
        if end == self.reached:
            return False
        if self.authority.rack_begun(rack):
            # What a directory says no longer counts, and with the seal the whole rack is closed.
            if isinstance(self.authority.sealer.seal(rack), NotDue):
                return False
            end = rack.end_ns
        self._reach(end)
        return end == rack.end_ns

    def _reach(self, instant: Instant) -> None:
        self.reached = max(self.reached, instant)

    def _wait(self, due: Instant) -> None:
        now: TimeInterval = self._time.now()
        self._time.sleep(max(_SLICE_NS_MIN, min(_SLICE_NS, due + 1 - now.earliest)))
