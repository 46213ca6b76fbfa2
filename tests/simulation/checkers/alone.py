"""Who acts outside the record is alone with its domain in true time, whatever its shard has forgotten."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from tests.simulation.checkers.modes import excludes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History


def check(history: History, record: Record) -> Iterator[str]:
    margin = record.policy.holder_margin_ns

    holds = [hold for hold in history.holds if history.alone and hold.who.startswith(history.alone)]
    for first, second in combinations(sorted(holds, key=lambda each: each.fence), 2):
        if first.domain != second.domain or not excludes(first.mode, second.mode):
            continue
        believed = first.believed_until_ns(margin)
        if first.from_ns < believed and second.from_ns < believed:
            yield (
                f"{second.who} acted on {first.domain} from {second.from_ns} on, while {first.who} believed to have it "
                f"until {believed}"
            )
