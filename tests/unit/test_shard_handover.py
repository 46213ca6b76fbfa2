"""When an application gives its shard up: once there are other nodes or a daemon, and never in the shard's own loop."""

from __future__ import annotations

import socket
import subprocess
import sys
from dataclasses import dataclass, field
from threading import Lock
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from appliance.node.record_watch import PAID_LOOK_NS
from appliance.node.runtime import daemon_lock, kept_by
from appliance.node.shards import LOOK_NS, ShardHost
from tests.support.clocks import HandTime
from tests.support.cluster import Site
from tests.support.values import NOW_NS, TIME_KEY
from timeagent.errors import ShardUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from appliance.node.hosted_shard import Running


@dataclass(slots=True)
class Begun:
    body: Callable[[], object]
    over: bool = False

    def is_alive(self) -> bool:
        return not self.over

    def join(self, timeout: float | None = None) -> None:
        raise AssertionError(timeout)

    def go(self) -> None:
        self.body()
        self.over = True


@dataclass(slots=True)
class Parts:
    daemon: bool = False
    looked: int = 0
    begun: list[Begun] = field(default_factory=list)

    def mutex(self) -> Lock:
        return Lock()

    def daemon_runs(self) -> bool:
        self.looked += 1
        return self.daemon

    def spawn(self, name: str, body: Callable[[], object]) -> Running:
        assert name
        self.begun.append(Begun(body))
        return self.begun[-1]


class Looking(ShardHost):
    """An application's host of which a test says what it sees, and whose threads it moves by hand."""

    def __init__(self) -> None:
        self.parts, self.hand = Parts(), HandTime(TIME_KEY, NOW_NS)
        self.left, self.suspended, self.dropped = list[int](), list[int](), list[int]()
        self.nodes, self.key_ends = ["node1"], ""
        parts: Any = self.parts
        settings: Any = SimpleNamespace(node="node1")
        trust: Any = SimpleNamespace(members=lambda: self.nodes)
        nothing: Any = None
        super().__init__(nothing, nothing, settings, nothing, self.hand, nothing, nothing, nothing, trust, parts)

    def keys_end(self) -> str | None:
        return self.key_ends or None

    def leave(self, shard: int) -> None:
        self.left.append(shard)

    def suspend(self, shard: int) -> None:
        self.suspended.append(shard)

    def drop(self, shard: int) -> None:
        self.dropped.append(shard)

    def later(self, *shards: int) -> None:
        self.hand.advance(LOOK_NS)
        for shard in shards:
            self._give_way(shard)


def test_shard_is_given_up_beside_its_loop_once_a_daemon_runs() -> None:
    at = Looking()
    at.later(0)
    assert at.parts.begun == []
    at.parts.daemon = True
    at.later(0)
    assert at.suspended == [], "the loop still serves the holders"
    at.parts.begun[0].go()
    assert at.suspended == [0]
    assert at.left == []


def test_shard_is_given_up_once_another_node_has_joined() -> None:
    at = Looking()
    at.later(0)
    assert at.parts.begun == []
    at.nodes = ["node1", "node2"]
    at.later(0)
    at.parts.begun[0].go()
    assert at.suspended == [0]


# Whoever calls it is still answered by its server: nobody else would find out.
def test_shard_whose_ledger_has_ended_is_dropped_by_its_own_loop() -> None:
    at = Looking()
    ended: list[str | None] = [None]
    hosted: Any = SimpleNamespace(ended=lambda: ended[0])
    at._hosted[0] = hosted
    at.later(0)
    assert at.parts.begun == []
    ended[0] = "its ledger has ended"
    at.later(0)
    at.parts.begun[0].go()
    assert (at.dropped, at.left, at.suspended) == ([0], [], [])


def test_it_is_not_begun_twice_and_each_shard_by_itself() -> None:
    at = Looking()
    at.parts.daemon = True
    at.later(0, 1)
    at.later(0, 1)
    assert len(at.parts.begun) == 2
    for each in at.parts.begun:
        each.go()
    assert at.suspended == [0, 1]
    at.later(0)
    assert len(at.parts.begun) == 3, "it was begun again meanwhile"


