"""The half of a lease from the shard that comes says no less than the one that its holder was granted before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checkers.forms import Ended, Witness

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History


def check(history: History, record: Record) -> Iterator[str]:
    if not history.only_moves:
        return  # a request that comes late speaks of an earlier half
    out: dict[tuple[str, object, str], dict[bytes, tuple[int, Witness]]] = {}
    """By mode too, and several: a session may have a domain more than once, in modes that go together."""
    low: dict[bytes, str] = {}
    """Second halves that say less. One that was asked for an earlier lease may be granted late: it is given back."""
    for turn in record.turns:  # in the order in which they were signed: who asks for the second has the first
        chain, comes = turn.head.map_number, turn.head.half == "coming"
        for entry in turn.entries:
            if type(entry) is Ended:
                for known in out.values():
                    known.pop(entry.ending.correlation_id, None)
            if type(entry) is not Witness:
                continue
            if entry.kind == "renewal":
                if entry.correlation_id in low:
                    yield low.pop(entry.correlation_id)
                continue
            mine = out.setdefault((entry.domain, entry.holder, entry.mode), {})
            before = [each for number, each in mine.values() if number < chain]
            if comes and before and entry.kind == "grant" and not any(_says_no_less(entry, each) for each in before):
                says = f"says {_numbers(entry)}, the first {_numbers(before[-1])}"
                low[entry.correlation_id] = f"the second half of {entry.domain} {says}"
            if not comes:
                mine.pop(entry.correlation_id, None)
                mine[entry.correlation_id] = chain, entry


def _says_no_less(second: Witness, first: Witness) -> bool:
    ours, least = _numbers(second), _numbers(first)
    return ours[0] > least[0] and ours[1] >= least[1] and ours[2] >= least[2]


def _numbers(witness: Witness) -> tuple[int, int, int]:
    return witness.fence, witness.floor_ns, witness.settle_to_ns
