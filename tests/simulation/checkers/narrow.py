"""A reading of held domains is the full reading without the rest: nothing is missing, nothing is beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History


def check(history: History, record: Record) -> Iterator[str]:
    for read in history.narrow:
        naming = {
            entry.key
            for entry in record.logs[read.log].entries
            if any(each.domain in read.domains for each in entry.under)
        }
        what = f"{read.who} read {read.log} for {read.domains} at {read.true_ns}"
        for key in read.keys:
            if key not in naming:
                yield f"{what} and got {key}, which names none of them"
        # What a reading has shown is there for good, so every later one shows it, and it was there before this one.
        before = [key for key in read.earlier if key in naming]
        after = [key for key in read.later if key in naming]
        if list(read.keys) != sorted(read.keys, key=lambda key: key[:5]):
            yield f"{what} and got them out of order"
        if read.last is None:
            for key in set(before) - set(read.keys):
                yield f"{what} and missed {key}, which was read before"
            for key in set(read.keys) - set(after):
                yield f"{what} and got {key}, which is not read after"
        elif before == after and list(read.keys) != after[max(0, len(after) - read.last) :]:
            yield f"{what} and got {read.keys} as the last {read.last} of {after}"
