"""Rules about the leases of one domain: what each witness may say, how one grant follows another, how leases end.

A *writable range* is what a holder's messages may have as timestamps: above its floor, below its expiry, and no higher
than the watermark with which it relinquished. Exclusion in the record (P1) is that the writable ranges, and what was
written in them, follow each other in the order of the fences.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from appliance.formats.lease import LeaseOutcome, conflicts
from appliance.formats.witness import WitnessKind
from auditor.finding import NamedInterval, Verdict
from auditor.history import GIVEN_BACK
from timeagent.errors import Damaged
from timeagent.signedtime import SignedTime, r2_holds
from timeagent.units import bound_text, rfc3339

from .agreement import ClusterFacts, check_agreement, check_settling, not_yet
from .registry import found

if TYPE_CHECKING:
    from collections.abc import Iterator

    from appliance.formats.lease import Mode
    from auditor.finding import Evidence, Finding
    from auditor.history import DomainHistory, EndedFact, LeaseHistory, Position, Told


def check_domain(history: DomainHistory, cluster: ClusterFacts) -> Iterator[Finding]:
    """Apply every rule about leases to one domain."""
    for lease in history.leases:
        yield from _first(lease, cluster)
        for told in lease.told:
            yield from _witness(lease, told, cluster)
        yield from _ending(lease, cluster)
    yield from _links(history, cluster)
    yield from check_growth(history)
    yield from _grants(history, cluster)
    yield from _record(history)
    yield from check_settling(history, cluster.closings)
    yield from check_agreement(history, cluster)
    yield from check_revocations(history)
    yield from check_stops(history, cluster)


# What one witness may say.


def _first(lease: LeaseHistory, cluster: ClusterFacts) -> Iterator[Finding]:
    """ungranted-lease: what a shard says of a lease begins with its grant, where the ledger is whole up to there."""
    first = lease.first
    if lease.granted is None and cluster.runs[lease.run].whole(1, first.head.sequence):
        reason = f"the first word on {lease.name} is a {first.witness.kind}, and the ledger before it is whole"
        yield found("ungranted-lease", lease.name, reason, [first.where])


def _witness(lease: LeaseHistory, told: Told, cluster: ClusterFacts) -> Iterator[Finding]:
    witness, head, token = told.witness, told.head, told.token
    subject = f"{lease.name}, {witness.kind} in batch {head.sequence}"
    times = [NamedInterval.of("the witness", token), NamedInterval.at("the expiry", witness.expiry_ns)]
    policies = cluster.policies
    if policies.widest is not None:
        latest = token.midpoint_ns + policies.widest.lease_term_max_ns + token.radius_ns
        if witness.expiry_ns > latest:
            reason = f"{subject} lasts until {rfc3339(witness.expiry_ns)}; the policy allows {rfc3339(latest)}"
            too_long = found("term-above-policy", subject, reason, [told.where], times)
            yield policies.judged(too_long, token.interval.latest)
    if witness.expiry_ns > head.ceiling_ns or witness.fence > head.ceiling_ns:
        reason = (
            f"{subject} has expiry {rfc3339(witness.expiry_ns)} and fence {witness.fence}, "
            f"above the ceiling {rfc3339(head.ceiling_ns)}"
        )
        yield found("grant-above-ceiling", subject, reason, [told.where], times)
    chain = cluster.ceilings.get((head.map_number, head.shard))
    lowest = chain.floor_of(head.incarnation) if chain and witness.kind is not WitnessKind.RENEWAL else None
    if lowest is not None and (witness.floor_ns < lowest[0] or witness.settle_to_ns < lowest[1]):
        reason = (
            f"{subject} states floor {bound_text(witness.floor_ns)} and settle_to {bound_text(witness.settle_to_ns)}, "
            f"below its shard's own, {bound_text(lowest[0])} and {bound_text(lowest[1])}"
        )
        title = "a floor or settle_to is below its shard's own"
        yield found("floor-fell", subject, reason, [told.where], title=title)
    if lowest is not None and witness.fence <= lowest[0]:
        reason = f"{subject} has the fence {witness.fence}, not above its shard's own floor {lowest[0]}"
        title = "a fence is not above its shard's own floor"
        yield found("fence-not-growing", subject, reason, [told.where], title=title)
    named = int.from_bytes(witness.correlation_id[:8], "big")
    if named != witness.fence if witness.kind is WitnessKind.GRANT else named > witness.fence:
        reason = f"{subject} has the fence {witness.fence}; its correlation id begins with {named}"
        yield found("misnamed-lease", subject, reason, [told.where])
    shards = cluster.maps.get(head.map_number)
    if shards is not None and shards.owners and shards.shard_of(witness.domain) != head.shard:
        owner = shards.shard_of(witness.domain)
        reason = f"{subject} comes from shard {head.shard}; the domain belongs to shard {owner}"
        yield found("wrong-shard", subject, reason, [told.where])


# How one grant follows another.


def _links(history: DomainHistory, cluster: ClusterFacts) -> Iterator[Finding]:
    known = history.by_id()
    followers: dict[bytes, LeaseHistory] = {}
    for lease in history.leases:
        told = lease.granted
        previous = told.witness.previous_id if told else None
        if told is None or previous is None:
            continue
        if previous not in known:
            run = cluster.runs[told.head.incarnation]
            if told.head.sequence <= run.ledger_end:
                reason = f"{lease.name} follows lease {previous.hex()}, of which nothing is known"
                yield found("chain-gap", lease.name, reason, [told.where])
            continue
        other = followers.setdefault(previous, lease)
        if other is lease:
            continue
        ended = other.ended_before(told.position)
        if ended is not None and ended.ending.outcome is LeaseOutcome.WITHDRAWN:
            followers[previous] = lease
            continue
        reason = f"{other.name} and {lease.name} both follow lease {previous.hex()}"
        yield found(
            "chain-fork", lease.name, reason, [other.first.where, told.where], title="two leases follow the same one"
        )


def _grants(history: DomainHistory, cluster: ClusterFacts) -> Iterator[Finding]:
    """early-grant and grant-overlap: against every earlier lease that may still be written under."""
    standing: list[LeaseHistory] = []
    coming = deque(history.leases)
    for lease, told in claims(history):
        while coming and coming[0].first.position < told.position:
            standing.append(coming.popleft())
        left = []
        for earlier in standing:
            finding, over = (None, False) if earlier is lease else _follows(earlier, lease, told, cluster)
            if finding is not None:
                yield finding
            if not over:
                left.append(earlier)
        standing = left


def _follows(
    earlier: LeaseHistory, lease: LeaseHistory, told: Told, cluster: ClusterFacts
) -> tuple[Finding | None, bool]:
    """Return what is wrong with a grant after an earlier one, and whether that one is over for all later ones."""
    ended = earlier.ended_before(told.position)
    if ended is None and not conflicts(earlier.mode_at(told.position), told.witness.mode):
        return None, False
    same_run = earlier.run == lease.run
    outcome = ended.ending.outcome if ended else None
    if outcome is LeaseOutcome.WITHDRAWN and not earlier.held:
        return None, True
    if ended is not None and outcome in GIVEN_BACK:
        watermark = ended.ending.watermark_ns
        if earlier.held and watermark is not None and told.witness.floor_ns < watermark:
            what = f"it was relinquished with the watermark {bound_text(watermark)}"
            return _overlap("grant-overlap", earlier, lease, told, what), True
        return None, True
    if ended is None and not _would_be_known(earlier, lease, told, cluster):
        return None, True
    if same_run and outcome not in (LeaseOutcome.REVOKED, LeaseOutcome.ABANDONED):
        verdict = _too_early(told.token, earlier.expiry_ns)
        if verdict is not None and ended is not None and outcome is LeaseOutcome.EXPIRED:
            # It was past when the shard said so. A clock that stepped back since is told of its signed times.
            verdict = _too_early(ended.token, earlier.expiry_ns)
        if ended is not None and _broken_early(earlier, ended):
            return None, True  # it is told there; what was granted after it follows from it
        if verdict is not None:
            what = f"it was held until {rfc3339(earlier.expiry_ns)}, and not relinquished"
            return _overlap("early-grant", earlier, lease, told, what, verdict), True
    if earlier.held and told.witness.floor_ns < earlier.expiry_ns:
        what = f"it could be written under until {rfc3339(earlier.expiry_ns)}"
        code = "grant-overlap" if _too_early(told.token, earlier.expiry_ns) is None else "early-grant"
        return _overlap(code, earlier, lease, told, what), True
    if earlier.held and told.witness.settle_to_ns < earlier.expiry_ns:
        reason = (
            f"{lease.name} states settle_to {bound_text(told.witness.settle_to_ns)}, below "
            f"{rfc3339(earlier.expiry_ns)}, the expiry of {earlier.name}, which was not relinquished"
        )
        return found("floor-fell", lease.name, reason, [earlier.last_expiry.where, told.where]), True
    return None, True


def _would_be_known(earlier: LeaseHistory, lease: LeaseHistory, told: Told, cluster: ClusterFacts) -> bool:
    """Whether the end of the earlier lease, had there been one, would be in what is left of the ledger.

    Or in the witness of the grant after it, unless more leases ended before that than it names; a change of mode names
    only what ended since its own grant. Of a run that was cut off no end is needed: whoever comes after it begins above
    its ceiling.
    """
    witness = told.witness
    if witness.kind is WitnessKind.GRANT and witness.previous_id == earlier.correlation_id and not witness.others:
        return True
    run = cluster.runs[earlier.run]
    first = earlier.first.head.sequence
    if earlier.run == lease.run:
        return run.whole(first, told.head.sequence - 1) or first >= told.head.sequence - 1
    chain = cluster.ceilings.get(run.shard)
    if chain is not None and chain.was_cut_off(earlier.run, cluster.runs[lease.run]):
        return True
    return earlier.run in cluster.finished and run.whole(first, run.highest)


def _too_early(token: SignedTime, expiry_ns: int) -> Verdict | None:
    """Whether something was signed before an expiry was surely past, by the shard's own clock.

    Its signed time may have been handed out up to its staleness after it was signed, so that much is allowed for.
    """
    if token.interval.latest + token.staleness_ns <= expiry_ns:
        return Verdict.VIOLATION
    return Verdict.INDETERMINATE if token.interval.earliest + token.staleness_ns <= expiry_ns else None


def _overlap(
    code: str, earlier: LeaseHistory, lease: LeaseHistory, told: Told, what: str, verdict: Verdict | None = None
) -> Finding:
    reason = (
        f"{lease.name} was granted with the floor {bound_text(told.witness.floor_ns)} to {told.witness.holder.node} "
        f"while {earlier.name} of {earlier.first.witness.holder.node} was not over: {what}"
    )
    times = [
        NamedInterval(
            "the earlier lease",
            earlier.first.token.midpoint_ns,
            max(earlier.first.token.midpoint_ns, earlier.expiry_ns),
            node=earlier.first.head.node,
        ),
        NamedInterval.of("the grant", told.token),
    ]
    return found(code, lease.name, reason, [earlier.last_expiry.where, told.where], times, verdict=verdict)


def _record(history: DomainHistory) -> Iterator[Finding]:
    """grant-overlap: what was written under an earlier fence has lower timestamps than what was under a later one.

    A lease counts with the fence and the mode of its grant. What it wrote in a stronger mode lies above the floor of
    that change; ``timestamp-below-floor`` and the grants after it see to the rest.
    """
    highest: dict[Mode, tuple[int, LeaseHistory]] = {}
    for lease in sorted(history.leases, key=lambda each: (each.fence, each.first.position)):
        accepted = [use for use in lease.uses if use.accepted]
        if not accepted:
            continue
        low, top = min(accepted, key=lambda u: u.first_ns), max(accepted, key=lambda u: u.last_ns)
        mode = lease.first.witness.mode
        against = [found for other, found in highest.items() if conflicts(other, mode)]
        high = max(against, key=lambda found: found[0], default=None)
        if high is not None and low.first_ns <= high[0]:
            earlier = max((use for use in high[1].uses if use.accepted), key=lambda u: u.last_ns)
            reason = (
                f"under {lease.name} there is a message at {rfc3339(low.first_ns)}, not above {rfc3339(high[0])}, "
                f"which {high[1].name} with the lower fence {high[1].fence} reached"
            )
            times = [
                NamedInterval("the earlier fence's message", earlier.first_ns, earlier.last_ns),
                NamedInterval("the later fence's message", low.first_ns, low.last_ns),
            ]
            yield found("grant-overlap", f"{lease.name}, messages", reason, [earlier.where, low.where], times)
        if mode not in highest or top.last_ns > highest[mode][0]:
            highest[mode] = top.last_ns, lease


# How a lease ended.


def _broken_early(lease: LeaseHistory, fact: EndedFact) -> bool:
    """Whether a shard ended a lease as expired before its expiry, by its own word: no staleness to allow for."""
    return fact.ending.outcome is LeaseOutcome.EXPIRED and fact.ending.ended_ns <= lease.expiry_at(fact.position)


def _after_its_end(lease: LeaseHistory) -> Iterator[Finding]:
    """broken-early and renewed-after-end; r2-breach of an instant that was still to come when it was told."""
    fact = lease.ended
    if fact is None:
        return
    if fact.entry is not None:
        yield from not_yet(lease.name, fact.ending.ended_ns, fact.token, fact.where)
    if _broken_early(lease, fact):
        expiry = lease.expiry_at(fact.position)
        reason = f"{lease.name} was broken at {rfc3339(fact.ending.ended_ns)}, before it expired at {rfc3339(expiry)}"
        times = [NamedInterval.at("the end", fact.ending.ended_ns), NamedInterval.at("the expiry", expiry)]
        yield found("broken-early", lease.name, reason, [lease.last_expiry.where, fact.where], times)
    late = next((told for told in lease.told if told.position > fact.position), None)
    if late is not None:
        reason = (
            f"{lease.name} ended as {fact.ending.outcome} at {rfc3339(fact.ending.ended_ns)}; "
            f"batch {late.head.sequence} holds a {late.witness.kind} of it that came after"
        )
        times = [
            NamedInterval.at("the end", fact.ending.ended_ns),
            NamedInterval.of(f"the {late.witness.kind}", late.token),
        ]
        title = f"the {late.witness.kind} of a lease came after its end"
        yield found("renewed-after-end", lease.name, reason, [fact.where, late.where], times, title=title)


def _ending(lease: LeaseHistory, cluster: ClusterFacts) -> Iterator[Finding]:
    yield from _after_its_end(lease)
    fact = lease.relinquished
    if fact is None:
        return
    ending = fact.ending
    watermark = lease.floor_ns if ending.watermark_ns is None else ending.watermark_ns
    times = [NamedInterval.at("the watermark", watermark), NamedInterval.at("the expiry", lease.expiry_ns)]
    above = [use for use in lease.uses if use.accepted and use.last_ns > watermark]
    if above:
        top = max(above, key=lambda use: use.last_ns)
        reason = f"{lease.name} has a message at {rfc3339(top.last_ns)}, above its watermark {bound_text(watermark)}"
        yield found("watermark-below-message", lease.name, reason, [fact.where, top.where], times)
    wrote = ending.watermark_time is not None
    if wrote and watermark >= lease.expiry_ns:
        verdict = None if _renewals_known(lease, fact, cluster) else Verdict.INDETERMINATE
        reason = f"{lease.name} was relinquished with a watermark at or beyond {rfc3339(lease.expiry_ns)}"
        yield found("watermark-beyond-expiry", lease.name, reason, [fact.where], times, verdict=verdict)
    if ending.outcome is LeaseOutcome.RELINQUISHED:  # of a dropped session lease the word is about all of its leases
        yield from _watermark_time(lease, fact, watermark, cluster)
        yield from _count(lease, fact, watermark, cluster)


def _renewals_known(lease: LeaseHistory, fact: EndedFact, cluster: ClusterFacts) -> bool:
    """Whether every renewal between the grant and the end is in the ledger."""
    last = fact.position[3] if fact.entry is not None else fact.position[3] - 1
    return cluster.runs[lease.run].whole(lease.first.head.sequence, last)


def _watermark_time(lease: LeaseHistory, fact: EndedFact, watermark: int, cluster: ClusterFacts) -> Iterator[Finding]:
    """r1-breach and r2-breach of a watermark: it keeps the signed time of its message, and its end came after."""
    raw, policies = fact.ending.watermark_time, cluster.policies
    if raw is None and fact.ending.watermark_ns not in (None, *(told.witness.floor_ns for told in lease.told)):
        title = "a watermark and its signed time go together"
        reason = f"{lease.name} was relinquished with a watermark that is none of its floors, and no signed time of it"
        yield found("r1-breach", f"{lease.name}, watermark", reason, [fact.where], title=title)
    if raw is None or policies.widest is None:
        return
    try:
        token = SignedTime.decode(raw, f"the watermark of {lease.name}")
    except Damaged as problem:
        title = "the signed time of a watermark is none"
        yield found("forged-time", f"{lease.name}, watermark", problem.message, [fact.where], title=title)
        return
    yield from policies.check_clock(f"{lease.name}, watermark", token, fact.where)
    if abs(watermark - token.midpoint_ns) > policies.widest.r1_tolerance_ns + token.radius_ns:
        reason = f"the watermark {rfc3339(watermark)} of {lease.name} is too far from its signed time"
        times = [NamedInterval.at("the watermark", watermark), NamedInterval.of("its signed time", token)]
        title = "a watermark is too far from its signed time"
        too_far = found("r1-breach", f"{lease.name}, watermark", reason, [fact.where], times, title=title)
        yield policies.judged(too_far, token.interval.latest)
    for told in lease.told:
        if told.witness.kind is WitnessKind.GRANT and not r2_holds(told.token, token):
            reason = f"the watermark of {lease.name} was signed surely before the lease was granted"
            times = [
                NamedInterval.of("the grant", told.token),
                NamedInterval.of("the watermark", token),
            ]
            title = "a watermark was signed before its lease was granted"
            where = [told.where, fact.where]
            yield found("r2-breach", f"{lease.name}, watermark", reason, where, times, title=title)
    if not r2_holds(token, fact.token):
        reason = f"the shard said that {lease.name} ended surely before the time in its watermark was signed"
        times = [NamedInterval.of("the watermark", token), NamedInterval.of("the shard", fact.token)]
        title = "a lease ended before its watermark was signed"
        yield found("r2-breach", f"{lease.name}, watermark", reason, [fact.where], times, title=title)


def _count(lease: LeaseHistory, fact: EndedFact, watermark: int, cluster: ClusterFacts) -> Iterator[Finding]:
    there = sum(use.messages for use in lease.uses)
    claimed = fact.ending.messages
    if there <= claimed <= there + lease.doubtful:
        return
    verdict: Verdict | None = Verdict.VIOLATION
    if there < claimed:
        verdict = cluster.coverage.missing_within(lease.first.witness.floor_ns, watermark)
    if verdict is None:
        return
    hold = "the bags hold" if verdict is Verdict.VIOLATION else "the others are not in this copy, which has"
    reason = f"{lease.name} was relinquished after {claimed} messages; {hold} {there}"
    evidence = [fact.where, *(use.where for use in sorted(lease.uses, key=lambda use: use.where))][:9]
    yield found("count-mismatch", lease.name, reason, evidence, verdict=verdict)


def check_stops(history: DomainHistory, cluster: ClusterFacts) -> Iterator[Finding]:
    """floor-fell: the last record of a run states less than a lease of the run asks of whoever comes next."""
    for lease in history.leases:
        chain = cluster.ceilings.get(cluster.runs[lease.run].shard)
        end = chain.end_of(lease.run) if chain else None
        if end is None or lease.first.head.ceiling_number > end.record.number:  # that was granted without right
            continue
        floor, settle_to = _asked(lease, cluster)
        record = end.record
        if record.floor_ns < floor or record.settle_to_ns < settle_to:
            reason = (
                f"{end.where.path} ends run {lease.run.hex()} with floor {bound_text(record.floor_ns)} and settle_to "
                f"{bound_text(record.settle_to_ns)}; {lease.name} of that run asks for {bound_text(floor)} and "
                f"{bound_text(settle_to)}"
            )
            yield found("floor-fell", lease.name, reason, [lease.last_expiry.where, end.where])


def _asked(lease: LeaseHistory, cluster: ClusterFacts) -> tuple[int, int]:
    """Return floor and settle_to that a lease asks of a later run, as far as it is known how it ended."""
    stated = [told.witness for told in lease.told]
    floor = max(max(each.floor_ns, each.fence) for each in stated)
    settle_to = max(each.settle_to_ns for each in stated)
    ended = lease.ended
    outcome = ended.ending.outcome if ended else None
    if not lease.held or outcome is LeaseOutcome.WITHDRAWN:
        return floor, settle_to
    if ended is not None and outcome in GIVEN_BACK:
        return max(floor, ended.ending.watermark_ns or 0), settle_to
    run = cluster.runs[lease.run]
    if ended is None and not (lease.run in cluster.finished and run.whole(lease.first.head.sequence, run.highest)):
        return floor, settle_to
    return max(floor, lease.expiry_ns), max(settle_to, lease.expiry_ns)


class _Statement(NamedTuple):
    """What a shard said of a domain's numbers: with a grant, a change of mode, or the end of a lease."""

    position: Position
    lease: str
    floor_ns: int
    settle_to_ns: int
    where: Evidence
    is_end: bool = False


