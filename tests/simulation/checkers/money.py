"""Conservation of the bank: each transfer was decided upon the true balances, none is overdrawn, none counts twice."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.simulation.actors.bank import OPENING, parsed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History


def check(history: History, record: Record) -> Iterator[str]:
    del history
    moves: dict[str, list[tuple[int, int, int, int]]] = {}
    numbers: Counter[int] = Counter()
    for log in record.logs.values():
        for entry in log.entries:
            said = parsed(entry.key[5])
            if said is None:
                continue
            number, source, target, amount, seen_source, seen_target = said
            numbers[number] += 1
            fences = {each.domain: each.fence for each in entry.under}
            moves.setdefault(source, []).append((fences[source], entry.key[0], -amount, seen_source))
            moves.setdefault(target, []).append((fences[target], entry.key[0], amount, seen_target))
    for number, count in numbers.items():
        if count > 1:
            yield f"transfer {number} is {count} times in the record"
    for account, changes in moves.items():
        balance = OPENING
        for fence, timestamp, change, seen in sorted(changes):
            if seen != balance:
                yield f"{account} held {balance} at {timestamp}; under fence {fence} it was taken to hold {seen}"
                break
            balance += change
        if balance < 0:
            yield f"{account} is overdrawn: {balance}"
