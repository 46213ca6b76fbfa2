"""One lease shard: a turn of requests in, replies with witnesses of one signed batch out (docs/protocol/lease.md).

A turn reads the clock once, decides every request on its domain's state, signs all witnesses and endings with one
signature, writes the changed states in one transaction, hands one block to the ledger, and only then answers. The shard
forgets everything when it stops: what a successor must know stands in the ceiling chain.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from timeagent.errors import BadRequest, BadTime, Environment

from ..formats.hints import nothing_known
from ..formats.names import check_domain
from ..formats.witness import Entry, Stopped, Witness
from .ceiling import Deposed, Extended, Extension, InDoubt, NotYet, Stop, StoppedOrderly
from .domain import Again, Bounds, Break, Command, Free, Grant, Memory, Nothing
from .inspection import Inspected, welcome
from .notary import Notary
from .plainturn import EVERY_DOMAIN, PlainTurns, no_witness, replies
from .recall import Recalls
from .sessions import Sessions
from .sessionwire import BeginSession, DropSession, RenewSession
from .state import decide, named
from .turn import Holders, Staged, Turn, holder_refused, revoked
from .waiting import Later, WaitingRoom, finished
from .whereabouts import HINT_BYTES_MAX, hints_for
from .wire import (
    NO_REQUEST,
    Acquire,
    Attend,
    Denied,
    Hello,
    Inspect,
    Refused,
    Relinquish,
    Renew,
    Reply,
    Request,
    Revoke,
    Task,
    Unavailable,
    Upgrade,
    Withdraw,
    decode_reply,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Mapping, Sequence

    from timeagent.clock import NodeTime
    from timeagent.interval import TimeInterval
    from timeagent.keys import Signer
    from timeagent.units import Instant, Span

    from ..formats.policy import PolicyNumbers
    from ..formats.shardmap import ShardMap
    from ..formats.witness import Batch
    from .ceiling import RightToGrant, ShardIdentity
    from .plainturn import Drafts
    from .ports import LedgerSink
    from .queue import Waiter
    from .store import LeaseStore
    from .waiting import Draft
    from .wire import Encoded

DOMAINS_MAX: Final = 1_000_000
"""How many domains a shard remembers: about three hundred bytes each."""

SWEEP_MAX: Final = 256
"""How many leases one sweep breaks, and how many domains more than needed it forgets."""

_ABOUT_A_DOMAIN: Final = (Acquire, Relinquish, Renew, Upgrade, Revoke)
_GRANTS_NOTHING: Final = (Relinquish, DropSession, Inspect, Hello)
_NOBODY: Final[Mapping[int, Waiter]] = MappingProxyType({})


class Shard:
    """A shard of one incarnation. Plain synchronous code for one thread; one call at a time.

    Blocks for tmpfs in every turn, and for the mount when the ceiling has to be extended.
    """

    def __init__(  # noqa: PLR0913 - the ports
        self,
        identity: ShardIdentity,
        shard_map: ShardMap,
        policy: PolicyNumbers,
        *,
        store: LeaseStore,
        chain: RightToGrant,
        time: NodeTime,
        signer: Signer,
        ledger: LedgerSink,
        randomness: random.Random,
        domains_max: int = DOMAINS_MAX,
        hint_bytes_max: int = HINT_BYTES_MAX,
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
        self._hint_bytes_max = hint_bytes_max
        self._floor_ns: Instant = 0
        self._settle_to_ns: Instant = 0
        self._notary = Notary(identity, signer, chain, ledger)
        self._holders = Holders()
        self._plain = PlainTurns(store, randomness, self._holders.good, self._refused_new, self._answer)
        self._waiting = WaitingRoom(time, Recalls(identity.incarnation, time.boot_ns))
        self._sessions = Sessions(store, randomness)
        self._shown = Inspected(identity, chain, store, self._notary, self._sessions, self._waiting)
        self._stopping = False
        self._stopped: StoppedOrderly | None = None

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self) -> Extension:
        """Link the first ceiling record; ``Extended``: the shard grants now. InDoubt: ask again. Raises BadTime."""
        began = self._linked(self._chain.begin())
        if isinstance(began, Extended):
            self._floor_ns, self._settle_to_ns = self._chain.floor_ns, self._chain.settle_to_ns
            self._store.begin(self._floor_ns, self._settle_to_ns)
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
        self._waiting.stop(*self._stopping_reason())
        if self._chain.deposed is not None:
            return self._drop(self._chain.deposed)
        turn = self._begin_turn()
        with self._store.transaction():
            for domain in self._store.tentative(self._store.leases):
                self._apply(turn, domain, Break(stopping=True))
            for domain in self._store.past(turn.bounds.now.earliest, self._store.leases):
                self._apply(turn, domain, Break())
            self._sessions.sweep(turn, self._store.sessions)
            batch = self._notary.sign(turn.entries, turn.token)
            self._write(turn)
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
        """Answer all requests at once, in their order: as ``serve`` without anybody who waits."""
        return [reply for reply in self.serve(requests) if reply is not None]

    def serve(self, requests: Sequence[Task], waiters: Mapping[int, Waiter] = _NOBODY) -> list[Reply | None]:
        """As ``encoded``, with replies that nobody has to decode."""
        return [decode_reply(each) if isinstance(each, bytes) else each for each in self.encoded(requests, waiters)]

    def encoded(
        self, requests: Sequence[Task], waiters: Mapping[int, Waiter] = _NOBODY
    ) -> Sequence[Reply | Encoded | None]:
        """Answer all requests, in their order; relinquishing goes first, so that others can have what it frees.

        ``waiters``: who takes an answer that is held back, by the request's position; the others want theirs at once.
        An answer that is None comes to its waiter, in this turn or a later one. Without requests: let those have their
        turn who wait; to be called when ``due_in`` says so.
        """
        unavailable: tuple[str, str] | None = None
        turn = None
        try:
            turn = self._begin_turn(self._make_reach(requests))
        except BadTime as problem:
            unavailable = ("bad-time", f"no usable time at node {self._identity.node}: {problem.message}")
        if self._chain.deposed is not None:
            unavailable = ("deposed", self._chain.deposed.reason)
        elif self._stopped is not None or self._chain.number == 0:
            unavailable = ("not-running", f"shard {self._identity.shard} at node {self._identity.node} is not running")
        if turn is None or unavailable is not None:
            assert unavailable is not None
            self._waiting.dismiss_due(*unavailable)
            return [self._answer_without_time(request, *unavailable) for request in requests]
        try:
            drafts, batch = self._written(turn, requests, waiters)
        except Environment as problem:
            self._waiting.dismiss(problem.code, problem.message)  # what they were told, and who waits, did not happen
            raise
        self._notary.publish(batch)
        witness = no_witness if batch is None else batch.encoded_witnesses()
        for waiter, draft in self._waiting.take_woken():
            waiter.answer(finished(draft, witness))
        return replies(drafts, witness)

    def _written(
        self, turn: Turn, requests: Sequence[Task], waiters: Mapping[int, Waiter]
    ) -> tuple[Drafts, Batch | None]:
        """Decide, sign and write. Raises Environment where the tmpfs is full: nothing has happened then."""
        with self._store.transaction():
            self._make_room(turn, requests)
            self._store.look_up([each.domain for each in requests if isinstance(each, _ABOUT_A_DOMAIN)])
            queues = EVERY_DOMAIN if self._stopping else self._waiting.domains
            recalled, unknown = self._waiting.recalls.asked, self._unknown()
            drafts = self._plain.answered(turn, requests, waiters, unknown, queues, recalled)
            if self._waiting.count:
                self._call_in(turn)
            batch = self._notary.sign(turn.entries, turn.token)
            self._write(turn)
        return drafts, batch

    def due_in(self) -> Span | None:
        """Return how long until ``serve`` has to be called for those who wait; None: nobody waits."""
        return self._waiting.due_in()

    def abandon(self, waiters: Iterable[Waiter]) -> None:
        """Forget those who wait and are gone. Whoever is behind them is looked at in the next turn."""
        self._waiting.abandon(waiters)

    def _call_in(self, turn: Turn) -> None:
        changed = [domain for domain, staged in turn.staged.items() if staged.state is not staged.before]
        changed += self._store.changed
        changed += self._sessions.freed(turn)

        def again(request: Acquire | Upgrade) -> Draft:
            return self._decided(turn, request)

        self._waiting.call_in(changed, again, turn.bounds.now)

    def _begin_turn(self, now: TimeInterval | None = None) -> Turn:
        """Read the clock, if it was not read just now. Raises BadTime."""
        now, token = now or self._time.now(), self._time.token()
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
            hint_bytes_left=max(0, self._hint_bytes_max - self._store.hint_bytes),
        )
        return Turn(bounds, token, self._notary.waiting())

    def _answer(  # noqa: PLR0911 - one for each kind
        self, turn: Turn, request: Task, waiter: Waiter | None
    ) -> Draft | None:
        match request:
            case Hello() | Inspect():
                return self._answer_without_time(request, "", "")
            case Relinquish():
                return self._apply(turn, request.domain, request, request.request_id)
            case Revoke():
                refused = holder_refused(request, request.by)
                return refused or revoked(turn, request, len(turn.entries), self._apply(turn, request.domain, request))
            case Withdraw():
                for domain in request.domains:
                    self._apply(turn, domain, Break(gone=request.holder))
                return Unavailable(request_id=request.request_id, code="", message="")
            case DropSession():
                return self._sessions.answer(turn, request)
            case Attend():
                return self._waiting.recalls.attend(request, waiter, turn.bounds.now.midpoint)
            case _ if self._stopping:
                code, why = self._stopping_reason()
                return Unavailable(request_id=request.request_id, code=code, message=why)
            case Acquire():
                problem = self._acquire_refused(turn, request)
                draft = problem or self._decided(turn, request)
                if isinstance(draft, Denied) or self._waiting.count:
                    return self._waiting.receive(request, draft, waiter, (request.holder, request.age), turn.bounds.now)
                return draft
            case Upgrade():
                draft = self._decided(turn, request)
                asks = named(self._stage(turn, request.domain).state, request.correlation_id)
                if asks is not None and (isinstance(draft, Denied) or self._waiting.count):
                    return self._waiting.receive(request, draft, waiter, (asks.holder, asks.age), turn.bounds.now)
                return draft
            case BeginSession() | RenewSession():
                return self._sessions.answer(turn, request)
            case _:
                return self._apply(turn, request.domain, request, request.request_id)

    def _stopping_reason(self) -> tuple[str, str]:
        return "stopping", f"shard {self._identity.shard} at node {self._identity.node} is stopping"

    def _decided(self, turn: Turn, request: Acquire | Upgrade) -> Draft:
        """Decide a request behind those who wait already."""
        if isinstance(request, Upgrade):
            return self._apply(turn, request.domain, request, request.request_id)
        expiry = None if request.session_id is None else self._sessions.expiry_for(turn, request)
        if isinstance(expiry, (Refused, Unavailable)):
            return expiry
        ahead = self._waiting.ahead(request.domain, request.request_id) if self._waiting.count else None
        command = Grant(request, self._randomness.randbytes(8), ahead, expiry)
        return self._apply(turn, request.domain, command, request.request_id)

    def _acquire_refused(self, turn: Turn, request: Acquire) -> Refused | Unavailable | None:
        """Check what is new: a holder, a domain that is not remembered."""
        refused = self._holders.refused(request)
        staged = self._stage(turn, request.domain)
        known = staged.revision or staged.state is not staged.before
        return refused or (None if known else self._refused_new(turn, request))

    def _refused_new(self, turn: Turn, request: Acquire) -> Refused | Unavailable | None:
        """Check a domain that is not remembered."""
        try:
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

    def _stage(self, turn: Turn, domain: str) -> Staged:
        staged = turn.staged.get(domain)
        if staged is None:
            state, revision = self._store.read(domain) or (Free(memory=self._unknown()), 0)
            staged = turn.staged[domain] = Staged(state, revision, state)
            if turn.granted and (plain := turn.granted.get(domain)) is not None:
                staged.answers = {plain[0]: plain[1]}
        return staged

    def _unknown(self) -> Memory:
        """Return what a domain has that is not remembered."""
        hints = nothing_known(self._floor_ns)
        return Memory(fence=0, floor_ns=self._floor_ns, settle_to_ns=self._settle_to_ns, hints=hints)

    def _apply(self, turn: Turn, domain: str, command: Command, request_id: bytes = NO_REQUEST) -> Draft:
        staged = turn.staged.get(domain) or self._stage(turn, domain)
        sessions = turn.sessions or self._store.sessions
        if sessions:
            self._waiting.recalls.ended(self._sessions.bring_up(turn, domain, staged, command))
        decision = decide(domain, staged.state, command, turn.bounds)
        if decision.state is not staged.state:
            if sessions:
                self._sessions.decided(turn, staged.state, decision)
            turn.note_hints(staged.state, decision.state)
            if staged.revision == 0 and staged.state is staged.before:
                turn.new += 1
            staged.state = decision.state
        if decision.ended:
            turn.entries.extend(decision.ended)
            self._waiting.recalls.ended(decision.ended)
        match decision.answer:
            case Witness() as witness:
                return self._later(turn, staged, witness, command, request_id)
            case Again(witness):
                return self._later(turn, staged, witness, command, request_id, again=True)
            case Nothing():
                return Unavailable(request_id=request_id, code="", message="")
            case Denied() as denied:
                self._sessions.waits(domain, decision.state)
                return self._waiting.recalls.denied(denied, decision.state, command, turn.bounds.now.midpoint)
            case _:
                return decision.answer

    def _later(
        self, turn: Turn, staged: Staged, witness: Witness, command: Command, request_id: bytes, *, again: bool = False
    ) -> Later:
        """Have a witness signed with this turn, unless it repeats one of this turn."""
        lease = witness.correlation_id
        entry = staged.answers.get(lease) if again and staged.answers is not None else None
        if entry is None:
            entry = len(turn.entries)
            turn.entries.append(witness)
            staged.answers = {**(staged.answers or {}), lease: entry}
        return Later(request_id, entry, hints_for(command, staged.state, lease))

    def _write(self, turn: Turn) -> None:
        """Write every changed state. Plain ones are where they belong already, and are counted here."""
        for domain, staged in turn.staged.items():
            if staged.state is not staged.before:
                self._store.write(domain, staged.revision, staged.before if staged.revision else None, staged.state)
        self._store.domains += turn.plain_new
        self._store.leases += turn.plain_leases
        self._sessions.write(turn)

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
        self._waiting.close("deposed", deposed.reason)
        if self._store.domains or self._store.sessions:
            with self._store.transaction():
                self._store.clear()
        return deposed

    def _gain_ns(self, now: TimeInterval) -> int:
        """How much higher the ceiling of a record linked now would be."""
        return now.latest + self._policy.lease_term_max_ns + self._policy.ceiling_ahead_ns - self._chain.ceiling_ns

    def _make_reach(self, requests: Sequence[Task]) -> TimeInterval | None:
        """Extend the ceiling before the turn if it would shorten a term, or lies at the shard floor. Raises BadTime.

        Returns the time, where that was asked and none has passed since.
        """
        nobody = not self._waiting.count and all(isinstance(each, _GRANTS_NOTHING) for each in requests)
        if nobody or self._stopping or self._chain.number == 0 or self._chain.deposed is not None:
            return None
        now = self._time.now()
        gain = self._gain_ns(now)
        if gain > self._policy.ceiling_ahead_ns or (gain > 0 and self._floor_ns >= self._chain.ceiling_ns):
            self._linked(self._chain.extend())
            return None
        return now

    def _make_room(self, turn: Turn, requests: Sequence[Task]) -> None:
        """Evict what is long past before more domains come in than are remembered; the shard floor covers it.

        Leases are never evicted; those surely past are broken, and can be evicted later.
        """
        excess = self._store.domains + len(requests) - self._domains_max
        if excess <= 0 or (excess := excess - sum(not isinstance(each, Acquire) for each in requests)) <= 0:
            return
        policy = self._policy
        earliest = turn.bounds.now.earliest
        old = earliest - (policy.span_ns + policy.grace_ns + 4 * policy.radius_ns_max)
        for domain, memory in self._store.idle(old, excess + SWEEP_MAX):
            self._store.forget(domain, memory)
            self._floor_ns = max(self._floor_ns, memory.floor_ns, memory.settle_to_ns, memory.fence)
            self._settle_to_ns = max(self._settle_to_ns, memory.settle_to_ns)
        self._sessions.sweep(turn)
        for domain in [*self._store.past(earliest, SWEEP_MAX), *self._sessions.dead(turn)]:
            self._apply(turn, domain, Break())

    def _answer_without_time(self, request: Task, code: str, message: str) -> Reply:
        match request:
            case Hello():
                return welcome(request, self._identity)
            case Inspect():
                return self._shown.page(request, self._floor_ns, self._settle_to_ns)
            case _:
                return Unavailable(request_id=request.request_id, code=code, message=message)
