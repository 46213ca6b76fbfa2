"""The messages of several logs in one order, in bounded memory: of each log one bag at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.bag.batch import MessageBatch, merged

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def in_one_order(logs: Sequence[Iterator[MessageBatch]]) -> Iterator[MessageBatch]:
    """Yield batches that hold the messages of all logs, by timestamp.

    Each log's batches are settled and follow each other: below ``complete_ns`` nothing of that log comes later. So
    what lies below the least of these, over all logs, can be handed out.
    """
    if len(logs) == 1:
        yield from logs[0]
        return
    heads = {number: head for number, log in enumerate(logs) if (head := next(log, None)) is not None}
    while heads:
        bound = min(head.complete_ns for head in heads.values())
        below: list[MessageBatch] = []
        for number, head in list(heads.items()):
            lower, upper = head.split(bound)
            below.append(lower)
            if len(upper):
                heads[number] = upper
            elif head.complete_ns == bound:
                following = next(logs[number], None)
                if following is None:
                    del heads[number]
                else:
                    heads[number] = following
            else:
                heads[number] = upper
        together = merged(below)
        if len(together):
            yield together