def test_shard_is_given_up_before_the_keys_of_its_process_end() -> None:
    at = Looking()
    at.later(0)
    at.key_ends = "the witness key ends"
    at.later(0)
    at.parts.begun[0].go()
    assert (at.left, at.suspended) == ([0], []), "nobody goes on here with these keys"


def test_it_is_looked_now_and_then_only() -> None:
    at = Looking()
    at.later(0)
    at._give_way(0)
    at.hand.advance(LOOK_NS - 1)
    at._give_way(0)
    assert at.parts.looked == 1
    at.hand.advance(1)
    at._give_way(0)
    assert at.parts.looked == 2


# As a daemon does: an application that runs a shard would else make ten million paid looks a month.
@pytest.mark.parametrize(("pause_ns", "looks"), [(0, 8), (1, 2)])
def test_newest_map_is_looked_for_often_only_where_that_costs_nothing(pause_ns: int, looks: int) -> None:
    at = Looking()
    asked = list[int]()
    maps: Any = SimpleNamespace(look=lambda: asked.append(1), newest=SimpleNamespace(number=1))
    hosted: Any = SimpleNamespace(ended=lambda: None, shard=SimpleNamespace(going_by=1))
    storage: Any = SimpleNamespace(listing_pause_ns=pause_ns)
    at._storage, at._hosted = storage, {0: hosted, 1: hosted}
    at.follow(maps)
    at.later(0, 1)
    at.later(0, 1)
    at.hand.advance(PAID_LOOK_NS - 2 * LOOK_NS)
    at.later(0, 1)
    at.later(0, 1)
    assert len(asked) == looks


def test_application_begins_no_shard_while_a_daemon_runs(site: Site) -> None:
    with site.open() as application:
        lock = daemon_lock(application.routes.runtime)
        assert not lock.is_held(), "nobody has made it yet"
        assert lock.try_acquire()
        assert not application.routes.host.try_host(0, application.map)
        lock.release()
        assert not lock.is_held()
        assert application.routes.host.try_host(0, application.map)


def test_application_begins_no_shard_in_a_cluster_of_several_nodes() -> None:
    at = Looking()
    at.nodes = ["node1", "node2"]
    nothing: Any = None
    with pytest.raises(ShardUnavailable) as refused:
        at.try_host(0, nothing)
    assert refused.value.code == "no-daemon"


def test_looking_at_a_lock_takes_it_from_nobody(site: Site) -> None:
    with site.open() as application:
        mine, theirs = daemon_lock(application.routes.runtime), daemon_lock(application.routes.runtime)
        assert mine.try_acquire()
        assert theirs.is_held()
        assert theirs.is_held()
        assert mine.is_there()
        mine.release()
        assert not theirs.is_held()
        assert theirs.try_acquire()
        (application.routes.runtime / "daemon.lock").unlink()
        assert not theirs.is_there()
        assert mine.try_acquire()
        assert mine.is_there()
        assert not theirs.is_there(), "another file has its name"
        mine.release()
        theirs.release()


LISTENS = """
import socket, sys
at = socket.socket(socket.AF_UNIX)
at.bind(sys.argv[1])
at.listen(0)
print("listens", flush=True)
sys.stdin.read()
"""


# It need not answer for that: what is to be found out is who stands still.
def test_process_that_keeps_a_shard_is_named_also_where_it_answers_nobody(tmp_path: Path) -> None:
    path = tmp_path / "shard.sock"
    assert kept_by(path) is None
    command = [sys.executable, "-I", "-S", "-c", LISTENS, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as keeper:
        assert keeper.stdout is not None
        assert keeper.stdout.readline()
        assert kept_by(path) == f"process {keeper.pid} of this machine"
        first, second = (socket.socket(socket.AF_UNIX) for _ in range(2))
        with first, second:
            for each in (first, second):
                each.settimeout(0)
                each.connect_ex(str(path))
            assert kept_by(path) == "another process of this machine"
    assert kept_by(path) is None, "it has ended, and its socket is still there"


def test_process_itself_is_not_waited_for(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as own:
        own.bind(str(tmp_path / "shard.sock"))
        own.listen()
        assert kept_by(tmp_path / "shard.sock") is None
