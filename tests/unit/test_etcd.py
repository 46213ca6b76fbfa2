"""etcd by its JSON gateway: the store of a shard's turns, one that is played and, where there is one, a real one."""

from __future__ import annotations

import contextlib
import random
import shutil
from dataclasses import replace
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING

import msgspec
import pytest

from appliance.cli import doctor
from appliance.daemon.failover import ShardFailover
from appliance.doctor.health import CheckVerdict, judge_awaited_shard, judge_etcd
from appliance.formats.policy import check_policy
from appliance.lease import tls
from appliance.lease.client import LeaseClient, LeaseGranted, LeaseUnavailable
from appliance.lease.turn_log import Etcd
from appliance.node.settings import EtcdAccess, save_settings
from auditor.audit import audit
from auditor.evidence.tree import Tree
from tests.bench.leases import peers
from tests.support.cluster import Site, fast_policy, wait_until
from tests.support.etcd import Gateway, gateway, reached
from tests.support.shards import HOLDER, RIVAL
from timeagent.clock import SystemClock
from timeagent.errors import BadConfiguration, Environment, ShardUnavailable
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from appliance.cluster import Cluster
    from appliance.formats.lease import Holder
    from appliance.lease.turn_log import KeyValues


@pytest.fixture
def played() -> Iterator[Gateway]:
    with gateway() as each:
        yield each


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a real etcd answers."""
    if not shutil.which("etcd") and not (peers.cache() / "unpacked-etcd").exists():
        pytest.skip("no etcd is on PATH, nor in the cache of tests/compare, which fetches one")
    with contextlib.ExitStack() as stack:
        try:
            peer = stack.enter_context(peers.etcd(tmp_path_factory.mktemp("etcd")))
        except peers.Absent as problem:
            pytest.skip(str(problem))
        yield f"http://{peer.target}"


@pytest.fixture(params=["played", "real"])
def endpoint(request: pytest.FixtureRequest) -> str:
    found = request.getfixturevalue(request.param)
    return found.endpoint if isinstance(found, Gateway) else str(found)


# -- the store ---------------------------------------------------------------------------------------------------------


def put(store: KeyValues, guard: bytes, revision: int, value: bytes, *more: tuple[bytes, bytes]) -> tuple[bool, int]:
    done, now, found = store.commit(guard, revision, [*more, (guard, value)], ())
    assert (found == value) is done
    return done, now


def test_transaction_is_done_once_and_only_while_its_guard_is_as_it_was(endpoint: str) -> None:
    with reached(endpoint) as store, reached(endpoint) as other:
        assert store.revision(b"t/head") == (0, b"")
        done, first = put(store, b"t/head", 0, b"one", (b"t/a", b"1"))
        assert done
        assert put(other, b"t/head", 0, b"two", (b"t/a", b"2"))[0] is False
        assert store.revision(b"t/head") == (first, b"one")
        done, second = put(other, b"t/head", first, b"\0\xff" * 400_000, (b"t/b", bytes(300_000)))
        assert done
        assert second > first
        assert put(store, b"t/head", first, b"three")[0] is False
        assert store.commit(b"t/head", second, [(b"t/c", b"")], [(b"t/a", b"t/b")])[:2] == (True, second)
        assert store.read(b"t/", b"t0", 9)[0] == (b"t/b", bytes(300_000))
        assert [key for key, _ in store.read(b"t/", b"t0", 9)] == [b"t/b", b"t/c", b"t/head"]
        assert [key for key, _ in store.read(b"t/", b"t0", 1)] == [b"t/b"]
        assert store.read(b"t/c", b"t/d", 9) == [(b"t/c", b"")]


def test_release_is_told(endpoint: str) -> None:
    with reached(endpoint) as store:
        assert store.version().startswith("3.")


@pytest.mark.parametrize(
    ("fault", "says"),
    [(503, "503 .*timed out"), ("slow", "[Tt]imeout|timed out"), ("cut", "RemoteDisconnected|ConnectionReset")],
)
def test_whatever_is_no_answer_names_the_endpoint_and_the_way_out(played: Gateway, fault: int | str, says: str) -> None:
    with reached(played.endpoint, timeout_ns=200 * MS) as store:
        put(store, b"head", 0, b"one")
        played.script = [fault]
        with pytest.raises(ShardUnavailable, match=says) as caught:
            store.commit(b"head", 1, [(b"head", b"two")], ())
        assert caught.value.message.startswith(f"etcd at {played.endpoint}/v3/kv/txn: ")
        assert "node.toml" in caught.value.hint
        assert store.revision(b"head") == ((2, b"two") if fault == "cut" else (1, b"one"))


def test_next_instance_is_asked_where_one_does_not_answer(played: Gateway) -> None:
    with gateway() as gone:
        pass
    with reached(gone.endpoint, played.endpoint) as store:
        assert store.revision(b"head") == (0, b"")
    with reached(gone.endpoint, played.endpoint) as store:
        with pytest.raises(ShardUnavailable):  # whether a change was done is not known, and it is not asked for again
            store.commit(b"head", 0, [(b"head", b"one")], ())
        assert store.commit(b"head", 0, [(b"head", b"one")], ()) == (True, 1, b"one")
    assert len(played.asked) == 2


@pytest.mark.parametrize(
    "answer",
    [
        {"succeeded": True},
        {"responses": 7},
        {"kvs": [{}]},
        {"kvs": 5},
        {"kvs": [{"key": "%", "mod_revision": 1}]},
        {"kvs": [], "deep": msgspec.Raw(b"[" * 10_000 + b"]" * 10_000)},
    ],
)
def test_answer_that_makes_no_sense_is_none(
    played: Gateway, monkeypatch: pytest.MonkeyPatch, answer: dict[str, object]
) -> None:
    monkeypatch.setattr(played, "answer", lambda *_: answer)
    with reached(played.endpoint) as store:
        ask = partial(store.revision, b"head") if "kvs" in answer else partial(store.commit, b"head", 0, [], ())
        with pytest.raises(ShardUnavailable):
            ask()


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration, match=r"absent\.pem"):
        Etcd(["https://127.0.0.1:1"], SECOND, ca=str(tmp_path / "absent.pem"))
    good = tmp_path / "ca.pem"
    good.write_bytes(tls._issuer())
    with pytest.raises(BadConfiguration, match=r"etcd: \S*cert\.pem with \S*key\.pem cannot be used"):
        Etcd(["https://[::1]:1"], SECOND, ca=str(good), cert=str(tmp_path / "cert.pem"), key=str(tmp_path / "key.pem"))


# -- a node that has one -----------------------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A cluster whose shards wait for an etcd on a loaded machine."""
    numbers = fast_policy(random.Random(str(tmp_path)).randbytes(16))  # as the site names its cluster
    policy = msgspec.structs.replace(
        numbers, lease_term_max_ns=20 * SECOND, renew_period_ns=5 * SECOND, attempt_timeout_ns=1_500 * MS
    )
    each = Site(tmp_path, policy=check_policy(policy))
    yield each
    each.close()


