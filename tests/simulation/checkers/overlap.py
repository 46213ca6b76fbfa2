"""With clocks that keep their bounds, no shard's two holders believe at one true instant that they have one domain.

Of one incarnation: a successor grants at once, because the record is protected by its floor and not by a clock.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from tests.simulation.checkers.modes import excludes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History, Hold


def check(history: History, record: Record) -> Iterator[str]:
    margin = record.policy.holder_margin_ns

    def until(hold: Hold) -> int:
        runs_out = hold.lease.expiry_ns - margin
        return runs_out if hold.until_ns is None else min(hold.until_ns, runs_out)

    revoked = history.revoked  # by an operator, who may: the record is protected, and not the belief

    places: dict[tuple[str, bytes], list[Hold]] = {}
    for hold in history.holds:
        places.setdefault((hold.domain, hold.lease.signed.batch_head().incarnation), []).append(hold)
    for (domain, _), holds in places.items():
        for first, second in combinations(sorted(holds, key=lambda each: each.fence), 2):
            if not excludes(first.mode, second.mode) or first.lease.correlation_id in revoked:
                continue
            if (first.until_ns is not None or first.lease.ended is None) and second.from_ns < until(first):
                yield (
                    f"{second.who} had {domain} from {second.from_ns} on, while {first.who} believed to have it until "
                    f"{until(first)}"
                )
