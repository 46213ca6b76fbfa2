"""Retention: delete the packs of old racks (docs/protocol/bag.md).

Only packs are deleted, and only of racks without any bag directory. The rack's directory, its prelock and its seal stay
for ever: with them nobody can begin an old rack again, and readers are told which instants are gone. The mark
``retained`` tells an auditor that it was retention, and not somebody's hand. Two clocks are
asked, one's own and the file server's: what a fast clock deletes does not come back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from appliance.formats.pack import PACK
from appliance.formats.paths import RETAINED, SEAL
from timeagent.units import DAY

from .racks import racks_there

if TYPE_CHECKING:
    from collections.abc import Iterator

    from appliance.formats.paths import Grid, Rack
    from timeagent.units import Instant, Span

    from .context import BagContext


@dataclass(frozen=True, slots=True)
class OldPack:
    """A pack that retention deletes."""

    rack: Rack
    path: str
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class NotPacked:
    """A rack that is old enough and still has bag directories: pack it first. Nothing of it is deleted."""

    rack: Rack


class Retention:
    """Deletes the old packs of one log."""

    def __init__(self, context: BagContext, grid: Grid, keep_ns: Span) -> None:
        """Keep what ended less than ``keep_ns`` ago; at least one day. Touches nothing yet."""
        assert keep_ns >= DAY
        self._storage = context.storage
        self._time = context.time
        self._grid = grid
        self._keep_ns = keep_ns
        self._tmp = context.tmp(grid.birth.log)
        self._done: set[str] = set()

    def cutoff(self) -> Instant:
        """Return the instant before which racks must have ended, by both clocks. Raises BadTime. Touches the mount."""
        own = self._time.now().earliest
        return min(own, self._storage.server_clock(self._tmp)) - self._keep_ns

    def old(self, cutoff: Instant) -> Iterator[OldPack | NotPacked]:
        """Yield what is old enough, oldest first. Deletes nothing. Touches the mount: a look or two for each rack."""
        for rack in self._racks_before(cutoff):
            if rack.path in self._done:
                continue
            names = self._storage.list_afresh(rack.path) or []
            if SEAL not in names:
                return  # racks are sealed in order: what follows is not sealed either
            if any(self._grid.parse_bag(rack, name) is not None for name in names):
                yield NotPacked(rack)
                continue
            path = f"{rack.path}/{PACK}"
            size = self._storage.size_of(path) if PACK in names else None
            if size is None:
                # Whatever makes it appear again, a packer that was stopped for hours, is another process's next turn.
                self._done.add(rack.path)
            else:
                yield OldPack(rack, path, size)

    def delete(self, old: OldPack) -> None:
        """Say so in the rack, then delete its pack. Idempotent. Touches the mount."""
        self._storage.ensure_marker(f"{old.rack.path}/{RETAINED}")
        self._storage.unlink(old.path)

    def turn(self, most: int) -> list[OldPack]:
        """Delete at most so many packs; return them. Raises BadTime, Environment."""
        deleted = []
        for each in self.old(self.cutoff()):
            if isinstance(each, OldPack):
                self.delete(each)
                deleted.append(each)
            if len(deleted) >= most:
                break
        return deleted

    def _racks_before(self, cutoff: Instant) -> list[Rack]:
        found = [rack for rack in racks_there(self._storage, self._grid) if rack.end_ns <= cutoff]
        return sorted(found)
