"""How a lease ends, and what that leaves of it in its domain (docs/protocol/lease.md, "The end of a lease"). Pure.

Each ending brings a floor and a settle_to, which never lower what was: the watermark where the holder gave its word,
the expiry where it did not. Called by ``state`` and ``sessionstate`` as ``endings.…``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from timeagent.errors import Damaged
from timeagent.rules import r1_holds
from timeagent.signedtime import SignedTime
from timeagent.units import rfc3339

from ..formats.hints import joined
from ..formats.lease import Ending, LeaseOutcome, Phase
from ..formats.witness import Ended, others_digest
from .domain import Bounds, Decision, Free, Lease, Memory, Past, State, Taken
from .whereabouts import remembering
from .wire import Over, Refused, Relinquish, Renew, Upgrade

if TYPE_CHECKING:
    from timeagent.units import Instant


def over_of(memory: Memory, request_id: bytes, correlation_id: bytes | None) -> Over:
    """Say how that lease ended, if it is the last one that did."""
    last = memory.last_ended
    if last is not None and last.correlation_id == correlation_id:
        return Over(request_id=request_id, outcome=last.outcome, ending=last)
    return Over(request_id=request_id, outcome=LeaseOutcome.UNKNOWN, ending=None)


def past_of(memory: Memory) -> Past:
    """Return what a witness says of the leases that ended before it."""
    last, setter = memory.last_ended, memory.floor_set_by
    if setter is not None and last is not None and setter.correlation_id == last.correlation_id:
        setter = None
    if not memory.before_last:
        return Past(last_ended=last, floor_set_by=setter, others=0, others_digest=None)
    named = None if setter is None else setter.correlation_id
    rest = [each for each in memory.before_last if each.ending.correlation_id != named]
    return Past(last_ended=last, floor_set_by=setter, others=len(rest), others_digest=others_digest(rest))


def dated(leases: tuple[Lease, ...], memory: Memory) -> tuple[Lease, ...]:
    """Keep with each lease what its witnesses say of the past: a lease beside it ends, and the memory changes."""
    now = past_of(memory)
    return tuple(msgspec.structs.replace(each, past=now) if each.past is None else each for each in leases)


def end_lease(
    domain: str, state: Taken, lease: Lease, ending: Ending, floor: Instant, settle_to: Instant
) -> tuple[State, Ended]:
    """End a lease; floor and settle_to are what it brings, never lower than what was."""
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
    if len(state.leases) == 1:
        return Free(memory=memory), ended
    rest = tuple(each for each in dated(state.leases, before) if each.correlation_id != lease.correlation_id)
    return Taken(memory=memory, leases=rest), ended


def broken(
    domain: str, state: Taken, over: list[Lease], bounds: Bounds, outcome: LeaseOutcome = LeaseOutcome.EXPIRED
) -> tuple[State, tuple[Ended, ...]]:
    """End leases without their holders. Nothing was written under a tentative one, so it moves nothing."""
    left: State = state
    ended: list[Ended] = []
    for lease in over:
        assert isinstance(left, Taken)
        if lease.phase is Phase.TENTATIVE:
            left, entry = end_lease(domain, left, lease, _unwritten(lease, LeaseOutcome.WITHDRAWN, bounds), 0, 0)
        else:
            ending = _unwritten(lease, outcome, bounds)
            left, entry = end_lease(domain, left, lease, ending, lease.expiry_ns, lease.expiry_ns)
            left = remembering(left, None, bounds)
        ended.append(entry)
    return left, tuple(ended)


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


def relinquished(domain: str, state: Taken, lease: Lease, command: Relinquish, bounds: Bounds) -> Decision:
    """End a lease by its holder's word."""
    if command.abandoned and lease.phase is Phase.HELD:
        ending = _unwritten(lease, LeaseOutcome.ABANDONED, bounds)
        left, ended = end_lease(domain, state, lease, ending, lease.expiry_ns, lease.expiry_ns)
        left = remembering(left, None, bounds)
        return Decision(left, over_of(left.memory, command.request_id, lease.correlation_id), (ended,))
    if command.watermark_time is None and command.watermark_ns in (None, lease.lowest_ns, lease.floor_ns):
        if command.messages or command.chain_head is not None:
            why = f"{command.messages} messages on {domain!r} have no watermark"
            return Decision(state, refused(command, "watermark-missing", why, "say the highest timestamp written"))
        outcome = LeaseOutcome.RELINQUISHED if lease.phase is Phase.HELD else LeaseOutcome.WITHDRAWN
        left, ended = end_lease(domain, state, lease, _unwritten(lease, outcome, bounds), 0, 0)
        left = remembering(left, lease.hints, bounds)
        return Decision(left, over_of(left.memory, command.request_id, lease.correlation_id), (ended,))
    problem = _watermark_refused(lease, command, bounds)
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
    left, ended = end_lease(domain, state, lease, ending, command.watermark_ns or 0, 0)
    hints = None if command.hints is None else joined(lease.hints, command.hints)
    left = remembering(left, hints, bounds)
    return Decision(left, over_of(left.memory, command.request_id, lease.correlation_id), (ended,))


def _watermark_refused(lease: Lease, command: Relinquish, bounds: Bounds) -> Refused | None:
    watermark, raw = command.watermark_ns, command.watermark_time
    if lease.phase is Phase.TENTATIVE:
        return refused(command, "tentative-written", "nothing is written under a tentative lease", "upgrade it first")
    if watermark is None or raw is None:
        return refused(command, "watermark-incomplete", "a watermark and its signed time go together", "send both")
    if watermark <= lease.lowest_ns:
        why = f"the watermark {rfc3339(watermark)} is not above the floor {rfc3339(lease.lowest_ns)} that was given"
        return refused(command, "watermark-below-floor", why, "write above the floor only")
    if watermark >= lease.expiry_ns:
        why = f"the watermark {rfc3339(watermark)} is not below the expiry {rfc3339(lease.expiry_ns)}"
        return refused(command, "watermark-not-below-expiry", why, "write below the expiry only")
    try:
        token = SignedTime.decode(raw, "the watermark's signed time")
    except Damaged as problem:
        return refused(command, "watermark-time-damaged", problem.message, "send the frame's signed time")
    if not r1_holds(watermark, token, bounds.r1_tolerance_ns):
        why = f"the watermark {rfc3339(watermark)} is not within its signed time {rfc3339(token.midpoint_ns)}"
        return refused(command, "watermark-breaks-r1", why, "send the signed time of the message itself")
    return None


def refused(command: Upgrade | Renew | Relinquish, code: str, message: str, hint: str) -> Refused:
    """Refuse what breaks a rule: value, rule, way out."""
    return Refused(request_id=command.request_id, code=code, message=message, hint=hint)
