"""How a process reaches the shards of its cluster, and how a machine's own shard comes to run.

Another node's shard is reached over TLS at the address that the trust record names, or, if it is on this machine, over
the Unix socket in the directory that the settings name. The own shard runs in whichever process of this
machine took the lock on tmpfs first, a daemon or an application; the others reach it over its Unix socket. When that
process ends, the next call takes its place: a new incarnation with an empty database.
"""

from __future__ import annotations

import contextlib
import logging
from threading import Lock, Thread
from typing import TYPE_CHECKING, Final

from timeagent.errors import BadTime, Environment, ShardUnavailable
from timeagent.units import MS, SECOND

from .formats.paths import chain_path
from .lease import tls
from .lease.ceiling import CeilingChain, Deposed, Extended, ShardIdentity
from .lease.chainthread import ChainThread
from .lease.server import ShardServer
from .lease.shard import NotYet, Shard, StoppedOrderly
from .lease.spool import LedgerSpool
from .lease.store import LeaseStore
from .lease.transport import TlsTransport, UnixTransport
from .lease.wire import PAGE_LEASES_MAX, PROTOCOL_VERSION, Hello, Inspect, Page
from .registers import StoredChain, StoredLedger
from .runtime import LocalLock, group_id, shard_socket

if TYPE_CHECKING:
    import random
    import ssl
    from collections.abc import Callable
    from pathlib import Path

    from timeagent.clock import NodeTime
    from timeagent.keys import Signer
    from timeagent.units import Span

    from .bag.storage import Storage
    from .formats.policy import Policy
    from .formats.shardmap import ShardMap
    from .lease.shard import Stop
    from .lease.transport import SocketTransport, Transport
    from .lease.wire import LeaseView, Reply, Request, ShardNumbers
    from .pulse import Pulse
    from .registers import Registers
    from .settings import Settings
    from .trustwatch import TrustWatch

_log = logging.getLogger(__name__)

PAUSE_NS: Final = 20 * MS
"""How long to wait before the mount, or a stopping shard, is asked again."""

START_TRIES: Final = 50
LOOK_ATTEMPTS: Final = 3
"""How many attempts' time a shard has to answer people."""

LEDGER_END_NS: Final = 5 * SECOND
"""How long the end of a shard waits for the mount to take the last blocks of its ledger."""

STOP_SLACK_NS: Final = 2 * SECOND
"""How much longer than the last lease an orderly stop may take: for the mount, and a clock that does not go on."""


