"""The right to grant: one incarnation's side of a ceiling chain (docs/protocol/lease.md, "The ceiling chain").

Nothing that a shard grants or renews expires after the ceiling of a record that it linked itself, with the directory
looked at afresh afterwards showing that record and no higher number. The order of the steps is the protocol:

1. link     the next number; a number that another has means that another is the owner;
2. look     afresh: a higher number means the same (a slot that was pruned can be linked again by who slept long);
3. use      the new ceiling, and only now.

A step that failed leaves doubt, never a right: the same bytes are linked again under the same number.

``CeilingExtender`` has the mount work done by a thread of its own, link and look together: whoever grants never waits
long for the mount. Until their result has crossed over the right reaches where it reached before: granting stops at
that ceiling, renewing too, and everything else goes on. A look that ended long before is as good as a fresh one: what
the record promises is kept by its being there, not by a clock.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import Final, Protocol

import msgspec

from timeagent.clock import NodeTime
from timeagent.errors import BadConfiguration, Damaged, Environment, TryAgain
from timeagent.keys import KeyInUse, Signer
from timeagent.units import SECOND, Instant, rfc3339

from ..formats.chains import CeilingKind, CeilingRecord, ceiling_of, open_ceiling
from ..formats.framing import Kind
from ..formats.policy import PolicyNumbers
from ..formats.shardmap import shard_number
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
    """The record is linked and seen: the right reaches until its ceiling."""

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


class _Before(msgspec.Struct, frozen=True, gc=False):
    """What a next record has to keep to."""

    number: int
    ceiling_ns: Instant
    floor_ns: Instant
    settle_to_ns: Instant


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
    (``succession.py``). Asked only when the chain is empty."""

    def __post_init__(self) -> None:
        self._newest: _Before | None = None
        self._linked = b""
        self._pending: tuple[CeilingRecord, bytes] | None = None
        self._must_win = False
        """Whether the next record counts only if this process linked it: others may link the very same bytes."""
        self._deposed: Deposed | None = None
        self.number = 0
        """The newest record of this incarnation that was linked and seen; 0 before the first."""
        self._ceiling_ns = 0
        self._pruned_to = 0
        self.floor_ns: Instant = 0
        """The shard floor at the start of this run: from the newest record before it."""
        self.settle_to_ns: Instant = 0

    @property
    def ceiling_ns(self) -> Instant:
        """Until when grants may reach now: 0 before the first record, and once deposed."""
        return 0 if self._deposed else self._ceiling_ns

    @property
    def deposed(self) -> Deposed | None:
        """Why this incarnation may never grant again, or None."""
        return self._deposed

    def begin(self) -> Extension:
        """Link the first record of this incarnation, on top of whatever is newest. Idempotent until it is linked.

        Raises BadTime, Damaged (the newest record cannot be read), BadConfiguration (a later map, and no ``origin``).
        """
        assert self.number == 0, "a chain begins once for each incarnation"
        if self._pending is None and self._deposed is None:
            try:
                before = self._find_newest()
            except (Environment, TryAgain) as problem:
                return InDoubt(f"the chain cannot be read: {problem.message}")
            if not isinstance(before, _Before):
                return before
            self._newest = before
            self.floor_ns, self.settle_to_ns = before.floor_ns, before.settle_to_ns
        return self.extend()

    def resume(self, record: bytes, pending: bytes) -> Extension:
        """Link the next record of an incarnation that stopped for a restart, when ``record`` was its newest.

        ``pending``: what it may have linked after that. Deposed: the newest of the chain is another, or somebody else
        has linked the next one, were it in this incarnation's name: two may have what it left, and one of them goes on.
        Idempotent until it is linked. Raises BadTime, Damaged.
        """
        assert self.number == 0, "a chain begins once for each incarnation"
        if self._newest is None and self._deposed is None:
            try:
                numbers = self._port.list_afresh()
                newest = self._port.read(numbers[-1]) if numbers else None
            except (Environment, TryAgain) as problem:
                return InDoubt(f"the chain cannot be read: {problem.message}")
            if newest is None or newest not in (record, pending):
                return self._depose("the newest record of the chain is not the one with which it stopped")
            kept, _ = open_ceiling(newest, f"record {numbers[-1]} of the chain")
            self._newest = _Before(kept.number, kept.ceiling_ns, kept.floor_ns, kept.settle_to_ns)
            self.floor_ns, self.settle_to_ns = kept.floor_ns, kept.settle_to_ns
            self._must_win = True
        return self.extend()

    def settle(self) -> Extension | None:
        """Return what came of an extension that is under way: there is none between two calls."""
        return None

    @property
    def standing(self) -> tuple[bytes, bytes]:
        """The newest record of this incarnation that was linked and seen, and one that may be linked after it."""
        return self._linked, self._pending[1] if self._pending is not None else b""

    def extend(self) -> Extension:
        """Link the next running record; the ceiling counts from ``latest``. Never after finish(). Raises BadTime."""
        assert self._pending is None or self._pending[0].kind is CeilingKind.RUNNING, "the chain is being finished"
        return self._link(CeilingKind.RUNNING, self.floor_ns, self.settle_to_ns)

    def finish(self, floor_ns: Instant, settle_to_ns: Instant) -> Extension:
        """Link the last record: a successor starts from these two numbers. Every lease must have ended. Raises BadTime.

        A running record in doubt is decided first; an orderly one in doubt is linked again as it is, because nothing
        was granted since.
        """
        if self._pending is not None and self._pending[0].kind is CeilingKind.RUNNING:
            decided = self.extend()
            if not isinstance(decided, Extended):
                return decided
        return self._link(CeilingKind.ORDERLY, floor_ns, settle_to_ns)

    def _find_newest(self) -> _Before | Extension:
        found = newest_of(self._port)
        if found is None:
            return self._empty()
        return found if isinstance(found, InDoubt) else self._before(*found)

    def _empty(self) -> _Before | InDoubt:
        """Return what an empty chain begins with: nothing under the first map, else what its origin says."""
        if self._origin is None and self._identity.map_number == 1:
            return _Before(0, 0, 0, 0)
        if self._origin is None:
            raise BadConfiguration(
                "chain-not-begun",
                f"shard {self._identity.shard} has no chain under map {self._identity.map_number}",
                hint="a chain of a later map begins where those of the map before were terminated",
            )
        begins = self._origin()
        if isinstance(begins, InDoubt):
            return begins
        return _Before(0, max(begins.floor_ns, begins.settle_to_ns), begins.floor_ns, begins.settle_to_ns)

    def _before(self, number: int, data: bytes) -> _Before | Deposed:
        mine = self._identity
        record = ceiling_of(data, (mine.cluster_id, mine.map_number, mine.shard), number)
        match record.kind:
            case CeilingKind.TERMINAL:
                return self._depose(f"record {number} of the chain is terminal: read the map anew")
            case CeilingKind.ORDERLY:
                return _Before(number, record.ceiling_ns, record.floor_ns, record.settle_to_ns)
            case CeilingKind.RUNNING:
                return _Before(number, record.ceiling_ns, record.ceiling_ns, record.ceiling_ns)

    def _link(self, kind: CeilingKind, floor_ns: Instant, settle_to_ns: Instant) -> Extension:
        if self._deposed is not None:
            return self._deposed
        if self._pending is None:
            self._pending = self._next_record(kind, floor_ns, settle_to_ns)
        record, data = self._pending
        linked = link_record(self._port, record.number, data, must_win=self._must_win)
        if linked is None:
            self._must_win = False
        listed = linked or look_for(self._port, record.number)
        if isinstance(listed, Overtaken):
            return self._depose(listed.reason)
        if isinstance(listed, InDoubt):
            return listed
        self._pending = None
        self._newest = _Before(record.number, record.ceiling_ns, record.floor_ns, record.settle_to_ns)
        self.number, self._ceiling_ns, self._linked = record.number, record.ceiling_ns, data
        self._prune([number for number in listed if number <= record.number - RECORDS_KEPT])
        return Extended(record, data)

    def _next_record(self, kind: CeilingKind, floor_ns: Instant, settle_to_ns: Instant) -> tuple[CeilingRecord, bytes]:
        before = self._newest
        assert before is not None, "begin() comes first"
        token = self._time.token()
        signer = self._signer.signer_at(token.midpoint_ns)
        ceiling = max(before.ceiling_ns, before.floor_ns, before.settle_to_ns, floor_ns, settle_to_ns)
        if kind is CeilingKind.RUNNING:
            ahead = self._policy.lease_term_max_ns + self._policy.ceiling_ahead_ns
            ceiling = max(ceiling, self._time.now().latest + ahead)
        record = CeilingRecord(
            cluster_id=self._identity.cluster_id,
            map_number=self._identity.map_number,
            shard=self._identity.shard,
            number=before.number + 1,
            node=self._identity.node,
            incarnation=self._identity.incarnation,
            kind=kind,
            ceiling_ns=ceiling,
            floor_ns=floor_ns,
            settle_to_ns=settle_to_ns,
            time=token.encode(),
        )
        return record, sign(Kind.CEILING, record, signer)

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
        ended = f"ended before {rfc3339(self._ceiling_ns)}" if self._ceiling_ns else "never began"
        self._deposed = Deposed(f"{reason}; the right to grant {ended}")
        return self._deposed


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


