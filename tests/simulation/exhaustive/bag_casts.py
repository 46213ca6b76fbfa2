"""Who takes part in an exploration of bags: each actor calls production code and notes what it is told."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

from appliance.bag.closing import Contents
from appliance.bag.packer import Packer
from appliance.formats.closed import RackSeal
from tests.simulation.exhaustive.afterwards import BAGS, delivered, left_by, read_afterwards
from tests.simulation.exhaustive.bag_promises import BagPromises
from tests.simulation.exhaustive.nodes import BAG, DUE, GRID, PAST, RACK, empty_log, file_of, node
from tests.simulation.exhaustive.tree import Mount, TreeWorld
from tests.support.explorer import Explorer, Kind

if TYPE_CHECKING:
    from appliance.bag.writing import FrameFile, Outcome
    from appliance.formats.closed import LockFile
    from appliance.formats.paths import Bag, Rack
    from tests.support.explorer import Port
    from timeagent.units import Instant


def _note(port: Port, file: FrameFile, outcome: Outcome) -> None:
    port.note("outcome", (file.bag.path, file.name.text()), type(outcome).__name__)


def _write(port: Port, *, name: str, second: int, files: int, again: int, resolve: bool, clocks: Clocks) -> None:
    here = node(port, *clocks)
    for sequence in range(1, files + 1):
        file = file_of(name, second, sequence)
        _note(port, file, here.writer.write(file))
        for _ in range(again):
            # By a process that remembers nothing.
            _note(port, file, here.again().writer.write(file))
        if resolve:
            _note(port, file, here.writer.resolve(file))


def _close(port: Port, *, bags: tuple[Bag, ...], clocks: Clocks) -> None:
    here = node(port, *clocks)
    for bag in bags:
        contents = here.authority.close(bag)
        if isinstance(contents, Contents):
            port.note("contents", bag.path, None if contents.lock is None else _names(contents.lock))
        else:
            port.note("not due")


def _seal(port: Port, *, rack: Rack, clocks: Clocks) -> None:
    here = node(port, *clocks)
    sealed = here.sealer.seal(rack)
    # An older rack is sealed before a younger one.
    seal = here.sealer.sealed(RACK) if isinstance(sealed, RackSeal) and rack != RACK else sealed
    if isinstance(seal, RackSeal):
        held = ((bag, here.authority.in_seal(seal, bag).lock) for bag in map(_bag_named, (e.bag for e in seal.entries)))
        port.note("sealed", tuple((bag.path, _names(lock)) for bag, lock in held if lock is not None))
    else:
        port.note("not due")


def _settle(port: Port, *, to: Instant, clocks: Clocks) -> None:
    here = node(port, *clocks)
    here.horizon.settle(to)
    files = delivered(here.reader.settled())
    port.note("settled", tuple(bag.path for bag in BAGS if bag.end_ns <= here.horizon.reached), files)


def _latest(port: Port, *, clocks: Clocks) -> None:
    port.note("latest", delivered(node(port, *clocks).reader.latest()))


def _pack(port: Port, *, rack: Rack, clocks: Clocks) -> None:
    here = node(port, *clocks)
    port.note("packed", Packer(here.context, GRID, here.sealer).pack(rack).state.value)


def _bag_named(name: str) -> Bag:
    bag = GRID.parse_bag(RACK, name)
    assert bag is not None
    return bag


def _names(lock: LockFile) -> tuple[str, ...]:
    return tuple(entry.name for entry in lock.entries)


# -- actors ------------------------------------------------------------------------------------------------------------

type Clocks = tuple[Instant, ...]


def writer(
    name: str = "w",
    *,
    second: int = 0,
    files: int = 1,
    again: int = 0,
    resolve: bool = False,
    clocks: Clocks = (PAST,),
) -> Kind:
    """Write so many files, each of them again so many times, and resolve it."""
    body = partial(_write, name=name, second=second, files=files, again=again, resolve=resolve, clocks=clocks)
    return Kind(f"writer {name}", body)


def closer(name: str = "c", *, count: int = 1, bags: tuple[Bag, ...] = (BAG,), clocks: Clocks = (DUE,)) -> Kind:
    return Kind(f"closer {name}", partial(_close, bags=bags, clocks=clocks), count)


def sealer(name: str = "s", *, count: int = 1, rack: Rack = RACK, clocks: Clocks = (PAST,)) -> Kind:
    return Kind(f"sealer {name}", partial(_seal, rack=rack, clocks=clocks), count)


def settler(name: str = "r", *, count: int = 1, to: Instant = BAG.end_ns, clocks: Clocks = (DUE,)) -> Kind:
    return Kind(f"settler {name}", partial(_settle, to=to, clocks=clocks), count)


def latest(name: str = "l", *, clocks: Clocks = (DUE,)) -> Kind:
    return Kind(f"latest {name}", partial(_latest, clocks=clocks))


def packer(name: str = "p", *, count: int = 1, rack: Rack = RACK, clocks: Clocks = (PAST,)) -> Kind:
    return Kind(f"packer {name}", partial(_pack, rack=rack, clocks=clocks), count)


@dataclass(frozen=True, slots=True)
class BagCast:
    """Actors on one log, the mount between them, and what is asked of them."""

    actors: tuple[Kind, ...]
    mount: Mount = Mount()  # noqa: RUF009 - frozen
    faults: int = 0
    decided: bool = True
    """Nobody gives up: asked where nothing fails and nothing is remembered wrongly."""
    rack: bool = True
    """The rack's directory is there from the start."""
    reduced: bool = True
    before: tuple[Kind, ...] = ()
    """Who has come and gone, one after the other, before these actors begin."""

    def explorer(self, *, states_max: int = 3_000_000, breadth_first: bool = False) -> Explorer:
        decided = self.decided and not self.faults
        return Explorer(
            TreeWorld(left_by(empty_log(rack=self.rack), self.before), self.mount),
            self.actors,
            BagPromises(cache(read_afterwards), decided=decided),
            faults=self.faults,
            states_max=states_max,
            reduced=self.reduced,
            breadth_first=breadth_first,
        )
