"""P2 for sessions: what publish returned is what the record holds; and an attempt's messages are in it at most once."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History


def check(history: History, record: Record) -> Iterator[str]:
    held = {name: Counter(entry.key[5] for entry in log.entries) for name, log in record.logs.items()}
    for wrote in history.wrote:
        counts = held[wrote.log]
        for payload in wrote.payloads:
            for true_ns, outcome in wrote.outcomes:
                if outcome == "committed" and not counts[payload] and payload not in record.logs[wrote.log].voided:
                    yield f"{wrote.who} was told at {true_ns} that {payload!r} is committed: readers do not accept it"
            if counts[payload] > 1:
                yield f"{payload!r} of {wrote.who} is {counts[payload]} times in the record"
    last = {payload: wrote for wrote in history.wrote for payload in wrote.payloads}
    for payload, wrote in last.items():
        if wrote.outcomes and wrote.outcomes[-1][1] == "not-committed" and held[wrote.log][payload]:
            yield f"{wrote.who} was told at last that {payload!r} is not committed: the record holds it"
