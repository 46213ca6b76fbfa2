"""Rules about what a shard numbers: its batch heads, its ceiling records, and the blocks of its ledgers."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

from appliance.formats.chains import CeilingKind, CeilingRecord
from appliance.formats.framing import Kind
from appliance.formats.paths import chain_path, ledger_path, parse_ledger_name, record_name
from appliance.formats.shardmap import ShardMap, chain_of
from appliance.formats.witness import NO_HEAD, BatchHead, Half
from auditor.columns.layout import HeadName, ShardName
from auditor.evidence.records import ClusterRecords
from timeagent.signedtime import SignedTime, r2_holds
from timeagent.units import SECOND, rfc3339

from ..columns.index import Coverage
from ..columns.parts import LedgersSeen
from ..evidence.finding import Check, Evidence, Finding, Verdict, both, clock, found, not_fallen
from .history import (
    RECORDS_KEPT,
    SHARDS,
    CeilingFact,
    Closings,
    ClusterFacts,
    HeadFact,
    RecordedChain,
    ShardRun,
    runs,
    shard_of,
)
from .records import Policies


def check_heads(
    facts: Iterable[HeadFact], chains: Mapping[ShardName, RecordedChain], policies: Policies
) -> Iterator[Finding]:
    """chain-fork, r2-breach: each head names the one before it and its ceiling record, and is signed after both.

    ledger-disorder: in its ledger it stands behind the one before it. radius-above-policy: of its signed time.
    """
    last: HeadFact | None = None
    twins: list[bytes] = []
    """Digests of the batches that claim to be the last one: the next may follow any of them."""
    for fact in facts:
        yield from policies.check_clock(fact.name, fact.token, fact.where)
        head = fact.head
        before = last if last is not None and last.head.incarnation == head.incarnation else None
        if head.sequence <= 1 and head.previous != NO_HEAD:
            reason = f"{fact.name} is the first of its run and names one before it"
            title = "the first batch of a run names one before it"
            yield found("chain-fork", fact.name, reason, [fact.where], title=title)
        if before is not None:
            yield from _pair(before, fact, twins)
        if before is None or before.head.sequence != head.sequence:
            twins.clear()
        twins.append(fact.digest)
        yield from _under(fact, chains.get((head.map_number, head.shard)))
        last = fact


def _pair(before: HeadFact, after: HeadFact, twins: Collection[bytes]) -> Iterator[Finding]:
    name, evidence, sequence = after.name, [before.where, after.where], before.head.sequence
    if sequence == after.head.sequence:
        title = "two batches claim the same place in a chain"
        yield found("chain-fork", name, f"two batches claim to be {name}", evidence, title=title)
        return
    if after.head.sequence == sequence + 1 and after.head.previous not in twins:
        reason = f"{name} names another batch before it than {sequence}, as it is known"
        title = "a batch names another before it than there is"
        yield found("chain-fork", name, reason, evidence, title=title)

    def file_place(fact: HeadFact) -> tuple[int, int]:
        _, number = parse_ledger_name(fact.where.path.rpartition("/")[2]) or (b"", 0)
        return number, fact.where.offset

    # Whoever goes on with a run appends the last blocks that its ledger may lack: such a block has several places.
    if before.in_ledger == after.in_ledger == 1 and file_place(after) < file_place(before):
        path = after.where.path
        reason = f"{path} holds {name} before batch {sequence}: a shard appends in order"
        yield found("ledger-disorder", path, reason, evidence)
    if not r2_holds(before.token, after.token):
        reason = f"{name} was signed surely before batch {sequence}, which came first"
        title = "a batch was signed before the one before it"
        times = {f"batch {sequence}": before.token, f"batch {after.head.sequence}": after.token}
        yield found("r2-breach", name, reason, evidence, times, title=title)


def _under(fact: HeadFact, chain: RecordedChain | None) -> Iterator[Finding]:
    """grant-without-right, r2-breach: a batch names a ceiling record of its own run, and is signed after it."""
    if chain is None:
        return
    head, name, end = fact.head, fact.name, chain.terminal
    names = f"{name} names ceiling record {head.ceiling_number}"
    if end is not None and head.ceiling_number > end.record.number:
        ended = f"whose chain had ended with the terminal record {end.record.number}"
        title = "a shard granted after its chain of ceiling records had ended"
        reason = f"{names} of map {head.map_number}, {ended}"
        yield found("grant-without-right", name, reason, [fact.where, end.where], title=title)
    if end is None and chain.has_ended_before(head.ceiling_number):
        last = chain.facts[-1]
        reason = f"{names}; the newest of its chain is {last.record.number}, and whoever grants links first"
        verdict = None if chain.ends.get(head.incarnation) else Verdict.INDETERMINATE
        run = f"run {head.incarnation.hex()} of shard {head.shard}"
        title = "a shard granted under a ceiling record that its chain does not have"
        yield found("grant-without-right", run, reason, [last.where, fact.where], verdict=verdict, title=title)
    for ceiling in chain.at(head.ceiling_number):
        record = ceiling.record
        own = granted_under(head, record)
        if not own.holds:
            reason = (
                f"{name} of {head.node} names ceiling record {record.number} with {rfc3339(head.ceiling_ns)}; "
                f"that record is of run {record.incarnation.hex()} of {record.node} with {rfc3339(record.ceiling_ns)}"
            )
            title = "a shard granted under a ceiling record that is not its own"
            yield own.finding(name, reason, [fact.where, ceiling.where], title=title)
        if record.incarnation == head.incarnation and not r2_holds(ceiling.token, fact.token):
            reason = f"{name} was signed surely before ceiling record {record.number}, which it names as its right"
            times = {f"ceiling record {record.number}": ceiling.token, f"batch {head.sequence}": fact.token}
            title = "a batch was signed before the ceiling record that it names"
            yield found("r2-breach", name, reason, [ceiling.where, fact.where], times, title=title)


def granted_under(head: BatchHead, record: CeilingRecord) -> Check:
    """grant-without-right: the ceiling record that a batch names is its own run's, and says what the batch says."""
    own = (head.node, head.incarnation, head.ceiling_ns) == (record.node, record.incarnation, record.ceiling_ns)
    return Check("grant-without-right", f"ceiling record {record.number}", record, head, own, words=_run)


