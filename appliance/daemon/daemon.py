"""The node daemon: its shards and doors, the writer of its machine, and the metronome for every log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread
from typing import Final

from timeagent.console import counted
from timeagent.errors import BadTime, Environment, ShardUnavailable
from timeagent.notify import Notifier, Pulse
from timeagent.units import DAY, MS, SECOND

from ..cluster import Cluster
from ..doctor.health import not_well
from ..formats.names import Address
from ..formats.shardmap import shard_text
from ..lease import tls
from ..lease.listeners import TlsListener
from ..lease.server import ShardServer
from ..node.desk_wire import door
from ..node.releases import Releases
from ..node.runtime import (
    HTTP_SOCKET,
    LocalLock,
    begin,
    close_doors,
    daemon_lock,
    group_id,
    kept_by,
    open_doors,
    shard_socket,
    user_directory,
    writer_socket,
)
from ..node.settings import node_directories
from ..node.writer_server import NodeWriterServer
from .failover import ShardFailover
from .http import HttpAnswer, HttpServer
from .lease_desk import DeskConnection, LeaseDesk
from .pace import Pace
from .status import AT_ONCE, NodeCollector, Observed, pages

_log = logging.getLogger(__name__)

BEAT_NS: Final = 100 * MS
"""How often is seen which logs are due, or woken: in memory and on tmpfs."""

TOLD_NS: Final = SECOND
"""How often the mount is asked for its room, and the supervisor told how it goes."""

LOCK_TRIES: Final = 50
LOCK_PAUSE_NS: Final = 10 * MS
"""How long, and how often, the daemon's lock is tried while applications look at it."""

TRUST_NS: Final = 3 * SECOND
"""How long the trust record may say that this node's keys end, with no next ones here, before the node stops."""

AGENT_NS: Final = 60 * SECOND
"""How long the start waits for an agent without time: it, or what it asks, has just begun, or the clock was set."""


