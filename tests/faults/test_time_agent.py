"""Real agents as processes: started, asked, stopped, paused, killed; and a cluster that takes its time from one."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.agents import REPOSITORY, SILENT, Node, found, tenure, until
from tests.support.warm import WarmProcess
from timeagent.errors import BadTime
from timeagent.keys import Verifier, parse_public_line
from timeagent.units import MS


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    (made,) = found(tmp_path, "alpha")
    yield made
    made.end()


def code_of(node: Node) -> str:
    try:
        node.time().now()
    except BadTime as refused:
        return refused.code
    return ""


def test_agent_publishes_signs_and_ends_orderly(node: Node) -> None:
    node.start()
    until(lambda: not code_of(node))
    times = node.time()
    key = Verifier(parse_public_line(node.public_key(), "the node's key"))
    assert times.token().verified_by(key)
    assert times.token_over(bytes(range(32))).verified_by(key, bytes(range(32)))
    assert times.now().radius == 5 * MS
    fields = node.now()
    assert (fields["agent"], fields["source"], fields["assumed"]) == (True, "agent", True)
    assert node.sources()["assumed"]["role"] == "shapes"
    assert node.stop() == 0
    until(lambda: code_of(node) == "page-stale")
    with pytest.raises(BadTime) as refused:
        times.token_over(bytes(32))
    assert refused.value.code == "door-absent"


def test_there_is_one_agent_per_node(node: Node) -> None:
    node.start()
    second = tenure("time", "run", *node.words, "--allow-root", check=False)
    assert second.returncode == 74
    assert "agent-runs-already" in second.stderr
    assert node.stop() == 0


# The page that a killed agent left is refused, its lock is free, and its readers go on with the next run's page.
def test_killed_agent_is_refused_and_the_next_one_is_believed(node: Node) -> None:
    node.start()
    until(lambda: not code_of(node))
    times = node.time()
    epoch = times.token().clock_epoch
    assert node.process is not None
    node.process.kill()
    node.process.communicate()
    until(lambda: code_of(node) == "page-stale")
    node.start()
    until(lambda: not code_of(node))
    assert times.token().clock_epoch != epoch


def test_stopped_agent_is_refused_and_goes_on(node: Node) -> None:
    node.start()
    until(lambda: not code_of(node))
    assert node.process is not None
    node.process.send_signal(signal.SIGSTOP)
    try:
        until(lambda: code_of(node) == "page-stale")
    finally:
        node.process.send_signal(signal.SIGCONT)
    until(lambda: not code_of(node))


def test_settings_that_are_wrong_name_the_file_and_the_entry(node: Node) -> None:
    (node.directory / "time.toml").write_text('chronny = "x"\n')
    refused = tenure("time", "run", *node.words, "--allow-root", check=False)
    assert refused.returncode == 78
    assert "time.toml" in refused.stderr
    assert "chronny" in refused.stderr


def test_cluster_takes_its_time_from_the_agent_and_says_so(node: Node) -> None:
    script = (
        "import sys; from appliance.cluster import Cluster; from timeagent.agent.page import AgentTime\n"
        "with Cluster.open(sys.argv[1], node_dir=sys.argv[2], allow_root=True) as cluster:\n"
        "    print(cluster.time_by_agent, isinstance(cluster.time, AgentTime))\n"
        "    with cluster.session('test') as session, session.acquire('a') as leases:\n"
        "        print(session.publish('ledger', [b'x'], under=leases))\n"
    )

    def opened() -> str:
        command = [sys.executable, "-c", script, str(node.root), str(node.directory)]
        return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=100).stdout

    assert opened().startswith("False False")
    node.start()
    until(lambda: not code_of(node))
    said = opened()
    assert said.startswith("True True")
    assert "Committed" in said


def test_node_run_says_where_its_time_is_from(node: Node) -> None:
    def started() -> dict[str, object]:
        words = ["node", "run", *node.words, "--allow-root", "--json"]
        process = WarmProcess("tenure", words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        fields: dict[str, object] = json.loads(process.stdout.readline())
        process.terminate()
        process.communicate(timeout=100)
        return fields

    assert started()["time"] == "embedded"
    node.start()
    until(lambda: not code_of(node))
    assert started()["time"] == "agent"


def test_waiting_ends_when_the_agent_has_a_bound(node: Node) -> None:
    node.start()
    done = tenure("time", "wait", *node.words, "--radius", "6ms", "--json")
    assert json.loads(done.stdout)["source"] == "agent"
    late = tenure("time", "wait", *node.words, "--radius", "1ms", "--timeout", "300ms", check=False)
    assert late.returncode == 75
    assert "radius-too-wide" in late.stderr


def test_sources_are_drawn(node: Node) -> None:
    node.start()
    until(lambda: not code_of(node))
    drawn = tenure("time", "sources", *node.words, "--watch", "--count", "2").stdout
    assert drawn.count("together") == 2
    assert "█" in drawn or "#" in drawn


# Two machines in one: two nodes with an agent each, who ask each other over UDP.
@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[Node]]:
    nodes = found(tmp_path, "alpha", "beta")
    yield nodes
    for node in nodes:
        node.end()


# Whoever measures nothing itself has nothing to tell its peers, and says so.
def test_peers_that_only_assume_refuse_each_other_by_name(pair: list[Node]) -> None:
    alpha, beta = pair
    alpha.start(SILENT + 'listen = "127.0.0.1:17425"\n')
    beta.start(SILENT + '[peers]\nalpha = "127.0.0.1:17425"\n')
    until(lambda: "no-own-measure" in str(beta.sources()["peer alpha"]["reason"]))


def test_watchdog_and_readiness_reach_systemd(node: Node, tmp_path: Path) -> None:
    import socket

    from timeagent.notify import Notifier

    door = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    door.settimeout(60)
    path = str(tmp_path / "notify")
    door.bind(path)
    notifier = Notifier({"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "3000000"})
    assert notifier.watchdog_ns == 3000 * MS
    notifier.ready("good\nSTATUS=forged")
    assert door.recv(100) == b"READY=1\nSTATUS=good STATUS=forged"
    notifier.alive()
    assert door.recv(100) == b"WATCHDOG=1"
    os.environ["NOTIFY_SOCKET"], os.environ["WATCHDOG_USEC"] = path, "300000"
    try:
        node.start()
    finally:
        del os.environ["NOTIFY_SOCKET"], os.environ["WATCHDOG_USEC"]
    assert door.recv(100) == b"READY=1\nSTATUS=publishing"
    assert [door.recv(100) for _ in range(3)] == [b"WATCHDOG=1"] * 3
    node.stop()
    until(lambda: door.recv(100) == b"STOPPING=1")
    door.close()


def test_without_systemd_nothing_is_said() -> None:
    from timeagent.notify import Notifier

    silent = Notifier({})
    silent.ready()
    assert silent.watchdog_ns == 0
    assert Notifier({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1", "NOTIFY_SOCKET": "/x"}).watchdog_ns == 0
    Notifier({"NOTIFY_SOCKET": "/nowhere/at/all"}).alive()
    Notifier({"NOTIFY_SOCKET": "@" + "x" * 200}).alive()
