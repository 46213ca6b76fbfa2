"""The states of one domain and the one pure function over them (docs/protocol/lease.md).

``decide`` looks at a domain's state, one command and the bounds of this turn. It returns the next state, what the
ledger has to say about leases that ended, and the answer. It reads no clock and no storage and never raises for what
can happen. Nothing in a state ever falls: fence, floor and settle_to only grow.

No two leases of a domain are in modes that conflict: a grant, and a change to a stronger mode, ends those that are in
its way, or is denied and ends nothing. Each ending ("The end of a lease") brings a floor and a settle_to, which never
lower what was: the watermark where the holder gave its word, the expiry where it did not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import msgspec

from timeagent.errors import Damaged
from timeagent.signedtime import SignedTime, r1_range
from timeagent.units import Instant, rfc3339

from ..formats.hints import NOTHING_WRITTEN, Hints, joined, nothing_known
from ..formats.lease import Ending, LeaseOutcome, Mode, Phase, conflicts, covers
from ..formats.witness import Ended, Witness, WitnessKind
from .domain import (
    HOLDERS_MAX,
    Again,
    Ahead,
    Bounds,
    Break,
    Command,
    Decision,
    Free,
    Grant,
    LeaseRecord,
    Memory,
    Nothing,
    Past,
    State,
    Taken,
    memory_under,
    past_of,
    remembering,
    said,
    unwritten,
)
from .wire import (
    Acquire,
    Age,
    BeginSession,
    Denied,
    DropSession,
    Over,
    Reason,
    Refused,
    Relinquish,
    Renew,
    RenewSession,
    Revoke,
    Unavailable,
    Upgrade,
)


def over_of(memory: Memory, request_id: bytes, correlation_id: bytes | None) -> Over:
    """Say how that lease ended, if it is the last one that did."""
    last = memory.last_ended
    if last is not None and last.correlation_id == correlation_id:
        return Over(request_id=request_id, outcome=last.outcome, ending=last)
    return Over(request_id=request_id, outcome=LeaseOutcome.UNKNOWN, ending=None)


def raised(state: State, fence: int, floor_ns: Instant, settle_to_ns: Instant) -> State:
    """Return a state by which grants from now on state no less than this. What is out stays what it is."""
    memory = state.memory
    after = msgspec.structs.replace(
        memory,
        fence=max(memory.fence, fence),
        floor_ns=max(memory.floor_ns, floor_ns),
        settle_to_ns=max(memory.settle_to_ns, settle_to_ns),
        floor_set_by=memory.floor_set_by if floor_ns <= memory.floor_ns else None,
        hints=joined(memory.hints, nothing_known(floor_ns)),  # what was written below may be of another shard
    )
    if after == memory:
        return state
    return Free(memory=after) if isinstance(state, Free) else Taken(memory=after, leases=dated(state.leases, memory))


def dated(leases: tuple[LeaseRecord, ...], memory: Memory) -> tuple[LeaseRecord, ...]:
    """Keep with each lease what its witnesses say of the past: a lease beside it ends, and the memory changes."""
    now = past_of(memory)
    return tuple(msgspec.structs.replace(each, past=now) if each.past is None else each for each in leases)


def end_lease(
    domain: str,
    state: Taken,
    lease: LeaseRecord,
    ending: Ending,
    brings: tuple[Instant, Instant],
    hints: Hints | None,
    bounds: Bounds,
) -> tuple[State, Ended]:
    """End a lease. ``brings``: floor and settle_to, never lower than what was; ``hints``: see ``remembering``."""
    floor, settle_to = brings
    before = state.memory
    gone = before.before_last
    if before.last_ended is not None and gone is not None:
        last = Ended(
            domain=domain, ending=before.last_ended, floor_ns=before.floor_ns, settle_to_ns=before.settle_to_ns
        )
        gone = (*gone, last)
    memory = Memory(
        fence=before.fence,
        floor_ns=max(before.floor_ns, floor),
        settle_to_ns=max(before.settle_to_ns, settle_to),
        previous_id=before.previous_id,
        last_ended=ending,
        floor_set_by=ending if floor > before.floor_ns else before.floor_set_by,
        ended_request=lease.granted_by,
        before_last=gone or (),
        hints=before.hints,
    )
    ended = Ended(domain=domain, ending=ending, floor_ns=memory.floor_ns, settle_to_ns=memory.settle_to_ns)
    rest = tuple(each for each in dated(state.leases, before) if each.correlation_id != lease.correlation_id)
    left = Taken(memory=memory, leases=rest) if rest else Free(memory=memory)
    return remembering(left, hints, bounds), ended


def broken(
    domain: str, state: State, over: list[LeaseRecord], bounds: Bounds, outcome: LeaseOutcome = LeaseOutcome.EXPIRED
) -> tuple[State, tuple[Ended, ...]]:
    """End leases without their holders. Nothing was written under a tentative one, so it moves nothing."""
    left: State = state
    ended: list[Ended] = []
    for lease in over:
        assert isinstance(left, Taken)
        if lease.phase is Phase.TENTATIVE:
            ending = unwritten(lease.correlation_id, LeaseOutcome.WITHDRAWN, bounds.now.midpoint)
            left, entry = end_lease(domain, left, lease, ending, (0, 0), NOTHING_WRITTEN, bounds)
        else:
            ending = unwritten(lease.correlation_id, outcome, bounds.now.midpoint)
            left, entry = end_lease(domain, left, lease, ending, (lease.expiry_ns, lease.expiry_ns), None, bounds)
        ended.append(entry)
    return left, tuple(ended)


def relinquished(domain: str, state: Taken, lease: LeaseRecord, command: Relinquish, bounds: Bounds) -> Decision:
    """End a lease by its holder's word."""
    held = lease.phase is Phase.HELD
    if command.abandoned and held:
        left, ended = broken(domain, state, [lease], bounds, LeaseOutcome.ABANDONED)
        return Decision(left, over_of(left.memory, command.request_id, lease.correlation_id), ended)
    outcome = LeaseOutcome.RELINQUISHED if held else LeaseOutcome.WITHDRAWN
    ending = unwritten(lease.correlation_id, outcome, bounds.now.midpoint)
    floor: Instant = 0
    hints: Hints | None = lease.hints
    if command.watermark_time is not None or command.watermark_ns not in (None, lease.lowest_ns, lease.floor_ns):
        if (problem := _watermark_refused(lease, command, bounds)) is not None:
            return Decision(state, problem)
        floor = command.watermark_ns or 0
        ending = msgspec.structs.replace(
            ending,
            watermark_ns=command.watermark_ns,
            watermark_time=command.watermark_time,
            messages=command.messages,
            chain_head=command.chain_head,
        )
        hints = None if command.hints is None else joined(lease.hints, command.hints)
    elif command.messages or command.chain_head is not None:
        why = f"{command.messages} messages on {domain!r} have no watermark"
        return Decision(state, _refused(command, "watermark-missing", why, "say the highest timestamp written"))
    left, entry = end_lease(domain, state, lease, ending, (floor, 0), hints, bounds)
    return Decision(left, over_of(left.memory, command.request_id, lease.correlation_id), (entry,))


