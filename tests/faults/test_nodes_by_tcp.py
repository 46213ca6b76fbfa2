"""Three nodes, each a process, which reach each other by TCP alone: leases, revocation, pauses, orderly ends."""

from __future__ import annotations

import json
import signal
import socket
import struct
import urllib.request
from typing import TYPE_CHECKING

import pytest

from appliance.admin.trust import revoke_node
from appliance.formats.chains import CeilingKind, open_ceiling
from appliance.formats.paths import chain_path
from appliance.lease import tls
from appliance.lease.wire import LENGTH_BYTES, PROTOCOL_VERSION, Hello, Refused, encode_call
from appliance.node.records import StoredChain
from tests.support.cluster import wait_until
from tests.support.daemons import Daemons
from tests.support.nodes import read_answer, read_exactly
from tests.support.ports import free_port
from timeagent.clock import SystemClock
from timeagent.errors import BadTime, ShardUnavailable, TryAgain
from timeagent.keys import Purpose
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from appliance.cluster import Cluster

NODES = ("node1", "node2", "node3")
CLOCK = SystemClock()


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Daemons]:
    with Daemons(tmp_path, *NODES) as each:
        yield each


def domain_of(cluster: Cluster, node: str) -> str:
    """A domain whose shard belongs to a node."""
    return next(name for n in range(999) if cluster.map.owners[cluster.map.shard_of(name := f"d{n}")] == node)


def test_lease_of_another_node_is_taken_by_the_library_and_by_the_command(daemons: Daemons) -> None:
    daemons.start(*NODES)
    with daemons.site.open("node1") as cluster, cluster.session("here") as session:
        wanted = [domain_of(cluster, node) for node in NODES]
        with session.acquire(*wanted) as leases:
            session.publish("log", [b"1"], under=leases)
            shown = daemons.tenure("node3", "lease", "show", wanted[1], "--json")
            assert shown.returncode == 0, shown.stderr
            assert json.loads(shown.stdout)["lease"]["purpose"] == "here"
            refused = daemons.tenure("node3", "lease", "hold", wanted[1], "--seconds", "0", "--wait", "0s")
            assert refused.returncode == 75, refused.stderr
        held = daemons.tenure("node1", "lease", "hold", wanted[1], "--seconds", "0", "--json")
        assert held.returncode == 0, held.stderr
        assert json.loads(held.stdout.splitlines()[0])["domain"] == wanted[1]
        assert [m.payload for m in cluster.read("log", level="latest")] == [b"1"]
    said = json.loads(daemons.tenure("node1", "shards", "--json").stdout)
    assert [(each["node"], each["answers"]) for each in said["shards"]] == [(node, True) for node in NODES]
    assert said["shards"][1]["where"] == str(daemons.site.settings["node2"].listen)
    assert [daemons.stop(node) for node in NODES] == [0, 0, 0]


def test_shards_says_which_node_does_not_answer(daemons: Daemons) -> None:
    daemons.start("node1", "node2")
    shown = daemons.tenure("node1", "shards")
    assert shown.returncode == 0
    first, second, third = shown.stdout.splitlines()
    assert "incarnation" in first
    assert "incarnation" in second
    assert "no answer" in third
    assert "[no-answer]" in third
    alone = daemons.tenure("node3", "shards", "--json")
    assert [each["answers"] for each in json.loads(alone.stdout)["shards"]] == [True, True, False]


