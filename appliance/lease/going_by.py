"""What a shard goes by: the newest map that it knows, and what that makes of it (docs/protocol/lease.md).

Requests that grant or keep something name the map that the asker goes by. A shard serves those who name one under which
it is what it is now: so nobody who goes by the map before a move ever meets somebody who goes by the one after.
"""

from __future__ import annotations

from typing import Final

from timeagent.units import Instant

from ..formats.shardmap import ShardMap, shard_text
from ..formats.witness import Half
from .wire import Acquire, BeginSession, Renew, RenewSession, Task, Unavailable, Upgrade

NEWER_MAP: Final = "newer-map"
"""The asker goes by a map that has been overtaken: it looks for the newest one, and asks again."""

MAP_NOT_YET: Final = "map-not-yet"
"""The asker goes by a map that the shard does not go by yet: it asks again."""

_NAMES_A_MAP: Final = (Acquire, Upgrade, Renew, BeginSession, RenewSession)


class GoingBy:
    """One shard's. Changes between two turns only."""

    def __init__(self, shard_map: ShardMap, shard: int) -> None:
        self._shard = shard
        self.over = False
        """Whether the shard is of no map any more: it grants nothing, and keeps nothing."""
        self.alone_until_ns: Instant = 0
        """Of a shard that leaves: until when leases that it granted before may be believed in alone."""
        self.half = Half.WHOLE
        self.take(shard_map)

    def take(self, shard_map: ShardMap) -> None:
        half = shard_map.half_of(self._shard)
        self.map, self.over = shard_map, half is None
        self.half = half or Half.LEAVING
        self.since = shard_map.number + 1 if self.over else shard_map.since(self._shard)
        """The first map that who asks may name."""

    @property
    def number(self) -> int:
        """The last map that who asks may name."""
        return self.map.number

    def refused(self, request: Task) -> Unavailable | None:
        """Refuse, for now, what names a map by which the shard does not go."""
        if not isinstance(request, _NAMES_A_MAP) or self.since <= request.map_number <= self.number:
            return None
        code = MAP_NOT_YET if request.map_number > self.number else NEWER_MAP
        return Unavailable(request_id=request.request_id, code=code, message=self.why(request.map_number))

    def why(self, named: int) -> str:
        """Return what is to be said to who names a map that does not do."""
        what = "which has this shard no more" if self.over else f"in which it is {self.half} since map {self.since}"
        return f"shard {shard_text(self._shard)} goes by map {self.number}, {what}; the request names map {named}"
