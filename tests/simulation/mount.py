"""A file server, and what its clients see through their caches: a Storage for each machine.

The rules are those measured on NFSv3 and v4.2, numbered as in tests/simulation/test_mount.py, which states each:

- the server is linearisable, one verb at a time: link, exclusive creation and mkdir have one winner (S8);
- an absence that was looked up is cached per client, for up to 60 s, and answers opens of files and of directories,
  also below an absent directory; looking for another name in vain renews it (S6); opening or listing the directory,
  or creating the name, drops it (S7, S9);
- contents are close-to-open: what was closed before an open is seen (S1); sizes come from open and fstat (S3);
- a request may be late, its reply too: it takes effect at any time between call and return (S10); a client that is cut
  off blocks; whose process dies meanwhile may still have its request executed, later;
- a LINK whose reply was lost is repeated and told EEXIST though it won; its link count says so (S11);
- a listing may or may not show what comes or goes while it runs; so may the look for one name after another;
- the server's clock stamps ctime (S15); a client that dies loses what it had not closed (S16); a server that restarts
  loses nothing, and everybody waits for it (S17);
- a server that delegates lets a reader answer reads of that file by itself, with old bytes where it is cut off and
  need not ask where the file is; who wants to append to, link or unlink the file waits for it, or until its lease has
  run out (S12);
- permissions are those at the opening, by uid: what was opened before somebody took them away still lands for the
  owner, and stores nothing for others; directories are asked at each creation, link and removal; root is asked nothing
  (S13);
- a directory that was removed and made again is found by a client that knows the old one: it is asked again (ESTALE);
- a soft mount reports failure of what was done, was done in part, was not done, or will be done later, and of what only
  looks; a full one refuses.

There is no rename (S18), no held descriptor (S4), no stat of a path (S2), no chmod and no look at a mode
(S14) in the port, and nothing is written without being closed (S5), but by those who die of it (S16).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from greenlet import GreenletExit

from appliance.bag.ports import PATH_ABSENT, SIZE_NOT_EXPECTED, Published
from tests.simulation.client import OWNER, Client
from timeagent.errors import Environment

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from tests.simulation.server import File
    from timeagent.units import Instant, Span


def _absent(path: str) -> Environment:
    return Environment(PATH_ABSENT, f"{path} is not there", hint="make its directory, or begin a new file")


class SimulatedMount(Client):
    """A Storage, shared by the processes of one machine."""

    listing_pause_ns: Span = 0

    revalidates = True
    """The mistake that real caches punish: a look that does not open its directory."""
    counts_links = True

    def ensure_directory(self, path: str) -> None:
        self.scheduler.operations += 1
        self._make_directory(path)

    def _make_directory(self, path: str) -> None:
        def make() -> None:
            if path not in self.server.directories:
                self._ask_permission("mkdir", path)
                self.server.mkdir(path)

        self._change("mkdir", path, make)
        self._found(path)

    def look(self, directory: str, names: Collection[str]) -> frozenset[str] | None:
        """Open the directory, and then ask for one name after another: that is not one instant."""
        self.scheduler.operations += 1
        if self._hidden(directory):
            self.scheduler.step("open, from the cache", directory)
            return None
        remembered = self._remembered
        self._look("open", directory)
        there = self.server.directories.get(directory)
        if there is None:
            self._remember_absent(directory)
            return None
        if self._remembered != remembered:
            self._found(directory)
        if self.revalidates:
            self._opened_afresh(directory)
        else:
            names = [name for name in names if not self._hidden(f"{directory}/{name}")]
        found = {name for name in names if name in there}
        for name in names:
            if name not in found:
                path = f"{directory}/{name}"
                if self._random() < 0.3:
                    self._look("look for", path)
                    if name in there:
                        found.add(name)
                        continue
                self._remember_absent(path)
        return frozenset(found)

    def list_afresh(self, directory: str) -> list[str] | None:
        self.scheduler.operations += 1
        directory = "" if directory == "." else directory
        if self._hidden(directory):
            self.scheduler.step("list, from the cache", directory)
            return None
        remembered = self._remembered
        self._look("list", directory)
        there = self.server.directories.get(directory)
        if there is None:
            self._remember_absent(directory)
            return None
        if self._remembered != remembered:
            self._found(directory)
        self._opened_afresh(directory)
        if self._random() >= 0.25:
            return sorted(there)
        names = set(there)
        self._look("go on listing", directory)
        for name in sorted(names ^ set(there)):
            if self._random() < 0.5:
                names ^= {name}
        return sorted(names)

    def read(self, path: str) -> bytes | None:
        self.scheduler.operations += 1
        if self._hidden(path):
            self.scheduler.step("read, from the cache", path)
            return None
        if self._delegated and (data := self._answers_by_itself(path)) is not None:
            self.scheduler.step("read, by delegation", path)
            return data
        remembered = self._remembered
        self._look("read", path)
        file = self.server.find(path)
        if file is not None:
            if self._remembered != remembered:
                self._found(path)
            if self.server.delegates and self._random() < 0.7:
                self.server.delegations.setdefault(file, []).append(self)
                self._delegated[path] = file, file.data
            return file.data
        if path in self.server.directories:
            return b""
        self._remember_absent(path)
        return None

    def read_each(self, directory: str, names: Sequence[str]) -> Iterator[bytes | None]:
        return (self.read(f"{directory}/{name}") for name in names)

    def size_of(self, path: str) -> int | None:
        data = self.read(path)
        return None if data is None else len(data)

    def read_from(self, path: str, offset: int, limit: int) -> bytes | None:
        data = self.read(path)
        return None if data is None else data[offset : offset + limit]

    def publish_stream(self, path: str, chunks: Iterable[bytes], tmp: str) -> Published:
        data = b"".join(chunks)
        if self.mishaps.rot and self._random() * self.mishaps.rot < 1:
            at = int(self._random() * len(data))
            self.scheduler.note("  a byte is altered on its way:", f"{path}, offset {at}")
            data = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
        return self.publish(path, data, tmp)

    def publish(self, path: str, data: bytes, tmp: str) -> Published:
        self.scheduler.operations += 1
        prepared, file = self._prepare(tmp, data)

        def link() -> Published:
            self._ask_permission("link", path)
            return self.server.link(path, file)

        try:
            published = self._change("link", path, link)
            self._recall(path)  # the prepared name, which goes now, is of the same file
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
            self._absent.pop(path, None)
        else:
            self._remember_absent(path)
        return published

    def _prepare(self, tmp: str, data: bytes) -> tuple[str, File]:
        if tmp not in self.server.directories:
            self._make_directory(tmp)
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
                self._ask_permission("create", path)
                names[name] = self.server.new(b"")
            return True

        self.scheduler.operations += 1
        done = self._change("create", path, create)
        self._absent.pop(path, None)
        return done

    def append(self, path: str, data: bytes, expected_size: int) -> int:
        """Open, append and close. Who dies meanwhile, or fails, may leave a torn piece behind."""
        self.scheduler.operations += 1
        return self._written(path, self._opened(path, expected_size), data, expected_size)

    def _written(self, path: str, file: File, data: bytes, expected_size: int) -> int:
        """Write by a descriptor and close it: whoever took permissions away since the opening is not asked."""
        may_write = self.uid in (0, OWNER)

        def write() -> int:
            if not may_write and file in self.server.read_only:
                raise Environment("mount-refused", f"append {path}: permission denied", hint="look at owner and mode")
            if len(file.data) == expected_size:  # a request that comes late, and again, writes where it was to write
                self.server.append(file, data)
            return expected_size + len(data)

        def tear() -> None:
            if len(file.data) == expected_size:
                self.server.append(file, data[: int(len(data) * self._random())])

        torn = self._random() < 0.5
        self._recall(path)
        try:
            return self._change("append", path, write, tear)
        except GreenletExit:
            if torn and not self.scheduler.stopping:
                tear()
            raise

    def _opened(self, path: str, expected_size: int) -> File:
        """Open a file to append to it; expected_size 0 makes it."""
        parent, _, name = path.rpartition("/")
        if expected_size and self._hidden(path):
            self.scheduler.step("open to append, from the cache", path)
            raise _absent(path)

        def opened() -> File:
            names = self.server.directories.get(parent)
            if names is None:
                raise _absent(path)
            if expected_size:
                known = names.get(name)
                if known is None:
                    raise _absent(path)
                if known in self.server.read_only and self.uid:
                    raise Environment("mount-refused", f"append {path}: permission denied", hint="look at its mode")
                if len(known.data) != expected_size:
                    raise Environment(SIZE_NOT_EXPECTED, f"{path} has {len(known.data)} bytes, not {expected_size}")
                return known
            if name in names:
                raise Environment(SIZE_NOT_EXPECTED, f"{path} is there already")
            self._ask_permission("create", path)
            file = names[name] = self.server.new(b"")
            return file

        found = self._change("open to append", path, opened)
        self._absent.pop(path, None)
        return found

    def unlink(self, path: str) -> None:
        def remove() -> None:
            self._ask_permission("unlink", path)
            self.server.unlink(path)

        self.scheduler.operations += 1
        self._recall(path)
        self._change("unlink", path, remove)

    def remove_directory(self, path: str) -> bool:
        def remove() -> bool:
            self._ask_permission("rmdir", path)
            return self.server.rmdir(path)

        self.scheduler.operations += 1
        return self._change("rmdir", path, remove)

    def server_clock(self, tmp: str) -> Instant:
        self.scheduler.operations += 1
        self._look("ask the server's clock", tmp)
        return self.scheduler.now + self.server.clock_offset_ns
