"""How a process reaches the shards of its cluster, and how a machine's own shard comes to run.

Another node's shard is reached at the address that the settings name. The own shard runs in whichever process of this
machine took the lock on tmpfs first, a daemon or an application; the others reach it over its Unix socket. When that
process ends, the next call takes its place: a new incarnation with an empty database.
"""

from __future__ import annotations

import logging
from threading import Lock, Thread
from typing import TYPE_CHECKING, Final

from timeagent.errors import BadTime, Environment, ShardUnavailable
from timeagent.units import MS, SECOND

from .formats.lease import Holder
from .formats.paths import chain_path
from .lease.ceiling import CeilingChain, Deposed, Extended, ShardIdentity
from .lease.client import LeaseClient, Unavailable
from .lease.server import ShardServer
from .lease.shard import NotYet, Shard, StoppedOrderly
from .lease.spool import LedgerSpool
from .lease.store import LeaseStore
from .lease.transport import UnixTransport
from .registers import StoredChain, StoredLedger
from .runtime import LocalLock, shard_socket

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from timeagent.clock import NodeTime
    from timeagent.keys import Signer
    from timeagent.units import Span

    from .bag.storage import Storage
    from .formats.policy import Policy
    from .formats.shardmap import ShardMap
    from .lease.shard import Stop
    from .lease.transport import Transport
    from .lease.wire import LeaseView, Reply, Request, ShardNumbers
    from .registers import Registers
    from .settings import Settings

_log = logging.getLogger(__name__)

PAUSE_NS: Final = 20 * MS
"""How long to wait before the mount, or a stopping shard, is asked again."""

START_TRIES: Final = 50
STOP_SLACK_NS: Final = 2 * SECOND
"""How much longer than the last lease an orderly stop may take: for the mount, and a clock that does not go on."""


