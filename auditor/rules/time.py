"""Rules about a frame's timestamps: against its signed time, its bag, and the leases that it was written under.

Readers apply the same to every frame and drop what breaks it; the judge states it again from the formats alone, and
says so. Columns are compared whole: no loop per message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from appliance.formats.lease import Phase
from auditor.frames import HeldWitness
from timeagent.embedded import STALENESS_NS
from timeagent.units import rfc3339, span_text

from .check import Check, compared, in_order, latest_expiry_ns, phrase, radius_allowed
from .finding import NamedInterval
from .records import is_witness, lease_name, signed_by_shard, signed_time, stale_time, wide_radius
from .registry import found

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from appliance.formats.paths import Bag
    from appliance.formats.policy import Policy
    from auditor.frames import FrameEvidence, HeldSession
    from timeagent.signedtime import SignedTime
    from timeagent.units import Instant

    from .finding import Finding


_KEPT: Final = 256


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a frame is worth: its findings, and which of its messages readers accept."""

    findings: list[Finding]
    accepted: NDArray[np.bool_]

    def span(self, timestamps: NDArray[np.int64]) -> tuple[int, int, int]:
        """Return how many messages are accepted, and the first and the last of them; of all where none is."""
        if self.accepted is _ALL.get(len(timestamps)):
            return len(timestamps), int(timestamps[0]), int(timestamps[-1])
        chosen = timestamps[self.accepted]
        shown = chosen if len(chosen) else timestamps
        return len(chosen), int(shown[0]), int(shown[-1])


_ALL: Final[dict[int, NDArray[np.bool_]]] = {}
"""Columns that accept everything, by length: most frames are clean. Never written to."""


def _all(count: int) -> NDArray[np.bool_]:
    found = _ALL.get(count)
    if found is None:
        if len(_ALL) >= _KEPT:
            _ALL.clear()
        found = _ALL[count] = np.full(count, fill_value=True)
        found.flags.writeable = False
    return found


def _clean(evidence: FrameEvidence, bag: Bag, policy: Policy | None) -> bool:
    """Whether a frame breaks nothing: all that is asked of it, and of what it carries, holds."""
    if policy is None or evidence.token.staleness_ns > STALENESS_NS:
        return False
    asked = [frame_checks(evidence, (bag.start_ns, bag.end_ns), policy)]
    asked += [lease_checks(evidence, held) for held in evidence.witnesses]
    asked += [session_checks(evidence, held) for held in evidence.sessions]
    return all(check.holds for checks in asked for check in checks) and not _dropped(evidence, policy)


def _dropped(evidence: FrameEvidence, policy: Policy | None) -> bool:
    """Whether readers drop a frame for whose leases it carries, or for what the policy that it names allows these."""
    return any(_foreign(evidence, held) or _beyond(held, policy) for held in evidence.carried)


