"""Who takes part in an exploration of a ceiling chain. Clocks are arbitrary numbers: each reading is any of a few."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.formats.ceiling import CeilingKind, CeilingRecord, open_ceiling
from appliance.formats.framing import Kind as PieceKind
from appliance.formats.lease import Holder, Mode, Phase
from appliance.formats.shardmap import ShardMap
from appliance.formats.stamped import sign
from appliance.formats.witness import SignedWitness
from appliance.lease.ceiling import CeilingChain, Deposed, Extended, InDoubt, ShardIdentity
from appliance.lease.shard import Shard, StoppedOrderly
from appliance.lease.store import LeaseStore
from appliance.lease.wire import Acquire, Age, Granted, Relinquish
from appliance.registers import StoredChain
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


def _chain(port: Port, name: str, node: str, time: ExploredTime) -> tuple[CeilingChain, ShardIdentity]:
    identity = ShardIdentity(CLUSTER, 1, 0, node, name.encode().ljust(8, b"-"))
    return CeilingChain(StoredChain(ExploredStorage(port), CHAIN), time, WITNESS_KEY, POLICY, identity), identity


def _decided(step: Callable[[], Extension]) -> Extension:
    for _ in range(_TRIES):
        extension = step()
        if not isinstance(extension, InDoubt):
            break
    return extension


def _contend(port: Port, *, name: str, node: str, extends: int, orderly: bool, clocks: Clocks) -> None:
    chain, identity = _chain(port, name, node, ExploredTime(port, TIME_KEY, clocks))
    for step in (chain.begin, *(chain.extend for _ in range(extends))):
        extension = _decided(step)
        if chain.ceiling_ns:
            numbers = (chain.floor_ns, chain.settle_to_ns, chain.ceiling_ns, chain.number)
            port.note("reach", identity.incarnation, *numbers)
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
    port.note("reach", identity.incarnation, *numbers)
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


def _terminate(port: Port, *, name: str) -> None:
    """Link a terminal record, as whoever carries out a new map does, and look: a higher number means again."""
    chain = StoredChain(ExploredStorage(port), CHAIN)
    for _ in range(4):
        numbers = chain.list_afresh()
        number = numbers[-1] if numbers else 0
        ceiling = floor = settle_to = 0
        if number:
            data = chain.read(number)
            if data is None:
                continue
            before, _ = open_ceiling(data, "the newest record")
            if before.kind is CeilingKind.TERMINAL:
                return
            ceiling = floor = settle_to = before.ceiling_ns
            if before.kind is CeilingKind.ORDERLY:
                floor, settle_to = before.floor_ns, before.settle_to_ns
        record = CeilingRecord(
            cluster_id=CLUSTER,
            map_number=1,
            shard=0,
            number=number + 1,
            node="terminator",
            incarnation=name.encode().ljust(8, b"-"),
            kind=CeilingKind.TERMINAL,
            ceiling_ns=ceiling,
            floor_ns=floor,
            settle_to_ns=settle_to,
            time=bytes(128),
        )
        if chain.link(number + 1, sign(PieceKind.CEILING, record, WITNESS_KEY)):
            after = chain.list_afresh()
            if after and after[-1] == number + 1:
                port.note("terminated")
                return


# -- actors ------------------------------------------------------------------------------------------------------------


def contender(
    name: str, *, node: str = "", extends: int = 1, orderly: bool = False, clocks: Clocks = (EARLY, LATE)
) -> Kind:
    body = partial(_contend, name=name, node=node or name, extends=extends, orderly=orderly, clocks=clocks)
    return Kind(f"contender {name}", body)


def shard(name: str, *, node: str = "", orderly: bool = True, clocks: Clocks = (EARLY, LATE)) -> Kind:
    return Kind(f"shard {name}", partial(_serve, name=name, node=node or name, orderly=orderly, clocks=clocks))


def terminator(name: str = "t") -> Kind:
    return Kind(f"terminator {name}", partial(_terminate, name=name))


@dataclass(frozen=True, slots=True)
class ChainCast:
    """Contenders for one chain, and the mount between them."""

    actors: tuple[Kind, ...]
    mount: Mount = Mount()  # noqa: RUF009 - frozen
    faults: int = 0
    records_kept: int = 64
    """How many of the newest records are never pruned: production's number, or a small one, so that it prunes here."""
    reduced: bool = True

    def explorer(self, *, states_max: int = 3_000_000, breadth_first: bool = False) -> Explorer:
        return Explorer(
            TreeWorld(Tree(frozenset(), frozenset({""})).with_directory(CHAIN).with_directory("tmp"), self.mount),
            self.actors,
            ChainPromises(pruned=self.records_kept < 64),
            faults=self.faults,
            states_max=states_max,
            reduced=self.reduced,
            breadth_first=breadth_first,
        )
