"""``tenure shards``: what it shows, and new maps from a shell."""

from __future__ import annotations

import json
from itertools import count
from typing import TYPE_CHECKING, Any, cast

import pytest
from msgspec.structs import replace

from appliance.admin.moving import DEAF_NS, Finish, begin, moved, moves_text, resharded
from appliance.cli import shards
from appliance.daemon.daemon import Node
from appliance.doctor.health import judge_shard
from appliance.formats.framing import Kind
from appliance.formats.paths import chain_path
from appliance.formats.shardmap import ShardMap
from appliance.formats.stamped import sign
from appliance.formats.witness import Half
from appliance.lease.ceiling import newest_record
from appliance.lease.transport import SocketTransport
from appliance.node.records import Registers, StoredChain
from appliance.node.routes import ShardRoutes
from tenure.__main__ import main
from tests.support.cluster import Site, sites, wait_until
from timeagent.clock import SystemClock
from timeagent.errors import ShardUnavailable
from timeagent.keys import Signer, save_private_key
from timeagent.units import MINUTE, MS, SECOND, TimeInterval, rfc3339

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from appliance.lease.wire import ShardNumbers
    from timeagent.clock import NodeTime

type Say = Callable[..., "tuple[str, str]"]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    yield from sites(tmp_path, "node1", "node2")


@pytest.fixture
def say(site: Site, capfd: pytest.CaptureFixture[str]) -> Say:
    def run(*words: str, status: int = 0) -> tuple[str, str]:
        capfd.readouterr()
        done = main(["shards", *words, *site.options()])
        out, err = capfd.readouterr()
        assert done == status, (words, done, out, err)
        return out, err

    return run


def changed(say: Say, site: Site, *words: str, status: int = 0) -> tuple[str, str]:
    silent_too = () if words[0] == "finish" else ("--silent-too",)  # no daemon runs
    return say(*words, *silent_too, "--root-key", str(site.root_key_file), status=status)


def owners(site: Site) -> tuple[int, tuple[str, ...]]:
    newest = site.registers.newest_map()
    return newest.number, newest.owners


def test_shard_is_given_to_another_node(say: Say, site: Site) -> None:
    assert owners(site) == (1, ("node1", "node2"))
    out, _ = changed(say, site, "move", "0", "node2")
    assert out == "Map 3: 2 shards (0 node2, 1 node2).\n"
    assert owners(site) == (3, ("node2", "node2"))
    out, _ = changed(say, site, "move", "1", "node1", "--json")
    said = json.loads(out)
    assert (said["schema"], said["number"], said["owners"]) == ("tenure.map-changed", 5, ["node2", "node1"])


def test_shard_is_given_to_no_node_that_does_not_answer(say: Say, site: Site) -> None:
    for words in (("move", "0", "node2"), ("reshard", "4"), ("reshard", "4", "--nodes", "node2")):
        _, err = say(*words, "--root-key", str(site.root_key_file), status=69)
        assert "node2 does not answer" in err
        assert "[node-silent]" in err
        assert "--silent-too" in err
        assert owners(site) == (1, ("node1", "node2"))


def test_move_says_whose_shard_goes_home_and_how_it_is_ended_if_it_was_cut_off(site: Site) -> None:
    both = begin(site.registers, site.root_key, lambda before: moved(before, {0: "node1", 1: "node1"}))
    assert moves_text(both) == "shard 0 home to node1, shard 1 from node2 to node1"
    leaving = judge_shard(0, "node1", runner="node1", half=Half.LEAVING)
    assert "tenure shards finish" in leaving.words
    away = judge_shard(0, "node1", runner="node2", half=Half.LEAVING)
    assert "shards move" not in away.way_out, "no other move begins meanwhile"
    assert "shards move" in judge_shard(0, "node1", runner="node2").way_out


class LaterTime:
    """The machine's time, and a boot clock that a test moves."""

    def __init__(self, time: NodeTime) -> None:
        self.now = time.now
        self.ahead = 0

    def boot_ns(self) -> int:
        return self.ahead


