"""How a machine's own shard comes to run, and how it ends.

In a cluster of several nodes the node's daemon runs it, and nobody else: only a daemon answers other nodes, who would
have no lease of the shard while an application kept it. In a cluster of one node it runs in whichever process took the
lock on tmpfs first; the others reach it over its Unix socket (``routes.py``), and when that process ends the next call
takes its place: a new incarnation with an empty database. An application stops its shard in good order as soon as it
sees that the cluster has another node, or a daemon runs here.

A shard that another node runs is waited for as long as it may still grant: to begin at once would be safe, and
everybody would settle up to a ceiling for nothing. Who decides which shards run (``ShardFailover``) and how one begins
and ends take what they need of the machine from a ``ShardRuntime``, so that the same runs on a simulated one.
"""

from __future__ import annotations

import logging
from importlib.metadata import version
from threading import Lock, Thread
from typing import TYPE_CHECKING, Final, Protocol

from timeagent.errors import BadTime, Environment, ShardUnavailable, TenureError
from timeagent.units import MS, SECOND, rfc3339

from ..formats.ceiling import CeilingKind
from ..formats.paths import chain_path
from ..formats.shardmap import chain_of, shard_text
from ..formats.witness import Half
from ..lease.ceiling import (
    NOTHING_BEFORE,
    CeilingChain,
    CeilingExtender,
    Deposed,
    Extended,
    InDoubt,
    NotYet,
    ShardIdentity,
    StoppedOrderly,
)
from ..lease.server import ShardServer
from ..lease.shard import Shard
from ..lease.store import LeaseStore
from ..lease.succession import Succession, newest_record
from ..lease.witness_ledger import LedgerSpool
from .records import StoredChain, StoredLedger
from .runtime import LocalLock, daemon_lock, group_id, shard_socket

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    from timeagent.clock import NodeTime
    from timeagent.keys import KeyInUse
    from timeagent.notify import Pulse
    from timeagent.units import Instant, Span

    from ..bag.storage import Storage
    from ..formats.ceiling import CeilingRecord
    from ..formats.policy import PolicyNumbers
    from ..formats.shardmap import ShardMap
    from ..lease.ceiling import Beginning, Stop
    from .own_keys import OwnKeys
    from .record_watch import MapWatch, TrustWatch
    from .records import Registers
    from .settings import Settings

_log = logging.getLogger(__name__)

PAUSE_NS: Final = 20 * MS
"""How long to wait before the mount, or a stopping shard, is asked again."""

START_TRIES: Final = 50
LEDGER_END_NS: Final = 5 * SECOND
"""How long the end of a shard waits for the mount to take the last blocks of its ledger."""

OWNERS_TIME_NS: Final = 60 * SECOND
"""How long owners under an earlier map have to stop in good order, as seen by a process without a daemon's patience."""

NODES_NAMED: Final = 5
"""How many other nodes a message names."""

STOP_SLACK_NS: Final = 2 * SECOND
"""How much longer than the last lease an orderly stop may take: for the mount, and a clock that does not go on."""


LOOK_NS: Final[Span] = 250 * MS
"""How often the loop of an application's shard looks whether it may go on."""


class Running(Protocol):
    """Something that was begun and goes on by itself."""

    def is_alive(self) -> bool:
        """Whether it has not ended yet. Never blocks."""
        ...

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, or for so many seconds."""
        ...


type Spawn = Callable[[str, Callable[[], object]], Running]
"""Begins something that goes on by itself, under a name for people."""


def in_thread(name: str, body: Callable[[], object]) -> Running:
    """Begin something in a thread of its own, which does not outlive the process."""
    thread = Thread(target=body, name=name, daemon=True)
    thread.start()
    return thread


class ShardRuntime:
    """A real machine's. ``runtime``: this node's directory on tmpfs."""

    def __init__(self, runtime: Path) -> None:
        """Make nothing yet."""
        self._runtime = runtime

    def spawn(self, name: str, body: Callable[[], object]) -> Running:
        """Begin something in a thread of its own."""
        return in_thread(name, body)

    def mutex(self) -> Lock:
        """Return a lock between threads of this process."""
        return Lock()

    def lock(self, shard: int) -> LocalLock:
        """Return the lock by which one process of this machine at a time runs a shard."""
        return LocalLock(self._runtime / f"shard-{shard:04d}.lock")

    def daemon_runs(self) -> bool:
        """Whether a process of this machine is the node's daemon. Never blocks."""
        return daemon_lock(self._runtime).is_held()

    def store(self, shard: int) -> LeaseStore:
        """Return an empty database for a shard. Raises Environment."""
        return LeaseStore(self._runtime / f"shard-{shard:04d}.db")

    def chain(self, right: CeilingChain, time: NodeTime, policy: PolicyNumbers) -> CeilingExtender:
        """Return a chain whose mount work keeps no request waiting."""
        return CeilingExtender(right, time, policy)

    def spool(self, ledger: StoredLedger) -> LedgerSpool:
        """Return the queue by which blocks reach a run's ledger."""
        return LedgerSpool(ledger)


