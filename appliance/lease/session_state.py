"""The state of one session lease, what can become of it, and what that makes of the leases under it. Pure.

As in ``state``, nothing here reads a clock or a storage, and nothing in a state ever falls. A lease under a session
lease has no expiry of its own: ``as_of`` puts the session's into its state before anything is decided about it, and
ends it if the session is over. So a renewal of the session costs the same, however many leases are under it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from timeagent.canonical import U64, Bytes16, Record
from timeagent.errors import Damaged
from timeagent.signedtime import SignedTime, r1_holds
from timeagent.units import rfc3339

from ..formats.hints import NOTHING_WRITTEN
from ..formats.lease import Ending, Holder, LeaseOutcome, Phase
from ..formats.sessionlease import ENDED_MAX, SessionEnded, SessionKind, SessionWitness
from . import state as states
from .domain import Taken, remembering
from .wire import Over, Refused, Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from timeagent.units import Instant

    from ..formats.witness import Ended
    from .domain import Bounds, LeaseRecord, State
    from .wire import BeginSession, DropSession, RenewSession


ENDED_ALONE: Final = frozenset({LeaseOutcome.REVOKED, LeaseOutcome.ABANDONED, LeaseOutcome.EXPIRED})
"""How a lease under a session that lives on ends without a watermark: later witnesses of the session name it."""


class SessionRecord(Record, frozen=True):
    """A session lease as its shard knows it."""

    session_id: Bytes16
    holder: Holder
    granted_ns: U64
    expiry_ns: U64
    """The latest that any witness of it states."""
    begun_by: Bytes16
    """The request that it was granted to."""
    answered: Bytes16
    """The newest request that got a witness of it."""
    leases: U64 = 0
    """How many leases are under it; of one that is over: how many of them have not been met since."""
    ended: tuple[Bytes16, ...] = ()
    """The leases that were ended alone."""
    over: SessionEnded | None = None

    @property
    def brings(self) -> tuple[Instant, Instant]:
        """Floor and settle_to that its end brings to the domain of each lease that was out under it."""
        if self.over is None:
            return 0, 0
        if self.over.outcome is LeaseOutcome.DROPPED:
            return self.over.watermark_ns or 0, 0
        return self.over.expiry_ns, self.over.expiry_ns


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
    expiry = session.expiry_ns
    if request.request_id not in (session.answered, session.begun_by):
        expiry = max(expiry, bounds.expiry(request.term_ns, request.expiry_ns_max))
        if not bounds.now.surely_before(expiry):
            expiry = bounds.signed_ns_max + 1
    if expiry > bounds.signed_ns_max:
        why = (
            f"session lease {session.session_id.hex()} stays as it is, until {rfc3339(session.expiry_ns)}: no later "
            f"expiry can be granted at {rfc3339(bounds.now.midpoint)} under the ceiling {rfc3339(bounds.ceiling_ns)}"
        )
        return session, Unavailable(request_id=request.request_id, code="no-later-expiry", message=why)
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
    def refused(code: str, message: str, hint: str) -> Refused:
        return Refused(request_id=request.request_id, code=code, message=message, hint=hint)

    watermark, raw = request.watermark_ns, request.watermark_time
    if watermark is None or raw is None:
        if watermark is None and raw is None and not request.messages and request.chain_head is None:
            return None
        return refused("watermark-incomplete", "a watermark, its signed time and what was written go together", "")
    if watermark >= session.expiry_ns:
        why = f"the watermark {rfc3339(watermark)} is not below the expiry {rfc3339(session.expiry_ns)}"
        return refused("watermark-not-below-expiry", why, "write below the expiry only")
    try:
        token = SignedTime.decode(raw, "the watermark's signed time")
    except Damaged as problem:
        return refused("watermark-time-damaged", problem.message, "send the frame's signed time")
    if not r1_holds(watermark, token, bounds.r1_tolerance_ns):
        why = f"the watermark {rfc3339(watermark)} is not within its signed time {rfc3339(token.midpoint_ns)}"
        return refused("watermark-breaks-r1", why, "send the signed time of the message itself")
    return None


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


def in_sessions(state: State) -> tuple[LeaseRecord, ...]:
    """Return the leases of a domain that are under session leases."""
    return tuple(each for each in state.leases if each.session_id is not None) if isinstance(state, Taken) else ()


def as_of(
    domain: str, state: State, sessions: Mapping[bytes, SessionRecord], bounds: Bounds
) -> tuple[State, tuple[Ended, ...]]:
    """Return a domain as its sessions are now. ``sessions``: all that its leases name, none surely past and not over.

    A lease has its session's expiry. Where the session is over, the lease has ended as that did; a tentative one, under
    which nothing was written, is withdrawn.
    """
    ended: list[Ended] = []
    for lease in in_sessions(state):
        assert isinstance(state, Taken)
        assert lease.session_id is not None
        session = sessions[lease.session_id]
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
    wrote = not tentative and over.watermark_time is not None
    ending = Ending(
        correlation_id=lease.correlation_id,
        outcome=LeaseOutcome.WITHDRAWN if tentative else over.outcome,
        ended_ns=over.ended_ns,
        watermark_ns=over.watermark_ns if wrote else None,
        watermark_time=over.watermark_time if wrote else None,
        messages=0,
        chain_head=None,
    )
    floor, settle_to = (0, 0) if tentative else session.brings
    left, entry = states.end_lease(domain, state, lease, ending, floor, settle_to)
    unwritten = tentative or (over.outcome is LeaseOutcome.DROPPED and not wrote)
    return remembering(left, NOTHING_WRITTEN if unwritten else None, bounds), entry