def judge_frame(
    evidence: FrameEvidence, bag: Bag, policy: Policy | None, *, misplaced: bool, widest: Policy | None = None
) -> Judgement:
    """Apply every rule about timestamps to one frame of a closed bag, by the policy that it names.

    ``widest``: what any policy allows. A lease beyond that is its shard's fault, and said of the lease, or the batch.
    """
    timestamps = evidence.frame.timestamps
    if not misplaced and _clean(evidence, bag, policy):
        return Judgement([], _all(len(timestamps)))
    findings = list(_lease_findings(evidence))
    good = evidence.proven and not misplaced and not _dropped(evidence, policy)
    accepted = np.full(len(timestamps), good and all(each.code == "r2-breach" for each in findings))

    def refuse(check: Check, bad: NDArray[np.bool_], rule: str, *times: NamedInterval) -> None:
        findings.append(_timestamps(evidence, check, bad, rule, times))
        accepted[bad] = False

    if not (inside := _inside(timestamps, bag.start_ns, bag.end_ns)).holds:
        outside = (timestamps < bag.start_ns) | (timestamps >= bag.end_ns)
        rule = f"the bag holds {rfc3339(bag.start_ns)} to {rfc3339(bag.end_ns)}"
        refuse(inside, outside, rule, NamedInterval("the bag", bag.start_ns, bag.end_ns), _frame_time(evidence))
    if evidence.refusal is None and policy is not None:
        token = evidence.token
        if not (near := _near(timestamps, token, policy)).holds:
            far = near.breaks(np.abs(timestamps - token.midpoint_ns))
            rule = f"the signed time is {rfc3339(token.midpoint_ns)}, and {span_text(near.bound)} are allowed"
            refuse(near, far, rule, _frame_time(evidence))
        frame = f"{evidence.where.path}, frame {evidence.frame.head.sequence}"
        findings += stale_time(frame, token, evidence.where)
        wide = list(wide_radius(frame, token, policy, evidence.where))
        findings += wide
        accepted &= not wide
    if not evidence.unreadable and not (named := _names_a_lease(evidence)).holds:
        reason = "the frame carries no witness of a lease: nothing says that its writer might write, or when"
        findings.append(named.finding(evidence.where.path, reason, [evidence.where]))
        accepted[:] = False
    for held in evidence.witnesses:
        if held.refusal is not None:
            continue
        before, above = _before_expiry(timestamps, _expiry_ns(evidence, held)), _above_floor(timestamps, held)
        for check, what in ((before, "expires at"), (above, "has the floor")):
            if not check.holds:
                times = NamedInterval.at("the expiry", before.bound), NamedInterval.at("the floor", above.bound)
                rule = f"{lease_name(held)} {what} {rfc3339(check.bound)}"
                refuse(check, check.breaks(timestamps), rule, *times)
    findings += _misnamed(evidence, policy, widest)
    return Judgement(findings, accepted)


# What is asked of a frame, and of each lease that it names.


def frame_checks(
    evidence: FrameEvidence, bag: tuple[Instant, Instant] | None, policy: Policy | None
) -> Iterator[Check]:
    """Yield the checks of a frame alone. ``bag``: beginning and end of the one it lies in, where that is known."""
    timestamps = evidence.frame.timestamps
    yield signed_time(evidence)
    if policy is not None and evidence.refusal is None:
        yield _near(timestamps, evidence.token, policy)
        yield radius_allowed("radius of the signed time", evidence.token, policy)
    if not evidence.unreadable:
        yield _names_a_lease(evidence)
    if bag is not None:
        yield _inside(timestamps, *bag)
    yield from map(is_witness, evidence.unreadable)


def lease_checks(evidence: FrameEvidence, held: HeldWitness) -> Iterator[Check]:
    """Yield the checks of a frame against one lease that it names."""
    timestamps = evidence.frame.timestamps
    yield signed_by_shard(held)
    if held.refusal is None:
        yield _before_expiry(timestamps, _expiry_ns(evidence, held))
        yield _above_floor(timestamps, held)
        yield _held(held)
        yield _may_write(held)
        yield _own(evidence, held)
        if held.witness.session_id is not None:
            yield _under_its_session(evidence, held)
        yield from _stamped_after(evidence, held)


def session_checks(evidence: FrameEvidence, session: HeldSession) -> Iterator[Check]:
    """Yield the checks of a frame against a session lease that it carries a witness of."""
    yield signed_by_shard(session)
    if session.refusal is None:
        yield from _stamped_after(evidence, session)


def _inside(timestamps: NDArray[np.int64], start_ns: Instant, end_ns: Instant) -> Check:
    first, last = int(timestamps[0]), int(timestamps[-1])
    value, limit = ((first,) if first == last else (first, "..", last)), (start_ns, "≤ t <", end_ns)
    holds = start_ns <= first <= last < end_ns
    return Check("timestamp-outside-bag", "timestamps in the bag", value, limit, holds, words=phrase)


def _near(timestamps: NDArray[np.int64], token: SignedTime, policy: Policy) -> Check:
    """R1, by the policy that the frame names."""
    off = max(abs(int(timestamps[0]) - token.midpoint_ns), abs(int(timestamps[-1]) - token.midpoint_ns))
    allowed = policy.r1_tolerance_ns + token.radius_ns
    return compared("r1-breach", "timestamp − signed time", off, "at most", allowed, span_text)


def _before_expiry(timestamps: NDArray[np.int64], expiry_ns: Instant) -> Check:
    what = "timestamp before the expiry"
    return compared("timestamp-after-expiry", what, int(timestamps[-1]), "<", expiry_ns)


