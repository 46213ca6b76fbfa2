"""Rules about how one grant follows another: by its fence, and never while an earlier lease may still be used.

A *writable range* is what a holder's messages may have as timestamps: above its floor, below its expiry, and no higher
than the watermark with which it relinquished. Exclusion in the record (P1) is that the writable ranges, and what was
written in them, follow each other in the order of the fences.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from appliance.formats.lease import LeaseOutcome, Mode, conflicts
from appliance.formats.shardmap import chain_of
from appliance.formats.witness import Half, WitnessKind
from timeagent.signedtime import SignedTime
from timeagent.units import Instant, bound_text, rfc3339

from ..columns.index import Use
from ..evidence.finding import Check, Finding, Times, Verdict, asked, compared, found, phrase
from .endings import is_broken_early
from .history import GIVEN_BACK, ClusterFacts, DomainHistory, LeaseHistory, ShardRun, Told, shard_of


def check_grants(history: DomainHistory, cluster: ClusterFacts) -> Iterator[Finding]:
    """Apply every rule about grants, and what was written under them, to one domain."""
    yield from _links(history, cluster)
    for (_, before), (lease, told) in itertools.pairwise(history.claims()):
        check = asked("fence-not-growing", told.witness.fence, before.witness.fence, str)
        if not check.holds:
            reason = f"{lease.name} has the fence {check.value}, the grant before it {before.witness.fence}"
            yield check.finding(lease.name, reason, [before.where, told.where])
    yield from _grants(history, cluster)
    yield from _record(history)


def _links(history: DomainHistory, cluster: ClusterFacts) -> Iterator[Finding]:
    """chain-gap, chain-fork: each grant names the lease before it, and no other grant does."""
    known = {lease.correlation_id for lease in history.leases}
    followers: dict[bytes, LeaseHistory] = {}
    for lease in history.leases:
        told = lease.granted
        previous = told.witness.previous_id if told else None
        if told is None or previous is None:
            continue
        if previous not in known:
            if told.head.sequence <= cluster.runs[lease.run].ledger_end:
                reason = f"{lease.name} follows lease {previous.hex()}, of which nothing is known"
                yield found("chain-gap", lease.name, reason, [told.where])
            continue
        other = followers.setdefault(previous, lease)
        ended = other.ended_before(told.position)
        if ended is not None and ended.ending.outcome is LeaseOutcome.WITHDRAWN:
            followers[previous] = lease
        elif other is not lease:
            reason = f"{other.name} and {lease.name} both follow lease {previous.hex()}"
            where, title = [other.first.where, told.where], "two leases follow the same one"
            yield found("chain-fork", lease.name, reason, where, title=title)


def _grants(history: DomainHistory, cluster: ClusterFacts) -> Iterator[Finding]:
    """early-grant and grant-overlap: against every earlier lease that may still be written under."""
    standing: list[LeaseHistory] = []
    coming = deque(history.leases)
    for lease, told in history.claims():
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


type Signed = tuple[Instant, Instant]
"""The earliest and the latest instant at which something was signed.

