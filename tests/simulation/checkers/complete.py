"""P1: who reads under a lease has before it all that earlier holders, whom it excludes, wrote to the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checkers.modes import excludes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History


def check(history: History, record: Record) -> Iterator[str]:
    for read in history.latest:
        if not read.leases:
            continue
        seen = set(read.keys)
        for entry in record.logs[read.log].entries:
            if entry.key in seen or entry.key[0] <= read.after_ns:
                continue
            for each in entry.under:
                for domain, fence, mode, own in read.leases:
                    if each.correlation_id == own:
                        continue  # what it wrote itself, in a weaker mode, and was left in doubt about
                    if each.domain == domain and each.fence < fence and excludes(mode, each.mode):
                        yield (
                            f"{read.who} read {read.log} under {domain} with fence {fence} from {read.began_ns} to "
                            f"{read.true_ns} and missed {entry.key}, written under fence {each.fence}"
                        )
