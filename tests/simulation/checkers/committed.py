"""P2: what was reported committed is in the record, and accepted; what was reported not committed is not in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History


def check(history: History, record: Record) -> Iterator[str]:
    for attempt in history.attempts:
        log = record.logs[attempt.log]
        held = log.holds(attempt.path, attempt.data)
        for true_ns, outcome in attempt.outcomes:
            if outcome == "committed" and not held:
                yield f"{attempt.who} was told at {true_ns} that {attempt.path} is committed: it is not in the record"
            if outcome == "not-committed" and held:
                yield f"{attempt.who} was told at {true_ns} that {attempt.path} is not committed: the record holds it"
        if held and any(outcome == "committed" for _, outcome in attempt.outcomes):
            directory = attempt.path.rpartition("/")[0]
            kept = log.payloads.get(directory, set()) | log.voided
            if not kept.issuperset(attempt.payloads):
                yield f"{attempt.path} is committed, and readers do not accept all of it"