def keeping(site: Site, *endpoints: str) -> Site:
    site.settings["node1"] = replace(site.settings["node1"], etcd=EtcdAccess(endpoints))
    save_settings(site.settings["node1"])
    return site


def client(cluster: Cluster, holder: Holder = HOLDER) -> LeaseClient:
    return LeaseClient(cluster.routes.transport(0), cluster.time, cluster.policy, holder, random.Random(5))


def crash(cluster: Cluster) -> None:
    """Have the shard that runs here end as in a crash: nothing is left on tmpfs."""
    hosted = cluster.routes.host.everything()[0]
    hosted.spool._sink = Refusing()
    hosted.server.stop(at_once=True)
    hosted._threads[0].join()
    hosted.abandon()
    cluster.routes.host.drop(0)


class Refusing:
    def append(self, _: bytes) -> None:
        raise Environment("planted", "the machine has died")


def test_leases_live_on_after_a_crash_and_the_audit_finds_nothing(endpoint: str, site: Site) -> None:
    keeping(site, endpoint)
    with site.open() as first:
        with first.session() as session, session.acquire("kept") as leases:
            session.publish("log", [b"1"], under=leases)
        held = client(first).acquire(["a", "b"])
        assert all(isinstance(each, LeaseGranted) for each in held)
        before = first.inspect(0)[0]
        crash(first)
    for path in site.tmpfs.rglob("shard-*.db"):
        path.unlink()  # the machine has begun anew
    with site.open() as second:
        assert second.routes.host.try_host(0, second.map)
        numbers, found = second.inspect(0)
        assert (numbers.incarnation, [each.domain for each in found]) == (before.incarnation, ["a", "b"])
        assert all(each.holder == HOLDER for each in found)
        with second.session() as session, session.acquire("kept") as again:
            assert again[0].settle_to_ns == 0  # nobody waits for what was given back
            assert [each.payload for each in session.read("log", under=again)] == [b"1"]
    report = audit(Tree(site.root))
    assert report.findings == ()


