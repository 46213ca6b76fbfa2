"""Pack sealed racks, one sequential file each, and delete the packs of old ones (docs/protocol/bag.md).

Any number of packers may pack the same rack at once, each may die at any line, and any of them may begin again:

1. seal     it says what the rack holds; without one nothing is packed, and nothing deleted;
2. pack     every listed file, checked against its list, into one file that appears by link(2); all make the same bytes;
3. verify   the pack that is in place, whoever made it, read back whole and made again from its own data;
4. sweep    only now the bags' directories: data files first, prelock and lock last, then the directory.

``prelock`` and ``seal`` of the rack are never touched: with them nobody can begin an old rack again. A directory that
reappears afterwards, because a writer was stopped for hours, is void; the next turn sweeps it. Files of other people
are left where they are, with their directory.

Only packs are deleted, and only of racks without any bag directory. The rack's directory, its prelock and its seal stay
for ever: with them nobody can begin an old rack again, and readers are told which instants are gone. The mark
``retained`` tells an auditor that it was retention, and not somebody's hand. Two clocks are
asked, one's own and the file server's: what a fast clock deletes does not come back.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from appliance.formats.paths import LOCK, PRELOCK, RETAINED, SEAL, Bag, Grid, Rack
from timeagent.errors import Damaged, Environment
from timeagent.units import DAY, Instant, Span

from ..formats.closed import PACK, PackMaker
from .closedbags import WINDOW_BYTES, PackedRack, has_pack, open_packed, original
from .closing import Sealer
from .logs import racks_there
from .ports import NOT_A_DIRECTORY, PATH_ABSENT, BagContext, Published

_RESTORE: Final = "restore it from a copy of the tree: until then this rack is not packed, and nothing of it is deleted"


class PackState(StrEnum):
    """What is left of a rack."""

    UNSEALED = "unsealed"
    """Not sealed: nothing to pack yet."""
    EMPTY = "empty"
    """Sealed, and nobody wrote to it: there is nothing to pack."""
    PACKED = "packed"
    RETAINED = "retained"
    """Sealed; its pack was deleted."""


@dataclass(frozen=True, slots=True)
class PackReport:
    state: PackState
    made: bool = False
    """Whether this call published the pack."""
    swept: int = 0
    """Directories that this call removed."""
    left: tuple[str, ...] = ()
    """Directories that hold files which are not ours."""


class _Vanished(Exception):
    """A listed file is not there: somebody else has packed the rack, or it is damaged."""


class Packer:
    def __init__(self, context: BagContext, grid: Grid, sealer: Sealer) -> None:
        self._storage = context.storage
        self._grid = grid
        self._sealer = sealer
        self._tmp = context.tmp(grid.birth.log)

    def pack(self, rack: Rack, *, again: bool = False) -> PackReport:
        """Pack a rack if it is sealed, and sweep its directories; say what is left of it.

        Raises Damaged, and deletes nothing, where a listed file or the pack is not what the seal says; Environment.
        Touches the mount: two listings where everything is done, unless the index of the pack that is there is to be
        compared ``again`` with the seal. Memory: the largest file, and the index.
        """
        seal = self._sealer.sealed(rack)
        if seal is None:
            return PackReport(PackState.UNSEALED)
        bags = self._bags_there(rack)
        if not bags and self._has_pack(rack) and (not again or open_packed(self._storage, rack) is not None):
            return PackReport(PackState.PACKED)
        maker = self._maker(rack)
        if not maker.listed:
            return self._sweep(PackState.EMPTY, bags)
        made = False
        if not self._has_pack(rack):
            try:
                made = self._publish(rack, maker)
            except _Vanished as missing:
                # Between two looks retention may delete the pack, and a link that the server is late with may put it
                # there again. Only while a directory stands that the seal is about, a file without a pack is a loss.
                if not self._has_pack(rack):
                    locks = {entry.bag: entry.lock for entry in seal.entries}
                    void = [bag for bag in bags if not original(self._storage, bag.path, locks.get(bag.name))]
                    if len(void) < len(bags):
                        raise Damaged(
                            "file-missing", f"{missing} is listed in the lock file and is not there", hint=_RESTORE
                        ) from None
                    return self._sweep(PackState.RETAINED, void)
        if not self._verified(rack):
            return PackReport(PackState.RETAINED, made)
        return self._sweep(PackState.PACKED, bags, made=made)

    def _maker(self, rack: Rack) -> PackMaker:
        where = f"{rack.path}/{SEAL}"
        raw = self._storage.read(where)
        if raw is None:
            raise Damaged("seal-missing", f"{where} was there and is not", hint=_RESTORE)
        return PackMaker(raw, where)

    def _has_pack(self, rack: Rack) -> bool:
        return has_pack(self._storage, rack)

    def _bags_there(self, rack: Rack) -> list[Bag]:
        """Return the bags that have a directory, whether the seal knows them or not."""
        names = self._storage.list_afresh(rack.path) or ()
        return [bag for name in names if (bag := self._grid.parse_bag(rack, name)) is not None]

    def _publish(self, rack: Rack, maker: PackMaker) -> bool:
        """Make the pack; false if one was there first, which holds the same. Raises _Vanished, Damaged, Environment."""
        path = f"{rack.path}/{PACK}"
        published = self._storage.publish_stream(path, self._bytes(rack, maker), self._tmp)
        if published is Published.ABSENT:
            what = f"{rack.path}, or what was prepared in {self._tmp}, went away before {path} was linked"
            raise Environment(PATH_ABSENT, what, hint="see who deletes there")
        return published is Published.WON

    def _bytes(self, rack: Rack, maker: PackMaker) -> Iterator[bytes]:
        yield maker.head
        for each in maker.listed:
            path = f"{rack.path}/{each.bag}/{each.entry.name}"
            data = self._read(path)
            if data is None:
                raise _Vanished(path)
            listed = data if len(data) == each.entry.size else data[: each.entry.size]
            maker.add(listed)
            yield listed
        yield maker.tail()

    def _read(self, path: str) -> bytes | None:
        data = self._storage.read(path)
        directory, _, name = path.rpartition("/")
        # A look before absence counts: an earlier one may be in this machine's cache.
        return self._storage.read(path) if data is None and self._storage.look(directory, (name,)) else data

    def _verified(self, rack: Rack) -> bool:
        """Read the pack in place back, and make it again; false if it is gone. Raises Damaged where it differs."""
        packed = open_packed(self._storage, rack)
        return packed is not None and verify(packed, self._maker(rack))

    def _sweep(self, state: PackState, bags: list[Bag], *, made: bool = False) -> PackReport:
        left = [bag.path for bag in bags if not self._remove(bag)]
        return PackReport(state, made, len(bags) - len(left), tuple(left))

    def _remove(self, bag: Bag) -> bool:
        """Remove a bag's directory; false if it is none, or if something in it is not ours, or came meanwhile."""
        try:
            names = self._storage.list_afresh(bag.path) or []
        except Environment as problem:
            if problem.code != NOT_A_DIRECTORY:
                raise
            return False
        # Data first: who finds the directory half empty finds its prelock and lock, which send it to the seal.
        for name in self._grid.data_of(names):
            self._storage.unlink(f"{bag.path}/{name}")
        for name in (PRELOCK, LOCK):
            if name in names:
                self._storage.unlink(f"{bag.path}/{name}")
        return self._storage.remove_directory(bag.path)


