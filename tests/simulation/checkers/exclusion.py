"""P1: in the record, all that an earlier holder of a domain wrote is older than all of a later one that it excludes."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from typing import TYPE_CHECKING

from tests.simulation.checkers.modes import excludes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History


def check(history: History, record: Record) -> Iterator[str]:
    del history
    spans: dict[str, dict[tuple[int, bytes, str], list[int]]] = defaultdict(lambda: defaultdict(list))
    for log in record.logs.values():
        for entry in log.entries:
            for each in entry.under:
                spans[each.domain][each.fence, each.correlation_id, each.mode].append(entry.key[0])
    for domain, holders in spans.items():
        ordered = sorted(holders.items())
        for ((fence, earlier, mode), first), ((next_fence, later, next_mode), second) in combinations(ordered, 2):
            if fence == next_fence:
                yield f"two leases on {domain} have the fence {fence}: {earlier.hex()} and {later.hex()}"
            if excludes(mode, next_mode) and max(first) >= min(second):
                yield (
                    f"on {domain} the holder of fence {fence} wrote {max(first)}, and the holder of fence {next_fence} "
                    f"wrote {min(second)}, which is not later"
                )