def test_restart_in_order_leaves_everything_there(endpoint: str, site: Site) -> None:
    keeping(site, endpoint)
    with site.open() as first:
        assert isinstance(client(first).acquire(["a"])[0], LeaseGranted)
        run = first.inspect(0)[0].incarnation
    with site.open() as second:
        assert second.routes.host.try_host(0, second.map)
        numbers, (lease,) = second.inspect(0)
        assert (numbers.incarnation, lease.domain) == (run, "a")


def test_shard_grants_nothing_while_etcd_is_down_says_so_and_goes_on_when_it_is_back(
    played: Gateway, site: Site
) -> None:
    keeping(site, played.endpoint)
    with site.daemon() as cluster:
        host = cluster.routes.host
        held = client(cluster).acquire(["a"])[0]
        assert isinstance(held, LeaseGranted)
        hosted = host.everything()[0]
        played.script = [503] * 10_000
        failover = ShardFailover(cluster.routes, "node1", lambda: ["node1"], cluster.time, cluster.policy)
        waits: list[object] = []
        asks = Thread(target=lambda: waits.append(client(cluster, RIVAL).acquire(["b"])[0]))
        asks.start()
        wait_until(SystemClock(), lambda: hosted.ended() is not None)
        assert hosted.broken() is None
        assert "is unknown" in str(hosted.ended())
        failover.turn()
        assert host.hosted(0) is None
        hindered = host.hindered[0]
        told = judge_awaited_shard(0, None, hindered)
        assert told.verdict is CheckVerdict.FAIL
        assert f"does not begin: etcd at {played.endpoint}" in told.reason
        asks.join()
        assert isinstance(waits[0], LeaseUnavailable)
        played.script = []
        failover.turn()
        assert host.hosted(0) is not None
        assert host.hindered == {}
        assert [each.domain for each in cluster.inspect(0)[1]] == ["a"]


def test_doctor_asks_each_instance(played: Gateway, site: Site) -> None:
    keeping(site, played.endpoint, "http://127.0.0.1:1")
    checks = doctor._etcd(site.settings["node1"])
    assert [each.verdict for each in checks] == [CheckVerdict.PASS, CheckVerdict.UNSURE]
    assert checks[1].reason.startswith("etcd at http://127.0.0.1:1/")


def test_doctor_tells_which_instances_answer() -> None:
    no_answer = ShardUnavailable("etcd-unanswered", "etcd at x: no", hint="look")
    assert judge_etcd("x", "3.5", alone=True).verdict is CheckVerdict.PASS
    assert judge_etcd("x", no_answer, alone=False).verdict is CheckVerdict.UNSURE
    assert judge_etcd("x", no_answer, alone=True).verdict is CheckVerdict.FAIL
