"""The right to grant: the ceiling chain of a shard, and how the next map's follow it (docs/protocol/lease.md).

Nothing that a shard grants or renews expires after the ceiling of a record that it linked itself, with the directory
looked at afresh afterwards showing that record and no higher number. The order of the steps is the protocol:

1. link     the next number; a number that another has means that another is the owner;
2. look     afresh: a higher number means the same (a slot that was pruned can be linked again by who slept long);
3. look     at the newest map, where the ceiling before may be past: a move may have ended without this shard;
4. use      the new ceiling, and only now.

A step that failed leaves doubt, never a right: the same bytes are linked again under the same number.

``apart``, the mount work is done by a thread of its own, link and look together: whoever grants never waits long for
the mount. Until their result has crossed over the right reaches where it reached before: granting stops at
that ceiling, renewing too, and everything else goes on. A look that ended long before is as good as a fresh one: what
the record promises is kept by its being there, not by a clock.

``Succession`` ends every chain of the maps before a new one with a terminal record. Any number of nodes may do that at
once, stop at any line, and begin again: the first terminal record of a chain wins, and nobody links after it. One look
is not enough, not even for a record that another linked: a listing that takes long can show a terminal record in a slot
that was pruned after the listing began, and not what is newest.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Thread
from typing import Final, Protocol

import msgspec

from timeagent.clock import NodeTime
from timeagent.errors import BadConfiguration, Damaged, Environment, TenureError, TryAgain
from timeagent.keys import KeyInUse, Signer
from timeagent.units import SECOND, Instant, rfc3339

from ..formats.chains import CeilingKind, CeilingRecord, ceiling_of, open_ceiling
from ..formats.framing import Kind
from ..formats.policy import PolicyNumbers
from ..formats.shardmap import ShardMap, chain_of, shard_number
from ..formats.stamped import sign

RECORDS_KEPT: Final = 64
"""The newest records are never pruned: a listing that is made while others link must show what is newest."""

PRUNED_PER_LINK: Final = 8
LOOKS_MAX: Final = 3
"""How often a look is repeated that does not show the own record."""


@dataclass(frozen=True, slots=True)
class ShardIdentity:
    """One incarnation of one shard on one node."""

    cluster_id: bytes
    map_number: int
    """The map under which its chain began; ``shard``: its place in the layout."""
    shard: int
    node: str
    incarnation: bytes
    """8 random bytes, fresh for every start."""
    since_ns: Instant = 0
    """When it began; for people, as is the release."""
    release: str = ""

    @property
    def number(self) -> int:
        """The shard's number, by which it is asked for."""
        return shard_number(self.map_number, self.shard)


class Extended(msgspec.Struct, frozen=True, gc=False):
    """A record, and as it is signed. It is linked and seen: the right reaches until its ceiling."""

    record: CeilingRecord
    data: bytes


@dataclass(frozen=True, slots=True)
class Deposed:
    """Another is the owner, or nobody may be any more: drop the state, grant nothing, ever again."""

    reason: str


@dataclass(frozen=True, slots=True)
class InDoubt:
    """The mount did not say: the right is what it was before. Trying again decides it."""

    reason: str


type Extension = Extended | Deposed | InDoubt


@dataclass(frozen=True, slots=True)
class NotYet:
    """Leases are out: an orderly stop can be finished once they are relinquished, or surely past this instant."""

    until_ns: Instant
    leases: int


@dataclass(frozen=True, slots=True)
class StoppedOrderly:
    """The last record is linked; a successor starts from its two numbers."""

    floor_ns: Instant
    settle_to_ns: Instant


type Stop = StoppedOrderly | NotYet | Deposed | InDoubt


@dataclass(frozen=True, slots=True)
class Beginning:
    """What the first record of a chain of a later map begins with: the highest numbers of the chains before it."""

    floor_ns: Instant
    settle_to_ns: Instant


NOTHING_BEFORE: Final = Beginning(0, 0)
"""What a chain begins with that follows no other."""


