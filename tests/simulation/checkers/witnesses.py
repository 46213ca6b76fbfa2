"""Fences grow, floors hold, ceilings hold and never fall: over every witness that any shard ever signed.

While a domain moves, each of its two chains has fences and floors of its own; a grant that is whole again is above all
of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checkers.forms import Ended, Witness

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.forms import BatchHead, CeilingRecord
    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History

type Place = tuple[int, int, int, int, int]
"""Where a witness stands: map, shard, first ceiling record of its incarnation, batch, entry."""


def check(history: History, record: Record) -> Iterator[str]:
    del history
    ceilings = record.ceilings
    witnesses = _read(record)
    yield from _ceilings(ceilings)
    linked = {(each.shard, each.incarnation, each.number): each for each in ceilings.values()}
    highest: dict[tuple[str, int], tuple[int, int, int]] = {}
    fences: dict[bytes, int] = {}
    for place, entry, head in sorted(witnesses, key=lambda each: each[0]):
        right = linked.get((head.shard, head.incarnation, head.ceiling_number))
        if type(entry) is Witness:
            if right is None:
                yield f"a witness on {entry.domain} names ceiling record {head.ceiling_number}, which nobody linked"
            elif entry.expiry_ns > right.ceiling_ns:
                yield f"a lease on {entry.domain} expires at {entry.expiry_ns}, above the ceiling {right.ceiling_ns}"
        domain, floor, settle_to = entry.domain, entry.floor_ns, entry.settle_to_ns
        fence, known_floor, known_settle = highest.get((domain, head.map_number), (0, -1, -1))
        if type(entry) is Witness and entry.kind == "grant" and head.half == "whole":  # nobody else grants it by now
            before = [each for (name, chain), each in highest.items() if name == domain and chain < head.map_number]
            fence = max([fence, *(each[0] for each in before)])
            known_floor = max([known_floor, *(each[1] for each in before)])
        if type(entry) is Witness:
            granted = fences.setdefault(entry.correlation_id, entry.fence) if entry.kind != "grant" else -1
            fences[entry.correlation_id] = entry.fence
            if entry.fence <= fence and entry.fence != granted:
                yield f"the fence of {domain} went from {fence} to {entry.fence} at {place}"
            fence = max(fence, entry.fence)
        renewal = type(entry) is Witness and entry.kind == "renewal"
        if not renewal and (floor < known_floor or settle_to < known_settle):
            yield f"floor and settle_to of {domain} fell from {known_floor}, {known_settle} to {floor}, {settle_to}"
        highest[domain, head.map_number] = (fence, max(floor, known_floor), max(settle_to, known_settle))


def _read(record: Record) -> list[tuple[Place, Witness | Ended, BatchHead]]:
    first: dict[bytes, int] = {}
    for ceiling in record.ceilings.values():
        first[ceiling.incarnation] = min(first.get(ceiling.incarnation, ceiling.number), ceiling.number)
    found: list[tuple[Place, Witness | Ended, BatchHead]] = []
    for turn in record.turns:
        head = turn.head
        start = first.get(head.incarnation, head.ceiling_number)
        for index, entry in enumerate(turn.entries):
            if type(entry) is Witness or type(entry) is Ended:
                found.append(((head.map_number, head.shard, start, head.sequence, index), entry, head))
    return found


def _ceilings(ceilings: dict[bytes, CeilingRecord]) -> Iterator[str]:
    by_shard: dict[tuple[int, int], dict[int, CeilingRecord]] = {}
    for record in ceilings.values():
        chain = by_shard.setdefault((record.map_number, record.shard), {})
        if record.number in chain:
            yield f"two records of shard {record.shard} have the number {record.number}"
        chain[record.number] = record
    for shard, chain in by_shard.items():
        highest = 0
        for number in sorted(chain):
            if chain[number].ceiling_ns < highest:
                yield f"the ceiling of shard {shard} fell from {highest} to {chain[number].ceiling_ns} at {number}"
            highest = max(highest, chain[number].ceiling_ns)
