"""A real daemon, real processes: what went through the node's writer is there, also when that is killed."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as replace_fields

from appliance.bag.writing import Committed
from appliance.cluster import Cluster
from appliance.formats.birth import BagKind
from appliance.node.settings import Sharing, save_settings
from tests.support.cluster import Site, fast_policy, sites
from tests.support.warm import WarmProcess
from timeagent.units import SECOND

PROGRAM = """
import sys
from appliance.cluster import Cluster
from appliance.bag.writing import Committed
from timeagent.errors import LeaseLost
from timeagent.units import SECOND
root, node_dir, number, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
with Cluster.open(root, node_dir=node_dir, allow_root=True) as cluster, cluster.session(number) as session:
    leases = session.acquire("writer/" + number, timeout_s=60)
    for n in range(count):
        try:
            outcome = session.publish("events", [f"{number}/{n}".encode()], under=leases)
        except LeaseLost:  # the killed daemon had the shard too, and the one after it knows of no lease
            leases = session.acquire("writer/" + number, timeout_s=60)
            continue
        if isinstance(outcome, Committed):
            print(f"{number}/{n}", flush=True)
    session.relinquish(leases)
"""


PATIENT = replace_fields(
    fast_policy(), lease_term_max_ns=40 * SECOND, renew_period_ns=3 * SECOND, attempt_timeout_ns=10 * SECOND
)
"""Where the machine is busy, a process that is not answered in time would write by itself."""


@pytest.fixture
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    for site in sites(tmp_path, policy=getattr(request, "param", None)):
        site.settings["node1"] = replace(site.settings["node1"], node_writer=Sharing.ALWAYS)
        save_settings(site.settings["node1"])
        yield site


def start(module: str, *words: str) -> subprocess.Popen[str]:
    return WarmProcess(module, words, stdout=subprocess.PIPE)


def daemon(site: Site) -> subprocess.Popen[str]:
    process = start(
        "tenure", "node", "run", "--json", "--allow-root", "--root", str(site.root), "--node-dir",
        str(site.node_dir()),
    )  # fmt: skip
    assert process.stdout is not None
    assert "tenure.node" in process.stdout.readline()
    return process


def writers(site: Site, number: int, count: int) -> list[subprocess.Popen[str]]:
    return [start("-c", PROGRAM, str(site.root), str(site.node_dir()), str(n), str(count)) for n in range(number)]


def finish(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert process.stdout is not None
    process.stdout.close()


def acknowledged(processes: list[subprocess.Popen[str]]) -> list[str]:
    said = [process.communicate(timeout=100)[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return [line for lines in said for line in lines]


def in_the_record(cluster: Cluster) -> list[str]:
    now = cluster.time.now().latest
    cluster.settle("events", now)
    return [message.payload.decode() for message in cluster.read("events")]


def files(site: Site) -> list[Path]:
    return [path for path in site.root.glob("logs/events/20*/*/*/*") if path.suffix in {".msg", ".log"}]


@pytest.mark.parametrize("site", [PATIENT], ids=[""], indirect=True)
@pytest.mark.parametrize("kind", [BagKind.LOG, pytest.param(BagKind.MAILDIR, marks=pytest.mark.verify)])
def test_processes_of_a_machine_share_its_writer(site: Site, kind: BagKind) -> None:
    with site.open() as cluster:
        cluster.logs.opened_or_made("events", kind)
    run = daemon(site)
    said = acknowledged(writers(site, 4, 20))
    finish(run)
    assert sorted(said) == sorted(f"{n}/{m}" for n in range(4) for m in range(20))
    names = {path.name.split(".")[1] for path in files(site)}
    with site.open() as cluster:
        assert sorted(in_the_record(cluster)) == sorted(said)
    assert len(names) == 1, "all files are the node's writer's"


def test_a_writer_that_is_killed_and_comes_back_loses_nothing(site: Site) -> None:
    with site.open() as cluster, cluster.session() as session, session.acquire("first") as leases:
        assert session.publish("events", [b"first"], under=leases) == Committed()
    run = daemon(site)
    processes = writers(site, 3, 60)
    deadline = time.monotonic() + 60
    while len(files(site)) < 8:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    run.kill()
    run.wait()
    assert run.stdout is not None
    run.stdout.close()
    said = acknowledged(processes)
    with site.open() as cluster:
        there = in_the_record(cluster)
    assert set(said) <= set(there)
    assert len(there) == len(set(there)), "nothing is there twice"
