"""Rules about the leases of one domain: what each witness may say, and that no number falls from one to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from appliance.formats.lease import LeaseOutcome
from appliance.formats.witness import WitnessKind
from timeagent.units import bound_text, rfc3339

from .agreement import ClusterFacts, check_agreement, check_settling
from .chains import granted_under
from .check import Check, below_ceiling, radius_allowed, within_term
from .endings import check_ending
from .finding import NamedInterval
from .grants import check_grants
from .history import GIVEN_BACK
from .registry import found

if TYPE_CHECKING:
    from collections.abc import Iterator

    from appliance.formats.ceiling import CeilingRecord
    from appliance.formats.policy import Policy
    from appliance.formats.shardmap import ShardMap
    from appliance.formats.witness import BatchHead, Witness

    from .finding import Evidence, Finding
    from .history import DomainHistory, EndedFact, LeaseHistory, Position, Told


def check_domain(history: DomainHistory, cluster: ClusterFacts) -> Iterator[Finding]:
    """Apply every rule about leases to one domain."""
    for lease in history.leases:
        yield from _first(lease, cluster)
        for told in lease.told:
            yield from _witness(lease, told, cluster)
        yield from check_ending(lease, cluster)
    yield from check_grants(history, cluster)
    yield from check_growth(history)
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
    yield from cluster.policies.check_term(subject, witness.expiry_ns, token, told.where)
    ceiling = below_ceiling(witness.expiry_ns, witness.fence, head.ceiling_ns)
    if not ceiling.holds:
        reason = (
            f"{subject} has expiry {rfc3339(witness.expiry_ns)} and fence {witness.fence}, "
            f"above the ceiling {rfc3339(head.ceiling_ns)}"
        )
        times = [NamedInterval.of("the witness", token), NamedInterval.at("the expiry", witness.expiry_ns)]
        yield ceiling.finding(subject, reason, [told.where], times)
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
    for check in _owner(witness.domain, head, cluster.maps.get(head.map_number)):
        if not check.holds:
            owner = cluster.maps[head.map_number].shard_of(witness.domain)
            reason = f"{subject} comes from shard {head.shard}; the domain belongs to shard {owner}"
            yield check.finding(subject, reason, [told.where])


def _owner(domain: str, head: BatchHead, shards: ShardMap | None) -> Iterator[Check]:
    """wrong-shard: who grants owns the domain."""
    if shards is not None and shards.owners:
        owner, what = shards.shard_of(domain), "shard that owns the domain"
        yield Check("wrong-shard", what, f"shard {head.shard}", f"shard {owner}", head.shard == owner)


def statement_checks(
    witness: Witness, head: BatchHead, widest: Policy | None, ceiling: CeilingRecord | None, shards: ShardMap | None
) -> Iterator[Check]:
    """Yield the checks of what a shard said of a lease, alone. ``ceiling``, ``shards``: those it names, if there."""
    if widest is not None:
        token = head.signed_time()
        yield radius_allowed("radius of the shard's clock", token, widest)
        yield within_term(witness.expiry_ns, token, widest)
    yield below_ceiling(witness.expiry_ns, witness.fence, head.ceiling_ns)
    if ceiling is not None:
        yield granted_under(head, ceiling)
    yield from _owner(witness.domain, head, shards)


# What a statement owes to those before it.


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


def check_growth(history: DomainHistory) -> Iterator[Finding]:
    """floor-fell: each statement against those before it, and each end against its lease."""
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
        for lease, told in history.claims()
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
