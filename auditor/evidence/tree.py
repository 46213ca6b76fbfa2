r"""Evidence from a copy of a tree: read-only, in a fixed order, one file at a time. Judges nothing.

Opens regular files only and follows no link below the root: a copy is data, and must not be able to make the audit
read, or wait for, anything else. What cannot be read is remembered, never skipped in silence.

File names as text: a name is any bytes, and everything that leaves the tree is UTF-8. Inside the auditor a path is
text that can be encoded, stored and shown (control characters: ``console.printable``). Bytes of a name that are no
UTF-8 stand in it as ``\xff``; where a name holds such characters itself, the backslash of them is written
``\x5c``. So two names never have one text, and each text leads back to its name.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from appliance.formats.closed import PACK
from appliance.formats.framing import (
    CHECKSUM_BYTES,
    HEADER_BYTES,
    OVERHEAD_BYTES,
    PAYLOAD_BYTES_MAX,
    PIECE_BYTES_MAX,
    SEAL_BYTES_MAX,
    Kind,
    Piece,
    pack,
    piece_at,
)
from appliance.formats.paths import (
    LOCK,
    LOGS,
    PRELOCK,
    RETAINED,
    SEAL,
    TMP,
    Bag,
    Grid,
    Rack,
    parse_ledger_name,
    parse_record_name,
)

_AMBIGUOUS: Final = re.compile(rb"\\(?=x(?:[89a-f][0-9a-f]|5c))")
_WRITTEN: Final = re.compile(rb"\\x([89a-f][0-9a-f]|5c)")


def _plain(name: str) -> bool:
    return name.isascii() and "\\" not in name


def text_of(name: str) -> str:
    """Return the text of a name, or of a path, as the operating system gave it."""
    return name if _plain(name) else text_of_bytes(os.fsencode(name))


def text_of_bytes(name: bytes) -> str:
    """Return the text of a name, or of a path, as it is stored."""
    return _AMBIGUOUS.sub(rb"\\x5c", name).decode("utf-8", "backslashreplace")


def name_of(text: str) -> str:
    """Return what the operating system calls it."""
    if _plain(text):
        return text
    return os.fsdecode(_WRITTEN.sub(lambda found: bytes([int(found[1], 16)]), text.encode()))


WINDOW_BYTES: Final = 1024 * 1024
DEPTH_MAX: Final = 3
"""Days, racks and bags below a log."""
LEVELS_MAX: Final = 16
"""Nothing of ours lies deeper: what does is not looked at, and a path of a million parts costs no more than another."""
READ_BYTES_MAX: Final = 4 * 1024**3
"""So much is read at once, and no more: a file with holes may state any size."""
SEAL_FILE_BYTES_MAX: Final = SEAL_BYTES_MAX + OVERHEAD_BYTES
TAIL_ENDS_MAX: Final = 64
"""So many places are tried where a torn block might end."""
PAGE_BYTES: Final = 4096
"""What machines send to a file server is whole pages, but for the first and the last of an append."""
_NOTHING: Final = bytes(PAGE_BYTES)
_TEMPLATE: Final = pack(Kind.LEDGER, b"")[:8]
_MAGIC: Final = _TEMPLATE[:4]
OF_A_RACK: Final = frozenset({PRELOCK, SEAL, PACK, RETAINED})
"""Files that stand in a rack's directory."""
TOPS: Final = frozenset({LOGS, "ledger", "shards", "policy", "trust", "map"})
"""A directory with one of these is taken for a part of a tree, also without a marker."""
_ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR})
NOT_REGULAR: Final = "it is not a regular file"
LINK: Final = "it is a link: none is followed"


def is_hidden(name: str) -> bool:
    """Whether a name is one that NFS clients and copying leave behind: nobody asks what it is."""
    return name.startswith(".")


def foreign_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that somebody put there, sorted. Hidden ones are left by NFS clients and by copying."""
    return tuple(sorted(name for name in names if not is_hidden(name)))


class Tail(Enum):
    """What the rest of a file is, where no whole piece begins."""

    TORN = "torn"
    """The beginning of one piece: an append that was cut short. Innocent."""
    ALTERED = "altered"
    """Bytes that no append leaves behind."""
    UNCLEAR = "unclear"
    """Zeros, to the end or over whole pages: a crash of the file server or of who appended, or somebody's hand."""