A signed time may have been handed out up to its staleness after it was made, so that much is allowed for.
"""


def signed_within(token: SignedTime) -> Signed:
    return token.interval.earliest + token.staleness_ns, token.interval.latest + token.staleness_ns


class Before(NamedTuple):
    """A lease before a grant, by what was known of it when that was made."""

    held: bool
    """Whether it ever was: only then may its holder write."""
    expiry_ns: Instant
    same_run: bool
    """Whether the run of a shard that granted it made the grant too."""
    outcome: LeaseOutcome | None = None
    """None: no end of it is known."""
    watermark_ns: Instant | None = None
    ended: Signed | None = None
    """When its shard said that it had ended."""


OVER: Final = "the lease before was over"
AT_WATERMARK: Final = "floor at its watermark"
AT_EXPIRY: Final = "floor at its expiry"
SETTLED: Final = "settle_to at its expiry"


def follow_checks(before: Before, floor_ns: Instant, settle_to_ns: Instant, granted: Signed) -> Iterator[Check]:
    """Yield the checks of a grant after a lease that conflicts with it. A breach has one code: that of the first."""
    expiry, watermark, outcome = before.expiry_ns, before.watermark_ns, before.outcome
    if outcome is LeaseOutcome.WITHDRAWN and not before.held:
        return
    if outcome in GIVEN_BACK:
        if before.held and watermark is not None:
            yield compared("grant-overlap", AT_WATERMARK, floor_ns, "≥", watermark)
        return
    signed, word, past = granted, "granted by", _surely_past(expiry, granted)
    if before.ended is not None and outcome is LeaseOutcome.EXPIRED and not past:
        # It was past when the shard said so. A clock that stepped back since is told of its signed times.
        signed, word = before.ended, "said to have run out by"
    settled = "floor-fell"
    if before.same_run and outcome not in (LeaseOutcome.REVOKED, LeaseOutcome.ABANDONED):
        over = _surely_past(expiry, signed)
        yield Check("early-grant", OVER, (word, signed[1]), ("after its expiry", expiry), over, words=phrase)
        settled = "floor-fell" if over else "early-grant"
    if before.held:
        code = "grant-overlap" if past else "early-grant"
        floor = compared(code, AT_EXPIRY, floor_ns, "≥", expiry)
        yield floor
        yield compared(settled if floor.holds else code, SETTLED, settle_to_ns, "≥", expiry)


def _surely_past(expiry_ns: Instant, signed: Signed) -> bool | None:
    """Whether something was signed after an expiry, by the clock of who signed it; None where that is not sure."""
    earliest, latest = signed
    return True if earliest > expiry_ns else False if latest <= expiry_ns else None


def _follows(
    earlier: LeaseHistory, lease: LeaseHistory, told: Told, cluster: ClusterFacts
) -> tuple[Finding | None, bool]:
    """Return what is wrong with a grant after an earlier one, and whether that one is over for all later ones."""
    ended = earlier.ended_before(told.position)
    if ended is None and not conflicts(earlier.mode_at(told.position), told.witness.mode):
        return None, False
    if ended is None and not _would_be_known(earlier, lease, told, cluster):
        return None, True
    outcome, watermark, signed = None, None, None
    if ended is not None:
        outcome, watermark, signed = ended.ending.outcome, ended.ending.watermark_ns, signed_within(ended.token)
    expiry, same_run = earlier.expiry_ns, earlier.run == lease.run
    if same_run and ended is not None and is_broken_early(earlier, ended):
        return None, True  # it is told there; what was granted after it follows from it
    before = Before(earlier.held, expiry, same_run, outcome, watermark, signed)
    witness = told.witness
    checks = follow_checks(before, witness.floor_ns, witness.settle_to_ns, signed_within(told.token))
    wrong = next((check for check in checks if not check.holds), None)
    if wrong is None:
        return None, True
    times: Times = {}
    if wrong.what == SETTLED:
        reason = (
            f"{lease.name} states settle_to {bound_text(witness.settle_to_ns)}, below {rfc3339(expiry)}, the expiry "
            f"of {earlier.name}, which was not relinquished"
        )
    else:
        because = {
            OVER: f"it was held until {rfc3339(expiry)}, and not relinquished",
            AT_EXPIRY: f"it could be written under until {rfc3339(expiry)}",
            AT_WATERMARK: f"it was relinquished with the watermark {bound_text(watermark or 0)}",
        }
        reason = (
            f"{lease.name} was granted at {rfc3339(told.token.midpoint_ns)} to {witness.holder.node}, with the floor "
            f"{bound_text(witness.floor_ns)}, "
            f"while {earlier.name} of {earlier.holder.node} was not over: {because[wrong.what]}"
        )
        since, shard = earlier.first.token.midpoint_ns, earlier.first.head.node
        times = {"the earlier lease": (since, max(since, expiry), shard), "the grant": told.token}
    return wrong.finding(lease.name, reason, [earlier.last_expiry.where, told.where], times), True


def _would_be_known(earlier: LeaseHistory, lease: LeaseHistory, told: Told, cluster: ClusterFacts) -> bool:
    """Whether the end of the earlier lease, had there been one, would be in what is left of the ledger.

    Or in the witness of the grant after it, unless more leases ended before that than it names; a change of mode names
    only what ended since its own grant. Of a run that was cut off no end is needed: whoever comes after it begins above
    its ceiling.
    """
    witness = told.witness
    if witness.kind is WitnessKind.GRANT and witness.previous_id == earlier.correlation_id and not witness.others:
        return True
    first = earlier.first.head.sequence
    if earlier.run == lease.run:
        return cluster.runs[earlier.run].whole(first, told.head.sequence)
    return known_to_its_end(earlier, cluster.runs[lease.run], cluster)


def known_to_its_end(earlier: LeaseHistory, later: ShardRun, cluster: ClusterFacts) -> bool:
    """Whether the end of a lease, had there been one, would be known, now that another run came after its own."""
    chain = cluster.ceilings.get(cluster.runs[earlier.run].shard)
    if chain is not None and chain.was_cut_off(earlier.run, later):
        return True
    return _told_to_its_end(earlier, cluster)


def _told_to_its_end(lease: LeaseHistory, cluster: ClusterFacts) -> bool:
    """Whether the ledger of a lease's run is whole from its grant to the run's end: nobody knows of a killed run."""
    run = cluster.runs[lease.run]
    return lease.run in cluster.finished and run.whole(lease.first.head.sequence, run.highest)


def _record(history: DomainHistory) -> Iterator[Finding]:
    """grant-overlap: what was written under an earlier fence has lower timestamps than what was under a later one.

    A lease counts with the fence and the mode of its grant. What it wrote in a stronger mode lies above the floor of
    that change; ``timestamp-below-floor`` and the grants after it see to the rest.
    """
    highest: _Highest = {}
    for lease in sorted(history.leases, key=lambda each: (each.fence, each.first.position)):
        yield from _below(lease, highest)
        _raise(highest, lease, [use for use in lease.uses if use.accepted])


type _Highest = dict[Mode, tuple[Use, LeaseHistory]]
"""The highest message that was accepted under leases of each mode, and under which of them."""


def _raise(highest: _Highest, lease: LeaseHistory, uses: list[Use]) -> None:
    mode, top = lease.first.witness.mode, max(uses, key=lambda use: use.last_ns, default=None)
    if top is not None and (mode not in highest or top.last_ns > highest[mode][0].last_ns):
        highest[mode] = top, lease


def _below(lease: LeaseHistory, highest: _Highest) -> Iterator[Finding]:
    """grant-overlap: something under a lease is not above all that was written under those that it excludes."""
    mode = lease.first.witness.mode
    low = min((use for use in lease.uses if use.accepted), key=lambda use: use.first_ns, default=None)
    against = [each for other, each in highest.items() if conflicts(other, mode)]
    if low is None or not against:
        return
    high, earlier = max(against, key=lambda each: each[0].last_ns)
    if low.first_ns <= high.last_ns:
        reason = (
            f"under {lease.name} there is a message at {rfc3339(low.first_ns)}, not above {rfc3339(high.last_ns)}, "
            f"which {earlier.name} before it, with the fence {earlier.fence}, reached"
        )
        times = {
            "the earlier lease's message": (high.first_ns, high.last_ns),
            "the later lease's message": (low.first_ns, low.last_ns),
        }
        yield found("grant-overlap", f"{lease.name}, messages", reason, [high.where, low.where], times)


# Planned moves: from an old chain by way of both to a new one. In phase *both* a domain that moves is held from the
# chain that leaves and from the one that comes, and a lease of either is half of one. Each chain is judged by itself,
# as any other: what may not overlap in it does not overlap in the two together. What is left is asked here: of leases
# of the old chain as they counted before it left, and of leases of the new one from when they count by themselves.


def check_moved(history: DomainHistory, cluster: ClusterFacts) -> Iterator[Finding]:
    """overtaken-lease, whole-too-early, grant-overlap: leases of each chain of a domain against those before."""
    for lease in history.leases:
        yield from _overtaken(lease, history, cluster)
    for earlier, later in itertools.combinations(history.by_map(), 2):
        standing = sorted((each for each in earlier.leases if each.held and each.staying), key=_reach, reverse=True)
        for lease in later.leases:
            if lease.held and lease.whole:
                yield from _counts_alone(lease, earlier, standing, later, cluster)
        highest: _Highest = {}
        for before in earlier.leases:
            _raise(highest, before, [use for use in before.uses if use.accepted and use.staying])
        for lease in later.leases:
            yield from _below(lease, highest)


def _overtaken(lease: LeaseHistory, history: DomainHistory, cluster: ClusterFacts) -> Iterator[Finding]:
    """overtaken-lease: a shard counts by itself surely before a lease is over that was held from the old one alone."""
    own = shard_of(lease.first.head)
    both = next(iter(cluster.moves.get(own, ())), None)
    fact = None if both is None else cluster.counts.get(chain_of(both.layout.of(history.domain)))
    if fact is None or not lease.held:
        return
    ended, staying = lease.ended, lease.staying
    if not staying or (ended is not None and ended.ending.outcome is not LeaseOutcome.EXPIRED):
        return
    if ended is None and not known_to_its_end(lease, cluster.runs[fact.head.incarnation], cluster):
        return
    last = max(staying, key=lambda each: each.witness.expiry_ns)
    expiry = last.witness.expiry_ns
    if signed_within(fact.token)[1] < expiry and not _other_halves(lease, history):
        reason = (
            f"{fact.name} counts by itself; {lease.name} of {lease.holder.node} is of the chain before, and was "
            f"held from that alone until {rfc3339(expiry)}"
        )
        times: Times = {"the batch": fact.token, "the lease before": expiry}
        yield found("overtaken-lease", lease.name, reason, [last.where, fact.where], times)


def _reach(lease: LeaseHistory) -> Instant:
    """Return what lies above all that a lease may ask of one that counts by itself later."""
    watermark = lease.ended.ending.watermark_ns if lease.ended else None
    return max(watermark or 0, *(each.witness.expiry_ns for each in lease.staying))


def _counts_alone(
    lease: LeaseHistory,
    earlier: DomainHistory,
    standing: Sequence[LeaseHistory],
    later: DomainHistory,
    cluster: ClusterFacts,
) -> Iterator[Finding]:
    """whole-too-early: what others could write under the old chain alone lies below what a lease may from then on.

    Its holder keeps to the floors of both its halves. ``standing``: of the old chain what counted there by itself, by
    how far it reaches; few of a long history reach above where a lease begins.
    """
    since, low = lease.whole[0], min(lease.floor_ns, max(told.witness.settle_to_ns for told in lease.told))
    above = list(itertools.takewhile(lambda each: _reach(each) > low, standing))
    if not above:
        return
    own = [lease, *(each for each in earlier.leases if each.holder == lease.holder)]
    floor = max(each.floor_ns for each in own)
    settle_to = max(told.witness.settle_to_ns for each in own for told in each.told)
    for before in above:
        ended = before.ended
        if before.holder == lease.holder:
            continue
        if not conflicts(before.told[-1].witness.mode, lease.mode_at(since.position)):
            continue
        halves = _other_halves(before, later)
        if ended is None and halves:  # that half says how it ended; while it has not, its own chain excludes others
            ended = next((end for each in halves if (end := each.ended_before(since.position)) is not None), None)
            if ended is None or ended.ending.outcome in GIVEN_BACK:
                continue
        if ended is None and not known_to_its_end(before, cluster.runs[lease.run], cluster):
            continue
        last = max(before.staying, key=lambda each: each.witness.expiry_ns)
        asked = settled = last.witness.expiry_ns
        because = "before that left it could be written under until"
        if ended is not None and ended.ending.outcome in GIVEN_BACK:
            asked, settled, because = ended.ending.watermark_ns or 0, 0, "it was given back with the watermark"
        if floor < asked or settle_to < settled:
            reason = (
                f"{lease.name} of {lease.holder.node} counts by itself since batch {since.head.sequence}, with the "
                f"floor {bound_text(floor)} and settle_to {bound_text(settle_to)}; {before.name} of "
                f"{before.holder.node} is of the chain before: {because} {rfc3339(asked)}"
            )
            times: Times = {"the witness": since.token, "the lease before": asked}
            # What was granted as half a lease need not lie above the end of the old chain, only above what ended there.
            alone = lease.granted is not None and lease.granted.head.half is Half.WHOLE
            sure = ended is not None or alone or _told_to_its_end(before, cluster)
            verdict = None if sure else Verdict.INDETERMINATE
            yield found("whole-too-early", lease.name, reason, [last.where, since.where], times, verdict=verdict)


def _other_halves(lease: LeaseHistory, history: DomainHistory) -> list[LeaseHistory]:
    """Return the leases of a later chain that its holder was granted as the other half."""
    later = (each for each in history.leases if each.map_number > lease.map_number)
    return [each for each in later if each.holder == lease.holder and each.first.head.half is Half.COMING]
