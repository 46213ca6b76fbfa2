"""Rules about a frame's timestamps: against its signed time, its bag, and the leases that it was written under.

Readers apply the same to every frame and drop what breaks it; the judge states it again from the formats alone, and
says so. Columns are compared whole: no loop per message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from appliance.formats.lease import Phase
from auditor.finding import NamedInterval
from timeagent.sampled import STALENESS_NS
from timeagent.signedtime import r2_holds
from timeagent.units import rfc3339, span_text

from .records import stale_time, wide_radius
from .registry import found

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from appliance.formats.paths import Bag
    from appliance.formats.policy import Policy
    from auditor.finding import Finding
    from auditor.frames import FrameEvidence, HeldSession, HeldWitness
    from timeagent.signedtime import SignedTime


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
    """Whether no rule about timestamps is broken: they increase, so that the first and the last of them decide."""
    timestamps, token = evidence.frame.timestamps, evidence.token
    first, last = int(timestamps[0]), int(timestamps[-1])
    if policy is None or not evidence.proven or not bag.start_ns <= first <= last < bag.end_ns:
        return False
    if not evidence.witnesses or token.radius_ns > policy.radius_ns_max or token.staleness_ns > STALENESS_NS:
        return False
    allowed = policy.r1_tolerance_ns + token.radius_ns
    if first < token.midpoint_ns - allowed or last > token.midpoint_ns + allowed:
        return False
    return all(_clean_lease(evidence, held, policy, first, last) for held in evidence.witnesses) and all(
        _clean_session(evidence, held, policy) for held in evidence.sessions
    )


def _clean_lease(evidence: FrameEvidence, held: HeldWitness, policy: Policy, first: int, last: int) -> bool:
    witness = held.witness
    return (
        witness.floor_ns < first
        and last < _expiry_ns(evidence, held)
        and _stands(evidence, held)
        and not _foreign(evidence, held)
        and not _unfit(held, policy)
        and r2_holds(held.token, evidence.token)
    )


def _clean_session(evidence: FrameEvidence, held: HeldSession, policy: Policy) -> bool:
    return not _foreign(evidence, held) and not _beyond(held, policy) and r2_holds(held.token, evidence.token)


def judge_frame(
    evidence: FrameEvidence, bag: Bag, policy: Policy | None, *, misplaced: bool, widest: Policy | None = None
) -> Judgement:
    """Apply every rule about timestamps to one frame of a closed bag, by the policy that it names.

    ``widest``: what any policy allows. A lease beyond that is its shard's fault, and said of the lease, or the batch.
    """
    timestamps = evidence.frame.timestamps
    if not misplaced and _clean(evidence, bag, policy):
        return Judgement([], _all(len(timestamps)))
    findings: list[Finding] = []
    accepted = np.full(len(timestamps), evidence.proven and not misplaced)

    def refuse(code: str, late: NDArray[np.bool_], rule: str, times: list[NamedInterval]) -> None:
        if late.any():
            findings.append(_timestamps(evidence, code, late, rule, times))
            accepted[late] = False

    times = [NamedInterval("the bag", bag.start_ns, bag.end_ns), _frame_time(evidence)]
    outside = (timestamps < bag.start_ns) | (timestamps >= bag.end_ns)
    refuse("timestamp-outside-bag", outside, f"the bag holds {rfc3339(bag.start_ns)} to {rfc3339(bag.end_ns)}", times)
    if evidence.refusal is None and policy is not None:
        token = evidence.token
        allowed = policy.r1_tolerance_ns + token.radius_ns
        far = np.abs(timestamps - token.midpoint_ns) > allowed
        rule = f"the signed time is {rfc3339(token.midpoint_ns)}, and {span_text(allowed)} are allowed"
        refuse("r1-breach", far, rule, [_frame_time(evidence)])
        frame = f"{evidence.where.path}, frame {evidence.frame.head.sequence}"
        findings += stale_time(frame, token, evidence.where)
        if token.radius_ns > policy.radius_ns_max:
            findings.append(wide_radius(frame, token, policy, evidence.where))
            accepted[:] = False
    if not evidence.witnesses and not evidence.unreadable:
        reason = "the frame carries no witness of a lease: nothing says that its writer might write, or when"
        findings.append(found("leaseless-write", evidence.where.path, reason, [evidence.where]))
        accepted[:] = False
    for held in evidence.witnesses:
        if held.refusal is not None:
            continue
        witness = held.witness
        name = _lease(held)
        expiry = _expiry_ns(evidence, held)
        times = [NamedInterval.at("the expiry", expiry), NamedInterval.at("the floor", witness.floor_ns)]
        late = timestamps >= expiry
        refuse("timestamp-after-expiry", late, f"{name} expires at {rfc3339(expiry)}", times)
        low = timestamps <= witness.floor_ns
        refuse("timestamp-below-floor", low, f"{name} has the floor {rfc3339(witness.floor_ns)}", times)
        if _foreign(evidence, held) or _unfit(held, policy) or not _stands(evidence, held):
            accepted[:] = False
    named = _misnamed(evidence, policy, widest)
    if named is not None:
        findings.append(named)
    for session in evidence.sessions:
        if _foreign(evidence, session) or _beyond(session, policy):
            accepted[:] = False
    findings += _lease_findings(evidence)
    return Judgement(findings, accepted)


def _misnamed(evidence: FrameEvidence, policy: Policy | None, widest: Policy | None) -> Finding | None:
    """Return the finding about a frame whose leases are good, but not under the policy that it names."""
    if policy is None or widest is None:
        return None
    carried: list[HeldWitness | HeldSession] = [*evidence.witnesses, *evidence.sessions]
    for held in carried:
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
            return found("policy-misnamed", subject, reason, [evidence.where], times)
        if held.refusal is None and policy.lease_term_max_ns < span <= widest.lease_term_max_ns:
            reason = (
                f"it names policy {policy.number}, which allows {span_text(policy.lease_term_max_ns)}; "
                f"a lease of its own lasts {span_text(span)} at least, until {rfc3339(witness.expiry_ns)}"
            )
            times = [NamedInterval.of("the witness", token), NamedInterval.at("the expiry", witness.expiry_ns)]
            return found("policy-misnamed", subject, reason, [evidence.where], times)
    return None


def _foreign(evidence: FrameEvidence, held: HeldWitness | HeldSession) -> bool:
    """Whether the holder is another process than the writer."""
    holder, head = held.witness.holder, evidence.frame.head
    return (holder.node, holder.incarnation) != (head.writer, head.incarnation)


def _unfit(held: HeldWitness, policy: Policy | None) -> bool:
    """Whether readers drop every frame with this witness."""
    witness = held.witness
    return witness.phase is not Phase.HELD or not witness.mode.may_write or _beyond(held, policy)


def _beyond(held: HeldWitness | HeldSession, policy: Policy | None) -> bool:
    """Whether a witness says more than the policy allows: a longer term, or by a clock that is known less well."""
    if policy is None:
        return False
    expiry, token = held.witness.expiry_ns, held.token
    too_long = expiry > token.midpoint_ns + policy.lease_term_max_ns + token.radius_ns
    return too_long or token.radius_ns > policy.radius_ns_max


def _expiry_ns(evidence: FrameEvidence, held: HeldWitness) -> int:
    """Return the expiry of a lease: under a session lease that one's, as the frame's witness of it says."""
    sessions = evidence.sessions_of(held) if held.witness.session_id is not None else []
    return sessions[0].witness.expiry_ns if sessions else held.witness.expiry_ns


def _stands(evidence: FrameEvidence, held: HeldWitness) -> bool:
    """Whether a lease that is under a session lease counts: with one witness of that, which does not name it."""
    if held.witness.session_id is None:
        return True
    sessions = evidence.sessions_of(held)
    return (
        len(sessions) == 1
        and sessions[0].witness.holder == held.witness.holder
        and held.witness.correlation_id not in sessions[0].witness.ended
    )


def _lease_findings(evidence: FrameEvidence) -> Iterator[Finding]:
    path, head = evidence.where.path, evidence.frame.head
    for held in evidence.witnesses:
        if held.refusal is not None:
            continue
        witness, name = held.witness, _lease(held)
        subject = f"{path} under {name}"
        if witness.phase is not Phase.HELD:
            reason = f"{path} was written under {name}, which its witness calls {witness.phase}"
            yield found("tentative-write", subject, reason, [evidence.where])
        if not witness.mode.may_write:
            reason = f"{path} was written under {name} in mode {witness.mode}"
            yield found("read-mode-write", subject, reason, [evidence.where])
        if not _stands(evidence, held):
            yield _without_session(evidence, held, subject, name)
        if _foreign(evidence, held):
            holder = witness.holder
            reason = (
                f"{path} was written by {head.writer} ({head.incarnation.hex()}) under {name}, "
                f"which belongs to {holder.node} ({holder.incarnation.hex()})"
            )
            yield found("foreign-lease", subject, reason, [evidence.where])
        if evidence.refusal is None and not r2_holds(held.token, evidence.token):
            reason = f"the frame names {name}, whose witness was signed after the frame's time was surely over"
            times = [NamedInterval.of("the witness", held.token), _frame_time(evidence)]
            title = "a frame was signed before a witness that it carries"
            yield found("r2-breach", subject, reason, [evidence.where], times, title=title)
    for session in evidence.sessions:
        if session.refusal is None and evidence.refusal is None and not r2_holds(session.token, evidence.token):
            name = f"session lease {session.witness.session_id.hex()}"
            reason = f"the frame names {name}, whose witness was signed after the frame's time was surely over"
            times = [NamedInterval.of("the witness", session.token), _frame_time(evidence)]
            title = "a frame was signed before a witness that it carries"
            yield found("r2-breach", f"{path} under {name}", reason, [evidence.where], times, title=title)


def _without_session(evidence: FrameEvidence, held: HeldWitness, subject: str, name: str) -> Finding:
    path, sessions = evidence.where.path, evidence.sessions_of(held)
    session_id = held.witness.session_id
    assert session_id is not None
    which = f"session lease {session_id.hex()}"
    if sessions and held.witness.correlation_id in sessions[0].witness.ended:
        reason = f"{path} was written under {name}, which the witness of {which} that it carries names as ended"
        return found("ended-lease-write", subject, reason, [evidence.where])
    what = "none" if not sessions else f"{len(sessions)}, or one of another holder"
    reason = f"{path} was written under {name}, which counts only with one witness of {which}; it carries {what}"
    return found("session-witness-missing", subject, reason, [evidence.where])


def stamp_after_frame(evidence: FrameEvidence, stamp: SignedTime | None) -> Iterator[Finding]:
    """r2-breach: a lock file's signed time covers its frames, so that it cannot be surely before one of theirs."""
    if stamp is None or evidence.refusal is not None or r2_holds(evidence.token, stamp, effect_covers_cause=True):
        return
    reason = "the bag was closed, by its lock file's signed time, surely before this frame in it was signed"
    times = [_frame_time(evidence), NamedInterval.of("the lock file", stamp)]
    title = "a bag was closed before a frame in it was signed"
    yield found("r2-breach", evidence.where.path, reason, [evidence.where], times, title=title)


def _timestamps(
    evidence: FrameEvidence, code: str, bad: NDArray[np.bool_], rule: str, times: list[NamedInterval]
) -> Finding:
    chosen = evidence.frame.timestamps[bad]
    first, last = int(chosen[0]), int(chosen[-1])
    count = "one message has" if len(chosen) == 1 else f"{len(chosen)} messages have"
    stamps = (
        f"the timestamp {_instant(first)}" if first == last else f"timestamps {_instant(first)} to {_instant(last)}"
    )
    reason = f"{count} {stamps}; {rule}"
    times = [NamedInterval("the timestamps", first, last), *times]
    title = "a timestamp is too far from its signed time" if code == "r1-breach" else ""
    return found(code, evidence.where.path, reason, [evidence.where], times, title=title)


def _instant(instant: int) -> str:
    return rfc3339(instant)


def _frame_time(evidence: FrameEvidence) -> NamedInterval:
    return NamedInterval.of("the frame", evidence.token)


def _lease(held: HeldWitness) -> str:
    return f"lease {held.witness.correlation_id.hex()} on {held.witness.domain!r}"
