"""The closed bags of a log and the bytes that their lists promise, wherever these are by now.

By the order of authority: where a rack is sealed, its seal says which bags exist; else the directories do, and every
name below the horizon is there for good until the rack is sealed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from appliance.formats.framing import pieces_with_digest
from timeagent.errors import Damaged

from .closer import read_lock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from appliance.formats.framing import Piece
    from appliance.formats.lockfile import LockEntry, LockFile, RackSeal
    from appliance.formats.paths import Bag, Grid, Rack
    from timeagent.units import Instant

    from .authority import Authority
    from .storage import Storage

_ONE_BY_ONE_MAX: Final = 4
"""Up to so many bags are asked for by name; for more of them their rack is listed."""
_RACKS_KEPT: Final = 16
_RESTORE: Final = "restore it from a copy of the tree; what this bag held cannot be read until then"


@dataclass(frozen=True, slots=True)
class ClosedBag:
    """A bag that exists, with its list."""

    bag: Bag
    lock: LockFile


@dataclass(frozen=True, slots=True)
class _Known:
    """The bags of a rack that have a directory and lie within ``[start_ns, end_ns)``, which was below the horizon."""

    start_ns: Instant
    end_ns: Instant
    bags: tuple[Bag, ...]


class ClosedBags:
    """Finds and opens the closed bags of one log."""

    def __init__(self, storage: Storage, grid: Grid, authority: Authority, cluster_id: bytes) -> None:
        """Touch nothing yet."""
        self._storage = storage
        self._grid = grid
        self._authority = authority
        self._cluster_id = cluster_id
        self._known: dict[str, _Known] = {}

    def between(self, start: Instant, end: Instant) -> Iterator[ClosedBag]:
        """Yield the bags that exist and hold instants in ``[start, end)``, in order. ``end`` is not above the horizon.

        Raises Environment, TryAgain; Damaged for a bag that was closed and has no list. Touches the mount.
        """
        start = max(start, self._grid.first_ns)
        while start < end:
            rack = self._grid.rack(start)
            yield from self._of_rack(rack, start, min(end, rack.end_ns))
            start = rack.end_ns

    def there(self, rack: Rack, start: Instant, end: Instant) -> list[Bag] | RackSeal:
        """Return the bags of a rack that have a directory and hold instants in ``[start, end)``; or the rack's seal.

        The seal is looked for after the listing: only what a seal covers is ever taken away, so without one the listing
        is whole.
        """
        seal = self._authority.sealer.kept(rack)
        if seal is not None:
            return seal
        names = self._storage.list_afresh(rack.path) or ()
        seal = self._authority.sealer.sealed(rack)
        if seal is not None:
            return seal
        found = [self._grid.parse_bag(rack, name) for name in names]
        return sorted(bag for bag in found if bag is not None and bag.end_ns > start and bag.start_ns < end)

    def in_seal(self, seal: RackSeal, rack: Rack, start: Instant, end: Instant) -> Iterator[ClosedBag]:
        """Yield what a seal says of the bags that hold instants in ``[start, end)``. Raises Damaged."""
        for entry in seal.entries:
            bag = self._grid.parse_bag(rack, entry.bag)
            if bag is not None and bag.end_ns > start and bag.start_ns < end:
                yield ClosedBag(bag, read_lock(entry.lock, bag, self._cluster_id).lock)

    def pieces(self, closed: ClosedBag) -> Iterator[tuple[str, list[Piece]]]:
        """Yield each listed file's name and its whole pieces. Raises Damaged. One file is in memory at a time."""
        for entry in closed.lock.entries:
            yield entry.name, self._listed(closed.bag, entry)

    def _of_rack(self, rack: Rack, start: Instant, end: Instant) -> Iterator[ClosedBag]:
        found = self._names(rack, start, end)
        if not isinstance(found, list):
            yield from self.in_seal(found, rack, start, end)
            return
        for bag in found:
            contents = self._authority.read(bag)
            if contents is None:
                if self._storage.look(bag.path, ()) is None:
                    continue
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
        known = self._known.get(rack.path)
        if known is not None and known.start_ns <= start and end <= known.end_ns:
            return [bag for bag in known.bags if bag.end_ns > start and bag.start_ns < end]
        span = self._grid.birth.span_ns
        first, last = self._grid.bag(start), self._grid.bag(end - 1)
        if last.start_ns - first.start_ns < _ONE_BY_ONE_MAX * span and self._authority.sealer.sealed(rack) is None:
            return [self._grid.bag(each) for each in range(first.start_ns, end, span)]
        found = self.there(rack, start, end)
        if isinstance(found, list):
            if len(self._known) >= _RACKS_KEPT:
                self._known.pop(next(iter(self._known)))
            self._known[rack.path] = _Known(start, end, tuple(found))
        return found

    def _listed(self, bag: Bag, entry: LockEntry) -> list[Piece]:
        path = f"{bag.path}/{entry.name}"
        data = self._storage.read(path)
        if data is None and self._storage.look(bag.path, (entry.name,)):
            data = self._storage.read(path)
        if data is None:
            raise Damaged("file-missing", f"{path} is listed in the lock file and is not there", hint=_RESTORE)
        return checked_pieces(data, entry, path)


def checked_pieces(data: bytes, entry: LockEntry, path: str) -> list[Piece]:
    """Return the whole pieces of a listed file. Raises Damaged unless it begins with the bytes that are listed."""
    listed = data if len(data) == entry.size else data[: entry.size]
    found, digest = pieces_with_digest(listed)
    if len(listed) != entry.size or digest != entry.digest:
        raise Damaged("file-altered", f"{path} does not hold the {entry.size} bytes that were listed", hint=_RESTORE)
    return found
