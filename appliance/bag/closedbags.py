"""The closed bags of a log and the bytes that their lists promise, wherever these are by now. Checks every byte.

By the order of authority: where a rack is sealed, its seal says which bags exist; else the directories do, and every
name below the horizon is there for good until the rack is sealed.

The files that a list names are in the bag's directory, or in the pack of its rack. A pack appears by link(2), whole,
beside the seal, and only then the directories go, data files first. So a file that is missing is looked for in the
pack, with the rack opened afresh; and a sealed rack that has neither directories nor a pack, though its seal lists
files, was given up by retention: what it held is gone for everybody.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from appliance.formats.framing import Piece, measure
from appliance.formats.paths import LOCK, RETAINED, SEAL, Bag, Grid, Rack
from timeagent.errors import BadRequest, Damaged, TryAgain
from timeagent.units import Instant, rfc3339

from ..formats.closed import PACK, LockEntry, LockFile, PackIndex, PackMaker, RackSeal, open_pack
from .closing import Authority, read_lock
from .logs import hidden, is_there
from .ports import Storage

FILE_MISSING: Final = "file-missing"
PACK_VANISHED: Final = "pack-vanished"

WINDOW_BYTES: Final = 4 * 1024 * 1024
"""How much of a pack is read at a time, so that bags in a row cost few requests."""


class PackedRack:
    """The pack of one rack. Keeps its index and one window of its bytes in memory; no descriptor."""

    def __init__(self, storage: Storage, path: str, index: PackIndex) -> None:
        """Take an index that agrees with the rack's seal."""
        self._storage = storage
        self.path = path
        self.index = index
        self._window = (0, b"")

    def file(self, bag: str, name: str) -> bytes | None:
        """Return a file's bytes, unchecked; None if the pack has no such file, or is gone. Touches the mount."""
        for number in self.index.files_of(bag):
            if self.index.names[number] == name:
                return self.range(int(self.index.offsets[number]), int(self.index.sizes[number]))
        return None

    def range(self, offset: int, length: int) -> bytes | None:
        """Return bytes of the pack; None if it is gone. Reads ahead: the next range is mostly in memory."""
        start, window = self._window
        if not start <= offset <= offset + length <= start + len(window):
            self._window, window = (0, b""), b""  # so that its memory is used again, and not a second window's
            ahead = min(max(length, WINDOW_BYTES), max(length, self.index.index_at - offset))
            found = self._storage.read_from(self.path, offset, ahead)
            if found is None:
                return None
            start, window = self._window = (offset, found)
        return window[offset - start : offset - start + length]


class _Deleted(Exception):
    """The pack went away while it was opened."""


def open_packed(storage: Storage, rack: Rack) -> PackedRack | None:
    """Open the pack of a rack and compare it with the rack's seal; None if there is none. Raises Damaged."""
    seen = storage.look(rack.path, (PACK, SEAL)) or frozenset()
    path = f"{rack.path}/{PACK}"
    size = storage.size_of(path) if PACK in seen else None
    if size is None:
        return None
    raw = storage.read(f"{rack.path}/{SEAL}")
    if raw is None:
        raise Damaged("pack-without-seal", f"{path} is there, and its rack has no seal", hint=_RESTORE_PACK)

    def read_at(offset: int, length: int) -> bytes:
        found = storage.read_from(path, offset, length)
        if found is None:
            raise _Deleted
        return found

    try:
        index = open_pack(read_at, size, path)
    except _Deleted:
        return None  # by retention; a late link may put it there again, which is no news
    maker = PackMaker(raw, f"{rack.path}/{SEAL}")
    wrong = index.disagreement(maker.seal_digest, maker.listed, maker.bags)
    if wrong:
        raise Damaged("pack-disagrees", f"{path} is not the pack of its rack's seal: {wrong}", hint=_RESTORE_PACK)
    return PackedRack(storage, path, index)


