"""The closed bags of a log and the bytes that their lists promise, wherever these are by now.

By the order of authority: where a rack is sealed, its seal says which bags exist; else the directories do, and every
name below the horizon is there for good until the rack is sealed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from appliance.formats.lockfile import LockFile, RackSeal
from appliance.formats.paths import Bag, Grid, Rack
from timeagent.errors import Damaged
from timeagent.units import Instant

from .authority import Authority
from .closer import read_lock
from .listedfiles import ListedFiles
from .logs import is_there
from .storage import Storage

_ONE_BY_ONE_MAX: Final = 4
"""Up to so many bags are asked for by name; for more of them their rack is listed."""
_RACKS_KEPT: Final = 16


class ClosedBag(msgspec.Struct, frozen=True, gc=False):
    """A bag that exists, with its list."""

    bag: Bag
    lock: LockFile


@dataclass(frozen=True, slots=True)
class RackGone:
    """A stretch of time whose messages were given up by retention: nobody can read them any more."""

    start_ns: Instant
    end_ns: Instant


@dataclass(frozen=True, slots=True)
class _Known:
    """The bags of a rack that have a directory and lie within ``[start_ns, end_ns)``, which was below the horizon."""

    start_ns: Instant
    end_ns: Instant
    bags: tuple[Bag, ...]


class ClosedBags:
    """Finds and opens the closed bags of one log."""

    def __init__(self, storage: Storage, grid: Grid, authority: Authority, cluster_id: bytes) -> None:
        self._storage = storage
        self._grid = grid
        self._authority = authority
        self._cluster_id = cluster_id
        self.files = ListedFiles(storage)
        self._known: dict[str, _Known] = {}

    def between(self, start: Instant, end: Instant) -> Iterator[ClosedBag | RackGone]:
        """Yield the bags that exist and hold instants in ``[start, end)``, in order. ``end`` is not above the horizon.

        Stretches that are gone are named where they are met. Raises Environment, TryAgain; Damaged for a bag that was
        closed and has no list. Touches the mount.
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

    def in_seal(self, seal: RackSeal, rack: Rack, start: Instant, end: Instant) -> Iterator[ClosedBag | RackGone]:
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
                    yield RackGone(max(start, rack.start_ns), min(end, rack.end_ns))
                    return
            yield ClosedBag(bag, lock)

    def _of_rack(self, rack: Rack, start: Instant, end: Instant) -> Iterator[ClosedBag | RackGone]:
        found = self._names(rack, start, end)
        if not isinstance(found, list):
            yield from self.in_seal(found, rack, start, end)
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
