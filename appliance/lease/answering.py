"""How a shard answers one request of a turn: what is refused, who waits, what ``state.decide`` says of its domain.

Nothing is signed or written here. A draft names the entry of the turn that is going to be its witness.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timeagent.errors import BadRequest

from ..formats.names import check_domain
from ..formats.witness import Witness
from .domain import Again, Break, Command, Free, Grant, Nothing
from .inspection import welcome
from .sessionwire import BeginSession, DropSession, RenewSession
from .state import decide, named
from .turn import Holders, Revocations, Staged, Turn, holder_refused
from .waiting import Later
from .whereabouts import hints_for
from .wire import (
    NO_REQUEST,
    Acquire,
    AskClock,
    Attend,
    Denied,
    Hello,
    Inspect,
    Over,
    Refused,
    Relinquish,
    Renew,
    Revoke,
    Task,
    Unavailable,
    Upgrade,
    Withdraw,
)

if TYPE_CHECKING:
    import random

    from ..formats.shardmap import ShardMap
    from .ceiling import ShardIdentity
    from .forgotten import Forgotten
    from .inspection import Inspected
    from .queue import Waiter
    from .sessions import Sessions
    from .store import LeaseStore
    from .waiting import Draft, WaitingRoom
    from .wire import Reply


class Answers:
    """Answers the requests of one shard's turns."""

    def __init__(
        self,
        identity: ShardIdentity,
        shard_map: ShardMap,
        randomness: random.Random,
        *,
        store: LeaseStore,
        forgotten: Forgotten,
        sessions: Sessions,
        waiting: WaitingRoom,
        shown: Inspected,
    ) -> None:
        """Take the parts."""
        self._identity = identity
        self._map = shard_map
        self._randomness = randomness
        self._store = store
        self._forgotten = forgotten
        self._sessions = sessions
        self._waiting = waiting
        self._shown = shown
        self.holders = Holders()
        self._revocations = Revocations()
        self.stopping = False
        """Whether nothing is granted any more, and no lease kept."""

    def answer(  # noqa: PLR0911 - one for each kind
        self, turn: Turn, request: Task, waiter: Waiter | None
    ) -> Draft | None:
        """Answer a request; None: ``waiter`` gets the answer, now or in a later turn."""
        match request:
            case Hello() | Inspect() | AskClock():
                return self.without_time(request, "", "")
            case Relinquish():
                return self.apply(turn, request.domain, request, request.request_id)
            case Revoke():
                if (refused := holder_refused(request, request.by)) is not None:
                    return refused
                entries = len(turn.entries)
                answer = self.apply(turn, request.domain, request)
                self._revocations.note(turn, request, entries)
                return answer
            case Withdraw():
                for domain in request.domains:
                    self.apply(turn, domain, Break(gone=request.holder))
                return Unavailable(request_id=request.request_id, code="", message="")
            case DropSession():
                return self._sessions.answer(turn, request)
            case Attend():
                return self._waiting.attend(request, waiter, turn.bounds.now.midpoint)
            case _ if self.stopping:
                code, why = self.stopping_reason()
                return Unavailable(request_id=request.request_id, code=code, message=why)
            case Acquire():
                problem = self._acquire_refused(turn, request)
                draft = problem or self.decided(turn, request)
                if isinstance(draft, Denied) or self._waiting.count:
                    return self._waiting.receive(request, draft, waiter, (request.holder, request.age), turn.bounds.now)
                return draft
            case Upgrade():
                draft = self.decided(turn, request)
                asks = named(self._stage(turn, request.domain).state, request.correlation_id)
                if asks is not None and (isinstance(draft, Denied) or self._waiting.count):
                    return self._waiting.receive(request, draft, waiter, (asks.holder, asks.age), turn.bounds.now)
                return draft
            case BeginSession() | RenewSession():
                return self._revocations.told(turn, self._sessions.answer(turn, request))
            case _:
                return self.apply(turn, request.domain, request, request.request_id)

    def stopping_reason(self) -> tuple[str, str]:
        """Return code and message for what is not granted because the shard stops."""
        return "stopping", f"shard {self._identity.shard} at node {self._identity.node} is stopping"

    def decided(self, turn: Turn, request: Acquire | Upgrade) -> Draft:
        """Decide a request behind those who wait already."""
        if isinstance(request, Upgrade):
            return self.apply(turn, request.domain, request, request.request_id)
        expiry = None if request.session_id is None else self._sessions.expiry_for(turn, request)
        if isinstance(expiry, (Refused, Unavailable)):
            return expiry
        ahead = self._waiting.ahead(request.domain, request.request_id) if self._waiting.count else None
        command = Grant(request, self._randomness.randbytes(8), ahead, expiry)
        return self.apply(turn, request.domain, command, request.request_id)

    def _acquire_refused(self, turn: Turn, request: Acquire) -> Refused | Unavailable | None:
        """Check what is new: a holder, a domain that is not remembered."""
        refused = self.holders.refused(request)
        staged = self._stage(turn, request.domain)
        known = staged.revision or staged.state is not staged.before
        return refused or (None if known else self.refused_new(turn, request))

    def refused_new(self, turn: Turn, request: Acquire) -> Refused | Unavailable | None:
        """Check a domain that is not remembered."""
        try:
            check_domain(request.domain)
        except BadRequest as problem:
            return Refused(request_id=request.request_id, code=problem.code, message=problem.message, hint=problem.hint)
        owner = self._map.shard_of(request.domain)
        if owner != self._identity.shard:
            why = f"{request.domain!r} belongs to shard {owner} of map {self._map.number}, not {self._identity.shard}"
            return Refused(request_id=request.request_id, code="wrong-shard", message=why, hint="ask that shard")
        if self._store.full:
            return Unavailable(request_id=request.request_id, code="store-full", message=self._store.why_full())
        if self._store.domains + turn.new >= self._forgotten.domains_max:
            why = f"the shard remembers {self._forgotten.domains_max} domains, and none can be forgotten yet"
            return Unavailable(request_id=request.request_id, code="busy", message=why)
        return None

    def _stage(self, turn: Turn, domain: str) -> Staged:
        staged = turn.staged.get(domain)
        if staged is None:
            state, revision = self._store.read(domain) or (Free(memory=self._forgotten.memory()), 0)
            staged = turn.staged[domain] = Staged(state, revision, state)
            if turn.granted and (plain := turn.granted.get(domain)) is not None:
                staged.answers = {plain[0]: plain[1]}
        return staged

    def apply(self, turn: Turn, domain: str, command: Command, request_id: bytes = NO_REQUEST) -> Draft:
        """Have ``state.decide`` take a command to its domain, and gather in the turn what follows."""
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
            case Over() if isinstance(command, Upgrade | Renew | Relinquish):
                return self._revocations.told(turn, decision.answer, command.correlation_id)
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

    def without_time(self, request: Task, code: str, message: str) -> Reply:
        """Answer what needs no clock; everything else is unavailable, and ``code`` and ``message`` say why."""
        match request:
            case Hello():
                return welcome(request, self._identity)
            case Inspect() | AskClock():
                return self._shown.answer(request, self._forgotten.floor_ns, self._forgotten.settle_to_ns)
            case _:
                return Unavailable(request_id=request.request_id, code=code, message=message)
