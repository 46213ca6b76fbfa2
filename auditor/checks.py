"""What was asked of one piece of evidence: every check with the value that was found and the limit that it has.

The rules (auditor/rules) say what is wrong; this says it of what is right too, for who wants to see why. The two are
held together by a test that plants every fault: where a rule speaks, a check of its code fails, and nowhere else.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from appliance.formats.lease import LeaseOutcome, Phase, conflicts
from timeagent.signedtime import r2_holds
from timeagent.units import rfc3339, span_text

from .history import GIVEN_BACK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from appliance.formats.lockfile import LockEntry
    from appliance.formats.policy import Policy
    from appliance.formats.shardmap import ShardMap
    from appliance.formats.witness import BatchHead
    from timeagent.signedtime import SignedTime
    from timeagent.units import Instant, Span

    from .archive import LeaseTrace
    from .frames import FrameEvidence, HeldSession, HeldWitness
    from .timeline.events import CeilingLinked, ClockReading, LeaseEnded, LeaseTold


@dataclass(frozen=True, slots=True)
class Check:
    """One check. ``code``: of the finding that it makes where it fails."""

    code: str
    what: str
    value: str
    limit: str
    holds: bool | None
    """None: what it takes to tell is not there."""

    def fields(self) -> dict[str, Any]:
        """Return what JSON shows."""
        return {
            "code": self.code,
            "what": self.what,
            "value": self.value,
            "limit": self.limit,
            "holds": self.holds,
        }


def frame_checks(
    evidence: FrameEvidence, bag: tuple[Instant, Instant] | None, policy: Policy | None
) -> Iterator[Check]:
    """Yield the checks of a frame alone. ``bag``: beginning and end of the one it lies in, where that is known."""
    timestamps, token, head = evidence.frame.timestamps, evidence.token, evidence.frame.head
    first, last = int(timestamps[0]), int(timestamps[-1])
    refused = evidence.refusal.reason if evidence.refusal else None
    limit = f"signed by a time key of {head.writer}"
    code = evidence.refusal.code if evidence.refusal else "forged-time"
    yield Check(code, "signed time", refused or _interval(token), limit, refused is None)
    if policy is not None and evidence.refusal is None:
        allowed = policy.r1_tolerance_ns + token.radius_ns
        off = max(abs(first - token.midpoint_ns), abs(last - token.midpoint_ns))
        limit = f"at most {span_text(allowed)}"
        yield Check("r1-breach", "timestamp − signed time", span_text(off), limit, off <= allowed)
        yield _radius("radius of the signed time", token, policy)
    if not evidence.unreadable:
        carried = len(evidence.witnesses)
        yield Check("leaseless-write", "leases that it names", str(carried), "at least 1", carried > 0)
    if bag is not None:
        inside = bag[0] <= first <= last < bag[1]
        limit = f"{clock(bag[0])} ≤ t < {clock(bag[1])}"
        yield Check("timestamp-outside-bag", "timestamps in the bag", _range(first, last), limit, inside)
    for reason in evidence.unreadable:
        yield Check("forged-witness", "a witness", reason, "bytes that are a witness", holds=False)


def witness_checks(evidence: FrameEvidence, held: HeldWitness) -> Iterator[Check]:
    """Yield the checks of a frame against one lease that it names."""
    timestamps, token, head = evidence.frame.timestamps, evidence.token, evidence.frame.head
    first, last = int(timestamps[0]), int(timestamps[-1])
    witness = held.witness
    yield _signature(held)
    if held.refusal is not None:
        return
    expiry = _expiry_ns(evidence, held)
    yield Check(
        "timestamp-after-expiry", "timestamp before the expiry", clock(last), f"< {clock(expiry)}", last < expiry
    )
    floor = witness.floor_ns
    yield Check("timestamp-below-floor", "timestamp above the floor", clock(first), f"> {clock(floor)}", first > floor)
    held_phase = witness.phase is Phase.HELD
    yield Check("tentative-write", "phase of the lease", witness.phase.value, Phase.HELD.value, held_phase)
    yield Check("read-mode-write", "mode may write", witness.mode.value, "IX, SIX or X", witness.mode.may_write)
    holder = witness.holder
    own = (holder.node, holder.incarnation) == (head.writer, head.incarnation)
    writer = f"{head.writer}, run {head.incarnation.hex()}"
    yield Check("foreign-lease", "holder is the writer", f"{holder.node}, run {holder.incarnation.hex()}", writer, own)
    if witness.session_id is not None:
        yield _session(evidence, held)
    if evidence.refusal is None:
        yield _order("witness before the frame", held.token, token)


def session_checks(evidence: FrameEvidence, session: HeldSession) -> Iterator[Check]:
    """Yield the checks of a frame against a session lease that it carries a witness of."""
    yield _signature(session)
    if session.refusal is None and evidence.refusal is None:
        yield _order("witness before the frame", session.token, evidence.token)


def closing_checks(evidence: FrameEvidence, closed: SignedTime | None, *, listed: bool) -> Iterator[Check]:
    """Yield the checks of a frame against the lock file of its bag. ``closed``: its signed time, if that holds."""
    yield Check("late-writer", "in the bag's list", "listed" if listed else "not listed", "listed", listed)
    if closed is not None and evidence.refusal is None and listed:
        holds = r2_holds(evidence.token, closed, effect_covers_cause=True)
        value = f"closed by {clock(closed.interval.latest)}"
        yield Check(
            "r2-breach", "frame before the closing", value, f"≥ {clock(evidence.token.interval.earliest)}", holds
        )


def file_checks(entry: LockEntry, data: bytes | None, *, readable: bool = True) -> Iterator[Check]:
    """Yield the checks of a data file against the list: there, whole, unchanged."""
    if data is None:
        value = "not there" if readable else "cannot be read"
        yield Check("lost-file", "file is there", value, f"{entry.size} bytes", None if not readable else False)
        return
    yield Check("lost-file", "file is there", "there", f"{entry.size} bytes", holds=True)
    whole = len(data) >= entry.size
    yield Check("altered-file", "bytes", str(len(data)), f"at least {entry.size}", whole)
    found = hashlib.sha256(memoryview(data)[: entry.size]).hexdigest()
    listed = entry.digest.hex()
    yield Check("altered-file", "SHA-256", found[:16] + "…", listed[:16] + "…", found == listed)


def grant_checks(
    told: LeaseTold, head: BatchHead, widest: Policy | None, ceiling: CeilingLinked | None, shards: ShardMap | None
) -> Iterator[Check]:
    """Yield the checks of what a shard said of a lease, alone. ``ceiling``, ``shards``: those it names, if there."""
    witness, token = told.witness, head.signed_time()
    if widest is not None:
        yield _radius("radius of the shard's clock", token, widest)
        latest = token.midpoint_ns + widest.lease_term_max_ns + token.radius_ns
        expiry, limit = clock(witness.expiry_ns), f"≤ {clock(latest)}"
        yield Check("term-above-policy", "expiry within the longest term", expiry, limit, witness.expiry_ns <= latest)
    value, below = max(witness.expiry_ns, witness.fence), head.ceiling_ns
    yield Check("grant-above-ceiling", "expiry below the ceiling", clock(value), f"≤ {clock(below)}", value <= below)
    if ceiling is not None:
        record = ceiling.record
        own = (record.incarnation, record.ceiling_ns) == (head.incarnation, head.ceiling_ns)
        run = f"run {record.incarnation.hex()}, {clock(record.ceiling_ns)}"
        named = f"run {head.incarnation.hex()}, {clock(head.ceiling_ns)}"
        yield Check("grant-without-right", f"ceiling record {record.number}", run, named, own)
    if shards is not None and shards.owners:
        owner = shards.shard_of(witness.domain)
        what = "shard that owns the domain"
        yield Check("wrong-shard", what, f"shard {head.shard}", f"shard {owner}", head.shard == owner)


def after_checks(earlier: LeaseTrace, told: LeaseTold, head: BatchHead) -> Iterator[Check]:
    """Yield the checks of a grant against a lease before it: the fence, and, where they conflict, that it was over."""
    before, witness = earlier.told[0].witness, told.witness
    fence = f"> {before.fence}"
    yield Check("fence-not-growing", "fence above that before", str(witness.fence), fence, witness.fence > before.fence)
    ended = earlier.ended
    known = ended is not None and (ended.instant_ns <= told.instant_ns or _said_before(ended, told))
    outcome = ended.ending.outcome if ended is not None and known else None
    modes = [each.witness.mode for each in earlier.told if each.instant_ns <= told.instant_ns]
    if outcome is LeaseOutcome.WITHDRAWN or (outcome is None and not any(conflicts(m, witness.mode) for m in modes)):
        return
    over = earlier.session.over if earlier.session is not None else None
    watermark, given_back = None, False
    if ended is not None and outcome in GIVEN_BACK:
        watermark, given_back = ended.ending.watermark_ns, True
    elif outcome is None and over is not None and over.instant_ns <= told.instant_ns:
        watermark, given_back = over.ending.watermark_ns, over.ending.outcome in GIVEN_BACK
    if not given_back:
        yield from _after_expiry(earlier, told, head, ended if known else None)
    elif watermark is not None:
        floor, limit = clock(witness.floor_ns), f"≥ {clock(watermark)}"
        yield Check("grant-overlap", "floor at its watermark", floor, limit, witness.floor_ns >= watermark)


def _said_before(ended: LeaseEnded, told: LeaseTold) -> bool:
    """Whether one run of a shard said the one before the other, whatever its clock showed."""
    return ended.place[:2] == told.place[:2] and ended.place[2:] < told.place[2:]


def _after_expiry(earlier: LeaseTrace, told: LeaseTold, head: BatchHead, ended: LeaseEnded | None) -> Iterator[Check]:
    """Yield the checks of a grant after a lease that nobody gave back. Each breach has one code: the first's."""
    witness, expiry, staleness = told.witness, earlier.expiry_ns, head.signed_time().staleness_ns
    granted = over = _past(expiry, told.clock, staleness)
    value = f"granted by {clock(_latest(told.clock, staleness))}"
    outcome = ended.ending.outcome if ended is not None else None
    if ended is not None and outcome is LeaseOutcome.EXPIRED and not granted:
        over = _past(expiry, ended.clock, staleness)
        value = f"said to have run out by {clock(_latest(ended.clock, staleness))}"
    if earlier.told[0].place[:2] == told.place[:2] and outcome not in (LeaseOutcome.REVOKED, LeaseOutcome.ABANDONED):
        yield Check("early-grant", "the lease before was over", value, f"after its expiry {clock(expiry)}", over)
    code, limit = "grant-overlap" if granted else "early-grant", f"≥ {clock(expiry)}"
    holds = witness.floor_ns >= expiry
    yield Check(code, "floor at its expiry", clock(witness.floor_ns), limit, holds)
    code = "floor-fell" if over and holds else code
    settle = clock(witness.settle_to_ns)
    yield Check(code, "settle_to at its expiry", settle, limit, witness.settle_to_ns >= expiry)


