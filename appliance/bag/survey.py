"""What is on the mount of one log, and what it will cost: for people. Judges nothing, closes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from appliance.formats.lockfile import open_seal
from appliance.formats.pack import PACK
from appliance.formats.paths import LOCK, PRELOCK, RETAINED, SEAL, Bag, Grid, Rack
from timeagent.units import DAY

from .closedbags import lists_files
from .logs import racks_there
from .ports import BagContext


class ClosingState(StrEnum):
    """How far the closing of a bag or rack has come, by the names in its directory."""

    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"
    SEALED = "sealed"


@dataclass(frozen=True, slots=True)
class BagView:
    """One bag directory that is there. ``files``: its data files, listed or not."""

    bag: Bag
    state: ClosingState
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RackView:
    """One rack directory that is there, with its bags in order."""

    rack: Rack
    state: ClosingState
    bags: tuple[BagView, ...]
    pack_bytes: int | None
    retained: bool
    """Sealed with files, and neither bags nor a pack are there: what it held is gone."""
    strangers: tuple[str, ...]
    """Names in the rack that are neither ours nor on the grid: for the log they do not exist."""


def view_rack(context: BagContext, grid: Grid, rack: Rack) -> RackView:
    """Return a rack as it is now: one listing for it, one for each bag. Touches the mount."""
    names = context.storage.list_afresh(rack.path) or []
    bags, strangers = [], []
    for name in names:
        bag = grid.parse_bag(rack, name)
        if bag is not None:
            bags.append(_view_bag(context, grid, bag))
        elif name not in (PRELOCK, SEAL, PACK, RETAINED):
            strangers.append(name)
    size = context.storage.size_of(f"{rack.path}/{PACK}") if PACK in names else None
    return RackView(
        rack, _state(names, SEAL, ClosingState.SEALED), tuple(bags), size, _gone(context, rack, names), tuple(strangers)
    )


def _gone(context: BagContext, rack: Rack, names: list[str]) -> bool:
    """Whether the rack was emptied by retention. Reads the seal only where nothing else is there."""
    if set(names) - {RETAINED} != {PRELOCK, SEAL}:
        return False
    raw = context.storage.read(f"{rack.path}/{SEAL}")
    return raw is not None and lists_files(open_seal(raw, f"{rack.path}/{SEAL}")[0])


def _view_bag(context: BagContext, grid: Grid, bag: Bag) -> BagView:
    names = context.storage.list_afresh(bag.path) or []
    files = tuple(name for name in names if grid.data_name(name) is not None)
    return BagView(bag, _state(names, LOCK, ClosingState.CLOSED), files)


def _state(names: list[str], last: str, reached: ClosingState) -> ClosingState:
    if last in names:
        return reached
    return ClosingState.CLOSING if PRELOCK in names else ClosingState.OPEN


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
