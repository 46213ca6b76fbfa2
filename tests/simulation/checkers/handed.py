"""With clocks that keep their bounds, nobody is handed a lease that was over already when it was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History


def check(history: History, record: Record) -> Iterator[str]:
    wrong = 2 * record.policy.radius_ns_max
    for hold in history.holds:
        over = hold.handed_until_ns - record.policy.holder_margin_ns
        if over + wrong < hold.asked_ns:
            yield (
                f"{hold.who} asked for {hold.domain} at {hold.asked_ns} and was handed the lease with fence "
                f"{hold.fence}, which was over at {over}"
            )
