"""A storage port in memory: the server's truth, without caches, replies that are lost, or waits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from appliance.bag.storage import Published
from timeagent.errors import Environment
from timeagent.units import Instant, Span


class MemoryStorage:
    """The server's truth: every verb is atomic and sees everything. Share one between nodes."""

    listing_pause_ns: Span = 0

    def __init__(self, server_clock: Callable[[], Instant] = lambda: 2**62) -> None:
        """Begin empty. ``server_clock``: what the file server's clock says."""
        self.files: dict[str, bytes] = {}
        self.directories: set[str] = {""}
        self.server_clock_ns = server_clock

    def ensure_directory(self, path: str) -> None:
        """As the port says."""
        parts = path.split("/")
        self.directories.update("/".join(parts[: n + 1]) for n in range(len(parts)))

    def look(self, directory: str, names: Collection[str]) -> frozenset[str] | None:
        """As the port says."""
        there = self.list_afresh(directory)
        return None if there is None else frozenset(names).intersection(there)

    def list_afresh(self, directory: str) -> list[str] | None:
        """As the port says."""
        directory = "" if directory == "." else directory
        if directory not in self.directories:
            return None
        inside = directory and directory + "/"
        below = (path[len(inside) :] for path in (*self.files, *self.directories) if path.startswith(inside))
        return sorted({rest for rest in below if rest and "/" not in rest})

    def read(self, path: str) -> bytes | None:
        """As the port says."""
        return b"" if path in self.directories else self.files.get(path)

    def read_each(self, directory: str, names: Sequence[str]) -> Iterator[bytes | None]:
        """As the port says."""
        return (self.read(f"{directory}/{name}") for name in names)

    def size_of(self, path: str) -> int | None:
        """As the port says."""
        data = self.read(path)
        return None if data is None else len(data)

    def read_from(self, path: str, offset: int, limit: int) -> bytes | None:
        """As the port says."""
        data = self.read(path)
        return None if data is None else data[offset : offset + limit]

    def publish_stream(self, path: str, chunks: Iterable[bytes], tmp: str) -> Published:
        """As the port says."""
        return self.publish(path, b"".join(chunks), tmp)

    def publish(self, path: str, data: bytes, tmp: str) -> Published:
        """As the port says."""
        self.ensure_directory(tmp)
        if path.rpartition("/")[0] not in self.directories:
            return Published.ABSENT
        if path in self.files or path in self.directories:
            return Published.LOST
        self.files[path] = data
        return Published.WON

    def ensure_marker(self, path: str) -> bool:
        """As the port says."""
        if path.rpartition("/")[0] not in self.directories:
            return False
        self.files.setdefault(path, b"")
        return True

    def append(self, path: str, data: bytes, expected_size: int) -> int:
        """As the port says."""
        if path.rpartition("/")[0] not in self.directories or (expected_size and path not in self.files):
            raise Environment("path-absent", f"{path} is not there")
        before = self.files.get(path, b"")
        if len(before) != expected_size or (expected_size == 0 and path in self.files):
            raise Environment("size-not-expected", f"{path} has {len(before)} bytes, not {expected_size}")
        self.files[path] = before + data
        return expected_size + len(data)

    def unlink(self, path: str) -> None:
        """As the port says."""
        self.files.pop(path, None)

    def server_clock(self, tmp: str) -> Instant:
        """As the port says."""
        self.ensure_directory(tmp)
        return self.server_clock_ns()

    def remove_directory(self, path: str) -> bool:
        """As the port says."""
        if self.list_afresh(path):
            return False
        self.directories.discard(path)
        return True

    def remove_tree(self, path: str) -> None:
        """Delete a directory with all that is in it, as packing does after a seal."""
        inside = path + "/"
        self.files = {name: data for name, data in self.files.items() if not name.startswith(inside)}
        self.directories = {name for name in self.directories if name != path and not name.startswith(inside)}
