"""Sealed racks: whether each seal is there, and whether a pack is what its seal makes.

Every rack from a log's birth on is sealed, in order, whether anybody wrote to it or not. A rack without a seal that is
older than a sealed one has therefore lost it; so has one without a directory. Where everything stands in a pack follows
from the seal alone, so that a damaged head or index costs no message: each file is judged by its own digest, and head
and index are made again from the files and compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from appliance.formats.framing import Piece, piece_at
from appliance.formats.lockfile import LockEntry, RackSeal, open_lock
from appliance.formats.pack import HEAD_BYTES_MAX, PACK, PackHead, PackMaker, open_pack
from appliance.formats.paths import LOCK, SEAL, Grid, Rack
from timeagent.canonical import decode
from timeagent.errors import Damaged
from timeagent.signedtime import SignedTime

from ..evidence.tree import PIECE_BYTES_MAX, RackListing, Tree
from .finding import Evidence, Finding, Verdict, found


@dataclass(frozen=True, slots=True)
class SealFacts:
    """A rack's seal, read."""

    locks: dict[str, bytes]
    where: Evidence
    token: SignedTime | None
    raw: bytes
    """All bytes of its file."""

    def lists_files(self) -> bool:
        """Whether it lists any file: a rack without files is swept without a pack."""
        return any(open_lock(raw, self.where.path)[0].entries for raw in self.locks.values())


class SealOrder:
    """The racks of one log as they are walked, oldest first."""

    def __init__(self, tree: Tree, grid: Grid) -> None:
        """Expect the rack that the log was born in."""
        self._tree = tree
        self._grid = grid
        self._expected = grid.rack(grid.first_ns)
        self._open: list[tuple[Rack, Rack | None]] = []
        """Since the last sealed rack: one without a seal, or the first of a stretch that is not there and its end."""

    def take(self, rack: Rack, seal: Evidence | None, *, has_seal: bool) -> Iterator[Finding]:
        """Take the next rack. ``seal``: where its seal is, if it holds; ``has_seal``: whether there is a file."""
        if rack.start_ns < self._expected.start_ns:
            return
        if rack.start_ns > self._expected.start_ns:
            self._open.append((self._expected, rack))
        if not has_seal and rack.path not in self._tree.unreadable:
            self._open.append((rack, None))
        self._expected = self._grid.next_rack(rack)
        if seal is None:
            return
        for first, end in self._open:
            # Looked at again: in a tree that is still written to it may have been sealed meanwhile.
            sealed = any(name == SEAL for name, _ in self._tree.names(first.path))
            if not sealed and not self._tree.hides(first.path):
                yield _missing(first, end, rack, seal)
        self._open.clear()


def _missing(first: Rack, end: Rack | None, sealed: Rack, seal: Evidence) -> Finding:
    """lost-file: indeterminate, because a copy may have passed by before the racks were sealed."""
    path = f"{first.path}/{SEAL}"
    what = f"{first.path} has no seal" if end is None else f"the racks from {first.path} up to {end.path} are not there"
    reason = (
        f"{what}, and {sealed.path} has one; racks are sealed in order. It was taken out, or the copy was made while "
        "they were being sealed"
    )
    title = "the seal of a rack is missing" if end is None else "sealed racks are missing"
    return found("lost-file", path, reason, [Evidence(path), seal], verdict=Verdict.INDETERMINATE, title=title)


def damaged_inside(seal: RackSeal) -> str | None:
    """Return what is wrong with the lock files in a seal, or None."""
    for entry in seal.entries:
        try:
            open_lock(entry.lock, f"the lock file of {entry.bag} in the seal")
        except Damaged as problem:
            return problem.message
    return None


def first_unlisted(grid: Grid, rack: Rack, locks: Mapping[str, bytes]) -> int | None:
    """Return where the first bag of a sealed rack begins that its seal does not list; None where it lists all."""
    start = max(rack.start_ns, grid.first_ns)
    while start < rack.end_ns:
        bag = grid.bag(start)
        if bag.name not in locks:
            return start
        start = bag.end_ns
    return None


