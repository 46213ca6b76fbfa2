"""The states of one domain and the one pure function over them (docs/protocol/lease.md).

``decide`` looks at a domain's state, one command and the bounds of this turn. It returns the next state, what the
ledger has to say about leases that ended, and the answer. It reads no clock and no storage and never raises for what
can happen. Nothing in a state ever falls: fence, floor and settle_to only grow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, assert_never

import msgspec

from timeagent.canonical import U64, Bytes16, Record
from timeagent.errors import Damaged
from timeagent.rules import r1_holds
from timeagent.signedtime import SignedTime
from timeagent.units import rfc3339

from ..formats.lease import Ending, Holder, LeaseOutcome, Mode, Phase
from ..formats.witness import Ended, Witness, WitnessKind
from .wire import Acquire, Age, Denied, Over, Reason, Refused, Relinquish, Renew, Unavailable, Upgrade

if TYPE_CHECKING:
    from timeagent.interval import TimeInterval
    from timeagent.units import Instant, Span


class Memory(Record, frozen=True):
    """What a shard remembers of a domain beyond the lease on it."""

    fence: U64
    floor_ns: U64
    settle_to_ns: U64
    previous_id: Bytes16 | None = None
    """The last grant that ended."""
    last_ended: Ending | None = None
    floor_set_by: Ending | None = None
    """The lease whose ending set the floor; None where the shard floor did."""
    ended_request: Bytes16 | None = None
    """The request that got the last grant that ended: a late duplicate of it gets nothing."""


class Lease(Record, frozen=True):
    """A lease that is out. Floor and settle_to are as its grant or last upgrade stated them."""

    mode: Mode
    holder: Holder
    correlation_id: Bytes16
    fence: U64
    granted_ns: U64
    expiry_ns: U64
    """The latest that any witness of this lease states."""
    floor_ns: U64
    settle_to_ns: U64
    age: Age
    granted_by: Bytes16
    """The request that it was granted to."""
    answered: Bytes16
    """The newest request that got a witness of it."""


class Free(Record, frozen=True, tag="free"):
    """Nobody has the domain."""

    memory: Memory


class Tentative(Record, frozen=True, tag="tentative"):
    """Taken, not to be written under; an older request breaks it at once."""

    memory: Memory
    lease: Lease


class Held(Record, frozen=True, tag="held"):
    """Taken until it is relinquished, or surely past its expiry and in somebody's way."""

    memory: Memory
    lease: Lease


type State = Free | Tentative | Held


@dataclass(frozen=True, slots=True)
class Break:
    """End the lease if it is surely past; a tentative one at once if the shard is ``stopping``."""

    stopping: bool = False


@dataclass(frozen=True, slots=True)
class Grant:
    """An Acquire with the 8 random bytes for its correlation id."""

    request: Acquire
    chance: bytes


type Command = Grant | Upgrade | Renew | Relinquish | Break


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a decision depends on beside state and command. One value per turn."""

    now: TimeInterval
    term_ns_max: Span
    ceiling_ns: Instant
    """Nothing expires, and no fence lies, above it."""
    signed_ns_max: Instant
    """The latest expiry that readers accept with the signed time of this turn's batch."""
    shard_floor_ns: Instant
    r1_tolerance_ns: Span


@dataclass(frozen=True, slots=True)
class Again:
    """The same answer as the first time: the newest witness of this lease."""

    correlation_id: bytes


@dataclass(frozen=True, slots=True)
class Nothing:
    """A command of the shard itself has no answer."""


type Answer = Witness | Again | Denied | Over | Refused | Unavailable | Nothing


@dataclass(frozen=True, slots=True)
class Decision:
    """What comes of one command."""

    state: State
    answer: Answer
    ended: tuple[Ended, ...] = ()


_NOTHING: Final = Nothing()


def decide(domain: str, state: State, command: Command, bounds: Bounds) -> Decision:
    """Return what comes of the command. Pure."""
    match state:
        case Free():
            return _decide_free(domain, state, command, bounds)
        case Tentative() | Held():
            return _decide_taken(domain, state, command, bounds)
    assert_never(state)


