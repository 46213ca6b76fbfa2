"""One lease shard: a turn of requests in, replies with witnesses of one signed batch out (docs/protocol/lease.md).

A turn reads the clock once, decides every request on its domain's state, signs all witnesses and endings with one
signature, writes the changed states in one transaction, hands one block to the ledger, and only then answers. The shard
forgets everything when it stops: what a successor must know stands in the ceiling chain.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from timeagent.canonical import encode
from timeagent.errors import BadRequest, BadTime

from ..formats.lease import Mode
from ..formats.names import check_domain, check_node, check_purpose
from ..formats.witness import Entry, Stopped, Witness
from .ceiling import Deposed, Extended, Extension, InDoubt
from .inspection import page, welcome
from .notary import Notary
from .state import Again, Bounds, Break, Command, Free, Grant, Memory, Nothing, State, decide
from .wire import (
    NO_REQUEST,
    PAGE_LEASES_MAX,
    Acquire,
    Granted,
    Hello,
    Inspect,
    Page,
    Refused,
    Relinquish,
    Reply,
    Request,
    ShardNumbers,
    Unavailable,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from timeagent.clock import NodeTime
    from timeagent.interval import TimeInterval
    from timeagent.keys import Signer
    from timeagent.signedtime import SignedTime
    from timeagent.units import Instant

    from ..formats.policy import Policy
    from ..formats.shardmap import ShardMap
    from ..formats.witness import Batch
    from .ceiling import RightToGrant, ShardIdentity
    from .ports import LedgerSink
    from .store import LeaseStore

DOMAINS_MAX: Final = 1_000_000
"""How many domains a shard remembers: about a kilobyte each while leased, a few hundred bytes after."""

SWEEP_MAX: Final = 256
"""How many leases one sweep breaks, and how many domains more than needed it forgets."""

_HOLDERS_KNOWN: Final = 4096


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


@dataclass(slots=True)
class _Staged:
    """A domain in this turn: as it was read, and as it will be written."""

    before: State
    revision: int
    """0: not remembered before this turn."""
    state: State
    answer: int | None = None
    """Which entry of this turn is the newest witness of its lease."""


@dataclass(slots=True)
class _Turn:
    """What one turn gathers."""

    bounds: Bounds
    token: SignedTime
    entries: list[Entry]
    staged: dict[str, _Staged] = field(default_factory=dict)
    new: int = 0
    """How many domains will be remembered that were not."""


@dataclass(frozen=True, slots=True)
class _Later:
    """A reply that waits for the turn's signature."""

    request_id: bytes
    entry: int


