"""Roughtime in the running agent: a node answers with its long-term key elsewhere, another asks it and keeps that."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from leasehold.__main__ import main
from tests.support.cluster import Site, sites
from tests.support.roughtime import NOW_S, Witness, ask_twice, chain_of, free_port
from timeagent.keyfiles import load_node_key
from timeagent.malfeasance import decode_report, encode_report
from timeagent.trust import Purpose

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    yield from sites(tmp_path, "node1", "node2")


@contextlib.contextmanager
def agent(site: Site, node: str, settings: str) -> Iterator[None]:
    (site.node_dir(node) / "time.toml").write_text('chrony = ""\nclockbound = ""\nkernel = false\n' + settings)
    command = [sys.executable, "-m", "leasehold", "time", "run", *site.options(node)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
        assert process.poll() is None, "the agent ended"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        finally:
            process.kill()


def until(path: Path) -> Path:
    """Wait for a file of evidence."""
    deadline = time.monotonic() + 60
    while not (found := sorted(path.glob("chain-*.jsonl"))):
        assert time.monotonic() < deadline, path
        time.sleep(0.1)
    return found[0]


def server_list(path: Path, public: bytes, port: int) -> None:
    address = {"protocol": "udp", "address": f"127.0.0.1:{port}"}
    server = {"name": "node1", "version": 1, "publicKeyType": "ed25519", "addresses": [address]}
    path.write_text(json.dumps({"servers": [server | {"publicKey": base64.b64encode(public).decode()}]}))


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
    server_list(site.node_dir("node2") / "servers.json", public, port)
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
    assert (told["schema"], told["verdict"]) == ("leasehold.time.verify.report", verdict)
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
