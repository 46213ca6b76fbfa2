"""Who asks for leases gets them: sets in no circle, nobody behind the dead, whoever waits in the order of coming."""

from __future__ import annotations

from typing import TYPE_CHECKING

from timeagent.units import MS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History

APART_NS = 50 * MS
"""Who comes later by more than this came later: its request takes its time to the shard."""


def check(history: History, _: Record) -> Iterator[str]:
    limit = history.served_within_ns
    if limit is None:
        return
    for wait in history.waits:
        if not wait.granted or wait.took_ns > limit:
            got = "was not given" if not wait.granted else "had to wait for"
            yield f"{wait.who} {got} {', '.join(wait.domains)} for {wait.took_ns} ns; {limit} are enough"
    for hold in history.queued:
        for other in history.queued:
            if other.asked_ns + APART_NS < hold.asked_ns and hold.from_ns < other.from_ns:
                yield f"{hold.who} came after {other.who} and had {hold.domain} before it"
