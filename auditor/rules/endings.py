"""Rules about how leases and session leases end, and about what their holders say then of what they wrote."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from appliance.formats.lease import Ending, LeaseOutcome
from appliance.formats.sessionlease import SessionEnded
from appliance.formats.witness import WitnessKind
from auditor.index import Coverage
from timeagent.errors import Damaged
from timeagent.signedtime import SignedTime, r1_holds, r2_holds
from timeagent.units import Instant, bound_text, rfc3339

from .cluster import ClusterFacts
from .finding import Check, Evidence, Finding, NamedInterval, Verdict, below_ceiling, compared, found, signed_before
from .history import EndedFact, LeaseHistory, SessionWitnessFact, Told
from .records import Policies


def ending_checks(
    ending: Ending, expiry_ns: Instant, floor_ns: Instant, late: int, top_ns: Instant | None, there: int
) -> Iterator[Check]:
    """Yield the checks of how a lease ended: what its holder said against what is there.

    ``floor_ns``: its last one; ``late``: how many witnesses of it came after its end; ``top_ns``: the highest timestamp
    that readers accept under it; ``there``: how many messages are there.
    """
    yield _nothing_after(late)
    if ending.outcome is LeaseOutcome.EXPIRED:
        yield _broken_after(ending.ended_ns, expiry_ns)
    if ending.outcome is LeaseOutcome.RELINQUISHED:
        watermark = floor_ns if ending.watermark_ns is None else ending.watermark_ns
        if top_ns is not None:
            yield _watermark_above(watermark, top_ns)
        if ending.watermark_time is not None:
            yield _watermark_before(watermark, expiry_ns)
        yield _all_there(ending.messages, there)


def _nothing_after(late: int) -> Check:
    value = f"{late} witnesses" if late else "nothing"
    return Check("renewed-after-end", "nothing told after its end", value, "nothing", not late)


def _broken_after(ended_ns: Instant, expiry_ns: Instant) -> Check:
    """broken-early, by the shard's own word: no staleness to allow for."""
    return compared("broken-early", "broken after its expiry", ended_ns, ">", expiry_ns)


def _watermark_above(watermark: Instant, top_ns: Instant) -> Check:
    return compared("watermark-below-message", "watermark above its messages", watermark, "≥", top_ns)


def _watermark_before(watermark: Instant, expiry_ns: Instant) -> Check:
    return compared("watermark-beyond-expiry", "watermark before the expiry", watermark, "<", expiry_ns)


def _all_there(messages: int, there: int, doubtful: int = 0) -> Check:
    """count-mismatch. ``doubtful``: messages that may be the holder's; only the audit knows what this copy lacks."""
    holds = True if there <= messages <= there + doubtful else None
    return Check("count-mismatch", "messages that it told of", messages, f"{there} are there", holds)


def check_ending(lease: LeaseHistory, cluster: ClusterFacts) -> Iterator[Finding]:
    """Apply every rule about the end of one lease."""
    yield from _after_its_end(lease)
    fact = lease.relinquished
    if fact is None:
        return
    ending = fact.ending
    word = Word(lease.name, "lease", "relinquished", lease.floor_ns, ending, fact.token, fact.where)
    watermark = word.watermark_ns
    times = [NamedInterval.at("the watermark", watermark), NamedInterval.at("the expiry", lease.expiry_ns)]
    top = max((use for use in lease.uses if use.accepted), key=lambda use: use.last_ns, default=None)
    if top is not None and not (above := _watermark_above(watermark, top.last_ns)).holds:
        reason = f"{lease.name} has a message at {rfc3339(top.last_ns)}, above its watermark {bound_text(watermark)}"
        yield above.finding(lease.name, reason, [fact.where, top.where], times)
    if ending.watermark_time is not None:
        verdict = None if _renewals_known(lease, fact, cluster) else Verdict.INDETERMINATE
        yield from check_expiry(word, lease.expiry_ns, times, verdict)
    if ending.outcome is not LeaseOutcome.RELINQUISHED:  # of a dropped session lease the word is about all its leases
        return
    if ending.watermark_time is None and ending.watermark_ns not in (None, *(t.witness.floor_ns for t in lease.told)):
        yield unpaired(word, "a watermark that is none of its floors, and no signed time of it")
    grants = [told for told in lease.told if told.witness.kind is WitnessKind.GRANT]
    yield from check_watermark(word, grants, cluster.policies)
    there, lowest = sum(use.messages for use in lease.uses), lease.first.witness.floor_ns
    yield from check_count(word, there, lease.doubtful, lowest, (use.where for use in lease.uses), cluster.coverage)


