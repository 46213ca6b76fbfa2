"""The node daemon: its shards, and a pace that no single log can stop."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import count
from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest

from appliance.admin.membership import enroll
from appliance.cluster import Cluster
from appliance.daemon.daemon import TRUST_NS, Node
from appliance.doctor.health import not_well
from appliance.formats.names import Address
from appliance.node.releases import Releases
from appliance.node.runtime import shard_socket
from tests.support.cluster import Site, wait_until
from tests.support.ports import free_port
from tests.support.values import CLUSTER, TIME_KEY
from timeagent.clock import SystemClock
from timeagent.errors import BadTime, Environment, NotTrusted, ShardUnavailable
from timeagent.notify import Notifier
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from pathlib import Path

    from timeagent.units import TimeInterval


def test_daemon_runs_its_shards_and_there_is_one_of_it(site: Site) -> None:
    with site.open() as cluster, site.open() as other:
        node = Node(cluster)
        assert node.start() == [0]
        with pytest.raises(Environment) as refused:
            Node(other).start()
        assert refused.value.code == "node-runs-already"
        assert refused.value.hint
        node.stop()
        second = Node(other)
        assert second.start() == [], "the first one's shard runs until its cluster is closed"
        second.stop()
        second.close()
        node.close()


@pytest.mark.parametrize("silent", [3, 10**6])
def test_start_waits_for_an_agent_that_says_no_time_but_not_for_ever(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, silent: int
) -> None:
    with site.open() as cluster:
        said, asked = cluster.time.now, count()

        def now() -> TimeInterval:
            if next(asked) < silent:
                raise BadTime("no-time", "the time agent has no bound")
            return said()

        monkeypatch.setattr("appliance.daemon.daemon.AGENT_NS", SECOND)
        monkeypatch.setattr(Cluster, "time_by_agent", True)
        monkeypatch.setattr(cluster.time, "now", now)
        node = Node(cluster)
        if silent == 3:
            assert node.start() == [0]
        else:
            with pytest.raises(BadTime):
                node.start()
            assert next(asked) > 3
        assert caplog.text.count("time-awaited code=no-time") == 1
        node.stop()
    node.close()


def test_daemon_says_of_a_shard_that_it_waits_for_and_from_whom_until_it_runs_here(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []

    def keeper(path: Path) -> str:
        asked.append(path)
        return "process 7 of this machine"

    for module in ("appliance.daemon.daemon", "appliance.daemon.status"):
        monkeypatch.setattr(f"{module}.kept_by", keeper)
    begun: list[int] = []
    with site.open() as application, site.open() as other:
        assert application.routes.host.try_host(0, application.map)
        monkeypatch.setattr(application.routes.host, "_give_way", lambda _: None)
        node, stop = Node(other), Event()
        assert node.start() == []
        assert node.awaited == {0: "process 7 of this machine runs it, and gives it up in good order"}
        assert "shard 0: does not run here yet: process 7 of this machine runs it" in node._status()
        assert set(asked) == {shard_socket(other.routes.runtime, 0)}
        thread = Thread(target=node.run, args=(stop, begun.append))
        thread.start()
        application.close()
        wait_until(SystemClock(), lambda: begun == [0])
        stop.set()
        thread.join(20)
        assert node.awaited == {}
        assert "ready" in node._status()
        node.stop()
    node.close()


def test_shard_that_another_node_may_still_grant_in_is_waited_for_by_that_nodes_name(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site.open() as cluster:
        monkeypatch.setattr(cluster.routes.host, "waits_for", lambda *_: "node node2 may grant until noon")
        node = Node(cluster)
        assert node.start() == []
        assert node.awaited == {0: "node node2 may grant until noon"}
        node.stop()
    node.close()


def test_daemon_keeps_the_pace_until_it_is_told_to_stop(site: Site) -> None:
    beaten, stop = Event(), Event()
    with site.open() as cluster:
        node = Node(cluster)
        node.pace.beat = beaten.set  # type: ignore[method-assign]
        thread = Thread(target=node.run, args=(stop,))
        thread.start()
        assert beaten.wait(20)
        stop.set()
        thread.join(20)
        assert not thread.is_alive()


def daemon_ends(node: Node) -> ShardUnavailable:
    """Run the daemon in this thread, bounded: it has to end by itself."""
    beats = 0
    stop = Event()

    def beat() -> None:
        nonlocal beats
        beats += 1
        if beats > 200:
            stop.set()

    node.pace.beat = beat  # type: ignore[method-assign]
    with pytest.raises(ShardUnavailable) as ended:
        node.run(stop)
    return ended.value


# Another took it over and may go on: the daemon stays, and begins again when that is over.
def test_shard_that_was_deposed_begins_again(site: Site) -> None:
    with site.open() as cluster:
        node = Node(cluster)
        node.start()
        hosted = cluster.routes.host.hosted(0)
        assert hosted is not None
        assert cluster.routes.host.broken() == {}
        hosted.chain._depose("another incarnation linked record 7")

        def begun_again() -> bool:
            other = cluster.routes.host.hosted(0)
            return other is not None and other is not hosted and other.ended() is None

        wait_until(SystemClock(), begun_again)
        node.stop()
    node.close()


def test_daemon_ends_by_name_when_its_server_has_died(site: Site) -> None:
    with site.open() as cluster:
        node = Node(cluster)
        node.start()
        hosted = cluster.routes.host.everything()[0]
        hosted.server.stop()
        wait_until(SystemClock(), lambda: hosted.ended() is not None)
        ended = daemon_ends(node)
    assert ended.code == "shard-ended"
    assert "server has ended" in ended.message


# Nothing that a peer sends ends a thread; one that ends all the same must not be missed: others are answered, or trust
# is looked at, by nobody any more.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("planted_in", "code", "why"),
    [
        ("lease.listeners.TlsListener._loop_once", "thread-ended", "thread tenure-door has ended"),
        ("node.record_watch.TrustWatch.refresh", "thread-ended", "thread tenure-trust has ended"),
        ("daemon.failover.ShardFailover.turn", "thread-ended", "thread tenure-tenancy has ended"),
        ("lease.witness_ledger.LedgerSpool.drain", "shard-ended", "its ledger has ended"),
    ],
)
def test_daemon_ends_by_name_when_a_thread_has_ended(
    site: Site, planted_in: str, code: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planted(*_: object) -> None:
        raise RuntimeError("planted")

    with site.open() as cluster:
        cluster.settings = replace(cluster.settings, listen=Address("127.0.0.1", free_port()))
        node = Node(cluster)
        node.start()
        observed = node._observed
        assert not_well(observed.running()) == []
        monkeypatch.setattr(f"appliance.{planted_in}", planted)
        wait_until(SystemClock(), lambda: why in " ".join(check.reason for check in observed.running()))
        ended = daemon_ends(node)
        assert ended.code == code
        assert why in ended.message
        monkeypatch.undo()
    node.close()


# Applications would run the shard themselves, and never give way: they look for the daemon's lock.
def test_daemon_ends_by_name_when_its_files_on_tmpfs_are_removed(site: Site) -> None:
    with site.open() as cluster:
        node = Node(cluster)
        node.start()
        shutil.rmtree(cluster.routes.runtime)
        with pytest.raises(Environment) as ended:
            node.run(Event())
        assert ended.value.code == "runtime-gone"
        assert str(cluster.routes.runtime) in ended.value.message
        node.stop()
    node.close()


class SetByASignal(Event):
    """An event that a signal handler sets: whoever is inside wait() then holds the lock that set() needs."""

    def wait(self, timeout: float | None = None) -> bool:
        raise AssertionError(f"a signal inside wait({timeout}) would never be answered")


def test_daemon_never_waits_where_the_signal_that_stops_it_would_be_lost(site: Site) -> None:
    stop = SetByASignal()
    with site.open() as cluster:
        node = Node(cluster)
        node.pace.beat = stop.set  # type: ignore[method-assign]
        node.run(stop)
    assert stop.is_set()


class Listening(Notifier):
    """A supervisor that wants a sign of life all the time, and hears all of them."""

    def __init__(self) -> None:
        super().__init__({})
        self.watchdog_ns = 1
        self.heard: list[str] = []

    def _send(self, word: str, status: str = "") -> None:
        self.heard.append(f"{word} {status}".strip())


def run_until(node: Node, listening: Listening, word: str) -> None:
    stop = Event()
    thread = Thread(target=node.run, args=(stop,), daemon=True)
    thread.start()
    wait_until(SystemClock(), lambda: word in listening.heard)
    stop.set()
    thread.join(20)
    assert not thread.is_alive()


def test_supervisor_is_told_by_a_daemon_with_shards_and_by_one_without(site: Site) -> None:
    listening = Listening()
    with site.open() as cluster:
        node = Node(cluster, listening)
        node.start()
        run_until(node, listening, "WATCHDOG=1")
        assert node.stopping(drains=False) == "stopping: leases stay, for a restart"
        node.stop()
    node.close()
    first = next(each for each in listening.heard if each != "WATCHDOG=1")  # a shard's loop may have gone round before
    assert first.startswith("READY=1 node1: 1 shard")
    assert "STOPPING=1" in listening.heard
    enroll(site.registers, site.root, site.root_key, "node9", SystemClock().realtime_ns(), site.root.parent / "node9")
    bare = Listening()
    with Cluster.open(site.root, node_dir=site.root.parent / "node9", allow_root=True) as cluster:
        node = Node(cluster, bare)
        assert node.start() == []
        run_until(node, bare, "WATCHDOG=1")
        node.stop()
    node.close()


# What looks as if the keys had ended for as long as a beat took is a rotation's first half: the record, not the keys.
def test_rotation_that_is_under_way_has_its_time_however_long_a_beat_took(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats, stop = 0, Event()
    with site.open() as cluster:
        node, boot_ns = Node(cluster), cluster.time.boot_ns
        monkeypatch.setattr(cluster.time, "boot_ns", lambda: boot_ns() + beats * 2 * TRUST_NS)
        monkeypatch.setattr(
            cluster.routes.host, "keys_end", lambda: "its next key is not there yet" if beats == 1 else None
        )

        def beat() -> None:
            nonlocal beats
            beats += 1
            if beats == 3:
                stop.set()

        node.pace.beat = beat  # type: ignore[method-assign]
        node.run(stop)
    assert beats == 3


def test_node_whose_keys_have_ended_for_a_while_ends(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    beats = 0
    with site.open() as cluster:
        node, boot_ns = Node(cluster), cluster.time.boot_ns
        monkeypatch.setattr(cluster.time, "boot_ns", lambda: boot_ns() + beats * TRUST_NS)
        monkeypatch.setattr(cluster.routes.host, "keys_end", lambda: "they are revoked")

        def beat() -> None:
            nonlocal beats
            beats += 1

        node.pace.beat = beat  # type: ignore[method-assign]
        with pytest.raises(NotTrusted, match="they are revoked"):
            node.run(Event())
    assert beats == 1


class Others:
    """A trust record of which a node is taken out."""

    def __init__(self) -> None:
        self.there = ["node1", "node2", "node3"]

    def nodes(self) -> list[str]:
        return self.there

    def address_of(self, node: str) -> str:
        return f"{node}:7420"


class Looked(Releases):
    """Is asked how the others are while the last look is being noted."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if hasattr(self, "thread"):
            self.checks()

    def _of(self, node: str) -> str | None:
        return "1" if node == "node2" else None


