"""With clocks that keep their bounds, nobody begins to seal a rack before its last bag is due.

Until then it takes writes: a log keeps for ever the span and the grace that it was born with, whatever policies say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checkers.naming import rack_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History


def check(history: History, record: Record) -> Iterator[str]:
    del history
    for path, names in record.server.directories.items():
        prelock = names.get("prelock")
        if prelock is None or path.count("/") != RACK_DEPTH:
            continue
        _, log, day, clock = path.split("/")
        birth = record.logs[log].birth
        rack = rack_of(birth, day, clock)
        assert rack is not None
        due = rack.end_ns + birth.grace_ns
        if prelock.born_ns < due:
            yield f"sealing {path} began at {prelock.born_ns}, before its last bag was due at {due}"


RACK_DEPTH = 3
"""Slashes in the path of a rack's directory."""
