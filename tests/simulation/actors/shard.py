"""A node that runs a shard: one incarnation after another, each with an empty store, orderly stops in between.

What the shell of the daemon does with threads and sockets is done here by two actors: one takes what is in the inbox,
lets the production shard answer it in one turn and sends the replies; the other appends the ledger. Some extend their
ceilings in a third, as a daemon does.
"""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Self, cast

from appliance.formats.paths import chain_path
from appliance.lease.ceiling import CeilingChain, Deposed, Extended, ShardIdentity, StoppedOrderly
from appliance.lease.connection import TentativeLeaseReaper
from appliance.lease.shard import Shard
from appliance.lease.wire import decode_reply
from appliance.node.records import StoredChain, StoredLedger
from tests.simulation.actors.processes import Kit
from tests.simulation.history import Started
from tests.simulation.keyvalues import NEWEST
from tests.simulation.network import Endpoint, answer
from tests.simulation.scheduler import NEVER
from tests.simulation.store import MemoryStore
from timeagent.errors import BadTime, Environment, TenureError
from timeagent.keys import Purpose
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from threading import Thread

    from appliance.lease.ceiling import Listed
    from appliance.lease.connection import Connection
    from appliance.lease.wire import Encoded, Reply, Task
    from tests.simulation.network import Call, Network
    from tests.simulation.scheduler import Actor, Process, Scheduler
    from tests.simulation.world import World
    from timeagent.units import Instant

START_TRIES = 20
APART = 0.5
"""How many of them extend their ceilings in a thread of its own."""
SPOOL_MAX = 64


class Spool:
    """The ledger's blocks on their way to the mount."""

    def __init__(self, world: World, ledger: StoredLedger) -> None:
        self._world = world
        self._ledger = ledger
        self._blocks: list[bytes] = []
        self._closed = False
        self.lost_last = False
        """Whether the newest blocks did not reach the mount."""
        self.blocks_written = 0
        self._drain: Actor | None = None

    def append(self, data: bytes) -> None:
        self._world.scheduler.operations += 1
        blocks = self._world.history.blocks
        if data not in blocks[-NEWEST:]:
            blocks.append(data)
        if len(self._blocks) >= SPOOL_MAX:
            raise Environment("spool-full", "the ledger's queue is full")
        self._blocks.append(data)
        self._world.scheduler.wake(self._drain)

    def close(self) -> None:
        """Let the drain end when it has appended everything."""
        self._closed = True
        self._world.scheduler.wake(self._drain)

    def drain(self) -> None:
        """Append what is queued, until nothing more can come."""
        scheduler = self._world.scheduler
        self._drain = scheduler.current
        while not self._closed or self._blocks:
            if not self._blocks:
                scheduler.wait(NEVER, "blocks")
                continue
            scheduler.sleep(40 * MS)
            taken, self._blocks = self._blocks, []
            try:
                self._ledger.append(b"".join(taken))
                self.lost_last = False
                self.blocks_written += len(taken)
            except TenureError as problem:
                self.lost_last = True
                self._world.scheduler.refused(f"loses {len(taken)} ledger blocks:", problem)


class ApartChain(CeilingChain):
    """A chain whose extensions touch the mount in an actor of their own, in the place of a thread."""

    def begin_apart(self, scheduler: Scheduler, process: Process) -> Self:
        """Do jobs in actors of a process from now on."""
        self._scheduler, self._process, self._waits = scheduler, process, scheduler.current
        self.apart, self._thread, self._jobs = True, cast("Thread", self), cast("Any", self)
        return self

    def put(self, job: tuple[Future[Listed], Callable[[], Listed]] | None) -> None:
        """Begin a job: there is no other under way."""
        if job is not None:
            self._scheduler.spawn(f"{self._process.name} ceiling", self._process, partial(self._do, *job))

    def _do(self, job: Future[Listed], steps: Callable[[], Listed]) -> None:
        try:
            job.set_result(steps())
        except Exception as problem:  # noqa: BLE001 - it is raised where the extension was asked for
            job.set_exception(problem)
        self._scheduler.wake(self._waits)

    def _wait_for(self, job: Future[Listed]) -> None:
        until = self._scheduler.now + self._policy.attempt_timeout_ns // 4
        self._waits = self._scheduler.current
        while not job.done() and self._scheduler.now < until:
            self._scheduler.wait(until, "an extension")