@dataclass(eq=False, repr=False)
class CeilingChain:
    """Links records for one incarnation. Made without touching anything; every verb that links touches the mount."""

    _port: ChainPort
    _time: NodeTime
    _signer: Signer | KeyInUse
    _policy: PolicyNumbers
    _identity: ShardIdentity
    _origin: Callable[[], Beginning | InDoubt] | None = None
    """What a chain of a later map than the first begins with, once all chains of the map before have ended
    (``Succession``). Asked only when the chain is empty."""

    apart: bool = False
    """Whether extensions touch the mount in a thread of their own, which begins with the first."""

    look_at_maps: Callable[[], ShardMap] | None = None
    """Returns the newest map, for a right that begins or had lapsed: who ended a move meanwhile took it for past."""

    def __post_init__(self) -> None:
        self._jobs: SimpleQueue[tuple[Future[Listed], Callable[[], Listed]] | None] = SimpleQueue()
        self._under_way: Future[Listed] | None = None
        self._thread: Thread | None = None
        self._newest: Extended | None = None
        """The newest record, whosever it is; None: the chain is empty."""
        self._pending: Extended | None = None
        """What may be linked after that, or not."""
        self._must_win = False
        """Whether the next record counts only if this process linked it: others may link the very same bytes."""
        self.deposed: Deposed | None = None
        """Why this incarnation may never grant again, or None."""
        self.number = 0
        """The newest record of this incarnation that was linked and seen; 0 before the first."""
        self.ceiling_ns: Instant = 0
        """Until when grants may reach now: 0 before the first record, and once deposed."""
        self.newest_map: ShardMap | None = None
        """By which its shard is to go before it grants; None: none was looked for."""
        self._pruned_to = 0
        self.floor_ns: Instant = 0
        """The shard floor at the start of this run: from the newest record before it."""
        self.settle_to_ns: Instant = 0

    def begin(self) -> Extension:
        """Link the first record of this incarnation, on top of whatever is newest. Idempotent until it is linked.

        Raises BadTime, Damaged (the newest record cannot be read), BadConfiguration (a later map, and no ``origin``).
        """
        return self._first(self._begins)

    def resume(self, record: bytes, pending: bytes) -> Extension:
        """Link the next record of an incarnation that stopped for a restart, when ``record`` was its newest.

        ``pending``: what it may have linked after that. Deposed: the newest of the chain is another, or somebody else
        has linked the next one, were it in this incarnation's name: two may have what it left, and one of them goes on.
        Idempotent until it is linked. Raises BadTime, Damaged.
        """
        return self._first(functools.partial(self._goes_on, record, pending))

    def _first(self, begins: Callable[[], Beginning | Deposed | InDoubt]) -> Extension:
        assert self.number == 0, "a chain begins once for each incarnation"
        if self._pending is None and self.deposed is None:
            try:
                found = begins()
            except (Environment, TryAgain) as problem:
                return InDoubt(f"the chain cannot be read: {problem.message}")
            if not isinstance(found, Beginning):
                return found
            self.floor_ns, self.settle_to_ns = found.floor_ns, found.settle_to_ns
        return self._link(CeilingKind.RUNNING, self.floor_ns, self.settle_to_ns, patient=None)

    def _begins(self) -> Beginning | Deposed | InDoubt:
        """Return what a run begins with: what the newest record leaves, or else what the chain begins with."""
        found, mine = newest_of(self._port), self._identity
        if found is not None:
            number, data = found
            record = ceiling_of(data, (mine.cluster_id, mine.map_number, mine.shard), number)
            if record.kind is CeilingKind.TERMINAL:
                return self._depose(f"record {number} of the chain is terminal: read the map anew")
            self._newest = Extended(record, data)
            return _after(record)
        if self._origin is not None:
            return self._origin()
        if mine.map_number == 1:
            return NOTHING_BEFORE
        raise BadConfiguration(
            "chain-not-begun",
            f"shard {mine.shard} has no chain under map {mine.map_number}",
            hint="a chain of a later map begins where those of the map before were terminated",
        )

    def _goes_on(self, record: bytes, pending: bytes) -> Beginning | Deposed:
        """Return what the run that is gone on with began with."""
        number, newest = newest_of(self._port) or (0, None)
        if newest is None or newest not in (record, pending):
            return self._depose("the newest record of the chain is not the one with which it stopped")
        kept, _ = open_ceiling(newest, f"record {number} of the chain")
        self._newest, self._must_win = Extended(kept, newest), True
        return Beginning(kept.floor_ns, kept.settle_to_ns)

    def settle(self) -> Extension | None:
        """Return what came of an extension that is under way; None: there is none. Waits a quarter of an attempt."""
        if self._under_way is None:
            return None
        self._wait_for(self._under_way)
        return self._link(CeilingKind.RUNNING, self.floor_ns, self.settle_to_ns, patient=False)

    @property
    def waits_for_the_mount(self) -> bool:
        """Whether an extension is under way. Read by other threads."""
        job = self._under_way
        return job is not None and not job.done()

    def close(self) -> None:
        """Link nothing more. Does not wait for the mount. Idempotent."""
        self._jobs.put(None)

    @property
    def standing(self) -> tuple[bytes, bytes]:
        """The newest record of this incarnation that was linked and seen, and one that may be linked after it."""
        linked = self._newest.data if self._newest is not None and self.number else b""
        return linked, b"" if self._pending is None else self._pending.data

    def extend(self) -> Extension:
        """Link the next running record; the ceiling counts from ``latest``. Never after finish(). Raises BadTime."""
        assert self._pending is None or self._pending.record.kind is CeilingKind.RUNNING, "the chain is being finished"
        # It is worth a moment's wait where a full term does not fit below the ceiling that there is.
        short = self.apart and self.ceiling_ns - self._time.now().latest < self._policy.lease_term_max_ns
        return self._link(CeilingKind.RUNNING, self.floor_ns, self.settle_to_ns, patient=short)

    def finish(self, floor_ns: Instant, settle_to_ns: Instant) -> Extension:
        """Link the last record: a successor starts from these two numbers. Every lease must have ended. Raises BadTime.

        A running record in doubt is decided first; an orderly one in doubt is linked again as it is, because nothing
        was granted since.
        """
        if self._pending is not None and self._pending.record.kind is CeilingKind.RUNNING:
            decided = self.extend()
            if not isinstance(decided, Extended):
                return decided
        return self._link(CeilingKind.ORDERLY, floor_ns, settle_to_ns, patient=True)

    def _link(self, kind: CeilingKind, floor_ns: Instant, settle_to_ns: Instant, *, patient: bool | None) -> Extension:
        """Link what is pending, or else the next record. ``patient``: see ``_by_mount``."""
        if self.deposed is not None:
            return self.deposed
        if self._pending is None:
            self._pending = self._next_record(kind, floor_ns, settle_to_ns)
        pending = self._pending
        listed = self._by_mount(functools.partial(self._link_and_look, pending.record.number, pending.data), patient)
        if isinstance(listed, Overtaken):
            return self._depose(listed.reason)
        if isinstance(listed, InDoubt):
            return listed
        self._pending, self._newest = None, pending
        self.number, self.ceiling_ns = pending.record.number, pending.record.ceiling_ns
        return pending

    def _wait_for(self, job: Future[Listed]) -> None:
        """Wait a quarter of an attempt, by the policy of now."""
        wait((job,), self._policy.attempt_timeout_ns / 4 / SECOND)

    def _by_mount(self, steps: Callable[[], Listed], patient: bool | None) -> Listed:  # noqa: FBT001
        """Do what touches the mount; apart, ``UNDER_WAY`` until it is done: the next call takes up what has come of it.

        ``patient``: wait for it a little, once; None: it is done here, however long it takes. Raises what it raised.
        """
        if patient is None or not self.apart:
            return steps()
        if self._thread is None:
            thread = Thread(target=self._run, name="tenure-ceiling", daemon=True)
            try:
                thread.start()
            except RuntimeError as problem:  # this process may have no more: asked again with the next turn
                return InDoubt(f"no thread for the mount: {problem}")
            self._thread = thread
        job = self._under_way
        if job is None:
            job = self._under_way = Future()
            self._jobs.put((job, steps))
            if patient:
                self._wait_for(job)
        if not job.done():
            return UNDER_WAY
        self._under_way = None
        return job.result()

    def _run(self) -> None:
        while (each := self._jobs.get()) is not None:
            job, steps = each
            try:
                job.set_result(steps())
            except BaseException as problem:  # noqa: BLE001 - it is raised where the extension was asked for
                job.set_exception(problem)

    def _link_and_look(self, number: int, data: bytes) -> Listed:
        """Link a record and look, together; prune what is old. Changes nothing of what the chain says."""
        linked = link_record(self._port, number, data, must_win=self._must_win)
        if linked is None:
            self._must_win = False
        listed = linked or look_for(self._port, number)
        if isinstance(listed, list):
            self._prune([each for each in listed if each <= number - RECORDS_KEPT])
            if self.look_at_maps is not None and self._time.now().latest >= self._lasts_ns():
                try:
                    self.newest_map = self.look_at_maps()
                except TenureError as problem:
                    return InDoubt(f"record {number} is linked, and the newest map was not read: {problem.message}")
        return listed

    def _lasts_ns(self) -> Instant:
        """Return until when this incarnation had the right before the pending record, in this run or an earlier one."""
        before = None if self._newest is None else self._newest.record
        return before.ceiling_ns if before is not None and before.incarnation == self._identity.incarnation else 0

    def _next_record(self, kind: CeilingKind, floor_ns: Instant, settle_to_ns: Instant) -> Extended:
        newest = None if self._newest is None else self._newest.record
        number, before_ns = (0, 0) if newest is None else (newest.number, newest.ceiling_ns)
        ceiling = max(before_ns, floor_ns, settle_to_ns)
        if kind is CeilingKind.RUNNING:
            ahead = self._policy.lease_term_max_ns + self._policy.ceiling_ahead_ns
            ceiling = max(ceiling, self._time.now().latest + ahead)
        begins = Beginning(floor_ns, settle_to_ns)
        return _signed(self._identity, number + 1, kind, ceiling, begins, self._time, self._signer)

    def _prune(self, old: list[int]) -> None:
        """Remove a few of this node's old records. A failure costs nothing: the next link tries again."""
        try:
            for number in [number for number in old if number > self._pruned_to][:PRUNED_PER_LINK]:
                data = self._port.read(number)
                if data is not None and open_ceiling(data, f"record {number}")[0].node == self._identity.node:
                    self._port.unlink(number)
                self._pruned_to = number
        except (Environment, TryAgain, Damaged):
            return

    def _depose(self, reason: str) -> Deposed:
        ended = f"ended before {rfc3339(self.ceiling_ns)}" if self.ceiling_ns else "never began"
        self.deposed, self.ceiling_ns = Deposed(f"{reason}; the right to grant {ended}"), 0
        return self.deposed


