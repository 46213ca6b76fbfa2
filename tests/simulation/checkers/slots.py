"""A semaphore never has more holders at a true instant than any of them says that it may have."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History, Hold

TREE = "/semaphore:"


def _name_and_size(hold: Hold) -> tuple[str, int]:
    _, name, size, _ = hold.domain.split("/")
    return name, int(size)


def check(history: History, record: Record) -> Iterator[str]:
    margin = record.policy.holder_margin_ns
    slots = [hold for hold in history.holds if hold.domain.startswith(TREE)]
    for hold in slots:
        if hold.from_ns >= hold.believed_until_ns(margin):
            continue
        name, _ = _name_and_size(hold)
        at_once = [
            each
            for each in slots
            if _name_and_size(each)[0] == name and each.from_ns <= hold.from_ns < each.believed_until_ns(margin)
        ]
        most = min(_name_and_size(each)[1] for each in at_once)
        if len(at_once) > most:
            who = ", ".join(f"{each.who} {each.domain}" for each in at_once)
            yield f"{len(at_once)} at once had a semaphore of {most}, at {hold.from_ns}: {who}"