def stopping_ns(policy: PolicyNumbers) -> Span:
    """Return how long an orderly stop may take; so long before the end of its keys a shard without others stops."""
    return policy.lease_term_max_ns + 2 * policy.radius_ns_max + STOP_SLACK_NS


class HostedShard:
    """A shard that this process runs: one thread serves it, one appends its ledger. Made by ``ShardHost``."""

    def __init__(  # noqa: PLR0913, PLR0917 - its parts
        self,
        identity: ShardIdentity,
        shard: Shard,
        store: LeaseStore,
        server: ShardServer,
        chain: CeilingExtender,
        spool: LedgerSpool,
        guard: Lock,
        shard_runtime: ShardRuntime,
        time: NodeTime,
        policy: PolicyNumbers,
    ) -> None:
        """Begin to serve a started shard."""
        self.identity = identity
        self.server = server
        self.spool = spool
        self._shard = shard
        self._store = store
        self.chain = chain
        self._guard = guard
        self._time = time
        self._ending = shard_runtime.mutex()
        self._ended = False
        self._patience_ns = stopping_ns(policy)
        self._threads = [
            shard_runtime.spawn("tenure-shard", self._serve),
            shard_runtime.spawn("tenure-ledger", spool.run),
        ]

    def _serve(self) -> None:
        """The body of the shard's thread. What breaks the shard, a damaged database too, ends it and nothing else."""
        try:
            self.server.run()
        except Exception:  # noqa: BLE001 - whatever it is: the next incarnation begins empty
            _log.exception("shard-broken")

    def ended(self) -> str | None:
        """Return why this shard serves nobody any more although it was not stopped, or None."""
        return self.broken() or self._shard.over()

    def broken(self) -> str | None:
        """Return that its server or its ledger's thread has ended by itself, which never should happen, or None."""
        alive = [each.is_alive() for each in self._threads]
        if all(alive) or self._ended:
            return None
        return f"its {'ledger' if alive[0] else 'server'} has ended; the log says why"

    @property
    def going_by(self) -> int:
        """The newest map that it goes by. Never blocks."""
        return self._shard.going_by

    @property
    def leases(self) -> int:
        """How many leases are out. Never blocks."""
        return self._shard.leases

    def go_by(self, newest: ShardMap, follows: Beginning) -> None:
        """Have it go by a newer map. Blocks for the turn that is under way, and for some more where it becomes whole.

        ``follows``: how the chains ended that its own follows.
        """
        while not self._go_by(newest, follows):
            self._time.sleep(MS)  # others have their turn

    def _go_by(self, newest: ShardMap, follows: Beginning) -> bool:
        with self._guard:
            return self._ended or self._shard.go_by(newest, follows)

    def why_full(self) -> str | None:
        """Return why this shard takes no new domains for want of room on its tmpfs, or None. Never blocks."""
        return self._store.why_full() if self._store.full else None

    def stop(self) -> None:
        """Stop orderly: grant nothing more, wait until every lease is relinquished or over, link the last record.

        Holders are served meanwhile. Waits for leases that are out, at most about the longest term by the time since
        boot. Where the mount, the tmpfs or the clock does not allow an orderly end, the shard just ends, as in a crash:
        its successor's floor is then the ceiling.
        """
        deadline = self._time.boot_ns() + self._patience_ns
        tries = 0
        if self._ended:
            return
        try:
            while tries < START_TRIES and self._time.boot_ns() < deadline:
                stop = self._stop_once()
                if isinstance(stop, StoppedOrderly | Deposed):
                    break
                tries += not isinstance(stop, NotYet)
                self._time.sleep(PAUSE_NS)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Just end, as in a crash: a successor's floor is then the ceiling. Idempotent."""
        with self._ending:
            if self._ended:
                return
            self._ended = True
            self.server.stop()
            self._threads[0].join()
            self.chain.close()
            self.spool.close()
            self._threads[1].join(LEDGER_END_NS / SECOND)
            self._store.close()

    def _stop_once(self) -> Stop | None:
        try:
            with self._guard:
                return self._shard.stop_orderly()
        except (BadTime, Environment) as problem:  # no usable time, or a full tmpfs
            _log.warning("stop-failed code=%s reason=%s", problem.code, problem.message)
            return None


