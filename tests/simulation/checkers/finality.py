"""What a latest reading showed is in the record for ever; what a bag was said to hold is what it holds for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History


def check(history: History, record: Record) -> Iterator[str]:
    for read in history.latest:
        log = record.logs[read.log]
        for key in read.keys:
            if key not in log.keys and key[5] not in log.voided:
                yield f"{read.who} read {key} of {read.log} at {read.true_ns}: it is not in the record"
    for answer in history.answers:
        listed = record.logs[answer.bag.split("/")[1]].bags.get(answer.bag)
        names = None if listed is None else tuple(sorted(listed.files))
        if names != answer.names and not (answer.names == () and names is None):
            yield f"{answer.who} was told at {answer.true_ns} that {answer.bag} holds {answer.names}: it holds {names}"