def test_node_that_answers_and_has_no_mount_holds_a_move_up_until_its_ceiling_is_past(site: Site) -> None:
    with site.open() as cluster:
        node = Node(cluster)
        assert node.start() == [0]
        deaf, _ = cluster.inspect(0)
        both = begin(site.registers, site.root_key, lambda before: moved(before, {0: "node2"}))
        time = LaterTime(cluster.time)
        finish = Finish(site.registers, site.storage, cast("Any", time), lambda _: deaf, lambda _: None)
        assert finish.waits_for(0, both.number) == "shard 0 goes by map 1 still"
        time.ahead = DEAF_NS
        why = finish.waits_for(0, both.number)
        assert why is not None
        assert "shard 0 goes by map 1 still; shard 0 has not ended its chain, and may grant until" in why
        node.stop()
    node.close()
    assert finish.waits_for(0, both.number) is None
    time.ahead = 0
    assert finish.waits_for(0, both.number) == "shard 0 goes by map 1 still", "it may only be slow"


def test_record_that_was_linked_while_the_one_before_lasted_is_seen_by_who_ends_a_move(site: Site) -> None:
    def silent(shard: int) -> ShardNumbers:
        raise ShardUnavailable("no-answer", f"nobody answers for shard {shard}")

    with site.open() as cluster:
        node = Node(cluster)
        assert node.start() == [0]
        chain = StoredChain(site.storage, chain_path(1, 0))
        newest = newest_record(chain)
        assert newest is not None
        time = LaterTime(cluster.time)

        def now() -> TimeInterval:
            """Return a time beyond the record that is newest before this; the next one is linked at once then."""
            chain.link(newest.number + 1, sign(Kind.CEILING, replace(newest, **longer), cluster.keys.witness.in_use))
            return TimeInterval.around(newest.ceiling_ns + SECOND, MS)

        longer = {"number": newest.number + 1, "ceiling_ns": newest.ceiling_ns + MINUTE}
        time.now = now
        finish = Finish(site.registers, site.storage, cast("Any", time), silent, lambda _: None)
        why = finish.goes_on(0)
        assert why is not None
        assert rfc3339(newest.ceiling_ns + MINUTE) in why
        node.stop()
    node.close()


def test_lease_that_was_revoked_holds_a_move_up_until_its_expiry_though_its_shard_has_ended(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    def silent(shard: int) -> ShardNumbers:
        raise ShardUnavailable("no-answer", f"nobody answers for shard {shard}")

    with site.open() as cluster:
        node = Node(cluster)
        assert node.start() == [0]
        both = begin(site.registers, site.root_key, lambda before: moved(before, {0: "node2"}))
        time = LaterTime(cluster.time)
        finish = Finish(site.registers, site.storage, cast("Any", time), silent, lambda _: None)
        with cluster.session() as session:
            domain = next(f"d/{n}" for n in count() if cluster.map.shard_of(f"d/{n}") == 0)
            (lease,) = session.acquire(domain)
            assert main(["lease", "revoke", domain, "--yes", domain, "--reason", "test", *site.options()]) == 0
            assert "half-not-revoked" in caplog.text
            cluster.routes.host.leave(0)
            why = finish.waits_for(0, both.number)
            assert why is not None
            assert f"leases of shard 0 that it ended may be believed in until {rfc3339(lease.expiry_ns)}" in why
            assert finish.goes_on(0) is None
            soon = cluster.time.now()
            time.now = lambda: TimeInterval.around(lease.expiry_ns + 2 * soon.radius + 1, soon.radius)
            assert finish.waits_for(0, both.number) is None
        node.stop()
    node.close()


def test_revocation_ends_both_halves_of_a_lease_whose_domain_moves(site: Site) -> None:
    with site.open() as cluster:
        node = Node(cluster)
        assert node.start() == [0]
        both = begin(site.registers, site.root_key, lambda before: moved(before, {0: "node1"}))
        cluster.maps.look()
        wait_until(SystemClock(), lambda: cluster.map.number == both.number)
        domain = next(f"d/{n}" for n in count() if cluster.map.shards_of(f"d/{n}")[0] == 0)
        shards = cluster.map.shards_of(domain)
        with cluster.session() as session:
            (lease,) = session.acquire(domain)
            assert [len(cluster.routes.inspect(shard, domain)[1]) for shard in shards] == [1, 1]
            assert main(["lease", "revoke", domain, "--yes", domain, "--reason", "test", *site.options()]) == 0
            assert [cluster.routes.inspect(shard, domain)[1] for shard in shards] == [[], []]
            wait_until(SystemClock(), lambda: lease.loss is not None)
        node.stop()
    node.close()


def test_map_gets_another_number_of_shards(say: Say, site: Site) -> None:
    out, _ = changed(say, site, "reshard", "4")
    assert out == "Map 3: 4 shards (0 node1, 1 node2, 2 node1, 3 node2).\n"
    assert owners(site) == (3, ("node1", "node2", "node1", "node2"))
    _, err = changed(say, site, "reshard", "2", "--nodes", "node2")
    assert owners(site) == (5, ("node2", "node2"))
    assert "no shard for node1: --nodes" in err


def test_move_that_was_cut_off_goes_on_and_no_other_begins_meanwhile(say: Say, site: Site) -> None:
    begin(site.registers, site.root_key, lambda before: moved(before, {0: "node2"}))
    _, err = changed(say, site, "move", "1", "node1", status=75)
    assert "[move-under-way]" in err
    assert "shard 0 from node1 to node2" in err
    assert owners(site)[0] == 2
    changed(say, site, "move", "0", "node2")
    assert site.registers.newest_map().before is None
    assert owners(site) == (3, ("node2", "node2"))
    begin(site.registers, site.root_key, lambda before: resharded(before, 3, ["node1"]))
    changed(say, site, "finish")
    assert owners(site) == (5, ("node1",) * 3)
    assert "no shard is being moved" in changed(say, site, "finish")[0]


# By the chains of the map that it read, a shard would be granted from a chain that has ended.
@pytest.mark.parametrize(("words", "then"), [(("finish",), "root_key"), (("share", "node2"), "note")])
def test_move_that_another_ends_while_one_is_about_to_is_not_begun_again(
    say: Say, site: Site, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], then: str
) -> None:
    begin(site.registers, site.root_key, lambda before: moved(before, {0: "node2"}))
    monkeypatch.setattr(ShardRoutes, "probe", lambda *_: "runs")
    does = getattr(shards, then)

    def meanwhile(*given: Any) -> Any:  # noqa: ANN401 - of whichever it is
        monkeypatch.setattr(shards, then, does)
        changed(say, site, "finish")
        changed(say, site, "move", "0", "node1")
        return does(*given)

    monkeypatch.setattr(shards, then, meanwhile)
    silent = () if words == ("finish",) else ("--wait", "0s")
    say(*words, *silent, "--root-key", str(site.root_key_file))
    newest = site.registers.newest_map()
    assert (newest.number, newest.owners, newest.chains) == (5, ("node1", "node2"), (4, 1))


