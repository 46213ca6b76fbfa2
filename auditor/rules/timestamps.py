"""Rules about a frame's timestamps: against its signed time, its bag, and the leases that it was written under.

Readers apply the same to every frame and drop what breaks it; the judge states it again from the formats alone, and
says so. Columns are compared whole: no loop per message.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.formats.lease import Phase
from appliance.formats.paths import Bag
from appliance.formats.policy import Policy
from auditor.evidence.signatures import FrameEvidence, HeldSession, HeldWitness
from timeagent.signedtime import SignedTime
from timeagent.units import Instant, rfc3339, span_text

from ..evidence.finding import (
    Check,
    Finding,
    Times,
    asked,
    breaks,
    clock,
    found,
    latest_expiry_ns,
    phrase,
    signed_in_order,
)
from .records import stale_time, title_of, wide_radius


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a frame is worth: its findings, and which of its messages readers accept."""

    findings: list[Finding]
    accepted: NDArray[np.bool_]

    def span(self, timestamps: NDArray[np.int64]) -> tuple[int, int, int]:
        """Return how many messages are accepted, and the first and the last of them; of all where none is."""
        chosen = timestamps[self.accepted]
        shown = chosen if len(chosen) else timestamps
        return len(chosen), int(shown[0]), int(shown[-1])


def judge_frame(
    evidence: FrameEvidence, bag: Bag, policy: Policy | None, *, misplaced: bool, widest: Policy | None = None
) -> Judgement:
    """Apply every rule about timestamps to one frame of a closed bag, by the policy that it names.

    ``widest``: what any policy allows. A lease beyond that is its shard's fault, and said of the lease, or the batch.
    """
    timestamps, where, token = evidence.frame.timestamps, evidence.where, evidence.token
    span = bag.start_ns, bag.end_ns
    # Readers drop a frame for whose leases it carries, or for what the policy that it names allows these.
    good = evidence.proven and not misplaced
    good = good and not any(_foreign(evidence, held) or _beyond(held, policy) for held in evidence.carried)
    findings: list[Finding] = []
    frame = f"{where.path}, frame {evidence.frame.head.sequence}"
    if evidence.refusal is None and policy is not None:
        findings += [*stale_time(frame, token, where), *wide_radius(frame, token, policy, where)]
    accepted = np.full(len(timestamps), good)
    for held, check in _asked(evidence, span, policy):
        if check.holds:
            continue
        bad = _beside(timestamps, check, span, token)
        if bad is not None:
            findings.append(_timestamps(evidence, held, check, bad, span))
            accepted[bad] = False
            continue
        accepted &= check.code == "r2-breach"
        if check.code != "radius-above-policy":
            findings.append(_frame_finding(evidence, held, check))
    findings += _misnamed(evidence, policy, widest)
    return Judgement(findings, accepted)


type Held = HeldWitness | HeldSession


def _asked(
    evidence: FrameEvidence, span: tuple[Instant, Instant], policy: Policy | None
) -> Iterator[tuple[Held | None, Check]]:
    """Yield all that is asked of a frame: of itself, of its leases, of their session leases."""
    yield from ((None, check) for check in frame_checks(evidence, span, policy))
    for held in evidence.witnesses:
        yield from ((held, check) for check in lease_checks(evidence, held))
    for session in evidence.sessions:
        yield from ((session, check) for check in session_checks(evidence, session))


def _beside(
    timestamps: NDArray[np.int64], check: Check, span: tuple[Instant, Instant], token: SignedTime
) -> NDArray[np.bool_] | None:
    """Return which messages fail a check of timestamps; None of another one, which all of them fail."""
    match check.code:
        case "timestamp-outside-bag":
            return (timestamps < span[0]) | (timestamps >= span[1])
        case "r1-breach":
            off = int(check.bound)  # an instant as a lens shows it is no number of a column
            return (timestamps < token.midpoint_ns - off) | (timestamps > token.midpoint_ns + off)
        case "timestamp-after-expiry" | "timestamp-below-floor":
            return breaks(check.code, timestamps, check.bound)
    return None


# What is asked of a frame, and of each lease that it names.