def _decide_free(domain: str, state: Free, command: Command, bounds: Bounds) -> Decision:
    match command:
        case Grant():
            if command.request.request_id == state.memory.ended_request:
                return Decision(state, _over(state.memory, command.request.request_id, state.memory.previous_id))
            return _grant(domain, state.memory, command, bounds) or Decision(
                state, _cannot_grant(command, state, bounds)
            )
        case Upgrade() | Renew() | Relinquish():
            return Decision(state, _over(state.memory, command.request_id, command.correlation_id))
        case Break():
            return Decision(state, _NOTHING)
    assert_never(command)


def _decide_taken(domain: str, state: Tentative | Held, command: Command, bounds: Bounds) -> Decision:
    lease = state.lease
    match command:
        case Grant():
            return _conflict(domain, state, command, bounds)
        case Break():
            if bounds.now.surely_past(lease.expiry_ns) or (command.stopping and isinstance(state, Tentative)):
                free, ended = _break(domain, state, bounds)
                return Decision(free, _NOTHING, (ended,))
            return Decision(state, _NOTHING)
        case Upgrade() | Renew() | Relinquish():
            if command.correlation_id != lease.correlation_id:
                return Decision(state, _over(state.memory, command.request_id, command.correlation_id))
            if isinstance(command, Relinquish):
                return _relinquish(domain, state, command, bounds)
            if command.request_id == lease.answered:
                return Decision(state, Again(lease.correlation_id))
            return _prolong(domain, state, command, bounds)
    assert_never(command)


def _over(memory: Memory, request_id: bytes, correlation_id: bytes | None) -> Over:
    """Say how that lease ended, if it is the last one that did."""
    last = memory.last_ended
    if last is not None and last.correlation_id == correlation_id:
        return Over(request_id=request_id, outcome=last.outcome, ending=last)
    return Over(request_id=request_id, outcome=LeaseOutcome.UNKNOWN, ending=None)


# -- grants ------------------------------------------------------------------------------------------------------------


def _expiry(term_ns: Span, expiry_ns_max: Instant, bounds: Bounds) -> Instant:
    term = min(term_ns, bounds.term_ns_max)
    return min(bounds.now.midpoint + term, expiry_ns_max, bounds.ceiling_ns, bounds.signed_ns_max)


def _fence(memory: Memory, bounds: Bounds) -> int:
    return max(memory.fence, bounds.shard_floor_ns, bounds.now.midpoint) + 1


def _grant(domain: str, memory: Memory, command: Grant, bounds: Bounds) -> Decision | None:
    """Grant a free domain; None if no lease of any use may be granted now."""
    request = command.request
    expiry = _expiry(request.term_ns, request.expiry_ns_max, bounds)
    fence = _fence(memory, bounds)
    if not bounds.now.surely_before(expiry) or fence > bounds.ceiling_ns:
        return None
    lease = Lease(
        mode=request.mode,
        holder=request.holder,
        correlation_id=fence.to_bytes(8, "big") + command.chance,
        fence=fence,
        granted_ns=bounds.now.midpoint,
        expiry_ns=expiry,
        floor_ns=memory.floor_ns,
        settle_to_ns=memory.settle_to_ns,
        age=request.age,
        granted_by=request.request_id,
        answered=request.request_id,
    )
    memory = msgspec.structs.replace(memory, fence=fence)
    taken = Held if request.phase is Phase.HELD else Tentative
    state = taken(memory=memory, lease=lease)
    return Decision(state, _witness(domain, state, WitnessKind.GRANT))


def _cannot_grant(command: Grant, state: State, bounds: Bounds) -> Unavailable:
    request = command.request
    if not bounds.now.surely_before(request.expiry_ns_max):
        code, why = "late", f"the lease was asked for until {rfc3339(request.expiry_ns_max)}"
    elif _fence(state.memory, bounds) > bounds.ceiling_ns:
        code, why = "fence-above-ceiling", f"the next fence lies above the ceiling {rfc3339(bounds.ceiling_ns)}"
    elif not bounds.now.surely_before(bounds.ceiling_ns):
        code, why = "ceiling", f"the shard may grant until {rfc3339(bounds.ceiling_ns)} only"
    else:
        code, why = "term-too-short", f"a term of {request.term_ns} ns is over before it is surely begun"
    message = f"no lease on {request.domain!r}: {why}; it is {rfc3339(bounds.now.latest)} at the latest"
    return Unavailable(request_id=request.request_id, code=code, message=message)


