"""Which racks of a log have a directory."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from appliance.formats.paths import Grid, Rack
    from timeagent.units import Instant

    from .storage import Storage

_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d")


def racks_there(storage: Storage, grid: Grid, after_ns: Instant = 0) -> Iterator[Rack]:
    """Yield the racks that have a directory and end after an instant, newest first; directories are opened afresh.

    Names off the grid do not exist. Touches the mount: the log's directory, and each day's as it is come to.
    """
    for day in reversed(storage.list_afresh(grid.log_path) or []):
        racks = [grid.parse_rack(day, name) for name in _racks_of(storage, grid, day)]
        for rack in sorted((rack for rack in racks if rack is not None), reverse=True):
            if rack.end_ns <= after_ns:
                return
            yield rack


def _racks_of(storage: Storage, grid: Grid, day: str) -> list[str]:
    if not _DAY.fullmatch(day):
        return []
    return storage.list_afresh(f"{grid.log_path}/{day}") or []
