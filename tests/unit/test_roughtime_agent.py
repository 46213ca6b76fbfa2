"""Roughtime in the running agent: a node answers with its long-term key elsewhere, another asks it and keeps that."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import shutil
import signal
import socket
import subprocess
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tenure.__main__ import main
from tests.support.cluster import Site, sites
from tests.support.ports import free_port
from tests.support.roughtime import NOW_S, Witness, ask_twice, chain_of
from tests.support.warm import WarmProcess
from timeagent.clock import SystemClock
from timeagent.keys import Purpose, load_node_key
from timeagent.roughtime.malfeasance import decode_report, encode_report
from timeagent.sources.nonce import DOOR_NAME
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    yield from sites(tmp_path, "node1", "node2")


@contextlib.contextmanager
def agent(site: Site, node: str, settings: str) -> Iterator[None]:
    (site.node_dir(node) / "time.toml").write_text('chrony = ""\nclockbound = ""\nkernel = false\n' + settings)
    words = ["time", "run", *site.options(node)]
    process = WarmProcess("tenure", words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
        assert process.poll() is None, "the agent ended"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        finally:
            process.kill()


def until(path: Path, pattern: str = "chain-*.jsonl") -> Path:
    """Wait for a file of evidence."""
    deadline = time.monotonic() + 60
    while not (found := [each for each in sorted(path.glob(pattern)) if each.stat().st_size]):
        assert time.monotonic() < deadline, path
        time.sleep(0.1)
    return found[0]


def server_list(path: Path, **servers: tuple[bytes, int]) -> None:
    listed = [
        {
            "name": name,
            "version": 1,
            "publicKeyType": "ed25519",
            "publicKey": base64.b64encode(public).decode(),
            "addresses": [{"protocol": "udp", "address": f"127.0.0.1:{port}"}],
        }
        for name, (public, port) in servers.items()
    ]
    path.write_text(json.dumps({"servers": listed}))


def test_node_answers_with_keys_made_elsewhere_and_another_asks_it(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    public = load_node_key(site.node_dir(), Purpose.ROUGHTIME).public
    elsewhere = tmp_path / "safe.key"
    shutil.copy(site.node_dir() / "roughtime.key", elsewhere)
    (site.node_dir() / "roughtime.key").unlink()
    words = ["trust", "delegate", "--roughtime-key", str(elsewhere), "--out", str(site.node_dir() / "roughtime")]
    assert main([*words, "--for", "90d"]) == 0
    assert "online keys" in capsys.readouterr().out
    assert main([*words, "--for", "90d", "--each", "1s"]) == 2
    port = free_port()
    server_list(site.node_dir("node2") / "servers.json", node1=(public, port))
    asking = 'roughtime_servers = "servers.json"\n'
    with contextlib.ExitStack() as running:
        running.enter_context(agent(site, "node1", f'roughtime_listen = "127.0.0.1:{port}"\n'))
        ask_twice(public, port)
        running.enter_context(agent(site, "node2", asking))
        kept = until(site.node_dir("node2") / "evidence" / "roughtime")
        capsys.readouterr()
        assert main(["time", "sources", "--json", *site.options("node2")[:4]]) == 0
        shown = {each["source"]: each for each in json.loads(capsys.readouterr().out)["sources"]}
        assert shown["roughtime node1"]["bounded"]
    (first, *_) = decode_report(kept.read_bytes(), "kept")
    assert first.public == public
    assert main(["time", "verify", str(kept)]) == 1
    said = capsys.readouterr()
    assert base64.b64encode(public).decode() in said.out
    assert "accuses nobody" in said.err


@contextlib.contextmanager
def witnesses(*served: Witness, says: Callable[[], int]) -> Iterator[dict[str, tuple[bytes, int]]]:
    """Serve these over loopback; ``says`` is what the next answer of any of them says, in seconds."""
    stopped = threading.Event()
    doors = {each.name: socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for each in served}

    def serve(witness: Witness) -> None:
        while not stopped.is_set():
            with contextlib.suppress(TimeoutError):
                request, sender = doors[witness.name].recvfrom(4096)
                witness.midpoint_s = says()
                doors[witness.name].sendto(witness.answer(request), sender)

    threads = [threading.Thread(target=serve, args=(each,), daemon=True) for each in served]
    for door in doors.values():
        door.bind(("127.0.0.1", 0))
        door.settimeout(0.2)
    for thread in threads:
        thread.start()
    try:
        yield {each.name: (each.public, doors[each.name].getsockname()[1]) for each in served}
    finally:
        stopped.set()
        for thread in threads:
            thread.join(30)
        for door in doors.values():
            door.close()


# Whoever is asked first is an hour fast, the other right: which of the two it is, the agent's threads decide.
def test_running_agent_keeps_a_report_of_servers_that_contradict_each_other(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = itertools.count()

    def says() -> int:
        now = SystemClock().realtime_ns() // SECOND
        return now + 3600 if next(asked) == 0 else now

    with witnesses(Witness("one"), Witness("other"), says=says) as servers:
        server_list(site.node_dir() / "servers.json", **servers)
        with agent(site, "node1", 'roughtime_servers = "servers.json"\n'):
            kept = until(site.node_dir() / "evidence" / "roughtime", "report-*.json")
    capsys.readouterr()
    assert main(["time", "verify", str(kept), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {each["public_key"] for each in told["accused"]} == {
        base64.b64encode(public).decode() for public, _ in servers.values()
    }


# Whoever looks for an agent would find its door, and wait for nobody.
@pytest.mark.parametrize("door", ["listen", "roughtime_listen"])
def test_agent_that_cannot_listen_leaves_no_door_behind(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    monkeypatch.setattr("appliance.cli.agent.stop_on_signals", threading.Event)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        (site.node_dir() / "time.toml").write_text(f'{door} = "127.0.0.1:{taken.getsockname()[1]}"\n')
        assert main(["time", "run", *site.options()]) == 74
    assert "door-unbound" in capsys.readouterr().err
    runtime = site.settings["node1"].runtime
    assert runtime is not None
    assert not (runtime / DOOR_NAME).exists()


@pytest.mark.parametrize("known", [True, False])
def test_server_without_any_key_is_refused_at_start(
    site: Site, capsys: pytest.CaptureFixture[str], *, known: bool
) -> None:
    key = site.node_dir() / "roughtime.key"
    if known:
        key.unlink()
    else:  # a long-term key that the trust record does not know
        shutil.copy(site.node_dir("node2") / "roughtime.key", key)
    (site.node_dir() / "time.toml").write_text(f'roughtime_listen = "127.0.0.1:{free_port()}"\n')
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        assert main(["time", "run", *site.options()]) == 78
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert "no-delegation" in capsys.readouterr().err


# -- time verify REPORT ------------------------------------------------------------------------------------------------

HONEST, LIAR = Witness("honest"), Witness("liar")


@pytest.mark.parametrize(
    ("midpoint", "spoil", "status", "verdict"),
    [
        (NOW_S - 60, False, 0, "proven"),
        (NOW_S - 1, False, 1, "consistent"),
        (NOW_S - 60, True, 3, "unverified"),
    ],
)
def test_report_is_judged_offline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], midpoint: int, status: int, verdict: str, *, spoil: bool
) -> None:
    chain = chain_of([(HONEST, NOW_S, 3), (LIAR, midpoint, 3)])
    if spoil:
        chain = [chain[0], chain_of([(LIAR, midpoint, 3)])[0]]
    path = tmp_path / "report.json"
    path.write_bytes(encode_report(chain))
    assert main(["time", "verify", str(path), "--json"]) == status
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["verdict"]) == ("tenure.time.verify.report", verdict)
    assert main(["time", "verify", str(path)]) == status
    if status == 0:
        assert {each["public_key"] for each in told["accused"]} == {
            base64.b64encode(each.public).decode() for each in (HONEST, LIAR)
        }
        assert "lies wholly before it, by 54 s" in capsys.readouterr().out


def test_report_that_is_none_is_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "report.json").write_text('{"responses": "none"}')
    assert main(["time", "verify", str(tmp_path / "report.json")]) == 65
    assert "report-damaged" in capsys.readouterr().err
