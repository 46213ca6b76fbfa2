"""Where strangers stand until it is known who they are, or what they ask: a listening socket, and one thread's loop.

Whatever one of them sends or leaves out costs nobody else anything:

- a bounded number is there at once, each for a bounded time. Where the places are all taken, whoever has been there for
  a while gives way to somebody new, first of the address that has taken the most places; while nobody has, who comes
  waits in the kernel's queue;
- what goes wrong with one, also what nobody thought of, ends its connection, and not the loop.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import selectors
import socket
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from .transport import Counter as BootClock

_log = logging.getLogger(__name__)

PLACES: Final = 128
"""How many may be on a threshold at once."""

STAY_NS: Final = 5 * SECOND
"""How long one of them may stay."""

PATIENCE_NS: Final = 250 * MS
"""How long one may have stayed before it has to make room for another: some round trips, and work for each."""

TICK_NS: Final = 100 * MS
BACKLOG: Final = 1024
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


@dataclass(slots=True, eq=False)
class Visitor:
    """Somebody on the threshold."""

    socket: socket.socket
    since_ns: int
    whence: str
    received: bytearray = field(default_factory=bytearray)


class Threshold[V: Visitor](ABC):
    """Listens until it is told to stop. One thread of its own runs it."""

    def __init__(self, listener: socket.socket, clock: BootClock) -> None:
        """Take a socket that listens; nobody is let in before run() runs."""
        self._clock = clock
        self._visitors: dict[int, V] = {}
        self._stopping = False
        self._deaf_until = 0
        self._listening = True
        self.refused: Counter[str] = Counter()
        """Who was turned away, by reason. Read by other threads."""
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        for each in (self._listener, self._wake, self._woken):
            each.settimeout(0)
        for listening in (self._listener, self._woken):
            self._selector.register(listening, selectors.EVENT_READ)

    @abstractmethod
    def _taken(self, accepted: socket.socket, now: int, whence: str) -> V:
        """Return who has come. Raises OSError: it is gone again."""

    @abstractmethod
    def _go_on(self, visitor: V) -> None:
        """Do what can be done for a visitor without waiting. Whatever it raises, the visitor has to leave."""

    @abstractmethod
    def _send_away(self, visitor: V) -> None:
        """Tell a visitor that it has been here for too long, and drop it. Never blocks."""

    def run(self) -> None:
        """Look after who comes until stop(); then drop who is there. Blocks; call it once."""
        try:
            while not self._stopping:
                self._loop_once()
        finally:
            for visitor in list(self._visitors.values()):
                self._drop(visitor)
            for each in (self._listener, self._wake, self._woken):
                each.close()
            self._selector.close()

    def stop(self) -> None:
        """End run() soon. Thread-safe, idempotent."""
        self._stopping = True
        with contextlib.suppress(OSError):
            self._wake.send(b"\0")

    def _loop_once(self) -> None:
        ready = self._selector.select(TICK_NS / SECOND)
        now = self._clock.boot_ns()
        knocks = False
        for key, _ in ready:
            if key.fileobj is self._listener:
                knocks = True  # last: who has gone on by then makes room
            elif key.fileobj is self._woken:
                with contextlib.suppress(OSError):
                    self._woken.recv(4096)
            else:
                self._guarded(self._visitors[key.fd])
        for visitor in list(self._visitors.values()):
            if now - visitor.since_ns > STAY_NS:
                self._send_away(visitor)
        if knocks:
            self._accept(now)
        self._listen(now >= self._deaf_until)

    def _guarded(self, visitor: V) -> None:
        try:
            self._go_on(visitor)
        except Exception:  # noqa: BLE001 - whatever it is: this one leaves, the others stay
            self.refused["unexpected"] += 1
            _log.exception("visitor-failed from=%s", visitor.whence)
            self._drop(visitor)

    def _listen(self, willing: bool) -> None:  # noqa: FBT001 - what it says
        if willing is not self._listening:
            self._listening = willing
            if willing:
                self._selector.register(self._listener, selectors.EVENT_READ)
            else:
                self._selector.unregister(self._listener)

    def _accept(self, now: int) -> None:
        for _ in range(PLACES):
            if len(self._visitors) >= PLACES and not self._made_room(now):
                self._deaf_until = now + TICK_NS
                return
            try:
                accepted, whence = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as problem:
                if problem.errno in _EXHAUSTED:
                    _log.warning("accept-failed reason=%s", problem.strerror)
                    self._deaf_until = now + TICK_NS
                return
            try:
                accepted.settimeout(0)
                visitor = self._taken(accepted, now, str(whence[0]) if whence else "")
            except OSError:
                accepted.close()
                continue
            self._visitors[visitor.socket.fileno()] = visitor
            self._selector.register(visitor.socket, selectors.EVENT_READ)

    def _made_room(self, now: int) -> bool:
        """Have somebody leave who has been here for a while; False: nobody has."""
        crowd = Counter(each.whence for each in self._visitors.values())
        waiting = [each for each in self._visitors.values() if now - each.since_ns >= PATIENCE_NS]
        if waiting:
            self._send_away(max(waiting, key=lambda each: (crowd[each.whence], -each.since_ns)))
        return bool(waiting)

    def _forget(self, visitor: V) -> None:
        """Look after a visitor no more. Idempotent."""
        if self._visitors.pop(visitor.socket.fileno(), None) is not None:
            self._selector.unregister(visitor.socket)

    def _drop(self, visitor: V) -> None:
        self._forget(visitor)
        visitor.socket.close()