def _after_its_end(lease: LeaseHistory) -> Iterator[Finding]:
    """broken-early and renewed-after-end; r2-breach of an instant that was still to come when it was told."""
    fact = lease.ended
    if fact is None:
        return
    if fact.entry is not None:
        yield from not_yet(lease.name, fact.ending.ended_ns, fact.token, fact.where)
    early = broken_early(lease, fact)
    if early is not None:
        expiry = lease.expiry_at(fact.position)
        reason = f"{lease.name} was broken at {rfc3339(fact.ending.ended_ns)}, before it expired at {rfc3339(expiry)}"
        times = [NamedInterval.at("the end", fact.ending.ended_ns), NamedInterval.at("the expiry", expiry)]
        yield early.finding(lease.name, reason, [lease.last_expiry.where, fact.where], times)
    late = [told for told in lease.told if told.position > fact.position]
    if late:
        after = late[0]
        reason = (
            f"{lease.name} ended as {fact.ending.outcome} at {rfc3339(fact.ending.ended_ns)}; "
            f"batch {after.head.sequence} holds a {after.witness.kind} of it that came after"
        )
        times = [
            NamedInterval.at("the end", fact.ending.ended_ns),
            NamedInterval.of(f"the {after.witness.kind}", after.token),
        ]
        title = f"the {after.witness.kind} of a lease came after its end"
        where = [fact.where, after.where]
        yield _nothing_after(len(late)).finding(lease.name, reason, where, times, title=title)


def broken_early(lease: LeaseHistory, fact: EndedFact) -> Check | None:
    """Return the check that fails where a shard ended a lease as expired before its expiry."""
    if fact.ending.outcome is not LeaseOutcome.EXPIRED:
        return None
    check = _broken_after(fact.ending.ended_ns, lease.expiry_at(fact.position))
    return None if check.holds else check


def _renewals_known(lease: LeaseHistory, fact: EndedFact, cluster: ClusterFacts) -> bool:
    """Whether every renewal between the grant and the end is in the ledger."""
    last = fact.position[3] if fact.entry is not None else fact.position[3] - 1
    return cluster.runs[lease.run].whole(lease.first.head.sequence, last)


# What the holders of leases and of session leases say alike.


class Word(NamedTuple):
    """What a holder said when it gave back a lease, or a session lease, and the shard's statement of it."""

    name: str
    kind: str
    """What it gave back: a lease, or a session lease."""
    ended: str
    """What it did: relinquished, or dropped."""
    floor_ns: Instant
    """What it gives back with where nothing was written."""
    entry: Ending | SessionEnded
    token: SignedTime
    where: Evidence

    @property
    def watermark_ns(self) -> Instant:
        """The highest timestamp that it may have written."""
        return self.floor_ns if self.entry.watermark_ns is None else self.entry.watermark_ns


def unpaired(word: Word, what: str) -> Finding:
    """r1-breach: return the finding about a watermark and its signed time where one of the two is missing."""
    title = "a watermark and its signed time go together"
    reason = f"{word.name} was {word.ended} with {what}"
    return found("r1-breach", f"{word.name}, watermark", reason, [word.where], title=title)


def check_expiry(
    word: Word, expiry_ns: Instant, times: Iterable[NamedInterval] = (), verdict: Verdict | None = None
) -> Iterator[Finding]:
    """watermark-beyond-expiry: what was written lies before the expiry."""
    check = _watermark_before(word.watermark_ns, expiry_ns)
    if not check.holds:
        reason = f"{word.name} was {word.ended} with a watermark at or beyond {rfc3339(expiry_ns)}"
        yield check.finding(word.name, reason, [word.where], times, verdict=verdict)


