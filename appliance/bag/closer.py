"""Close a bag, so that every reader agrees for ever on what it holds (docs/protocol/bag.md).

Closing is idempotent and waits for nobody: any number of processes may close the same bag at once, stop at any line,
and begin again. The first lock file linked into place wins; every other closer adopts it. The order of the steps is
the protocol:

1. prelock    a writer whose file appears from now on sees that it may be late;
2. list       what is there now is all that can ever be promised;
3. measure    effective sizes and digests;
4. number     the newest trust and policy records: never older than what a listed frame was written under;
5. link       the promise;
6. read       whatever link said: NFS repeats a LINK whose reply was lost, and the repeat says EEXIST though it had won.

With 2 before 1, a message can be confirmed and then be missing from the lock file: tests/faults/test_bag_mutants.py.

What a lock file says is an answer only by the order of authority (sealer.py): the seal of the rack comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from appliance.formats.framing import Kind, measure
from appliance.formats.lockfile import RECORDS_LAG_NS, LockFile, made_lock, open_lock
from appliance.formats.paths import LOCK, PRELOCK, Bag, Grid
from timeagent.errors import Damaged, TryAgain
from timeagent.units import Instant

from .context import BagContext, signed_for_ever

type _Entry = tuple[str, int, bytes]
"""A LockEntry's fields."""

_LISTINGS: Final = 3
"""How often a closer lists again when a listed file cannot be found: that is a cache, or a deletion in progress."""


class Closed(msgspec.Struct, frozen=True, gc=False):
    """The bag's lock file."""

    lock: LockFile
    raw: bytes
    """Byte by byte, as a seal embeds it."""


class NotDue(msgspec.Struct, frozen=True, gc=False):
    """It is too early to begin, and nobody else has begun."""

    due_ns: Instant


def read_lock(raw: bytes, bag: Bag, cluster_id: bytes) -> Closed:
    """Return a lock file's content. Raises Damaged, naming the path, also for the lock file of another bag."""
    where = f"{bag.path}/{LOCK}"
    lock, _ = open_lock(raw, where)
    if (lock.cluster_id, lock.log, lock.bag) != (cluster_id, bag.log, bag.path):
        raise Damaged(
            "lock-misplaced",
            f"{where} is the lock file of {lock.bag} in cluster {lock.cluster_id.hex()}",
            hint="restore the file from a copy of the tree; nothing in this bag can be trusted until then",
        )
    return Closed(lock, raw)


class Closer:
    """Closes single bags of one log."""

    def __init__(self, context: BagContext, grid: Grid) -> None:
        self._storage = context.storage
        self._time = context.time
        self._records = context.records
        self._node = context.node
        self._grid = grid
        self._tmp = context.tmp(grid.birth.log)

    def close(self, bag: Bag) -> Closed | NotDue | None:
        """Close the bag if it is due; at once if somebody has begun. Makes the directory of a bag nobody wrote to.

        None: the directory is not there (any more), and only the rack's seal knows.
        Raises BadTime, NotTrusted, Environment, Damaged, TryAgain; then nothing is decided, and anybody may try again.
        Touches the mount; does not wait.
        """
        seen = self._storage.look(bag.path, (PRELOCK, LOCK))
        if seen and LOCK in seen:
            return self._adopt(bag)
        if not seen and not self._time.now().surely_past(bag.due_ns):
            return NotDue(bag.due_ns)
        if seen is None:
            self._storage.ensure_directory(bag.path)
        return self.help(bag)

    def help(self, bag: Bag) -> Closed | None:
        """Close the bag because closing has begun, of it or of its rack; None as of ``close``.

        Asks no clock whether it is due: closing early only voids writes. Raises as ``close`` does. Makes no directory.
        """
        if not self._begin(bag):
            return None
        found = self._contents(bag)
        ours = None if found is None else self._promise(bag, found)
        return self.read(bag, ours)

    def read(self, bag: Bag, ours: Closed | None = None) -> Closed | None:
        """Return the lock file, or None if there is none. Raises Damaged. Touches the mount; makes nothing.

        Bytes that are ``ours`` are not decoded again.
        """
        # A look first: an earlier one may have left the lock file's absence in this machine's cache.
        return self._adopt(bag, ours) if self._storage.look(bag.path, (LOCK,)) else None

    def _adopt(self, bag: Bag, ours: Closed | None = None) -> Closed | None:
        raw = self._storage.read(f"{bag.path}/{LOCK}")
        if ours is not None and raw == ours.raw:
            return ours
        return None if raw is None else read_lock(raw, bag, self._records.cluster_id)

    def _begin(self, bag: Bag) -> bool:
        return self._storage.ensure_marker(f"{bag.path}/{PRELOCK}")

    def _contents(self, bag: Bag) -> list[_Entry] | None:
        """List and measure; None if a lock file is there already, or no directory."""
        for _ in range(_LISTINGS):
            names = self._storage.list_afresh(bag.path)
            if names is None or LOCK in names:
                return None
            entries = self._measured(bag, self._grid.data_of(names))
            if entries is not None:
                return entries
        raise TryAgain(
            "file-unreadable",
            f"{bag.path} lists a data file that cannot be opened",
            hint="the mount hides it, or somebody deletes files by hand: look at the directory",
        )

    def _measured(self, bag: Bag, names: list[str]) -> list[_Entry] | None:
        """Return what is there of each data file; None if one cannot be found."""
        entries = []
        for name, data in zip(names, self._storage.read_each(bag.path, names), strict=True):
            if data is None:
                return None
            _, size, digest = measure(data)
            entries.append((name, size, digest))
        return entries

    def _promise(self, bag: Bag, entries: Sequence[_Entry]) -> Closed:
        looked, named = self._time.now(), self._records.newest()
        while True:
            numbers = named.trust, named.policy
            lock, body = made_lock(self._records.cluster_id, bag.log, bag.path, self._node, numbers, entries)
            raw = signed_for_ever(Kind.LOCK, body, self._time, self._records.keyring(named.trust))
            signed = self._time.now()
            if signed.latest - looked.earliest <= RECORDS_LAG_NS:
                break
            # It stood still: there may be a record newer than those named, and older than this list by more than that.
            newest = self._records.newest()
            if newest == named:
                break
            looked, named = signed, newest
        self._storage.publish(f"{bag.path}/{LOCK}", raw, self._tmp)
        return Closed(lock, raw)