def _above_floor(timestamps: NDArray[np.int64], held: HeldWitness) -> Check:
    what, floor = "timestamp above the floor", held.witness.floor_ns
    return compared("timestamp-below-floor", what, int(timestamps[0]), ">", floor)


def _names_a_lease(evidence: FrameEvidence) -> Check:
    return compared("leaseless-write", "leases that it names", len(evidence.witnesses), "at least", 1, str)


def _held(held: HeldWitness) -> Check:
    phase = held.witness.phase
    return Check("tentative-write", "phase of the lease", phase, Phase.HELD, phase is Phase.HELD)


def _may_write(held: HeldWitness) -> Check:
    mode = held.witness.mode
    return Check("read-mode-write", "mode may write", mode, "IX, SIX or X", mode.may_write)


def _own(evidence: FrameEvidence, held: HeldWitness) -> Check:
    holder, head = held.witness.holder, evidence.frame.head
    value, limit = (holder.node, holder.incarnation), (head.writer, head.incarnation)
    return Check("foreign-lease", "holder is the writer", value, limit, not _foreign(evidence, held), words=_run)


def _run(each: tuple[str, bytes]) -> str:
    return f"{each[0]}, run {each[1].hex()}"


def _under_its_session(evidence: FrameEvidence, held: HeldWitness) -> Check:
    """ended-lease-write, session-witness-missing: a lease under a session lease counts with one witness of that."""
    what, limit = "witness of its session lease", "one, that does not name it as ended"
    sessions = evidence.sessions_of(held)
    if sessions and held.witness.correlation_id in sessions[0].witness.ended:
        return Check("ended-lease-write", what, "names it as ended", limit, holds=False)
    holds = len(sessions) == 1 and sessions[0].witness.holder == held.witness.holder
    return Check("session-witness-missing", what, "one" if holds else str(len(sessions)), limit, holds)


def _stamped_after(evidence: FrameEvidence, held: HeldWitness | HeldSession) -> Iterator[Check]:
    if evidence.refusal is None:
        yield in_order("witness before the frame", held.token, evidence.token)


def _misnamed(evidence: FrameEvidence, policy: Policy | None, widest: Policy | None) -> Iterator[Finding]:
    """policy-misnamed: the leases of a frame are good, but the first of these not under the policy that it names."""
    if policy is None or widest is None:
        return
    for held in evidence.carried:
        witness, token = held.witness, held.token
        span = witness.expiry_ns - token.midpoint_ns - token.radius_ns
        subject = f"{evidence.where.path}, frame {evidence.frame.head.sequence}"
        if held.refusal is None and policy.radius_ns_max < token.radius_ns <= widest.radius_ns_max:
            reason = (
                f"it names policy {policy.number}, which allows clocks that are known to "
                f"{span_text(policy.radius_ns_max)}; a lease of its own was granted by one that was known to "
                f"{span_text(token.radius_ns)}"
            )
            times = [NamedInterval.of("the witness", token)]
            yield found("policy-misnamed", subject, reason, [evidence.where], times)
            return
        if held.refusal is None and policy.lease_term_max_ns < span <= widest.lease_term_max_ns:
            reason = (
                f"it names policy {policy.number}, which allows {span_text(policy.lease_term_max_ns)}; "
                f"a lease of its own lasts {span_text(span)} at least, until {rfc3339(witness.expiry_ns)}"
            )
            times = [NamedInterval.of("the witness", token), NamedInterval.at("the expiry", witness.expiry_ns)]
            yield found("policy-misnamed", subject, reason, [evidence.where], times)
            return


def _foreign(evidence: FrameEvidence, held: HeldWitness | HeldSession) -> bool:
    """Whether the holder is another process than the writer."""
    holder, head = held.witness.holder, evidence.frame.head
    return (holder.node, holder.incarnation) != (head.writer, head.incarnation)


def _beyond(held: HeldWitness | HeldSession, policy: Policy | None) -> bool:
    """Whether a witness says more than the policy allows: a longer term, or by a clock that is known less well."""
    if policy is None:
        return False
    too_long = held.witness.expiry_ns > latest_expiry_ns(held.token, policy)
    return too_long or held.token.radius_ns > policy.radius_ns_max