class HostedShard:
    """A shard that this process runs: one thread serves it, one appends its ledger. Made by ``ShardHost``."""

    def __init__(
        self,
        shard: Shard,
        store: LeaseStore,
        server: ShardServer,
        spool: LedgerSpool,
        guard: Lock,
        time: NodeTime,
        policy: Policy,
    ) -> None:
        """Begin to serve a started shard."""
        self._shard = shard
        self._store = store
        self._server = server
        self._spool = spool
        self._guard = guard
        self._time = time
        self._patience_ns = policy.lease_term_max_ns + 2 * policy.radius_ns_max + STOP_SLACK_NS
        self._threads = [
            Thread(target=server.run, name="leasehold-shard", daemon=True),
            Thread(target=spool.run, name="leasehold-ledger", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def ended(self) -> str | None:
        """Return why this shard serves nobody any more although it was not stopped, or None."""
        if not self._threads[0].is_alive():
            return "its server has ended; the log says why"
        return self._shard.over()

    def stop(self) -> None:
        """Stop orderly: grant nothing more, wait until every lease is relinquished or over, link the last record.

        Holders are served meanwhile. Waits for leases that are out, at most about the longest term by the time since
        boot. Where the mount or the clock does not allow an orderly end, the shard just ends, as in a crash: its
        successor's floor is then the ceiling.
        """
        deadline = self._time.boot_ns() + self._patience_ns
        tries = 0
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
        """Just end, as in a crash: a successor's floor is then the ceiling."""
        self._server.stop()
        self._threads[0].join()
        self._spool.close()
        self._threads[1].join()
        self._store.close()

    def _stop_once(self) -> Stop | None:
        try:
            with self._guard:
                return self._shard.stop_orderly()
        except BadTime as problem:
            _log.warning("stop-without-time reason=%s", problem.message)
            return None


class ShardHost:
    """Runs the shards that the map gives to this node, one process of this machine at a time."""

    def __init__(
        self,
        storage: Storage,
        registers: Registers,
        settings: Settings,
        time: NodeTime,
        policy: Policy,
        runtime: Path,
        randomness: random.Random,
    ) -> None:
        """Run nothing yet. ``runtime``: this node's directory on tmpfs."""
        self._storage = storage
        self._registers = registers
        self._settings = settings
        self._time = time
        self._policy = policy
        self._runtime = runtime
        self._random = randomness
        self._hosted: dict[int, tuple[HostedShard, LocalLock]] = {}
        self._lock = Lock()
        self._closed = False

    def try_host(self, shard: int, shard_map: ShardMap) -> bool:
        """Run a shard here unless another process of this machine does. True: it runs, here.

        One that has ended here by itself is replaced: a new incarnation with an empty database. Raises BadTime,
        Environment, Damaged, ShardUnavailable when it cannot be started. Hosts nothing once closed.
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
            if self._closed:
                return False
            lock = LocalLock(self._runtime / f"shard-{shard:04d}.lock")
            if not lock.try_acquire():
                return False
            try:
                self._hosted[shard] = (self._start(shard, shard_map), lock)
            except BaseException:
                lock.release()
                raise
            return True

    def ended(self) -> dict[int, str]:
        """Return the shards that run here no more, though nobody stopped them, each with the reason."""
        with self._lock:
            return {shard: why for shard, (hosted, _) in self._hosted.items() if (why := hosted.ended()) is not None}

    def close(self) -> None:
        """Stop every shard that runs here, orderly, then give up its lock. Idempotent; for good."""
        with self._lock:
            self._closed = True
            while self._hosted:
                _, (hosted, lock) = self._hosted.popitem()
                try:
                    hosted.stop()
                finally:
                    lock.release()

    def _start(self, shard: int, shard_map: ShardMap) -> HostedShard:
        incarnation = self._random.randbytes(8)
        cluster_id = self._registers.cluster_id
        identity = ShardIdentity(cluster_id, shard_map.number, shard, self._settings.node, incarnation)
        signer = self._settings.witness_key()
        chain = CeilingChain(
            StoredChain(self._storage, chain_path(shard_map.number, shard)), self._time, signer, self._policy, identity
        )
        spool = LedgerSpool(StoredLedger(self._storage, shard_map.number, shard, incarnation))
        store = LeaseStore(self._runtime / f"shard-{shard:04d}.db")
        try:
            return self._begun(identity, shard_map, store, chain, signer, spool)
        except BaseException:
            store.close()
            raise

    def _begun(
        self,
        identity: ShardIdentity,
        shard_map: ShardMap,
        store: LeaseStore,
        chain: CeilingChain,
        signer: Signer,
        spool: LedgerSpool,
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
        )
        shard, why = identity.shard, ""
        for _ in range(START_TRIES):
            began = running.start()
            if isinstance(began, Extended):
                guard = Lock()
                server = ShardServer(running, shard_socket(self._runtime, shard), guard)
                return HostedShard(running, store, server, spool, guard, self._time, self._policy)
            if isinstance(began, Deposed):
                raise ShardUnavailable("deposed", f"shard {shard} cannot begin here: {began.reason}")
            why = began.reason
            self._time.sleep(PAUSE_NS)
        raise Environment(
            "chain-in-doubt",
            f"shard {shard} cannot begin: {why}",
            hint="the first record of its chain has to be linked: see whether the root is writable and has room",
        )


class OwnShard:
    """The transport to this machine's own shard: hosts it when nobody else does."""

    def __init__(self, host: ShardHost, shard: int, shard_map: ShardMap, socket: UnixTransport) -> None:
        """Call nothing yet."""
        self._host = host
        self._shard = shard
        self._map = shard_map
        self._socket = socket

    def call(self, requests: list[Request], timeout_ns: Span) -> list[Reply]:
        """Call it, after taking the place of whoever ran it and has ended. Raises what ``try_host`` raises."""
        self._host.try_host(self._shard, self._map)
        return self._socket.call(requests, timeout_ns)


class ShardRoutes:
    """One process's way to every shard."""

    def __init__(
        self, host: ShardHost, shard_map: ShardMap, settings: Settings, time: NodeTime, policy: Policy, runtime: Path
    ) -> None:
        """Reach nothing yet."""
        self.host = host
        self._map = shard_map
        self._settings = settings
        self._time = time
        self._policy = policy
        self._runtime = runtime
        self._transports: dict[int, Transport] = {}
        self._sockets: list[UnixTransport] = []
        self._lock = Lock()

    def shard_of(self, domain: str) -> int:
        """Return the shard of a domain."""
        return self._map.shard_of(domain)

    def own_shards(self) -> list[int]:
        """Return the shards that the map gives to this node."""
        return [shard for shard, owner in enumerate(self._map.owners) if owner == self._settings.node]

    def transport(self, shard: int) -> Transport:
        """Return the way to a shard. Raises ShardUnavailable when no address of its node is known."""
        with self._lock:
            if shard not in self._transports:
                self._transports[shard] = self._made(shard)
            return self._transports[shard]

    def _made(self, shard: int) -> Transport:
        owner = self._map.owners[shard]
        if owner == self._settings.node:
            return OwnShard(self.host, shard, self._map, self._socket(self._runtime, shard))
        if owner in self._settings.peers:
            return self._socket(self._settings.peers[owner], shard)
        raise ShardUnavailable(
            "no-address",
            f"shard {shard} belongs to node {owner}, and {self._settings.directory / 'node.toml'} has no address of it",
            hint=f"run this on {owner}, or add it under [peers]",
        )

    def _socket(self, runtime: Path, shard: int) -> UnixTransport:
        transport = UnixTransport(shard_socket(runtime, shard), self._time)
        self._sockets.append(transport)
        return transport

    def inspect(self, shard: int, randomness: random.Random) -> tuple[ShardNumbers, list[LeaseView]]:
        """Return a shard's numbers and all its leases, unsigned. Never starts a shard. Raises ShardUnavailable."""
        owner = self._map.owners[shard]
        runtime = self._runtime if owner == self._settings.node else self._settings.peers.get(owner)
        if runtime is None:
            self._made(shard)
        assert runtime is not None
        socket = shard_socket(runtime, shard)
        if not socket.exists():
            raise ShardUnavailable(
                "not-running",
                f"shard {shard} at node {owner} is not running (there is no {socket})",
                hint=f"no process of {owner} runs it now: leasehold node run, on {owner}",
            )
        transport = UnixTransport(socket, self._time)
        holder = Holder(node=self._settings.node, process=0, boot=bytes(16), incarnation=bytes(8))
        client = LeaseClient(transport, self._time, self._policy, holder, randomness)
        found: list[LeaseView] = []
        try:
            while True:
                page = client.inspect(found[-1].domain if found else "")
                if isinstance(page, Unavailable):
                    raise ShardUnavailable(
                        page.code,
                        f"shard {shard} at node {owner} does not answer: {page.message}",
                        hint=f"no process of {owner} runs it now: leasehold node run, on {owner}",
                    )
                found += page.leases
                if not page.more:
                    return page.numbers, found
        finally:
            transport.close()

    def close(self) -> None:
        """Close the connections; stop what is hosted here, orderly."""
        self.host.close()
        with self._lock:
            for transport in self._sockets:
                transport.close()