def _watermark_refused(lease: LeaseRecord, command: Relinquish, bounds: Bounds) -> Refused | None:
    watermark = command.watermark_ns
    if lease.phase is Phase.TENTATIVE:
        return _refused(command, "tentative-written", "nothing is written under a tentative lease", "upgrade it first")
    if watermark is None or command.watermark_time is None:
        return _refused(command, "watermark-incomplete", "a watermark and its signed time go together", "send both")
    if watermark <= lease.lowest_ns:
        why = f"the watermark {rfc3339(watermark)} is not above the floor {rfc3339(lease.lowest_ns)} that was given"
        return _refused(command, "watermark-below-floor", why, "write above the floor only")
    return watermark_refused(command, lease.expiry_ns, bounds)


def watermark_refused(command: Relinquish | DropSession, expiry_ns: Instant, bounds: Bounds) -> Refused | None:
    """Refuse a watermark that is not below the expiry, or not within its signed time. Both are there."""
    watermark, raw = command.watermark_ns, command.watermark_time
    assert watermark is not None
    assert raw is not None
    if watermark >= expiry_ns:
        why = f"the watermark {rfc3339(watermark)} is not below the expiry {rfc3339(expiry_ns)}"
        return _refused(command, "watermark-not-below-expiry", why, "write below the expiry only")
    try:
        token = SignedTime.decode(raw, "the watermark's signed time")
    except Damaged as problem:
        return _refused(command, "watermark-time-damaged", problem.message, "send the frame's signed time")
    if watermark not in r1_range(token, bounds.r1_tolerance_ns):
        why = f"the watermark {rfc3339(watermark)} is not within its signed time {rfc3339(token.midpoint_ns)}"
        return _refused(command, "watermark-breaks-r1", why, "send the signed time of the message itself")
    return None


