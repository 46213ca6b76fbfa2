"""A node's daemon as far as it runs shards: the production ShardFailover and ShardHost over simulated ports.

Real: which shards a node runs, and when it takes one over, hands one over, or drops it (``appliance.daemon.failover``);
how a run of a shard begins and ends, who waits for whom by the chain, and what ends the chains of earlier maps
(``appliance.node.shards``, whole but for its server's socket); the routes (street.py). Simulated: threads, which are
actors, that of a chain in half of all processes, while the others link in the shard's own turn; the lock and the
database on tmpfs; the queue of the ledger; and the server's loop, which answers what the door lets in.
"""

from __future__ import annotations

from contextlib import suppress
from threading import Lock
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import apsw

from appliance.daemon.failover import ShardFailover
from appliance.formats.shardmap import shard_text
from appliance.lease.ceiling import StoppedOrderly
from appliance.lease.turn_log import LogLost
from appliance.lease.whole_shard import Suspension
from appliance.node.hosted_shard import ShardRuntime
from appliance.node.own_keys import OwnKeys
from appliance.node.record_watch import LOOK_NS
from appliance.node.shards import ShardHost
from tests.simulation.actors.processes import Kit
from tests.simulation.actors.shard import APART, ApartChain, Callers, Spool, take_turn
from tests.simulation.actors.street import Door, Maps, Routes, stand_at
from tests.simulation.history import LeftState, Started, Tenant
from tests.simulation.keyvalues import Reached
from tests.simulation.lock import SimulatedLock
from tests.simulation.network import Endpoint, refuse
from tests.simulation.scheduler import NEVER
from tests.simulation.store import MemoryStore
from timeagent.canonical import decode
from timeagent.keys import KeyInUse, Purpose
from timeagent.notify import Notifier, Pulse
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from appliance.formats.shardmap import ShardMap
    from appliance.lease.domain import State
    from appliance.lease.shard import Shard
    from appliance.lease.store import LeaseStore
    from appliance.node.records import StoredLedger
    from tests.simulation.actors.street import Files, Street
    from tests.simulation.network import Call
    from tests.simulation.scheduler import Actor, Machine, Process
    from tests.simulation.world import World
    from timeagent.units import Instant, Span


class Going:
    """What goes on by itself, in an actor of the same process."""

    def __init__(self, world: World, process: Process, name: str, body: Callable[[], object]) -> None:
        self._scheduler = world.scheduler
        self._over = False
        self._waiting: list[Actor | None] = []
        self._body = body
        world.scheduler.spawn(f"{process.name} {name}", process, self._run)

    def _run(self) -> None:
        try:
            self._body()
        finally:
            self._over = True
            for actor in self._waiting:
                self._scheduler.wake(actor)

    def is_alive(self) -> bool:
        return not self._over

    def join(self, timeout: float | None = None) -> None:
        until = NEVER if timeout is None else self._scheduler.now + int(timeout * SECOND)
        self._waiting.append(self._scheduler.current)
        while not self._over and self._scheduler.now < until:
            self._scheduler.wait(until, "its end")


class TmpfsLock:
    """The lock of one shard on one machine; whoever has died has it no more. A cloned machine has its own."""

    def __init__(self, street: Street, process: Process, shard: int) -> None:
        self._locks = street.locks
        self._process = process
        self._key = process.machine, shard

    def try_acquire(self) -> bool:
        holder = self._locks.get(self._key)
        if holder is not None and not holder.dead:
            return False
        self._locks[self._key] = self._process
        return True

    def release(self) -> None:
        if self._locks.get(self._key) is self._process:
            del self._locks[self._key]