def test_shard_of_a_dead_node_is_taken_over_because_a_command_asks_for_it(daemons: Daemons) -> None:
    daemons.start(*NODES)
    with daemons.site.open("node1") as cluster:
        wanted = domain_of(cluster, "node2")
    daemons.kill("node2")
    at_once = daemons.tenure("node1", "lease", "acquire", wanted)
    assert at_once.returncode in (0, 69), at_once.stderr  # 0: taken over within the attempts
    if at_once.returncode == 69:
        assert "another node takes over" in at_once.stderr
        waited = daemons.tenure("node1", "lease", "acquire", wanted, "--wait", "100s")
        assert waited.returncode == 0, waited.stderr
    shown = daemons.tenure("node3", "lease", "show", wanted, "--json")
    for _ in range(5):
        if shown.returncode == 0:
            break
        daemons.tenure("node1", "lease", "acquire", wanted, "--wait", "100s")  # a slow machine: it was over meanwhile
        shown = daemons.tenure("node3", "lease", "show", wanted, "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["lease"]["node"] == "node1"


def test_nothing_answers_and_shards_says_so_by_its_exit_code(daemons: Daemons) -> None:
    assert daemons.tenure("node2", "shards").returncode == 69


# The node's own process notices nothing: it is the others that let it in no more.
def test_revoked_node_loses_what_it_reached_and_the_others_go_on(daemons: Daemons) -> None:
    daemons.start("node1", "node2")
    site = daemons.site
    with site.open("node3") as revoked, revoked.session("revoked") as session, site.open("node1") as other:
        domain = domain_of(revoked, "node2")
        session.relinquish(session.acquire(domain))
        revoke_node(site.registers, site.root_key, "node3", revoked.time.now().midpoint)

        def is_refused() -> bool:
            try:
                session.relinquish(session.acquire(domain, timeout_s=0))
            except (ShardUnavailable, TryAgain) as problem:
                return "revoked" in problem.message
            except BadTime as problem:  # its own process read the record first
                return problem.code == "key-ended"
            return False

        wait_until(CLOCK, is_refused, 60 * SECOND)
        with other.session() as well, well.acquire(domain):
            pass


def test_stranger_and_other_versions_are_told_why(daemons: Daemons) -> None:
    daemons.start("node1", "node2")
    site = daemons.site
    listen = site.settings["node2"].listen
    assert listen is not None

    def answer_to(hello: Hello) -> Refused:
        plain = socket.create_connection((listen.host, listen.port), timeout=20)
        with tls.client_context(site.settings["node1"].key(Purpose.TLS)).wrap_socket(plain) as connection:
            connection.sendall(encode_call([hello]))
            (reply,) = read_answer(connection)
            assert isinstance(reply, Refused)
            return reply

    good = Hello(version=PROTOCOL_VERSION, cluster_id=site.cluster_id, node="node1", shard=1)
    newer = Hello(version=PROTOCOL_VERSION + 1, cluster_id=site.cluster_id, node="node1", shard=1)
    foreign = Hello(version=PROTOCOL_VERSION, cluster_id=bytes(16), node="node1", shard=1)
    elsewhere = Hello(version=PROTOCOL_VERSION, cluster_id=site.cluster_id, node="node1", shard=0)
    codes = [answer_to(each).code for each in (newer, foreign, elsewhere)]
    assert codes == ["protocol-version", "other-cluster", "not-here"]
    plain = socket.create_connection((listen.host, listen.port), timeout=20)
    with tls.client_context(site.settings["node1"].key(Purpose.TLS)).wrap_socket(plain) as connection:
        connection.sendall(encode_call([good]))
        (length,) = struct.unpack(">I", read_exactly(connection, LENGTH_BYTES))
        assert b"welcome" in read_exactly(connection, length)


# A stopped process accepts connections (the kernel does) and answers none: every attempt has to end by itself.
def test_node_that_stands_still_costs_its_callers_their_time_out_and_nothing_after(daemons: Daemons) -> None:
    daemons.start("node1", "node2")
    with daemons.site.open("node1") as cluster, cluster.session() as session:
        mine, theirs = domain_of(cluster, "node1"), domain_of(cluster, "node2")
        session.relinquish(session.acquire(theirs))
        daemons.send("node2", signal.SIGSTOP)
        try:
            wait_until(CLOCK, lambda: daemons.stopped("node2"))
            with pytest.raises((ShardUnavailable, TryAgain)):
                session.acquire(theirs, timeout_s=0)
            session.relinquish(session.acquire(mine))  # whoever else answers is not affected
        finally:
            daemons.send("node2", signal.SIGCONT)

        def answers() -> bool:
            try:
                session.relinquish(session.acquire(theirs, timeout_s=1))
            except (ShardUnavailable, TryAgain):
                return False
            return True

        wait_until(CLOCK, answers, 60 * SECOND)


def test_orderly_end_waits_for_a_lease_that_another_node_has_and_takes_it_back(daemons: Daemons) -> None:
    daemons.start("node1", "node2")
    with daemons.site.open("node1") as cluster, cluster.session() as session:
        shard = cluster.map.owners.index("node2")
        domain, other = [name for n in range(99) if cluster.map.shard_of(name := f"d{n}") == shard][:2]
        leases = session.acquire(domain)
        daemons.send("node2", signal.SIGINT)

        def grants_nothing_more() -> bool:
            try:
                session.relinquish(session.acquire(other, timeout_s=0))
            except (ShardUnavailable, TryAgain) as problem:
                return "stopping" in problem.message
            return False

        wait_until(CLOCK, grants_nothing_more)
        assert daemons.running["node2"].poll() is None
        session.relinquish(leases)
        assert daemons.running["node2"].wait(60) == 0
    chain = StoredChain(daemons.site.storage, chain_path(1, shard))
    data = chain.read(chain.list_afresh()[-1])
    assert data is not None
    assert open_ceiling(data, "newest")[0].kind is CeilingKind.ORDERLY


def test_systemd_is_told_and_people_are_answered(daemons: Daemons, tmp_path: Path) -> None:
    said: list[str] = []
    port = free_port()
    settings = daemons.site.node_dir("node1") / "node.toml"
    settings.write_text(settings.read_text().replace("listen =", f'http = "127.0.0.1:{port}"\nlisten ='))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.settimeout(60)
        systemd.bind(str(tmp_path / "notify"))

        def until_said(word: str) -> str:
            while not any(each.startswith(word) for each in said):
                said.append(systemd.recv(4096).decode())
            return next(each for each in said if each.startswith(word))

        daemons.start("node1", environment={"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "3000000"})
        assert daemons.said["node1"]["http"] == f"127.0.0.1:{port}"
        assert "STATUS=node1" in until_said("READY=1")
        until_said("WATCHDOG=1")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=20) as answer:
            assert b"FAIL" not in answer.read()  # of the other nodes, which do not run, it is unsure
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            assert b'tenure_shard_up{shard="0"} 1.0' in answer.read()
        assert daemons.stop("node1") == 0
        until_said("STOPPING=1")
    assert not (daemons.site.tmpfs / "node1" / "http.sock").exists()