def check_watermark(word: Word, grants: Sequence[Told | SessionWitnessFact], policies: Policies) -> Iterator[Finding]:
    """r1-breach and r2-breach of a watermark: it keeps the signed time of its message, and its end came after."""
    raw, watermark, subject = word.entry.watermark_time, word.watermark_ns, f"{word.name}, watermark"
    if raw is None:
        return
    try:
        token = SignedTime.decode(raw, f"the watermark of {word.name}")
    except Damaged as problem:
        title = "the signed time of a watermark is none"
        yield found("forged-time", subject, problem.message, [word.where], title=title)
        return
    yield from policies.check_clock(subject, token, word.where)
    if policies.widest is not None and not r1_holds(watermark, token, policies.widest.r1_tolerance_ns):
        reason = f"the watermark {rfc3339(watermark)} of {word.name} is too far from its signed time"
        times = [NamedInterval.at("the watermark", watermark), NamedInterval.of("its signed time", token)]
        title = "a watermark is too far from its signed time"
        too_far = found("r1-breach", subject, reason, [word.where], times, title=title)
        yield policies.judged(too_far, token.interval.latest)
    its_time, shard = ("the watermark", token), ("the shard", word.token)
    for told in grants:
        if not r2_holds(told.token, token):
            reason = f"the watermark of {word.name} was signed surely before the {word.kind} was granted"
            title = f"a watermark was signed before its {word.kind} was granted"
            yield signed_before(("the grant", told.token), its_time, subject, reason, [told.where, word.where], title)
    if not r2_holds(token, word.token):
        reason = f"the shard said that {word.name} ended surely before the time in its watermark was signed"
        title = f"a {word.kind} ended before its watermark was signed"
        yield signed_before(its_time, shard, subject, reason, [word.where], title)


def check_count(
    word: Word, there: int, doubtful: int, lowest_ns: Instant, uses: Iterable[Evidence], coverage: Coverage
) -> Iterator[Finding]:
    """count-mismatch: what a holder said that it wrote is there, unless this copy lacks it.

    ``uses``: where that stands; ``lowest_ns``: no timestamp of it lies below.
    """
    claimed = word.entry.messages
    check = _all_there(claimed, there, doubtful)
    missing = coverage.missing_within(lowest_ns, word.watermark_ns) if there < claimed else Verdict.VIOLATION
    if check.holds or missing is None:
        return
    hold = "the bags hold" if missing is Verdict.VIOLATION else "the others are not in this copy, which has"
    reason = f"{word.name} was {word.ended} after {claimed} messages; {hold} {there}"
    yield check.finding(word.name, reason, [word.where, *sorted(set(uses))][:9], verdict=missing)


def check_reach(
    subject: str, told: Told | SessionWitnessFact, policies: Policies, fence: int | None = None
) -> Iterator[Finding]:
    """term-above-policy and grant-above-ceiling of one witness. ``fence``: where it has one."""
    expiry, ceiling = told.witness.expiry_ns, told.head.ceiling_ns
    yield from policies.check_term(subject, expiry, told.token, told.where)
    check = below_ceiling(expiry, fence or 0, ceiling)
    if not check.holds:
        stated = f"expiry {rfc3339(expiry)}" + ("" if fence is None else f" and fence {fence}")
        reason = f"{subject} has {stated}, above the ceiling {rfc3339(ceiling)}"
        times = [NamedInterval.of("the witness", told.token), NamedInterval.at("the expiry", expiry)]
        yield check.finding(subject, reason, [told.where], times)


def expiry_fell(name: str, told: Sequence[Told | SessionWitnessFact]) -> Iterator[Finding]:
    """expiry-fell: a holder may go by either of two witnesses, and the shard by the later one only."""
    for before, after in itertools.pairwise(told):
        expiry, was = after.witness.expiry_ns, before.witness.expiry_ns
        if expiry < was:
            reason = (
                f"a {after.witness.kind} of {name} states the expiry {rfc3339(expiry)}; before it was {rfc3339(was)}"
            )
            times = [NamedInterval.at("the expiry before", was), NamedInterval.at("the expiry", expiry)]
            yield found("expiry-fell", name, reason, [before.where, after.where], times)
            return


def not_yet(name: str, ended_ns: int, token: SignedTime, where: Evidence) -> Iterator[Finding]:
    """r2-breach: a shard says that something ended at an instant that its signed time surely does not reach."""
    if ended_ns > token.interval.latest + token.staleness_ns:
        reason = f"the batch that says that {name} ended at {rfc3339(ended_ns)} was signed surely before that"
        times = [NamedInterval.at("the end", ended_ns), NamedInterval.of("the batch", token)]
        title = "a lease ended after the batch that says so was signed"
        yield found("r2-breach", f"{name}, end", reason, [where], times, title=title)
