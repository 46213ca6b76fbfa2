"""Session leases: the state of one, what becomes of it, and of the leases under it (docs/protocol/lease.md).

As in ``state``, the functions read no clock and no storage, and nothing in a state ever falls. A lease under a session
lease has no expiry of its own: ``as_of`` puts the session's into its state before anything is decided about it, and
ends it if the session is over. ``Sessions`` has them decide the requests of a shard's turns.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from timeagent.units import Instant, rfc3339

from ..formats.hints import NOTHING_WRITTEN
from ..formats.lease import LeaseOutcome, Phase
from ..formats.witness import ENDED_MAX, Ended, SessionEnded, SessionKind, SessionWitness
from . import decisions
from .domain import Bounds, Break, Command, Decision, Grant, LeaseRecord, SessionRecord, State, Taken, unwritten
from .store import LeaseStore
from .turn import Draft, Later, Turn, holder_refused
from .wire import Acquire, BeginSession, DropSession, Over, Refused, RenewSession, SessionGranted, Unavailable, Upgrade

ENDED_ALONE: Final = frozenset({LeaseOutcome.REVOKED, LeaseOutcome.ABANDONED, LeaseOutcome.EXPIRED})
"""How a lease under a session that lives on ends without a watermark: later witnesses of the session name it."""


type Answered = SessionWitness | Over | Refused | Unavailable


def begun(request: BeginSession, chance: bytes, bounds: Bounds) -> tuple[SessionRecord | None, Answered]:
    """Grant a session lease. ``chance``: 8 random bytes for its id."""
    expiry = bounds.expiry(request.term_ns, request.expiry_ns_max)
    if not bounds.now.surely_before(expiry):
        why = f"no session lease until {rfc3339(expiry)}: it is {rfc3339(bounds.now.latest)} at the latest"
        code = "ceiling" if not bounds.now.surely_before(bounds.ceiling_ns) else "late"
        return None, Unavailable(request_id=request.request_id, code=code, message=why)
    session = SessionRecord(
        session_id=bounds.now.midpoint.to_bytes(8, "big") + chance,
        holder=request.holder,
        granted_ns=bounds.now.midpoint,
        expiry_ns=expiry,
        begun_by=request.request_id,
        answered=request.request_id,
    )
    return session, witness_of(session, SessionKind.GRANT)


def renewed(
    session: SessionRecord, request: RenewSession | BeginSession, bounds: Bounds
) -> tuple[SessionRecord, Answered]:
    """Move the expiry. Taken after the expiry too, as long as nobody has met it as past."""
    if session.over is not None:
        return session, Over(request_id=request.request_id, outcome=session.over.outcome, ending=None)
    if len(session.ended) >= ENDED_MAX:
        why = f"the shard has ended {len(session.ended)} leases alone under session lease {session.session_id.hex()}"
        hint = "begin another, and take the leases under that one"
        return session, Refused(request_id=request.request_id, code="session-worn", message=why, hint=hint)
    expiry, again = session.expiry_ns, request.request_id in (session.answered, session.begun_by)
    if not again:
        expiry = decisions.later_expiry(expiry, request, bounds)
    if expiry > bounds.signed_ns_max or not (again or bounds.now.surely_before(expiry)):
        what = f"session lease {session.session_id.hex()}"
        return session, decisions.no_later_expiry(what, session.expiry_ns, request, bounds)
    later = msgspec.structs.replace(session, expiry_ns=expiry, answered=request.request_id)
    return later, witness_of(later, SessionKind.RENEWAL)


def witness_of(session: SessionRecord, kind: SessionKind) -> SessionWitness:
    """State what a session lease is now."""
    return SessionWitness(
        kind=kind,
        session_id=session.session_id,
        holder=session.holder,
        expiry_ns=session.expiry_ns,
        ended=session.ended,
    )


def dropped(session: SessionRecord, request: DropSession, bounds: Bounds) -> tuple[SessionRecord, Over | Refused]:
    """End it and all leases under it, with one watermark. Accepted after the expiry too, until it is met as past."""
    if session.over is not None:
        return session, Over(request_id=request.request_id, outcome=session.over.outcome, ending=None)
    problem = _watermark_refused(session, request, bounds)
    if problem is not None:
        return session, problem
    over = _over(session, LeaseOutcome.DROPPED, bounds)
    over = msgspec.structs.replace(
        over,
        watermark_ns=request.watermark_ns,
        watermark_time=request.watermark_time,
        messages=request.messages,
        chain_head=request.chain_head,
    )
    answer = Over(request_id=request.request_id, outcome=LeaseOutcome.DROPPED, ending=None)
    return msgspec.structs.replace(session, over=over), answer


def _watermark_refused(session: SessionRecord, request: DropSession, bounds: Bounds) -> Refused | None:
    given = request.watermark_ns, request.watermark_time
    if None in given:
        if given == (None, None) and not request.messages and request.chain_head is None:
            return None
        why = "a watermark, its signed time and what was written go together"
        return Refused(request_id=request.request_id, code="watermark-incomplete", message=why, hint="")
    return decisions.watermark_refused(request, session.expiry_ns, bounds)


def expired(session: SessionRecord, bounds: Bounds) -> SessionRecord:
    """End it, and all leases under it, if it is surely past and not over."""
    if session.over is not None or not bounds.now.surely_past(session.expiry_ns):
        return session
    return msgspec.structs.replace(session, over=_over(session, LeaseOutcome.EXPIRED, bounds))


def _over(session: SessionRecord, outcome: LeaseOutcome, bounds: Bounds) -> SessionEnded:
    return SessionEnded(
        session_id=session.session_id,
        outcome=outcome,
        ended_ns=bounds.now.midpoint,
        expiry_ns=session.expiry_ns,
        leases=session.leases,
        watermark_ns=None,
        watermark_time=None,
        messages=0,
        chain_head=None,
    )


# -- the leases under it -----------------------------------------------------------------------------------------------


def in_sessions(state: State) -> list[tuple[LeaseRecord, bytes]]:
    """Return the leases of a domain that are under session leases, each with the session's id."""
    return [(each, each.session_id) for each in state.leases if each.session_id]


