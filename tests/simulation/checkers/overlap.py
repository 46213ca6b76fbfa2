"""With clocks that keep their bounds, no shard's two holders believe at one true instant that they have one domain.

Of one incarnation: a successor grants at once, because the record is protected by its floor and not by a clock. What
was recalled before its holder ever had it, such as while it was being taken, was never believed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checkers.modes import excludes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History, Hold


def check(history: History, record: Record) -> Iterator[str]:
    margin = record.policy.holder_margin_ns

    revoked = history.revoked  # by an operator, who may: the record is protected, and not the belief

    places: dict[tuple[str, bytes], list[Hold]] = {}
    for hold in history.holds:
        places.setdefault((hold.domain, hold.lease.signed.batch_head().incarnation), []).append(hold)
    for (domain, _), holds in places.items():
        holds.sort(key=lambda each: each.fence)
        for place, first in enumerate(holds, 1):
            believed = first.believed_until_ns(margin)
            if first.lease.correlation_id in revoked or believed <= first.from_ns:
                continue
            for second in holds[place:]:
                if second.from_ns < believed and excludes(first.mode, second.mode):
                    yield (
                        f"{second.who} had {domain} from {second.from_ns} on, while {first.who} believed to have it "
                        f"until {believed}"
                    )
