"""P6: a shard begins with nothing, unless it goes on after a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History


def check(history: History, record: Record) -> Iterator[str]:
    del record
    for start in history.starts:
        if (start.domains or start.leases) and not start.resumed:
            yield f"shard {start.shard} began at {start.true_ns} with {start.domains} domains, {start.leases} leases"
