"""Rules about planned moves: from an old chain by way of both to a new one; and about the maps that say so.

In phase *both* a domain that moves is held from the chain that leaves and from the one that comes, and a lease of
either is half of one. Each chain is judged by itself, as any other: what may not overlap in it does not overlap in the
two together. What is left is asked here: of leases of the old chain as they counted before it left, and of leases of
the new one from when they count by themselves.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping

from appliance.formats.framing import Kind
from appliance.formats.lease import LeaseOutcome, conflicts
from appliance.formats.paths import chain_path, record_name
from appliance.formats.shardmap import ShardMap, chain_of
from appliance.formats.witness import Half
from auditor.evidence.records import ClusterRecords
from timeagent.signedtime import r2_holds
from timeagent.units import bound_text, rfc3339

from .chains import head_name
from .finding import Evidence, Finding, NamedInterval, Verdict, found, signed_before
from .grants import HighestUses, known_to_its_end, signed_within
from .history import GIVEN_BACK, ClusterFacts, DomainHistory, HeadFact, LeaseHistory, RecordedChain, ShardName, shard_of


def check_moved(history: DomainHistory, cluster: ClusterFacts) -> Iterator[Finding]:
    """overtaken-lease, whole-too-early, grant-overlap: leases of each chain of a domain against those before."""
    for lease in history.leases:
        yield from _overtaken(lease, history, cluster)
    for earlier, later in itertools.combinations(history.by_map(), 2):
        for lease in later.leases:
            if lease.held and lease.whole:
                yield from _counts_alone(lease, earlier, later, cluster)
        highest = HighestUses()
        for before in earlier.leases:
            highest.take(before, [use for use in before.uses if use.accepted and use.staying])
        for lease in later.leases:
            yield from highest.below(lease)


def _overtaken(lease: LeaseHistory, history: DomainHistory, cluster: ClusterFacts) -> Iterator[Finding]:
    """overtaken-lease: a shard counts by itself surely before a lease is over that was held from the old one alone."""
    fact = cluster.counts.get(_successor(lease, cluster))
    ended, staying = lease.ended, lease.staying
    if fact is None or not staying or not lease.held or _other_halves(lease, history):
        return
    if ended is not None and ended.ending.outcome is not LeaseOutcome.EXPIRED:
        return
    if ended is None and not known_to_its_end(lease, cluster.runs[fact.head.incarnation], cluster):
        return
    last = max(staying, key=lambda each: each.witness.expiry_ns)
    if signed_within(fact.token)[1] < last.witness.expiry_ns:
        reason = (
            f"{head_name(fact)} counts by itself; {lease.name} of {lease.holder.node} is of the chain before, and was "
            f"held from that alone until {rfc3339(last.witness.expiry_ns)}"
        )
        times = [
            NamedInterval.of("the batch", fact.token),
            NamedInterval.at("the lease before", last.witness.expiry_ns),
        ]
        yield found("overtaken-lease", lease.name, reason, [last.where, fact.where], times)


def _successor(lease: LeaseHistory, cluster: ClusterFacts) -> ShardName:
    """Return the chain to which the domain of a lease moves; one that there is not, where it moves nowhere."""
    own = shard_of(lease.first.head)
    both = next((each for each in cluster.maps.values() if own in each.leaving), None)
    return (0, 0) if both is None else chain_of(both.layout.of(lease.first.witness.domain))


def counting(facts: Iterable[HeadFact]) -> dict[ShardName, HeadFact]:
    """Return of each chain that came by a planned move the first batch by which it counts by itself."""
    found: dict[ShardName, HeadFact] = {}
    for fact in facts:
        head, name = fact.head, (fact.head.map_number, fact.head.shard)
        if head.half is Half.WHOLE and head.going_by > head.map_number > 1:
            first = found.setdefault(name, fact)
            found[name] = min(first, fact, key=lambda each: each.token.midpoint_ns)
    return found


def _counts_alone(
    lease: LeaseHistory, earlier: DomainHistory, later: DomainHistory, cluster: ClusterFacts
) -> Iterator[Finding]:
    """whole-too-early: what others could write under the old chain alone lies below what a lease may from then on.

    Its holder keeps to the floors of both its halves.
    """
    since = lease.whole[0]
    own = [lease, *(each for each in earlier.leases if each.holder == lease.holder)]
    floor = max(each.floor_ns for each in own)
    settle_to = max(told.witness.settle_to_ns for each in own for told in each.told)
    for before in earlier.leases:
        staying = before.staying
        if not staying or not before.held or before.holder == lease.holder:
            continue
        if not conflicts(before.told[-1].witness.mode, lease.mode_at(since.position)):
            continue
        ended, last = before.ended, max(staying, key=lambda each: each.witness.expiry_ns)
        halves = _other_halves(before, later)
        if ended is None and halves:  # that half says how it ended; while it has not, its own chain excludes others
            ended = next((end for each in halves if (end := each.ended_before(since.position)) is not None), None)
            if ended is None or ended.ending.outcome in GIVEN_BACK:
                continue
        if ended is None and not known_to_its_end(before, cluster.runs[lease.run], cluster):
            continue
        if ended is not None and ended.ending.outcome in GIVEN_BACK:
            asked, settled, because = ended.ending.watermark_ns or 0, 0, "it was given back with the watermark"
        else:
            asked = settled = last.witness.expiry_ns
            because = "before that left it could be written under until"
        if floor < asked or settle_to < settled:
            reason = (
                f"{lease.name} of {lease.holder.node} counts by itself since batch {since.head.sequence}, with the "
                f"floor {bound_text(floor)} and settle_to {bound_text(settle_to)}; {before.name} of "
                f"{before.holder.node} is of the chain before: {because} {rfc3339(asked)}"
            )
            times = [NamedInterval.of("the witness", since.token), NamedInterval.at("the lease before", asked)]
            yield found("whole-too-early", lease.name, reason, [last.where, since.where], times)


def _other_halves(lease: LeaseHistory, history: DomainHistory) -> list[LeaseHistory]:
    """Return the leases of a later chain that its holder was granted as the other half."""
    return [
        each
        for each in history.leases
        if each.map_number > lease.map_number and each.holder == lease.holder and each.first.head.half is Half.COMING
    ]


def check_phases(
    facts: Iterable[HeadFact], chains: Mapping[ShardName, RecordedChain], records: ClusterRecords
) -> Iterator[Finding]:
    """wrong-map, wrong-half, unverifiable-map of batch heads; and what chains that come begin to count with.

    ``facts``: run by run, in order. Of each run the first breach of a kind.
    """
    last: HeadFact | None = None
    told: set[tuple[bytes, str]] = set()
    for fact in facts:
        run, before = fact.head.incarnation, last
        same_run = before is not None and before.head.incarnation == run
        last = fact
        for finding in _phase(fact, before if same_run else None, records):
            if (run, finding.code) not in told:
                told.add((run, finding.code))
                yield finding
        if fact.head.half is Half.WHOLE and (run, Half.WHOLE) not in told:
            told.add((run, Half.WHOLE))
            yield from _begins_to_count(fact, chains, records.maps)


def _phase(fact: HeadFact, before: HeadFact | None, records: ClusterRecords) -> Iterator[Finding]:
    head, name = fact.head, head_name(fact)
    if head.going_by < head.map_number:
        reason = f"{name} goes by map {head.going_by}; its chain began under map {head.map_number}"
        yield found("wrong-map", name, reason, [fact.where], title="a shard goes by a map from before its chain")
        return
    if before is not None and head.going_by < before.head.going_by:
        reason = f"{name} goes by map {head.going_by}, batch {before.head.sequence} before it by {before.head.going_by}"
        title = "a shard goes by an older map than before"
        yield found("wrong-map", name, reason, [before.where, fact.where], title=title)
    if fact.in_ledger and records.missing(Kind.MAP, head.going_by):
        path = f"map/{record_name(head.going_by)}"
        reason = f"shards go by map {head.going_by}, which is not there: whose a domain was is not checked"
        yield found("unverifiable-map", path, reason, [Evidence(path)])
    shards = records.maps.get(head.going_by)
    half = None if shards is None else shards.half_of(shard_of(head)) or Half.LEAVING
    if half is not None and head.half is not half:
        reason = f"{name} says that its leases are {head.half}; by map {head.going_by} they are {half}"
        yield found("wrong-half", name, reason, [fact.where])


def followed(
    chains: Mapping[ShardName, RecordedChain], maps: Mapping[int, ShardMap]
) -> dict[ShardName, tuple[int, int]]:
    """Return of each chain that follows others the highest floor and settle_to with which those ended."""
    found: dict[ShardName, tuple[int, int]] = {}
    for name in chains:
        ends = [end.record for old in _before(name, chains, maps) if (end := old.terminal) is not None]
        if ends:
            found[name] = max(each.floor_ns for each in ends), max(each.settle_to_ns for each in ends)
    return found


def _before(
    name: ShardName, chains: Mapping[ShardName, RecordedChain], maps: Mapping[int, ShardMap]
) -> Iterator[RecordedChain]:
    """Yield the chains that one follows: those of the map before it that are not of its own map's layout."""
    began, before = maps.get(name[0]), maps.get(name[0] - 1)
    if began is not None and before is not None:
        left = set(before.layout.shards) - set(began.layout.shards)
        yield from (chains[old] for shard in sorted(left) if (old := chain_of(shard)) in chains)


