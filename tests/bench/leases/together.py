"""What a session lease costs to renew and to drop, with few and with many leases under it: our shard in this process.

Processor time of a whole turn, signing and storing included, and of the holder that asks and judges the answer. There
is nothing to compare with: no peer has such a thing.
"""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

from appliance.lease.client import LeaseClient, Stands
from tests.support.cluster import HandTransport
from tests.support.sessions import drop, session_of, under
from tests.support.shards import HOLDER, TERM, World, one
from timeagent.units import MS

if TYPE_CHECKING:
    from pathlib import Path

FEW = 1_000
_TURN = 100
_RENEWALS = 60


def together(directory: Path, many: int) -> dict[str, float]:
    """Return microseconds of a renewal with 1000 and with many leases, of the drop, and round trips of a renewal."""
    world = World(directory)
    try:
        shard = world.started()
        session = session_of(shard, world)
        trips: list[int] = []
        transport = HandTransport()
        transport.shard, transport.before = shard, lambda requests: trips.append(len(requests))
        client = LeaseClient(transport, world.time, world.policy, HOLDER, world.chance)
        found: dict[str, float] = {}
        leases = 0
        for count in (FEW, many):
            while leases < count:
                asked = [under(world, session, f"tenant/{leases + n:08d}") for n in range(_TURN)]
                assert all(type(each).__name__ == "Granted" for each in shard.turn(asked))
                leases += _TURN
            spent = []
            trips.clear()
            for _ in range(_RENEWALS):
                world.time.advance(MS)
                began = time.process_time()
                renewed = client.renew_session(session.session_id, TERM)
                spent.append(time.process_time() - began)
                assert isinstance(renewed, Stands)
                assert renewed.leases == leases
            found["few" if count == FEW else "many"] = 1e6 * median(spent)
            found["round trips"] = sum(trips) / _RENEWALS
        began = time.process_time()
        one(shard, drop(world, session))
        found["drop"] = 1e6 * (time.process_time() - began)
        assert world.stores[0].leases == 0
    finally:
        world.close()
    return found