def retained(storage: Storage, rack: Rack, seal: RackSeal) -> bool:
    """Whether the files of a sealed rack are gone for good: no pack, and no directory that the seal is about.

    A directory of the same name that somebody made again is void: its lock file, if it has one, is not the one that the
    seal holds. Deliberate deletion and deletion by hand look the same from here. Touches the mount.
    """
    if not seal.lists_files() or any(
        original(storage, f"{rack.path}/{entry.bag}", entry.lock) for entry in seal.entries
    ):
        return False
    # After the directories: a pack appears before they go, so whoever packs meanwhile is not taken for retention.
    return not has_pack(storage, rack)


def has_pack(storage: Storage, rack: Rack) -> bool:
    """Whether a sealed rack has a pack. Raises TryAgain where the mount hides the rack's directory."""
    seen = storage.look(rack.path, (PACK,))
    if seen is None:
        raise hidden(rack.path)
    return bool(seen)


def original(storage: Storage, bag_path: str, lock: bytes | None) -> bool:
    """Whether a bag's directory is the one that the seal is about: the lock file in it is the one in the seal."""
    return lock is not None and bool(storage.look(bag_path, (LOCK,))) and storage.read(f"{bag_path}/{LOCK}") == lock


_RESTORE_PACK: Final = "restore the pack from a copy of the tree; what its rack held cannot be read until then"


_PACKS_KEPT: Final = 2
_RESTORE_FILE: Final = "restore it from a copy of the tree; what this bag held cannot be read until then"


class ListedFiles:
    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._packs: dict[str, PackedRack] = {}

    def is_gone(self, rack: Rack, seal: RackSeal) -> bool:
        """Whether a sealed rack, whose seal lists files, has been given up. Touches the mount; opens a pack."""
        return self._pack(rack) is None and retained(self._storage, rack, seal)

    def pieces(self, bag: Bag, lock: LockFile, only: Container[str] | None = None) -> Iterator[tuple[str, list[Piece]]]:
        """Yield each listed file's name and its whole pieces, in order; of some names ``only``.

        Raises Damaged; TryAgain for a deleted pack.

        One file is in memory at a time; of a pack, the files of the bag.
        """
        if only is not None:
            yield from ((entry.name, self.pieces_of(bag, entry)) for entry in lock.entries if entry.name in only)
            return
        if (pack := self._packs.get(bag.rack.path)) is not None:  # once: another thread may find that it is gone
            yield from self._from_pack(pack, bag, lock.entries)
            return
        found = self._storage.read_each(bag.path, [entry.name for entry in lock.entries])
        for number, (entry, read) in enumerate(zip(lock.entries, found, strict=True)):
            data = self._looked_for(bag, entry) if read is None else read
            if data is None:
                yield from self._from_pack(self._pack_for(bag, entry), bag, lock.entries[number:])
                return
            yield entry.name, _checked(data, entry, f"{bag.path}/{entry.name}")

    def pieces_of(self, bag: Bag, entry: LockEntry) -> list[Piece]:
        """Return the whole pieces of one listed file. Raises Damaged; TryAgain for a deleted pack."""
        data = None
        if bag.rack.path not in self._packs:
            (data,) = self._storage.read_each(bag.path, (entry.name,))
            data = self._looked_for(bag, entry) if data is None else data
        if data is not None:
            return _checked(data, entry, f"{bag.path}/{entry.name}")
        pack = self._pack_for(bag, entry)
        data = pack.file(bag.name, entry.name)
        if data is None:
            raise self._vanished(bag.rack, pack.path)
        return _checked(data, entry, f"{pack.path}, {bag.name}/{entry.name}")

    def _looked_for(self, bag: Bag, entry: LockEntry) -> bytes | None:
        """Read a file that was not there: its absence counts once its directory was looked at."""
        seen = self._storage.look(bag.path, (entry.name,))
        return self._storage.read(f"{bag.path}/{entry.name}") if seen else None

    def _pack_for(self, bag: Bag, entry: LockEntry) -> PackedRack:
        pack = self._pack(bag.rack)
        if pack is None:
            if self._given_up(bag):
                raise self._vanished(bag.rack, f"{bag.rack.path}/{PACK}")
            path = f"{bag.path}/{entry.name}"
            raise Damaged(FILE_MISSING, f"{path} is listed in the lock file and is not there", hint=_RESTORE_FILE)
        return pack

    def _given_up(self, bag: Bag) -> bool:
        """Whether a bag was packed, and its pack deleted, since its files were asked for: hours may lie between."""
        marked = self._storage.look(bag.rack.path, (RETAINED,))
        return bool(marked) and not self._storage.look(bag.path, (LOCK,))

    def _from_pack(
        self, pack: PackedRack, bag: Bag, entries: tuple[LockEntry, ...]
    ) -> Iterator[tuple[str, list[Piece]]]:
        """Yield the files that remain of a bag: they stand end to end, so the pack's window moves over them."""
        if not entries:
            return
        names = pack.index.names
        number = next((n for n in pack.index.files_of(bag.name) if names[n] == entries[0].name), None)
        at = pack.index.index_at if number is None else int(pack.index.offsets[number])
        for entry in entries:
            data = pack.range(at, entry.size)
            if data is None:
                raise self._vanished(bag.rack, pack.path)
            yield entry.name, _checked(data, entry, f"{pack.path}, {bag.name}/{entry.name}")
            at += entry.size

    def _vanished(self, rack: Rack, path: str) -> TryAgain:
        """Forget a pack that agreed with its seal and is not there any more: asked again, the rack is gone."""
        self._packs.pop(rack.path, None)
        return TryAgain(
            PACK_VANISHED,
            f"{path} was deleted while it was read",
            hint="read on from where it stopped: what retention gave up is named then",
        )

    def _pack(self, rack: Rack) -> PackedRack | None:
        """Open the pack of a rack, or return None if there is none. Raises Damaged, also if it is not its seal's."""
        pack = self._packs.get(rack.path)
        if pack is not None:
            return pack
        pack = open_packed(self._storage, rack)
        if pack is None:
            return None
        if len(self._packs) >= _PACKS_KEPT:
            self._packs.pop(next(iter(tuple(self._packs)), ""), None)
        self._packs[rack.path] = pack
        return pack