def _run(each: BatchHead | CeilingRecord) -> str:
    return f"run {each.incarnation.hex()} of {each.node}, {clock(each.ceiling_ns)}"


def check_ceilings(chains: Mapping[ShardName, RecordedChain], policies: Policies) -> Iterator[Finding]:
    """chain-fork, ceiling-fell and floor-fell in the ceiling chains; radius-above-policy of each record."""
    for chain in chains.values():
        path = chain_path(*chain.shard)
        for fact in chain.facts:
            yield from policies.check_clock(f"{path} record {fact.record.number}", fact.token, fact.where)
        for before, after in itertools.pairwise(chain.facts):
            yield from _follows(before, after, path)
            if after.record.number == before.record.number + 1 and len(chain.at(before.record.number)) == 1:
                yield from _numbers(before, after, path)  # of two that claim the place before it, each states its own


def check_records_there(chains: Mapping[ShardName, RecordedChain], there: Callable[[str], bool]) -> Iterator[Finding]:
    """lost-file: a ledger has a copy of a record that its owner does not prune yet, and its file is not there.

    Or nothing has a copy, and one of a higher number is there. ``there``: whether a file is there now: a shard at work
    may have linked it since its chain was read. Indeterminate: where nothing newer is there the copy may have taken the
    chain before the ledger, and elsewhere the record may have been pruned between the moment at which the copy listed
    the chain and that at which it read this one.
    """
    for chain in chains.values():
        known = {fact.record.number for fact in chain.facts}
        files = {fact.record.number for fact in chain.facts if fact.where.path.startswith(SHARDS)}
        newest = max(files, default=0)
        holes = set(range(max(1, newest - RECORDS_KEPT + 1), newest)) - known
        for number in sorted(holes | {each for each in known - files if each > max(known) - RECORDS_KEPT}):
            path = f"{chain_path(*chain.shard)}/{record_name(number)}"
            if there(path):
                continue
            what = f"record {newest} of the chain is" if number in holes else "a ledger has a copy of it"
            reason = f"{path} is not there; {what}, and the newest {RECORDS_KEPT} are never pruned"
            for where in [[copy.where] for copy in chain.at(number)] or [[]]:
                yield found("lost-file", path, reason, [Evidence(path), *where], title="a ceiling record is missing")