def _expiry_ns(evidence: FrameEvidence, held: HeldWitness) -> int:
    """Return the expiry of a lease: under a session lease that one's, as the frame's witness of it says."""
    sessions = evidence.sessions_of(held) if held.witness.session_id is not None else []
    return sessions[0].witness.expiry_ns if sessions else held.witness.expiry_ns


def _lease_findings(evidence: FrameEvidence) -> Iterator[Finding]:
    path, where, head = evidence.where.path, [evidence.where], evidence.frame.head
    writer = f"{head.writer} ({head.incarnation.hex()})"
    for held in evidence.carried:
        if held.refusal is not None:
            continue
        name, holder = lease_name(held), held.witness.holder
        subject = f"{path} under {name}"
        if isinstance(held, HeldWitness):
            under, witness = f"{path} was written under {name}", held.witness
            owner = f"{holder.node} ({holder.incarnation.hex()})"
            for check, reason in (
                (_held(held), f"{under}, which its witness calls {witness.phase}"),
                (_may_write(held), f"{under} in mode {witness.mode}"),
                (
                    _own(evidence, held),
                    f"{path} was written by {writer} under {name}, which belongs to {owner}",
                ),
            ):
                if not check.holds:
                    yield check.finding(subject, reason, where)
            if witness.session_id is not None:
                yield from _without_session(evidence, held, subject, under)
        for order in _stamped_after(evidence, held):
            if not order.holds:
                reason = f"the frame names {name}, whose witness was signed after the frame's time was surely over"
                times = [NamedInterval.of("the witness", held.token), _frame_time(evidence)]
                title = "a frame was signed before a witness that it carries"
                yield order.finding(subject, reason, where, times, title=title)


def _without_session(evidence: FrameEvidence, held: HeldWitness, subject: str, under: str) -> Iterator[Finding]:
    check, session_id = _under_its_session(evidence, held), held.witness.session_id
    if check.holds or session_id is None:
        return
    which, carried = f"session lease {session_id.hex()}", len(evidence.sessions_of(held))
    what = f"{carried}, or one of another holder" if carried else "none"
    if check.code == "ended-lease-write":
        reason = f"{under}, which the witness of {which} that it carries names as ended"
    else:
        reason = f"{under}, which counts only with one witness of {which}; it carries {what}"
    yield check.finding(subject, reason, [evidence.where])


def frame_covered(evidence: FrameEvidence, stamp: SignedTime | None) -> Iterator[Check]:
    """r2-breach: a lock file's signed time covers its frames, so that it cannot be surely before one of theirs."""
    if stamp is not None and evidence.refusal is None:
        yield in_order("frame before the closing", evidence.token, stamp, covers=True)


def stamp_after_frame(evidence: FrameEvidence, stamp: SignedTime | None) -> Iterator[Finding]:
    """r2-breach: yield the finding where the bag was surely closed before the frame was signed."""
    for check in frame_covered(evidence, stamp):
        if not check.holds and stamp is not None:
            reason = "the bag was closed, by its lock file's signed time, surely before this frame in it was signed"
            times = [_frame_time(evidence), NamedInterval.of("the lock file", stamp)]
            title = "a bag was closed before a frame in it was signed"
            yield check.finding(evidence.where.path, reason, [evidence.where], times, title=title)


def _timestamps(
    evidence: FrameEvidence, check: Check, bad: NDArray[np.bool_], rule: str, times: Iterable[NamedInterval]
) -> Finding:
    chosen = evidence.frame.timestamps[bad]
    first, last = int(chosen[0]), int(chosen[-1])
    count = "one message has" if len(chosen) == 1 else f"{len(chosen)} messages have"
    stamps = f"the timestamp {rfc3339(first)}" if first == last else f"timestamps {rfc3339(first)} to {rfc3339(last)}"
    reason = f"{count} {stamps}; {rule}"
    times = [NamedInterval("the timestamps", first, last), *times]
    title = "a timestamp is too far from its signed time" if check.code == "r1-breach" else ""
    return check.finding(evidence.where.path, reason, [evidence.where], times, title=title)


def _frame_time(evidence: FrameEvidence) -> NamedInterval:
    return NamedInterval.of("the frame", evidence.token)