class Owed:
    """A call some answers of which may be held back: it is answered when it has them all."""

    def __init__(self, network: Network, endpoint: Endpoint, call: Call) -> None:
        self.call = call
        self._network = network
        self._endpoint = endpoint
        self._replies: dict[int, Reply] = {}

    def fill(self, position: int, reply: Reply) -> None:
        self._replies[position] = reply
        if len(self._replies) == len(self.call.requests):
            answer(self._network, self._endpoint, self.call, [each for _, each in sorted(self._replies.items())])


class HeldBack:
    """The shard's waiter. Who has died, or waits no longer, has closed the connection, and that is noticed."""

    def __init__(self, owed: Owed, position: int) -> None:
        self._owed = owed
        self._position = position

    @property
    def gone(self) -> bool:
        caller = self._owed.call.caller
        return caller is None or caller.process.dead

    def answer(self, reply: Reply | Encoded) -> None:
        self._owed.fill(self._position, decode_reply(reply) if isinstance(reply, bytes) else reply)


class Callers:
    """Who calls a shard: a process has one connection, which ends with it, or when it has waited for too long."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._reaper = TentativeLeaseReaper()
        self._known: set[Process] = set()

    def heard(self, call: Call) -> None:
        process = call.process
        if process.dead:
            return
        if process not in self._known:
            self._known.add(process)
            process.on_death.append(lambda: self.left(process))
        self._reaper.heard(cast("Connection", process), call.requests)

    def left(self, process: Process) -> None:
        self._reaper.left(cast("Connection", process), self._world.scheduler.now)

    def gone(self) -> list[Task]:
        """Return what has to be withdrawn."""
        return self._reaper.gone(self._world.scheduler.now)


class ShardHost:
    """One process that runs incarnations of one shard until the run ends, or it dies."""

    def __init__(self, world: World, process: Process, shard: int, *, orderly: bool) -> None:
        self._world = world
        self._process = process
        self._number = shard
        self._orderly = orderly
        self._apart = world.scheduler.stream(f"{process.name} {world.number()} apart").random() < APART

    def run(self) -> None:
        kit = Kit(self._world, self._process)
        while True:
            lives: Instant = self._world.scheduler.end_ns
            if self._orderly and kit.chance.random() < 0.7:
                lives = self._world.scheduler.now + int((0.3 + 4 * kit.chance.random()) * SECOND)
            self._incarnation(kit, lives)
            kit.pause(100 * MS)

    def _incarnation(self, kit: Kit, lives_until: Instant) -> None:
        world, number, shard_map = self._world, self._number, self._world.founded.map
        node = kit.context.node
        identity = ShardIdentity(kit.records.cluster_id, shard_map.number, number, node, kit.chance.randbytes(8))
        signer = world.keys[node][Purpose.WITNESS]
        stored = StoredChain(kit.storage, chain_path(shard_map.number, number))
        chain = ApartChain(stored, kit.time, signer, kit.policy, identity)
        if self._apart:
            chain.begin_apart(world.scheduler, self._process)
        spool = Spool(world, StoredLedger(kit.storage, shard_map.number, number, identity.incarnation))
        with closing(MemoryStore()) as store:
            shard = Shard(
                identity, shard_map, kit.policy, store=store, chain=chain, time=kit.time, signer=signer, ledger=spool,
                randomness=kit.chance, hint_bytes_max=world.hint_bytes_max,
                domains_max=world.domains_max,
            )  # fmt: skip
            world.history.starts.append(
                Started(identity.number, identity.incarnation, world.scheduler.now, store.domains, store.leases)
            )
            world.scheduler.spawn(f"{self._process.name} ledger", self._process, spool.drain)
            if self._begins(kit, shard):
                self._takes_calls(shard, chain, identity, lives_until)
            spool.close()

    def _takes_calls(self, shard: Shard, chain: CeilingChain, identity: ShardIdentity, lives_until: Instant) -> None:
        network = self._world.network
        callers = Callers(self._world)
        endpoint = Endpoint(self._process.machine, server=self._world.scheduler.current, hung_up=callers.left)
        self._process.on_death.append(lambda: network.leave(identity.number, endpoint))
        network.serve(identity.number, endpoint)
        try:
            self._serve(shard, chain, endpoint, callers, identity, lives_until)
        finally:
            network.leave(identity.number, endpoint)

    def _begins(self, kit: Kit, shard: Shard) -> bool:
        for _ in range(START_TRIES):
            try:
                began = shard.start()
            except BadTime:
                kit.time.sleep(200 * MS)
                continue
            if isinstance(began, Extended):
                self._world.scheduler.note("begins", f"record {began.record.number} ceiling {began.record.ceiling_ns}")
                return True
            if isinstance(began, Deposed):
                return False
            kit.time.sleep(20 * MS)
        return False

    def _serve(
        self,
        shard: Shard,
        chain: CeilingChain,
        endpoint: Endpoint,
        callers: Callers,
        identity: ShardIdentity,
        lives_until: Instant,
    ) -> None:
        scheduler = self._world.scheduler
        pause = self._world.policy.ceiling_period_ns // 2
        kept_at = scheduler.now
        while chain.deposed is None:
            if not endpoint.inbox:
                due = shard.due_in()
                scheduler.wait(scheduler.now + (pause if due is None else min(pause, due)), "requests")
            take_turn(self._world, shard, endpoint, callers)
            if scheduler.now - kept_at >= pause:
                kept_at = scheduler.now
                shard.housekeeping()
                if gone := callers.gone():
                    scheduler.note("withdraws", f"what {len(gone)} holders without a connection had tentatively")
                    shard.serve(gone)
            if scheduler.now >= lives_until and self._stopped(shard, identity):
                return

    def _stopped(self, shard: Shard, identity: ShardIdentity) -> bool:
        stopping = self._world.history.stopping
        stopping.add(identity.incarnation)  # it stays there where this process dies, or the run ends, meanwhile
        try:
            result = shard.stop_orderly()
        except BadTime:
            return False
        if isinstance(result, StoppedOrderly):
            stopping.discard(identity.incarnation)
        self._world.scheduler.note("stops:", type(result).__name__)
        return isinstance(result, StoppedOrderly | Deposed)


def take_turn(world: World, shard: Shard, endpoint: Endpoint, callers: Callers) -> None:
    """Answer all that is ready in one turn, and those whose wait is over."""
    calls: list[Call] = endpoint.inbox[:]
    endpoint.inbox.clear()
    if not calls and shard.due_in() != 0:
        return
    for call in calls:
        callers.heard(call)
    requests = [request for call in calls for request in call.requests]
    owed = [Owed(world.network, endpoint, call) for call in calls]
    places = [(each, n) for each in owed for n in range(len(each.call.requests))]
    waiters = {n: HeldBack(*place) for n, place in enumerate(places) if getattr(requests[n], "wait_ns", 0)}
    replies = shard.serve(requests, waiters)
    if world.scheduler.trace is not None:
        for request, reply in zip(requests, replies, strict=True):
            said = f"{getattr(reply, 'code', '')}{getattr(reply, 'outcome', '')}"
            world.scheduler.note(
                "answers",
                f"{type(request).__name__} {getattr(request, 'domain', '')}: {type(reply).__name__} {said}",
            )
    for (each, position), reply in zip(places, replies, strict=True):
        if reply is not None:
            each.fill(position, reply)