class ShardHost:
    """Runs the shards that the map gives to this node, one process of this machine at a time."""

    def __init__(  # noqa: PLR0913, PLR0917 - the ports
        self,
        storage: Storage,
        registers: Registers,
        settings: Settings,
        keys: OwnKeys,
        time: NodeTime,
        policy: PolicyNumbers,
        runtime: Path,
        randomness: random.Random,
        trust: TrustWatch,
        shard_runtime: ShardRuntime | None = None,
    ) -> None:
        """Run nothing yet. ``runtime``: this node's directory on tmpfs. ``shard_runtime``: default a real machine's."""
        self._shard_runtime = shard_runtime or ShardRuntime(runtime)
        self._storage = storage
        self._registers = registers
        self._settings = settings
        self.keys = keys
        self._time = time
        self._policy = policy
        self._runtime = runtime
        self._random = randomness
        self._hosted: dict[int, tuple[HostedShard, LocalLock]] = {}
        self._lock = self._shard_runtime.mutex()
        self._closed = False
        self._trust = trust
        self._pulse: Pulse | None = None
        self._looked: dict[int, Instant] = {}
        self._leaving: dict[int, Running] = {}
        self._successions: dict[int, Succession] = {}
        self._maps: MapWatch | None = None

    def follow(self, maps: MapWatch) -> None:
        """Have the shards that run here without a daemon go by the newest map."""
        self._maps = maps

    def be_daemon(self, pulse: Pulse) -> None:
        """Be the daemon: shards that begin from now on serve other nodes, beat in its pulse, and give way to nobody."""
        self._pulse = pulse

    def missing_daemon(self, shard: int) -> ShardUnavailable | None:
        """Return that a shard of this node waits for this node's daemon, or None. Never blocks; touches tmpfs only."""
        others = self._other_nodes()
        if self._pulse is not None or not others or self._shard_runtime.daemon_runs():
            return None
        node = self._settings.node
        return ShardUnavailable(
            "no-daemon",
            f"the daemon of node {node} does not run, and shard {shard} is run by no application: this cluster has "
            f"other nodes ({', '.join(others[:NODES_NAMED])}), which only a daemon answers",
            hint=f"start it, on {node}: tenure node run, or its unit, tenure-node@NAME",
        )

    def _other_nodes(self) -> list[str]:
        return [node for node in self._trust.members() if node != self._settings.node]

    def keys_end(self) -> str | None:
        """Return why no shard may go on here: the keys it signs with end too soon for a later orderly stop; or None."""
        return self.keys.refusal(self._time, stopping_ns(self._policy))

    def hosted(self, shard: int) -> HostedShard | None:
        """Return a shard that runs here now. Thread-safe; never waits for one that is being started."""
        found = self._hosted.get(shard)
        return None if found is None else found[0]

    def try_host(self, shard: int, shard_map: ShardMap) -> bool:
        """Run a shard here unless another process of this machine does, or another node still may. True: it runs, here.

        One that has ended here is replaced: a new incarnation, an empty database. Hosts nothing once closed. Raises
        BadTime, Environment, Damaged, ShardUnavailable (code ``no-daemon``: an application runs no shard in a cluster
        of several nodes), NotTrusted (for keys that are revoked, or end: it would be in the way).
        """
        with self._lock:
            if shard in self._hosted:
                hosted, held = self._hosted[shard]
                why = hosted.ended()
                if why is None:
                    return True
                _log.warning("shard-ended shard=%d reason=%s", shard, why)
                del self._hosted[shard]
                hosted.abandon()
                held.release()
            if self._closed or (self._pulse is None and self._shard_runtime.daemon_runs()):
                return False
            if (missing := self.missing_daemon(shard)) is not None:
                raise missing
            lock = self._shard_runtime.lock(shard)
            if shard_map.owner_of(shard) is None or not lock.try_acquire():
                return False
            try:
                if self.waits_for(shard, shard_map) is not None:
                    lock.release()
                    return False
                self.keys.check_trusted(self._registers, self._time, stopping_ns(self._policy))
                self._hosted[shard] = (self._start(shard, shard_map), lock)
            except BaseException:
                lock.release()
                raise
            return True

    def waits_for(self, shard: int, shard_map: ShardMap) -> str | None:
        """Return why this node should not begin with a shard yet, or None. Touches the mount; raises what that says.

        For the sake of others only: whoever begins is safe at any time (``lease/ceiling.py``).
        """
        follows = self._follows(shard, shard_map)
        if isinstance(follows, InDoubt):
            return follows.reason
        newest = newest_record(self._port(*chain_of(shard)))
        return None if newest is None or newest.node == self._settings.node else self._courtesy(newest)

    def _courtesy(self, newest: CeilingRecord) -> str | None:
        """Return why the owner by a chain's newest record should be given time, or None."""
        if newest.kind is not CeilingKind.RUNNING or self._time.now().surely_past(newest.ceiling_ns):
            return None
        return f"node {newest.node} may grant until {rfc3339(newest.ceiling_ns)}"

    def go_by(self, shard: int, newest: ShardMap) -> None:
        """Have a shard that runs here go by a newer map, unless chains that its own follows have not ended yet.

        Blocks as ``HostedShard.go_by``; touches the mount where it becomes whole. Raises BadTime, Damaged.
        """
        hosted = self.hosted(shard)
        if hosted is None or hosted.going_by >= newest.number:
            return
        follows = self._follows(shard, newest)
        if isinstance(follows, InDoubt):
            _log.info("map-not-yet shard=%d reason=%s", shard, follows.reason)
            return
        hosted.go_by(newest, follows)
        _log.info("shard-goes-by shard=%d map=%d half=%s", shard, newest.number, newest.half_of(shard))

    def _follows(self, shard: int, shard_map: ShardMap) -> Beginning | InDoubt:
        """Return how the chains ended that a shard's own follows; end them. While it comes, that does not matter yet.

        Their owners are given time to end them by themselves, as long as they may still grant. Touches the mount.
        """
        chain, _ = chain_of(shard)
        if chain == 1 or shard_map.half_of(shard) in (Half.COMING, None):
            return NOTHING_BEFORE
        if chain not in self._successions:
            patience = OWNERS_TIME_NS if self._pulse is None else 2 * self._policy.granted_ns_max + 2 * SECOND
            self._successions[chain] = self._succession(patience)
        return self._successions[chain].beginning(chain)

    def _succession(self, patience_ns: Span) -> Succession:
        until = self._time.boot_ns() + patience_ns

        def polite(newest: CeilingRecord) -> str | None:
            return None if self._time.boot_ns() >= until else self._courtesy(newest)

        incarnation = self._random.randbytes(8)
        registers, signer, node = self._registers, self.keys.witness, self._settings.node
        return Succession(
            registers.cluster_id, registers.predecessors, self._port, self._time, signer, node, incarnation, polite
        )

    def _port(self, map_number: int, shard: int) -> StoredChain:
        return StoredChain(self._storage, chain_path(map_number, shard))

    def superseded(self, shard: int) -> bool:
        """Whether another has linked a record after the one by which a shard grants here. Touches the mount."""
        hosted = self.hosted(shard)
        if hosted is None:
            return False
        number = hosted.chain.number  # before the listing: it grows
        newest = newest_record(self._port(hosted.identity.map_number, shard))
        return newest is not None and newest.number > number and newest.incarnation != hosted.identity.incarnation

    def everything(self) -> dict[int, HostedShard]:
        """Return the shards that run here now."""
        with self._lock:
            return {shard: hosted for shard, (hosted, _) in self._hosted.items()}

    def leave(self, shard: int) -> None:
        """Stop a shard orderly and give its lock up. Blocks as long as ``HostedShard.stop``; idempotent."""
        self._let_go(shard, orderly=True)

    def drop(self, shard: int) -> None:
        """End a shard that another has taken over."""
        self._let_go(shard, orderly=False)

    def _let_go(self, shard: int, *, orderly: bool) -> None:
        with self._lock:
            found = self._hosted.get(shard)
        if found is None:
            return
        hosted, held = found
        try:
            if orderly:
                hosted.stop()  # it is reached until then: holders give back what they have
            else:
                hosted.abandon()
        finally:
            with self._lock:
                if self._hosted.get(shard) is found:
                    del self._hosted[shard]
                    held.release()
                    self._forget_pulse(shard)

    def _forget_pulse(self, shard: int) -> None:
        if self._pulse is not None:
            self._pulse.forget(f"shard {shard}")

    def ended(self) -> dict[int, str]:
        """Return the shards that run here no more, though nobody stopped them, each with the reason."""
        with self._lock:
            return {shard: why for shard, (hosted, _) in self._hosted.items() if (why := hosted.ended()) is not None}

    def broken(self) -> dict[int, str]:
        """Return the shards whose server has ended by itself, each with the reason."""
        with self._lock:
            return {shard: why for shard, (hosted, _) in self._hosted.items() if (why := hosted.broken()) is not None}

    def close(self) -> None:
        """Stop every shard that runs here, orderly, then give up its lock. Idempotent; for good."""
        with self._lock:
            self._closed = True
            for shard, (hosted, lock) in list(self._hosted.items()):
                try:
                    hosted.stop()  # it is reached until then: holders give back what they have
                finally:
                    del self._hosted[shard]
                    lock.release()

    def _start(self, shard: int, shard_map: ShardMap) -> HostedShard:
        incarnation = self._random.randbytes(8)
        cluster_id = self._registers.cluster_id
        chain_map, place = chain_of(shard)
        node, since = self._settings.node, self._time.now().midpoint
        identity = ShardIdentity(
            cluster_id, chain_map, place, node, incarnation, since_ns=since, release=version("tenure")
        )
        signer = self.keys.witness
        stored = self._port(chain_map, place)
        follows = self._follows(shard, shard_map)
        if isinstance(follows, InDoubt):
            raise ShardUnavailable("chains-before", f"shard {shard_text(shard)} cannot begin yet: {follows.reason}")
        origin = (lambda: follows) if chain_map > 1 else None
        right = CeilingChain(stored, self._time, signer, self._policy, identity, origin)
        chain = self._shard_runtime.chain(right, self._time, self._policy)
        spool = self._shard_runtime.spool(StoredLedger(self._storage, chain_map, place, incarnation))
        store = self._shard_runtime.store(shard)
        try:
            return self._begun(identity, shard_map, store, chain, signer, spool, follows)
        except BaseException:
            store.close()
            raise

    def _begun(
        self,
        identity: ShardIdentity,
        shard_map: ShardMap,
        store: LeaseStore,
        chain: CeilingExtender,
        signer: KeyInUse,
        spool: LedgerSpool,
        follows: Beginning,
    ) -> HostedShard:
        running = Shard(
            identity,
            shard_map,
            self._policy,
            store=store,
            chain=chain,
            time=self._time,
            signer=signer,
            ledger=spool,
            randomness=self._random,
            follows=follows,
        )
        shard, why = identity.number, ""
        for _ in range(START_TRIES):
            began = running.start()
            if isinstance(began, Extended):
                guard, means = self._shard_runtime.mutex(), self._shard_runtime
                server = self._server(running, shard, guard)
                return HostedShard(
                    identity, running, store, server, chain, spool, guard, means, self._time, self._policy
                )
            if isinstance(began, Deposed):
                raise ShardUnavailable("deposed", f"shard {shard} cannot begin here: {began.reason}")
            why = began.reason
            self._time.sleep(PAUSE_NS)
        raise Environment(
            "chain-in-doubt",
            f"shard {shard} cannot begin: {why}",
            hint="the first record of its chain has to be linked: see whether the root is writable and has room",
        )

    def _server(self, running: Shard, shard: int, guard: Lock) -> ShardServer:
        pulse, on_loop = self._pulse, lambda: self._give_way(shard)
        if pulse is not None:
            name = f"shard {shard}"
            pulse.watch(name)
            on_loop = lambda: pulse.beat(name)  # noqa: E731
        return ShardServer(
            running,
            shard_socket(self._runtime, shard),
            guard,
            clock=self._time,
            trust=self._trust if pulse is not None else None,
            group=group_id(self._settings.group),
            on_loop=on_loop,
        )

    def _go_on(self, shard: int, newest: ShardMap) -> None:
        """Have an application's shard go by a newer map, or end with the map before."""
        try:
            self.go_by(shard, newest)
            if newest.owner_of(shard) is None:
                self.leave(shard)
        except TenureError as problem:
            _log.warning("map-not-followed shard=%d code=%s reason=%s", shard, problem.code, problem.message)

    def _give_way(self, shard: int) -> None:
        """Begin to end an application's shard, beside its loop, once there is a reason. Touches tmpfs only."""
        now = self._time.boot_ns()
        if now - self._looked.get(shard, 0) < LOOK_NS:
            return
        self._looked[shard] = now
        leaving = self._leaving.get(shard)
        if leaving is not None and leaving.is_alive():
            return
        maps, hosted = self._maps, self.hosted(shard)
        if maps is not None and hosted is not None:
            maps.look()
            if (newest := maps.newest).number > hosted.going_by:
                name = f"tenure-map-{shard}"
                self._leaving[shard] = self._shard_runtime.spawn(name, lambda: self._go_on(shard, newest))
                return
        if self._shard_runtime.daemon_runs():
            why: str | None = "the daemon runs"
        else:
            why = "the cluster has other nodes" if self._other_nodes() else self.keys_end()
        if why is not None:
            _log.info("shard-gives-way shard=%d reason=%s", shard, why)
            self._leaving[shard] = self._shard_runtime.spawn(f"tenure-leave-{shard}", lambda: self.leave(shard))