class RackPack:
    def __init__(self, tree: Tree, listing: RackListing, seal_raw: bytes, *, hashed: bool = True) -> None:
        """Take the bytes of a seal that holds. Touches nothing yet. ``hashed``: hash all files, and check the index."""
        self._tree = tree
        self.path = f"{listing.rack.path}/{PACK}"
        self._maker = PackMaker(seal_raw, f"{listing.rack.path}/{SEAL}")
        self._at: dict[tuple[str, str], tuple[int, int]] = {}
        offset = len(self._maker.head)
        for number, each in enumerate(self._maker.listed):
            self._at[each.bag, each.entry.name] = (number, offset)
            offset += each.entry.size
        self._index_at = offset
        self._taken = 0
        self._whole = hashed

    def misplaced(self) -> str | None:
        """Return why the pack is not that of the rack's seal, or None: it is, or its head cannot be read."""
        piece = piece_at(self._tree.read(self.path, HEAD_BYTES_MAX) or b"", 0)
        if not isinstance(piece, Piece):
            return None
        own = piece_at(self._maker.head, 0)
        assert isinstance(own, Piece)
        try:
            head, wanted = decode(PackHead, piece.payload, self.path), decode(PackHead, own.payload, self.path)
        except Damaged:
            return None
        if head == wanted:
            return None
        if (head.cluster_id, head.log, head.rack) != (wanted.cluster_id, wanted.log, wanted.rack):
            return f"{self.path} is the pack of {head.rack} of cluster {head.cluster_id.hex()}"
        return (
            f"{self.path} was made from the seal with SHA-256 {head.seal_digest.hex()}; "
            f"the rack's seal has {wanted.seal_digest.hex()}"
        )

    def file(self, bag: str, entry: LockEntry) -> tuple[int, bytes]:
        """Return where a listed file stands and its bytes, fewer where the pack ends. Ask in the order of the seal."""
        number, offset = self._at[bag, entry.name]
        data = self._tree.read_range(self.path, offset, entry.size) or b""
        try:
            if number == self._taken and self._whole:
                self._maker.add(data)
                self._taken += 1
            else:
                self._whole = False
        except Damaged:
            self._whole = False
        return offset, data

    def findings(self, seal: Evidence) -> Iterator[Finding]:
        """damaged-pack: head, index or end are not what the files make. Call it when all files were asked for."""
        size = self._tree.size(self.path)
        head = self._maker.head
        parts = [(0, head)]
        if self._whole and self._taken == len(self._maker.listed):
            parts.append((self._index_at, self._maker.tail()))
        for at, wanted in parts:
            data = self._tree.read_range(self.path, at, len(wanted)) or b""
            if data != wanted:
                differs = next((n for n, (a, b) in enumerate(zip(data, wanted, strict=False)) if a != b), len(data))
                what = "head" if at == 0 else "index"
                reason = f"{self.path}, offset {at + differs}: the {what} is not what its seal and files make"
                yield found("damaged-pack", self.path, reason, [Evidence(self.path, at, len(data)), seal])
                return
        end = parts[-1][0] + len(parts[-1][1])
        if len(parts) == len((head, b"tail")) and size > end:
            reason = f"{self.path}, offset {end}: {size - end} bytes too many"
            yield found("damaged-pack", self.path, reason, [Evidence(self.path, end, size - end), seal])


def retained_files(tree: Tree, listing: RackListing, locks: Mapping[str, bytes]) -> list[str] | None:
    """Return the paths of all that a sealed rack listed, if all of it is gone as retention leaves it; else None.

    Retention deletes a pack, after the bags' directories went. A directory that somebody made again is void: its lock
    file is not the one that the seal holds. Deletion by hand leaves the same behind.
    """
    there = {each.bag.name: each for each in listing.bags if each.bag.name in locks}
    opened = {name: open_lock(raw, name)[0] for name, raw in locks.items()}
    files = [f"{listing.rack.path}/{name}/{entry.name}" for name, lock in opened.items() for entry in lock.entries]
    # With the mark all of them may have come back: each of several stalled writers makes its own directory again.
    if not files or (len(there) == len(locks) and not listing.retained):
        return None
    for name, each in there.items():
        path = f"{each.bag.path}/{LOCK}"
        if each.locked and tree.read(path, PIECE_BYTES_MAX + 1) == locks[name]:
            return None
    return files


def packed_names(tree: Tree, path: str) -> tuple[str, ...]:
    """Return the names of the files in a pack by its own index; none where it cannot be read."""
    try:
        return open_pack(lambda at, length: tree.read_range(path, at, length), tree.size(path), path).names
    except Damaged:
        return ()