def _checked(data: bytes, entry: LockEntry, path: str) -> list[Piece]:
    """Return the whole pieces of a listed file. Raises Damaged unless it begins with the bytes that are listed."""
    found, size, digest = measure(data if len(data) == entry.size else data[: entry.size])
    if (size, digest) != (entry.size, entry.digest):
        raise Damaged(
            "file-altered", f"{path} does not hold the {entry.size} bytes that were listed", hint=_RESTORE_FILE
        )
    return found


_ONE_BY_ONE_MAX: Final = 4
"""Up to so many bags are asked for by name; for more of them their rack is listed."""
_RACKS_KEPT: Final = 16


class ClosedBag(msgspec.Struct, frozen=True, gc=False):
    bag: Bag
    lock: LockFile


@dataclass(frozen=True, slots=True)
class RackGone:
    """A stretch of time whose messages were given up by retention: nobody can read them any more."""

    start_ns: Instant
    end_ns: Instant


class Stretches:
    """Stretches of a log that are gone, as a pass meets them."""

    def __init__(self, log: str, *, ok: bool) -> None:
        self._log = log
        self._ok = ok
        self.met: list[RackGone] = []

    def meet(self, stretch: RackGone) -> None:
        """Append a stretch, or lengthen the last one. Raises BadRequest for who asked for what is gone."""
        if not self._ok:
            raise BadRequest(
                "gone",
                f"what {self._log} held from {rfc3339(stretch.start_ns)} to {rfc3339(stretch.end_ns)} was given up",
                hint="read from a later instant on, or say that what is gone may be left out",
            )
        if self.met and self.met[-1].end_ns == stretch.start_ns:
            stretch = RackGone(self.met.pop().start_ns, stretch.end_ns)
        self.met.append(stretch)


