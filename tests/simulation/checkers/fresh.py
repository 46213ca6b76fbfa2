"""What is read from memory was the newest value at some moment of the call; what was flushed is not lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import CachedUse, History


def check(history: History, _: Record) -> Iterator[str]:
    for domain in sorted({each.domain for each in history.cached}):
        uses = [each for each in history.cached if each.domain == domain]
        wrote = {each.value: each for each in uses if each.what in ("set", "put")}
        for read in uses:
            if read.what == "get" and read.ended_ns is not None:
                yield from _wrong(read, wrote)


def _wrong(read: CachedUse, wrote: dict[bytes | None, CachedUse]) -> Iterator[str]:
    what = f"{read.who} read {read.value!r} of {read.domain} between {read.began_ns} and {read.ended_ns}"
    of = None if read.value is None else wrote.get(read.value)
    if read.value is not None and of is None:
        yield f"{what}, which nobody wrote"
        return
    if of is not None and read.ended_ns is not None and of.began_ns > read.ended_ns:
        yield f"{what}, which was written later"
    if of is not None and of.outcome == "not-committed":
        yield f"{what}, which was not written"
    for later in wrote.values():
        over = later.ended_ns is not None and later.ended_ns < read.began_ns
        counts = later.outcome == "committed" or (later.process is read.process and later.outcome == "")
        followed = of is None or (of.ended_ns is not None and of.ended_ns < later.began_ns)
        if over and counts and followed and later is not of:
            yield f"{what}, and {later.who} had written {later.value!r} by {later.ended_ns}"