def verify(packed: PackedRack, maker: PackMaker) -> bool:
    """Whether the pack is there; raise Damaged, naming file and offset, unless it is what the maker makes of its data.

    Reads all of it, in windows.
    """
    index = packed.index
    for number in range(len(maker.listed)):
        data = packed.range(int(index.offsets[number]), int(index.sizes[number]))
        if data is None:
            return False
        maker.add(data)
    expected = ((0, maker.head), (index.index_at, maker.tail()))
    for at, wanted in expected:
        offset = 0
        while offset < len(wanted):
            part = wanted[offset : offset + WINDOW_BYTES]
            found = packed.range(at + offset, len(part))
            if found is None:
                return False
            if found != part:
                raise Damaged("pack-damaged", f"{packed.path}, offset {at + offset}: not what its seal and files make")
            offset += len(part)
    return True


@dataclass(frozen=True, slots=True)
class OldPack:
    rack: Rack
    path: str
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class NotPacked:
    """A rack that is old enough and still has bag directories: pack it first. Nothing of it is deleted."""

    rack: Rack


class Retention:
    def __init__(self, context: BagContext, grid: Grid, keep_ns: Span) -> None:
        """Keep what ended less than ``keep_ns`` ago; at least one day. Touches nothing yet."""
        assert keep_ns >= DAY
        self._storage = context.storage
        self._time = context.time
        self._grid = grid
        self._keep_ns = keep_ns
        self._tmp = context.tmp(grid.birth.log)
        self._done: set[str] = set()
        self._done_ns: Instant = 0
        """Of racks that ended up to here nothing is left to be deleted."""

    def due_ns(self) -> Instant:
        """Return before which instant no rack can be old enough of which anything is left. Touches nothing."""
        return self._grid.rack(max(self._grid.first_ns, self._done_ns)).end_ns + self._keep_ns

    def cutoff(self) -> Instant:
        """Return the instant before which racks must have ended, by both clocks. Raises BadTime. Touches the mount."""
        own = self._time.now().earliest
        return min(own, self._storage.server_clock(self._tmp)) - self._keep_ns

    def old(self, cutoff: Instant) -> Iterator[OldPack | NotPacked]:
        """Yield what is old enough, oldest first. Deletes nothing.

        Touches the mount: a look or two for each rack, once for those before which nothing is left.
        """
        for rack in self._racks_before(cutoff):
            if rack.path in self._done:
                continue
            names = self._storage.list_afresh(rack.path) or []
            if SEAL not in names:
                return  # racks are sealed in order: what follows is not sealed either
            if any(self._grid.parse_bag(rack, name) is not None for name in names):
                yield NotPacked(rack)
                continue
            path = f"{rack.path}/{PACK}"
            size = self._storage.size_of(path) if PACK in names else None
            if size is None:
                # Whatever makes it appear again, a packer that was stopped for hours, is another process's next turn.
                self._done.add(rack.path)
            else:
                yield OldPack(rack, path, size)

    def delete(self, old: OldPack) -> None:
        """Say so in the rack, then delete its pack. Idempotent. Touches the mount."""
        self._storage.ensure_marker(f"{old.rack.path}/{RETAINED}")
        self._storage.unlink(old.path)

    def turn(self, most: int) -> list[OldPack]:
        """Delete at most so many packs; return them. Raises BadTime, Environment."""
        deleted = []
        for each in self.old(self.cutoff()):
            if isinstance(each, OldPack):
                self.delete(each)
                deleted.append(each)
            if len(deleted) >= most:
                break
        return deleted

    def _racks_before(self, cutoff: Instant) -> list[Rack]:
        """Return the racks that are old enough, without the first ones of which nothing is left."""
        found = sorted(r for r in racks_there(self._storage, self._grid, self._done_ns) if r.end_ns <= cutoff)
        for rack in itertools.takewhile(lambda rack: rack.path in self._done, found):
            self._done.discard(rack.path)
            self._done_ns = rack.end_ns
        return [rack for rack in found if rack.end_ns > self._done_ns]