def _follows(before: CeilingFact, after: CeilingFact, path: str) -> Iterator[Finding]:
    """chain-fork, ceiling-fell, r2-breach: a record against the one before it."""
    verdict = _verdict(before)
    number, past, evidence = after.record.number, before.record.number, [before.where, after.where]
    subject = f"{path} record {number}"
    if number == past:
        if before.raw != after.raw:
            reason = f"two records claim to be number {number} of {path}"
            title = "two ceiling records claim the same place in a chain"
            yield found("chain-fork", subject, reason, evidence, title=title)
    elif after.record.ceiling_ns < before.record.ceiling_ns:
        has = f"record {number} has the ceiling {rfc3339(after.record.ceiling_ns)}"
        reason = f"{has}, record {past} before it {rfc3339(before.record.ceiling_ns)}"
        yield found("ceiling-fell", subject, reason, evidence, verdict=verdict)
    elif before.record.kind is CeilingKind.TERMINAL:
        reason = f"record {number} follows a terminal record, which nobody may link after"
        title = "a ceiling record follows a terminal one"
        yield found("chain-fork", subject, reason, evidence, verdict=verdict, title=title)
    elif number == past + 1 and not r2_holds(before.token, after.token):
        reason = f"record {number} was signed surely before record {past}, which it follows"
        title = "a ceiling record was signed before the one before it"
        times = {f"record {past}": before.token, f"record {number}": after.token}
        yield found("r2-breach", subject, reason, evidence, times, verdict=verdict, title=title)


def _verdict(before: CeilingFact) -> Verdict | None:
    """Return in doubt what is said of a record by one before it that may have been linked after both."""
    return Verdict.INDETERMINATE if before.late else None


def _numbers(before: CeilingFact, after: CeilingFact, path: str) -> Iterator[Finding]:
    """floor-fell: a run goes on with its own numbers; another, or the end of the chain, begins with its ceiling.

    After an orderly record it begins with what that says.
    """
    past, new = before.record, after.record
    goes_on = new.incarnation == past.incarnation and new.kind is not CeilingKind.TERMINAL
    crashed = past.kind is CeilingKind.RUNNING and not goes_on
    asked = (past.ceiling_ns, past.ceiling_ns) if crashed else (past.floor_ns, past.settle_to_ns)
    check = not_fallen((new.floor_ns, new.settle_to_ns), asked)
    if not check.holds:
        run = f"run {new.incarnation.hex()} states {check.value}"
        reason = f"{run}; record {past.number} before it asks for {both(asked)}"
        title = "a ceiling record states less than the ceiling, or the numbers, of the one before it"
        where = [before.where, after.where]
        yield check.finding(f"{path} record {new.number}", reason, where, verdict=_verdict(before), title=title)


DRAINED_NS: Final = 5 * SECOND
"""After so long what a shard signed is in its ledger, unless it was killed or the mount refused it."""


def check_ledgers(
    heads: Iterable[HeadFact],
    chains: Mapping[ShardName, RecordedChain],
    ledgers: LedgersSeen,
    newest: SignedTime | None,
    runs: Mapping[bytes, ShardRun],
) -> Iterator[Finding]:
    """missing-ledger, truncated-ledger and ledger-gap. ``newest``: the latest signed time in the tree."""
    told: set[bytes] = set()
    last: dict[bytes, HeadFact] = {}
    for chain in chains.values():
        for fact in chain.facts:
            run = fact.record.incarnation
            if fact.record.kind is not CeilingKind.ORDERLY or run in told | ledgers.stopped | ledgers.damaged:
                continue
            told.add(run)
            path, is_there = ledger_path(*chain.shard, run), run in ledgers.there
            what = "does not say so: its end is missing" if is_there else "is not there"
            by = f"run {run.hex()} stopped orderly, by ceiling record {fact.record.number}"
            code = "truncated-ledger" if is_there else "missing-ledger"
            yield found(code, path, f"{by}; its ledger {path} {what}", [Evidence(path), fact.where])
    drained_ns = newest.interval.earliest - DRAINED_NS if newest is not None else 0
    for batch in heads:
        head = batch.head
        last[head.incarnation] = batch
        if head.incarnation not in told | ledgers.there and batch.token.interval.latest < drained_ns:
            told.add(head.incarnation)
            path = ledger_path(head.map_number, head.shard, head.incarnation)
            signed = f"signed a batch at {rfc3339(batch.token.midpoint_ns)}"
            reason = f"run {head.incarnation.hex()} of shard {head.shard} {signed}; its ledger {path} is not there"
            yield found("missing-ledger", path, reason, [Evidence(path), batch.where])
    told |= ledgers.damaged
    for each in runs.values():  # where the file goes on behind what it lacks, no crash explains it
        gaps = [gap for gap in each.gaps if gap[1] < each.ledger_end]
        if gaps and each.incarnation not in told:
            path = ledger_path(*each.shard, each.incarnation)
            lacks = ", ".join(f"{first} to {last}" for first, last in gaps[:8])
            reason = f"the ledger {path} lacks batches {lacks}, and goes on after them"
            yield found("ledger-gap", path, reason, [Evidence(path)])
    for chain in chains.values():
        yield from _behind(chain, last, runs, told | ledgers.stopped)


