"""A node whose keys are revoked stops to sign: sessions and the daemon say so."""

from __future__ import annotations

from threading import Event

import pytest

from appliance.admin.trust import revoke_node
from appliance.bag.writing import Committed
from appliance.daemon.daemon import Node
from appliance.node.own_keys import NOTICE_NS, OwnKeys
from tenure.__main__ import main
from tests.support.cluster import Site, tree, wait_until
from tests.support.values import TIME_KEY
from timeagent.clock import SystemClock
from timeagent.errors import BadTime, NotTrusted, TenureError
from timeagent.keys import KeyInUse, Purpose, stage_keys, take_up
from timeagent.units import SECOND


def test_revoked_node_begins_no_session_and_its_daemon_ends(site: Site) -> None:
    with site.open() as cluster:
        cluster.check_trusted_now()
        node = Node(cluster)
        node.start()
        try:
            revoke_node(site.registers, site.root_key, "node1", cluster.time.now().midpoint - SECOND)
            with pytest.raises(NotTrusted, match="revoked"):
                cluster.session("late")
            with pytest.raises(NotTrusted, match="revoked"):
                node.run(Event())
        finally:
            node.stop()
            node.close()


# Started again and again by its supervisor, it would take its shards from those who run them meanwhile, each time.
def test_daemon_of_a_revoked_node_begins_with_no_shard(site: Site) -> None:
    with site.open() as cluster:
        revoke_node(site.registers, site.root_key, "node1", cluster.time.now().midpoint - SECOND)
        node = Node(cluster)
        before = tree(site.root)
        with pytest.raises(NotTrusted, match="revoked") as refused:
            node.start()
        assert "trust rotate" in refused.value.hint
        assert cluster.routes.host.everything() == {}
        node.stop()
        node.close()
    assert tree(site.root) == before


def test_application_of_a_revoked_node_begins_with_no_shard(site: Site) -> None:
    with site.open() as cluster, cluster.session("begun before") as session:
        revoke_node(site.registers, site.root_key, "node1", cluster.time.now().midpoint - SECOND)
        before = tree(site.root)
        with pytest.raises(NotTrusted, match="revoked"):
            session.acquire("a")
        assert cluster.routes.host.everything() == {}
        assert tree(site.root) == before


def test_status_says_whether_the_keys_of_this_node_count(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    main(["status", *site.options()])
    assert "PASS    keys         those of node1 count" in capsys.readouterr().out
    revoke_node(site.registers, site.root_key, "node1", SystemClock().realtime_ns() - SECOND)
    assert main(["status", *site.options()]) == 1
    said = capsys.readouterr().out
    assert "FAIL    keys" in said
    assert "trust rotate" in said


@pytest.mark.parametrize("deaf", [False, True])
def test_open_cluster_takes_its_next_keys_up_and_without_them_signs_nothing_after_the_end(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, deaf: bool
) -> None:
    if deaf:
        monkeypatch.setattr(OwnKeys, "_next", lambda *_: None)
    clock = SystemClock()
    with site.open() as cluster, cluster.session("running") as session:
        before = {purpose: key.in_use.id for purpose, key in cluster.keys.keys.items()}
        assert main(["trust", "rotate", *site.options(), "--root-key", str(site.root_key_file), "--overlap", "3s"]) == 0
        end = clock.realtime_ns() + 3 * SECOND
        wait_until(clock, lambda: clock.realtime_ns() > end)
        after = {purpose: key.in_use.id for purpose, key in cluster.keys.keys.items()}
        if deaf:
            assert after == before
            with pytest.raises(BadTime, match="ended at"):
                cluster.time.token()
            with pytest.raises(TenureError), session.acquire("a") as leases:
                session.publish("log", [b"1"], under=leases)
            wait_until(clock, lambda: "key-ended purpose=witness" in caplog.text)
        else:
            assert not set(after.values()) & set(before.values())
            with session.acquire("a") as leases:
                assert isinstance(session.publish("log", [b"1"], under=leases), Committed)
            assert caplog.text.count("key-taken-up") == len(after)
            for key in cluster.keys.keys.values():
                assert key.end_ns is not None
                assert key.end_ns > end + NOTICE_NS


def test_time_of_an_agent_with_another_key_of_this_node_is_this_nodes(site: Site) -> None:
    keys, directory = OwnKeys(site.settings["node1"]), site.node_dir()
    first = keys.time.in_use.id
    stage_keys(directory, [Purpose.TIME])
    take_up(directory, [Purpose.TIME])
    second = OwnKeys(site.settings["node1"])
    assert second.time.in_use.id != first
    for each in (keys, second):
        assert each.is_own(first)
        assert each.is_own(second.time.in_use.id)
        assert not each.is_own(keys.witness.in_use.id)


def test_key_signs_up_to_its_end_and_nothing_after_it() -> None:
    key = KeyInUse(TIME_KEY)
    assert key.signer_at(2**63) is TIME_KEY
    key.use(TIME_KEY, 100)
    assert key.signer_at(99) is TIME_KEY
    with pytest.raises(BadTime) as refused:
        key.signer_at(100)
    assert refused.value.code == "key-ended"