def _begins_to_count(
    fact: HeadFact, chains: Mapping[ShardName, RecordedChain], maps: Mapping[int, ShardMap]
) -> Iterator[Finding]:
    """r2-breach, chain-fork: a chain that came counts by itself after all those have ended that it follows."""
    head, name = fact.head, head_name(fact)
    if head.going_by <= head.map_number:
        return
    for old in _before((head.map_number, head.shard), chains, maps):
        end = old.terminal
        if end is None:
            yield _goes_on(old, fact)
        elif not r2_holds(end.token, fact.token):
            ended = f"the terminal record of {chain_path(*old.shard)}"
            reason = f"{name} counts by itself surely before {ended}, on which that rests"
            title = "a chain counts by itself before the one that it follows had ended"
            times = ("the end", end.token), (f"batch {head.sequence}", fact.token)
            yield signed_before(*times, name, reason, [end.where, fact.where], title)


def _goes_on(old: RecordedChain, fact: HeadFact) -> Finding:
    """chain-fork, in doubt: a chain has no end, though one that follows counts. A copy may have come before the end.

    r2-breach: its newest record was signed surely later. Then it goes on beside the other, or a clock was wrong.
    """
    last = old.facts[-1]
    surely = not r2_holds(last.token, fact.token)
    subject = f"{chain_path(*old.shard)} record {last.record.number}"
    reason = f"{subject} is the newest of its chain, and not terminal; {head_name(fact)} rests on the end of that chain"
    times = [
        NamedInterval.of(f"record {last.record.number}", last.token),
        NamedInterval.of(f"batch {fact.head.sequence}", fact.token),
    ]
    title = "a chain goes on though one that follows it counts by itself"
    code, verdict = ("r2-breach", None) if surely else ("chain-fork", Verdict.INDETERMINATE)
    return found(code, subject, reason, [last.where, fact.where], times, verdict=verdict, title=title)


def check_maps(maps: Mapping[int, ShardMap]) -> Iterator[Finding]:
    """map-out-of-step: each map against the one before it."""
    for number, after in sorted(maps.items()):
        before = maps.get(number - 1)
        if before is not None and (wrong := _out_of_step(before, after)):
            paths = [f"map/{record_name(each)}" for each in (number - 1, number)]
            reason = f"{paths[1]} {wrong}"
            yield found("map-out-of-step", paths[1], reason, [Evidence(path) for path in paths])


def _out_of_step(before: ShardMap, after: ShardMap) -> str:
    """Return why a map does not follow from another; "" where it does."""
    old, new = before.layout, after.layout
    if after.before is not None and before.before is not None:
        return "begins a move, and the map before it has not ended one"
    if after.before is not None and after.before != old:
        return "names as the layout before another than that of the map before it"
    if after.before is None and before.before is not None and new != old:
        return "ends a move with another layout than the one to come"
    if after.before is None and new.chains != old.chains:
        return "has other chains than the map before it, and is no move"
    if any(chain not in (after.number, *old.chains[place : place + 1]) for place, chain in enumerate(new.chains)):
        return "has a chain that began neither under it nor before in the same place"
    return ""
