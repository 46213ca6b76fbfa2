"""Clusters for tests: a real one in a temporary directory, and one over a hand-driven clock without any thread."""

from __future__ import annotations

import random
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace as replace_fields

from appliance.admin.membership import enroll, found_cluster, publish_map
from appliance.bag.closing import Closer
from appliance.bag.ports import BagContext
from appliance.bag.posix import PosixStorage
from appliance.cluster import Cluster
from appliance.formats.policy import Policy, check_policy
from appliance.formats.shardmap import SHARDS_MAX, ShardMap, chain_of
from appliance.lease.ceiling import NOTHING_BEFORE, CeilingChain, Extended, ShardIdentity
from appliance.lease.domain import HINT_BYTES_MAX
from appliance.lease.shard import DOMAINS_MAX, Shard
from appliance.lease.store import LeaseStore
from appliance.lease.witness_ledger import HOLD_NS
from appliance.node.runtime import daemon_lock
from appliance.node.settings import ROOT_KEY, Settings, save_settings
from appliance.session.open_logs import LogBook
from appliance.session.session import Session
from tests.support.bags import FixedRecords
from tests.support.clocks import HandTime
from tests.support.shards import ListLedger, MemoryChain
from tests.support.storage import MemoryStorage
from tests.support.values import CLUSTER, NODE, NOW_NS, TIME_KEY, WITNESS_KEY, keyring
from timeagent.clock import SystemClock
from timeagent.errors import ShardUnavailable
from timeagent.keys import Signer, save_private_key
from timeagent.notify import Notifier, Pulse
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from appliance.bag.ports import Storage
    from appliance.bag.reader import Message
    from appliance.formats.paths import Bag
    from appliance.formats.witness import Entry
    from appliance.lease.wire import Reply, Request
    from appliance.session.open_logs import Share
    from timeagent.units import Instant, Span


def fast_policy(cluster_id: bytes = CLUSTER) -> Policy:
    """Short terms, and clocks of one machine: nothing that a test waits for takes longer than a few seconds."""
    return check_policy(
        Policy(
            number=1,
            cluster_id=cluster_id,
            span_ns=100 * MS,
            grace_ns=1_050 * MS,
            rack_ns=5 * SECOND,
            seal_delay_ns=2 * SECOND,
            radius_ns_max=20 * MS,
            assumed_radius_ns=2 * MS,
            lease_term_max_ns=2_400 * MS,
            renew_period_ns=800 * MS,
            holder_margin_ns=100 * MS,
            attempt_timeout_ns=400 * MS,
            ceiling_ahead_ns=600 * MS,
            ceiling_period_ns=300 * MS,
        )
    )


def as_daemon(cluster: Cluster) -> Cluster:
    """Have a process run its node's shards for all nodes, as a daemon does, until it closes."""
    host, lock = cluster.routes.host, daemon_lock(cluster.routes.runtime)
    host.be_daemon(Pulse(Notifier({}), cluster.time.boot_ns))
    stop = host.close

    def close() -> None:
        stop()
        lock.release()

    if lock.try_acquire():
        host.close = close  # type: ignore[method-assign]
    return cluster


