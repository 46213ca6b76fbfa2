"""Nothing appears in the past: once anybody knew a horizon, nothing new gets into the record below it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History


def check(history: History, record: Record) -> Iterator[str]:
    for name, log in record.logs.items():
        seen = sorted((each for each in history.horizons if each.log == name), key=lambda each: each.true_ns)
        for entry in log.entries:
            for each in seen:
                if each.true_ns < entry.born_ns and entry.bag.start_ns < each.reached_ns:
                    yield (
                        f"{each.who} knew at {each.true_ns} that {name} is closed up to {each.reached_ns}; "
                        f"{entry.path} appeared at {entry.born_ns} and is in the record"
                    )
                    break