class Shard:
    """A shard of one incarnation. Plain synchronous code for one thread; one call at a time.

    Blocks for tmpfs in every turn, and for the mount when the ceiling has to be extended.
    """

    def __init__(  # noqa: PLR0913 - the ports
        self,
        identity: ShardIdentity,
        shard_map: ShardMap,
        policy: Policy,
        *,
        store: LeaseStore,
        chain: RightToGrant,
        time: NodeTime,
        signer: Signer,
        ledger: LedgerSink,
        randomness: random.Random,
        domains_max: int = DOMAINS_MAX,
    ) -> None:
        """Take the ports; ``store`` is empty. Grants nothing before start()."""
        assert identity.map_number == shard_map.number
        self._identity = identity
        self._map = shard_map
        self._store = store
        self._chain = chain
        self._time = time
        self._policy = policy
        self._randomness = randomness
        self._domains_max = domains_max
        self._floor_ns: Instant = 0
        self._settle_to_ns: Instant = 0
        self._notary = Notary(identity, signer, chain, ledger)
        self._holders: set[object] = set()
        self._stopping = False
        self._stopped: StoppedOrderly | None = None

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self) -> Extension:
        """Link the first ceiling record; ``Extended``: the shard grants now. InDoubt: ask again. Raises BadTime."""
        began = self._linked(self._chain.begin())
        if isinstance(began, Extended):
            self._floor_ns, self._settle_to_ns = self._chain.floor_ns, self._chain.settle_to_ns
            self._flush()
        return began

    def housekeeping(self) -> Extension | None:
        """Extend the ceiling if leases are out and a period has passed; None: nothing to do, or no usable time now.

        To be called several times in a ceiling period. Touches the mount when it extends.
        """
        if self._stopping or self._chain.number == 0 or self._chain.deposed is not None:
            return self._chain.deposed
        try:
            if self._store.leases == 0 or self._gain_ns(self._time.now()) < self._policy.ceiling_period_ns:
                return None
            extension = self._linked(self._chain.extend())
            self._flush()
        except BadTime:
            return None
        return extension

    def stop_orderly(self) -> Stop:
        """Grant nothing more; link the orderly record once every lease has ended. Ask again on NotYet and InDoubt.

        Tentative leases are withdrawn at once, held ones broken when surely past. Raises BadTime.
        """
        if self._stopped is not None:
            return self._stopped
        assert self._chain.number or self._chain.deposed, "start() comes first"
        self._stopping = True
        if self._chain.deposed is not None:
            return self._drop(self._chain.deposed)
        turn = self._begin_turn()
        with self._store.transaction():
            for domain in self._store.tentative(self._store.leases):
                self._apply(turn, domain, Break(stopping=True))
            for domain in self._store.past(turn.bounds.now.earliest, self._store.leases):
                self._apply(turn, domain, Break())
            batch = self._notary.sign(turn.entries, turn.token)
            self._write(turn, batch)
        self._notary.publish(batch)
        until = self._store.latest_expiry()
        if until is not None:
            return NotYet(until + turn.bounds.now.radius + 1, self._store.leases)
        fence, floor, settle_to = self._store.highest()
        floor, settle_to = max(floor, fence, self._floor_ns), max(settle_to, self._settle_to_ns)
        finished = self._linked(self._chain.finish(floor, settle_to))
        if not isinstance(finished, Extended):
            return finished
        self._stopped = StoppedOrderly(finished.record.floor_ns, finished.record.settle_to_ns)
        self._flush(Stopped(floor_ns=self._stopped.floor_ns, settle_to_ns=self._stopped.settle_to_ns))
        return self._stopped

    def over(self) -> str | None:
        """Return why this incarnation will never grant again, or None: another is the owner of its chain."""
        return None if self._chain.deposed is None else self._chain.deposed.reason

    # -- one turn ------------------------------------------------------------------------------------------------------

    def turn(self, requests: Sequence[Request]) -> list[Reply]:
        """Answer all requests, in their order; relinquishing goes first, so that others can have what it frees."""
        unavailable: tuple[str, str] | None = None
        turn = None
        try:
            self._make_reach(requests)
            turn = self._begin_turn()
        except BadTime as problem:
            unavailable = ("bad-time", f"no usable time at node {self._identity.node}: {problem.message}")
        if self._chain.deposed is not None:
            unavailable = ("deposed", self._chain.deposed.reason)
        elif self._stopped is not None or self._chain.number == 0:
            unavailable = ("not-running", f"shard {self._identity.shard} at node {self._identity.node} is not running")
        if turn is None or unavailable is not None:
            assert unavailable is not None
            return [self._answer_without_time(request, *unavailable) for request in requests]
        drafts: dict[int, Reply | _Later] = {}
        with self._store.transaction():
            self._make_room(turn, sum(isinstance(request, Acquire) for request in requests))
            for early in (True, False):
                for position, request in enumerate(requests):
                    if isinstance(request, Relinquish) is early:
                        drafts[position] = self._answer(turn, request)
            batch = self._notary.sign(turn.entries, turn.token)
            witnesses = self._write(turn, batch)
        self._notary.publish(batch)
        return [self._finished(drafts[position], witnesses) for position in range(len(requests))]

    def _begin_turn(self) -> _Turn:
        """Read the clock, once. Raises BadTime."""
        now, token = self._time.now(), self._time.token()
        if not token.status.usable or max(now.radius, token.radius_ns) > self._policy.radius_ns_max:
            raise BadTime(
                "unusable-time",
                f"status {token.status.name.lower()}, radius {max(now.radius, token.radius_ns)} ns; "
                f"the policy allows {self._policy.radius_ns_max} ns",
                hint="wait for the clock to settle, or mend its time service",
            )
        bounds = Bounds(
            now=now,
            term_ns_max=self._policy.lease_term_max_ns,
            ceiling_ns=self._chain.ceiling_ns,
            signed_ns_max=token.midpoint_ns + self._policy.lease_term_max_ns + token.radius_ns,
            shard_floor_ns=self._floor_ns,
            r1_tolerance_ns=self._policy.r1_tolerance_ns,
        )
        return _Turn(bounds, token, self._notary.waiting())

    def _answer(self, turn: _Turn, request: Request) -> Reply | _Later:
        match request:
            case Hello():
                return welcome(request, self._identity)
            case Inspect():
                return self._page(request)
            case Relinquish():
                return self._apply(turn, request.domain, request, request.request_id)
            case _ if self._stopping:
                why = f"shard {self._identity.shard} at node {self._identity.node} is stopping"
                return Unavailable(request_id=request.request_id, code="stopping", message=why)
            case Acquire():
                problem = self._acquire_refused(turn, request)
                command = Grant(request, self._randomness.randbytes(8))
                return problem or self._apply(turn, request.domain, command, request.request_id)
            case _:
                return self._apply(turn, request.domain, request, request.request_id)

    def _acquire_refused(self, turn: _Turn, request: Acquire) -> Refused | Unavailable | None:
        """Check what is new: a mode, a holder, a domain that is not remembered."""
        if request.mode is not Mode.X:
            why = f"this shard grants mode X; mode {request.mode} was asked for"
            return Refused(request_id=request.request_id, code="mode-not-granted", message=why, hint="ask for mode X")
        try:
            if request.holder not in self._holders:
                check_node(request.holder.node)
                check_purpose(request.holder.purpose)
                if len(self._holders) >= _HOLDERS_KNOWN:
                    self._holders.clear()
                self._holders.add(request.holder)
            if self._stage(turn, request.domain).revision:
                return None
            check_domain(request.domain)
        except BadRequest as problem:
            return Refused(request_id=request.request_id, code=problem.code, message=problem.message, hint=problem.hint)
        owner = self._map.shard_of(request.domain)
        if owner != self._identity.shard:
            why = f"{request.domain!r} belongs to shard {owner} of map {self._map.number}, not {self._identity.shard}"
            return Refused(request_id=request.request_id, code="wrong-shard", message=why, hint="ask that shard")
        if self._store.domains + turn.new >= self._domains_max:
            why = f"the shard remembers {self._domains_max} domains, and none can be forgotten yet"
            return Unavailable(request_id=request.request_id, code="busy", message=why)
        return None

    def _stage(self, turn: _Turn, domain: str) -> _Staged:
        staged = turn.staged.get(domain)
        if staged is None:
            state, revision = self._store.read(domain) or (self._unknown(), 0)
            staged = turn.staged[domain] = _Staged(state, revision, state)
        return staged

    def _unknown(self) -> Free:
        return Free(memory=Memory(fence=0, floor_ns=self._floor_ns, settle_to_ns=self._settle_to_ns))

    def _apply(self, turn: _Turn, domain: str, command: Command, request_id: bytes = NO_REQUEST) -> Reply | _Later:
        staged = self._stage(turn, domain)
        decision = decide(domain, staged.state, command, turn.bounds)
        turn.entries.extend(decision.ended)
        if staged.revision == 0 and staged.state is staged.before and decision.state is not staged.before:
            turn.new += 1
        staged.state = decision.state
        match decision.answer:
            case Witness():
                staged.answer = len(turn.entries)
                turn.entries.append(decision.answer)
                return _Later(request_id, staged.answer)
            case Again():
                if staged.answer is not None:
                    return _Later(request_id, staged.answer)
                signed = self._store.answer(domain)
                assert signed is not None, "a lease is stored with its newest witness"
                return Granted(request_id=request_id, signed=signed)
            case Nothing():
                return Unavailable(request_id=request_id, code="", message="")
            case _:
                return decision.answer

    def _write(self, turn: _Turn, batch: Batch | None) -> dict[int, bytes]:
        """Write every changed state; return the encoded witnesses of this turn that somebody waits for."""
        witnesses: dict[int, bytes] = {}
        if batch is not None:
            for index, entry in enumerate(turn.entries):
                if isinstance(entry, Witness):
                    witnesses[index] = encode(batch.signed_witness(index))
        for domain, staged in turn.staged.items():
            if staged.state is staged.before:
                continue
            answer = None if staged.answer is None or isinstance(staged.state, Free) else witnesses[staged.answer]
            if staged.revision == 0:
                self._store.insert(domain, staged.state, answer)
            else:
                self._store.swap(domain, staged.revision, staged.before, staged.state, answer)
        return witnesses

    def _finished(self, draft: Reply | _Later, witnesses: dict[int, bytes]) -> Reply:
        if isinstance(draft, _Later):
            return Granted(request_id=draft.request_id, signed=witnesses[draft.entry])
        return draft

    # -- ceiling and room ----------------------------------------------------------------------------------------------

    def _flush(self, *entries: Entry) -> None:
        """Sign what no request waits for. Without usable time chain records wait for the next batch."""
        try:
            turn = self._begin_turn()
        except BadTime:
            return
        turn.entries.extend(entries)
        self._notary.publish(self._notary.sign(turn.entries, turn.token))

    def _linked(self, extension: Extension) -> Extension:
        match extension:
            case Extended():
                self._notary.note(extension.data)
            case Deposed():
                self._drop(extension)
            case InDoubt():
                pass
        return extension

    def _drop(self, deposed: Deposed) -> Deposed:
        if self._store.domains:
            with self._store.transaction():
                self._store.clear()
        return deposed

    def _gain_ns(self, now: TimeInterval) -> int:
        """How much higher the ceiling of a record linked now would be."""
        return now.latest + self._policy.lease_term_max_ns + self._policy.ceiling_ahead_ns - self._chain.ceiling_ns

    def _make_reach(self, requests: Sequence[Request]) -> None:
        """Extend the ceiling before the turn if it would shorten a term, or lies at the shard floor. Raises BadTime."""
        if self._stopping or self._chain.number == 0 or self._chain.deposed is not None:
            return
        if all(isinstance(request, Relinquish | Inspect | Hello) for request in requests):
            return
        gain = self._gain_ns(self._time.now())
        if gain > self._policy.ceiling_ahead_ns or (gain > 0 and self._floor_ns >= self._chain.ceiling_ns):
            self._linked(self._chain.extend())

    def _make_room(self, turn: _Turn, acquires: int) -> None:
        """Evict what is long past before more domains come in than are remembered; the shard floor covers it.

        Leases are never evicted; those surely past are broken, and can be evicted later.
        """
        excess = self._store.domains + acquires - self._domains_max
        if excess <= 0:
            return
        policy = self._policy
        earliest = turn.bounds.now.earliest
        old = earliest - (policy.span_ns + policy.grace_ns + 4 * policy.radius_ns_max)
        for domain, memory in self._store.idle(old, excess + SWEEP_MAX):
            self._store.forget(domain)
            self._floor_ns = max(self._floor_ns, memory.floor_ns, memory.settle_to_ns, memory.fence)
            self._settle_to_ns = max(self._settle_to_ns, memory.settle_to_ns)
        for domain in self._store.past(earliest, SWEEP_MAX):
            self._apply(turn, domain, Break())

    # -- answers that change nothing -----------------------------------------------------------------------------------

    def _answer_without_time(self, request: Request, code: str, message: str) -> Reply:
        match request:
            case Hello():
                return welcome(request, self._identity)
            case Inspect():
                return self._page(request)
            case _:
                return Unavailable(request_id=request.request_id, code=code, message=message)

    def _page(self, inspect: Inspect) -> Page:
        limit = max(1, min(inspect.leases_max, PAGE_LEASES_MAX))
        numbers = ShardNumbers(
            node=self._identity.node,
            map_number=self._identity.map_number,
            shard=self._identity.shard,
            incarnation=self._identity.incarnation,
            floor_ns=self._floor_ns,
            settle_to_ns=self._settle_to_ns,
            ceiling_number=self._chain.number,
            ceiling_ns=self._chain.ceiling_ns,
            domains=self._store.domains,
            leases=self._store.leases,
            batches=self._notary.batches,
            blocks_lost=self._notary.blocks_lost,
        )
        return page(numbers, self._store.page(inspect.after_domain, limit + 1), limit)
