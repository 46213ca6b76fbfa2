"""A cluster of one node whose root is an address: leases, messages, the audit, and a store with its bad moments."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from appliance.cli.doctor import look_at
from appliance.demo.machines import DemoPlace, set_up_place
from appliance.doctor.health import CheckVerdict
from auditor.audit import audit
from auditor.evidence.opening import open_tree
from tenure import Cluster, Committed
from tests.support.object_store import s3_server
from timeagent.clock import SystemClock
from timeagent.errors import BadRequest, Environment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from appliance.doctor.health import HealthCheck


@pytest.mark.parametrize("answers", [[], ["503", "done, 500", "", "409", "", "done, 500", "503"]], ids=["good", "bad"])
def test_what_is_committed_is_read_and_audited(
    answers: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server(monkeypatch) as server:
        chance = random.Random(str(tmp_path))
        place = set_up_place(tmp_path / "demo", 1, SystemClock().realtime_ns(), chance, "s3://bucket/root")
        try:
            with Cluster.open("s3://bucket/root", node_dir=place.machines[0].directory, allow_root=True) as cluster:
                cluster.create_log("batches", "log")
                with cluster.session() as session, session.acquire("account/7", record_only=True) as leases:
                    server.answers = list(answers)
                    for log in ("ledger", "batches", "ledger"):
                        assert isinstance(session.publish(log, [b"m"], under=leases), Committed)
                now = cluster.time.now().latest
                for log, count in (("ledger", 2), ("batches", 1)):
                    cluster.logs.opened(log).horizon.settle(now)
                    assert [message.payload for message in cluster.read(log)] == [b"m"] * count
        finally:
            place.forget()
        result = audit(open_tree(Path("s3://bucket/root")))
        assert result.findings == ()
        assert not any(key.startswith("root/tmp/") for key in server.objects)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[DemoPlace]:
    """A cluster of one node, on a directory."""
    founded = set_up_place(tmp_path / "demo", 1, SystemClock().realtime_ns(), random.Random(str(tmp_path)))
    yield founded
    founded.forget()


def opened(place: DemoPlace) -> Cluster:
    return Cluster.open(place.root, node_dir=place.machines[0].directory, allow_root=True)


def settled(cluster: Cluster, log: str) -> list[bytes]:
    cluster.logs.opened(log).horizon.settle(cluster.time.now().latest)
    return [message.payload for message in cluster.read(log)]


def test_logs_of_one_cluster_on_several_stores_are_written_read_and_audited(
    place: DemoPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mount").mkdir()
    stores: dict[str, str | Path | None] = {
        "here": None,
        "far": "s3://bucket/far",
        "other": "s3://bucket/other",
        "mount": tmp_path / "mount",
    }
    with s3_server(monkeypatch) as server:
        with opened(place) as cluster, cluster.session() as session:
            for log, store in stores.items():
                cluster.create_log(log, store=store)
            with session.acquire("account/7", "account/8", record_only=True) as leases:
                for log in stores:
                    assert isinstance(session.publish(log, [log.encode()], under=leases), Committed)
        with opened(place) as cluster:
            assert cluster.log_names() == sorted(stores)
            assert [settled(cluster, log) for log in stores] == [[log.encode()] for log in stores]
            cluster.create_log("far", store="s3://bucket/far/")
            with pytest.raises(BadRequest, match="'far' is in s3://bucket/far, not in s3://bucket/other") as caught:
                cluster.create_log("far", store="s3://bucket/other")
            assert caught.value.code == "other-store"
            with pytest.raises(BadRequest, match="'here' is at the root"):
                cluster.create_log("here", store="s3://bucket/other")
        assert {key.split("/")[1] for key in server.objects if key.startswith("far/")} == {"logs"}
        others = [Path(str(each)) for each in stores.values() if each is not None]
        result = audit(open_tree(Path(place.root), others))
        assert result.findings == ()
        assert result.summary.messages == 4
        alone = audit(open_tree(Path(place.root))).findings
        assert [each.code for each in alone] == ["unverifiable-log"] * 3
        assert {path.name for path in (Path(place.root) / "logs/far").iterdir()} <= {"log", "tmp"}


def stores_by_doctor(place: DemoPlace) -> list[HealthCheck]:
    return [each for each in look_at(Path(place.root), place.machines[0].directory) if each.name == "store"]


def test_store_that_is_gone_is_named_before_anything_is_written_and_other_logs_go_on(
    place: DemoPlace, tmp_path: Path
) -> None:
    store = tmp_path / "mount"
    store.mkdir()
    with opened(place) as cluster:
        cluster.create_log("far", store=store)
    store.rename(tmp_path / "not-mounted")
    store.mkdir()
    with opened(place) as cluster, cluster.session() as session:
        with session.acquire("account/7", record_only=True) as leases:
            with pytest.raises(Environment) as caught:
                session.publish("far", [b"m"], under=leases)
            assert caught.value.code == "store-not-there"
            assert f"'far' is in {store}" in caught.value.message
            assert isinstance(session.publish("here", [b"m"], under=leases), Committed)
        assert list(store.iterdir()) == []
        (check,) = stores_by_doctor(place)
        assert (check.verdict, check.reason) == (CheckVerdict.FAIL, caught.value.message)
        store.rmdir()
        (tmp_path / "not-mounted").rename(store)
        (check,) = stores_by_doctor(place)
        assert check.verdict is CheckVerdict.PASS
        with session.acquire("account/7", record_only=True) as leases:
            assert isinstance(session.publish("far", [b"m"], under=leases), Committed)
        assert settled(cluster, "far") == [b"m"]


def test_doctor_says_of_each_store_what_it_is_also_beside_a_damaged_birth(place: DemoPlace, tmp_path: Path) -> None:
    with opened(place) as cluster:
        for log in ("a", "b"):
            (tmp_path / log).mkdir()
            cluster.create_log(log, store=tmp_path / log)
    birth = Path(place.root) / "logs/a/log"
    data = birth.read_bytes()
    birth.unlink()
    birth.write_bytes(data[:-1])
    damaged, good = stores_by_doctor(place)
    assert (damaged.verdict, good.verdict) == (CheckVerdict.FAIL, CheckVerdict.PASS)
    assert "logs/a/log" in damaged.reason


def test_store_that_is_not_fit_gets_no_log(place: DemoPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(place) as cluster, s3_server(monkeypatch) as server:
        with pytest.raises(Environment, match="No such file") as caught:
            cluster.create_log("far", store=tmp_path / "missing")
        assert caught.value.code == "store-unfit"
        server.conditional = False
        with pytest.raises(Environment, match="lies") as caught:
            cluster.create_log("far", store="s3://bucket/liar")
        assert caught.value.code == "store-unfit"
        with pytest.raises(BadRequest, match="is the root of a cluster"):
            cluster.create_log("far", store=place.root)
        assert cluster.log_names() == []
        assert server.objects == {}