class Node:
    def __init__(self, cluster: Cluster, notifier: Notifier | None = None, version: str = "") -> None:
        """Run nothing yet. ``notifier``: the supervisor; default the one of this process's environment."""
        self._cluster = cluster
        self._notifier = notifier or Notifier()
        self._pulse = Pulse(self._notifier, cluster.time.boot_ns)
        settings, trust, time = cluster.settings, cluster.watch_trust(), cluster.time
        keep_ns = settings.retention_days * DAY if settings.retention_days else None
        self.pace = Pace(cluster.context, cluster.wakes.taken, packs=settings.pack, keep_ns=keep_ns)
        self._releases = Releases(settings.node, cluster.keys.tls, cluster.map.cluster_id, trust, time, version)
        self._observed = Observed(cluster, self._releases)
        self._failover = ShardFailover(cluster.routes, settings.node, trust.nodes, time, cluster.policy)
        self.desk = LeaseDesk(cluster.session, time, cluster.policy)
        """What hands out sub-leases."""
        self._door: TlsListener | None = None
        self._webs: list[HttpServer] = []
        self._only: LocalLock | None = None
        self._until_stop, self._until_close = ExitStack(), ExitStack()
        self._said: tuple[str, int] = ("", 0)
        self._doubted_ns: int | None = None
        """Since when each look has said that this node's keys end; None: the last one did not."""
        self.awaited: dict[int, str] = {}
        """This node's shards that did not begin with it, and have not yet, each with what is waited for."""

    def start(self) -> list[int]:
        """Run this node's shards and its writer, open its doors; return the shards' numbers.

        A shard that an application runs here is not among them: it gives way, and the shard begins when it has. Call
        stop() and close() whatever comes of it. Blocks while the node's agent says no time. Raises Environment if there
        is a daemon, or an address is taken, BadTime.
        """
        routes = self._cluster.routes
        self._be_the_only_one()
        self._await_agent()
        shards = routes.own_shards()
        routes.host.be_daemon(self._pulse)
        self._cluster.maps.keep_looking()
        self._cluster.wakes.open()
        for shard in shards:
            if (why := self._begun_or_awaited(shard)) is not None:
                self.awaited[shard] = why
        writer = self._start_writer()
        door = self._open_doors()
        self._failover.start()
        watches = [each.thread for each in (self._cluster.watch_trust(), self._cluster.maps, self._cluster.policy)]
        threads = [*watches, self._failover.thread, self._releases.thread, *(web.thread for web in self._webs), door]
        self._observed.threads = lambda: [*threads, *writer.threads]
        self._observed.expect_mount()
        self._notifier.ready(self._status())
        return sorted(routes.host.everything())

    def _begun_or_awaited(self, shard: int) -> str | None:
        host, shard_map = self._cluster.routes.host, self._cluster.map
        why = host.waits_for(shard, shard_map)
        if why is not None:  # that node gives it back when this one answers
            return why
        if host.try_host(shard, shard_map):
            return None
        who = kept_by(shard_socket(self._cluster.routes.runtime, shard)) or "another process of this machine"
        return f"{who} runs it, and gives it up in good order"

    @property
    def address(self) -> Address | None:
        return None if self._door is None else self._door.address

    @property
    def web_address(self) -> Address | Path | None:
        """Where people are answered, beside the door on tmpfs if the settings say so; None before start()."""
        return self._webs[-1].place if self._webs else None

    def _open_doors(self) -> Thread | None:
        """Return the thread of the door for other nodes."""
        cluster, settings = self._cluster, self._cluster.settings
        host, runtime = cluster.routes.host, cluster.routes.runtime
        trust = cluster.watch_trust()

        def server_of(shard: int) -> ShardServer | None:
            hosted = host.hosted(shard)
            if hosted is None:
                self._failover.asked_for(shard)
            return None if hosted is None else hosted.server

        thread = None
        if settings.listen is not None:
            version = self._releases.own
            ends = tls.OwnEnds(
                lambda key: tls.server_context(key, tls.certificate(key.public, release=version)), cluster.keys.tls
            )
            self._door = TlsListener(settings.listen, ends, trust, cluster.map.cluster_id, server_of, cluster.time)
            thread = Thread(target=self._door.run, name="tenure-door", daemon=True)
            self._until_close.callback(self._door.close_all)  # also where it never begins
            begin(thread)
            self._until_close.callback(thread.join)
            self._until_close.callback(self._door.stop)
        self._releases.start()
        shown = pages(NodeCollector(self._observed, self._door, self._webs, self.desk))

        def answer(path: str, query: Mapping[str, str]) -> HttpAnswer | None:
            return shown[path](query) if path in shown else None

        # Commands look for the daemon on tmpfs, wherever else it answers.
        for place in dict.fromkeys([runtime / HTTP_SOCKET, settings.http or runtime / HTTP_SOCKET]):
            web = HttpServer(place, answer, cluster.time, group_id(settings.group), AT_ONCE)
            self._webs.append(web)
            self._until_close.callback(web.close)
            web.start()
        return thread

    def stopping(self, *, drains: bool) -> str:
        """Begin no shard any more; return what is done from now on, which the supervisor is told too.

        ``drains``: the shards wait until every lease is over; else they leave them to the daemon that is started next.
        Both doors stay open until close(), so that leases can be given back.
        """
        host = self._cluster.routes.host
        host.drains = host.drains or drains
        self._begin_nothing()
        self._notifier.stopping()
        how = "waiting until every lease is relinquished or over" if host.drains else "leases stay, for a restart"
        self._notifier.status(f"stopping: {how}")
        return f"stopping: {how}"

    def _begin_nothing(self) -> None:
        self._observed.stopping = True
        self._failover.close()
        self._releases.close()

    def close(self) -> None:
        """Close both doors, and the writer if it runs still: to be called after the cluster is closed. Idempotent."""
        self.stop()
        self._until_close.close()

    def _status(self) -> str:
        wrong = [check.words for check in not_well(self._observed.checks())]
        shards = counted(len(self._observed.own_shards), "shard")
        where = f", reached at {self._door.address}" if self._door else ""
        return f"{self._cluster.settings.node}: {shards}{where}; " + ("; ".join(wrong) or "ready")

    def _tell(self) -> None:
        """Ask the mount for its room, and tell the supervisor how it goes when that has changed. Touches the mount."""
        boot = self._cluster.time.boot_ns()
        if boot - self._said[1] >= TOLD_NS:
            self._observed.see_mount(self._cluster.root)
            status = self._status()
            if status != self._said[0]:
                self._notifier.status(status)
            self._said = status, boot

    def run(self, stop: Event, begun: Callable[[int], object] = lambda _: None) -> None:
        """Keep the pace until told to stop. Blocks. What fails is logged, and tried again at the next beat.

        ``begun`` is told of each shard that was waited for, once it runs here.

        Raises NotTrusted when the node's keys are revoked, or end with no next ones here, ShardUnavailable when a shard
        of this node has broken or a thread has ended by itself, Environment when somebody removed its files on tmpfs:
        whoever supervises the daemon starts the next incarnation. A shard that another node has taken over is waited
        for (``failover.py``).
        """
        # Not stop.wait(): a signal handler that sets the event while this thread is inside wait() would block for ever
        # on the lock that wait() holds.
        while not stop.is_set():
            self._cluster.time.sleep(BEAT_NS)
            self._check_trusted()
            self.pace.beat()
            self._tell()
            for shard in [each for each in self.awaited if self._cluster.routes.host.hosted(each) is not None]:
                del self.awaited[shard]
                begun(shard)
            self._pulse.beat("pace")
            if self._only is not None and not self._only.is_there():
                what = f"somebody removed files in {self._cluster.routes.runtime}: applications do not find this daemon"
                hint = "start the node again, and see who removes files there (systemd: RemoveIPC=)"
                raise Environment("runtime-gone", what, hint=hint)
            for why in self._observed.ended():
                raise ShardUnavailable("thread-ended", f"{why}; the log says why", hint="start the node again")
            for shard, why in self._cluster.routes.host.broken().items():
                raise ShardUnavailable(
                    "shard-ended", f"shard {shard_text(shard)} has ended: {why}", hint="start the node again"
                )

    def _check_trusted(self) -> None:
        """Raise NotTrusted for a node whose keys are revoked, or end, so early that its shards still stop in order.

        A rotation that is under way has its time: the record comes first, then the keys. It counts from the first look
        that says so: the one before may have been long ago, if the mount took its time with a beat.
        """
        boot = self._cluster.time.boot_ns()
        why = self._cluster.routes.host.keys_end()
        if why is None:
            self._doubted_ns = None
        elif self._doubted_ns is None:
            self._doubted_ns = boot
        elif boot - self._doubted_ns >= TRUST_NS:
            self._cluster.routes.host.drains = True  # nobody goes on here with what it keeps
            raise self._cluster.keys.not_trusted(why)

    def _be_the_only_one(self) -> None:
        """Take the daemon's lock, held until stop(). Applications look at it, each for an instant."""
        lock = daemon_lock(self._cluster.routes.runtime)
        for _ in range(LOCK_TRIES):
            if lock.try_acquire():
                self._only = lock
                self._until_stop.callback(lock.release)
                return
            self._cluster.time.sleep(LOCK_PAUSE_NS)
        raise Environment(
            "node-runs-already",
            f"another process of this machine runs node {self._cluster.settings.node}",
            hint="stop it first: there is one daemon per node",
        )

    def _await_agent(self) -> None:
        time, why = self._cluster.time, ""
        until = time.boot_ns() + AGENT_NS if self._cluster.time_by_agent else 0
        while True:
            try:
                time.now()
            except BadTime as problem:
                if time.boot_ns() >= until:
                    raise
                if problem.code != why:
                    _log.warning("time-awaited code=%s reason=%s", problem.code, problem)
                why = problem.code
                time.sleep(BEAT_NS)
            else:
                return

    def _start_writer(self) -> NodeWriterServer:
        """Batch what the processes of this machine write, and hand out sub-leases to them."""
        cluster, settings = self._cluster, self._cluster.settings
        socket = writer_socket(cluster.routes.runtime)
        writer = NodeWriterServer(
            cluster.node_writer(), socket, desk=lambda accepted, asked: self.desk.serve(DeskConnection(accepted), asked)
        )
        self._until_stop.callback(writer.stop)
        writer.start()
        usual = settings.directory in node_directories(cluster.registers.cluster_id)
        users, root = str(user_directory()), str(cluster.root)
        doors = [door(users, root, str(settings.directory)), door(users, root, None) if usual else None]
        known = [each for each in doors if each is not None]
        open_doors(known, socket)
        self._until_stop.callback(close_doors, known, socket)
        return writer

    def stop(self) -> None:
        """Wait until the sub-leases are over, write and answer what the writer was handed, and end it. Idempotent.

        The shards end with their cluster.
        """
        self._begin_nothing()
        self.desk.stop()
        self._until_stop.close()
