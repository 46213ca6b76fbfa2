"""The half of a lease from the shard that comes says no less than the one that its holder was granted before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checkers.forms import Witness

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History


def check(history: History, record: Record) -> Iterator[str]:
    if not history.only_moves:
        return  # a request that comes late speaks of an earlier half
    granted: dict[tuple[str, object], tuple[int, Witness]] = {}
    low: dict[bytes, str] = {}
    """Second halves that say less. One that was asked for an earlier lease may be granted late: it is given back."""
    for turn in record.turns:  # in the order in which they were signed: who asks for the second has the first
        for entry in turn.entries:
            if type(entry) is not Witness:
                continue
            if entry.kind != "grant":
                if entry.correlation_id in low:
                    yield low.pop(entry.correlation_id)
                continue
            who = entry.domain, entry.holder
            chain, before = granted.get(who, (0, entry))
            if turn.head.half == "coming" and chain < turn.head.map_number and before is not entry:
                ours, least = _numbers(entry), _numbers(before)
                if ours[0] <= least[0] or ours[1] < least[1] or ours[2] < least[2]:
                    low[entry.correlation_id] = f"the second half of {entry.domain} says {ours}, the first {least}"
            granted[who] = turn.head.map_number, entry


def _numbers(witness: Witness) -> tuple[int, int, int]:
    return witness.fence, witness.floor_ns, witness.settle_to_ns
