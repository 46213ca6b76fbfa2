"""A log that several make at once, with different clocks and under different policies: it has one birth."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import msgspec

from appliance.bag import logs
from appliance.bag.ports import BagContext
from tests.simulation.exhaustive.nodes import TIME_KEY
from tests.simulation.exhaustive.tree import ExploredStorage, ExploredTime, Mount, Tree, TreeWorld
from tests.support.bags import POLICY, T0, FixedRecords
from tests.support.explorer import Explorer, Kind
from timeagent.units import SECOND

if TYPE_CHECKING:
    from appliance.formats.birth import LogBirth
    from tests.support.explorer import Notes, Port

ONE_BIRTH = "everybody is told the one birth"
BIRTH_STAYS = "a birth is for ever"

_LOG = "events"
_PATH = f"logs/{_LOG}/log"
_HEAD, _CHECKSUM = 12, 16


@cache
def _born(data: bytes) -> tuple[Any, ...]:
    record = msgspec.msgpack.decode(msgspec.msgpack.decode(data[_HEAD:-_CHECKSUM])[0])
    return tuple(record[3:7])


class BirthPromises:
    def in_step(self, before: Tree, after: Tree) -> list[str]:
        born = before.read(_PATH)
        return [BIRTH_STAYS] if born is not None and after.read(_PATH) != born else []

    def in_state(self, tree: Tree, notes: list[Notes]) -> list[str]:
        data = tree.read(_PATH)
        born = None if data is None else _born(data)
        return [
            ONE_BIRTH
            for each in notes
            for note in each
            if note[0] == "broke" or (note[0] == "born" and note[1:] != (born or ()))
        ]

    def at_end(self, _tree: Tree, _notes: list[Notes]) -> list[str]:
        return []


def _note(port: Port, birth: LogBirth) -> None:
    port.note("born", birth.created_ns, birth.span_ns, birth.grace_ns, birth.rack_ns)


def _context(port: Port, number: int) -> BagContext:
    policy = msgspec.structs.replace(POLICY, span_ns=number * SECOND)
    time = ExploredTime(port, TIME_KEY, (T0 + number * 60 * SECOND,))
    return BagContext(ExploredStorage(port), time, FixedRecords(policies={1: policy}), f"n{number}")


def _create(port: Port, *, number: int) -> None:
    _note(port, logs.create_log(_context(port, number), _LOG))


def _open(port: Port) -> None:
    context = _context(port, 1)
    for _ in range(2):
        birth = logs.open_log(context, _LOG)
        if birth is not None:
            _note(port, birth)


def creator(number: int) -> Kind:
    return Kind(f"creator {number}", partial(_create, number=number))


def opener() -> Kind:
    return Kind("opener", _open)


@dataclass(frozen=True, slots=True)
class BirthCast:
    """Who makes and who opens the log."""

    actors: tuple[Kind, ...]
    mount: Mount = Mount(pieces=True, absences=True)  # noqa: RUF009 - frozen
    faults: int = 0
    reduced: bool = True

    def explorer(self, *, states_max: int = 3_000_000, breadth_first: bool = False) -> Explorer:
        return Explorer(
            TreeWorld(Tree(frozenset(), frozenset({""})).with_directory("logs"), self.mount),
            self.actors,
            BirthPromises(),
            faults=self.faults,
            states_max=states_max,
            reduced=self.reduced,
            breadth_first=breadth_first,
        )