class Store(MemoryStore):
    """A file on a machine's tmpfs, where it stays when its process dies, or stops for a restart.

    Given back once, by whoever is last to use it; one that a death left half-way is thrown away.
    """

    name = ""
    """What tells the file from a copy."""
    files: Files
    at: tuple[Machine, int]
    _over = False

    @classmethod
    def begun(cls, files: Files, at: tuple[Machine, int], name: str) -> Store:
        store = cls()
        store.name, store.files, store.at = name, files, at
        files[at] = store._connection, name
        return store

    @classmethod
    def gone_on_with(cls, files: Files, at: tuple[Machine, int]) -> tuple[Store, bytes] | None:
        if at not in files:
            return None
        connection, name = files[at]
        found = cls._resumed(cast("Path", None), connection, name)
        if found is None:
            del files[at]
            return None
        store, said = found
        store.name, store.files, store.at = name, files, at
        return store, said

    def leave(self, said: bytes) -> bool:
        self.name += "'"  # what is left this time is told from what was left before
        self.files[self.at] = self._connection, self.name
        self._over = super().leave(said)
        return self._over

    def _file(self) -> str:
        return self.name

    def state(self) -> dict[str, State]:
        """Return all that is remembered of domains."""
        names = {*self.states, *(row[0] for row in self._connection.execute("SELECT domain FROM entry"))}
        return {name: state for name in names if (state := self.read(name)) is not None}

    def close(self) -> None:
        with suppress(apsw.ConnectionClosedError):  # by who found it taken: a file is one connection here
            if not self._over and not self._connection.in_transaction:
                self._over = True
                if self.files.get(self.at, (None, ""))[0] is self._connection:
                    del self.files[self.at]
                super().close()


class Queue(Spool):
    """The ledger's queue, as the host calls it."""

    run = Spool.drain

    @property
    def drained(self) -> bool:
        return not (self.lost_last or self._blocks)


class Parts(ShardRuntime):
    """A simulated machine's."""

    chain_apart = False
    """A chain's first record is linked in the turn that begins its run; it is set apart then."""

    def __init__(self, street: Street, process: Process) -> None:
        self._street = street
        self._world = street.world
        self._process = process

    def spawn(self, name: str, body: Callable[[], object]) -> Any:  # noqa: ANN401 - as the others, no thread's
        return Going(self._world, self._process, name, body)

    def mutex(self) -> Any:  # noqa: ANN401
        return SimulatedLock(self._world.scheduler)

    def lock(self, shard: int) -> Any:  # noqa: ANN401
        return TmpfsLock(self._street, self._process, shard)

    def daemon_runs(self) -> bool:
        return self._process.machine.name in self._street.doors

    def boot(self) -> str:
        return self._street.boots.get(self._process.machine, "boot 1")

    def left(self) -> list[int]:
        return sorted(shard for machine, shard in self._street.files if machine is self._process.machine)

    def store(self, shard: int) -> Store:
        return Store.begun(self._street.files, (self._process.machine, shard), f"file {self._world.number()}")

    def taken_over(self, shard: int) -> tuple[LeaseStore, bytes] | None:
        found = Store.gone_on_with(self._street.files, (self._process.machine, shard))
        if found is not None:
            self._world.history.taken.append((self._process.machine, found[0].name))
            self._world.scheduler.note("takes over", found[0].name)
        return found

    def key_values(self, settings: object, patience_ns: Span) -> Reached | None:
        del settings, patience_ns
        return None if self._street.kept is None else Reached(self._street.kept)

    def spool(self, ledger: StoredLedger) -> Any:  # noqa: ANN401
        return Queue(self._world, ledger)


class Counter:
    """In the place of a ShardServer: answers what comes over the counter, turn by turn."""

    def __init__(self, world: World, process: Process, shard: Shard, guard: SimulatedLock, store: Store) -> None:
        self._world = world
        self._shard = shard
        self._guard = guard
        self._store = store
        self._over = self._at_once = False
        self.place = Endpoint(process.machine)
        self.callers = Callers(world)

    def take(self, call: Call) -> None:
        """Let a call in. Takes no time."""
        self.place.inbox.append(call)
        self._world.scheduler.wake(self.place.server)

    def stop(self, *, at_once: bool = False) -> None:
        self._over, self._at_once = True, at_once
        self._world.scheduler.wake(self.place.server)

    def run(self) -> None:
        world, shard, place = self._world, self._shard, self.place
        scheduler = world.scheduler
        place.server = scheduler.current
        pause = world.policy.ceiling_period_ns // 2
        kept_at = scheduler.now
        try:
            while not self._over:
                if not place.inbox:
                    due = shard.due_in()
                    scheduler.wait(scheduler.now + (pause if due is None else min(pause, due)), "requests")
                with self._guard:
                    take_turn(world, shard, place, self.callers)
                    if scheduler.now - kept_at >= pause:
                        kept_at = scheduler.now
                        shard.housekeeping()
                        if gone := self.callers.gone():
                            shard.serve(gone)
            for call in () if self._at_once else place.inbox:
                refuse(world.network, place, call, "not-running")
        except LogLost:
            self._at_once = True  # nobody is answered, and its host ends the rest
            raise
        finally:
            if not self._at_once:
                self._store.close()


