"""What a log costs in names and bytes, and what it will: for people. From what its newest racks came to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from appliance.formats.pack import PACK
from appliance.formats.paths import SEAL
from timeagent.units import DAY

from .racks import racks_there

if TYPE_CHECKING:
    from appliance.formats.paths import Grid

    from .context import BagContext

NAMES_PER_RACK: Final = 3
"""A rack's directory, its prelock and its seal stay for ever."""
_RACKS_LOOKED_AT: Final = 144


@dataclass(frozen=True, slots=True)
class Forecast:
    """Names are inodes. Per day, by the newest sealed racks."""

    racks_looked_at: int
    racks_per_day: int
    names_for_ever_per_day: int
    packs_per_day: float
    pack_bytes_per_day: float
    names_now: int
    """In the racks that were looked at: directories and files."""
    names_kept: float
    """Of packs, once retention has begun to delete; without retention after one year."""
    bytes_kept: float


def forecast(context: BagContext, grid: Grid, days: int | None) -> Forecast:
    """Return what a log that goes on like its newest racks comes to. Touches the mount: a listing for each of them."""
    looked, packs, size, names_now, sealed = 0, 0, 0, 0, 0
    for rack in racks_there(context.storage, grid):
        names = context.storage.list_afresh(rack.path) or []
        looked += 1
        names_now += 1 + len(names)
        for name in names:
            if grid.parse_bag(rack, name) is not None:
                names_now += len(context.storage.list_afresh(f"{rack.path}/{name}") or ())
        sealed += SEAL in names
        if PACK in names:
            packs += 1
            size += context.storage.size_of(f"{rack.path}/{PACK}") or 0
        if looked == _RACKS_LOOKED_AT:
            break
    per_day = DAY // grid.birth.rack_ns
    share = per_day / sealed if sealed else 0.0
    kept = days or 365
    return Forecast(
        looked,
        per_day,
        NAMES_PER_RACK * per_day,
        packs * share,
        size * share,
        names_now,
        packs * share * kept,
        size * share * kept,
    )
