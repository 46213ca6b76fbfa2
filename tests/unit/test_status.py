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
