"""Rules about what a shard numbers: its batch heads, its ceiling records, and the blocks of its ledgers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

from appliance.formats.chains import CeilingKind, CeilingRecord
from appliance.formats.paths import chain_path, ledger_path, parse_ledger_name, record_name
from appliance.formats.witness import NO_HEAD, BatchHead
from auditor.parts import LedgersSeen
from timeagent.signedtime import SignedTime, r2_holds
from timeagent.units import SECOND, rfc3339

from .finding import Check, Evidence, Finding, Verdict, both, clock, found, not_fallen, signed_before
from .history import RECORDS_KEPT, SHARDS, CeilingFact, HeadFact, RecordedChain, ShardName, ShardRun
from .records import Policies

LOST: Final = "a ceiling record is missing"


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
        yield from policies.check_clock(head_name(fact), fact.token, fact.where)
        same_run = last is not None and last.head.incarnation == fact.head.incarnation
        if fact.head.sequence <= 1 and fact.head.previous != NO_HEAD:
            reason = f"{head_name(fact)} is the first of its run and names one before it"
            title = "the first batch of a run names one before it"
            yield found("chain-fork", head_name(fact), reason, [fact.where], title=title)
        if last is not None and same_run:
            yield from _pair(last, fact, twins)
        if last is None or not same_run or last.head.sequence != fact.head.sequence:
            twins.clear()
        twins.append(fact.digest)
        yield from _under(fact, chains.get((fact.head.map_number, fact.head.shard)))
        last = fact


def _pair(before: HeadFact, after: HeadFact, twins: Collection[bytes]) -> Iterator[Finding]:
    evidence = [before.where, after.where]
    if before.head.sequence == after.head.sequence:
        reason = f"two batches claim to be {head_name(after)}"
        yield found(
            "chain-fork", head_name(after), reason, evidence, title="two batches claim the same place in a chain"
        )
        return
    if after.head.sequence == before.head.sequence + 1 and after.head.previous not in twins:
        reason = f"{head_name(after)} names another batch before it than {before.head.sequence}, as it is known"
        yield found(
            "chain-fork", head_name(after), reason, evidence, title="a batch names another before it than there is"
        )
    # Whoever goes on with a run appends the last blocks that its ledger may lack: such a block has several places.
    if before.in_ledger == after.in_ledger == 1 and _file_place(after) < _file_place(before):
        path = after.where.path
        reason = f"{path} holds {head_name(after)} before batch {before.head.sequence}: a shard appends in order"
        yield found("ledger-disorder", path, reason, evidence)
    if not r2_holds(before.token, after.token):
        reason = f"{head_name(after)} was signed surely before batch {before.head.sequence}, which came first"
        title = "a batch was signed before the one before it"
        times = (f"batch {before.head.sequence}", before.token), (f"batch {after.head.sequence}", after.token)
        yield signed_before(*times, head_name(after), reason, evidence, title)


def _file_place(fact: HeadFact) -> tuple[int, int]:
    """Return where in the ledger of its run a block stands: the file's number, and the offset."""
    _, number = parse_ledger_name(fact.where.path.rpartition("/")[2]) or (b"", 0)
    return number, fact.where.offset


def _under(fact: HeadFact, chain: RecordedChain | None) -> Iterator[Finding]:
    """grant-without-right, r2-breach: a batch names a ceiling record of its own run, and is signed after it."""
    end, name = chain.terminal if chain else None, head_name(fact)
    if end is not None and fact.head.ceiling_number > end.record.number:
        reason = (
            f"{name} names ceiling record {fact.head.ceiling_number} of map {fact.head.map_number}, whose chain "
            f"had ended with the terminal record {end.record.number}"
        )
        title = "a shard granted after its chain of ceiling records had ended"
        yield found("grant-without-right", name, reason, [fact.where, end.where], title=title)
    if chain is not None and chain.terminal is None and chain.has_ended_before(fact.head.ceiling_number):
        last = chain.facts[-1]
        reason = (
            f"{name} names ceiling record {fact.head.ceiling_number}; the newest of its chain is "
            f"{last.record.number}, and whoever grants links first"
        )
        verdict = None if chain.end_of(fact.head.incarnation) else Verdict.INDETERMINATE
        run = f"run {fact.head.incarnation.hex()} of shard {fact.head.shard}"
        title = "a shard granted under a ceiling record that its chain does not have"
        yield found("grant-without-right", run, reason, [last.where, fact.where], verdict=verdict, title=title)
    for ceiling in chain.at(fact.head.ceiling_number) if chain else ():
        record, head = ceiling.record, fact.head
        own = granted_under(head, record)
        if not own.holds:
            reason = (
                f"{name} of {head.node} names ceiling record {record.number} with {rfc3339(head.ceiling_ns)}; "
                f"that record is of run {record.incarnation.hex()} of {record.node} with {rfc3339(record.ceiling_ns)}"
            )
            title = "a shard granted under a ceiling record that is not its own"
            yield own.finding(name, reason, [fact.where, ceiling.where], title=title)
        if record.incarnation != head.incarnation or r2_holds(ceiling.token, fact.token):
            continue
        reason = f"{name} was signed surely before ceiling record {record.number}, which it names as its right"
        right, batch = (f"ceiling record {record.number}", ceiling.token), (f"batch {head.sequence}", fact.token)
        title = "a batch was signed before the ceiling record that it names"
        yield signed_before(right, batch, name, reason, [ceiling.where, fact.where], title)


