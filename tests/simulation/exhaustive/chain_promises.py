"""What must hold of a ceiling chain in every state, without a line of what is judged.

A run notes what it may grant up to, and how it ends; nothing is known of when it does what it may. Two runs are safe
when all that the one may have granted, or its holders may have written, lies below the floor of the other.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from tests.simulation.exhaustive.tree import Tree
    from tests.support.explorer import Notes

ONE_OWNER = "what one run grants lies below the floor of the other"
CEILINGS_GROW = "ceilings never fall"
TERMINAL_LAST = "nobody links after a terminal record"
ALL_ENDED = "a chain begins when all chains of the map before have ended"
OWN_RECORD = "a run grants up to a ceiling that it linked itself"
FENCES_GROW = "fences grow from run to run"
NO_BUG = "nothing breaks"

CHAIN = "shards/00000001/0000"
_NEXT = "shards/00000002/0000"
"""What a terminator says, a run under the next map would begin with."""
_LATER = 2**62
_HEAD, _CHECKSUM = 12, 16
_NUMBER, _INCARNATION, _KIND, _CEILING = 3, 5, 6, 7


@cache
def _record(data: bytes) -> list[Any]:
    signed = msgspec.msgpack.decode(data[_HEAD:-_CHECKSUM])
    record: list[Any] = msgspec.msgpack.decode(signed[0])
    return record


type Chain = dict[int, list[Any]]


@cache
def chains(tree: Tree) -> dict[str, Chain]:
    """Return the records of each chain by number, newest last; chains by their directories."""
    found: dict[str, Chain] = {}
    for path, data in sorted(tree.files):
        place, _, name = path.rpartition("/")
        if place.startswith("shards/"):
            found.setdefault(place, {})[int(name)] = _record(data)
    return found


class ChainPromises:
    """The promises of docs/protocol/lease.md about the right to grant. ``pruned``: old records may be gone."""

    def __init__(self, *, pruned: bool = False) -> None:
        self._pruned = pruned

    def in_step(self, before: Tree, after: Tree) -> list[str]:
        broken = []
        for place, new in chains(after).items():
            old = chains(before).get(place)
            if old is None:
                continue
            newest, newer = old[max(old)], new[max(new)]
            if newer[_CEILING] < newest[_CEILING]:
                broken.append(CEILINGS_GROW)
            if newest[_KIND] == "terminal" and newer[_NUMBER] > newest[_NUMBER]:
                broken.append(TERMINAL_LAST)
        return broken

    def in_state(self, tree: Tree, notes: list[Notes]) -> list[str]:
        found = chains(tree)
        runs = [run for each in notes if (run := _run(each)) is not None]
        begun = max((_map(run["chain"]) for run in runs), default=1)
        broken = []
        if any(_map(place) < begun and chain[max(chain)][_KIND] != "terminal" for place, chain in found.items()):
            broken.append(ALL_ENDED)
        for one, other in combinations(runs, 2):
            if _map(one["chain"]) == _map(other["chain"]) and one["chain"] != other["chain"]:
                continue  # two shards of one map have different domains
            if one["chain"] == other["chain"] == _NEXT and _LATER in (one["held"], other["held"]):
                continue
            if not (_below(one, other) or _below(other, one)):
                broken.append(ONE_OWNER)
            first, second = sorted((one, other), key=lambda run: (run["chain"], run.get("number", 0)))
            if first["fence"] and second["fence"] and first["fence"] >= second["fence"]:
                broken.append(FENCES_GROW)
        runs = [run for run in runs if "incarnation" in run]
        broken += [OWN_RECORD for run in runs if not self._linked(found.get(run["chain"], {}), run)]
        return broken + [f"{NO_BUG}: {note[1]}" for each in notes for note in each if note[0] == "broke"]

    def at_end(self, _tree: Tree, _notes: list[Notes]) -> list[str]:
        return []

    def _linked(self, chain: Chain, run: dict[str, Any]) -> bool:
        mine = [record for record in chain.values() if record[_INCARNATION] == run["incarnation"]]
        if self._pruned and max(chain) > run["newest"]:
            return True  # its slot may be free, or taken again by somebody who slept
        return any(record[_CEILING] >= run["reach"] and record[_NUMBER] <= run["newest"] for record in mine)


def _map(place: str) -> int:
    return int(place.split("/")[1])


def _run(notes: Notes) -> dict[str, Any] | None:
    """What one run came to: ``reach``: how far its grants may, ``held``: and those that nobody gave back, may."""
    run: dict[str, Any] | None = None
    for note in notes:
        match note:
            case ("reach", incarnation, floor, settle_to, reach, newest, chain):
                number = newest if run is None else run["number"]
                run = {
                    "incarnation": incarnation,
                    "floor": floor,
                    "settle_to": settle_to,
                    "reach": reach,
                    "held": reach,
                    "wrote": reach,
                    "fence": None if run is None else run["fence"],
                    "number": number,
                    "newest": newest,
                    "chain": chain,
                }
            case ("granted", fence, expiry):
                assert run is not None
                run |= {"fence": fence, "held": expiry, "wrote": expiry}
            case ("terminated", floor, settle_to):
                later = {"held": _LATER, "wrote": _LATER, "fence": None, "chain": _NEXT}
                run = {"floor": floor, "settle_to": settle_to} | later
            case ("given back", wrote):
                assert run is not None
                run |= {"held": 0, "wrote": wrote}
            case _:
                pass
    return run


def _below(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return bool(one["wrote"] <= other["floor"] and one["held"] <= other["settle_to"])
