"""P2, on disk: what a seal lists is in its directory, or in the rack's pack, until retention gives the pack up.

Seals, and the prelocks of racks, are there for ever. A pack may go when both clocks say that it is a day old: here the
server's clock is the one that is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checkers.forms import Broken
from tests.simulation.checkers.naming import rack_of
from tests.simulation.checkers.reading import digest_of, lock_file, pack_files, seal_file
from timeagent.units import DAY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.naming import Stretch
    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History
    from tests.simulation.server import Server


def check(history: History, record: Record) -> Iterator[str]:
    del history
    server = record.server
    for path in server.graves:
        if path.count("/") == RACK_DEPTH and path.endswith(("/seal", "/prelock")):
            yield f"{path} was removed"
    for path, names in server.directories.items():
        seal = names.get("seal")
        if seal is not None and path.startswith("logs/"):
            _, log, day, clock = path.split("/")
            rack = rack_of(record.logs[log].birth, day, clock)
            assert rack is not None
            yield from _rack(server, rack, seal.data)


RACK_DEPTH = 4
"""Slashes in the path of a file in a rack's directory."""


def _rack(server: Server, rack: Stretch, raw: bytes) -> Iterator[str]:
    packed = _packed(server, rack.path)
    removed = server.graves.get(f"{rack.path}/pack")
    if removed is not None and removed[1] - DAY > rack.end_ns:
        return  # given up; a slow packer may put another pack there still, good or bad
    if removed is not None and packed is None:
        yield f"the pack of {rack.path} was removed at {removed[1]}, less than a day after {rack.end_ns}, its end"
        return
    for each in seal_file(raw).entries:
        for entry in lock_file(each.lock).entries:
            path = f"{rack.path}/{each.bag}/{entry.name}"
            file = server.find(path)
            there = None if file is None else file.data[: entry.size]
            kept = (packed or {}).get((each.bag, entry.name))
            if entry.digest not in [digest_of(data) for data in (there, kept) if data is not None]:
                yield f"{path} is listed in a seal, and neither in its directory nor in the pack of its rack"


def _packed(server: Server, rack: str) -> dict[tuple[str, str], bytes] | None:
    """Return what a rack's pack holds, by bag and name; None if there is none, nothing if it cannot be read."""
    file = server.find(f"{rack}/pack")
    if file is None:
        return None
    try:
        return pack_files(file.data)[1]
    except Broken:
        return {}
