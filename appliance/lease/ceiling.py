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
        self.deposed: Deposed | None = None
        """Why this incarnation may never grant again, or None."""
        self.number = 0
        """The newest record of this incarnation that was linked and seen; 0 before the first."""
        self.ceiling_ns: Instant = 0
        """Until when grants may reach now: 0 before the first record, and once deposed."""
        self._pruned_to = 0
        self.floor_ns: Instant = 0
        """The shard floor at the start of this run: from the newest record before it."""
        self.settle_to_ns: Instant = 0

    def begin(self) -> Extension:
        """Link the first record of this incarnation, on top of whatever is newest. Idempotent until it is linked.

        Raises BadTime, Damaged (the newest record cannot be read), BadConfiguration (a later map, and no ``origin``).
        """
        assert self.number == 0, "a chain begins once for each incarnation"
        if self._pending is None and self.deposed is None:
            try:
                found = newest_of(self._port)
                before = self._empty() if found is None else self._before(*found)
            except (Environment, TryAgain) as problem:
                return InDoubt(f"the chain cannot be read: {problem.message}")
            if not isinstance(before, _Before):
                return before
            self._newest = before
            self.floor_ns, self.settle_to_ns = before.floor_ns, before.settle_to_ns
        return self._link(CeilingKind.RUNNING, self.floor_ns, self.settle_to_ns, patient=None)

    def resume(self, record: bytes, pending: bytes) -> Extension:
        """Link the next record of an incarnation that stopped for a restart, when ``record`` was its newest.

        ``pending``: what it may have linked after that. Deposed: the newest of the chain is another, or somebody else
        has linked the next one, were it in this incarnation's name: two may have what it left, and one of them goes on.
        Idempotent until it is linked. Raises BadTime, Damaged.
        """
        assert self.number == 0, "a chain begins once for each incarnation"
        if self._newest is None and self.deposed is None:
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
        return self._link(CeilingKind.RUNNING, self.floor_ns, self.settle_to_ns, patient=None)

    def settle(self) -> Extension | None:
        """Return what came of an extension that is under way; None: there is none."""
        return None

    @property
    def waits_for_the_mount(self) -> bool:
        """Whether an extension is under way. Read by other threads."""
        return False

    def close(self) -> None:
        """Link nothing more. Does not wait for the mount. Idempotent."""

    @property
    def standing(self) -> tuple[bytes, bytes]:
        """The newest record of this incarnation that was linked and seen, and one that may be linked after it."""
        return self._linked, self._pending[1] if self._pending is not None else b""

    def extend(self) -> Extension:
        """Link the next running record; the ceiling counts from ``latest``. Never after finish(). Raises BadTime."""
        assert self._pending is None or self._pending[0].kind is CeilingKind.RUNNING, "the chain is being finished"
        return self._link(CeilingKind.RUNNING, self.floor_ns, self.settle_to_ns, patient=self._is_short())

    def _is_short(self) -> bool:
        """Whether an extension is worth a moment's wait."""
        return True

    def finish(self, floor_ns: Instant, settle_to_ns: Instant) -> Extension:
        """Link the last record: a successor starts from these two numbers. Every lease must have ended. Raises BadTime.

        A running record in doubt is decided first; an orderly one in doubt is linked again as it is, because nothing
        was granted since.
        """
        if self._pending is not None and self._pending[0].kind is CeilingKind.RUNNING:
            decided = self.extend()
            if not isinstance(decided, Extended):
                return decided
        return self._link(CeilingKind.ORDERLY, floor_ns, settle_to_ns, patient=True)

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

    def _link(self, kind: CeilingKind, floor_ns: Instant, settle_to_ns: Instant, *, patient: bool | None) -> Extension:
        """Link what is pending, or else the next record. ``patient``: see ``_by_mount``."""
        if self.deposed is not None:
            return self.deposed
        if self._pending is None:
            self._pending = self._next_record(kind, floor_ns, settle_to_ns)
        record, data = self._pending
        listed = self._by_mount(functools.partial(self._link_and_look, record.number, data), patient)
        if isinstance(listed, Overtaken):
            return self._depose(listed.reason)
        if isinstance(listed, InDoubt):
            return listed
        self._pending = None
        self._newest = _Before(record.number, record.ceiling_ns, record.floor_ns, record.settle_to_ns)
        self.number, self.ceiling_ns, self._linked = record.number, record.ceiling_ns, data
        return Extended(record, data)

    def _by_mount(self, steps: Callable[[], Listed], patient: bool | None) -> Listed:  # noqa: ARG002, FBT001
        """Do what touches the mount: here, however long it takes."""
        return steps()

    def _link_and_look(self, number: int, data: bytes) -> Listed:
        """Link a record and look, together; prune what is old. Changes nothing of what the chain says."""
        linked = link_record(self._port, number, data, must_win=self._must_win)
        if linked is None:
            self._must_win = False
        listed = linked or look_for(self._port, number)
        if isinstance(listed, list):
            self._prune([each for each in listed if each <= number - RECORDS_KEPT])
        return listed

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


UNDER_WAY = InDoubt("the mount has not answered yet")


class CeilingExtender(CeilingChain):
    """A chain whose mount work is done by a thread of its own, which begins with the first extension."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._jobs: SimpleQueue[tuple[Future[Listed], Callable[[], Listed]] | None] = SimpleQueue()
        self._under_way: Future[Listed] | None = None
        self._thread: Thread | None = None

    def settle(self) -> Extension | None:
        """Return what came of an extension that is under way; None: there is none. Waits a quarter of an attempt."""
        if self._under_way is None:
            return None
        self._wait_for(self._under_way)
        return self._link(CeilingKind.RUNNING, self.floor_ns, self.settle_to_ns, patient=False)

    @property
    def waits_for_the_mount(self) -> bool:
        job = self._under_way
        return job is not None and not job.done()

    def close(self) -> None:
        self._jobs.put(None)

    def _is_short(self) -> bool:
        """Only where a full term does not fit below the ceiling that there is."""
        return self.ceiling_ns - self._time.now().latest < self._policy.lease_term_max_ns

    def _wait_for(self, job: Future[Listed]) -> None:
        """Wait a quarter of an attempt, by the policy of now."""
        wait((job,), self._policy.attempt_timeout_ns / 4 / SECOND)

    def _by_mount(self, steps: Callable[[], Listed], patient: bool | None) -> Listed:  # noqa: FBT001
        """Have it done by the thread; ``UNDER_WAY`` until it is: the next call takes up what has come of it.

        ``patient``: wait for it a little, once; None: it is done here. Raises what it raised.
        """
        if patient is None:
            return steps()
        job = self._under_way
        if job is None:
            job = self._under_way = Future()
            self._jobs.put((job, steps))
            if self._thread is None:
                self._thread = Thread(target=self._run, name="tenure-ceiling", daemon=True)
                self._thread.start()
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
