"""Storages that are not a mount: through one client's cache, failing at a chosen call, recording."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from appliance.bag.ports import Published
from appliance.testing import stepped_cluster
from timeagent.errors import Environment

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from appliance.bag.ports import Storage
    from timeagent.units import Instant, Span


__all__ = ["Crash", "FailingStorage", "Fault", "MemoryStorage", "Mount", "RecordingStorage", "WrappedStorage"]


class MemoryStorage(stepped_cluster.MemoryStorage):
    """The server's truth, with what others do to it."""

    def remove_tree(self, path: str) -> None:
        """Delete a directory with all that is in it, as packing does after a seal."""
        inside = path + "/"
        self.files = {name: data for name, data in self.files.items() if not name.startswith(inside)}
        self.directories = {name for name in self.directories if name != path and not name.startswith(inside)}


class WrappedStorage:
    """Another storage, with something done around every verb."""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner

    @property
    def listing_pause_ns(self) -> Span:
        return self.inner.listing_pause_ns

    def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:  # noqa: ARG002 - for who overrides it
        return call()

    def ensure_directory(self, path: str) -> None:
        self.around("ensure_directory", path, lambda: self.inner.ensure_directory(path))

    def look(self, directory: str, names: Collection[str]) -> frozenset[str] | None:
        return self.around("look", directory, lambda: self.inner.look(directory, names))

    def list_afresh(self, directory: str) -> list[str] | None:
        return self.around("list_afresh", directory, lambda: self.inner.list_afresh(directory))

    def read(self, path: str) -> bytes | None:
        return self.around("read", path, lambda: self.inner.read(path))

    def read_each(self, directory: str, names: Sequence[str]) -> Iterator[bytes | None]:
        return (self.read(f"{directory}/{name}") for name in names)

    def size_of(self, path: str) -> int | None:
        return self.around("size_of", path, lambda: self.inner.size_of(path))

    def read_from(self, path: str, offset: int, limit: int) -> bytes | None:
        return self.around("read_from", path, lambda: self.inner.read_from(path, offset, limit))

    def publish(self, path: str, data: bytes, tmp: str) -> Published:
        return self.around("publish", path, lambda: self.inner.publish(path, data, tmp))

    def publish_stream(self, path: str, chunks: Iterable[bytes], tmp: str) -> Published:
        """Gather the chunks first: each of the calls in between is a call of its own."""
        gathered = list(chunks)
        return self.around("publish_stream", path, lambda: self.inner.publish_stream(path, gathered, tmp))

    def ensure_marker(self, path: str) -> bool:
        return self.around("ensure_marker", path, lambda: self.inner.ensure_marker(path))

    def append(self, path: str, data: bytes, expected_size: int) -> int:
        return self.around("append", path, lambda: self.inner.append(path, data, expected_size))

    def unlink(self, path: str) -> None:
        self.around("unlink", path, lambda: self.inner.unlink(path))

    def remove_directory(self, path: str) -> bool:
        return self.around("remove_directory", path, lambda: self.inner.remove_directory(path))

    def server_clock(self, tmp: str) -> Instant:
        return self.around("server_clock", tmp, lambda: self.inner.server_clock(tmp))


class RecordingStorage(WrappedStorage):
    """Remembers which verb was called on which path."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.calls: list[tuple[str, str]] = []

    def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:
        self.calls.append((verb, path))
        return call()


class Crash(BaseException):
    """The process dies here: nothing catches it."""


class Fault(Enum):
    """What happens at the chosen call."""

    NOT_DONE = "refused, not done"
    DONE_BUT_FAILED = "done, but reported failed"
    CRASH_BEFORE = "dies before it"
    CRASH_AFTER = "dies after it"


class FailingStorage(WrappedStorage):
    """Fails at the call with a number, counted from 1; ``calls`` says how many there were."""

    def __init__(self, inner: Storage, fault: Fault, at: int) -> None:
        super().__init__(inner)
        self.fault, self.at, self.calls = fault, at, 0

    def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:
        self.calls += 1
        if self.calls != self.at:
            return call()
        if self.fault is Fault.CRASH_BEFORE:
            raise Crash
        if self.fault is not Fault.NOT_DONE:
            call()
        if self.fault is Fault.CRASH_AFTER:
            raise Crash
        raise Environment("planted", f"{verb} {path}: {self.fault.value}")


class Mount(WrappedStorage):
    """One client's view: a name that was once looked for in vain stays absent until its directory is opened afresh.

    With ``revalidates=False`` a look opens nothing: the mistake that real caches punish for up to 30 s.
    """

    def __init__(self, server: Storage, *, revalidates: bool = True) -> None:
        super().__init__(server)
        self.revalidates = revalidates
        self._absent: set[str] = set()

    def look(self, directory: str, names: Collection[str]) -> frozenset[str] | None:
        if self.revalidates:
            self._forget(directory)
        hidden = {name for name in names if f"{directory}/{name}" in self._absent}
        seen = self.inner.look(directory, names)
        self._absent.update(f"{directory}/{name}" for name in set(names).difference(seen or ()))
        return None if seen is None else seen - hidden

    def list_afresh(self, directory: str) -> list[str] | None:
        self._forget(directory)
        return self.inner.list_afresh(directory)

    def read(self, path: str) -> bytes | None:
        if path in self._absent:
            return None
        data = self.inner.read(path)
        if data is None:
            self._absent.add(path)
        return data

    def read_from(self, path: str, offset: int, limit: int) -> bytes | None:
        data = self.read(path)
        return None if data is None else data[offset : offset + limit]

    def publish(self, path: str, data: bytes, tmp: str) -> Published:
        published = self.inner.publish(path, data, tmp)
        self._absent.discard(path)
        return published

    def publish_stream(self, path: str, chunks: Iterable[bytes], tmp: str) -> Published:
        return self.publish(path, b"".join(chunks), tmp)

    def ensure_marker(self, path: str) -> bool:
        done = self.inner.ensure_marker(path)
        self._absent.discard(path)
        return done

    def _forget(self, directory: str) -> None:
        self._absent = {path for path in self._absent if path.rpartition("/")[0] != directory}