def test_share_that_a_silent_node_does_not_get_is_told_by_the_code(say: Say, site: Site) -> None:
    changed(say, site, "move", "1", "node1")
    words = ("--wait", "0s", "--root-key", str(site.root_key_file))
    out, err = say("share", "node2", *words, status=69)
    assert (out, "does not answer yet" in err) == ("Map 3: node2 has of 2 shards: none.\n", True)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("move", "2", "node1"), "no-such-shard"),
        (("move", "-1", "node1"), "no-such-shard"),
        (("move", "0", "node1"), "moved-already"),
        (("move", "0", "node9"), "unknown-node"),
        (("reshard", "0"), "bad-shards"),
        (("reshard", "1025"), "bad-shards"),
        (("reshard", "2"), "resharded-already"),
        (("reshard", "3", "--nodes", "node1,node9"), "unknown-node"),
    ],
)
def test_map_that_makes_no_sense_is_refused_and_not_published(
    say: Say, site: Site, words: tuple[str, ...], code: str
) -> None:
    _, err = changed(say, site, *words, status=2)
    assert f"[{code}]" in err
    assert "way out:" in err
    assert owners(site)[0] == 1


def test_root_key_of_another_cluster_changes_nothing(say: Say, site: Site, tmp_path: Path) -> None:
    other = tmp_path / "other.key"
    save_private_key(other, Signer(bytes(32)))
    _, err = say("move", "0", "node2", "--root-key", str(other), status=77)
    assert "[other-cluster]" in err
    assert owners(site)[0] == 1


