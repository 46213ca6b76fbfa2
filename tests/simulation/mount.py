"""A file server, and what its clients see through their caches: a Storage for each machine.

The rules are those measured on NFSv3 and v4.2, numbered as in tests/simulation/test_mount.py, which states each:

- the server is linearisable, one verb at a time: link, exclusive creation and mkdir have one winner (S8);
- an absence that was looked up is cached per client, for up to 30 s, and answers opens of files and of directories,
  also below an absent directory (S6); opening or listing the directory, or creating the name, drops it (S7, S9);
- contents are close-to-open: what was closed before an open is seen (S1); sizes come from open and fstat (S3);
- a request may be late, its reply too: it takes effect at any time between call and return (S10); a client that is cut
  off blocks; whose process dies meanwhile may still have its request executed, later;
- a LINK whose reply was lost is repeated and told EEXIST though it won; its link count says so (S11);
- a listing may or may not show what comes or goes while it runs; so may the look for one name after another;
- the server's clock stamps ctime (S15); a client that dies loses what it had not closed (S16); a server that restarts
  loses nothing, and everybody waits for it (S17);
- a soft mount reports failure of what was done, was not done, or will be done later; a full one refuses.

There is no rename (S18), no held descriptor (S4), no stat of a path (S2) and no chmod (S13, S14) in the port.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from greenlet import GreenletExit

from appliance.bag.storage import Published
from timeagent.errors import Environment, LeaseholdError
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from tests.simulation.scheduler import Scheduler
    from timeagent.units import Instant, Span

ABSENCE_NS_MAX: Span = 30 * SECOND
NEVER = 2**62


@lru_cache(maxsize=8192)
def _levels(path: str) -> tuple[tuple[str, str], ...]:
    """Return the directory and the name of a path, and of each directory above it."""
    found = []
    while path:
        parent, _, name = path.rpartition("/")
        found.append((parent, name))
        path = parent
    return tuple(found)


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

    def copy_from(self, other: Server) -> None:
        """Begin with another server's tree."""
        self.directories = {path: dict(names) for path, names in other.directories.items()}

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
        if names is not None and names.get(name) is not None:
            del names[name]

    def rmdir(self, path: str) -> bool:
        if self.directories.get(path):
            return False
        if path in self.directories:
            parent, _, name = path.rpartition("/")
            del self.directories[path]
            del self.directories[parent][name]
        return True

    def files(self) -> dict[str, File]:
        """Return every file by its path."""
        return {
            f"{directory}/{name}" if directory else name: file
            for directory, names in self.directories.items()
            for name, file in names.items()
            if file is not None
        }


@dataclass(frozen=True, slots=True)
class MountMishaps:
    """How often a mount misbehaves: once in about so many verbs that change something; 0: never."""

    failure: int = 0
    lost_reply: int = 0
    slow: int = 0
    late: float = 0.2
    """Which share of what fails is done later."""
    later_ns: Span = 20 * SECOND
    """How much later, at most."""