class Site:
    """A root in a directory, and the machines of its nodes, each with a runtime directory on tmpfs. Close it."""

    def __init__(self, path: Path, nodes: Sequence[str] = ("node1",), policy: Policy | None = None) -> None:
        self.root = path / "root"
        self.root.mkdir()
        self.tmpfs = Path(tempfile.mkdtemp(prefix="tenure-test-", dir="/dev/shm"))
        chance = random.Random(str(path))
        self.cluster_id = chance.randbytes(16)
        self.policy = replace_fields(policy or fast_policy(), cluster_id=self.cluster_id)
        self.root_key = Signer(chance.randbytes(32))
        self.root_key_file = path / ROOT_KEY
        save_private_key(self.root_key_file, self.root_key)
        self.storage = PosixStorage(self.root)
        self.registers = found_cluster(self.storage, self.root, self.policy, self.root_key)
        self.settings: dict[str, Settings] = {}
        runtimes = {node: self.tmpfs / node for node in nodes}
        now = SystemClock().realtime_ns()
        for node in nodes:
            settings = enroll(self.registers, self.root, self.root_key, node, now, path / node)
            peers = {other: place for other, place in runtimes.items() if other != node}
            self.settings[node] = replace(settings, runtime=runtimes[node], peers=peers)
            save_settings(self.settings[node])
        publish_map(self.registers, self.root_key, nodes)

    def open(self, node: str = "node1", storage: Storage | None = None) -> Cluster:
        return Cluster.open(self.root, node_dir=self.node_dir(node), allow_root=True, storage=storage)

    def daemon(self, node: str = "node1") -> Cluster:
        return as_daemon(self.open(node))

    def node_dir(self, node: str = "node1") -> Path:
        return self.settings[node].directory

    def options(self, node: str = "node1") -> list[str]:
        """What every command is told about the cluster."""
        return ["--root", str(self.root), "--node-dir", str(self.node_dir(node)), "--allow-root"]

    def close(self) -> None:
        shutil.rmtree(self.tmpfs)


def sites(path: Path, *nodes: str, policy: Policy | None = None) -> Iterator[Site]:
    """For fixtures."""
    site = Site(path, nodes or ("node1",), policy)
    yield site
    site.close()


def tree(*places: Path) -> dict[str, bytes | None]:
    """What is on disk: every file with its bytes, every directory."""
    found: dict[str, bytes | None] = {}
    for place in places:
        for path in sorted(place.rglob("*")) if place.exists() else ():
            found[str(path)] = path.read_bytes() if path.is_file() else None
    return found


class HandTransport:
    """The way to one shard. ``script``: for the next calls None, "lost" or "done" (done, and the answer lost)."""

    def __init__(self) -> None:
        self.shard: Shard | None = None
        self.script: list[str | None] = []
        self.calls: list[Request] = []
        self.before: Callable[[list[Request]], None] = lambda _: None
        self.timeout_ns = 0
        """How long whoever calls now waits for an answer."""

    def call(self, requests: list[Request], timeout_ns: Span) -> list[Reply]:
        assert timeout_ns > 0
        self.calls += requests
        self.timeout_ns = timeout_ns
        self.before(requests)
        fault = self.script.pop(0) if self.script else None
        if self.shard is None or fault == "lost":
            raise ShardUnavailable("no-answer", "planted: nothing came there")
        replies = self.shard.turn(requests)
        if fault == "done":
            raise ShardUnavailable("no-answer", "planted: the answer is lost")
        return replies