def test_who_is_outrun_by_another_map_says_so(say: Say, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    publish = type(site.registers).publish

    def late(self: Registers, kind: Kind, record: ShardMap, key: Signer) -> bool:
        assert publish(self, kind, replace(record, chains=(2, 2)), key)
        return publish(self, kind, record, key)

    monkeypatch.setattr(type(site.registers), "publish", late)
    _, err = changed(say, site, "move", "0", "node2", status=75)
    assert "[map-outrun]" in err


def test_shards_are_shown_with_owner_place_and_state(say: Say, site: Site) -> None:
    with site.daemon() as node:
        assert node.routes.host.try_host(0, node.map)
        out, _ = say("ls")
        assert "shard 0  node1" in out
        assert "shard 1  node2" in out
        assert "no answer" in out
        said = json.loads(say("--json")[0])
    assert (said["map"], said["seen_from"]) == (1, "node1")
    assert [(each["owner"], each["answers"]) for each in said["shards"]] == [("node1", True), ("node2", False)]
    assert said["version_skew"] is False
    say("ls", status=69)


# A list with a shard missing looks like a whole one: scripts are told by the code, people by name.
def test_leases_are_listed_with_the_shards_that_did_not_answer(site: Site, capfd: pytest.CaptureFixture[str]) -> None:
    def ls(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        return (main(["lease", "ls", *words, *site.options()]), *capfd.readouterr())

    with site.daemon() as one:
        assert one.routes.host.try_host(0, one.map)
        status, out, err = ls()
        assert (status, out) == (69, "")
        assert "tenure: nobody has a lease on the shards that answer" in err
        assert "tenure: 1 shard of 2 did not answer: 1" in err
        assert "shard 1 at node node2 is not running" in err
        status, out, err = ls("--json")
        assert (status, [each["answers"] for each in json.loads(out)["shards"]]) == (69, [True, False])
        with site.daemon("node2") as two:
            assert two.routes.host.try_host(1, two.map)
            assert ls() == (0, "", "tenure: nobody has a lease\n")


def test_shard_that_does_not_answer_is_said_once(say: Say, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with site.daemon() as one, site.daemon("node2") as two:
        assert one.routes.host.try_host(0, one.map)
        assert two.routes.host.try_host(1, two.map)

        def silent(*_: object) -> bytes:
            raise ConnectionResetError("the shard closed the connection")

        monkeypatch.setattr(SocketTransport, "_exchange", silent)
        for line in say("ls", status=69)[0].splitlines():
            assert line.count("answer") == 2, line  # in words, and in the code
            assert line.endswith("the shard closed the connection [no-answer]")


# 0 is no instant of 1970: nothing has ever moved it.
def test_floor_and_settle_to_that_nothing_moved_are_no_instants(site: Site, capfd: pytest.CaptureFixture[str]) -> None:
    with site.daemon() as one, one.session() as session:
        domain = next(name for name in "abcdefgh" if one.map.shard_of(name) == 0)
        session.acquire(domain)
        capfd.readouterr()
        main(["lease", "ls", "--json", *site.options()])
        shown = [each for shard in json.loads(capfd.readouterr().out)["shards"] for each in shard.get("leases", [])]
    assert shown
    for each in shown:
        assert (each["settle_to"], each["settle_to_ns"], each["floor"]) == (None, 0, None)


def test_nodes_that_run_different_releases_are_named(say: Say, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = ShardRoutes.numbers

    def other_release(self: ShardRoutes, shard: int) -> ShardNumbers:
        import msgspec

        found: Any = numbers(self, shard)
        return msgspec.structs.replace(found, release="0.0.9") if shard else found  # type: ignore[no-any-return]

    with site.daemon() as one, site.daemon("node2") as two:
        assert one.routes.host.try_host(0, one.map)
        assert two.routes.host.try_host(1, two.map)
        monkeypatch.setattr(ShardRoutes, "numbers", other_release)
        _, err = say("ls")
        assert "nodes run different releases" in err
        assert "node2 0.0.9" in err
        said = json.loads(say("--json")[0])
    assert said["version_skew"] is True


def test_instant_of_a_list_is_none_before_the_last_answer(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a shard asked after one that is silent for long would seem to be able to grant for longer."""
    answered: list[int] = []
    numbers = ShardRoutes.numbers

    def noted(routes: ShardRoutes, shard: int) -> ShardNumbers:
        try:
            return numbers(routes, shard)
        finally:
            SystemClock().sleep(100 * MS)
            answered.append(SystemClock().realtime_ns())

    monkeypatch.setattr(ShardRoutes, "numbers", noted)
    out, _ = say("ls", "--json", status=ShardUnavailable.exit_status)
    assert len(answered) == 2
    assert json.loads(out)["now_ns"] > answered[-1] - 50 * MS  # clocks of two kinds
