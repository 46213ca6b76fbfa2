"""A file server: the truth, and what it knows of its clients. Linearisable, one verb at a time.

Files are shared between runs that begin with the same tree: what a run knows of one stands in its server, beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.bag.ports import Published
from timeagent.units import SECOND

if TYPE_CHECKING:
    from tests.simulation.mount import SimulatedMount
    from tests.simulation.scheduler import Scheduler
    from timeagent.units import Instant, Span

REVOKED_AFTER_NS: Span = 3_300_000_000
"""So long after its lease has run out, a delegation of a client that does not answer is revoked."""


class File:
    """An inode. ``born_ns``: true time at which it got its name."""

    __slots__ = ("born_ns", "ctime_ns", "data", "links")

    def __init__(self, data: bytes, born_ns: Instant, ctime_ns: Instant) -> None:
        self.data = data
        self.links = 1
        self.born_ns = born_ns
        self.ctime_ns = ctime_ns


class Server:
    """The truth."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.directories: dict[str, dict[str, File | None]] = {"": {}}
        """By path: the names in it; None stands for a directory of that name."""
        self.clock_offset_ns: Span = 0
        self.away_until: Instant = 0
        """The server restarts: until then nobody gets an answer."""
        self.delegates = False
        """Whether readers are given delegations (NFSv4 without fs.leases-enable=0)."""
        self.lease_ns: Span = 10 * SECOND
        self.delegations: dict[File, list[SimulatedMount]] = {}
        self.read_only: set[File | str] = set()
        """Files, and paths of directories, whose write permission was taken away."""
        self.graves: dict[str, tuple[File, Instant]] = {}
        """Files of logs and chains that were removed, and when, by this server's clock."""
        self.grown: dict[File, list[tuple[int, Instant]]] = {}
        """Up to which size a file was appended to, and when."""

    def copy_from(self, other: Server) -> None:
        """Begin with another server's tree."""
        self.directories = {path: dict(names) for path, names in other.directories.items()}

    def join(self, other: Server) -> None:
        """Take over all that another server holds; under one name its file counts."""
        for path, names in other.directories.items():
            self.mkdir(path)
            self.directories[path] |= names
        self.graves |= other.graves
        self.grown |= other.grown

    def mkdir(self, path: str) -> None:
        if path in self.directories:
            return
        parent, _, name = path.rpartition("/")
        self.mkdir(parent)
        self.directories[parent].setdefault(name, None)
        self.directories[path] = {}

    def new(self, data: bytes) -> File:
        now = self.scheduler.now
        return File(data, now, now + self.clock_offset_ns)

    def link(self, path: str, file: File) -> Published:
        parent, _, name = path.rpartition("/")
        names = self.directories.get(parent)
        if names is None:
            return Published.ABSENT
        if name in names:
            return Published.LOST
        file.links += 1
        file.born_ns = self.scheduler.now
        names[name] = file
        return Published.WON

    def find(self, path: str) -> File | None:
        parent, _, name = path.rpartition("/")
        names = self.directories.get(parent)
        return None if names is None else names.get(name)

    def unlink(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        names = self.directories.get(parent)
        if names is None:
            return
        file = names.get(name)
        if file is not None:
            del names[name]
            if path.startswith(("logs/", "shards/")):
                self.graves.setdefault(path, (file, self.scheduler.now + self.clock_offset_ns))

    def append(self, file: File, data: bytes) -> None:
        # Whoever was given a delegation since the recall hears of this at once: a file that is being written has none.
        for holder in self.delegations.pop(file, ()):
            holder.forget_delegation(file)
        file.data += data
        self.grown.setdefault(file, []).append((len(file.data), self.scheduler.now))

    def born_ns(self, file: File, size: int) -> Instant:
        """Return when a file had so many bytes, and a name."""
        return next((when for end, when in self.grown.get(file, ()) if end >= size), file.born_ns)

    def rmdir(self, path: str) -> bool:
        if self.directories.get(path):
            return False
        if path in self.directories:
            parent, _, name = path.rpartition("/")
            del self.directories[path]
            del self.directories[parent][name]
        return True

    def chmod(self, path: str, *, writable: bool) -> None:
        """Take the write permission of a file or directory away, or give it back: people do, the protocol does not."""
        target = self.find(path) or path  # a file that is gone by then stays as it was
        if writable:
            self.read_only.discard(target)
        else:
            self.read_only.add(target)

    def files(self) -> dict[str, File]:
        """Return every file by its path."""
        return {
            f"{directory}/{name}" if directory else name: file
            for directory, names in self.directories.items()
            for name, file in names.items()
            if file is not None
        }