def frame_checks(
    evidence: FrameEvidence, bag: tuple[Instant, Instant] | None, policy: Policy | None
) -> Iterator[Check]:
    """Yield the checks of a frame alone. ``bag``: beginning and end of the one it lies in, where that is known."""
    token, first, last = evidence.token, *_ends(evidence)
    refusal, signed = evidence.refusal, f"signed by a time key of {evidence.frame.head.writer}"
    if refusal is not None:
        yield Check(refusal.code, "signed time", refusal.reason, signed, holds=False)
    else:
        yield Check("forged-time", "signed time", token, signed, holds=True, words=_interval)
    if policy is not None and refusal is None:
        off, allowed = max(abs(first - token.midpoint_ns), abs(last - token.midpoint_ns)), policy.r1_tolerance_ns
        yield asked("r1-breach", off, allowed + token.radius_ns, span_text)
        yield asked("radius-above-policy", token.radius_ns, policy.radius_ns_max, span_text)
    if not evidence.unreadable:
        yield asked("leaseless-write", len(evidence.witnesses), 1, str)
    if bag is not None:
        value, limit = ((first,) if first == last else (first, "..", last)), (bag[0], "≤ t <", bag[1])
        holds = bag[0] <= first <= last < bag[1]
        yield Check("timestamp-outside-bag", "timestamps in the bag", value, limit, holds, words=phrase)
    for reason in evidence.unreadable:
        yield Check("forged-witness", "a witness", reason, "bytes that are a witness", holds=False)


def _interval(said: SignedTime | str) -> str:
    return said if isinstance(said, str) else f"{clock(said.midpoint_ns)} ± {span_text(said.radius_ns)}"


def _signed_by_shard(held: HeldWitness | HeldSession) -> Check:
    """forged-witness, forged-time, ended-key: a witness is in a batch that its shard signed."""
    what, refusal = "signed by the shard", held.refusal
    if refusal is not None:
        return Check(refusal.code, what, refusal.reason, "a signature that verifies", holds=False)
    return Check("forged-witness", what, "verifies", f"a witness key of {held.head.node}", holds=True)


def lease_checks(evidence: FrameEvidence, held: HeldWitness) -> Iterator[Check]:
    yield _signed_by_shard(held)
    if held.refusal is None:
        head, witness, (first, last) = evidence.frame.head, held.witness, _ends(evidence)
        phase, mode, holder = witness.phase, witness.mode, (witness.holder.node, witness.holder.incarnation)
        yield asked("timestamp-after-expiry", last, _expiry_ns(evidence, held))
        yield asked("timestamp-below-floor", first, witness.floor_ns)
        yield Check("tentative-write", "phase of the lease", phase, Phase.HELD, phase is Phase.HELD)
        yield Check("read-mode-write", "mode may write", mode, "IX, SIX or X", mode.may_write)
        own, writer = not _foreign(evidence, held), (head.writer, head.incarnation)
        yield Check("foreign-lease", "holder is the writer", holder, writer, own, words=_run)
        if witness.session_id is not None:
            yield _under_its_session(evidence, held)
        going_by, half = evidence.part_of(held)
        if half.other is not None:
            value, whole = ("there", True) if evidence.has_other_half(held) else ("none", False)
            yield Check(
                "half-lease-write", f"witness of the {half.other} half by map {going_by}", value, "there", whole
            )
        yield from _stamped_after(evidence, held)


def session_checks(evidence: FrameEvidence, session: HeldSession) -> Iterator[Check]:
    yield _signed_by_shard(session)
    if session.refusal is None:
        yield from _stamped_after(evidence, session)


def _ends(evidence: FrameEvidence) -> tuple[Instant, Instant]:
    return int(evidence.frame.timestamps[0]), int(evidence.frame.timestamps[-1])


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
        yield signed_in_order("witness before the frame", held.token, evidence.token)


def _misnamed(evidence: FrameEvidence, policy: Policy | None, widest: Policy | None) -> Iterator[Finding]:
    """policy-misnamed: the leases of a frame are good, but the first of these not under the policy that it names."""
    if policy is None or widest is None:
        return
    for held in evidence.carried:
        witness, token = held.witness, held.token
        span = witness.expiry_ns - token.midpoint_ns - token.radius_ns
        times: Times = {"the witness": token}
        if held.refusal is None and policy.radius_ns_max < token.radius_ns <= widest.radius_ns_max:
            reason = (
                f"clocks that are known to {span_text(policy.radius_ns_max)}; a lease of its own was granted by one "
                f"that was known to {span_text(token.radius_ns)}"
            )
        elif held.refusal is None and policy.lease_term_max_ns < span <= widest.lease_term_max_ns:
            reason = (
                f"{span_text(policy.lease_term_max_ns)}; a lease of its own lasts {span_text(span)} at least, "
                f"until {rfc3339(witness.expiry_ns)}"
            )
            times = {"the witness": token, "the expiry": witness.expiry_ns}
        else:
            continue
        subject = f"{evidence.where.path}, frame {evidence.frame.head.sequence}"
        reason = f"it names policy {policy.number}, which allows {reason}"
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


