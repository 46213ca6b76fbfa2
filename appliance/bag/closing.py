"""Close bags and seal racks, so that every reader agrees for ever on what they hold (docs/protocol/bag.md).

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

A bag that nobody wrote to has no directory, and none may be made later. The steps of one rack:

1. prelock    a writer that looks at the rack from now on sees that its bag may not exist;
2. list       once: no other bag of this stretch of time will ever exist;
3. close      every bag of that listing;
4. link       the seal: each bag's name and its lock file, byte by byte;
5. read       the seal that won.

Racks are sealed in order, so that the newest seal answers for everything older. Whoever finds a prelock finishes and
asks no clock. Before the first prelock two clocks are asked: one's own, and the file server's, so that one fast clock
cannot stop a cluster.

The order of authority is seal, then lock. A bag that is not in its rack's seal does not exist, whatever is on disk; a
lock file in a directory that was deleted and made again says nothing. So what a lock file says is an answer only if the
rack's prelock was absent when it was looked for *after* the lock file was read. Otherwise the sealing is finished, and
the seal answers. Everybody who wants to know what a bag holds asks ``Authority``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from appliance.formats.framing import Kind, measure
from appliance.formats.paths import LOCK, PRELOCK, RETAINED, SEAL, Bag, Grid, Rack
from timeagent.canonical import encode_for_ever
from timeagent.errors import Damaged, TryAgain
from timeagent.units import Instant, Span

from ..formats.closed import (
    PACK,
    RECORDS_LAG_NS,
    LockFile,
    RackSeal,
    SealEntry,
    made_lock,
    open_lock,
    open_seal,
)
from .logs import hidden, racks_there
from .ports import BagContext, signed_for_ever

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
            files, entries = self._grid.data_of(names), list[_Entry]()
            for name, data in zip(files, self._storage.read_each(bag.path, files), strict=True):
                if data is None:
                    break
                _, size, digest = measure(data)
                entries.append((name, size, digest))
            else:
                return entries
        raise TryAgain(
            "file-unreadable",
            f"{bag.path} lists a data file that cannot be opened",
            hint="the mount hides it, or somebody deletes files by hand: look at the directory",
        )

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


_SEALS_KEPT: Final = 8
_BAGS_KEPT: Final = 2_048


class Sealer:
    def __init__(self, context: BagContext, grid: Grid, closer: Closer) -> None:
        self._storage = context.storage
        self._time = context.time
        self._parallel = context.parallel
        self._records = context.records
        self._node = context.node
        self._tmp = context.tmp(grid.birth.log)
        self._grid = grid
        self._closer = closer
        self.newest: Rack | None = None
        """The newest rack that this object has seen sealed. What is sealed stays sealed: never stale, only behind."""
        self._kept: dict[str, RackSeal] = {}
        self._due: dict[str, Instant] = {}

    def newest_sealed(self) -> Rack | None:
        """Return the newest sealed rack, or None. Touches the mount: one look where nothing is new."""
        if self.newest is None:
            # A sealed rack has a directory for ever, so the search needs no other names than those that are there.
            self.newest = next((r for r in racks_there(self._storage, self._grid) if self._is_sealed(r)), None)
        while self.newest is not None and self._is_sealed(following := self._grid.next_rack(self.newest)):
            self.newest = following
        return self.newest

    def kept(self, rack: Rack) -> RackSeal | None:
        """Return a rack's seal if this object has read it lately. Touches nothing."""
        return self._kept.get(rack.path)

    def forget(self, rack: Rack) -> None:
        """Drop a seal that is needed no more from memory, unless it is as small as an idle log's. Touches nothing."""
        if (seal := self._kept.get(rack.path)) is not None and seal.entries:
            self._kept.pop(rack.path, None)

    def sealed(self, rack: Rack) -> RackSeal | None:
        """Return a rack's seal, or None if it is not sealed. Raises Damaged. Touches the mount; makes nothing."""
        if (kept := self.kept(rack)) is not None:
            return kept
        seal = self._adopt(rack) if self._storage.look(rack.path, (SEAL,)) else None
        if seal is None and self.newest is not None and rack.start_ns <= self.newest.start_ns:
            raise _seal_hidden(rack)
        return seal

    def seal(self, rack: Rack) -> RackSeal | NotDue:
        """Seal the rack, and before it what is older, if it is due; at once if somebody has begun.

        Raises BadTime, NotTrusted, Environment, Damaged, TryAgain; then anybody may try again. Touches the mount; does
        not wait.
        """
        if (kept := self.kept(rack)) is not None:
            return kept
        seen = self._storage.look(rack.path, (PRELOCK, SEAL)) or frozenset()
        if SEAL in seen:
            seal = self._adopt(rack)
            if seal is not None:
                return seal
        if PRELOCK not in seen and (due := self._not_due_until(rack)) is not None:
            return NotDue(due)
        return self._seal_up_to(rack)

    def expected_ns(self, rack: Rack) -> Instant:
        """Return when a rack may be sealed by the policy that is known here; the file server's clock has a say too."""
        return self._due.get(rack.path) or rack.end_ns + self._delay_ns(
            (self._records.known or self._records.newest()).policy
        )

    def _delay_ns(self, policy_number: int) -> Span:
        """Return how long after a rack's end it is sealed.

        A policy is checked by the span and the grace of logs to come; this one keeps those of its birth, and its bags
        need as long.
        """
        policy, birth = self._records.policy(policy_number), self._grid.birth
        return max(policy.seal_delay_ns, birth.span_ns + birth.grace_ns + 4 * policy.radius_ns_max)

    def _not_due_until(self, rack: Rack) -> Instant | None:
        """Return when to ask again, or None: both clocks say that the rack's end and the seal delay are past."""
        now = self._time.now()
        if not now.surely_past(rack.end_ns):
            return rack.end_ns
        due = self._due.get(rack.path)
        if due is None:
            # Asked once a rack: a delay that is changed meanwhile counts from the next rack.
            due = rack.end_ns + self._delay_ns(self._records.newest().policy)
            self._due = {rack.path: due}
        # A file server that is behind delays seals; it endangers nothing.
        return None if now.surely_past(due) and self._storage.server_clock(self._tmp) > due else due

    def _seal_up_to(self, rack: Rack) -> RackSeal:
        """Seal in order. What is older than a rack that may be sealed may be sealed: no clock is asked again."""
        newest = self.newest_sealed()
        each = self._grid.rack(self._grid.first_ns) if newest is None else self._grid.next_rack(newest)
        older: list[Rack] = []
        while each.start_ns < rack.start_ns:
            older.append(each)
            each = self._grid.next_rack(each)
        while older:
            batch, older = older[: self._parallel.width], older[self._parallel.width :]
            if len(batch) == 1:
                self._seal_one(batch[0])
            else:
                # The bags of several racks are closed at once; what makes them final, the seals, is linked in order.
                for one, entries in zip(batch, self._parallel.each(self._closed_bags, batch), strict=True):
                    self._link(one, entries)
                    self.newest = one
            self.newest = batch[-1]
        return self._seal_one(rack)

    def _seal_one(self, rack: Rack) -> RackSeal:
        return self._link(rack, self._closed_bags(rack))

    def _closed_bags(self, rack: Rack) -> tuple[SealEntry, ...] | None:
        """Begin to seal: make the prelock, list, close every bag; None if the rack is sealed, or somebody else does."""
        self._storage.ensure_directory(rack.path)
        bags = self._begin_and_list(rack)
        if bags is None:
            return None
        entries: list[SealEntry] = []
        for bag in bags:
            closed = self._closer.help(bag)
            if closed is None:
                return None  # only what a seal covers is ever deleted
            entries.append(SealEntry(bag=bag.name, lock=closed.raw))
        return tuple(entries)

    def _link(self, rack: Rack, entries: tuple[SealEntry, ...] | None) -> RackSeal:
        if entries is not None:
            seal = RackSeal(
                cluster_id=self._records.cluster_id, log=rack.log, rack=rack.path, sealer=self._node, entries=entries
            )
            keyring = self._records.keyring(self._records.newest().trust)
            raw = signed_for_ever(Kind.SEAL, encode_for_ever(seal), self._time, keyring)
            self._storage.publish(f"{rack.path}/{SEAL}", raw, self._tmp)
        return self._read(rack)

    def _begin_and_list(self, rack: Rack) -> list[Bag] | None:
        """Make the prelock, then list; None if there is a seal already. Raises TryAgain for what only a seal allows."""
        begun = self._storage.ensure_marker(f"{rack.path}/{PRELOCK}")
        names = self._storage.list_afresh(rack.path)
        if names is None or not begun:  # its directory was there just now: nothing says what is in it
            raise hidden(rack.path)
        if SEAL in names:
            return None
        if PACK in names or RETAINED in names:
            raise _seal_hidden(rack)  # its bags' directories are gone: a seal of those would hide what they held
        found = [bag for name in names if (bag := self._grid.parse_bag(rack, name)) is not None]
        return sorted(found, key=lambda bag: bag.name)

    def _read(self, rack: Rack) -> RackSeal:
        seal = self.sealed(rack)
        if seal is None:
            raise TryAgain(
                "no-seal",
                f"{rack.path} has no seal yet, and a bag of it could not be closed",
                hint="try again; if it stays so, restore the bag's directory, or remove a link that leads nowhere",
            )
        return seal

    def _is_sealed(self, rack: Rack) -> bool:
        return bool(self._storage.look(rack.path, (SEAL,)))

    def _adopt(self, rack: Rack) -> RackSeal | None:
        where = f"{rack.path}/{SEAL}"
        raw = self._storage.read(where)
        if raw is None:
            return None
        seal, _ = open_seal(raw, where)
        if (seal.cluster_id, seal.log, seal.rack) != (self._records.cluster_id, rack.log, rack.path):
            raise Damaged(
                "seal-misplaced",
                f"{where} is the seal of {seal.rack} in cluster {seal.cluster_id.hex()}",
                hint="restore the file from a copy of the tree",
            )
        if len(self._kept) >= _SEALS_KEPT:
            self._kept.pop(next(iter(tuple(self._kept))), None)
        self._kept[rack.path] = seal  # immutable: never stale
        return seal


def _seal_hidden(rack: Rack) -> TryAgain:
    return TryAgain(
        "seal-hidden",
        f"{rack.path} was sealed, and its seal cannot be seen now",
        hint="the mount hides it, or somebody deleted it: look at the directory, restore it from a copy of the tree",
    )


class Contents(msgspec.Struct, frozen=True, gc=False):
    """What a closed bag holds for ever."""

    lock: LockFile | None
    """None: the bag does not exist; its rack was sealed without it."""


class Authority:
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

    def answer(self, bag: Bag, closed: Closed | None) -> Contents:
        """Take what a bag's directory said, read before this call, as far as it may count.

        Raises TryAgain where only a seal could answer and the rack cannot be sealed yet.
        """
        if closed is None or self.rack_begun(bag.rack):
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
        if len(self._kept) >= _BAGS_KEPT:
            self._kept.pop(next(iter(tuple(self._kept))), None)
        self._kept[bag.path] = contents
        return contents