def _behind(
    chain: RecordedChain, last: Mapping[bytes, HeadFact], runs: Mapping[bytes, ShardRun], told: set[bytes]
) -> Iterator[Finding]:
    """truncated-ledger: a run lived on long after it had linked a ceiling record that its ledger has no copy of.

    One record behind the end proves nothing, however long the run had been silent: it may have died right after it.
    Nor do two: it may have stood still between signing the first and linking it. Signing the second came after that.
    """
    linked: dict[bytes, list[CeilingFact]] = {}
    for fact in chain.facts:
        if fact.record.kind is not CeilingKind.TERMINAL and fact.where.path.startswith(SHARDS):
            linked.setdefault(fact.record.incarnation, []).append(fact)
    for run, facts in linked.items():
        known = runs.get(run)
        if run in told or known is None or not known.ledger_end or known.ledger_end < known.highest:
            continue
        end, newest = last[run], facts[-1]
        lacked = [fact for fact in facts if fact.record.number > end.head.ceiling_number]
        if lacked[1:] and lacked[1].token.interval.latest + DRAINED_NS < newest.token.interval.earliest:
            first = lacked[0]
            path = ledger_path(*chain.shard, run)
            reason = (
                f"the ledger {path} ends at {rfc3339(end.token.midpoint_ns)}, before ceiling record "
                f"{first.record.number} of {rfc3339(first.token.midpoint_ns)}; its run linked record "
                f"{newest.record.number} at {rfc3339(newest.token.midpoint_ns)}"
            )
            yield found("truncated-ledger", path, reason, [Evidence(path), first.where, newest.where])


# Planned moves: which map batches go by, what comes after what has ended, and the maps that say so.


def counting(facts: Iterable[HeadFact]) -> dict[ShardName, HeadFact]:
    """Return of each chain that came by a planned move the first batch by which it counts by itself."""
    found: dict[ShardName, HeadFact] = {}
    for fact in facts:
        head, name = fact.head, (fact.head.map_number, fact.head.shard)
        if head.half is Half.WHOLE and head.going_by > head.map_number > 1:
            found[name] = min(found.get(name, fact), fact, key=lambda each: each.token.midpoint_ns)
    return found


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
    head, name = fact.head, fact.name
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
    """r2-breach: a chain that came counts by itself after all those have ended that it follows.

    chain-fork, in doubt: one of those has no end; a copy may have come before that. r2-breach, where its newest record
    was signed surely later: then it goes on beside the other, or a clock was wrong.
    """
    head = fact.head
    if head.going_by <= head.map_number:
        return
    for old in _before((head.map_number, head.shard), chains, maps):
        last, path = old.facts[-1], chain_path(*old.shard)
        where, batch = [last.where, fact.where], f"batch {head.sequence}"
        in_order = r2_holds(last.token, fact.token)
        if old.terminal is None:
            subject = f"{path} record {last.record.number}"
            reason = (
                f"{subject} is the newest of its chain, and not terminal; {fact.name} rests on the end of that chain"
            )
            times = {f"record {last.record.number}": last.token, batch: fact.token}
            title = "a chain goes on though one that follows it counts by itself"
            code, verdict = ("chain-fork", Verdict.INDETERMINATE) if in_order else ("r2-breach", None)
            yield found(code, subject, reason, where, times, verdict=verdict, title=title)
        elif not in_order:
            reason = f"{fact.name} counts by itself surely before the terminal record of {path}, on which that rests"
            title = "a chain counts by itself before the one that it follows had ended"
            yield found("r2-breach", fact.name, reason, where, {"the end": last.token, batch: fact.token}, title=title)


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


def cluster_facts(
    heads: Mapping[HeadName, HeadFact],
    ceilings: Mapping[ShardName, RecordedChain],
    records: ClusterRecords,
    ledgers: LedgersSeen,
    policies: Policies,
    coverage: Coverage,
    closings: Closings | None = None,
) -> ClusterFacts:
    """Return what the rules over leases know beside one domain's history. ``heads``: run by run, in order."""
    moves = defaultdict[int, list[ShardMap]](list)
    for each in records.maps.values():
        for shard in each.leaving:
            moves[shard].append(each)
    return ClusterFacts(
        runs=runs(heads.values()),
        heads=heads,
        ceilings=ceilings,
        finished=frozenset(ledgers.stopped),
        maps=records.maps,
        moves=moves,
        coverage=coverage,
        closings=closings or Closings(),
        policies=policies,
        follows=followed(ceilings, records.maps),
        counts=counting(heads.values()),
    )