def _frame_finding(evidence: FrameEvidence, held: Held | None, check: Check) -> Finding:
    path, where, head = evidence.where.path, [evidence.where], evidence.frame.head
    title, times = "", dict[str, SignedTime]()
    if held is None:
        match check.code:
            case "leaseless-write":
                reason = "the frame carries no witness of a lease: nothing says that its writer might write, or when"
            case "forged-witness":
                reason = f"the frame carries a witness that is none: {check.value}"
            case code:
                title = title_of(code, "a frame", "the signed time of a frame is refused")
                times["the frame"] = evidence.token
                reason = f"the frame's signed time is refused: {check.value}"
        return check.finding(path, reason, where, times, title=title)
    name, holder, writer = held.name, held.witness.holder, f"{head.writer} ({head.incarnation.hex()})"
    under, session = f"{path} was written under {name}", f"session lease {(held.witness.session_id or b'').hex()}"
    match check.code:
        case "tentative-write":
            reason = f"{under}, which its witness calls {check.value}"
        case "read-mode-write":
            reason = f"{under} in mode {check.value}"
        case "foreign-lease":
            owner = f"{holder.node} ({holder.incarnation.hex()})"
            reason = f"{path} was written by {writer} under {name}, which belongs to {owner}"
        case "ended-lease-write":
            reason = f"{under}, which the witness of {session} that it carries names as ended"
        case "session-witness-missing":
            carried = "none" if check.value == "0" else f"{check.value}, or one of another holder"
            reason = f"{under}, which counts only with one witness of {session}; it carries {carried}"
        case "half-lease-write" if isinstance(held, HeldWitness):
            going_by, half = evidence.part_of(held)
            by_half = f"{writer} wrote {path} under {name}, which is the {half} half of one by map {going_by}"
            together = "it counts only together with the other half, and the frame carries no witness of that"
            reason = f"{by_half}; {together}"
        case "r2-breach":
            title = "a frame was signed before a witness that it carries"
            times = {"the witness": held.token, "the frame": evidence.token}
            reason = f"the frame names {name}, whose witness was signed after the frame's time was surely over"
        case code:
            title = title_of(code, "a witness", "the signed time of a witness is refused" * (code == "forged-time"))
            times["the witness"] = held.token
            reason = f"{path} carries a witness of {name} that is refused: {check.value}"
    return check.finding(f"{path} under {name}", reason, where, times, title=title)


def frame_covered(evidence: FrameEvidence, stamp: SignedTime | None) -> Iterator[Check]:
    """r2-breach: a lock file's signed time covers its frames, so that it cannot be surely before one of theirs."""
    if stamp is not None and evidence.refusal is None:
        yield signed_in_order("frame before the closing", evidence.token, stamp, covers=True)


def stamp_after_frame(evidence: FrameEvidence, stamp: SignedTime | None) -> Iterator[Finding]:
    """r2-breach: yield the finding where the bag was surely closed before the frame was signed."""
    for check in frame_covered(evidence, stamp):
        if not check.holds and stamp is not None:
            reason = "the bag was closed, by its lock file's signed time, surely before this frame in it was signed"
            times = {"the frame": evidence.token, "the lock file": stamp}
            title = "a bag was closed before a frame in it was signed"
            yield check.finding(evidence.where.path, reason, [evidence.where], times, title=title)


def _timestamps(
    evidence: FrameEvidence, held: Held | None, check: Check, bad: NDArray[np.bool_], span: tuple[Instant, Instant]
) -> Finding:
    token, title = evidence.token, ""
    if isinstance(held, HeldWitness):
        times: Times = {"the expiry": _expiry_ns(evidence, held), "the floor": held.witness.floor_ns}
        what = "expires at" if check.code == "timestamp-after-expiry" else "has the floor"
        rule = f"{held.name} {what} {rfc3339(check.bound)}"
    elif check.code == "r1-breach":
        times, title = {"the frame": token}, "a timestamp is too far from its signed time"
        rule = f"the signed time is {rfc3339(token.midpoint_ns)}, and {span_text(check.bound)} are allowed"
    else:
        times = {"the bag": span, "the frame": token}
        rule = f"the bag holds {rfc3339(span[0])} to {rfc3339(span[1])}"
    chosen = evidence.frame.timestamps[bad]
    first, last = int(chosen[0]), int(chosen[-1])
    count = "one message has" if len(chosen) == 1 else f"{len(chosen)} messages have"
    stamps = f"the timestamp {rfc3339(first)}" if first == last else f"timestamps {rfc3339(first)} to {rfc3339(last)}"
    times = {"the timestamps": (first, last), **times}
    path, where = evidence.where.path, [evidence.where]
    return check.finding(path, f"{count} {stamps}; {rule}", where, times, title=title)
