"""The session leases of one shard: they are read, decided and written with the turn (docs/protocol/lease.md).

A session lease is one row, and so is its renewal. The leases under it stay as they are: each is brought up to what its
session is when it is read (``as_of``). So leases whose session is over are ended when somebody meets them, and until
then the session's row says what that brings to their domains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from ..formats.lease import LeaseOutcome, Phase
from ..formats.sessionlease import SessionWitness
from . import session_state
from .domain import Break, Grant, Taken
from .session_state import ENDED_ALONE, in_sessions
from .turn import LaterSession, StagedSession, holder_refused
from .wire import BeginSession, DropSession, Over, Refused, RenewSession, Unavailable, Upgrade

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable

    from timeagent.units import Instant

    from ..formats.witness import Ended
    from .domain import Command, Decision, State
    from .session_state import Answered, SessionRecord
    from .store import LeaseStore
    from .turn import Draft, Staged, Turn
    from .wire import Acquire

SESSIONS_MAX: Final = 65_536
"""How many session leases a shard has at once; who asks for one then is told that it is busy."""

SWEEP_MAX: Final = 256
"""How many session leases that are past, and how many leases of those that are over, one sweep ends."""


class Sessions:
    """What a shard does about session leases in a turn. What it remembers beside the store is only who waits."""

    def __init__(self, store: LeaseStore, randomness: random.Random) -> None:
        """Know of none."""
        self._store = store
        self._randomness = randomness
        self._waited_for: dict[bytes, set[str]] = {}
        self._swept_to = ""

    # -- requests ------------------------------------------------------------------------------------------------------

    def answer(self, turn: Turn, request: BeginSession | RenewSession | DropSession) -> Draft:
        """Decide a request about a session lease itself."""
        match request:
            case BeginSession():
                return self._begin(turn, request)
            case RenewSession():
                session = self._find(turn, request.session_id)
                if session is None:
                    return _unknown(request.request_id)
                after, answer = session_state.renewed(session, request, turn.bounds)
                return self._granted(turn, after, answer)
            case DropSession():
                session = self._find(turn, request.session_id)
                if session is None:
                    return _unknown(request.request_id)
                after, reply = session_state.dropped(session, request, turn.bounds)
                self._put(turn, after)
                return reply

    def _begin(self, turn: Turn, request: BeginSession) -> Draft:
        if (refused := holder_refused(request, request.holder)) is not None:
            return refused
        known = next((each.now for each in turn.sessions.values() if each.now.begun_by == request.request_id), None)
        known = known or self._store.session_rows.begun_by(request.request_id)
        if known is not None:
            self._stage(turn, known)
            after, answer = session_state.renewed(turn.sessions[known.session_id].now, request, turn.bounds)
            return self._granted(turn, after, answer)
        self.sweep(turn)
        staged = turn.sessions.values()
        new, gone = sum(each.before is None for each in staged), sum(each.now.over is not None for each in staged)
        if self._store.sessions + new - gone >= SESSIONS_MAX:
            why = f"the shard has {SESSIONS_MAX} session leases out"
            return Unavailable(request_id=request.request_id, code="busy", message=why)
        session, witness = session_state.begun(request, self._randomness.randbytes(8), turn.bounds)
        if session is None or not isinstance(witness, SessionWitness):
            assert not isinstance(witness, SessionWitness)
            return witness
        turn.sessions[session.session_id] = StagedSession(None, session)
        return self._later(turn, session, witness)

    def _granted(self, turn: Turn, after: SessionRecord, answer: Answered) -> Draft:
        if not isinstance(answer, SessionWitness):
            return answer
        self._put(turn, after)
        return self._later(turn, after, answer)

    def _later(self, turn: Turn, session: SessionRecord, witness: SessionWitness) -> Draft:
        turn.entries.append(witness)
        return LaterSession(session.answered, len(turn.entries) - 1, leases=session.leases)

    def expiry_for(self, turn: Turn, request: Acquire) -> Instant | Refused | Unavailable | None:
        """Return the expiry that a lease has which is asked for under a session lease; None: under none."""
        if request.session_id is None:
            return None
        session = self._find(turn, request.session_id)
        if session is None or session.over is not None:
            why = f"session lease {request.session_id.hex()} is not out at this shard (any more)"
            return Unavailable(request_id=request.request_id, code="no-session", message=why)
        if session.holder != request.holder:
            why = f"session lease {request.session_id.hex()} is that of {session.holder.node}/{session.holder.process}"
            return Refused(request_id=request.request_id, code="foreign-session", message=why, hint="begin your own")
        return session.expiry_ns

    # -- the leases under them -----------------------------------------------------------------------------------------

    def bring_up(self, turn: Turn, domain: str, staged: Staged, command: Command) -> tuple[Ended, ...]:
        """Make a domain's state that of its sessions as they are now; return what has ended. Before each decision.

        As with other leases, whoever gives back or asks for nothing ends no session that is past.
        """
        under = in_sessions(staged.state)
        if not under:
            return ()
        sessions: dict[bytes, SessionRecord] = {}
        for lease in under:
            assert lease.session_id is not None
            session = self._find(turn, lease.session_id)
            assert session is not None, "a session lease is remembered as long as leases under it are"
            if isinstance(command, Grant | Upgrade | Break):
                session = self._put(turn, session_state.expired(session, turn.bounds))
            sessions[lease.session_id] = session
        state, ended = session_state.as_of(domain, staged.state, sessions, turn.bounds)
        if not ended:
            # Only expiries have changed: that is in the session's row, and no reason to write this one.
            staged.before = state if staged.state is staged.before else staged.before
        else:
            turn.note_hints(staged.state, state)
            self._count(turn, staged.state, state)
        staged.state = state
        turn.entries.extend(ended)
        return ended

    def decided(self, turn: Turn, before: State, decision: Decision) -> None:
        """Take account of a decision about a domain: how many leases are under each session, which ended alone."""
        if decision.state is before:
            return
        self._count(turn, before, decision.state)
        for entry in decision.ended:
            if entry.ending.outcome in ENDED_ALONE:
                name = entry.ending.correlation_id
                lease = next((each for each in in_sessions(before) if each.correlation_id == name), None)
                session = None if lease is None or lease.session_id is None else self._find(turn, lease.session_id)
                if lease is not None and session is not None and lease.phase is Phase.HELD:
                    self._put(turn, msgspec.structs.replace(session, ended=(*session.ended, name)))

    def _count(self, turn: Turn, before: State, after: State) -> None:
        were = {each.correlation_id: each.session_id for each in in_sessions(before)}
        are = {each.correlation_id: each.session_id for each in in_sessions(after)}
        for name in were.keys() ^ are.keys():
            session_id = are.get(name) or were[name]
            assert session_id is not None
            session = self._find(turn, session_id)
            assert session is not None
            leases = session.leases + (1 if name in are else -1)
            self._put(turn, msgspec.structs.replace(session, leases=leases))

    def waits(self, domain: str, state: State) -> None:
        """Remember that somebody waits for a domain that has leases under session leases."""
        for lease in in_sessions(state):
            assert lease.session_id is not None
            self._waited_for.setdefault(lease.session_id, set()).add(domain)

    def freed(self, turn: Turn) -> Iterable[str]:
        """Return the domains that somebody waited for under sessions that are over since this turn."""
        for session_id, staged in turn.sessions.items():
            if staged.now.over is not None:
                yield from sorted(self._waited_for.pop(session_id, ()))

    def shown(self, rows: Iterable[tuple[str, Taken]], only: bytes | None) -> list[tuple[str, Taken]]:
        """Return domains as their sessions are now, for people, without leases of sessions that are over.

        ``only``: leases under this session lease.
        """
        found: list[tuple[str, Taken]] = []
        for domain, state in rows:
            leases = []
            for lease in state.leases:
                session = None if lease.session_id is None else self._store.session_rows.find(lease.session_id)
                if session is not None and session.over is None:
                    leases.append(msgspec.structs.replace(lease, expiry_ns=session.expiry_ns))
                elif lease.session_id is None:
                    leases.append(lease)
            kept = tuple(each for each in leases if only is None or each.session_id == only)
            if kept:
                found.append((domain, Taken(memory=state.memory, leases=kept)))
        return found

    # -- the turn ------------------------------------------------------------------------------------------------------

    def sweep(self, turn: Turn, limit: int = SWEEP_MAX) -> None:
        """End session leases that are surely past."""
        for session_id in self._store.session_rows.past(turn.bounds.now.earliest, limit):
            session = self._find(turn, session_id)
            assert session is not None
            self._put(turn, session_state.expired(session, turn.bounds))

    def dead(self, turn: Turn) -> list[str]:
        """Return domains, some of which may have leases whose session is over: the next few, in order."""
        some = self._store.dead_leases or any(each.now.over is not None for each in turn.sessions.values())
        domains = self._store.leased_after(self._swept_to, SWEEP_MAX) if some else []
        self._swept_to = domains[-1] if len(domains) == SWEEP_MAX else ""
        return domains

    def write(self, turn: Turn) -> None:
        """Write what has changed. One that is over is forgotten once all of its leases have been met."""
        for staged in turn.sessions.values():
            if staged.now is not staged.before:
                self._store.put_session(staged.before, staged.now)

    def _find(self, turn: Turn, session_id: bytes) -> SessionRecord | None:
        """Return a session lease as it is in this turn."""
        staged = turn.sessions.get(session_id)
        if staged is None:
            session = self._store.session_rows.find(session_id)
            if session is None:
                return None
            staged = self._stage(turn, session)
        return staged.now

    def _stage(self, turn: Turn, session: SessionRecord) -> StagedSession:
        staged = turn.sessions.get(session.session_id)
        if staged is None:
            staged = turn.sessions[session.session_id] = StagedSession(session, session)
        return staged

    def _put(self, turn: Turn, session: SessionRecord) -> SessionRecord:
        staged = turn.sessions[session.session_id]
        if session.over is not None and staged.now.over is None:
            turn.entries.append(session.over)
        staged.now = session
        return session


def _unknown(request_id: bytes) -> Over:
    return Over(request_id=request_id, outcome=LeaseOutcome.UNKNOWN, ending=None)
