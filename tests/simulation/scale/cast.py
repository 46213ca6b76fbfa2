"""A cluster of any size under the simulator's clock: what all its nodes together ask of the mount.

Everything that touches the mount is the production code: the pace of all logs, the watches of the records, the look of
a daemon at its shards' chains, the shards with their ceilings and ledgers, the writers, the order of heirs and how a
shard begins anew. It runs in events instead of actors: an event takes no time, so nothing waits for anything.

Put together, and not the production code: who calls it when (daemon, server loop and ledger spool are threads; their
periods are imported). Clients are aggregated by node: the sessions of a shard are renewed one by one in the real shard
(``whole``), or one of them is, and for each of the others a block as large goes to the ledger. Of a node's client
processes one looks for new records, and counts for all.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from appliance.bag.closing import Authority
from appliance.bag.horizon import Horizon
from appliance.bag.logs import create_log, open_log
from appliance.bag.ports import BagContext, Published
from appliance.bag.writing import Committed, FrameFile, writer_for
from appliance.daemon import daemon, failover
from appliance.daemon.pace import Pace
from appliance.formats.lease import Holder, Mode, Phase
from appliance.formats.paths import LOGS, DataName, Grid, chain_path
from appliance.formats.witness import SessionWitness, SignedWitness
from appliance.lease import sockets
from appliance.lease.ceiling import CeilingChain, Extended, ShardIdentity, newest_record
from appliance.lease.shard import Shard
from appliance.lease.wire import Acquire, Age, BeginSession, Granted, RenewSession, SessionGranted
from appliance.lease.witness_ledger import GATHER_S
from appliance.node import record_watch
from appliance.node.record_watch import MapWatch, PolicyWatch, TrustWatch
from appliance.node.records import StoredChain, StoredLedger
from tests.simulation.cluster import LOGS as FOUNDED_LOGS
from tests.simulation.cluster import names
from tests.simulation.store import MemoryStore
from tests.simulation.world import Conditions, World, silence
from tests.support.storage import WrappedStorage
from timeagent.canonical import decode
from timeagent.keys import Purpose
from timeagent.units import DAY, MINUTE, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from appliance.lease.wire import Reply, Request
    from tests.simulation.clocks import SimulatedTime
    from tests.simulation.machine import ProcessTime
    from timeagent.units import Instant, Span

KINDS: Final = {
    "trust": "records", "policy": "records", "map": "records", "shards": "chains", "tmp": "chains", "ledger": "ledgers",
    "logs": "logs",
}  # fmt: skip
"""By the first level of a path; the directory ``logs`` itself is "names"."""
WATCH_NS: Final = record_watch.LOOK_NS + record_watch._LOOK_AGAIN_NS
WARM_NS: Final = 6 * MINUTE
"""From the start of a rack on. In the ten minutes after that one whole rack is written, and one sealed and packed."""
LAG_SAMPLES: Final = 50
FRAME: Final = bytes(400)
"""What a writer flushes: nobody reads it."""


@dataclass(frozen=True, slots=True)
class Load:
    """How large a cluster is, and what it does."""

    nodes: int
    shards: int = 0
    """One for each node unless said otherwise."""
    idle_logs: int = 0
    used_logs: int = 0
    writers: int = 0
    """So many nodes flush once a second, each to one of the used logs."""
    clients: int = 0
    """Processes, each with the records that it watches and one session lease with one shard."""

    @property
    def shards_there(self) -> int:
        return self.shards or self.nodes

    @property
    def logs(self) -> int:
        """All of them, with the two of every simulated tree."""
        return self.idle_logs + self.used_logs + len(FOUNDED_LOGS)


def kind_of(path: str) -> str:
    """Return what a call of a verb is counted as."""
    first = path.partition("/")[0]
    return "names" if path == LOGS else KINDS.get(first, "other")


class Port(WrappedStorage):
    """A way to the mount that counts calls of verbs, and bytes written. Of ledgers only sizes are kept."""

    def __init__(self, cast: Cast, node: str, weight: int = 1) -> None:
        super().__init__(cast.world.mounts[node])
        self._cast = cast
        self._weight = weight
        self._sizes: dict[str, int] = {}

    def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:
        del verb
        self._cast.calls[kind_of(path)] += self._weight
        return call()

    def publish(self, path: str, data: bytes, tmp: str) -> Published:
        self._cast.bytes[kind_of(path)] += len(data)
        return super().publish(path, data, tmp)

    def append(self, path: str, data: bytes, expected_size: int) -> int:
        kind = kind_of(path)
        self._cast.bytes[kind] += len(data)
        if kind != "ledgers":
            return super().append(path, data, expected_size)
        self._cast.calls[kind] += self._weight
        assert self._sizes.get(path, 0) == expected_size
        self._sizes[path] = expected_size + len(data)
        return self._sizes[path]


class Spool:
    """In the place of LedgerSpool: the first block goes on at once, what comes within GATHER_S after it together."""

    def __init__(self, cast: Cast, ledger: StoredLedger) -> None:
        self._scheduler = cast.world.scheduler
        self._ledger = ledger
        self._blocks: list[bytes] = []
        self._free_ns: Instant = 0
        self._awaited = False
        self.last = b""

    def append(self, data: bytes) -> None:
        self.last = data
        self._blocks.append(data)
        if not self._awaited:
            self._awaited = True
            self._scheduler.call_at(max(self._scheduler.now, self._free_ns), self._drain)

    def _drain(self) -> None:
        self._awaited = False
        self._free_ns = self._scheduler.now + int(GATHER_S * SECOND)
        blocks, self._blocks = self._blocks, []
        self._ledger.append(b"".join(blocks))


class Running:
    """One incarnation of one shard on a node, and its clients."""

    def __init__(self, cast: Cast, node: Node, shard: int) -> None:
        world, policy = cast.world, cast.policy
        self._cast = cast
        self._node = node
        self._number = shard
        self._chance = world.scheduler.stream(f"shard {shard} {world.number()}")
        identity = ShardIdentity(world.founded.map.cluster_id, 1, shard, node.name, self._chance.randbytes(8))
        signer = world.keys[node.name][Purpose.WITNESS]
        self._stored = StoredChain(node.port, chain_path(1, shard))
        self._chain = CeilingChain(self._stored, node.time, signer, policy, identity)
        self._spool = Spool(cast, StoredLedger(node.port, 1, shard, identity.incarnation))
        self._shard = Shard(
            identity, world.founded.map, policy, store=MemoryStore(), chain=self._chain, time=node.time,
            signer=signer, ledger=self._spool, randomness=self._chance,
        )  # fmt: skip
        assert isinstance(self._shard.start(), Extended)
        node.every(sockets.TICK_NS, self._shard.housekeeping)
        node.every(failover.CHECK_NS, lambda: newest_record(self._stored))
        self._renewal = b""
        """What a renewal handed to the ledger, for those that only look like one."""
        share, rest = divmod(cast.load.clients, cast.load.shards_there)
        sessions = share + (shard < rest)
        for number in range(sessions):
            if number == 0 or cast.whole:
                self._begin_session()
            else:
                node.every(policy.renew_period_ns, lambda: self._spool.append(self._renewal))

    @property
    def ceiling_ns(self) -> Instant:
        return self._chain.ceiling_ns

    def _is_mine(self, domain: str) -> bool:
        return self._cast.world.map.shard_of(domain) == self._number

    def _begin_session(self) -> None:
        node, policy, chance = self._node, self._cast.policy, self._chance
        holder = Holder(node=node.name, process=1, boot=bytes(16), incarnation=chance.randbytes(8), purpose="simulated")
        term = policy.lease_term_max_ns

        def ask(make: Callable[[bytes, Instant], Request]) -> Reply:
            (reply,) = self._shard.turn([make(chance.randbytes(16), node.time.now().latest + term)])
            return reply

        begun = ask(
            lambda identity, until: BeginSession(
                request_id=identity, map_number=1, holder=holder, term_ns=term, expiry_ns_max=until
            )
        )
        assert isinstance(begun, SessionGranted), begun
        witness = decode(SignedWitness, begun.signed).statement()
        assert isinstance(witness, SessionWitness)
        session_id = witness.session_id
        name = next(name for name in iter(lambda: chance.randbytes(8).hex(), "") if self._is_mine(name))
        age = Age(first_try_ns=node.time.now().latest, request_id=bytes(16))
        lease = ask(
            lambda identity, until: Acquire(
                request_id=identity, map_number=1, domain=name, mode=Mode.X, phase=Phase.HELD, holder=holder, age=age,
                term_ns=term, expiry_ns_max=until, session_id=session_id,
            )
        )  # fmt: skip
        assert isinstance(lease, Granted), lease

        def renew() -> None:
            reply = ask(
                lambda identity, until: RenewSession(
                    request_id=identity, map_number=1, session_id=session_id, term_ns=term, expiry_ns_max=until
                )
            )
            assert isinstance(reply, SessionGranted), reply
            self._renewal = self._spool.last

        node.every(policy.renew_period_ns, renew)


class Node:
    """One machine: its daemon, one of its client processes, and what they write."""

    def __init__(self, cast: Cast, name: str) -> None:
        self.cast = cast
        self.name = name
        self.dead = False
        self.time: SimulatedTime | ProcessTime = cast.world.times[name].of_process()
        self.port = Port(cast, name)
        self.running: dict[int, Running] = {}
        self._chance = cast.world.scheduler.stream(f"node {name}")

    def begin(self, number: int) -> None:
        """Begin all that goes on by itself. ``number``: which of the nodes it is."""
        cast, world = self.cast, self.cast.world
        records = world.founded.registers(self.port)
        machine = world.machines[self.name]
        context = BagContext(self.port, self.time, records, self.name, wake=machine.woken.wake)
        self.pace = Pace(context, machine.woken.taken, keep_ns=7 * DAY)
        self.every(daemon.BEAT_NS, self.pace.beat)
        for watch in (TrustWatch(records, self.time), PolicyWatch(records), MapWatch(records, world.founded.map)):
            self.every(WATCH_NS, watch.refresh)
        share, rest = divmod(cast.load.clients, cast.load.nodes)
        if processes := share + (number < rest):
            seen = world.founded.registers(Port(cast, self.name, processes))
            for watch in (TrustWatch(seen, self.time), PolicyWatch(seen)):
                self.every(WATCH_NS, watch.refresh)
        if number < cast.load.writers:
            self._begin_writer(context, f"used{number % cast.load.used_logs}")

    def _begin_writer(self, context: BagContext, log: str) -> None:
        birth = open_log(context, log)
        assert birth is not None
        grid, incarnation = Grid(birth), self._chance.randbytes(8)
        writer, sequence = writer_for(context, grid, Authority(context, grid)), 0

        def flush() -> None:
            nonlocal sequence
            sequence += 1
            name = DataName(self.name, incarnation, sequence)
            assert isinstance(writer.write(FrameFile(grid.bag(self.time.now().latest), name, FRAME)), Committed)

        self.every(SECOND, flush)

    def every(self, period: Span, what: Callable[[], object]) -> None:
        """Have something done again and again, from some instant of its first period on, as long as the node lives."""
        scheduler = self.cast.world.scheduler

        def again() -> None:
            if not self.dead:
                what()
                scheduler.call_at(scheduler.now + period, again)

        scheduler.call_at(scheduler.now + int(self._chance.random() * period), again)


@dataclass(slots=True)
class Recovery:
    """A shard whose node died, and began anew elsewhere."""

    shard: int
    died_ns: Instant
    begun_ns: Instant


class Cast:
    """All nodes with all logs, at one time; counts what the mount is asked once all have taken up everything."""

    def __init__(self, load: Load, lasts_ns: Span, *, seed: int = 0, whole: bool = True, deaths: int = 0) -> None:
        """``deaths``: so many nodes die, spread over the time that is counted."""
        self.load = load
        self.whole = whole
        self.calls = Counter[str]()
        self.bytes = Counter[str]()
        self.recoveries: list[Recovery] = []
        self.lags: list[Span] = []
        """How far behind the clock the horizons of used logs were, asked now and then."""
        self._lasts_ns = lasts_ns
        conditions = Conditions(
            short=False, untuned=True, nodes=names(load.nodes), shards=load.shards_there,
            lasts_ns=WARM_NS + lasts_ns, steps_max=2**62, starts_ns=0,
        )  # fmt: skip
        self.world = World(seed, conditions)
        self.policy = self.world.policy
        world = self.world
        self.nodes = {name: Node(self, name) for name in conditions.nodes}
        first = BagContext(world.mounts["n1"], self.nodes["n1"].time, world.founded.registers(world.mounts["n1"]), "n1")
        for log in [*(f"idle{n}" for n in range(load.idle_logs)), *(f"used{n}" for n in range(load.used_logs))]:
            create_log(first, log)
        self._first = first
        for number, node in enumerate(self.nodes.values()):
            node.begin(number)
        for shard in world.map.shards:
            self._run(shard, self.nodes[world.map.owner_of(shard) or ""])
        scheduler = world.scheduler
        begins = scheduler.start_ns + WARM_NS
        scheduler.call_at(begins, self._forget)
        chance = scheduler.stream("deaths")
        for number, name in enumerate(chance.sample(conditions.nodes, deaths)):
            at = begins + int((number + chance.random()) * lasts_ns / (deaths + 1))
            scheduler.call_at(at, lambda name=name: self._kill(name))  # type: ignore[misc]
        for used in range(load.used_logs):
            horizon = self._horizon(f"used{used}")
            for sample in range(LAG_SAMPLES):
                at = begins + int((sample + chance.random()) * lasts_ns / LAG_SAMPLES)
                scheduler.call_at(at, lambda horizon=horizon: self.lags.append(scheduler.now - horizon.refresh()))  # type: ignore[misc]

    def run(self) -> Cast:
        """Let the time go by."""
        with silence():
            self.world.scheduler.run()
        return self

    @property
    def rates(self) -> dict[str, float]:
        """Calls of verbs a second, by kind, of all nodes together."""
        return {kind: count * SECOND / self._lasts_ns for kind, count in sorted(self.calls.items())}

    def _run(self, shard: int, node: Node) -> None:
        node.running[shard] = Running(self, node, shard)

    def _forget(self) -> None:
        self.calls.clear()
        self.bytes.clear()

    def _horizon(self, log: str) -> Horizon:
        """Return a horizon of somebody who asks without being counted, and wakes nobody."""
        birth = open_log(self._first, log)
        assert birth is not None
        return Horizon(self._first, Grid(birth))

    # -- deaths --------------------------------------------------------------------------------------------------------

    def _kill(self, name: str) -> None:
        node = self.nodes[name]
        node.dead = True
        for shard, running in node.running.items():
            self._look_after(shard, running.ceiling_ns, self.world.scheduler.now)

    def _look_after(self, shard: int, ceiling_ns: Instant, died_ns: Instant) -> None:
        """Have the heir begin when it may: a turn of its failover after the ceiling, if each before it was probed."""
        world, scheduler = self.world, self.world.scheduler
        order = world.map.heirs(shard, list(self.nodes))
        heir = next(self.nodes[name] for name in order if not self.nodes[name].dead)
        if not heir.time.now().surely_past(ceiling_ns):
            at = scheduler.now + failover.BEAT_NS
            scheduler.call_at(at, lambda: self._look_after(shard, ceiling_ns, died_ns))
            return
        probes = order.index(heir.name) * self.policy.attempt_timeout_ns

        def begin() -> None:
            if heir.dead:
                self._look_after(shard, ceiling_ns, died_ns)
                return
            self._run(shard, heir)
            self.recoveries.append(Recovery(shard, died_ns, scheduler.now))

        scheduler.call_at(scheduler.now + probes, begin)
