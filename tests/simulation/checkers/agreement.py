"""P3: whoever read settled messages, whenever, read what the record holds for ever, in its order."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History


def check(history: History, record: Record) -> Iterator[str]:
    for read in history.settled:
        entries = record.logs[read.log].entries
        now = tuple(entry.key for entry in entries if read.after_ns < entry.key[0] <= read.until_ns)
        if now != read.keys:
            missing, extra = set(now) - set(read.keys), set(read.keys) - set(now)
            yield (
                f"{read.who} read {len(read.keys)} settled messages of {read.log} up to {read.until_ns} at "
                f"{read.true_ns}; the record has {len(now)}: it missed {sorted(missing)}, and had {sorted(extra)} more"
            )
