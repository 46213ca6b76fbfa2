"""Ports for somebody who only looks: storage that cannot write, and time that cannot sign.

Everything that ``top`` runs is given these, so that nothing it calls can change the mount, by construction.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final, NoReturn

from appliance.formats.paths import LOCK, LOGS
from timeagent.errors import Environment, NotTrusted
from timeagent.sampled import SampledClock
from timeagent.units import DAY

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from appliance.bag.storage import Published, Storage
    from timeagent.clock import MachineClock
    from timeagent.interval import TimeInterval
    from timeagent.sampled import Look
    from timeagent.signedtime import SignedTime
    from timeagent.sources.port import Source
    from timeagent.units import Instant, Span

_KEPT_MAX: Final = 8_192


class WatchingStorage:
    """A Storage whose writing verbs are refused. Listings of closed bags, which cannot change, are kept."""

    def __init__(self, inner: Storage) -> None:
        """Look through another storage."""
        self._inner = inner
        self._closed: dict[str, list[str]] = {}

    def look(self, directory: str, names: Collection[str]) -> frozenset[str] | None:
        """Open the directory afresh, then say which of the names are there."""
        return self._inner.look(directory, names)

    def list_afresh(self, directory: str) -> list[str] | None:
        """Open the directory afresh and return its names; those of a bag that was seen closed, without asking."""
        kept = self._closed.get(directory)
        if kept is not None:
            return kept
        names = self._inner.list_afresh(directory)
        if names and LOCK in names and directory.startswith(f"{LOGS}/"):
            if len(self._closed) >= _KEPT_MAX:
                self._closed.clear()
            self._closed[directory] = names
        return names

    def read(self, path: str) -> bytes | None:
        """Return all bytes of a file."""
        return self._inner.read(path)

    def read_each(self, directory: str, names: Sequence[str]) -> Iterator[bytes | None]:
        """Yield all bytes of each of a directory's files."""
        return self._inner.read_each(directory, names)

    def size_of(self, path: str) -> int | None:
        """Return a file's size."""
        return self._inner.size_of(path)

    def read_from(self, path: str, offset: int, limit: int) -> bytes | None:
        """Return at most so many bytes of a file from an offset."""
        return self._inner.read_from(path, offset, limit)

    def ensure_directory(self, path: str) -> None:
        """Refuse."""
        _refuse("make", path)

    def publish(self, path: str, data: bytes, tmp: str) -> Published:
        """Refuse."""
        del data, tmp
        _refuse("publish", path)

    def publish_stream(self, path: str, chunks: Iterable[bytes], tmp: str) -> Published:
        """Refuse."""
        del chunks, tmp
        _refuse("publish", path)

    def ensure_marker(self, path: str) -> bool:
        """Refuse."""
        _refuse("make", path)

    def append(self, path: str, data: bytes, expected_size: int) -> int:
        """Refuse."""
        del data, expected_size
        _refuse("append to", path)

    def unlink(self, path: str) -> None:
        """Refuse."""
        _refuse("remove", path)

    def remove_directory(self, path: str) -> bool:
        """Refuse."""
        _refuse("remove", path)

    def server_clock(self, tmp: str) -> Instant:
        """Refuse: it makes a file."""
        _refuse("make a file in", tmp)


def _refuse(verb: str, path: str) -> NoReturn:
    raise Environment("read-only", f"{path}: whoever only looks does not {verb} it", hint="leave that to a node")


class WatchingTime:
    """A NodeTime without a key: it says what time it is, and signs nothing. Thread-safe."""

    def __init__(self, machine: MachineClock, sources: Sequence[Source]) -> None:
        """Take the sources in order of preference. Any radius is told: who only looks harms nobody."""
        self._machine = machine
        self._clock = SampledClock(machine, sources, radius_ns_max=DAY)
        self._lock = Lock()

    def look(self) -> Look:
        """Return time and where it is from. Raises BadTime: no source has a bound, the clock is disrupted."""
        with self._lock:
            return self._clock.look()

    def now(self) -> TimeInterval:
        """Return the interval that holds true time. Raises BadTime."""
        return self.look().now

    def boot_ns(self) -> int:
        """Return nanoseconds since boot."""
        return self._machine.boot_ns()

    def sleep(self, span: Span) -> None:
        """Wait about that long."""
        self._machine.sleep(span)

    def token(self) -> SignedTime:
        """Refuse."""
        raise NotTrusted("no-key", "whoever only looks signs nothing")

    def now_and_token(self) -> tuple[TimeInterval, SignedTime]:
        """Refuse."""
        return self.now(), self.token()

    def token_over(self, digest: bytes) -> SignedTime:
        """Refuse."""
        del digest
        raise NotTrusted("no-key", "whoever only looks signs nothing")
