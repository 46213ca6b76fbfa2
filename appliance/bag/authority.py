"""The order of authority: seal, then lock. Everybody who wants to know what a bag holds asks here.

A bag that is not in its rack's seal does not exist, whatever is on disk; a lock file in a directory that was deleted
and made again says nothing. So what a lock file says is an answer only if the rack's prelock was absent when it was
looked for *after* the lock file was read. Otherwise the sealing is finished, and the seal answers.

Closed bags never change: their contents are kept in memory without looking again.
"""

from __future__ import annotations

from typing import Final

import msgspec

from appliance.formats.lockfile import LockFile, RackSeal
from appliance.formats.paths import PRELOCK, SEAL, Bag, Grid, Rack
from timeagent.errors import TryAgain

from .closer import BagGone, Closed, Closer, NotDue, read_lock
from .context import BagContext
from .sealer import Sealer

_KEPT_MAX: Final = 2_048


class Contents(msgspec.Struct, frozen=True, gc=False):
    """What a closed bag holds for ever."""

    lock: LockFile | None
    """None: the bag does not exist; its rack was sealed without it."""


class Authority:
    """Answers for the closed bags of one log, and closes what is due."""

    def __init__(self, context: BagContext, grid: Grid) -> None:
        self._storage = context.storage
        self._cluster_id = context.records.cluster_id
        self.closer = Closer(context, grid)
        self.sealer = Sealer(context, grid, self.closer)
        self._kept: dict[str, Contents] = {}

    def close(self, bag: Bag) -> Contents | NotDue:
        """Close the bag if it is due, or if somebody has begun, and say what it holds.

        Raises BadTime, Environment, Damaged, TryAgain. Touches the mount, unless the answer is known; does not wait.
        """
        known = self._known(bag)
        if known is not None:
            return known
        closed = self.closer.close(bag)
        return closed if isinstance(closed, NotDue) else self.answer(bag, closed)

    def read(self, bag: Bag) -> Contents | None:
        """Say what a bag holds if it is closed already; None if not. Closes nothing that nobody has begun to seal."""
        known = self._known(bag)
        if known is not None:
            return known
        closed = self.closer.read(bag)
        if closed is not None:
            return self.answer(bag, closed)
        return self.by_seal(bag) if self.rack_begun(bag.rack) else None

    def answer(self, bag: Bag, closed: Closed | BagGone) -> Contents:
        """Take what a bag's directory said, read before this call, as far as it may count.

        Raises TryAgain where only a seal could answer and the rack cannot be sealed yet.
        """
        if isinstance(closed, BagGone) or self.rack_begun(bag.rack):
            return self.by_seal(bag)
        return self._keep(bag, Contents(closed.lock))

    def by_seal(self, bag: Bag) -> Contents:
        """Let the rack's seal answer; help sealing. Raises TryAgain if it cannot be sealed yet."""
        seal = self.sealer.seal(bag.rack)
        if isinstance(seal, NotDue):
            raise TryAgain(
                "no-seal",
                f"{bag.path} is not there, and only the seal of its rack could say why",
                hint="try again after the rack was sealed",
            )
        return self._keep(bag, self.in_seal(seal, bag))

    def in_seal(self, seal: RackSeal, bag: Bag) -> Contents:
        """Return what a seal says of a bag. Raises Damaged."""
        raw = seal.lock_of(bag.name)
        return Contents(None if raw is None else read_lock(raw, bag, self._cluster_id).lock)

    def rack_begun(self, rack: Rack) -> bool:
        seen = self._storage.look(rack.path, (PRELOCK, SEAL))
        return seen is None or bool(seen)

    def _known(self, bag: Bag) -> Contents | None:
        known = self._kept.get(bag.path)
        if known is None and self.sealer.newest is not None and bag.start_ns < self.sealer.newest.end_ns:
            return self.by_seal(bag)
        return known

    def _keep(self, bag: Bag, contents: Contents) -> Contents:
        if len(self._kept) >= _KEPT_MAX:
            self._kept.pop(next(iter(tuple(self._kept))), None)
        self._kept[bag.path] = contents
        return contents