def _past(expiry: Instant, reading: ClockReading, staleness: Span) -> bool | None:
    """Whether what was signed so was signed after an expiry; None where that is not sure."""
    latest = _latest(reading, staleness)
    earliest = latest - 2 * reading.radius_ns
    return True if earliest > expiry else False if latest <= expiry else None


def _latest(reading: ClockReading, staleness: Span) -> Instant:
    return reading.midpoint_ns + reading.radius_ns + staleness


def ending_checks(trace: LeaseTrace) -> Iterator[Check]:
    """Yield the checks of how a lease ended: what its holder said against what is there."""
    ended = trace.ended
    if ended is None:
        return
    ending = ended.ending
    late = [each for each in trace.told if each.place[:2] == ended.place[:2] and each.place[2:] > ended.place[2:]]
    what, value = "nothing told after its end", f"{len(late)} witnesses" if late else "nothing"
    yield Check("renewed-after-end", what, value, "nothing", not late)
    if ending.outcome is LeaseOutcome.EXPIRED:
        said, expiry = clock(ending.ended_ns), trace.expiry_ns
        yield Check("broken-early", "broken after its expiry", said, f"> {clock(expiry)}", ending.ended_ns > expiry)
    if ending.outcome is not LeaseOutcome.RELINQUISHED:
        return
    accepted = [frame.accepted_ns for frame in trace.frames if frame.accepted_ns is not None and frame.listed]
    watermark = trace.told[-1].witness.floor_ns if ending.watermark_ns is None else ending.watermark_ns
    if accepted:
        top = max(last for _, last in accepted)
        what = "watermark above its messages"
        yield Check("watermark-below-message", what, clock(watermark), f"≥ {clock(top)}", watermark >= top)
    if ending.watermark_time is not None:
        holds = watermark < trace.expiry_ns
        what = "watermark before the expiry"
        yield Check("watermark-beyond-expiry", what, clock(watermark), f"< {clock(trace.expiry_ns)}", holds)
    there = sum(frame.messages for frame in trace.frames if frame.listed is not False)
    counts = True if there == ending.messages else None  # only the audit knows what this copy lacks
    yield Check("count-mismatch", "messages that it told of", str(ending.messages), f"{there} are there", counts)


