"""Who takes part in an exploration of a ceiling chain. Clocks are arbitrary numbers: each reading is any of a few."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.formats.lease import Holder, Mode, Phase
from appliance.formats.paths import chain_path
from appliance.formats.shardmap import ShardMap, shard_number
from appliance.formats.witness import SignedWitness
from appliance.lease.ceiling import (
    Beginning,
    CeilingChain,
    Deposed,
    Extended,
    InDoubt,
    ShardIdentity,
    StoppedOrderly,
    Succession,
)
from appliance.lease.shard import Shard
from appliance.lease.store import LeaseStore
from appliance.lease.wire import Acquire, Age, Granted, Relinquish
from appliance.node.records import StoredChain
from tests.simulation.exhaustive.chain_promises import CHAIN, ChainPromises
from tests.simulation.exhaustive.nodes import TIME_KEY, RememberingSigner
from tests.simulation.exhaustive.tree import ExploredStorage, ExploredTime, Mount, Tree, TreeWorld
from tests.support.bags import CLUSTER, POLICY
from tests.support.explorer import Explorer, Kind
from tests.support.shards import ListLedger
from timeagent.canonical import decode
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from appliance.lease.ceiling import Extension
    from tests.support.explorer import Port
    from timeagent.units import Instant

WITNESS_KEY = RememberingSigner(b"w" * 32)
EARLY, MIDDLE, LATE = (n * 100 * SECOND for n in (1, 2, 3))
"""Further apart than a ceiling lies ahead: a clock may be wrong by any amount."""

type Clocks = tuple[Instant, ...]

_TRIES = 2


def _maps(*shards: int) -> tuple[ShardMap, ...]:
    """Maps with so many shards, one after the other."""
    return tuple(ShardMap(number=n, cluster_id=CLUSTER, owners=("n",) * count) for n, count in enumerate(shards, 1))


def _chain(
    port: Port, name: str, node: str, time: ExploredTime, layouts: tuple[ShardMap, ...] = (), shard: int = 0
) -> tuple[CeilingChain, ShardIdentity]:
    number = len(layouts) or 1
    identity = ShardIdentity(CLUSTER, number, shard, node, name.encode().ljust(8, b"-"))
    stored = StoredChain(ExploredStorage(port), chain_path(number, shard))
    origin = partial(_succession(port, name, layouts).beginning, number) if number > 1 else None
    return CeilingChain(stored, time, WITNESS_KEY, POLICY, identity, origin), identity


def _decided(step: Callable[[], Extension]) -> Extension:
    for _ in range(_TRIES):
        extension = step()
        if not isinstance(extension, InDoubt):
            break
    return extension


def _contend(
    port: Port,
    *,
    name: str,
    node: str,
    extends: int,
    orderly: bool,
    clocks: Clocks,
    layouts: tuple[ShardMap, ...] = (),
    shard: int = 0,
) -> None:
    chain, identity = _chain(port, name, node, ExploredTime(port, TIME_KEY, clocks), layouts, shard)
    place = chain_path(identity.map_number, identity.shard)
    for step in (chain.begin, *(chain.extend for _ in range(extends))):
        extension = _decided(step)
        if chain.ceiling_ns:
            numbers = (chain.floor_ns, chain.settle_to_ns, chain.ceiling_ns, chain.number)
            port.note("reach", identity.incarnation, *numbers, place)
        if not isinstance(extension, Extended):
            return
    if orderly:
        # All that was granted is given back, and the last of it was written just below the highest expiry there was.
        wrote = max(chain.floor_ns, chain.ceiling_ns - 1 if port.ask("now", (0, 1)) else 0)
        port.note("given back", wrote)
        finished = _decided(lambda: chain.finish(wrote, chain.settle_to_ns))
        port.note("finished", type(finished).__name__)


def _serve(port: Port, *, name: str, node: str, orderly: bool, clocks: Clocks) -> None:
    """Live as a whole shard: begin, grant one lease, take it back, stop in good order."""
    time = ExploredTime(port, TIME_KEY, clocks[-1:])
    chain, identity = _chain(port, name, node, time)
    store = LeaseStore(Path(":memory:"))
    try:
        shard = Shard(
            identity,
            ShardMap(number=1, cluster_id=CLUSTER, owners=(node,)),
            POLICY,
            store=store,
            chain=chain,
            time=time,
            signer=WITNESS_KEY,
            ledger=ListLedger(),
            randomness=random.Random(name),
        )
        _live(port, shard, chain, identity, time, orderly=orderly, clocks=clocks)
    finally:
        store.close()


def _live(
    port: Port,
    shard: Shard,
    chain: CeilingChain,
    identity: ShardIdentity,
    time: ExploredTime,
    *,
    orderly: bool,
    clocks: Clocks,
) -> None:
    time.midpoint_ns = port.ask("now", clocks)
    if not isinstance(_decided(shard.start), Extended):
        return
    time.midpoint_ns = port.ask("now", clocks)
    request = Acquire(
        map_number=1,
        request_id=b"a" * 16,
        domain="d",
        mode=Mode.X,
        phase=Phase.HELD,
        holder=Holder(node=identity.node, process=1, boot=bytes(16), incarnation=bytes(8), purpose="p"),
        age=Age(first_try_ns=0, request_id=b"a" * 16),
        term_ns=POLICY.lease_term_max_ns,
        expiry_ns_max=2**62,
    )
    (reply,) = shard.turn([request])
    if not isinstance(reply, Granted):
        return
    witness = decode(SignedWitness, reply.signed).witness()
    numbers = (witness.floor_ns, witness.settle_to_ns, chain.ceiling_ns, chain.number)
    port.note("reach", identity.incarnation, *numbers, CHAIN)
    port.note("granted", witness.fence, witness.expiry_ns)
    if orderly:
        time.midpoint_ns = port.ask("now", clocks)  # until then the lease is out
        back = Relinquish(
            request_id=b"r" * 16,
            domain="d",
            correlation_id=witness.correlation_id,
            watermark_ns=None,
            watermark_time=None,
            messages=0,
            chain_head=None,
        )
        shard.turn([back])
        port.note("given back", 0)
        port.note("finished", type(_stopped(shard)).__name__)


def _stopped(shard: Shard) -> StoppedOrderly | object:
    for _ in range(_TRIES):
        stop = shard.stop_orderly()
        if isinstance(stop, StoppedOrderly | Deposed):
            break
    return stop


def _succession(port: Port, name: str, layouts: tuple[ShardMap, ...]) -> Succession:
    storage = ExploredStorage(port)
    return Succession(
        CLUSTER,
        lambda chain: [
            shard_number(chain - 1, place) for place in range(len(layouts[chain - 2].owners) if chain > 1 else 0)
        ],
        lambda number, shard: StoredChain(storage, chain_path(number, shard)),
        ExploredTime(port, TIME_KEY, (EARLY,)),
        WITNESS_KEY,
        "terminator",
        name.encode().ljust(8, b"-"),
    )


def _terminate(port: Port, *, name: str, layouts: tuple[ShardMap, ...]) -> None:
    """Carry out a new map, and do nothing under it."""
    succession = _succession(port, name, layouts)
    for _ in range(_TRIES):
        begins = succession.beginning(len(layouts))
        if isinstance(begins, Beginning):
            port.note("terminated", begins.floor_ns, begins.settle_to_ns)
            return


# -- actors ------------------------------------------------------------------------------------------------------------


def contender(
    name: str,
    *,
    node: str = "",
    extends: int = 1,
    orderly: bool = False,
    clocks: Clocks = (EARLY, LATE),
    maps: tuple[int, ...] = (),
    shard: int = 0,
) -> Kind:
    """``maps``: how many shards each map has, up to the one under which it runs."""
    body = partial(_contend, name=name, node=node or name, extends=extends, orderly=orderly, clocks=clocks)
    return Kind(f"contender {name}", partial(body, layouts=_maps(*maps), shard=shard))


def shard(name: str, *, node: str = "", orderly: bool = True, clocks: Clocks = (EARLY, LATE)) -> Kind:
    return Kind(f"shard {name}", partial(_serve, name=name, node=node or name, orderly=orderly, clocks=clocks))


def terminator(name: str = "t", *, maps: tuple[int, ...] = (1, 1)) -> Kind:
    return Kind(f"terminator {name}", partial(_terminate, name=name, layouts=_maps(*maps)))


@dataclass(frozen=True, slots=True)
class ChainCast:
    """Contenders for one chain, and the mount between them."""

    actors: tuple[Kind, ...]
    mount: Mount = Mount()  # noqa: RUF009 - frozen
    faults: int = 0
    records_kept: int = 64
    """How many of the newest records are never pruned: production's number, or a small one, so that it prunes here."""
    reduced: bool = True
    chains: tuple[str, ...] = (CHAIN,)
    """The directories that are there already."""

    def explorer(self, *, states_max: int = 3_000_000, breadth_first: bool = False) -> Explorer:
        tree = Tree(frozenset(), frozenset({""})).with_directory("tmp")
        for each in self.chains:
            tree = tree.with_directory(each)
        return Explorer(
            TreeWorld(tree, self.mount),
            self.actors,
            ChainPromises(pruned=self.records_kept < 64),
            faults=self.faults,
            states_max=states_max,
            reduced=self.reduced,
            breadth_first=breadth_first,
        )