def granted_under(head: BatchHead, record: CeilingRecord) -> Check:
    """grant-without-right: the ceiling record that a batch names is its own run's, and says what the batch says."""
    own = (head.node, head.incarnation, head.ceiling_ns) == (record.node, record.incarnation, record.ceiling_ns)
    return Check("grant-without-right", f"ceiling record {record.number}", record, head, own, words=_run)


def _run(each: BatchHead | CeilingRecord) -> str:
    return f"run {each.incarnation.hex()} of {each.node}, {clock(each.ceiling_ns)}"


def head_name(fact: HeadFact) -> str:
    """Return how a finding names a batch."""
    head = fact.head
    return f"batch {head.sequence} of shard {head.shard}, run {head.incarnation.hex()}"


def check_ceilings(chains: Mapping[ShardName, RecordedChain], policies: Policies) -> Iterator[Finding]:
    """chain-fork, ceiling-fell and floor-fell in the ceiling chains; radius-above-policy of each record."""
    for chain in chains.values():
        for fact in chain.facts:
            name = f"{chain_path(*chain.shard)} record {fact.record.number}"
            yield from policies.check_clock(name, fact.token, fact.where)
        yield from _ceiling_order(chain)
        yield from _numbers(chain)


def check_records_there(chains: Mapping[ShardName, RecordedChain], there: Callable[[str], bool]) -> Iterator[Finding]:
    """lost-file: a ledger has a copy of a record that its owner does not prune yet, and its file is not there.

    ``there``: whether a file is there now: a shard at work may have linked it since its chain was read. Indeterminate:
    where nothing newer is there the copy may have taken the chain before the ledger, and elsewhere the record may have
    been pruned between the moment at which the copy listed the chain and that at which it read this one.
    """
    for chain in chains.values():
        files = {fact.record.number for fact in chain.facts if fact.where.path.startswith(SHARDS)}
        newest = max(fact.record.number for fact in chain.facts)
        for fact in chain.facts:
            number = fact.record.number
            path = f"{chain_path(*chain.shard)}/{record_name(number)}"
            if number in files or number <= newest - RECORDS_KEPT or there(path):
                continue
            reason = f"{path} is not there; a ledger has a copy of it, and the newest {RECORDS_KEPT} are never pruned"
            yield found("lost-file", path, reason, [Evidence(path), fact.where], title=LOST)
        yield from _holes(chain, files, there)


def _holes(chain: RecordedChain, files: Collection[int], there: Callable[[str], bool]) -> Iterator[Finding]:
    """lost-file: a record that nothing has a copy of, with one of a higher number there."""
    known = {fact.record.number for fact in chain.facts}
    newest = max(files, default=0)
    for number in range(max(1, newest - RECORDS_KEPT + 1), newest):
        path = f"{chain_path(*chain.shard)}/{record_name(number)}"
        if number in known or there(path):
            continue
        reason = f"{path} is not there; record {newest} of the chain is, and the newest {RECORDS_KEPT} are never pruned"
        yield found("lost-file", path, reason, [Evidence(path)], title=LOST)


def _ceiling_order(chain: RecordedChain) -> Iterator[Finding]:
    for before, after in itertools.pairwise(chain.facts):
        subject = f"{chain_path(*chain.shard)} record {after.record.number}"
        evidence = [before.where, after.where]
        if before.record.number == after.record.number:
            if before.raw != after.raw:
                reason = f"two records claim to be number {after.record.number} of {chain_path(*chain.shard)}"
                title = "two ceiling records claim the same place in a chain"
                yield found("chain-fork", subject, reason, evidence, title=title)
        elif after.record.ceiling_ns < before.record.ceiling_ns:
            reason = (
                f"record {after.record.number} has the ceiling {rfc3339(after.record.ceiling_ns)}, "
                f"record {before.record.number} before it {rfc3339(before.record.ceiling_ns)}"
            )
            yield found("ceiling-fell", subject, reason, evidence)
        elif before.record.kind is CeilingKind.TERMINAL:
            reason = f"record {after.record.number} follows a terminal record, which nobody may link after"
            yield found("chain-fork", subject, reason, evidence, title="a ceiling record follows a terminal one")
        elif after.record.number == before.record.number + 1 and not r2_holds(before.token, after.token):
            reason = (
                f"record {after.record.number} was signed surely before record {before.record.number}, which it follows"
            )
            title = "a ceiling record was signed before the one before it"
            one, other = (
                (f"record {before.record.number}", before.token),
                (f"record {after.record.number}", after.token),
            )
            yield signed_before(one, other, subject, reason, evidence, title)


