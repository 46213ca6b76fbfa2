"""Where nothing happens but that shards are moved, and daemons restarted in order, nobody loses a lease by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History


def check(history: History, record: Record) -> Iterator[str]:
    if not history.only_moves:
        return
    for hold in history.holds:
        if hold.lost_ns is not None and hold.lease.term_ns >= record.policy.lease_term_max_ns:
            yield f"{hold.who} lost {hold.domain} at {hold.lost_ns}, and nothing went wrong: {hold.lease.loss}"