def _refused(command: Upgrade | Renew | Relinquish | DropSession, code: str, message: str, hint: str) -> Refused:
    """Refuse what breaks a rule: value, rule, way out."""
    return Refused(request_id=command.request_id, code=code, message=message, hint=hint)


def decide(domain: str, state: State, command: Command, bounds: Bounds) -> Decision:
    """Return what comes of the command. Pure."""
    match command:
        case Grant():
            return _decide_grant(domain, state, command, bounds)
        case Break():
            return _decide_break(domain, state, command, bounds)
    lease = named(state, command.correlation_id)
    if lease is None:
        return Decision(state, over_of(state.memory, command.request_id, command.correlation_id))
    assert isinstance(state, Taken)
    match command:
        case Relinquish():
            return relinquished(domain, state, lease, command, bounds)
        case Revoke():
            # Its holder may write until the expiry: floor and settle_to say so, and whoever comes next waits for that.
            left, ended = broken(domain, state, [lease], bounds, LeaseOutcome.REVOKED)
            return Decision(left, over_of(left.memory, command.request_id, lease.correlation_id), ended)
        case Upgrade() | Renew() if command.request_id == lease.answered:
            return Decision(state, _again(domain, state, lease, command, bounds))
        case Upgrade():
            return _upgrade(domain, state, lease, command, bounds)
        case Renew():
            return _renew(domain, state, lease, command, bounds)
    assert_never(command)


def named(state: State, correlation_id: bytes) -> LeaseRecord | None:
    """Return the lease of a grant, if it is out."""
    return next((each for each in state.leases if each.correlation_id == correlation_id), None)


def _decide_break(domain: str, state: State, command: Break, bounds: Bounds) -> Decision:
    over = [
        each
        for each in state.leases
        if bounds.now.surely_past(each.expiry_ns)
        or (each.phase is Phase.TENTATIVE and (command.stopping or each.holder == command.gone))
    ]
    left, ended = broken(domain, state, over, bounds)
    return Decision(left, Nothing(), ended)


# -- grants ------------------------------------------------------------------------------------------------------------