def _conflict(domain: str, state: Tentative | Held, command: Grant, bounds: Bounds) -> Decision:
    request, lease = command.request, state.lease
    if request.request_id == lease.granted_by:
        return Decision(state, Again(lease.correlation_id))
    if request.request_id == state.memory.ended_request:
        return Decision(state, _over(state.memory, request.request_id, state.memory.previous_id))
    wounds = isinstance(state, Tentative) and request.age < lease.age
    if wounds or bounds.now.surely_past(lease.expiry_ns):
        free, ended = _break(domain, state, bounds)
        granted = _grant(domain, free.memory, command, bounds)
        if granted is None:
            return Decision(state, _cannot_grant(command, state, bounds))
        return Decision(granted.state, granted.answer, (ended,))
    denied = Denied(
        request_id=request.request_id,
        domain=domain,
        reason=Reason.HELD if isinstance(state, Held) else Reason.TENTATIVE,
        holder=lease.holder,
        since_ns=lease.granted_ns,
        until_ns=lease.expiry_ns,
        earliest_ns=lease.expiry_ns + bounds.now.radius + 1,
    )
    return Decision(state, denied)


def _prolong(domain: str, state: Tentative | Held, command: Upgrade | Renew, bounds: Bounds) -> Decision:
    """Renew or upgrade. No witness ever states an earlier expiry than the one before: readers may hold either."""
    lease = state.lease
    if isinstance(command, Upgrade) and isinstance(state, Held):
        return Decision(
            state, _refused(command, "already-held", f"the lease on {domain!r} is held already", "renew it")
        )
    expiry = max(lease.expiry_ns, _expiry(command.term_ns, command.expiry_ns_max, bounds))
    if not bounds.now.surely_before(expiry) or expiry > bounds.signed_ns_max:
        message = (
            f"the lease on {domain!r} stays as it is, until {rfc3339(lease.expiry_ns)}: no later expiry can be "
            f"granted at {rfc3339(bounds.now.midpoint)} under the ceiling {rfc3339(bounds.ceiling_ns)}"
        )
        return Decision(state, Unavailable(request_id=command.request_id, code="no-later-expiry", message=message))
    lease = msgspec.structs.replace(lease, expiry_ns=expiry, answered=command.request_id)
    if isinstance(command, Renew):
        renewed = msgspec.structs.replace(state, lease=lease)
        return Decision(renewed, _witness(domain, renewed, WitnessKind.RENEWAL))
    memory = state.memory
    lease = msgspec.structs.replace(lease, floor_ns=memory.floor_ns, settle_to_ns=memory.settle_to_ns)
    upgraded = Held(memory=memory, lease=lease)
    return Decision(upgraded, _witness(domain, upgraded, WitnessKind.UPGRADE))


def _witness(domain: str, state: Tentative | Held, kind: WitnessKind) -> Witness:
    memory, lease = state.memory, state.lease
    floor_set_by = memory.floor_set_by
    if floor_set_by is not None and memory.last_ended is not None:
        floor_set_by = None if floor_set_by.correlation_id == memory.last_ended.correlation_id else floor_set_by
    return Witness(
        kind=kind,
        domain=domain,
        mode=lease.mode,
        phase=Phase.HELD if isinstance(state, Held) else Phase.TENTATIVE,
        holder=lease.holder,
        correlation_id=lease.correlation_id,
        fence=lease.fence,
        expiry_ns=lease.expiry_ns,
        floor_ns=lease.floor_ns,
        settle_to_ns=lease.settle_to_ns,
        session_id=None,
        previous_id=memory.previous_id,
        last_ended=memory.last_ended,
        floor_set_by=floor_set_by,
        others=0,
        others_digest=None,
    )


# -- endings -----------------------------------------------------------------------------------------------------------


def _end(
    domain: str, state: Tentative | Held, ending: Ending, floor: Instant, settle_to: Instant
) -> tuple[Free, Ended]:
    """End the lease; floor and settle_to are what it brings, never lower than what was."""
    before = state.memory
    memory = Memory(
        fence=before.fence,
        floor_ns=max(before.floor_ns, floor),
        settle_to_ns=max(before.settle_to_ns, settle_to),
        previous_id=ending.correlation_id,
        last_ended=ending,
        floor_set_by=ending if floor > before.floor_ns else before.floor_set_by,
        ended_request=state.lease.granted_by,
    )
    ended = Ended(domain=domain, ending=ending, floor_ns=memory.floor_ns, settle_to_ns=memory.settle_to_ns)
    return Free(memory=memory), ended


