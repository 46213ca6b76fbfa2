"""``tenure status``: what does not answer is told apart from what is not there, and named with its address."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from appliance.admin.trust import move_node
from appliance.cli import service
from appliance.daemon.daemon import Node
from appliance.doctor.health import judge_clock, judge_log
from appliance.formats.names import Address
from appliance.node.runtime import ensure_runtime
from tests.support.cluster import Site, sites
from tests.support.ports import free_port
from tests.support.spoken import Said, speaker
from timeagent.sources import nonce
from timeagent.units import MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    yield from sites(tmp_path, "node1", "node2")


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    return speaker(capsys, monkeypatch)


def line(said: Said, name: str) -> dict[str, Any]:
    (found,) = (check for check in json.loads(said.out)["checks"] if check["check"] == name)
    return dict(found)


def test_node_that_does_not_answer_is_named_with_its_own_address(site: Site, say: Callable[..., Said]) -> None:
    address = Address("127.0.0.1", free_port())
    move_node(site.registers, site.root_key, "node2", address)
    found = line(say("status", "--json", *site.options()), "other nodes")
    assert found["verdict"] == "UNSURE"
    assert f"node2 at {address}" in found["reason"]
    assert "7420" not in found["reason"] + found["way_out"]


def test_shard_that_applications_run_is_no_failure_while_none_does(tmp_path: Path, say: Callable[..., Said]) -> None:
    with contextlib.closing(Site(tmp_path, ("node1",))) as alone:
        found = line(say("status", "--json", *alone.options()), "shard 0")
    assert found["verdict"] == "UNSURE"
    assert "the next application" in found["way_out"]


def test_shard_of_one_node_among_several_fails_while_none_runs_it(site: Site, say: Callable[..., Said]) -> None:
    assert line(say("status", "--json", *site.options()), "shard 0")["verdict"] == "FAIL"


STANDING_STILL = """
import socket, sys
from pathlib import Path
from appliance.node.runtime import HTTP_SOCKET
from appliance.node.runtime import daemon_lock
lock = daemon_lock(Path(sys.argv[1]))
assert lock.try_acquire()
door = socket.socket(socket.AF_UNIX)
if "door" in sys.argv:
    door.bind(f"{sys.argv[1]}/{HTTP_SOCKET}")
    door.listen()
print("there", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def standing_still(site: Site, *words: str) -> Iterator[int]:
    """Another process with the daemon's lock that answers nobody; with its number."""
    runtime = site.settings["node1"].runtime
    assert runtime is not None
    command = [sys.executable, "-c", STANDING_STILL, str(ensure_runtime(runtime)), *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        yield process.pid
        process.communicate("")


def test_daemon_that_stands_still_is_no_daemon_that_is_not_there(
    site: Site, say: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_PATIENCE_S", 0.05)
    absent = line(say("status", "--json", *site.options()), "daemon")
    assert (absent["verdict"], absent["reason"]) == ("UNSURE", "none of node1 answers on this machine")
    with standing_still(site, "door") as process:
        found = line(say("status", "--json", *site.options()), "daemon")
        upgrade = say("node", "upgrade", "--no-systemd", *site.options())
    assert found["verdict"] == "FAIL"
    assert f"process {process} of this machine runs node1, and does not answer" in found["reason"]
    assert "kill -CONT" in found["way_out"]
    assert "kill -9" in found["way_out"]
    assert "here a daemon that does not answer runs" in upgrade.err


# It may be busy with its start, or be of a release that tells otherwise how it is.
def test_nobody_is_told_to_kill_a_daemon_that_was_not_seen_standing_still(site: Site, say: Callable[..., Said]) -> None:
    with standing_still(site):
        found = line(say("status", "--json", *site.options()), "daemon")
    assert (found["verdict"], "runs node1" in found["reason"]) == ("UNSURE", True)
    assert "kill" not in found["way_out"]


@pytest.mark.parametrize("http", [None, Address("127.0.0.1", 0)])
def test_daemon_is_found_wherever_it_answers_http(site: Site, say: Callable[..., Said], http: Address | None) -> None:
    with site.open() as cluster:
        cluster.settings = replace(cluster.settings, http=http)  # as of `node run --http`: node.toml does not say so
        node = Node(cluster, version="7.1")
        node.start()
        try:
            said = say("status", "--json", *site.options())
        finally:
            node.stop()
            node.close()
    assert line(said, "daemon")["reason"] == "node1 is ready"
    assert "node1 7.1" in line(said, "releases")["reason"]
    assert "kill" not in said.out


def test_daemon_of_a_release_that_says_nothing_of_itself_is_not_to_be_killed(
    site: Site, say: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_asked", lambda *_: (404, b"there is no such page\n"))
    with standing_still(site, "door"):
        found = line(say("status", "--json", *site.options()), "daemon")
    assert (found["verdict"], "kill" in found["way_out"]) == ("UNSURE", False)


# A daemon that began later does not see the bag before its rack ends.
def test_way_out_of_a_log_that_is_not_closed_does_it_now() -> None:
    assert "tenure bag settle ledger" in judge_log("ledger", "", 1).way_out


def test_daemon_without_time_is_no_reason_to_wait(
    site: Site, say: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = judge_clock(None, "the time page is 7 s old", "").fields()
    body = json.dumps({"release": "1", "checks": [told]}).encode()
    monkeypatch.setattr(service, "_asked", lambda *_: (200, body))
    found = line(say("status", "--json", *site.options()), "daemon")
    assert (found["verdict"], "7 s old" in found["reason"]) == ("FAIL", True)
    assert "tenure time sources" in found["way_out"]


# What begins while the agent stands still makes its own time; what began with it has none: that must be known.
def test_time_agent_that_stands_still_or_died_is_told(
    site: Site, say: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nonce, "TIMEOUT_NS", 50 * MS)
    assert line(say("status", "--json", *site.options()), "clock")["verdict"] == "PASS"
    runtime = site.settings["node1"].runtime
    assert runtime is not None
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as door:
        door.bind(str(ensure_runtime(runtime) / nonce.DOOR_NAME))
        still = line(say("status", "--json", *site.options()), "time agent")
    died = line(say("status", "--json", *site.options()), "time agent")
    assert (still["verdict"], died["verdict"]) == ("UNSURE", "UNSURE")
    assert "the time agent does not answer" in still["reason"]
    assert "start it again" in still["way_out"]
    assert "the time agent cannot be asked" in died["reason"]
    assert "tenure time run" in died["way_out"]