class NodeHost(ShardHost):
    """The production host of a daemon, or of an application, with a note of what begins and ends."""

    def __init__(self, street: Street, kit: Kit) -> None:
        self._world = street.world
        self._street = street
        self._process = kit.process
        self._considered: dict[int, int] = {}
        self._going_on = False
        self._apart = street.world.scheduler.stream(f"{kit.process.name} apart").random() < APART
        settings: Any = _Settings(kit.context.node)
        trust: Any = SimpleNamespace(members=lambda: list(street.nodes))
        nothing: Any = None
        super().__init__(
            kit.storage,
            kit.records,
            settings,
            _Keys(street, kit.context.node),
            kit.time,
            kit.policy,
            nothing,
            kit.chance,
            trust,
            Parts(street, kit.process),
        )

    def try_host(self, shard: int, shard_map: ShardMap) -> bool:
        self._considered[shard] = self._world.scheduler.now
        return super().try_host(shard, shard_map)

    def _server(self, running: Shard, shard: int, guard: Any) -> Any:  # noqa: ANN401 - no socket, no thread's lock
        world, identity = self._world, running._identity
        now = world.scheduler.now
        if self._apart:
            chain: Any = running._chain
            chain.__class__ = ApartChain
            chain.begin_apart(world.scheduler, self._process)
        store: Any = running._store
        running._eviction.domains_max = world.domains_max
        resumed = self._going_on
        world.history.starts.append(Started(shard, identity.incarnation, now, store.domains, store.leases, resumed))
        if resumed and running._log is None:  # what is kept turn by turn is left by nobody
            world.history.resumed.append(self._left_state(running, store, running._batch_signer.signed_ns))
        world.history.tenants.append(
            Tenant(
                shard,
                identity.node,
                identity.incarnation,
                self._considered.get(shard, now),
                now,
                application=self._pulse is None,
            )
        )
        world.scheduler.note("BEGINS", f"shard {shard_text(shard)}")
        counter = Counter(world, self._process, running, guard, store)
        if self._pulse is None:
            self._street.sockets[identity.node, shard] = counter.place
            self._process.on_death.append(lambda: setattr(counter.place, "open", False))
        return counter

    def _resumed(self, *left: Any) -> Any:  # noqa: ANN401 - as the host's
        self._going_on = True
        try:
            return super()._resumed(*left)
        finally:
            self._going_on = False

    def _left_state(self, shard: Shard, store: Store, signed_ns: Instant) -> LeftState:
        identity, going = shard._identity, shard._going
        return LeftState(
            identity.number,
            identity.incarnation,
            store.name,
            self._process.machine,
            self._shard_runtime.boot(),
            self._world.scheduler.now,
            signed_ns,
            store.state(),
            dict(store.sessions),
            (going.number, going.half, going.alone_until_ns),
        )

    def close(self) -> None:
        """Stop for a restart, with a note of what is left."""
        history = self._world.history
        hosted = list(self.everything().values())
        told: dict[bytes, int] = {}
        for each in hosted:
            incarnation = each.identity.incarnation
            told[incarnation] = 0 if each.shard.is_of_no_map else each.store.leases
            history.stopping.add(incarnation)
            store: Any = each.store
            shard: Any = each.shard
            leave = store.leave

            def left(said: bytes, shard: Shard = shard, store: Any = store, leave: Any = leave) -> bool:  # noqa: ANN401
                done: bool = leave(said)
                if done:
                    signed_ns = decode(Suspension, said).signed_ns
                    history.suspended.append(self._left_state(shard, store, signed_ns))
                return done

            def end(shard: Any = shard, store: Any = store, stop: Any = shard.stop_orderly) -> Any:  # noqa: ANN401
                if not shard.is_of_no_map:  # its turn comes after those of others: leases may be given back until then
                    told[shard._identity.incarnation] = store.leases
                shard.stop_orderly = stop
                return stop()

            shard.stop_orderly = end
            store.leave = left
            self._told(each.identity.shard, "suspended")
        super().close()
        history.told += told.items()  # who died meanwhile, or saw the end of the run, has not stopped in order
        for each in hosted:
            ended = isinstance(each.shard._stopped, StoppedOrderly) or each.shard._chain.deposed is None
            if ended and not each._lost():  # whose log is lost could not say the end in its ledger
                history.stopping.discard(each.identity.incarnation)

    def leave(self, shard: int) -> None:
        hosted, stopping = self.hosted(shard), self._world.history.stopping
        if hosted is not None:
            stopping.add(hosted.identity.incarnation)  # it stays there where this process dies, or the run ends
        self._told(shard, "left")
        super().leave(shard)
        if hosted is not None and isinstance(hosted.shard._stopped, StoppedOrderly) and not hosted._lost():
            stopping.discard(hosted.identity.incarnation)

    def drop(self, shard: int) -> None:
        hosted = self.hosted(shard)
        self._told(shard, "lost its log" if hosted is not None and hosted._lost() else "dropped")
        super().drop(shard)

    def _told(self, shard: int, how: str) -> None:
        hosted = self.hosted(shard)
        if hosted is None:
            return
        history = self._world.history
        self._world.scheduler.note("ENDS", f"shard {shard}: {how}")
        for tenant in history.tenants:
            if tenant.incarnation == hosted.identity.incarnation and tenant.told_ns is None:
                tenant.told_ns, tenant.how = self._world.scheduler.now, how