class ChainPort(Protocol):
    """The numbered records of one ceiling chain, published with link(2). Touches the mount; may raise Environment."""

    def list_afresh(self) -> list[int]:
        """Return the numbers that are there; the directory is opened anew. Empty where there is no directory."""
        ...

    def read(self, number: int) -> bytes | None:
        """Return a record's bytes, or None where there is none under that number."""
        ...

    def link(self, number: int, data: bytes) -> bool:
        """Publish a record: True if these bytes are there now. False: the number was taken, perhaps by ourselves."""
        ...

    def unlink(self, number: int) -> None:
        """Remove a pruned record; nothing happens where there is none."""
        ...


@dataclass(frozen=True, slots=True)
class Overtaken:
    """The number is another's, or a higher one is there."""

    reason: str


type Listed = list[int] | Overtaken | InDoubt
"""A listing in which the record that was linked is the newest, or why there is none."""


def newest_of(port: ChainPort) -> tuple[int, bytes] | None:
    """Return the newest record of a chain and its number, looked at afresh; None: it is empty.

    Raises Environment, TryAgain: it cannot be read.
    """
    for _ in range(LOOKS_MAX):
        numbers = port.list_afresh()
        if not numbers:
            return None
        data = port.read(numbers[-1])
        if data is not None:
            return numbers[-1], data
    raise TryAgain("chain-unread", "the newest record of the chain is listed and cannot be read", hint="try again")


