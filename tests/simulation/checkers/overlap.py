"""With clocks that keep their bounds, no shard's two holders believe at one true instant that they have one domain.

Of one incarnation, and over planned moves: a successor of a run that ended otherwise grants at once, because the record
is protected by its floor and not by a clock. What was recalled before its holder ever had it, such as while it was
being taken, was never believed. Who asks after another had it gets a higher fence.
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

    places: dict[str, list[tuple[Hold, bytes]]] = {}
    for hold in history.holds:
        places.setdefault(hold.domain, []).append((hold, hold.lease.signed.batch_head().incarnation))
    for domain, holds in places.items():
        holds.sort(key=lambda each: each[0].fence)
        for place, (first, its_run) in enumerate(holds, 1):
            believed = first.believed_until_ns(margin)
            # An operator may revoke what is believed: the record is protected.
            if first.lease.correlation_id in history.revoked or believed <= first.from_ns:
                continue
            for second, run in holds[place:]:
                if not excludes(first.mode, second.mode):
                    continue
                if second.from_ns < believed and _knows(run, its_run, history):
                    yield (
                        f"{second.who} had {domain} from {second.from_ns} on, while {first.who} believed to have it "
                        f"until {believed}"
                    )
                if first.fence < second.fence and second.from_ns < first.asked_ns and _knows(its_run, run, history):
                    yield (
                        f"{first.who} asked for {domain} after {second.who} had it with fence {second.fence}, and has "
                        f"fence {first.fence}"
                    )


def _knows(run: bytes, before: bytes, history: History) -> bool:
    """Whether one run of a shard (incarnation) granted both, or the later came by moves that waited for the other's."""
    if run == before:
        return True
    runs: dict[int, list[bytes]] = {}
    shards: dict[bytes, int] = {}
    for start in history.starts:
        if not start.resumed:
            runs.setdefault(start.shard, []).append(start.incarnation)
            shards[start.incarnation] = start.shard
    leaving, coming = shards.get(before, 0), shards.get(run, 0)
    if leaving >= coming or runs[leaving][-1] != before or runs[coming][0] != run:
        return False
    return all(len(between) == 1 for shard, between in runs.items() if leaving < shard < coming)
