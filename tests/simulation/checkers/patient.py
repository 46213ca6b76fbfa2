"""Nobody begins while another may grant: with clocks that keep their bounds, the ceiling before a run is past by then.

What another linked while it was being decided that the run begins, nobody could have seen: it is not held against it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from tests.simulation.checkers.reading import ceiling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.forms import CeilingRecord
    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History


def check(history: History, record: Record) -> Iterator[str]:
    firsts = {tenant.incarnation: tenant for tenant in reversed(history.tenants)}  # the others go on with its run
    for tenant in firsts.values():
        chain = linked(record, tenant.shard)
        for (_, before), (_, first) in pairwise(chain):
            if first.incarnation == tenant.incarnation != before.incarnation:
                born = next(when for when, each in chain if each is before)
                running = before.kind == "running" and before.node != tenant.node
                if running and born < tenant.considered_ns and before.ceiling_ns > tenant.from_ns:
                    yield (
                        f"{tenant.node} began with shard {tenant.shard} at {tenant.from_ns}, and {before.node} might "
                        f"grant until {before.ceiling_ns}"
                    )


def linked(record: Record, shard: int) -> list[tuple[int, CeilingRecord]]:
    """Return the records of a chain, also those that were pruned, each with the true time at which it appeared."""
    server, path = record.server, f"shards/{shard // 1024 + 1:08d}/{shard % 1024:04d}"
    files = {name: file for name, file in server.directories.get(path, {}).items() if file is not None}
    files |= {grave.rpartition("/")[2]: file for grave, (file, _) in server.graves.items() if grave.startswith(path)}
    return [(file.born_ns, ceiling(file.data)) for _, file in sorted(files.items())]
