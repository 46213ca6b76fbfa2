"""``leasehold status``: what does not answer is told apart from what is not there, and named with its address."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from appliance.cli import daemon
from appliance.formats.address import Address
from appliance.node import HTTP_SOCKET
from appliance.runtime import daemon_lock, ensure_runtime
from appliance.trust import move_node
from tests.support.cluster import Site, sites
from tests.support.daemons import free_port
from tests.support.spoken import Said, speaker
from timeagent import noncedoor
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


def test_daemon_that_stands_still_is_no_daemon_that_is_not_there(
    site: Site, say: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "_PATIENCE_S", 0.05)
    absent = line(say("status", "--json", *site.options()), "daemon")
    assert (absent["verdict"], absent["reason"]) == ("UNSURE", "none of node1 answers on this machine")
    runtime = site.settings["node1"].runtime
    assert runtime is not None
    lock = daemon_lock(ensure_runtime(runtime))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.bind(str(runtime / HTTP_SOCKET))
        door.listen()
        assert lock.try_acquire()
        with lock:
            found = line(say("status", "--json", *site.options()), "daemon")
            upgrade = say("node", "upgrade", "--no-systemd", *site.options())
    assert found["verdict"] == "FAIL"
    assert "runs node1, and does not answer" in found["reason"]
    assert "kill -9" in found["way_out"]
    assert "here a daemon that does not answer runs" in upgrade.err


def test_daemon_without_time_is_no_reason_to_wait(
    site: Site, say: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "asked", lambda *_: (503, b"no usable time: the time page is 7 s old\n"))
    found = line(say("status", "--json", *site.options()), "daemon")
    assert (found["verdict"], "7 s old" in found["reason"]) == ("FAIL", True)
    assert "leasehold time sources" in found["way_out"]


# What begins while the agent stands still makes its own time; what began with it has none: that must be known.
def test_time_agent_that_stands_still_or_died_is_told(
    site: Site, say: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noncedoor, "TIMEOUT_NS", 50 * MS)
    assert line(say("status", "--json", *site.options()), "clock")["verdict"] == "PASS"
    runtime = site.settings["node1"].runtime
    assert runtime is not None
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as door:
        door.bind(str(ensure_runtime(runtime) / noncedoor.DOOR_NAME))
        still = line(say("status", "--json", *site.options()), "clock")
    died = line(say("status", "--json", *site.options()), "clock")
    assert (still["verdict"], died["verdict"]) == ("UNSURE", "UNSURE")
    assert "the time agent does not answer" in still["reason"]
    assert "start it again" in still["way_out"]
    assert "the time agent cannot be asked" in died["reason"]
    assert "leasehold time run" in died["way_out"]
