"""``Cluster``: the door for applications. Opens a root, checks everything, wires all ports.

```python
with Cluster.open("/srv/tenure") as cluster, cluster.session("billing") as session:
    with session.acquire("account/7") as leases:
        print(session.publish("ledger", [b"credit 5"], under=leases))
```
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Final, Self
from weakref import WeakSet

from timeagent.agent.bounded_clock import EmbeddedTime
from timeagent.agent.page import AgentTime, running_agent
from timeagent.clock import MachineClock, SystemClock
from timeagent.errors import BadRequest, NotTrusted, check_callable, check_type
from timeagent.keys import Verifier, fingerprint
from timeagent.sources.local import AssumedSource, KernelSource
from timeagent.units import DAY, Instant, Span, span_text

from .admin.membership import read_marker
from .bag.closedbags import ListedFiles
from .bag.horizon import Horizon
from .bag.logs import list_logs
from .bag.message import Position, before, parse_cursor
from .bag.ports import BagContext, Storage, Threads
from .bag.reader import Follower, Message, Reading, checked_level
from .bag.roots import Root, cluster_storage_at, parse_root
from .bag.writing import Writer
from .doctor.file_system import is_local
from .doctor.probes import refuse_unfit
from .formats.birth import checked_kind, store_of
from .formats.paths import Grid
from .formats.policy import Policy
from .formats.shardmap import ShardMap
from .lease.wire import LeaseView, ShardNumbers
from .node.hosted_shard import ShardRuntime
from .node.own_keys import OwnKeys, check_own_keys
from .node.record_watch import MapWatch, PolicyWatch, TrustWatch
from .node.records import Registers
from .node.routes import ShardRoutes, TimeThere
from .node.runtime import Wakes, ensure_runtime, group_id, runtime_of, writer_socket
from .node.settings import Settings, Sharing, find_settings, root_path
from .node.shards import ShardHost
from .node.writer_client import NodeWriterClient, SharedWriter
from .node.writer_server import NodeWriter
from .session.open_logs import LogBook, OpenLog
from .session.session import Session
from .views import Fold, View

SETTLE_AHEAD_NS_MAX: Final[Span] = DAY
"""Whoever waits for a later instant means another one."""


def refuse_root_user(uid: int, *, allow_root: bool) -> None:
    """Raise NotTrusted for the superuser, whom no file mode stops."""
    if uid == 0 and not allow_root:
        raise NotTrusted(
            "root-user",
            "tenure does not work as root, whom no file mode stops",
            hint="run as the service's own user, or say --allow-root (in Python: allow_root=True)",
        )


def time_sources(machine: MachineClock, policy: Policy) -> tuple[KernelSource, AssumedSource]:
    """Return the sources in order of preference; *assumed* refuses where the policy states no radius."""
    return KernelSource(machine), AssumedSource(machine, policy.assumed_radius_ns)


class Cluster:
    """One cluster, as this process sees it. Safe to share between threads; a child after fork opens its own."""

    def __init__(self, root: Root, settings: Settings, storage: Storage, registers: Registers) -> None:
        """Wire the ports. Use ``Cluster.open``."""
        self.root = root
        self.settings = settings
        self.registers = registers
        self._storage = storage
        self.policy = PolicyWatch(registers)
        self.keys = OwnKeys(settings)
        runtime, machine, radius = runtime_of(settings, registers.cluster_id), SystemClock(), self.policy.radius_ns_max
        kernel, assumed = time_sources(machine, self.policy.newest)
        key_id, is_own = self.keys.time.in_use.id, self.keys.is_own
        # Decided once: a process whose agent ends is refused time until that runs again. Two makers of one node's times
        # could contradict each other.
        agent = running_agent(runtime, machine, key_id=key_id, radius_ns_max=radius, is_own=is_own)
        self.time = agent or EmbeddedTime(machine, (kernel, assumed), self.keys.time, radius_ns_max=radius)
        self.policy.on_change(lambda policy: self.time.limit_radius(policy.radius_ns_max))
        self.policy.on_change(lambda policy: assumed.state(policy.assumed_radius_ns))
        self.maps = MapWatch(registers, registers.newest_map())
        self.wakes = Wakes(runtime)
        self.context = BagContext(storage, self.time, registers, settings.node, Threads(), self.wakes.wake)
        batches = writer_socket(runtime)
        self._door = NodeWriterClient(batches, registers.cluster_id, settings.node, self.time, self.policy)
        self.logs = LogBook(self.context, self._shared)
        self._random = random.Random(os.urandom(32))  # noqa: S311 - names and jitter, seeded from the system
        self._process = os.getpid()
        self._lock = Lock()
        self._closed = False
        self._routes: ShardRoutes | None = None
        self._trust_lock = Lock()
        self._trust: TrustWatch | None = None
        self._sessions: WeakSet[Session] = WeakSet()

    @property
    def map(self) -> ShardMap:
        """The newest shard map that this process knows. It looks for a newer one when a shard is not where it was."""
        return self.maps.newest

    @property
    def time_by_agent(self) -> bool:
        """Whether the times of this process come from the node's agent."""
        return isinstance(self.time, AgentTime)

    @classmethod
    def open(
        cls,
        root: str | Path | None = None,
        *,
        node_dir: str | Path | None = None,
        allow_root: bool = False,
        storage: Storage | None = None,
    ) -> Self:
        """Open a root that this machine has joined.

        ``root``: a directory, or an address in an object store as ``s3://bucket/prefix``; default TENURE_ROOT.
        ``node_dir``: default the usual places.
        ``storage``: another way to the same directory than the operating system's own; for tests.

        Raises Environment (not mounted, not a root), BadConfiguration (not joined, bad policy), NotTrusted (another
        cluster's key, the superuser), Damaged. Touches the mount.
        """
        check_type(bool, allow_root=allow_root)
        _check_places(root=root, node_dir=node_dir)
        refuse_root_user(os.geteuid(), allow_root=allow_root)
        path = root_path(root)
        storage = storage or cluster_storage_at(path)
        marker = read_marker(storage, path)
        settings = find_settings(marker.cluster_id, path, Path(node_dir) if node_dir else None)
        if settings.root_key != marker.root_key:
            raise NotTrusted(
                "other-cluster",
                f"{path} belongs to the root key {marker.fingerprint}; {settings.directory} pins "
                f"{fingerprint(settings.root_key)}",
                hint="this is another cluster's root, or another cluster's node directory",
            )
        registers = Registers(storage, marker.cluster_id, Verifier(settings.root_key))
        cluster = cls(path, settings, storage, registers)
        check_own_keys(registers, settings)
        cluster.watch_trust()
        return cluster

    def check_trusted_now(self) -> None:
        """Raise NotTrusted if what this process signs is refused by now. Touches the mount."""
        self.keys.check_trusted(self.registers, self.time)

    @property
    def routes(self) -> ShardRoutes:
        """How the shards are reached; the own shard is started here where no daemon runs it. Made when first asked.

        Raises Environment where there is no tmpfs, BadRequest once the cluster is closed, or in a child after fork.
        """
        with self._lock:
            self.check_open()
            if self._routes is None:
                settings, storage, time, policy = self.settings, self._storage, self.time, self.policy
                runtime = runtime_of(settings, self.registers.cluster_id)
                ensure_runtime(runtime, group=group_id(settings.group))
                seed, trust, kept = self.chance(), self.watch_trust(), ShardRuntime(runtime)
                records = self.registers
                host = ShardHost(storage, records, settings, self.keys, time, policy, runtime, seed, trust, kept)
                host.follow(self.maps)
                self.policy.start()
                self._routes = ShardRoutes(host, self.maps, storage, settings, time, policy, runtime, trust)
            return self._routes

    def watch_trust(self) -> TrustWatch:
        """Return who is trusted now, kept up by a thread that looks every second, also for this node's next keys.

        Touches the mount when it begins. Raises Damaged, NotTrusted, Environment.
        """
        with self._trust_lock:
            if self._trust is None:
                self._trust = TrustWatch(self.registers, self.time, self.keys.look)
                self._trust.start()
            return self._trust

    def chance(self) -> random.Random:
        """Return a stream of chance of its own."""
        return random.Random(self._random.getrandbits(256))  # noqa: S311 - names and jitter

    def check_open(self) -> None:
        """Raise BadRequest once the cluster is closed, or in a child after fork: who waits asks now and then."""
        if self._process != os.getpid():
            raise BadRequest(
                "forked",
                f"this cluster was opened by process {self._process}, this is its child {os.getpid()}",
                hint="open it in the child",
            )
        if self._closed:
            raise BadRequest("cluster-closed", "this cluster is closed", hint="open it again")

    def _opened(self, log: str) -> OpenLog:
        self.check_open()
        return self.logs.opened(log)

    def _shared(self, own: Writer, grid: Grid, horizon: Horizon) -> Writer:
        """Hand frames to the node's writer first, where a daemon runs one, if that is worth it for the log's place."""
        chosen, place = self.settings.node_writer, parse_root(store_of(grid.birth) or self.root)
        if chosen is Sharing.NEVER or (chosen is Sharing.AUTO and isinstance(place, Path) and is_local(place)):
            return own
        files = ListedFiles(self._storage)
        return SharedWriter(own, self._door, grid, horizon.authority, files)

    def node_writer(self) -> NodeWriter:
        """Return what batches the frames of this machine's processes, with logs and an incarnation of its own."""
        incarnation = self._random.randbytes(8)
        own = LogBook(self.context)
        return NodeWriter(self.registers.cluster_id, self.settings.node, incarnation, own.opened)

    def session(self, purpose: str = "", *, session_leases: bool = False) -> Session:
        """Begin a session: one writer incarnation with its leases. ``purpose`` shows who holds what, and why.

        ``session_leases``: its leases are kept together, by one renewal for each shard: for thousands of them.
        Raises NotTrusted for a node whose keys are revoked or replaced; Environment. Touches the mount.
        """
        check_type(bool, session_leases=session_leases)
        routes = self.routes
        self.check_trusted_now()
        seed = self.chance()
        session = Session(self.context, self.logs, routes, self.policy, purpose, seed, session_leases=session_leases)
        with self._lock:
            self.check_open()
            self._sessions.add(session)
        return session

    def inspect(self, shard: int) -> tuple[ShardNumbers, list[LeaseView]]:
        """Return a shard's numbers and all its leases, for people. Raises ShardUnavailable when it does not answer."""
        self._check_shard(shard)
        return self.routes.inspect(shard)

    def clock_of(self, shard: int, node: str) -> TimeThere:
        """Return what time it is at a node that runs a shard, by its own word. Raises ShardUnavailable. Blocks."""
        self._check_shard(shard)
        check_type(str, node=node)
        return self.routes.clock_of(shard, node)

    def _check_shard(self, shard: int) -> None:
        check_type(int, shard=shard)
        if self.map.owner_of(shard) is None:
            raise BadRequest(
                "no-such-shard",
                f"map {self.map.number} has no shard {shard}; it has {', '.join(map(str, self.map.shards))}",
                hint="tenure shards ls",
            )

    def create_log(self, name: str, kind: str = "maildir", *, store: str | Path | None = None) -> None:
        """Make a log of a kind, ``maildir`` or ``log``, unless it is there already. Touches the mount.

        ``store``: where its bags are to be for ever, if not at the root: a directory, by the same path on every node,
        or an address in an object store as ``s3://bucket/prefix``. It is tried out first.

        Publishing makes a log too, of kind maildir, at the root. Raises BadRequest for a bad name, for a kind that does
        not exist, and if there is a log of that name that is of the other kind or elsewhere; Environment for a store
        that is not fit, or cannot be asked.
        """
        self.check_open()
        _check_places(store=store)
        kind = checked_kind(kind)
        place = None if store is None else parse_root(store)
        if place is not None and self.logs.find(name) is None:
            refuse_unfit(place, self.chance().randbytes(6).hex())
        self.logs.opened_or_made(name, kind, place)

    def log_names(self) -> list[str]:
        """Return the names of all logs. Touches the mount."""
        return list_logs(self.context)

    def read(
        self, log: str, *, level: str = "settled", after_ns: Instant = 0, until_ns: Instant | None = None
    ) -> Iterator[Message]:
        """Return a log's messages in order. ``settled``: final, the same for everyone. ``latest``: open bags too.

        An instant is an integer: nanoseconds since 1970, as ``time.time_ns()`` returns.

        Closes no bag that nobody began to close: a daemon does, or ``settle``; without either *settled* never has more.
        Without a lease *latest* promises nothing about what it omits. Raises BadRequest for a log that does not exist.
        Touches the mount, bag by bag as the messages are asked for.
        """
        check_type(int, after_ns=after_ns)
        check_type(int | None, until_ns=until_ns)
        if level not in ("settled", "latest"):
            raise BadRequest("bad-level", f"{level!r} is no level of reading", hint="settled or latest")
        reader = self._opened(log).reader
        if level == "settled":
            return reader.settled(after_ns, until_ns)
        return reader.latest(after_ns, until_ns)

    def batches(
        self,
        log: str,
        *,
        level: str = "settled",
        after: str | Instant = 0,
        until_ns: Instant | None = None,
        as_of_ns: Instant = 0,
    ) -> Reading:
        """Begin a pass over a log's messages in bulk: bag by bag, as columns.

        ``after``: the ``cursor`` of an earlier pass, or an instant; what stands above it is read. ``level``: also
        ``stale-ok``, which asks the mount only if what this process knows is older than ``as_of_ns``. Raises as
        ``read``; BadRequest, code ``gone``, for what retention has deleted.
        """
        check_type(int, as_of_ns=as_of_ns)
        check_type(int | None, until_ns=until_ns)
        reader = self._opened(log).reader
        position = _position(log, after)
        return reader.batches(position, until_ns, checked_level(level), as_of_ns)

    def follow(self, log: str, *, after: str | Instant = 0) -> Follower:
        """Return what hands out a log's messages as they become final: iterate over its ``batches``, which never end.

        ``after`` as for ``batches``. Closes nothing: a daemon does; where none runs, call ``settle`` meanwhile. What
        waits raises BadRequest, code ``cluster-closed``, once the cluster is closed.
        """
        reader = self._opened(log).reader

        def pause(span: Span, _: Instant) -> None:
            self.check_open()
            self.time.sleep(span)

        return Follower(reader, pause, _position(log, after))

    def view[S](self, fold: Fold[S]) -> View[S]:
        """Return a view: what a fold makes of everything settled. Raises BadRequest for a log that does not exist."""
        check_type(Fold, fold=fold)
        return View(self.context, self.logs, fold)

    def settle(self, log: str, to_ns: Instant, progress: Callable[[Instant], None] | None = None) -> Instant:
        """Make everything before an instant final, helping to close what is due; return the horizon. Waits.

        ``to_ns``: nanoseconds since 1970; ``time.time_ns()`` for what was written up to now. Needs no daemon.
        ``progress`` is told the horizon after every step. Raises BadRequest for an instant more than a day ahead, and
        once the cluster is closed.
        """
        check_type(int, to_ns=to_ns)
        if progress is not None:
            check_callable(progress=progress)
        horizon = self._opened(log).horizon
        if to_ns > horizon.reached and to_ns - self.time.now().latest > SETTLE_AHEAD_NS_MAX:
            what = (
                f"{to_ns} lies more than {span_text(SETTLE_AHEAD_NS_MAX)} ahead, and nothing is final before its time"
            )
            raise BadRequest("too-far-ahead", what, hint="name an earlier instant, in nanoseconds since 1970")

        def told(reached: Instant) -> None:
            self.check_open()
            if progress is not None:
                progress(reached)

        return horizon.settle(to_ns, told)

    def close(self) -> None:
        """End all sessions and, if this process runs a shard, leave it to the next that asks. Idempotent.

        Waits for what is being written. Leases that others hold of that shard stay theirs. In a child: nothing.
        """
        if self._process != os.getpid():
            return
        with self._lock:
            self._closed = True
            sessions = list(self._sessions)
        for session in sessions:  # all before any gives back: what one gives back no other waits for any more
            session.take_no_more()
        with contextlib.ExitStack() as everything:
            everything.callback(self.maps.close)
            everything.callback(self.policy.close)
            if self._trust is not None:
                everything.callback(self._trust.close)
            if self._routes is not None:
                everything.callback(self._routes.close)
            everything.callback(self._door.close)
            for session in sessions:
                everything.callback(session.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()


def _check_places(**places: str | Path | None) -> None:
    """Raise BadRequest, by name, for what names no place."""
    check_type(str | os.PathLike | None, **places)
    for name, place in places.items():
        if place is not None and "\0" in os.fsdecode(place):
            raise BadRequest("bad-type", f"{name} is {str(place)[:80]!r}: no path holds a NUL", hint="give it a path")


def _position(log: str, after: str | Instant) -> Position:
    if isinstance(after, str):
        return parse_cursor(after, log)
    check_type(int, after=after)
    return before(after + 1)


def known_nodes(registers: Registers) -> Sequence[str]:
    """Return the names of all nodes that the newest trust record knows, in order. Touches the mount."""
    trust = registers.newest_trust()
    return sorted({entry.node for entry in trust.keys})