def newest_of(port: ChainPort) -> tuple[int, bytes] | InDoubt | None:
    """Return the newest record of a chain and its number, looked at afresh; None: it is empty. Raises Environment."""
    for _ in range(LOOKS_MAX):
        numbers = port.list_afresh()
        if not numbers:
            return None
        data = port.read(numbers[-1])
        if data is not None:
            return numbers[-1], data
    return InDoubt("the newest record of the chain is listed and cannot be read")


def link_record(port: ChainPort, number: int, data: bytes, *, must_win: bool = False) -> Overtaken | InDoubt | None:
    """Link a record; None: these bytes are there, and, ``must_win``, by this very call."""
    try:
        taken = not port.link(number, data) and (must_win or port.read(number) != data)
    except (Environment, TryAgain) as problem:
        return InDoubt(f"record {number} may be linked or not: {problem.message}")
    return Overtaken(f"record {number} of the chain is another's") if taken else None


def look_for(port: ChainPort, number: int) -> list[int] | Overtaken | InDoubt:
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


UNDER_WAY = InDoubt("the mount has not answered yet")


class CeilingExtender:
    """One incarnation's side of a ceiling chain (the shard's RightToGrant). For one caller; its own thread links.

    What it says of number, ceiling and floor changes only inside a call, never in between.
    """

    def __init__(self, chain: CeilingChain, time: NodeTime, policy: PolicyNumbers) -> None:
        """Take the chain: nobody else calls it from now on. The thread begins with the first extension."""
        self._chain = chain
        self._time = time
        self._policy = policy
        self._jobs: SimpleQueue[tuple[Future[Extension], Callable[[], Extension]] | None] = SimpleQueue()
        self._under_way: Future[Extension] | None = None
        self._finishing = False
        self._thread: Thread | None = None
        self._take_over()

    def _take_over(self) -> None:
        """Say from now on what the chain says. Only while no job is under way."""
        self.number = self._chain.number
        self.ceiling_ns: Instant = self._chain.ceiling_ns
        self.deposed: Deposed | None = self._chain.deposed
        self.floor_ns: Instant = self._chain.floor_ns
        self.settle_to_ns: Instant = self._chain.settle_to_ns

    def begin(self) -> Extension:
        """As the chain's: here, and however long the mount takes. Nobody is served before."""
        try:
            return self._chain.begin()
        finally:
            self._take_over()

    def resume(self, record: bytes, pending: bytes) -> Extension:
        """As the chain's: here, as ``begin``."""
        try:
            return self._chain.resume(record, pending)
        finally:
            self._take_over()

    def settle(self) -> Extension | None:
        """Return what came of an extension that is under way; None: there is none. Waits a quarter of an attempt."""
        if self._under_way is None:
            return None
        self._wait_for(self._under_way)
        return self._done(self._chain.extend, patient=False)

    def _wait_for(self, job: Future[Extension]) -> None:
        """Wait a quarter of an attempt, by the policy of now."""
        wait((job,), self._policy.attempt_timeout_ns / 4 / SECOND)

    @property
    def standing(self) -> tuple[bytes, bytes]:
        """See ``CeilingChain``. While no extension is under way."""
        assert not self.waits_for_the_mount
        return self._chain.standing

    def extend(self) -> Extension:
        """As the chain's; InDoubt while the mount does not answer: the next call takes up what has come of it.

        Waits a quarter of an attempt at most, once for each record, and only where a full term does not fit below the
        ceiling that there is. Raises BadTime.
        """
        assert not self._finishing, "the chain is being finished"
        return self._done(
            self._chain.extend, patient=self.ceiling_ns - self._time.now().latest < self._policy.lease_term_max_ns
        )

    def finish(self, floor_ns: Instant, settle_to_ns: Instant) -> Extension:
        """As the chain's, with the same bounded wait. An extension that is under way is waited for first."""
        if not self._finishing and self._under_way is not None:
            left = self._done(self._chain.extend, patient=False)
            if self._under_way is not None or isinstance(left, Deposed):
                return left
        self._finishing = True
        return self._done(functools.partial(self._chain.finish, floor_ns, settle_to_ns), patient=True)

    def close(self) -> None:
        """End the thread, once the mount lets it. Does not wait for it. Idempotent."""
        self._jobs.put(None)

    @property
    def waits_for_the_mount(self) -> bool:
        """Whether an extension is under way. Read by other threads."""
        job = self._under_way
        return job is not None and not job.done()

    def _done(self, step: Callable[[], Extension], *, patient: bool) -> Extension:
        """Return what came of the extension that is under way, or of this one. Raises what it raised."""
        job = self._under_way
        if job is None:
            job = self._under_way = Future()
            self._jobs.put((job, step))
            if self._thread is None:
                self._thread = Thread(target=self._run, name="tenure-ceiling", daemon=True)
                self._thread.start()
            if patient:
                self._wait_for(job)
        if not job.done():
            return UNDER_WAY
        self._under_way = None
        self._take_over()
        return job.result()

    def _run(self) -> None:
        while (each := self._jobs.get()) is not None:
            job, step = each
            try:
                job.set_result(step())
            except BaseException as problem:  # noqa: BLE001 - it is raised where the extension was asked for
                job.set_exception(problem)


type RightToGrant = CeilingChain | CeilingExtender
"""What a shard asks: the chain itself, or one that links by a thread of its own."""