def _break(domain: str, state: Tentative | Held, bounds: Bounds) -> tuple[Free, Ended]:
    """End a lease without its holder. Nothing was written under a tentative one, so it moves nothing."""
    if isinstance(state, Tentative):
        return _end(domain, state, _unwritten(state.lease, LeaseOutcome.WITHDRAWN, bounds), 0, 0)
    ending = _unwritten(state.lease, LeaseOutcome.EXPIRED, bounds)
    return _end(domain, state, ending, state.lease.expiry_ns, state.lease.expiry_ns)


def _unwritten(lease: Lease, outcome: LeaseOutcome, bounds: Bounds) -> Ending:
    return Ending(
        correlation_id=lease.correlation_id,
        outcome=outcome,
        ended_ns=bounds.now.midpoint,
        watermark_ns=None,
        watermark_time=None,
        messages=0,
        chain_head=None,
    )


def _relinquish(domain: str, state: Tentative | Held, command: Relinquish, bounds: Bounds) -> Decision:
    lease = state.lease
    if command.watermark_time is None and command.watermark_ns in (None, lease.floor_ns):
        if command.messages or command.chain_head is not None:
            why = f"{command.messages} messages on {domain!r} have no watermark"
            return Decision(state, _refused(command, "watermark-missing", why, "say the highest timestamp written"))
        outcome = LeaseOutcome.RELINQUISHED if isinstance(state, Held) else LeaseOutcome.WITHDRAWN
        free, ended = _end(domain, state, _unwritten(lease, outcome, bounds), 0, 0)
        return Decision(free, _over(free.memory, command.request_id, lease.correlation_id), (ended,))
    problem = _watermark_refused(state, command, bounds)
    if problem is not None:
        return Decision(state, problem)
    ending = Ending(
        correlation_id=lease.correlation_id,
        outcome=LeaseOutcome.RELINQUISHED,
        ended_ns=bounds.now.midpoint,
        watermark_ns=command.watermark_ns,
        watermark_time=command.watermark_time,
        messages=command.messages,
        chain_head=command.chain_head,
    )
    free, ended = _end(domain, state, ending, command.watermark_ns or 0, 0)
    return Decision(free, _over(free.memory, command.request_id, lease.correlation_id), (ended,))


def _watermark_refused(state: Tentative | Held, command: Relinquish, bounds: Bounds) -> Refused | None:
    lease, watermark, raw = state.lease, command.watermark_ns, command.watermark_time
    if isinstance(state, Tentative):
        return _refused(command, "tentative-written", "nothing is written under a tentative lease", "upgrade it first")
    if watermark is None or raw is None:
        return _refused(command, "watermark-incomplete", "a watermark and its signed time go together", "send both")
    if watermark <= lease.floor_ns:
        why = f"the watermark {rfc3339(watermark)} is not above the floor {rfc3339(lease.floor_ns)} that was given"
        return _refused(command, "watermark-below-floor", why, "write above the floor only")
    if watermark >= lease.expiry_ns:
        why = f"the watermark {rfc3339(watermark)} is not below the expiry {rfc3339(lease.expiry_ns)}"
        return _refused(command, "watermark-not-below-expiry", why, "write below the expiry only")
    try:
        token = SignedTime.decode(raw, "the watermark's signed time")
    except Damaged as problem:
        return _refused(command, "watermark-time-damaged", problem.message, "send the frame's signed time")
    if not r1_holds(watermark, token, bounds.r1_tolerance_ns):
        why = f"the watermark {rfc3339(watermark)} is not within its signed time {rfc3339(token.midpoint_ns)}"
        return _refused(command, "watermark-breaks-r1", why, "send the signed time of the message itself")
    return None


def _refused(command: Upgrade | Renew | Relinquish, code: str, message: str, hint: str) -> Refused:
    return Refused(request_id=command.request_id, code=code, message=message, hint=hint)