def as_of(
    domain: str, state: State, sessions: Mapping[bytes, SessionRecord], bounds: Bounds
) -> tuple[State, tuple[Ended, ...]]:
    """Return a domain as its sessions are now. ``sessions``: all that its leases name, none surely past and not over.

    A lease has its session's expiry. Where the session is over, the lease has ended as that did; a tentative one, under
    which nothing was written, is withdrawn.
    """
    ended: list[Ended] = []
    for lease, session_id in in_sessions(state):
        assert isinstance(state, Taken)
        session = sessions[session_id]
        if session.over is not None:
            state, entry = _ended_with(domain, state, lease, session, session.over, bounds)
            ended.append(entry)
        elif lease.expiry_ns != session.expiry_ns:
            # By its name: one beside it that has ended has made another object of it, with what its witnesses say now.
            leases = tuple(
                msgspec.structs.replace(each, expiry_ns=session.expiry_ns)
                if each.correlation_id == lease.correlation_id
                else each
                for each in state.leases
            )
            state = Taken(memory=state.memory, leases=leases)
    return state, tuple(ended)


def _ended_with(
    domain: str, state: Taken, lease: LeaseRecord, session: SessionRecord, over: SessionEnded, bounds: Bounds
) -> tuple[State, Ended]:
    tentative = lease.phase is Phase.TENTATIVE
    outcome = LeaseOutcome.WITHDRAWN if tentative else over.outcome
    ending = unwritten(lease.correlation_id, outcome, over.ended_ns)
    if wrote := not tentative and over.watermark_time is not None:
        ending = msgspec.structs.replace(ending, watermark_ns=over.watermark_ns, watermark_time=over.watermark_time)
    hints = NOTHING_WRITTEN if tentative or (over.outcome is LeaseOutcome.DROPPED and not wrote) else None
    return decisions.end_lease(domain, state, lease, ending, (0, 0) if tentative else session.brings, hints, bounds)


