"""Long after a run somebody seals what is left, reads every log from its beginning, and has to find what others did.

It works on a copy of the tree: what a run left behind is judged as it was left.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Final

from appliance.bag.horizon import Horizon
from appliance.bag.logs import open_log, racks_there
from appliance.bag.ports import BagContext
from appliance.bag.reader import Reader
from tests.simulation.clocks import SimulatedTime
from tests.simulation.cluster import LOGS, NODES, grid_of
from tests.simulation.history import SettledRead, key_of
from tests.simulation.mount import SimulatedMount
from tests.simulation.scheduler import Scheduler
from tests.simulation.server import Server
from timeagent.errors import Damaged, TenureError
from timeagent.keys import Purpose
from timeagent.units import DAY

if TYPE_CHECKING:
    from tests.simulation.world import World

WHO: Final = "who came long after"
NODE: Final = NODES[-1]
RACKS_MAX: Final = 16
"""Clocks that lie by hours leave as many racks behind, nearly all of them empty, and each has to be sealed."""


def read_afterwards(world: World) -> None:
    """Read each log that was written to, settled, and note it with what all others read. Takes no step of the run."""
    later = world.scheduler.now + DAY
    scheduler = Scheduler("afterwards", start_ns=later, end_ns=later, steps_max=0)
    server = Server(scheduler)
    server.copy_from(world.server)
    mount = SimulatedMount(server, WHO)
    time = SimulatedTime(scheduler, world.founded.keys[NODE][Purpose.TIME])
    context = BagContext(mount, time, world.founded.registers(mount), NODE)
    for log in LOGS:
        try:
            _read(world, context, log)
        except Damaged as problem:
            world.scheduler.damage.append(f"{WHO}: {problem}")
        except TenureError:
            continue  # what was given up is not read from its beginning
        except Exception:  # noqa: BLE001 - as of every actor
            world.scheduler.bugs.append(f"{WHO}: {traceback.format_exc()}")


def _read(world: World, context: BagContext, log: str) -> None:
    birth = open_log(context, log)
    assert birth is not None
    grid = grid_of(birth)
    last = next(racks_there(context.storage, grid), None)
    if last is None or last.start_ns - grid.first_ns > RACKS_MAX * birth.rack_ns:
        return
    horizon = Horizon(context, grid)
    horizon.authority.sealer.seal(last)
    reader = Reader(context, grid, horizon)
    until = horizon.refresh() - 1
    keys = tuple(key_of(each) for each in reader.settled(0, until))
    world.history.settled.append(SettledRead(WHO, context.time.now().midpoint, log, 0, until, keys))
