"""Where the files that a list names are: in the bag's directory, or in the pack of its rack. Checks every byte.

A pack appears by link(2) beside the seal, and only then the directories go, data files first. So a file that is
missing is looked for in the pack, with the rack opened afresh; and a sealed rack that has neither directories nor a
pack, though its seal lists files, was given up by retention: what it held is gone for everybody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from appliance.formats.framing import pieces_with_digest
from appliance.formats.pack import PACK, open_pack
from timeagent.errors import Damaged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from appliance.formats.framing import Piece
    from appliance.formats.lockfile import LockEntry, LockFile
    from appliance.formats.pack import PackIndex
    from appliance.formats.paths import Bag, Grid, Rack

    from .storage import Storage

_PACKS_KEPT: Final = 4
_RESTORE: Final = "restore it from a copy of the tree; what this bag held cannot be read until then"


class ListedFiles:
    """Opens the listed files of one log's closed bags."""

    def __init__(self, storage: Storage, grid: Grid, cluster_id: bytes) -> None:
        """Touch nothing yet."""
        self._storage = storage
        self._grid = grid
        self._cluster_id = cluster_id
        self._packs: dict[str, PackIndex] = {}

    def is_gone(self, rack: Rack) -> bool:
        """Whether a sealed rack, whose seal lists files, has been given up. Touches the mount; opens a pack."""
        if rack.path in self._packs:
            return False
        names = self._storage.list_afresh(rack.path) or ()
        if PACK not in names and any(self._grid.parse_bag(rack, name) is not None for name in names):
            return False
        # The listing is not one instant: a pack may have appeared in its course, and the directories vanished.
        return self._pack(rack) is None

    def pieces(self, bag: Bag, lock: LockFile) -> Iterator[tuple[str, list[Piece]]]:
        """Yield each listed file's name and its whole pieces, in order. Raises Damaged.

        One file is in memory at a time; of a pack, the files of the bag.
        """
        if bag.rack.path in self._packs:
            yield from self._from_pack(self._packs[bag.rack.path], bag, lock.entries)
            return
        for number, entry in enumerate(lock.entries):
            path = f"{bag.path}/{entry.name}"
            data = self._storage.read(path)
            if data is None and self._storage.look(bag.path, (entry.name,)):
                data = self._storage.read(path)
            if data is None:
                pack = self._pack(bag.rack)
                if pack is None:
                    raise Damaged("file-missing", f"{path} is listed in the lock file and is not there", hint=_RESTORE)
                yield from self._from_pack(pack, bag, lock.entries[number:])
                return
            yield entry.name, _checked(data, entry, path)

    def _from_pack(
        self, pack: PackIndex, bag: Bag, entries: tuple[LockEntry, ...]
    ) -> Iterator[tuple[str, list[Piece]]]:
        """Yield the files that remain of a bag: they stand end to end, and are read at once."""
        if not entries:
            return
        path = f"{bag.rack.path}/{PACK}"
        number = next((n for n in pack.files_of(bag.name) if pack.names[n] == entries[0].name), None)
        offset = pack.index_at if number is None else int(pack.offsets[number])
        data = self._storage.read_from(path, offset, sum(entry.size for entry in entries)) or b""
        at = 0
        for entry in entries:
            yield entry.name, _checked(data[at : at + entry.size], entry, f"{path}, {bag.name}/{entry.name}")
            at += entry.size

    def _pack(self, rack: Rack) -> PackIndex | None:
        """Open the pack of a rack, or return None if there is none. Raises Damaged."""
        path = f"{rack.path}/{PACK}"
        size = self._storage.size_of(path) if self._storage.look(rack.path, (PACK,)) else None
        if size is None:
            return None
        pack = open_pack(lambda offset, length: self._storage.read_from(path, offset, length), size, path)
        if (pack.head.cluster_id, pack.head.log, pack.head.rack) != (self._cluster_id, rack.log, rack.path):
            raise Damaged("pack-misplaced", f"{path} is the pack of {pack.head.rack}", hint=_RESTORE)
        if len(self._packs) >= _PACKS_KEPT:
            self._packs.pop(next(iter(self._packs)))
        self._packs[rack.path] = pack
        return pack


def _checked(data: bytes, entry: LockEntry, path: str) -> list[Piece]:
    """Return the whole pieces of a listed file. Raises Damaged unless it begins with the bytes that are listed."""
    listed = data if len(data) == entry.size else data[: entry.size]
    found, digest = pieces_with_digest(listed)
    if len(listed) != entry.size or digest != entry.digest:
        raise Damaged("file-altered", f"{path} does not hold the {entry.size} bytes that were listed", hint=_RESTORE)
    return found
