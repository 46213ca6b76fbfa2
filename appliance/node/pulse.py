"""Signs of life for the supervisor: as long as every loop goes round, and only then.

A loop calls ``beat`` with its own name each time it goes round. A sign is given when all of them have: one that stands
still silences the whole, and a thread that only sleeps gives none.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from timeagent.units import Span

SIGNS: Final = 3
"""How many signs of life go into the time that the supervisor waits for one."""


class Listener(Protocol):
    """The supervisor, as far as it is told that somebody lives (timeagent.notify)."""

    @property
    def watchdog_ns(self) -> Span:
        """How often it wants a sign at least; 0: never."""
        ...

    def alive(self) -> None:
        """Give a sign of life."""
        ...


class Counter(Protocol):
    """A clock that counts."""

    def boot_ns(self) -> int:
        """Return nanoseconds since boot."""
        ...


class Pulse:
    """Gathers the beats of some loops. Thread-safe."""

    def __init__(self, listener: Listener, clock: Counter) -> None:
        """Expect nothing yet."""
        self._listener = listener
        self._clock = clock
        self._lock = Lock()
        self._beaten: dict[str, bool] = {}
        self._told_ns = 0

    def watch(self, name: str) -> None:
        """Expect beats of this name from now on."""
        with self._lock:
            self._beaten[name] = False

    def forget(self, name: str) -> None:
        """Expect no more of them: the loop has ended as it should."""
        with self._lock:
            self._beaten.pop(name, None)

    def beat(self, name: str) -> None:
        """Note that a loop went round; give a sign of life if all have, and it is time."""
        if not self._listener.watchdog_ns:
            return
        with self._lock:
            if name in self._beaten:
                self._beaten[name] = True
            now = self._clock.boot_ns()
            if now - self._told_ns < self._listener.watchdog_ns // SIGNS or not all(self._beaten.values()):
                return
            self._told_ns = now
            self._beaten = dict.fromkeys(self._beaten, False)
        self._listener.alive()