def link_record(port: ChainPort, number: int, data: bytes, *, must_win: bool = False) -> Overtaken | InDoubt | None:
    """Link a record; None: these bytes are there, and, ``must_win``, by this very call."""
    try:
        taken = not port.link(number, data) and (must_win or port.read(number) != data)
    except (Environment, TryAgain) as problem:
        return InDoubt(f"record {number} may be linked or not: {problem.message}")
    return Overtaken(f"record {number} of the chain is another's") if taken else None


def look_for(port: ChainPort, number: int) -> Listed:
    """Return a listing made afresh in which a record is the newest: a listing counts only if it shows it."""
    try:
        for _ in range(LOOKS_MAX):
            numbers = port.list_afresh()
            if numbers and numbers[-1] > number:
                return Overtaken(f"record {numbers[-1]} of the chain follows our {number}")
            if number in numbers:
                return numbers
    except (Environment, TryAgain) as problem:
        return InDoubt(f"record {number} is linked and not seen: {problem.message}")
    return InDoubt(f"record {number} is linked and not listed")


def newest_record(port: ChainPort) -> CeilingRecord | None:
    """Return the newest record of a chain, unjudged, or None for an empty one. Raises Environment, TryAgain, Damaged.

    For looking, and for courtesy: the chain may have gone on since.
    """
    found = newest_of(port)
    return None if found is None else open_ceiling(found[1], f"record {found[0]} of a chain")[0]


