"""The ports of a cluster in memory: a time that only moves when it is told to, and the server's truth as a storage."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

from appliance.bag.storage import Published
from timeagent.errors import Environment
from timeagent.keys import Signer
from timeagent.signedtime import ClockStatus, SignedTime, TimeFlags, sign_time
from timeagent.units import MS, Instant, Span, TimeInterval


class HandTime:
    """Hand-driven time of one node: only sleeping, ``advance`` and setting the midpoint move it."""

    def __init__(self, signer: Signer, start_ns: Instant, radius_ns: Span = 5 * MS) -> None:
        """Begin at an instant, known to a radius. ``signer``: the node's time key."""
        self.signer = signer
        self.midpoint_ns = start_ns
        self.radius_ns = radius_ns
        self.staleness_ns = 250 * MS
        self.status = ClockStatus.SYNCHRONIZED
        self.clock_epoch = 1
        self._boot_ns = 1_000 * MS
        self._sequence = 0

    def now(self) -> TimeInterval:
        return TimeInterval.around(self.midpoint_ns, self.radius_ns)

    def boot_ns(self) -> int:
        return self._boot_ns

    def advance(self, span: Span) -> None:
        assert span >= 0, "set midpoint_ns to step back"
        self.midpoint_ns += span
        self._boot_ns += span

    @contextmanager
    def set_back(self, span: Span) -> Iterator[None]:
        """Show an earlier time for a while, as a clock does that was set wrongly and then right again."""
        self.midpoint_ns -= span
        yield
        self.midpoint_ns += span

    @contextmanager
    def known_to(self, radius: Span) -> Iterator[None]:
        """Know the time no better than this for a while, as a node does whose guard against that has failed."""
        before, self.radius_ns = self.radius_ns, radius
        yield
        self.radius_ns = before

    def sleep(self, span: Span) -> None:
        """Let time pass, as who waits does."""
        if span > 0:
            self.advance(span)

    def token(self) -> SignedTime:
        return self._sign(None)

    def now_and_token(self) -> tuple[TimeInterval, SignedTime]:
        return self.now(), self.token()

    def token_over(self, digest: bytes) -> SignedTime:
        return self._sign(digest)

    def _sign(self, digest: bytes | None) -> SignedTime:
        self._sequence += 1
        return sign_time(
            self.signer,
            self.now(),
            status=self.status,
            flags=TimeFlags.NONE,
            staleness_ns=self.staleness_ns,
            sequence=self._sequence,
            clock_epoch=self.clock_epoch,
            digest=digest,
        )


class MemoryStorage:
    """The server's truth: every verb is atomic and sees everything. Share one between nodes."""

    listing_pause_ns: Span = 0

    def __init__(self, server_clock: Callable[[], Instant] = lambda: 2**62) -> None:
        """Begin empty. ``server_clock``: what the file server's clock says."""
        self.files: dict[str, bytes] = {}
        self.directories: set[str] = {""}
        self.server_clock_ns = server_clock

    def ensure_directory(self, path: str) -> None:
        parts = path.split("/")
        self.directories.update("/".join(parts[: n + 1]) for n in range(len(parts)))

    def look(self, directory: str, names: Collection[str]) -> frozenset[str] | None:
        there = self.list_afresh(directory)
        return None if there is None else frozenset(names).intersection(there)

    def list_afresh(self, directory: str) -> list[str] | None:
        directory = "" if directory == "." else directory
        if directory not in self.directories:
            return None
        inside = directory and directory + "/"
        below = (path[len(inside) :] for path in (*self.files, *self.directories) if path.startswith(inside))
        return sorted({rest for rest in below if rest and "/" not in rest})

    def read(self, path: str) -> bytes | None:
        return b"" if path in self.directories else self.files.get(path)

    def read_each(self, directory: str, names: Sequence[str]) -> Iterator[bytes | None]:
        return (self.read(f"{directory}/{name}") for name in names)

    def size_of(self, path: str) -> int | None:
        data = self.read(path)
        return None if data is None else len(data)

    def read_from(self, path: str, offset: int, limit: int) -> bytes | None:
        data = self.read(path)
        return None if data is None else data[offset : offset + limit]

    def publish_stream(self, path: str, chunks: Iterable[bytes], tmp: str) -> Published:
        return self.publish(path, b"".join(chunks), tmp)

    def publish(self, path: str, data: bytes, tmp: str) -> Published:
        self.ensure_directory(tmp)
        if path.rpartition("/")[0] not in self.directories:
            return Published.ABSENT
        if path in self.files or path in self.directories:
            return Published.LOST
        self.files[path] = data
        return Published.WON

    def ensure_marker(self, path: str) -> bool:
        if path.rpartition("/")[0] not in self.directories:
            return False
        self.files.setdefault(path, b"")
        return True

    def append(self, path: str, data: bytes, expected_size: int) -> int:
        if path.rpartition("/")[0] not in self.directories or (expected_size and path not in self.files):
            raise Environment("path-absent", f"{path} is not there")
        before = self.files.get(path, b"")
        if len(before) != expected_size or (expected_size == 0 and path in self.files):
            raise Environment("size-not-expected", f"{path} has {len(before)} bytes, not {expected_size}")
        self.files[path] = before + data
        return expected_size + len(data)

    def unlink(self, path: str) -> None:
        self.files.pop(path, None)

    def server_clock(self, tmp: str) -> Instant:
        self.ensure_directory(tmp)
        return self.server_clock_ns()

    def remove_directory(self, path: str) -> bool:
        if self.list_afresh(path):
            return False
        self.directories.discard(path)
        return True

    def remove_tree(self, path: str) -> None:
        """Delete a directory with all that is in it, as packing does after a seal."""
        inside = path + "/"
        self.files = {name: data for name, data in self.files.items() if not name.startswith(inside)}
        self.directories = {name for name in self.directories if name != path and not name.startswith(inside)}
