"""P1: in the record, everything that an earlier holder of a domain wrote is older than everything of a later one."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History


def check(history: History, record: Record) -> Iterator[str]:
    del history
    spans: dict[str, dict[tuple[int, bytes], list[int]]] = defaultdict(lambda: defaultdict(list))
    for log in record.logs.values():
        for entry in log.entries:
            for each in entry.under:
                spans[each.domain][each.fence, each.correlation_id].append(entry.key[0])
    for domain, holders in spans.items():
        ordered = sorted(holders.items())
        for ((fence, earlier), first), ((next_fence, later), second) in pairwise(ordered):
            if fence == next_fence:
                yield f"two leases on {domain} have the fence {fence}: {earlier.hex()} and {later.hex()}"
            if max(first) >= min(second):
                yield (
                    f"on {domain} the holder of fence {fence} wrote {max(first)}, and the holder of fence {next_fence} "
                    f"wrote {min(second)}, which is not later"
                )