def _after(record: CeilingRecord) -> Beginning:
    """Return what follows from a chain's newest record: the ceiling of a run, or what it says when it stopped."""
    if record.kind is CeilingKind.RUNNING:
        return Beginning(record.ceiling_ns, record.ceiling_ns)
    return Beginning(record.floor_ns, record.settle_to_ns)


def _signed(
    identity: ShardIdentity,
    number: int,
    kind: CeilingKind,
    ceiling_ns: Instant,
    begins: Beginning,
    time: NodeTime,
    signer: Signer | KeyInUse,
) -> Extended:
    """Make a record of a chain as of now. Raises BadTime."""
    token = time.token()
    key = signer.signer_at(token.midpoint_ns)
    record = CeilingRecord(
        cluster_id=identity.cluster_id,
        map_number=identity.map_number,
        shard=identity.shard,
        number=number,
        node=identity.node,
        incarnation=identity.incarnation,
        kind=kind,
        ceiling_ns=ceiling_ns,
        floor_ns=begins.floor_ns,
        settle_to_ns=begins.settle_to_ns,
        time=token.encode(),
    )
    return Extended(record, sign(Kind.CEILING, record, key))


UNDER_WAY = InDoubt("the mount has not answered yet")


# -- from map to map ---------------------------------------------------------------------------------------------------

ENDING_LOOKS_MAX: Final = 6
"""How often a chain is looked at in one call that is to end it: its owner may extend it meanwhile."""

type Polite = Callable[[CeilingRecord], str | None]
"""Says why a running record's owner is to be given time, or None: that spares everybody a wait, and nothing rests on
it."""


@dataclass(slots=True)
class Succession:
    """One process's share in ending chains that others follow. Not thread-safe; touches the mount."""

    cluster_id: bytes
    predecessors: Callable[[int], Sequence[int]]
    """The shards after which those begin whose chains are of a map."""
    port_of: Callable[[int, int], ChainPort]
    """The chain of a map and a place."""
    time: NodeTime
    signer: Signer | KeyInUse
    node: str
    incarnation: bytes
    polite: Polite = lambda _: None
    _known: dict[int, Beginning] = field(default_factory=dict)

    def beginning(self, chain: int) -> Beginning | InDoubt:
        """End every chain that those of a map follow, and what these follow; return what each of the map's begins with.

        The latter too: a chain may end before it has taken on the numbers of those that it follows.
        InDoubt: not all have ended yet; ask again. Idempotent. Raises BadTime, Damaged.
        """
        if chain not in self._known:
            places = [chain_of(shard) for shard in self.predecessors(chain)]
            ended = [self._ended(*place) for place in places]
            ended += [self.beginning(earlier) for earlier in sorted({earlier for earlier, _ in places})]
            doubt = next((each for each in ended if isinstance(each, InDoubt)), None)
            if doubt is not None:
                return doubt
            numbers = [NOTHING_BEFORE, *(each for each in ended if isinstance(each, Beginning))]
            self._known[chain] = Beginning(
                max(each.floor_ns for each in numbers), max(each.settle_to_ns for each in numbers)
            )
        return self._known[chain]

    def _ended(self, chain: int, shard: int) -> Beginning | InDoubt:
        """End one chain; return the numbers of its terminal record."""
        port = self.port_of(chain, shard)
        mine = ShardIdentity(self.cluster_id, chain, shard, self.node, self.incarnation)
        where = f"the chain of shard {shard}, map {chain}"
        seen = 0
        try:
            for _ in range(ENDING_LOOKS_MAX):
                number, data = newest_of(port) or (0, b"")
                newest = ceiling_of(data, (self.cluster_id, chain, shard), number) if number else None
                if newest is not None and newest.kind is CeilingKind.TERMINAL:
                    if seen == number:
                        return Beginning(newest.floor_ns, newest.settle_to_ns)
                    seen = number
                    continue
                begins = self.beginning(chain) if newest is None else _after(newest)
                why = self.polite(newest) if newest is not None and newest.kind is CeilingKind.RUNNING else None
                if isinstance(begins, InDoubt):
                    return begins
                if why is not None:
                    return InDoubt(f"{where} is not ended yet: {why}")
                highest = max(0 if newest is None else newest.ceiling_ns, begins.floor_ns, begins.settle_to_ns)
                last = _signed(mine, number + 1, CeilingKind.TERMINAL, highest, begins, self.time, self.signer)
                seen = number + 1 if port.link(number + 1, last.data) else 0
        except (Environment, TryAgain) as problem:
            return InDoubt(f"{where} is perhaps not ended: {problem.message}")
        return InDoubt(f"{where} goes on while it is being ended")
