"""Which shard map counts now: the newest one, looked for by a thread of its own: nobody else waits for the mount."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Final

from timeagent.errors import TenureError
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from timeagent.clock import Clock
    from timeagent.units import Span

    from .formats.shardmap import ShardMap
    from .registers import Registers

_log = logging.getLogger(__name__)

LOOK_NS: Final[Span] = SECOND
"""How often a daemon looks for a newer map."""

_LOOK_AGAIN_NS: Final[Span] = SECOND // 10
"""At most so often when somebody asks for it: a shard that does not answer must not make work for the mount."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The newest map, and the maps that have chains of their own; the shards work under the last of these."""

    newest: ShardMap
    layouts: tuple[ShardMap, ...]

    @property
    def layout(self) -> ShardMap:
        """Return the map under whose number the chains lie."""
        return self.layouts[-1]


class MapWatch:
    """The newest shard map known to this process. Thread-safe."""

    def __init__(self, registers: Callable[[], Registers], first: Placement, clock: Clock) -> None:
        """Take what is known. ``registers`` makes this watch's own, because they are not for several threads."""
        self._make = registers
        self._registers: Registers | None = None
        self._known = first
        self._clock = clock
        self._lock = Lock()
        self._asked = Event()
        self._every_ns: Span | None = None
        self._closed = False
        self.thread: Thread | None = None
        self.failures = 0
        """How often the newest map could not be read."""

    @property
    def placement(self) -> Placement:
        """Return what is known now. Never blocks."""
        return self._known

    @property
    def newest(self) -> ShardMap:
        """Return the newest map known."""
        return self._known.newest

    def look(self) -> None:
        """Have the newest map read soon. Never blocks."""
        self._start()
        self._asked.set()

    def keep_looking(self) -> None:
        """Look every second from now on, as a daemon does. Idempotent."""
        self._every_ns = LOOK_NS
        self.look()

    def close(self) -> None:
        """Look no more. Does not wait for a mount that does not answer. Idempotent."""
        self._closed = True
        self._asked.set()

    def refresh(self) -> None:
        """Read the newest map now. Touches the mount; what cannot be read leaves what is known. Never raises."""
        try:
            if self._registers is None:
                self._registers = self._make()
            newest = self._registers.newest_map()
            if newest.number != self._known.newest.number:
                self._known = Placement(newest, tuple(self._registers.layouts(newest)))
                _log.info("map-changed number=%d shards=%d", newest.number, len(newest.owners))
        except TenureError as problem:
            self.failures += 1
            _log.warning("map-not-read code=%s reason=%s", problem.code, problem.message)

    def _start(self) -> None:
        with self._lock:
            if self.thread is None and not self._closed:
                self.thread = Thread(target=self._run, name="tenure-map", daemon=True)
                self.thread.start()

    def _run(self) -> None:
        while not self._closed:
            self._asked.wait(None if self._every_ns is None else self._every_ns / SECOND)
            self._asked.clear()
            if not self._closed:
                self.refresh()
                self._clock.sleep(_LOOK_AGAIN_NS)