class HandSite:
    """Sessions over memory, one hand-driven clock, and shards that are called in place: no thread, no waiting.

    It is its own Routes. Each session is a process of its own: it shares nothing with others but storage and shards.
    """

    def __init__(
        self,
        path: Path,
        *,
        shards: int = 1,
        policy: Policy | None = None,
        domains_max: int = DOMAINS_MAX,
        hint_bytes_max: int = HINT_BYTES_MAX,
    ) -> None:
        self._limits = (domains_max, hint_bytes_max)
        self.policy = policy or Policy(number=1, cluster_id=CLUSTER, rack_ns=60 * SECOND)
        self.time = HandTime(TIME_KEY, NOW_NS)
        self.storage = MemoryStorage(lambda: self.time.midpoint_ns)
        self.records = FixedRecords(CLUSTER, {1: keyring()}, {1: self.policy})
        self.map = ShardMap(number=1, cluster_id=CLUSTER, owners=(NODE,) * shards)
        self.chance = random.Random(11)
        self.transports = [HandTransport() for _ in range(shards)]
        self.coming: dict[int, HandTransport] = {}
        """The ways to shards of later maps."""
        self._path = path
        self._chains = {shard: MemoryChain() for shard in range(shards)}
        self._stores: list[LeaseStore] = []
        self._ledgers: dict[int, ListLedger] = {}
        for shard in range(shards):
            self.start(shard)

    def start(self, shard: int = 0) -> Shard:
        """Begin a new incarnation of a shard, with an empty database; what ran before is a crash."""
        chain, place = chain_of(shard)
        identity = ShardIdentity(CLUSTER, chain, place, NODE, self.chance.randbytes(8))
        origin = None if chain == 1 else lambda: NOTHING_BEFORE
        stored = self._chains.setdefault(shard, MemoryChain())
        store = LeaseStore(self._path / f"{len(self._stores)}.db")
        self._stores.append(store)
        self._ledgers[shard] = ListLedger()
        running = Shard(
            identity,
            self.map,
            self.policy,
            store=store,
            chain=CeilingChain(
                stored, self.time, WITNESS_KEY, self.policy, identity, origin, look_at_maps=lambda: self.map
            ),
            time=self.time,
            signer=WITNESS_KEY,
            ledger=self._ledgers[shard],
            randomness=self.chance,
            domains_max=self._limits[0],
            hint_bytes_max=self._limits[1],
        )
        assert isinstance(running.start(), Extended)
        self.transport(shard).shard = running
        return running

    def shard_of(self, domain: str) -> int:
        return self.map.shard_of(domain)

    def chain(self, shard: int) -> MemoryChain:
        """The ceiling records of a shard, of all its incarnations."""
        return self._chains[shard]

    def transport(self, shard: int) -> HandTransport:
        return self.transports[shard] if shard < SHARDS_MAX else self.coming.setdefault(shard, HandTransport())

    def context(self, storage: Storage | None = None, time: HandTime | None = None) -> BagContext:
        return BagContext(storage or self.storage, time or self.time, self.records, NODE)

    def session(
        self,
        purpose: str = "",
        storage: Storage | None = None,
        time: HandTime | None = None,
        share: Share | None = None,
        *,
        session_leases: bool = False,
    ) -> Session:
        context = self.context(storage, time)
        chance = random.Random(self.chance.getrandbits(64))
        return Session(
            context,
            LogBook(context, share),
            self,
            self.policy,
            purpose,
            chance,
            background=False,
            session_leases=session_leases,
        )

    def sign_held(self, shard: int) -> None:
        """Wait until a shard signs the ends that it has left to a next turn."""
        running = self.transport(shard).shard
        assert running is not None
        self.time.advance(HOLD_NS)
        running.housekeeping()

    def ledger_of(self, shard: int) -> list[Entry]:
        """What the running incarnation of a shard has told its ledger."""
        return self._ledgers[shard].entries()

    def domains(self, count: int) -> list[str]:
        """Domains, at least one of each shard, in their order."""
        return sorted(f"d{number:02d}" for number in range(count))

    def settled(self, log: str) -> list[Message]:
        """What everybody reads for ever, once everything that can exist by now is closed."""
        book = LogBook(self.context()).opened(log)
        self.time.advance(MS)
        book.horizon.settle(self.time.now().latest + 1)
        return list(book.reader.settled())

    def bag_now(self, log: str) -> Bag:
        """The bag that holds now; the log is made if it is not there."""
        return LogBook(self.context()).opened_or_made(log).grid.bag(self.time.now().latest)

    def close_early(self, bag: Bag) -> None:
        """Close a bag that is not due: somebody with a fast clock did."""
        context = self.context()
        self.storage.ensure_directory(bag.path)
        Closer(context, LogBook(context).opened(bag.log).grid).help(bag)

    def close(self) -> None:
        for store in self._stores:
            store.close()


def hand_sites(path: Path, *, shards: int = 1) -> Iterator[HandSite]:
    """For fixtures."""
    site = HandSite(path, shards=shards)
    yield site
    site.close()


def wait_until(clock: SystemClock, fulfilled: Callable[[], bool], patience_ns: Span = 60 * SECOND) -> None:
    """Ask again and again, up to a bound: for what another process does."""
    until: Instant = clock.boot_ns() + patience_ns
    while not fulfilled():
        assert clock.boot_ns() < until, "waited in vain"
        clock.sleep(5 * MS)