class SimulatedMount:
    """One client of the server: a Storage, shared by the processes of one machine."""

    revalidates = True
    """The mistake that real caches punish: a look that does not open its directory."""
    counts_links = True

    def __init__(self, server: Server, name: str, mishaps: MountMishaps = MountMishaps()) -> None:
        self.server = server
        self.scheduler = server.scheduler
        self.mishaps = mishaps
        self.cut_until: Instant = 0
        """Cut off from the server until then: requests wait."""
        self.failures = 0
        self.repeats = 0
        self._absent: dict[str, dict[str, Instant]] = {}
        self._numbers = 0
        stream = self.scheduler.stream(f"mount {name}")
        self._random = stream.random
        self._stream = stream
        self._fail_in = self._draw(mishaps.failure)
        self._repeat_in = self._draw(mishaps.lost_reply)
        self._slow_in = self._draw(mishaps.slow)

    def _draw(self, once_in: int) -> int:
        return 1 + int(self._stream.expovariate(1 / once_in)) if once_in else NEVER

    # -- requests ------------------------------------------------------------------------------------------------------

    def _ask(self, verb: str, path: str) -> None:
        """Let a request that changes nothing reach the server, which may take long."""
        now = self.scheduler.now
        extra = 0
        if self.cut_until > now or self.server.away_until > now:
            extra = max(self.cut_until, self.server.away_until) - now
        self._slow_in -= 1
        if self._slow_in <= 0:
            self._slow_in = self._draw(self.mishaps.slow)
            extra += int(self._random() ** 4 * 8 * SECOND)
        self.scheduler.step(verb, path, extra)

    def _change[T](self, verb: str, path: str, effect: Callable[[], T]) -> T:
        """Let a request that changes something reach the server. It may fail, or die with its process, half-way."""
        try:
            self._ask(verb, path)
        except GreenletExit:
            # The process is gone; its request may be on the way.
            if not self.scheduler.stopping and self._random() < 0.3:
                self._later(verb, path, effect)
            raise
        self._fail_in -= 1
        if self._fail_in > 0:
            return effect()
        self._fail_in = self._draw(self.mishaps.failure)
        self.failures += 1
        late = self.mishaps.late
        chance = self._random()
        if chance < late:
            self.scheduler.note("  fails, and will be done:", path)
            self._later(verb, path, effect)
        elif chance < late + (1 - late) / 2:
            self.scheduler.note("  fails, and is done:", path)
            effect()
        elif chance < late + (1 - late) * 3 / 4:
            self.scheduler.note("  is refused, there is no space:", path)
            raise Environment("mount-full", f"{verb} {path}: no space left on device", hint="free space")
        else:
            self.scheduler.note("  fails, and is not done:", path)
        raise Environment("mount-failed", f"{verb} {path}: input/output error", hint="ask again")

    def _later(self, verb: str, path: str, effect: Callable[[], object]) -> None:
        delay = int(self._random() ** 6 * self.mishaps.later_ns)

        def arrive() -> None:
            self.scheduler.note("  reaches the server late:", f"{verb} {path}")
            with suppress(LeaseholdError):
                effect()

        self.scheduler.call_at(self.scheduler.now + delay, arrive)

    # -- what this client remembers ------------------------------------------------------------------------------------

    def _hidden(self, path: str) -> bool:
        """Whether a remembered absence answers for this path, of itself or of a directory above it."""
        if not self._absent:
            return False
        absent = self._absent
        for parent, name in _levels(path):
            if parent in absent:
                until = absent[parent].get(name)
                if until is not None:
                    if until > self.scheduler.now:
                        return True
                    del absent[parent][name]
        return False

    def _remember_absent(self, path: str) -> None:
        """Remember the highest name on this path that is not there."""
        while True:
            parent, _, name = path.rpartition("/")
            if parent in self.server.directories:
                break
            path = parent
        span = int(self._random() * ABSENCE_NS_MAX)
        self._absent.setdefault(parent, {})[name] = self.scheduler.now + span

    def _forget(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        if parent in self._absent:
            self._absent[parent].pop(name, None)

    # -- the port ------------------------------------------------------------------------------------------------------

    def ensure_directory(self, path: str) -> None:
        self._change("mkdir", path, lambda: self.server.mkdir(path))
        while path:
            self._forget(path)
            path = path.rpartition("/")[0]

    def look(self, directory: str, names: Collection[str]) -> frozenset[str] | None:
        """Open the directory, and then ask for one name after another: that is not one instant."""
        if self._hidden(directory):
            self.scheduler.step("open, from the cache", directory)
            return None
        self._ask("open", directory)
        there = self.server.directories.get(directory)
        if there is None:
            self._remember_absent(directory)
            return None
        if self.revalidates:
            self._absent.pop(directory, None)
            hidden: frozenset[str] = frozenset()
        else:
            hidden = frozenset(name for name in names if self._hidden(f"{directory}/{name}"))
        found = {name for name in names if name in there and name not in hidden}
        for name in names:
            if name not in found and name not in hidden:
                if self._random() < 0.3:
                    self._ask("look for", f"{directory}/{name}")
                    if name in there:
                        found.add(name)
                        continue
                self._remember_absent(f"{directory}/{name}")
        return frozenset(found)

    def list_afresh(self, directory: str) -> list[str] | None:
        directory = "" if directory == "." else directory
        if self._hidden(directory):
            self.scheduler.step("list, from the cache", directory)
            return None
        self._ask("list", directory)
        there = self.server.directories.get(directory)
        if there is None:
            self._remember_absent(directory)
            return None
        self._absent.pop(directory, None)
        names = set(there)
        if self._random() < 0.25:
            self._ask("go on listing", directory)
            for name in names ^ set(there):
                if self._random() < 0.5:
                    names ^= {name}
        return sorted(names)

    def read(self, path: str) -> bytes | None:
        if self._hidden(path):
            self.scheduler.step("read, from the cache", path)
            return None
        self._ask("read", path)
        file = self.server.find(path)
        if file is not None:
            return file.data
        if path in self.server.directories:
            return b""
        self._remember_absent(path)
        return None

    def size_of(self, path: str) -> int | None:
        data = self.read(path)
        return None if data is None else len(data)

    def read_from(self, path: str, offset: int, limit: int) -> bytes | None:
        data = self.read(path)
        return None if data is None else data[offset : offset + limit]

    def publish_stream(self, path: str, chunks: Iterable[bytes], tmp: str) -> Published:
        return self.publish(path, b"".join(chunks), tmp)

    def publish(self, path: str, data: bytes, tmp: str) -> Published:
        prepared, file = self._prepare(tmp, data)
        try:
            published = self._change("link", path, lambda: self.server.link(path, file))
        finally:
            if not self.scheduler.stopping:
                self.server.unlink(prepared)
        self._repeat_in -= 1
        if self._repeat_in <= 0 and published is Published.WON:
            # The reply was lost, the client repeats, and the repeat says EEXIST: the link count tells who won.
            self._repeat_in = self._draw(self.mishaps.lost_reply)
            self.repeats += 1
            self.scheduler.step("link again, the reply was lost", path)
            published = Published.LOST
            if self.counts_links and file.links > 1:
                published = Published.WON
        if published is not Published.ABSENT:
            self._forget(path)
        else:
            self._remember_absent(path)
        return published

    def _prepare(self, tmp: str, data: bytes) -> tuple[str, File]:
        if tmp not in self.server.directories:
            self.ensure_directory(tmp)
        self._numbers += 1
        prepared = f"{tmp}/{self._numbers}"
        file = self.server.new(data)

        def create() -> None:
            self.server.directories[tmp][prepared.rpartition("/")[2]] = file

        self._change("write", prepared, create)
        return prepared, file

    def ensure_marker(self, path: str) -> bool:
        def create() -> bool:
            parent, _, name = path.rpartition("/")
            names = self.server.directories.get(parent)
            if names is None:
                return False
            if name not in names:
                names[name] = self.server.new(b"")
            return True

        done = self._change("create", path, create)
        self._forget(path)
        return done

    def append(self, path: str, data: bytes, expected_size: int) -> int:
        """Append and close. Who dies meanwhile may leave a torn piece behind."""
        torn = self._random() < 0.5

        def write() -> int:
            parent, _, name = path.rpartition("/")
            names = self.server.directories[parent]
            file = names.get(name)
            if file is None:
                file = names[name] = self.server.new(b"")
            if len(file.data) != expected_size:
                raise Environment("size-not-expected", f"{path} has {len(file.data)} bytes, not {expected_size}")
            file.data += data
            return len(file.data)

        def tear() -> None:
            parent, _, name = path.rpartition("/")
            file = self.server.directories[parent].setdefault(name, self.server.new(b""))
            if file is not None and len(file.data) == expected_size:
                file.data += data[: int(len(data) * self._random())]

        try:
            return self._change("append", path, write)
        except GreenletExit:
            if torn and not self.scheduler.stopping:
                tear()
            raise

    def unlink(self, path: str) -> None:
        self._change("unlink", path, lambda: self.server.unlink(path))

    def remove_directory(self, path: str) -> bool:
        return self._change("rmdir", path, lambda: self.server.rmdir(path))

    def server_clock(self, tmp: str) -> Instant:
        self._ask("ask the server's clock", tmp)
        return self.scheduler.now + self.server.clock_offset_ns
