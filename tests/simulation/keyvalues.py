"""A store of keys and values beside the cluster, as each process reaches it: replies are lost, late or never come.

What a transaction is, is ``MemoryKeyValues``. It may be done, and nobody hears of it; it may be on its way when whoever
asked has long been told nothing, or has died; and the store may not answer anybody for a while.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.etcd import MemoryKeyValues
from timeagent.errors import ShardUnavailable
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from appliance.lease.turn_log import Pair
    from tests.simulation.world import World
    from timeagent.units import Instant

NEWEST = 20
"""A block that is among so many is not noted again."""

SILENT_NS = 400 * MS
"""How long nothing is heard before that counts as no answer."""


class KeptStore:
    """The store itself. ``mishap``: once in so many transactions; 0: never."""

    def __init__(self, world: World, mishap: int) -> None:
        self.world = world
        self.mishap = mishap
        self.memory = MemoryKeyValues()
        self.silent_until: Instant = 0
        self.lost = self.late = 0
        self.random = world.scheduler.stream("key values").random

    def do(self, guard: bytes, revision: int, puts: Sequence[Pair], deletes: Sequence[Pair]) -> bool:
        """Do a transaction. What it keeps of a turn is signed, though its run may never hear that it was done."""
        done = self.memory.do(guard, revision, puts, deletes)
        blocks = self.world.history.blocks
        if done:
            blocks += [value for key, value in puts if b"/block/" in key and value not in blocks[-NEWEST:]]
        return done


class Reached:
    """The store as one process reaches it (a KeyValues)."""

    def __init__(self, kept: KeptStore) -> None:
        self._kept = kept
        self._scheduler = kept.world.scheduler

    def commit(
        self, guard: bytes, revision: int, puts: Sequence[Pair], deletes: Sequence[Pair]
    ) -> tuple[bool, int, bytes]:
        kept, scheduler, memory = self._kept, self._scheduler, self._kept.memory
        self._on_its_way()
        if kept.mishap and kept.random() * kept.mishap < 1:
            kind = kept.random()
            if kind < 0.3:
                kept.lost += 1
                self._unheard("a transaction is lost")
            at = scheduler.now + int(kept.random() ** 3 * 4 * SECOND)
            scheduler.call_at(at, lambda: kept.do(guard, revision, puts, deletes))
            if kind < 0.7:
                kept.late += 1
                self._unheard("a transaction is late")
            scheduler.sleep(max(0, at - scheduler.now))
            self._unheard("an answer is lost")
        done = kept.do(guard, revision, puts, deletes)
        answer = memory.revision(guard)
        scheduler.sleep(int(kept.random() * MS))
        return done, *answer

    def read(self, first: bytes, end: bytes, limit: int) -> list[Pair]:
        return self._asked(lambda: self._kept.memory.read(first, end, limit))

    def revision(self, key: bytes) -> tuple[int, bytes]:
        return self._asked(lambda: self._kept.memory.revision(key))

    def _asked[Said](self, question: Callable[[], Said]) -> Said:
        self._on_its_way()
        answer = question()
        self._scheduler.sleep(int(self._kept.random() * MS))
        return answer

    def close(self) -> None:
        pass

    def _on_its_way(self) -> None:
        self._scheduler.operations += 1
        self._scheduler.sleep(int(self._kept.random() * MS))
        if self._scheduler.now < self._kept.silent_until:
            self._unheard("the store is silent")

    def _unheard(self, why: str) -> None:
        self._scheduler.sleep(SILENT_NS)
        self._scheduler.note("  unheard:", why)
        raise ShardUnavailable("unheard", why)
