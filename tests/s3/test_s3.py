"""The whole of it on a real server that speaks S3: ``make test-s3``; those that take long are marked slow."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from appliance.bag.objects import ObjectStorage, RemoteBucket
from appliance.demo.machines import DemoPlace, set_up_place
from tenure import Cluster, Committed
from tests.s3.servers import NotInstalledError, azurite, s3rver
from tests.s3.swift import swift
from timeagent.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator


def tenure(*words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tenure", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(environment or {})},
    )


def audited(place: str) -> dict[str, Any]:
    done = tenure("audit", place, "--json")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def place(root: str, tmp_path: Path) -> Iterator[DemoPlace]:
    """A cluster of one node, which needs no daemon: the shard runs in the process that uses it."""
    chance = random.Random(root)
    founded = set_up_place(tmp_path / "demo", 1, SystemClock().realtime_ns(), chance, root)
    yield founded
    founded.forget()


def opened(place: DemoPlace) -> Cluster:
    return Cluster.open(place.root, node_dir=place.machines[0].directory, allow_root=True)


def settled(cluster: Cluster, log: str) -> list[str]:
    cluster.logs.opened(log).horizon.settle(cluster.time.now().latest)
    return [message.payload.decode() for message in cluster.read(log)]


@pytest.mark.parametrize("nodes", ["2", pytest.param("3", marks=pytest.mark.slow)])
def test_demo_keeps_all_promises_through_a_power_cut(nodes: str, root: str, tmp_path: Path) -> None:
    done = tenure("demo", str(tmp_path / "demo"), "--root", root, "--nodes", nodes, "--seconds", "2", "--json")
    assert done.returncode == 0, done.stderr[-2_000:]
    said = json.loads(done.stdout)
    assert said["transfers_acknowledged"] > 0
    assert said["takeovers"] > 0
    assert said["audit"]["violations"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["late-writer", "altered-file", "lost-file", "overwritten-lock", "early-grant"])
def test_planted_fault_is_named(fault: str, root: str, tmp_path: Path) -> None:
    words = ["--root", root, "--nodes", "2", "--seconds", "2", "--fault", fault, "--json"]
    done = tenure("demo", str(tmp_path / "demo"), *words)
    assert done.returncode == 0, done.stderr[-2_000:]
    assert json.loads(done.stdout)["finding_codes"] == [fault]


@pytest.mark.parametrize("kind", ["maildir", "log"])
def test_what_a_killed_writer_was_acknowledged_is_read_by_all(kind: str, place: DemoPlace) -> None:
    with opened(place) as cluster:
        cluster.create_log("ledger", kind)
    words = [str(place.root), str(place.machines[0].directory), "ledger"]
    writer = subprocess.Popen([sys.executable, "-m", "tests.s3.writer", *words], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    acknowledged = [writer.stdout.readline().strip() for _ in range(8)]
    writer.kill()
    acknowledged += writer.stdout.read().split()
    writer.stdout.close()
    writer.wait()
    with opened(place) as cluster, cluster.session("successor") as session:
        with session.acquire("account/7", record_only=True) as leases:
            assert isinstance(session.publish("ledger", [b"the end"], under=leases), Committed)
        read = settled(cluster, "ledger")
    with opened(place) as cluster:
        assert settled(cluster, "ledger") == read
    *messages, end = read
    assert end == "the end"
    assert set(acknowledged) <= set(messages)
    assert messages == sorted(set(messages), key=int)
    found = audited(str(place.root))
    assert found["findings"] == []
    assert found["summary"]["messages"] == len(read)


def test_tree_that_is_moved_to_a_mount_and_back_is_judged_alike(place: DemoPlace, tmp_path: Path) -> None:
    with opened(place) as cluster, cluster.session("writer") as session:
        cluster.create_log("batches", "log")
        for number in range(6):
            with session.acquire(f"account/{number}", record_only=True) as leases:
                payload = b"x" * (1_000_000 if number == 0 else 10)
                session.publish(("ledger", "batches")[number % 2], [payload], under=leases)
        assert len(settled(cluster, "ledger") + settled(cluster, "batches")) == 6
    there, copy = ObjectStorage(RemoteBucket(str(place.root))), tmp_path / "mount"
    copied(there, copy)
    back = f"{place.root}-back"
    again = ObjectStorage(RemoteBucket(back))
    for path in copy.rglob("*"):
        if path.is_file():
            again.publish(path.relative_to(copy).as_posix(), path.read_bytes(), "tmp")
    verdicts = [audited(each) for each in (str(place.root), str(copy), back)]
    for each in verdicts:
        del each["tree"]
    assert verdicts[0] == verdicts[1] == verdicts[2]
    assert verdicts[0]["summary"]["messages"] == 6


def copied(storage: ObjectStorage, copy: Path, directory: str = ".") -> None:
    for name in storage.list_afresh(directory) or ():
        path = name if directory == "." else f"{directory}/{name}"
        data = storage.read(path)
        if data is None:
            copied(storage, copy, path)
        else:
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            (copy / path).write_bytes(data)


@pytest.mark.parametrize("way", ["logs in the store", "root in the store"])
def test_logs_on_two_stores_survive_a_killed_writer_and_are_judged_together(
    way: str, root: str, tmp_path: Path
) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    at, other = (None, root) if way == "logs in the store" else (root, str(mount))
    founded = set_up_place(tmp_path / "demo", 1, SystemClock().realtime_ns(), random.Random(root), at)
    try:
        with opened(founded) as cluster:
            cluster.create_log("ledger", "log", store=other)
        words = [str(founded.root), str(founded.machines[0].directory), "ledger"]
        writer = subprocess.Popen([sys.executable, "-m", "tests.s3.writer", *words], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        acknowledged = [writer.stdout.readline().strip() for _ in range(8)]
        writer.kill()
        acknowledged += writer.stdout.read().split()
        writer.stdout.close()
        writer.wait()
        with opened(founded) as cluster, cluster.session("successor") as session:
            with session.acquire("account/7", "account/8", record_only=True) as leases:
                for log in ("ledger", "here"):
                    assert isinstance(session.publish(log, [b"the end"], under=leases), Committed)
            *messages, end = settled(cluster, "ledger")
            assert settled(cluster, "here") == [end] == ["the end"]
        assert set(acknowledged) <= set(messages)
        assert messages == sorted(set(messages), key=int)
        done = tenure("audit", str(founded.root), "--store", other, "--json")
        found = json.loads(done.stdout)
        assert (done.returncode, found["findings"]) == (0, [])
        assert found["summary"]["messages"] == len(messages) + 2
        alone = tenure("audit", str(founded.root), "--json")
        (finding,) = json.loads(alone.stdout)["findings"]
        assert (alone.returncode, finding["code"]) == (3, "unverifiable-log")
        assert other in finding["explanation"]
    finally:
        founded.forget()


def test_good_store_passes_the_probe(root: str) -> None:
    done = tenure("probe", root)
    assert (done.returncode, done.stdout.count("PASS")) == (0, 4), done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("server", "word"), [("s3rver", "lies"), ("swift", "races")])
def test_store_that_lies_or_races_fails_the_probe_and_has_no_cluster(server: str, word: str, tmp_path: Path) -> None:
    try:
        with s3rver() if server == "s3rver" else swift(tmp_path / "lab") as store:
            done = tenure("probe", "s3://bags/root", environment=store.environment)
            words = ["init", "s3://bags/root", "--node-dir", str(tmp_path / "n"), "--allow-root"]
            refused = tenure(*words, "--assume-radius", "5ms", environment=store.environment)
    except NotInstalledError as why:
        pytest.skip(str(why))
    assert done.returncode == 1
    assert word in done.stdout
    assert refused.returncode == 74
    assert "store-unfit" in refused.stderr


@pytest.mark.slow
def test_azure_passes_the_probe_and_carries_a_cluster_through_a_power_cut(tmp_path: Path) -> None:
    try:
        with azurite() as store:
            probed = tenure("probe", "az://bags/root", environment=store.environment)
            words = ["demo", str(tmp_path / "demo"), "--root", "az://bags/root", "--nodes", "2", "--seconds", "2"]
            done = tenure(*words, "--json", environment=store.environment)
    except NotInstalledError as why:
        pytest.skip(str(why))
    assert (probed.returncode, probed.stdout.count("PASS")) == (0, 4), probed.stdout
    assert done.returncode == 0, done.stderr[-2_000:]
    assert json.loads(done.stdout)["audit"]["violations"] == 0
