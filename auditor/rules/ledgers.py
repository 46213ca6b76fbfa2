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

    from auditor.chains import CeilingChain, HeadFact, ShardName
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


def check_ledgers(
    heads: Iterable[HeadFact],
    chains: Mapping[ShardName, CeilingChain],
    ledgers: LedgersSeen,
    newest: SignedTime | None,
) -> Iterator[Finding]:
    """missing-ledger and truncated-ledger. ``newest``: the latest signed time in the tree."""
    told: set[bytes] = set()
    for chain in chains.values():
        for fact in chain.facts:
            run = fact.record.incarnation
            if fact.record.kind is not CeilingKind.ORDERLY or run in told or run in ledgers.stopped:
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