def _numbers(chain: RecordedChain) -> Iterator[Finding]:
    """floor-fell: a run goes on with its own numbers; another, or the end of the chain, begins with its ceiling.

    After an orderly record it begins with what that says.
    """
    for before, after in itertools.pairwise(chain.facts):
        past, new = before.record, after.record
        if new.number != past.number + 1 or len(chain.at(past.number)) > 1:
            continue  # of two that claim the place before it, each states its own
        goes_on = new.incarnation == past.incarnation and new.kind is not CeilingKind.TERMINAL
        crashed = past.kind is CeilingKind.RUNNING and not goes_on
        asked = (past.ceiling_ns, past.ceiling_ns) if crashed else (past.floor_ns, past.settle_to_ns)
        check = not_fallen((new.floor_ns, new.settle_to_ns), asked)
        if not check.holds:
            subject = f"{chain_path(*chain.shard)} record {new.number}"
            run = f"run {new.incarnation.hex()} states {check.value}"
            reason = f"{run}; record {past.number} before it asks for {both(asked)}"
            title = "a ceiling record states less than the ceiling, or the numbers, of the one before it"
            yield check.finding(subject, reason, [before.where, after.where], title=title)


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
            path = ledger_path(*chain.shard, run)
            code, what = (
                ("truncated-ledger", "does not say so: its end is missing")
                if run in ledgers.there
                else ("missing-ledger", "is not there")
            )
            reason = (
                f"run {run.hex()} stopped orderly, by ceiling record {fact.record.number}; its ledger {path} {what}"
            )
            yield found(code, path, reason, [Evidence(path), fact.where])
    for head in heads:
        run = head.head.incarnation
        last[run] = head
        if run in told or run in ledgers.there or newest is None:
            continue
        if head.token.interval.latest + DRAINED_NS >= newest.interval.earliest:
            continue
        told.add(run)
        path = ledger_path(head.head.map_number, head.head.shard, run)
        reason = (
            f"run {run.hex()} of shard {head.head.shard} signed a batch at {rfc3339(head.token.midpoint_ns)}; its "
            f"ledger {path} is not there"
        )
        yield found("missing-ledger", path, reason, [Evidence(path), head.where])
    for each in runs.values():
        if each.incarnation not in told | ledgers.damaged:
            yield from _gap(each)
    for chain in chains.values():
        yield from _behind(chain, last, runs, told | ledgers.damaged | ledgers.stopped)


def _gap(run: ShardRun) -> Iterator[Finding]:
    """ledger-gap: the file goes on behind what it lacks, so that no crash explains it."""
    ends = [0, *(last for _, last in run.stretches)]
    lacks = [
        f"{end + 1} to {start - 1}" for end, (start, _) in zip(ends, run.stretches, strict=False) if start > end + 1
    ]
    if lacks:
        path = ledger_path(*run.shard, run.incarnation)
        reason = f"the ledger {path} lacks batches {', '.join(lacks[:8])}, and goes on after them"
        yield found("ledger-gap", path, reason, [Evidence(path)])


def _behind(
    chain: RecordedChain, last: Mapping[bytes, HeadFact], runs: Mapping[bytes, ShardRun], told: set[bytes]
) -> Iterator[Finding]:
    """truncated-ledger: a run lived on long after a ceiling record that its ledger has no copy of.

    One record behind the end proves nothing, however long the run had been silent: it may have died right after it.
    """
    linked: dict[bytes, list[CeilingFact]] = {}
    for fact in chain.facts:
        if fact.record.kind is not CeilingKind.TERMINAL and fact.where.path.startswith("shards/"):
            linked.setdefault(fact.record.incarnation, []).append(fact)
    for run, facts in linked.items():
        known = runs.get(run)
        if run in told or known is None or not known.ledger_end or known.ledger_end < known.highest:
            continue
        end = last[run]
        first = next((fact for fact in facts if fact.record.number > end.head.ceiling_number), facts[-1])
        newest = facts[-1]
        if first.token.interval.latest + DRAINED_NS < newest.token.interval.earliest:
            path = ledger_path(*chain.shard, run)
            reason = (
                f"the ledger {path} ends at {rfc3339(end.token.midpoint_ns)}, before ceiling record "
                f"{first.record.number} of {rfc3339(first.token.midpoint_ns)}; its run linked record "
                f"{newest.record.number} at {rfc3339(newest.token.midpoint_ns)}"
            )
            yield found("truncated-ledger", path, reason, [Evidence(path), first.where, newest.where])