def _decide_grant(domain: str, state: State, command: Grant, bounds: Bounds) -> Decision:
    request, memory = command.request, state.memory
    leases = state.leases
    for lease in leases:
        if lease.granted_by == request.request_id:
            return Decision(state, _again(domain, state, lease, request, bounds))
    if request.request_id == memory.ended_request:
        assert memory.last_ended is not None
        return Decision(state, over_of(memory, request.request_id, memory.last_ended.correlation_id))
    in_the_way = [each for each in leases if conflicts(each.mode, request.mode)]
    denied = _denied(domain, request.request_id, in_the_way, request.age, bounds)
    if denied is None and command.ahead is not None:
        denied = _behind(domain, request, command.ahead, leases, bounds)
    if denied is not None:
        return Decision(state, denied)
    if len(leases) - len(in_the_way) >= HOLDERS_MAX:
        why = f"there are {len(leases)} leases on {domain!r}, as many as one domain can have"
        return Decision(state, Unavailable(request_id=request.request_id, code="busy", message=why))
    left, ended = broken(domain, state, in_the_way, bounds)
    granted = _grant(domain, left, command, bounds)
    if granted is None:
        return Decision(state, _cannot_grant(command, state, bounds))
    return Decision(granted.state, granted.answer, ended)


def _breakable(lease: LeaseRecord, age: Age, bounds: Bounds) -> bool:
    """Whether a request of that age may end this lease: it is surely past, or tentative and of a younger request."""
    wounds = lease.phase is Phase.TENTATIVE and age < lease.age
    return wounds or bounds.now.surely_past(lease.expiry_ns)


def _denied(domain: str, request_id: bytes, in_the_way: list[LeaseRecord], age: Age, bounds: Bounds) -> Denied | None:
    """Name the lease that will be in the way for longest, if any may not be broken."""
    blocking = [each for each in in_the_way if not _breakable(each, age, bounds)]
    if not blocking:
        return None
    lease = max(blocking, key=lambda each: (each.expiry_ns, each.fence))
    return Denied(
        request_id=request_id,
        domain=domain,
        reason=Reason.HELD if lease.phase is Phase.HELD else Reason.TENTATIVE,
        holder=lease.holder,
        since_ns=lease.granted_ns,
        until_ns=lease.expiry_ns,
        earliest_ns=lease.expiry_ns + bounds.now.radius + 1,
    )


def _behind(
    domain: str, request: Acquire, ahead: Ahead, leases: Sequence[LeaseRecord], bounds: Bounds
) -> Denied | None:
    """Send a request to the end of the queue, unless it is older than all in it and somebody has this tentatively.

    Who has something tentatively may be waiting for what the request has, and the first of the queue for both: the
    oldest is let pass also where it wounds nobody, or all three would wait for ever.
    """
    tentative = any(each.phase is Phase.TENTATIVE and not bounds.now.surely_past(each.expiry_ns) for each in leases)
    if tentative and request.age < min(ahead.ages):
        return None
    return Denied(
        request_id=request.request_id,
        domain=domain,
        reason=Reason.QUEUED,
        holder=ahead.holder,
        since_ns=ahead.since_ns,
        until_ns=ahead.until_ns,
        earliest_ns=max(ahead.until_ns, bounds.now.midpoint) + 1,
    )


def _fence(memory: Memory, bounds: Bounds) -> int:
    return max(memory.fence, bounds.shard_floor_ns, bounds.now.midpoint) + 1


def _grant(domain: str, state: State, command: Grant, bounds: Bounds) -> Decision | None:
    """Add a lease to those that are out; None if none of any use may be granted now."""
    request, memory = command.request, state.memory
    expiry = bounds.expiry(request.term_ns, request.expiry_ns_max)
    fence = _fence(memory, bounds)
    if not bounds.now.surely_before(expiry) or fence > bounds.ceiling_ns:
        return None
    if command.expiry_ns is not None:
        if not bounds.now.surely_before(command.expiry_ns) or command.expiry_ns > bounds.signed_ns_max:
            return None
        expiry = command.expiry_ns
    past = past_of(memory)
    lease = LeaseRecord(
        mode=request.mode,
        phase=request.phase,
        holder=request.holder,
        correlation_id=fence.to_bytes(8, "big") + command.chance,
        fence=fence,
        granted_ns=bounds.now.midpoint,
        expiry_ns=expiry,
        floor_ns=memory.floor_ns,
        settle_to_ns=memory.settle_to_ns,
        lowest_ns=memory.floor_ns,
        age=request.age,
        granted_by=request.request_id,
        answered=request.request_id,
        previous_id=memory.previous_id,
        past=past if past.others else None,
        session_id=request.session_id,
    )
    granted = Taken(memory=memory_under(memory, lease), leases=(*state.leases, lease))
    return Decision(granted, _witness(domain, lease, past, WitnessKind.GRANT))