class HostedShard:
    """A shard that this process runs: one thread serves it, one appends its ledger. Made by ``ShardHost``."""

    def __init__(
        self,
        shard: Shard,
        store: LeaseStore,
        server: ShardServer,
        chain: ChainThread,
        spool: LedgerSpool,
        guard: Lock,
        time: NodeTime,
        policy: Policy,
    ) -> None:
        """Begin to serve a started shard."""
        self.server = server
        self.spool = spool
        self._shard = shard
        self._store = store
        self.chain = chain
        self._guard = guard
        self._time = time
        self._patience_ns = policy.lease_term_max_ns + 2 * policy.radius_ns_max + STOP_SLACK_NS
        self._threads = [
            Thread(target=self._serve, name="leasehold-shard", daemon=True),
            Thread(target=spool.run, name="leasehold-ledger", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _serve(self) -> None:
        """The body of the shard's thread. What breaks the shard, a damaged database too, ends it and nothing else."""
        try:
            self.server.run()
        except Exception:  # noqa: BLE001 - whatever it is: the next incarnation begins empty
            _log.exception("shard-broken")

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
        self._trust: TrustWatch | None = None
        self._pulse: Pulse | None = None

    def serve_nodes(self, trust: TrustWatch, pulse: Pulse) -> None:
        """Let shards that begin from now on serve other nodes too, and beat in the daemon's pulse."""
        self._trust = trust
        self._pulse = pulse

    def hosted(self, shard: int) -> HostedShard | None:
        """Return a shard that runs here now. Thread-safe; never waits for one that is being started."""
        found = self._hosted.get(shard)
        return None if found is None else found[0]

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
            for shard, (hosted, lock) in list(self._hosted.items()):
                try:
                    hosted.stop()  # it is reached until then: holders give back what they have
                finally:
                    del self._hosted[shard]
                    lock.release()

    def _start(self, shard: int, shard_map: ShardMap) -> HostedShard:
        incarnation = self._random.randbytes(8)
        cluster_id = self._registers.cluster_id
        identity = ShardIdentity(cluster_id, shard_map.number, shard, self._settings.node, incarnation)
        signer = self._settings.witness_key()
        stored = StoredChain(self._storage, chain_path(shard_map.number, shard))
        chain = ChainThread(CeilingChain(stored, self._time, signer, self._policy, identity), self._time, self._policy)
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
        chain: ChainThread,
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
                server = self._server(running, shard, guard)
                return HostedShard(running, store, server, chain, spool, guard, self._time, self._policy)
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
        name, pulse = f"shard {shard}", self._pulse
        if pulse is not None:
            pulse.watch(name)
        return ShardServer(
            running,
            shard_socket(self._runtime, shard),
            guard,
            clock=self._time,
            trust=self._trust,
            group=group_id(self._settings.group),
            on_loop=(lambda: pulse.beat(name)) if pulse is not None else (lambda: None),
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
        self,
        host: ShardHost,
        shard_map: ShardMap,
        settings: Settings,
        time: NodeTime,
        policy: Policy,
        runtime: Path,
        trust: Callable[[], TrustWatch],
    ) -> None:
        """Reach nothing yet. ``trust`` is asked for when another node is reached for the first time."""
        self.host = host
        self._map = shard_map
        self._settings = settings
        self._time = time
        self._policy = policy
        self.runtime = runtime
        self._trust = trust
        self._context: ssl.SSLContext | None = None
        self._transports: dict[int, Transport] = {}
        self._sockets: list[SocketTransport] = []
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

    def where(self, shard: int) -> str:
        """Return where a shard is reached, in words: a socket's path, an address, or why nowhere."""
        owner = self._map.owners[shard]
        if owner == self._settings.node:
            return str(shard_socket(self.runtime, shard))
        if owner in self._settings.peers:
            return str(shard_socket(self._settings.peers[owner], shard))
        return str(self._trust().address_of(owner) or "no address")

    def _made(self, shard: int) -> Transport:
        line = self._line(shard)
        self._sockets.append(line)
        if self._map.owners[shard] == self._settings.node:
            assert isinstance(line, UnixTransport)
            return OwnShard(self.host, shard, self._map, line)
        return line

    def _line(self, shard: int) -> SocketTransport:
        """Return a new transport to a shard's socket. Raises ShardUnavailable when none is known."""
        owner = self._map.owners[shard]
        greeting = Hello(
            version=PROTOCOL_VERSION, cluster_id=self._map.cluster_id, node=self._settings.node, shard=shard
        )
        runtime = self.runtime if owner == self._settings.node else self._settings.peers.get(owner)
        line: SocketTransport
        if runtime is not None:
            line = UnixTransport(shard_socket(runtime, shard), self._time, greeting)
        else:
            trust = self._trust()
            if trust.address_of(owner) is None:
                trust.look()
                raise ShardUnavailable(
                    "no-address",
                    f"shard {shard} belongs to node {owner}, and trust record {trust.number} says nowhere where it "
                    "answers",
                    hint=f"say it: leasehold trust move {owner} HOST:PORT; or run this on {owner}",
                )
            if self._context is None:
                self._context = tls.client_context(self._settings.tls_key())
            line = TlsTransport(owner, self._context, trust, self._time, greeting)
        return line

    def inspect(self, shard: int) -> tuple[ShardNumbers, list[LeaseView]]:
        """Return a shard's numbers and all its leases, unsigned. Never starts a shard. Raises ShardUnavailable."""
        with contextlib.closing(self._to_look(shard)) as line:
            found: list[LeaseView] = []
            while True:
                page = self._page(line, shard, found[-1].domain if found else "", PAGE_LEASES_MAX)
                found += page.leases
                if not page.more:
                    return page.numbers, found

    def numbers(self, shard: int) -> ShardNumbers:
        """Return how a shard stands, unsigned. Never starts a shard. Raises ShardUnavailable."""
        with contextlib.closing(self._to_look(shard)) as line:
            return self._page(line, shard, "", 1).numbers

    def _to_look(self, shard: int) -> SocketTransport:
        """Return a transport of the caller's own to a shard that runs. Raises ShardUnavailable."""
        line = self._line(shard)
        if isinstance(line, UnixTransport) and not line.path.exists():
            raise ShardUnavailable(
                "not-running",
                f"shard {shard} at node {self._map.owners[shard]} is not running (there is no {line})",
                hint=self._hint(shard),
            )
        return line

    def _page(self, line: SocketTransport, shard: int, after: str, leases_max: int) -> Page:
        try:
            (reply,) = line.call(
                [Inspect(after_domain=after, leases_max=leases_max)], LOOK_ATTEMPTS * self._policy.attempt_timeout_ns
            )
        except ShardUnavailable as problem:
            raise ShardUnavailable(
                problem.code,
                f"shard {shard} at node {self._map.owners[shard]} does not answer: {problem.message}",
                hint=self._hint(shard) if problem.code == "no-answer" else problem.hint,
            ) from None
        if not isinstance(reply, Page):
            raise ShardUnavailable("no-answer", f"shard {shard} answered with a {type(reply).__name__}")
        return reply

    def _hint(self, shard: int) -> str:
        owner = self._map.owners[shard]
        return f"no process of {owner} runs it now: leasehold node run, on {owner}"

    def close(self) -> None:
        """Close the connections; stop what is hosted here, orderly."""
        self.host.close()
        with self._lock:
            for transport in self._sockets:
                transport.close()