# -- in the turns of a shard -------------------------------------------------------------------------------------------

SESSIONS_MAX: Final = 65_536
"""How many session leases a shard has at once; who asks for one then is told that it is busy."""

SWEEP_MAX: Final = 256
"""How many session leases that are past, and how many leases of those that are over, one sweep ends."""


class Sessions:
    """What a shard does about session leases in a turn. What it remembers beside the store is only who waits."""

    def __init__(self, store: LeaseStore, randomness: random.Random) -> None:
        self._store = store
        self._randomness = randomness
        self._waited_for: dict[bytes, set[str]] = {}
        self._swept_to = ""

    # -- requests ------------------------------------------------------------------------------------------------------

    def answer(self, turn: Turn, request: BeginSession | RenewSession | DropSession) -> Draft:
        """Decide a request about a session lease itself."""
        if isinstance(request, BeginSession):
            return self._begin(turn, request)
        session = self._store.sessions.get(request.session_id)
        if session is None:
            return Over(request_id=request.request_id, outcome=LeaseOutcome.UNKNOWN, ending=None)
        if isinstance(request, RenewSession):
            return self._granted(turn, *renewed(session, request, turn.bounds))
        after, reply = dropped(session, request, turn.bounds)
        self._put(turn, after)
        return reply

    def _begin(self, turn: Turn, request: BeginSession) -> Draft:
        if (refused := holder_refused(request, request.holder)) is not None:
            return refused
        known = self._store.session_begun_by(request.request_id)
        if known is not None:
            return self._granted(turn, *renewed(known, request, turn.bounds))
        self.sweep(turn)
        sessions = self._store.sessions
        gone = sum(sessions[each].over is not None for each in self._store.sessions_changed)
        if len(sessions) - gone >= SESSIONS_MAX:
            why = f"the shard has {SESSIONS_MAX} session leases out"
            return Unavailable(request_id=request.request_id, code="busy", message=why)
        return self._granted(turn, *begun(request, self._randomness.randbytes(8), turn.bounds))

    def _granted(self, turn: Turn, session: SessionRecord | None, answer: Answered) -> Draft:
        if session is None or not isinstance(answer, SessionWitness):
            assert not isinstance(answer, SessionWitness)
            return answer
        self._put(turn, session)
        entry = turn.answers[session.session_id] = len(turn.entries)
        turn.entries.append(answer)
        reply = SessionGranted(request_id=session.answered, signed=b"", leases=session.leases)
        return Later(reply, entry)

    def expiry_for(self, request: Acquire) -> Instant | Refused | Unavailable | None:
        """Return the expiry that a lease has which is asked for under a session lease; None: under none."""
        if request.session_id is None:
            return None
        session = self._store.sessions.get(request.session_id)
        if session is None or session.over is not None:
            why = f"session lease {request.session_id.hex()} is not out at this shard (any more)"
            return Unavailable(request_id=request.request_id, code="no-session", message=why)
        if session.holder != request.holder:
            why = f"session lease {request.session_id.hex()} is that of {session.holder.node}/{session.holder.process}"
            return Refused(request_id=request.request_id, code="foreign-session", message=why, hint="begin your own")
        return session.expiry_ns

    # -- the leases under them -----------------------------------------------------------------------------------------

    def bring_up(self, turn: Turn, domain: str, state: State, command: Command) -> State:
        """Return a domain's state as its sessions are now, and remember what has ended by that. Before each decision.

        As with other leases, whoever gives back or asks for nothing ends no session that is past.
        """
        under = in_sessions(state)
        if not under:
            return state
        for _, session_id in under:
            if isinstance(command, Grant | Upgrade | Break):
                self._put(turn, expired(self._store.sessions[session_id], turn.bounds))
        after, ended = as_of(domain, state, self._store.sessions, turn.bounds)
        if ended:  # where only expiries have changed, that is in the session's record, and no reason to write this one
            turn.note_hints(state, after)
            self._count(turn, state, after)
            self._store.put(domain, after)
            turn.entries.extend(ended)
        return after

    def decided(self, turn: Turn, before: State, decision: Decision) -> None:
        """Take account of a decision about a domain: how many leases are under each session, which ended alone."""
        self._count(turn, before, decision.state)
        alone = {each.ending.correlation_id for each in decision.ended if each.ending.outcome in ENDED_ALONE}
        for lease, session_id in in_sessions(before):
            if lease.correlation_id in alone and lease.phase is Phase.HELD:
                session = self._store.sessions[session_id]
                ended = (*session.ended, lease.correlation_id)
                self._put(turn, msgspec.structs.replace(session, ended=ended))

    def _count(self, turn: Turn, before: State, after: State) -> None:
        were = {each.correlation_id: session_id for each, session_id in in_sessions(before)}
        are = {each.correlation_id: session_id for each, session_id in in_sessions(after)}
        for name in were.keys() ^ are.keys():
            session = self._store.sessions[are.get(name) or were[name]]
            leases = session.leases + (1 if name in are else -1)
            self._put(turn, msgspec.structs.replace(session, leases=leases))

    def waits(self, domain: str, state: State) -> None:
        """Remember that somebody waits for a domain that has leases under session leases."""
        for _, session_id in in_sessions(state):
            self._waited_for.setdefault(session_id, set()).add(domain)

    def freed(self) -> Iterable[str]:
        """Return the domains that somebody waited for under sessions that are over since this turn."""
        for session_id in self._store.sessions_changed:
            if self._store.sessions[session_id].over is not None:
                yield from sorted(self._waited_for.pop(session_id, ()))

    def shown(self, rows: Iterable[tuple[str, Taken]], only: bytes | None) -> list[tuple[str, Taken]]:
        """Return domains as their sessions are now, for people, without leases of sessions that are over.

        ``only``: leases under this session lease.
        """
        found: list[tuple[str, Taken]] = []
        for domain, state in rows:
            leases = []
            for lease in state.leases:
                session = None if lease.session_id is None else self._store.sessions.get(lease.session_id)
                if session is not None and session.over is None:
                    leases.append(msgspec.structs.replace(lease, expiry_ns=session.expiry_ns))
                elif lease.session_id is None:
                    leases.append(lease)
            kept = tuple(each for each in leases if only is None or each.session_id == only)
            if kept:
                found.append((domain, Taken(memory=state.memory, leases=kept)))
        return found

    # -- the turn ------------------------------------------------------------------------------------------------------

    def sweep(self, turn: Turn, limit: int | None = SWEEP_MAX) -> None:
        """End session leases that are surely past, the longest past first; all of them where there is no limit."""
        earliest = turn.bounds.now.earliest
        past = [each for each in self._store.sessions.values() if each.over is None and each.expiry_ns < earliest]
        for session in sorted(past, key=lambda each: each.expiry_ns)[:limit]:
            self._put(turn, expired(session, turn.bounds))

    def dead(self) -> list[str]:
        """Return domains, some of which may have leases whose session is over: the next few, in order."""
        domains = self._store.leased_after(self._swept_to, SWEEP_MAX) if self._store.dead_leases else []
        self._swept_to = domains[-1] if len(domains) == SWEEP_MAX else ""
        return domains

    def _put(self, turn: Turn, session: SessionRecord) -> None:
        before = self._store.sessions.get(session.session_id)
        if session is before:
            return
        if session.over is not None and (before is None or before.over is None):
            turn.entries.append(session.over)
        self._store.put_session(session)