def _cannot_grant(command: Grant, state: State, bounds: Bounds) -> Unavailable:
    request = command.request
    if not bounds.now.surely_before(request.expiry_ns_max):
        code, why = "late", f"the lease was asked for until {rfc3339(request.expiry_ns_max)}"
    elif _fence(state.memory, bounds) > bounds.ceiling_ns:
        code, why = "fence-above-ceiling", f"the next fence lies above the ceiling {rfc3339(bounds.ceiling_ns)}"
    elif not bounds.now.surely_before(bounds.ceiling_ns):
        code, why = "ceiling", f"the shard may grant until {rfc3339(bounds.ceiling_ns)} only"
    elif command.expiry_ns is not None:
        code, why = "session-too-short", f"its session lease is out until {rfc3339(command.expiry_ns)}"
    else:
        code, why = "term-too-short", f"a term of {request.term_ns} ns is over before it is surely begun"
    message = f"no lease on {request.domain!r}: {why}; it is {rfc3339(bounds.now.latest)} at the latest"
    return Unavailable(request_id=request.request_id, code=code, message=message)


# -- renewal and upgrade -----------------------------------------------------------------------------------------------


def _renew(domain: str, state: Taken, lease: LeaseRecord, command: Renew, bounds: Bounds) -> Decision:
    if lease.session_id is not None:
        why = f"the lease on {domain!r} is under session lease {lease.session_id.hex()}, and has no expiry of its own"
        return Decision(state, _refused(command, "in-session", why, "renew the session lease"))
    expiry = _later_expiry(lease, command, bounds)
    if expiry is None:
        return Decision(state, no_later_expiry(f"the lease on {domain!r}", lease.expiry_ns, command, bounds))
    hints = said(state, lease, command.hints, bounds)
    renewed = msgspec.structs.replace(lease, expiry_ns=expiry, answered=command.request_id, hints=hints)
    past = renewed.past or past_of(state.memory)
    return Decision(_with(state, renewed), _witness(domain, renewed, past, WitnessKind.RENEWAL))


def _upgrade(domain: str, state: Taken, lease: LeaseRecord, command: Upgrade, bounds: Bounds) -> Decision:
    """Make a tentative lease held, or change a held one to a stronger mode, with a fence of its own."""
    mode = lease.mode if command.mode is None else command.mode
    refused = _upgrade_refused(domain, lease, mode, command)
    if refused is not None:
        return Decision(state, refused)
    in_the_way = [each for each in state.leases if each is not lease and conflicts(each.mode, mode)]
    denied = _denied(domain, command.request_id, in_the_way, lease.age, bounds)
    if denied is not None:
        return Decision(state, denied)
    expiry = _later_expiry(lease, command, bounds)
    fence = lease.fence if mode is lease.mode else _fence(state.memory, bounds)
    if expiry is None or fence > bounds.ceiling_ns:
        return Decision(state, no_later_expiry(f"the lease on {domain!r}", lease.expiry_ns, command, bounds))
    left, ended = broken(domain, state, in_the_way, bounds)
    assert isinstance(left, Taken), "the lease itself is left"
    memory = left.memory
    past = past_of(memory)
    upgraded = msgspec.structs.replace(
        lease,
        mode=mode,
        phase=Phase.HELD,
        fence=fence,
        expiry_ns=expiry,
        floor_ns=memory.floor_ns,
        settle_to_ns=memory.settle_to_ns,
        lowest_ns=memory.floor_ns if lease.phase is Phase.TENTATIVE else lease.lowest_ns,
        answered=command.request_id,
        past=past if past.others else None,
    )
    if fence > memory.fence:
        left = msgspec.structs.replace(left, memory=msgspec.structs.replace(memory, fence=fence))
    return Decision(_with(left, upgraded), _witness(domain, upgraded, past, WitnessKind.UPGRADE), ended)