class _Settings:
    """What the host asks of a node's settings."""

    def __init__(self, node: str) -> None:
        self.node = node


class _Keys(OwnKeys):
    """Its keys, as they are and as they come."""

    def __init__(self, street: Street, node: str) -> None:
        self.node = node
        self.keys = {}
        self._keyring = None
        self._lock = Lock()
        self.time, self.witness = (KeyInUse(street.world.keys[node][each]) for each in (Purpose.TIME, Purpose.WITNESS))
        street.keys_in_use += [(node, Purpose.TIME, self.time), (node, Purpose.WITNESS, self.witness)]


class Daemon:
    """One run of a node's daemon."""

    def __init__(self, street: Street, process: Process, look_ns: Span = LOOK_NS) -> None:
        """``look_ns``: how often it looks for a newer map."""
        self._street = street
        self._process = process
        self._look_ns = look_ns

    def run(self) -> None:
        """Open the door, and look at all shards again and again, until it dies or the run ends."""
        street, process = self._street, self._process
        world = street.world
        world.scheduler.interrupted.add(process)
        kit = Kit(world, process)
        maps = Maps(kit, self._look_ns)
        host = NodeHost(street, kit)
        host.be_daemon(Pulse(Notifier({}), kit.time.boot_ns))
        routes = Routes(street, kit, maps, host)
        node = kit.context.node
        failover = ShardFailover(
            routes,
            node,
            lambda: list(street.nodes),
            kit.time,
            kit.policy,
            lambda name, body: Going(world, process, name.removeprefix("tenure-"), body),
        )
        door = Door(node, host, failover.asked_for)
        world.scheduler.spawn(f"{process.name} door", process, lambda: stand_at(street, door, process))
        while process not in street.told:
            kit.time.sleep(failover.turn())
        host.close()
        street.stopped(process)
        world.scheduler.wait(NEVER, "the end of its process")
