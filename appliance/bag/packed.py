"""What is left of a sealed rack: its pack, checked against the seal and read by ranges; or nothing any more.

A pack that is there is whole: it appeared by link(2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from appliance.formats.lockfile import open_lock
from appliance.formats.pack import PACK, PackIndex, PackMaker, open_pack
from appliance.formats.paths import LOCK, SEAL
from timeagent.errors import Damaged

if TYPE_CHECKING:
    from appliance.formats.lockfile import RackSeal
    from appliance.formats.paths import Rack

    from .storage import Storage

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
        raise Damaged("pack-without-seal", f"{path} is there, and its rack has no seal", hint=_RESTORE)

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
        raise Damaged("pack-disagrees", f"{path} is not the pack of its rack's seal: {wrong}", hint=_RESTORE)
    return PackedRack(storage, path, index)


def retained(storage: Storage, rack: Rack, seal: RackSeal) -> bool:
    """Whether the files of a sealed rack are gone for good: no pack, and no directory that the seal is about.

    A directory of the same name that somebody made again is void: its lock file, if it has one, is not the one that the
    seal holds. Deliberate deletion and deletion by hand look the same from here. Touches the mount.
    """
    if not lists_files(seal) or any(
        original(storage, f"{rack.path}/{entry.bag}", entry.lock) for entry in seal.entries
    ):
        return False
    # After the directories: a pack appears before they go, so whoever packs meanwhile is not taken for retention.
    return PACK not in (storage.look(rack.path, (PACK,)) or ())


def original(storage: Storage, bag_path: str, lock: bytes) -> bool:
    """Whether a bag's directory is the one that the seal is about: the lock file in it is the one in the seal."""
    return bool(storage.look(bag_path, (LOCK,))) and storage.read(f"{bag_path}/{LOCK}") == lock


def lists_files(seal: RackSeal) -> bool:
    """Whether a seal lists any file: a rack without files needs no pack."""
    return bool(listed_files(seal))


def listed_files(seal: RackSeal) -> int:
    """Return how many files a seal lists. Raises Damaged."""
    return sum(len(open_lock(entry.lock, f"{seal.rack}/{entry.bag}")[0].entries) for entry in seal.entries)


_RESTORE: Final = "restore the pack from a copy of the tree; what its rack held cannot be read until then"