def clock(instant: Instant) -> str:
    """Return the time of day of an instant in UTC, to the microsecond; ``none`` for 0, a floor that nothing moved."""
    return rfc3339(instant)[11:26] if instant else "none"


def _radius(what: str, token: SignedTime, policy: Policy) -> Check:
    limit = policy.radius_ns_max
    holds = token.radius_ns <= limit
    return Check("radius-above-policy", what, span_text(token.radius_ns), f"at most {span_text(limit)}", holds)


def _range(first: Instant, last: Instant) -> str:
    return clock(first) if first == last else f"{clock(first)} .. {clock(last)}"


def _interval(token: SignedTime) -> str:
    return f"{clock(token.midpoint_ns)} ± {span_text(token.radius_ns)}"


def _signature(held: HeldWitness | HeldSession) -> Check:
    if held.refusal is not None:
        return Check(
            held.refusal.code, "signed by the shard", held.refusal.reason, "a signature that verifies", holds=False
        )
    limit = f"a witness key of {held.head.node}"
    return Check("forged-witness", "signed by the shard", "verifies", limit, holds=True)


def _order(what: str, cause: SignedTime, effect: SignedTime) -> Check:
    """R2: what came after cannot be signed wholly before."""
    latest = effect.interval.latest + effect.staleness_ns
    limit = f"≥ {clock(cause.interval.earliest)}"
    return Check("r2-breach", what, f"written by {clock(latest)}", limit, r2_holds(cause, effect))


def _expiry_ns(evidence: FrameEvidence, held: HeldWitness) -> Instant:
    sessions = evidence.sessions_of(held) if held.witness.session_id is not None else []
    return sessions[0].witness.expiry_ns if sessions else held.witness.expiry_ns


def _session(evidence: FrameEvidence, held: HeldWitness) -> Check:
    sessions = evidence.sessions_of(held)
    what, limit = "witness of its session lease", "one, that does not name it as ended"
    if len(sessions) == 1 and held.witness.correlation_id in sessions[0].witness.ended:
        return Check("ended-lease-write", what, "names it as ended", limit, holds=False)
    good = len(sessions) == 1 and sessions[0].witness.holder == held.witness.holder
    return Check("session-witness-missing", what, "one" if good else f"{len(sessions)}", limit, good)
