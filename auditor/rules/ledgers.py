"""Rules about witness ledgers as files: a shard that granted has one, and one that stopped orderly finished its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from appliance.formats.ceiling import CeilingKind
from appliance.formats.paths import ledger_path
from auditor.finding import Evidence
from timeagent.units import SECOND, rfc3339

from .registry import found

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from auditor.chains import CeilingChain, CeilingFact, HeadFact, Run, ShardName
    from auditor.finding import Finding
    from timeagent.signedtime import SignedTime

DRAINED_NS: Final = 5 * SECOND
"""After so long what a shard signed is in its ledger, unless it was killed or the mount refused it."""


@dataclass(slots=True)
class LedgersSeen:
    """What the walk over the ledgers has seen."""

    there: set[bytes] = field(default_factory=set)
    """Runs that have a file, be it empty or unreadable."""
    stopped: set[bytes] = field(default_factory=set)
    """Runs whose file says that they stopped, or cannot be read."""
    damaged: set[bytes] = field(default_factory=set)
    """Runs of whose file some is no block that counts: what is missing there is told already."""


def check_ledgers(
    heads: Iterable[HeadFact],
    chains: Mapping[ShardName, CeilingChain],
    ledgers: LedgersSeen,
    newest: SignedTime | None,
    runs: Mapping[bytes, Run],
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


def _gap(run: Run) -> Iterator[Finding]:
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
    chain: CeilingChain, last: Mapping[bytes, HeadFact], runs: Mapping[bytes, Run], told: set[bytes]
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