class ClosedBags:
    def __init__(self, storage: Storage, grid: Grid, authority: Authority, cluster_id: bytes) -> None:
        self._storage = storage
        self._grid = grid
        self._authority = authority
        self._cluster_id = cluster_id
        self.files = ListedFiles(storage)
        self._known: dict[str, tuple[Instant, Instant, list[Bag]]] = {}
        """By rack two instants, which were below the horizon, and the bags between them that have a directory."""

    def between(self, start: Instant, end: Instant, gone: Stretches) -> Iterator[ClosedBag]:
        """Yield the bags that exist and hold instants in ``[start, end)``, in order. ``end`` is not above the horizon.

        Stretches that are ``gone`` are met there. Raises Environment, TryAgain; Damaged for a bag that was
        closed and has no list. Touches the mount.
        """
        start = max(start, self._grid.first_ns)
        while start < end:
            rack = self._grid.rack(start)
            yield from self._of_rack(rack, start, min(end, rack.end_ns), gone)
            start = rack.end_ns

    def there(self, rack: Rack, start: Instant, end: Instant) -> list[Bag] | RackSeal:
        """Return the bags of a rack that have a directory and hold instants in ``[start, end)``; or the rack's seal.

        The seal is looked for after the listing: only what a seal covers is ever taken away, so without one the listing
        is whole.
        """
        seal = self._authority.sealer.kept(rack)
        if seal is not None:
            return seal
        names = self._storage.list_afresh(rack.path)
        seal = self._authority.sealer.sealed(rack)
        if seal is not None:
            return seal
        if names is None:
            raise hidden(rack.path)
        found = [self._grid.parse_bag(rack, name) for name in names]
        return sorted(bag for bag in found if bag is not None and bag.end_ns > start and bag.start_ns < end)

    def in_seal(self, seal: RackSeal, rack: Rack, start: Instant, end: Instant, gone: Stretches) -> Iterator[ClosedBag]:
        """Yield what a seal says of the bags that hold instants in ``[start, end)``. Raises Damaged."""
        asked = False
        for entry in seal.entries:
            bag = self._grid.parse_bag(rack, entry.bag)
            if bag is None or bag.end_ns <= start or bag.start_ns >= end:
                continue
            lock = read_lock(entry.lock, bag, self._cluster_id).lock
            if lock.entries and not asked:
                asked = True
                if self.files.is_gone(rack, seal):
                    gone.meet(RackGone(max(start, rack.start_ns), min(end, rack.end_ns)))
                    return
            yield ClosedBag(bag, lock)

    def forget(self, rack: Rack) -> None:
        """Ask for the bags of a rack anew: it may have been sealed since, and given up, and then its seal says so."""
        self._known.pop(rack.path, None)

    def _of_rack(self, rack: Rack, start: Instant, end: Instant, gone: Stretches) -> Iterator[ClosedBag]:
        found = self._names(rack, start, end)
        if not isinstance(found, list):
            yield from self.in_seal(found, rack, start, end, gone)
            return
        for bag in found:
            contents = self._authority.read(bag)
            if contents is None:
                if not is_there(self._storage, bag.path):
                    continue
                contents = self._authority.read(bag)
            if contents is None:
                raise Damaged(
                    "lock-missing",
                    f"{bag.path} was closed and has no lock file",
                    hint="restore the bag from a copy of the tree",
                )
            if contents.lock is not None:
                yield ClosedBag(bag, contents.lock)

    def _names(self, rack: Rack, start: Instant, end: Instant) -> list[Bag] | RackSeal:
        """Return the closed bags there, or the seal. What is known is not asked for again: it is there for good."""
        seal = self._authority.sealer.kept(rack)
        if seal is not None:
            return seal
        begin, until, bags = self._known.get(rack.path, (0, 0, []))
        if begin <= start and end <= until:
            return [bag for bag in bags if bag.end_ns > start and bag.start_ns < end]
        span = self._grid.birth.span_ns
        first, last = self._grid.bag(start), self._grid.bag(end - 1)
        if last.start_ns - first.start_ns < _ONE_BY_ONE_MAX * span and self._authority.sealer.sealed(rack) is None:
            return [self._grid.bag(each) for each in range(first.start_ns, end, span)]
        found = self.there(rack, start, end)
        if isinstance(found, list):
            if len(self._known) >= _RACKS_KEPT:
                self._known.pop(next(iter(tuple(self._known))), None)
            self._known[rack.path] = start, end, found
        return found
