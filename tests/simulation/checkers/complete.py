"""P1: who reads under a lease has before it all that earlier holders, whom it excludes, wrote to the log.

And all that was written under the same lease, in whatever mode, and reported committed before the reading began: only
what the holder was in doubt about then may be missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checkers.modes import excludes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record, Under
    from tests.simulation.history import History, LatestRead
    from timeagent.units import Instant


def check(history: History, record: Record) -> Iterator[str]:
    committed = _committed(history)
    for read in history.latest:
        if not read.leases:
            continue
        seen = set(read.keys)
        for entry in record.logs[read.log].entries:
            if entry.key in seen or entry.key[0] <= read.after_ns:
                continue
            told_ns = committed.get((read.log, entry.key[5]))
            for each in entry.under:
                if _has_to_be_seen(each, read, told_ns):
                    yield (
                        f"{read.who} read {read.log} under {each.domain} from {read.began_ns} to {read.true_ns} and "
                        f"missed {entry.key}, written under fence {each.fence}, committed at {told_ns}"
                    )


def _committed(history: History) -> dict[tuple[str, bytes], Instant]:
    """Return when each message was first reported committed, by log and payload."""
    found: dict[tuple[str, bytes], Instant] = {}
    for wrote in history.wrote:
        told = [true_ns for true_ns, outcome in wrote.outcomes if outcome == "committed"]
        for payload in wrote.payloads if told else ():
            found[wrote.log, payload] = min(told[0], found.get((wrote.log, payload), told[0]))
    return found


def _has_to_be_seen(under: Under, read: LatestRead, told_ns: Instant | None) -> bool:
    for domain, fence, mode, own in read.leases:
        if under.domain != domain or not excludes(mode, under.mode):
            continue
        if under.correlation_id == own:
            if told_ns is not None and told_ns < read.began_ns:
                return True
        elif under.fence < fence:
            return True
    return False