def _upgrade_refused(domain: str, lease: LeaseRecord, mode: Mode, command: Upgrade) -> Refused | None:
    if lease.phase is Phase.TENTATIVE:
        if mode is lease.mode:
            return None
        why = f"the lease on {domain!r} is tentative in mode {lease.mode}; mode {mode} was asked for"
        return _refused(command, "tentative-mode", why, "make it held first")
    if mode is lease.mode:
        return _refused(command, "already-held", f"the lease on {domain!r} is held already", "renew it")
    if not covers(mode, lease.mode):
        why = f"the lease on {domain!r} is held in mode {lease.mode}, which {mode} does not include"
        return _refused(command, "mode-not-stronger", why, "ask for a mode that includes both")
    return None


def later_expiry(expiry_ns: Instant, asked: Upgrade | Renew | RenewSession | BeginSession, bounds: Bounds) -> Instant:
    """Return a later expiry. No witness ever states an earlier one than the one before: readers may hold either."""
    return max(expiry_ns, bounds.expiry(asked.term_ns, asked.expiry_ns_max))


def _later_expiry(lease: LeaseRecord, command: Upgrade | Renew, bounds: Bounds) -> Instant | None:
    """Return the next expiry of a lease, if any may be stated; under a session lease it is that one's."""
    expiry = lease.expiry_ns if lease.session_id is not None else later_expiry(lease.expiry_ns, command, bounds)
    return None if not bounds.now.surely_before(expiry) or expiry > bounds.signed_ns_max else expiry


def _again(
    domain: str, state: State, lease: LeaseRecord, command: Acquire | Upgrade | Renew, bounds: Bounds
) -> Again | Unavailable:
    """Repeat what the lease's newest witness says, as a renewal to the same expiry; it may be past."""
    if lease.expiry_ns > bounds.signed_ns_max:
        return no_later_expiry(f"the lease on {domain!r}", lease.expiry_ns, command, bounds)
    return Again(_witness(domain, lease, lease.past or past_of(state.memory), WitnessKind.RENEWAL))


def no_later_expiry(
    what: str, expiry_ns: Instant, command: Acquire | Upgrade | Renew | BeginSession | RenewSession, bounds: Bounds
) -> Unavailable:
    message = (
        f"{what} stays as it is, until {rfc3339(expiry_ns)}: no later expiry can be "
        f"granted at {rfc3339(bounds.now.midpoint)} under the ceiling {rfc3339(bounds.ceiling_ns)}"
    )
    return Unavailable(request_id=command.request_id, code="no-later-expiry", message=message)


def _with(state: Taken, lease: LeaseRecord) -> Taken:
    """Replace a lease by what it has become."""
    same = lease.correlation_id
    leases = tuple(lease if each.correlation_id == same else each for each in state.leases)
    return Taken(memory=state.memory, leases=leases)


# -- what witnesses say ------------------------------------------------------------------------------------------------


def _witness(domain: str, lease: LeaseRecord, past: Past, kind: WitnessKind) -> Witness:
    return Witness(
        kind=kind,
        domain=domain,
        mode=lease.mode,
        phase=lease.phase,
        holder=lease.holder,
        correlation_id=lease.correlation_id,
        fence=lease.fence,
        expiry_ns=lease.expiry_ns,
        floor_ns=lease.floor_ns,
        settle_to_ns=lease.settle_to_ns,
        session_id=lease.session_id,
        previous_id=lease.previous_id,
        last_ended=past.last_ended,
        floor_set_by=past.floor_set_by,
        others=past.others,
        others_digest=past.others_digest,
    )