def releases(kind: type[Releases], others: Others) -> Releases:
    return kind("node1", TIME_KEY, CLUSTER, others, SystemClock(), "1")  # type: ignore[arg-type]


def test_others_are_judged_while_one_of_them_leaves() -> None:
    others = Others()
    looked = releases(Looked, others)
    looked.look()
    others.there.pop()
    looked.look()
    assert set(looked.known) == {"node1", "node2"}


# It is for people only: for want of a thread no node ends.
def test_others_are_asked_again_when_there_were_no_threads_to_ask_them(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, begin = Event(), Thread.start

    def begin_but_that(thread: Thread) -> None:
        if thread.name.startswith("tenure-release_"):
            tried.set()
            raise RuntimeError("can't start new thread")
        begin(thread)

    looked = releases(Looked, Others())
    monkeypatch.setattr("appliance.node.releases.LOOK_NS", 10 * MS)
    monkeypatch.setattr("appliance.node.releases.LOOK_NS_A_NODE", 0)
    with monkeypatch.context() as patch:
        patch.setattr(Thread, "start", begin_but_that)
        looked.start()
        assert tried.wait(20)
        tried.clear()
        again = tried.wait(2)
    assert again
    wait_until(SystemClock(), lambda: looked.known.get("node2") == "1")
    looked.close()
    looked.thread.join(20)


# Whoever runs it is told which thread, and what there was is given up: another try is not in its own way.
@pytest.mark.parametrize("short_of", ["map", "tenancy", "door", "releases", "http", "writer"])
def test_daemon_for_which_there_are_no_threads_leaves_nothing_behind(
    site: Site, monkeypatch: pytest.MonkeyPatch, short_of: str
) -> None:
    begin = Thread.start

    def begin_but_that(thread: Thread) -> None:
        if thread.name == f"tenure-{short_of}":
            raise RuntimeError("can't start new thread")
        begin(thread)

    with site.open() as cluster:
        cluster.settings = replace(cluster.settings, listen=Address("127.0.0.1", free_port()))
        node = Node(cluster)
        with monkeypatch.context() as patch:
            patch.setattr(Thread, "start", begin_but_that)
            with pytest.raises(Environment) as refused:
                node.start()
        assert refused.value.code == "no-threads"
        assert short_of in refused.value.message
        node.stop()
        node.close()
        again = Node(cluster)
        assert again.start() == [0]
        again.stop()
    again.close()