@dataclass(frozen=True, slots=True)
class Rest:
    """Where the whole pieces of a file end, and why."""

    offset: int
    length: int
    reason: str
    tail: Tail


@dataclass(frozen=True, slots=True)
class ChainFile:
    map_number: int
    shard: int
    number: int
    path: str


@dataclass(frozen=True, slots=True)
class LedgerFile:
    """A ledger file of one run of a shard, by its name."""

    map_number: int
    shard: int
    incarnation: bytes
    number: int
    path: str


@dataclass(frozen=True, slots=True)
class BagListing:
    """A bag's directory as it is in the copy."""

    bag: Bag
    files: tuple[str, ...]
    """Names of the data files in it, sorted."""
    locked: bool
    begun: bool = True
    """Whether there is a prelock."""
    foreign: tuple[str, ...] = ()
    """Names of files in it that are nobody's."""


@dataclass(frozen=True, slots=True)
class RackListing:
    """A rack's directory as it is in the copy."""

    rack: Rack
    sealed: bool
    packed: bool
    bags: tuple[BagListing, ...]
    off_grid: tuple[str, ...]
    """Paths of directories in it that are no bags."""
    begun: bool = True
    """Whether there is a prelock."""
    retained: bool = False
    """Whether retention says that it deleted the pack."""
    pack_directory: bool = False
    """Whether a directory stands in the place of the pack."""
    foreign: tuple[str, ...] = ()
    """Names of files in it that are nobody's."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A file that is open: where its bytes stand in the descriptor's, and how many they were when it was opened."""

    descriptor: int
    base: int
    size: int

    def read(self, offset: int, length: int) -> bytes:
        """Return at most so many bytes from an offset in the file. Raises OSError, also where it has fewer by now."""
        length = min(length, self.size - offset)
        parts = []
        while length > 0:
            part = os.pread(self.descriptor, length, self.base + offset)
            if not part:
                raise OSError(errno.EIO, "it became shorter while it was read")
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        os.close(self.descriptor)


def open_at(path: Path, base: int, size: int) -> Opened:
    """Open a range of a file. Raises OSError."""
    return Opened(os.open(path, os.O_RDONLY | os.O_CLOEXEC), base, size)


class Unreadable(dict[str, str]):
    """What could not be read, by path, and why."""

    def __init__(self) -> None:
        super().__init__()
        self.inside: dict[str, list[str]] = {}
        """The paths by the directory that they are right in."""

    def __setitem__(self, path: str, why: str) -> None:
        if path not in self:
            self.inside.setdefault(path.rpartition("/")[0], []).append(path)
        super().__setitem__(path, why)

    def clear(self) -> None:
        super().clear()
        self.inside.clear()