def claims(history: DomainHistory) -> list[tuple[LeaseHistory, Told]]:
    """Return every grant and every change of mode, in the order in which they were made."""
    found = [(lease, told) for lease in history.leases for told in lease.claims]
    return sorted(found, key=lambda each: each[1].position)


def check_growth(history: DomainHistory) -> Iterator[Finding]:
    """fence-not-growing and floor-fell: each statement against those before it, and each end against its lease."""
    last: Told | None = None
    for lease, told in claims(history):
        if last is not None and told.witness.fence <= last.witness.fence:
            reason = f"{lease.name} has the fence {told.witness.fence}, the grant before it {last.witness.fence}"
            yield found("fence-not-growing", lease.name, reason, [last.where, told.where])
        last = told
    claimed: _Statement | None = None
    ended: _Statement | None = None
    for each in _statements(history):
        # What a grant owes to the end of an earlier lease is asked, with its verdict, where grants follow each other.
        before = [high for high in ((claimed, ended) if each.is_end else (claimed,)) if high is not None]
        high = max(before, key=lambda one: (one.floor_ns, one.settle_to_ns), default=None)
        if high is not None and (each.floor_ns < high.floor_ns or each.settle_to_ns < high.settle_to_ns):
            reason = (
                f"{each.lease} states floor {bound_text(each.floor_ns)} and settle_to "
                f"{bound_text(each.settle_to_ns)}; {high.lease} before it stated {bound_text(high.floor_ns)} and "
                f"{bound_text(high.settle_to_ns)}"
            )
            yield found("floor-fell", each.lease, reason, [high.where, each.where])
        elif each.is_end:
            ended = each
        else:
            claimed = each
    for lease in history.leases:
        for fact in lease.endings:
            yield from _end(lease, fact)


