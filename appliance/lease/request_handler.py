"""Answers one request of a turn: refuses it, queues it, or has ``decisions.decide`` decide it for its domain.

Nothing is signed or written here. A draft names the entry of the turn that is going to be its witness. What a shard
shows to people and greets holders with is unsigned, changes nothing, and is answered also without time.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Final

from timeagent.clock import NodeTime
from timeagent.errors import BadRequest, BadTime
from timeagent.units import rfc3339

from ..formats.names import check_domain
from ..formats.shardmap import shard_text
from ..formats.witness import Ended, Half, Witness
from . import wire
from .ceiling import CeilingChain, ShardIdentity
from .decisions import decide, named, raised
from .domain import Again, Break, Command, Free, Grant, LeaseRecord, Nothing, State, hints_for
from .recall import Waiter
from .sessions import Sessions
from .store import LeaseStore
from .turn import Draft, Holders, Later, Revocations, Turn, holder_refused
from .waiting import WaitingRoom
from .whole_shard import Eviction, GoingBy
from .witness_ledger import BatchSigner

_LOOKED_AT: Final = 2_048
"""How many leases are looked at for those of one session."""


def welcome(hello: wire.Hello, identity: ShardIdentity) -> wire.Welcome | wire.Refused:
    """Answer a Hello: another version, cluster or shard is refused by name."""
    if (refused := wire.foreign(hello, identity.cluster_id, "this shard")) is not None:
        return refused
    if hello.shard is not None and hello.shard != identity.number:
        here, there = shard_text(identity.number), shard_text(hello.shard)
        why = f"this is shard {here} at node {identity.node}, not shard {there}"
        return wire.Refused(request_id=wire.NO_REQUEST, code="other-shard", message=why, hint="read the shard map anew")
    return wire.Welcome(
        version=wire.PROTOCOL_VERSION,
        node=identity.node,
        map_number=identity.map_number,
        shard=identity.shard,
        incarnation=identity.incarnation,
    )


def clock_told(time: NodeTime, node: str) -> wire.ClockTold:
    """Tell what time it is here. What this node has no bound for is not told. Never blocks."""
    token = None
    try:
        token = time.token().encode()
        now = time.now()
    except BadTime as problem:
        return wire.ClockTold(node=node, problem=problem.message, token=token)
    return wire.ClockTold(node=node, earliest_ns=now.earliest, latest_ns=now.latest, token=token)


def _view(domain: str, lease: LeaseRecord, waiting: int) -> wire.LeaseView:
    return wire.LeaseView(
        domain=domain,
        mode=lease.mode,
        phase=lease.phase,
        holder=lease.holder,
        correlation_id=lease.correlation_id,
        fence=lease.fence,
        granted_ns=lease.granted_ns,
        expiry_ns=lease.expiry_ns,
        floor_ns=lease.floor_ns,
        settle_to_ns=lease.settle_to_ns,
        waiting=waiting,
        session_id=lease.session_id,
    )


class RequestHandler:
    """Answers the requests of one shard's turns."""

    def __init__(  # noqa: PLR0913 - the parts
        self,
        identity: ShardIdentity,
        going: GoingBy,
        randomness: random.Random,
        *,
        store: LeaseStore,
        eviction: Eviction,
        sessions: Sessions,
        waiting: WaitingRoom,
        chain: CeilingChain,
        batch_signer: BatchSigner,
        time: NodeTime,
    ) -> None:
        self._identity = identity
        self._going = going
        self._randomness = randomness
        self._store = store
        self._eviction = eviction
        self._sessions = sessions
        self._waiting = waiting
        self._chain = chain
        self._batch_signer = batch_signer
        self._time = time
        self.holders = Holders()
        self.revocations = Revocations()
        self.stopping = False
        """Whether nothing is granted any more, and no lease kept."""

    def answer(  # noqa: PLR0911 - one for each kind
        self, turn: Turn, request: wire.Task, waiter: Waiter | None
    ) -> Draft | None:
        """Answer a request; None: ``waiter`` gets the answer, now or in a later turn."""
        match request:
            case wire.Hello() | wire.Inspect() | wire.AskClock():
                return self.without_time(request, "", "")
            case wire.Relinquish():
                return self.apply(turn, request.domain, request, request.request_id)
            case wire.Revoke():
                if (stranger := holder_refused(request, request.by)) is not None:
                    return stranger
                entries = len(turn.entries)
                answer = self.apply(turn, request.domain, request)
                self.revocations.note(turn, request, entries)
                return answer
            case wire.Withdraw():
                for domain in request.domains:
                    self.apply(turn, domain, Break(gone=request.holder))
                return wire.Unavailable(request_id=request.request_id, code="", message="")
            case wire.DropSession():
                return self._sessions.answer(turn, request)
            case wire.Attend():
                return self._waiting.attend(request, waiter, turn.bounds.now.midpoint)
            case _ if (refused := self._not_now(request)) is not None:
                return refused
            case wire.Acquire():
                draft = self._acquire_refused(request) or self.decided(turn, request)
                if isinstance(draft, wire.Denied) or self._waiting.count:
                    return self._waiting.receive(request, draft, waiter, (request.holder, request.age), turn.bounds.now)
                return draft
            case wire.Upgrade():
                draft = self.decided(turn, request)
                asks = named(self._state(request.domain), request.correlation_id)
                if asks is not None and (isinstance(draft, wire.Denied) or self._waiting.count):
                    return self._waiting.receive(request, draft, waiter, (asks.holder, asks.age), turn.bounds.now)
                return draft
            case wire.BeginSession() | wire.RenewSession():
                return self.revocations.told(turn, self._sessions.answer(turn, request))
            case _:
                return self.apply(turn, request.domain, request, request.request_id)

    def _not_now(self, request: wire.Task) -> wire.Unavailable | None:
        """Send away who asks a shard that stops, or names a map by which it does not go."""
        if self.stopping and not isinstance(request, wire.Hello | wire.Inspect | wire.AskClock):
            code, why = self.stopping_reason()
            return wire.Unavailable(request_id=request.request_id, code=code, message=why)
        return self._going.refused(request)

    def stopping_reason(self) -> tuple[str, str]:
        """Return code and message for what is not granted because the shard stops."""
        return "stopping", f"shard {self._identity.shard} at node {self._identity.node} is stopping"

    def decided(self, turn: Turn, request: wire.Acquire | wire.Upgrade) -> Draft:
        """Decide a request behind those who wait already."""
        if request.above is not None and self._going.half is Half.COMING:
            above = request.above
            if max(above.fence, above.floor_ns, above.settle_to_ns) > turn.bounds.ceiling_ns:
                why = f"the other half of {request.domain!r} is above the ceiling {rfc3339(turn.bounds.ceiling_ns)}"
                return wire.Unavailable(request_id=request.request_id, code="above-ceiling", message=why)
        if isinstance(request, wire.Upgrade):
            return self.apply(turn, request.domain, request, request.request_id)
        expiry = None if request.session_id is None else self._sessions.expiry_for(request)
        if isinstance(expiry, (wire.Refused, wire.Unavailable)):
            return expiry
        ahead = self._waiting.ahead(request.domain, request.request_id) if self._waiting.count else None
        command = Grant(request, self._randomness.randbytes(8), ahead, expiry)
        return self.apply(turn, request.domain, command, request.request_id)

    def _acquire_refused(self, request: wire.Acquire) -> wire.Refused | wire.Unavailable | None:
        """Check what is new: a holder, a domain that is not remembered."""
        return self.holders.refused(request) or (
            None if self._store.knows(request.domain) else self.refused_new(request)
        )

    def refused_new(self, request: wire.Acquire) -> wire.Refused | wire.Unavailable | None:
        """Check a domain that is not remembered."""
        try:
            check_domain(request.domain)
        except BadRequest as problem:
            return wire.Refused(
                request_id=request.request_id, code=problem.code, message=problem.message, hint=problem.hint
            )
        owners = self._going.map.shards_of(request.domain)
        if self._identity.number not in owners:
            where, here = " and ".join(map(shard_text, owners)), shard_text(self._identity.number)
            why = f"{request.domain!r} belongs to shard {where} of map {self._going.number}, not {here}"
            return wire.Refused(request_id=request.request_id, code="wrong-shard", message=why, hint="ask that shard")
        if self._store.full:
            return wire.Unavailable(request_id=request.request_id, code="store-full", message=self._store.why_full())
        if self._store.domains >= self._eviction.domains_max:
            why = f"the shard remembers {self._eviction.domains_max} domains, and none can be forgotten yet"
            return wire.Unavailable(request_id=request.request_id, code="busy", message=why)
        return None

    def _state(self, domain: str) -> State:
        return self._store.read(domain) or Free(memory=self._eviction.memory())

    def apply(self, turn: Turn, domain: str, command: Command, request_id: bytes = wire.NO_REQUEST) -> Draft:
        """Have ``decisions.decide`` take a command to its domain, remember the state, and gather what follows."""
        state = self._state(domain)
        if self._store.sessions:
            entries = len(turn.entries)
            state = self._sessions.bring_up(turn, domain, state, command)
            self._recalls_over(each for each in turn.entries[entries:] if isinstance(each, Ended))
        asked = command.request if isinstance(command, Grant) else command
        above = asked.above if isinstance(asked, wire.Acquire | wire.Upgrade) else None
        if above is not None and self._going.half is Half.COMING:
            state = raised(state, above.fence, above.floor_ns, above.settle_to_ns)
        decision = decide(domain, state, command, turn.bounds)
        if decision.state is not state:
            if self._store.sessions:
                self._sessions.decided(turn, state, decision)
            turn.note_hints(state, decision.state)
            self._store.put(domain, decision.state)
        if decision.ended:
            turn.entries.extend(decision.ended)
            self._recalls_over(decision.ended)
        match decision.answer:
            case Witness() as witness:
                return self._later(turn, decision.state, witness, command, request_id)
            case Again(witness):
                return self._later(turn, decision.state, witness, command, request_id, again=True)
            case Nothing():
                return wire.Unavailable(request_id=request_id, code="", message="")
            case wire.Denied() as denied:
                self._sessions.waits(domain, decision.state)
                return self._waiting.recalls.denied(denied, decision.state, command, turn.bounds.now.midpoint)
            case wire.Over() if isinstance(command, wire.Upgrade | wire.Renew | wire.Relinquish):
                return self.revocations.told(turn, decision.answer, command.correlation_id)
            case _:
                return decision.answer

    def _recalls_over(self, leases: Iterable[Ended]) -> None:
        for each in leases:
            self._waiting.recalls.ended(each.ending.correlation_id)

    def _later(
        self, turn: Turn, state: State, witness: Witness, command: Command, request_id: bytes, *, again: bool = False
    ) -> Later:
        """Have a witness signed with this turn, unless it repeats one of this turn."""
        lease = witness.correlation_id
        entry = turn.answers.get(lease) if again else None
        if entry is None:
            entry = turn.answers[lease] = len(turn.entries)
            turn.entries.append(witness)
        return Later(wire.Granted(request_id=request_id, signed=b"", hints=hints_for(command, state, lease)), entry)

    def without_time(self, request: wire.Task, code: str, message: str) -> wire.Reply:
        """Answer what needs no clock; everything else is unavailable, and ``code`` and ``message`` say why."""
        match request:
            case wire.Hello():
                return welcome(request, self._identity)
            case wire.Inspect():
                return self._page(request)
            case wire.AskClock():
                return clock_told(self._time, self._identity.node)
            case _:
                return wire.Unavailable(request_id=request.request_id, code=code, message=message)

    def _page(self, inspect: wire.Inspect) -> wire.LeasePage:
        """Show a page of leases, and how the shard stands.

        Of one session lease at most so many domains are looked at, of whichever: the page may be empty, and not the
        last.
        """
        limit = max(1, min(inspect.leases_max, wire.PAGE_LEASES_MAX))
        if inspect.session_id is not None:
            limit = _LOOKED_AT
        rows, more = self._store.page(inspect.after_domain, limit, inspect.domain)
        shown = self._sessions.shown(rows, inspect.session_id)
        return wire.LeasePage(
            numbers=self._numbers(),
            leases=tuple(
                _view(domain, lease, self._waiting.waiting(domain)) for domain, state in shown for lease in state.leases
            ),
            more=more,
            after_domain=rows[-1][0] if rows else inspect.after_domain,
        )

    def _numbers(self) -> wire.ShardNumbers:
        return wire.ShardNumbers(
            node=self._identity.node,
            map_number=self._identity.map_number,
            shard=self._identity.shard,
            incarnation=self._identity.incarnation,
            going_by=self._going.number,
            half=self._going.half,
            alone_until_ns=self._going.alone_until_ns,
            floor_ns=self._eviction.floor_ns,
            settle_to_ns=self._eviction.settle_to_ns,
            ceiling_number=self._chain.number,
            ceiling_ns=self._chain.ceiling_ns,
            domains=self._store.domains,
            leases=self._store.leases,
            waiting=self._waiting.count,
            batches=self._batch_signer.batches,
            blocks_lost=self._batch_signer.blocks_lost,
            since_ns=self._identity.since_ns,
            release=self._identity.release,
            sessions=len(self._store.sessions),
        )