class Tree:
    """A copy of a cluster's root. Paths are relative to it, with forward slashes, and text: ``filenames``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.said = ""
        """Where it is, if that is not the root."""
        self.inside = ""
        """Of a tree in a file: the directory in there that is its root."""
        self._at = f"{root}/"
        """What paths stand behind: a text, because to make a Path takes as long as to open a file."""
        self.unreadable = Unreadable()

    def hides(self, path: str) -> bool:
        """Whether a file, or a directory that it would be in, could not be read: then its absence is none."""
        levels = path.split("/", LEVELS_MAX)  # somebody may list a name of millions of slashes
        return path in self.unreadable or any(
            "/".join(levels[:count]) in self.unreadable for count in range(1, len(levels))
        )

    def _cannot(self, path: str, why: str) -> None:
        """Remember why something cannot be read, unless that is known."""
        if path not in self.unreadable:
            self.unreadable[path] = why

    def barred(self, directory: str) -> list[str]:
        """Return the paths that could not be read of a directory and of what is right in it, as far as it was asked."""
        there = self.unreadable
        return sorted({*there.inside.get(directory, ()), *((directory,) if directory in there else ())})

    def names(self, directory: str) -> list[tuple[str, bool]]:
        """Return the names in a directory and whether each is a directory, sorted. Nothing where there is none."""
        found: list[tuple[str, bool]] = []
        try:
            with self._scanned(directory) as entries:
                for entry in entries:
                    name, is_directory = text_of(entry.name), entry.is_dir(follow_symlinks=False)
                    found.append((name, is_directory))
                    if not is_directory and not entry.is_file(follow_symlinks=False) and not is_hidden(name):
                        why = LINK if entry.is_symlink() else NOT_REGULAR
                        self._cannot(f"{directory}/{name}" if directory else name, why)
        except OSError as problem:
            if problem.errno not in _ABSENT:
                self.unreadable[directory] = str(problem.strerror)
            elif os.path.islink(self._at + name_of(directory)):
                self.unreadable[directory] = LINK
            return []
        return sorted(found)

    def _place(self, path: str) -> str:
        """Return where a path is. Raises OSError for one that no tree has, as a made-up record may say."""
        if "\0" in path or ".." in path.split("/"):
            raise FileNotFoundError(errno.ENOENT, "it does not lead to a file of a tree")
        return self._at + name_of(path)

    @contextmanager
    def _scanned(self, directory: str) -> Iterator[Iterator[os.DirEntry[str]]]:
        """Yield what is in a directory that is not reached by a link. Raises OSError."""
        if not directory:  # the root is where the caller says, be it by a link
            with os.scandir(self._at) as entries:
                yield entries
            return
        opened = os.open(self._place(directory), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            with os.scandir(opened) as entries:
                yield entries
        finally:
            os.close(opened)

    def read(self, path: str, limit: int = -1) -> bytes | None:
        """Return a file's bytes, or None where there is no file that can be read."""
        return self.read_range(path, 0, limit)

    def read_range(self, path: str, offset: int, length: int) -> bytes | None:
        """Return at most so many bytes (-1: all) of a file from an offset, or None where none can be read."""
        opened = self.open_file(path)
        if opened is None:
            return None
        length = opened.size if length < 0 else length
        try:
            if min(length, opened.size - offset) > READ_BYTES_MAX:
                self.unreadable[path] = f"{min(length, opened.size - offset)} bytes of it are too many to read at once"
                return None
            return opened.read(offset, length)
        except OSError as problem:
            self.unreadable[path] = str(problem.strerror)
            return None
        finally:
            opened.close()

    def size(self, path: str) -> int:
        """Return a file's size in bytes; 0 where there is no file that can be read."""
        opened = self.open_file(path)
        if opened is None:
            return 0
        opened.close()
        return opened.size

    def identity(self, path: str) -> str:
        """Return what tells whether a file is still the one that it was, short of reading it."""
        try:
            found = os.lstat(self._at + name_of(path))
        except OSError as problem:
            return str(problem.strerror)
        return f"{found.st_size} {found.st_dev} {found.st_ino} {found.st_mtime_ns} {found.st_ctime_ns}"

    def pieces(self, path: str) -> Iterator[Piece | Rest]:
        """Yield the whole pieces of a file, their offsets in the file, and at last what is left over, if anything."""
        opened = self.open_file(path)
        if opened is None:
            return
        try:
            yield from _pieces(opened)
        except OSError as problem:
            self.unreadable[path] = str(problem.strerror)
        finally:
            opened.close()

    def files_below(self, directory: str) -> Iterator[str]:
        """Yield the paths of all files in and below a directory, as deep as bags lie."""
        return (path for path in self.below(directory) if not path.endswith("/"))

    def below(self, directory: str) -> Iterator[str]:
        """Yield the paths of all that is in and below a directory, as deep as bags lie; of directories with a slash."""
        waiting = [(directory, 0)]
        while waiting:
            place, depth = waiting.pop()
            for name, is_directory in self.names(place):
                yield f"{place}/{name}/" if is_directory else f"{place}/{name}"
                if is_directory and depth < DEPTH_MAX:
                    waiting.append((f"{place}/{name}", depth + 1))

    def numbered(self, directory: str) -> Iterator[tuple[int, str]]:
        """Yield number and path of each numbered record in a directory, in order of name."""
        for name, _ in self.names(directory):  # a directory that is called so cannot be read, and that is said
            number = parse_record_name(name)
            if number is not None:
                yield number, f"{directory}/{name}"

    def chains(self) -> Iterator[ChainFile]:
        for map_number, shard, directory in self._shards("shards"):
            for number, path in self.numbered(directory):
                yield ChainFile(map_number, shard, number, path)

    def ledgers(self) -> Iterator[LedgerFile]:
        """Yield every ledger file, those of one run in the order in which they were written."""
        for map_number, shard, directory in self._shards("ledger"):
            found: list[LedgerFile] = []
            for name, _ in self.names(directory):
                if name.endswith(".ledger"):
                    incarnation, number = parse_ledger_name(name) or (b"", 0)
                    found.append(LedgerFile(map_number, shard, incarnation, number, f"{directory}/{name}"))
            yield from sorted(found, key=lambda file: (file.incarnation, file.number))

    def logs(self) -> list[str]:
        return [name for name, is_directory in self.names(LOGS) if is_directory]

    def rack_places(self, grid: Grid) -> Iterator[Rack | str]:
        """Yield a log's racks in order of time, unread; the path of each directory that is no rack."""
        for day, is_directory in self.names(grid.log_path):
            if not is_directory or day == TMP:
                continue
            inner = [name for name, is_inner in self.names(f"{grid.log_path}/{day}") if is_inner]
            racks = [(name, grid.parse_rack(day, name)) for name in inner]
            if not any(rack for _, rack in racks):
                if not self.barred(f"{grid.log_path}/{day}"):
                    yield f"{grid.log_path}/{day}"
                continue
            for name, rack in racks:
                yield f"{grid.log_path}/{day}/{name}" if rack is None else rack

    def listing(self, grid: Grid, rack: Rack) -> RackListing:
        entries = self.names(rack.path)
        files = {name for name, is_directory in entries if not is_directory or name in OF_A_RACK - {PACK}}
        bags, off_grid, pack_directory = [], [], False
        for name in (name for name, is_directory in entries if is_directory):
            bag = grid.parse_bag(rack, name)
            if bag is not None:
                bags.append(self._bag(grid, bag))
            elif name == PACK:
                pack_directory = True
            elif name not in files:
                off_grid.append(f"{rack.path}/{name}")
        bags.sort(key=lambda listing: listing.bag.start_ns)
        return RackListing(
            rack,
            sealed=SEAL in files,
            packed=PACK in files,
            bags=tuple(bags),
            off_grid=tuple(off_grid),
            begun=PRELOCK in files,
            retained=RETAINED in files,
            pack_directory=pack_directory,
            foreign=self._foreign(rack.path, files - OF_A_RACK),
        )

    def _bag(self, grid: Grid, bag: Bag) -> BagListing:
        entries = self.names(bag.path)
        # A directory under the name of a file stands in its place: that it cannot be read is said when it is.
        ours = {name for name, _ in entries if name in (PRELOCK, LOCK) or grid.data_name(name)}
        files = tuple(sorted(ours.difference((PRELOCK, LOCK))))
        foreign = self._foreign(bag.path, {name for name, is_directory in entries if not is_directory} - ours)
        return BagListing(bag, files, LOCK in ours, PRELOCK in ours, foreign)

    def _foreign(self, directory: str, names: set[str]) -> tuple[str, ...]:
        """Return the names of nobody's files; of what cannot be read something else is said."""
        return foreign_names(name for name in names if f"{directory}/{name}" not in self.unreadable)

    def _shards(self, top: str) -> Iterator[tuple[int, int, str]]:
        for map_name, is_map in self.names(top):
            map_number = parse_record_name(map_name)
            if not is_map or map_number is None:
                continue
            for name, is_directory in self.names(f"{top}/{map_name}"):
                if is_directory and name.isascii() and name.isdecimal() and f"{int(name[:20]):04d}" == name:
                    yield map_number, int(name), f"{top}/{map_name}/{name}"

    def open_file(self, path: str) -> Opened | None:
        """Return an open file, or None where there is no file that can be read."""
        try:
            descriptor = os.open(self._place(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as problem:
            if problem.errno not in _ABSENT:
                self.unreadable[path] = LINK if problem.errno == errno.ELOOP else str(problem.strerror)
            return None
        try:
            found, why = os.fstat(descriptor), NOT_REGULAR
            if stat.S_ISREG(found.st_mode):
                return Opened(descriptor, 0, found.st_size)
        except OSError as problem:
            why = str(problem.strerror)
        os.close(descriptor)
        self.unreadable[path] = why
        return None


class ListedTree(Tree):
    """A tree of which all names are known from the beginning."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._children: dict[str, dict[str, bool]] = {"": {}}
        """By directory the names in it, and whether each is a directory."""

    def _add(self, name: str, *, is_directory: bool) -> None:
        """Add a file or a directory, and the directories that it is in. What was added last counts."""
        if is_directory:
            self._children.setdefault(name, {})
        while name:
            parent, _, last = name.rpartition("/")
            inside = self._children.setdefault(parent, {})
            known = last in inside
            inside[last] = is_directory
            if known:
                return
            name, is_directory = parent, True

    def names(self, directory: str) -> list[tuple[str, bool]]:
        return sorted(self._children.get(directory, {}).items())


def _pieces(opened: Opened) -> Iterator[Piece | Rest]:
    size = opened.size
    start = 0
    window = opened.read(0, WINDOW_BYTES)
    offset = 0
    while start + offset < size:
        piece = piece_at(window, offset)
        if isinstance(piece, Piece):
            yield msgspec.structs.replace(piece, offset=start + piece.offset, end=start + piece.end)
            offset = piece.end
            continue
        reaches_end = start + len(window) >= size
        if not reaches_end and (offset or len(window) < PIECE_BYTES_MAX):
            start += offset
            window = opened.read(start, WINDOW_BYTES if offset else PIECE_BYTES_MAX)
            offset = 0
            continue
        tail = tail_of(window[offset:], start + offset) if reaches_end else Tail.ALTERED
        yield Rest(start + offset, size - start - offset, piece, tail)
        return


def tail_of(rest: bytes, at: int = 0) -> Tail:
    """Say what the bytes are that follow the last whole piece of a ledger, at an offset in its file.

    An append that was cut short leaves the beginning of one piece. A piece that has all of its bytes but does not check
    was altered; so was one whose length field alone says that bytes are missing: with the length that it has, and the
    header that this would have had, its checksum matches.
    """
    if not any(rest) or _has_hole(rest, at):
        return Tail.UNCLEAR
    if rest[:8] != _TEMPLATE[: len(rest)]:
        return Tail.ALTERED
    if len(rest) < HEADER_BYTES:
        return Tail.TORN
    length = int.from_bytes(rest[8:HEADER_BYTES], "big")
    if length > PAYLOAD_BYTES_MAX or length + OVERHEAD_BYTES <= len(rest):
        return Tail.ALTERED
    ends = [len(rest)]
    position = rest.find(_MAGIC, 1)
    while position >= 0:
        if len(ends) >= TAIL_ENDS_MAX:  # each costs a digest of all before it, and no torn block looks like that
            return Tail.ALTERED
        piece = piece_at(rest, position)
        if isinstance(piece, Piece) and piece.kind is Kind.LEDGER:  # a block may hold a copy of a ceiling record
            return Tail.ALTERED
        ends.append(position)
        position = rest.find(_MAGIC, position + 1)
    return Tail.ALTERED if any(_whole_but_for_length(rest[:end]) for end in ends) else Tail.TORN


def _has_hole(rest: bytes, at: int) -> bool:
    """Whether the first piece lacks whole pages of its file: zeros are where a request of its append never arrived.

    A large append goes to a file server in several requests, in any order. The first may begin within a page.
    """
    first = -at % PAGE_BYTES
    if first and not any(rest[:first]):
        return True
    pages = range(first, len(rest) - PAGE_BYTES + 1, PAGE_BYTES)
    hole = next((page for page in pages if rest.startswith(_NOTHING, page)), None)
    if hole is None or rest[: min(hole, 8)] != _TEMPLATE[:hole]:
        return False
    return hole < HEADER_BYTES or hole < int.from_bytes(rest[8:HEADER_BYTES], "big") + OVERHEAD_BYTES


def _whole_but_for_length(data: bytes) -> bool:
    payload = len(data) - OVERHEAD_BYTES
    if payload < 0:
        return False
    head = data[:8] + payload.to_bytes(4, "big")
    body = data[HEADER_BYTES : len(data) - CHECKSUM_BYTES]
    return sha256(head + body).digest()[:CHECKSUM_BYTES] == data[-CHECKSUM_BYTES:]