def _statements(history: DomainHistory) -> list[_Statement]:
    found = [
        _Statement(told.position, lease.name, told.witness.floor_ns, told.witness.settle_to_ns, told.where)
        for lease, told in claims(history)
    ]
    for lease in history.leases:
        for fact in lease.endings:
            if fact.entry is not None:
                name, numbers = f"the end of {lease.name}", (fact.entry.floor_ns, fact.entry.settle_to_ns)
                found.append(_Statement(fact.position, name, *numbers, fact.where, is_end=True))
    return sorted(found, key=lambda each: each.position)


def _end(lease: LeaseHistory, fact: EndedFact) -> Iterator[Finding]:
    """floor-fell: the numbers with which a lease ended are at least what it leaves: its watermark, or its expiry."""
    entry, outcome = fact.entry, fact.ending.outcome
    if entry is None or outcome is LeaseOutcome.WITHDRAWN or not lease.held:
        return
    given_back = outcome in GIVEN_BACK
    floor = (fact.ending.watermark_ns or 0) if given_back else lease.expiry_at(fact.position)
    settle_to = 0 if given_back else floor
    if entry.floor_ns < floor or entry.settle_to_ns < settle_to:
        what = "its watermark" if given_back else "its expiry, for floor and settle_to"
        reason = (
            f"{lease.name} ended as {outcome} with floor {bound_text(entry.floor_ns)} and settle_to "
            f"{bound_text(entry.settle_to_ns)}; it leaves {bound_text(floor)}, {what}"
        )
        yield found("floor-fell", f"{lease.name}, end", reason, [lease.last_expiry.where, fact.where])


def check_revocations(history: DomainHistory) -> Iterator[Finding]:
    """revocation-incomplete: a lease that was revoked by nobody, or who revoked one that did not end then."""
    for position, (ended, where) in history.ends.items():
        name = ended.ending.correlation_id
        behind = history.revocations.get((*position[:4], position[4] + 1))
        if ended.ending.outcome is LeaseOutcome.REVOKED and (behind is None or behind[0].correlation_id != name):
            lease = f"lease {name.hex()} on {ended.domain!r}"
            reason = f"{lease} was revoked, and the entry behind that in its batch does not say by whom"
            yield found("revocation-incomplete", lease, reason, [where])
    for position, (revoked, where) in history.revocations.items():
        name = revoked.correlation_id
        before = history.ends.get((*position[:4], position[4] - 1))
        if before is None or before[0].ending.correlation_id != name:
            lease = f"lease {name.hex()} on {revoked.domain!r}"
            reason = (
                f"{revoked.by.node} revoked {lease}, and the entry before that in its batch does not say that it ended"
            )
            yield found("revocation-incomplete", lease, reason, [where])
