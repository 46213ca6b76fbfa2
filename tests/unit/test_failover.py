"""Which shards a node runs: its own, those that somebody misses and nobody before it can run, and how they go home."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from appliance.daemon.failover import ASKED_NS, BEAT_NS, CHECK_NS, SOON_NS
from appliance.formats.shardmap import ShardMap
from tests.support.tenants import NODES, Street, map_of
from tests.support.values import CLUSTER
from timeagent.errors import Environment
from timeagent.units import SECOND

HEIRS = {0: ["node-b", "node-a", "node-c", "node-d"], 1: ["node-b", "node-d", "node-a", "node-c"]}
"""Golden: nodes of two releases must agree on who is next."""


# -- who is next -------------------------------------------------------------------------------------------------------


def test_order_of_heirs_is_fixed_and_begins_with_the_owner() -> None:
    owned = map_of("node-b", "node-b")
    assert {shard: owned.heirs(shard, NODES) for shard in HEIRS} == HEIRS
    assert owned.heirs(0, reversed(NODES)) == owned.heirs(0, [*NODES, *NODES]) == HEIRS[0]


def test_owner_is_first_also_where_it_answers_nowhere() -> None:
    assert map_of("node-b").heirs(0, ["node-c", "node-a"])[0] == "node-b"


# Rendezvous: who goes or comes changes nobody else's place, so two nodes that know of others differ by these alone.
def test_node_that_goes_leaves_the_order_of_the_others() -> None:
    many = [f"node-{n}" for n in range(40)]
    owned = map_of("node-0")
    order = owned.heirs(0, many)
    for gone in many[1:]:
        assert owned.heirs(0, [each for each in many if each != gone]) == [each for each in order if each != gone]


def test_heirs_of_one_nodes_shards_are_spread() -> None:
    owned = ShardMap(number=1, cluster_id=CLUSTER, owners=("node-0",) * 64)
    seconds = {owned.heirs(shard, [f"node-{n}" for n in range(8)])[1] for shard in range(64)}
    assert seconds == {f"node-{n}" for n in range(1, 8)}


# -- take-over ---------------------------------------------------------------------------------------------------------


def dying(*alive: str, here: str) -> Street:
    """Two shards of node-b, of which the heirs of shard 1 are node-d, node-a, node-c; all but these are dead."""
    street = Street("node-b", "node-b", here=here)
    street.says.update({node: "no-answer" for node in NODES if node not in alive})
    return street


def test_own_shard_begins_unasked_and_asks_nobody() -> None:
    street = Street("node-a", "node-b")
    street.turn()
    assert list(street.host.running) == [0]
    assert street.probed == []
    assert street.failover.taken_over == 0


# Its holders wait for this node; who owns the shard waits for its ceiling.
@pytest.mark.parametrize("shard", [0, 1, 7])
def test_what_was_left_for_a_restart_goes_on_whoever_owns_it_and_in_no_map_too(shard: int) -> None:
    street = Street("node-a", "node-b")
    street.host.holders_are_done.clear()
    street.host.suspended.append(shard)
    street.host.held[shard] = "node node-a may grant until noon"
    street.failover.turn()
    assert shard in street.host.running
    assert shard not in street.host.tried
    assert street.probed == []
    street.host.holders_are_done.set()
    street.wait()


def test_what_was_left_for_a_restart_goes_by_the_newest_map_in_the_same_turn() -> None:
    street = Street("node-a", "node-b")
    street.moved_to(map_of("node-a", "node-b", number=5))
    street.host.suspended += [0, 7]
    street.turn()
    assert street.host.running[0].map_number == 5
    assert street.host.left == [7]  # it is of no map any more: those that come wait for its end


# Its holders cannot renew their leases before that: a beat may be half of what is left of their terms.
def test_node_looks_again_soon_while_a_shard_waits_for_the_chains_before_it() -> None:
    street = Street("node-a", "node-a")
    street.turn()
    street.moved_to(map_of("node-a", "node-a", number=2))
    street.host.behind.add(0)
    assert street.failover.turn() == SOON_NS
    street.host.behind.clear()
    assert street.failover.turn() == BEAT_NS
    assert {each.map_number for each in street.host.running.values()} == {2}


def test_own_shard_that_runs_is_left_alone() -> None:
    street = Street("node-a")
    street.runs(0)
    for _ in range(3):
        street.turn(after_ns=CHECK_NS)
    assert (street.host.tried, street.host.left, street.host.dropped) == ([], [], [])
    assert street.probed == []


def test_dead_nodes_shard_is_taken_over_only_when_somebody_asks_for_it() -> None:
    street = dying(here="node-d")
    street.turn()
    assert street.host.tried == []
    street.failover.asked_for(1)
    street.turn()
    assert list(street.host.running) == [1]
    assert street.failover.taken_over == 1


def test_asking_counts_for_a_while_and_for_its_shard_only() -> None:
    street = Street("node-b", "node-b", here="node-d")
    street.says.update(dict.fromkeys(NODES, "no-answer"))
    street.failover.asked_for(1)
    street.turn(after_ns=ASKED_NS + 1)
    assert street.host.tried == []
    street.failover.asked_for(1)
    street.turn(after_ns=ASKED_NS)
    assert street.host.tried == [1]


def test_shard_whose_ceiling_is_not_surely_past_is_waited_for() -> None:
    street = dying(here="node-d")
    street.host.held[1] = "node node-b may grant until 12:00"
    street.failover.asked_for(1)
    street.turn()
    assert street.host.tried == []
    assert street.probed == []  # nor is anybody asked before it matters
    del street.host.held[1]
    street.turn()
    assert list(street.host.running) == [1]


@pytest.mark.parametrize(
    ("here", "asked"),
    [("node-d", ["node-b"]), ("node-a", ["node-b", "node-d"]), ("node-c", ["node-b", "node-d", "node-a"])],
)
def test_heir_takes_over_when_all_before_it_are_dead_and_asks_these_alone(here: str, asked: list[str]) -> None:
    street = dying(here=here)
    street.failover.asked_for(1)
    street.turn()
    assert list(street.host.running) == [1]
    assert [node for _, node in street.probed] == asked


@pytest.mark.parametrize("alive", ["node-b", "node-d", "node-a"])
def test_who_stands_behind_one_that_answers_takes_nothing_over(alive: str) -> None:
    street = dying(alive, here="node-c")
    street.failover.asked_for(1)
    street.turn()
    assert street.host.tried == []
    assert street.probed[-1] == (1, alive)


# Who refuses in words is alive, whatever its words are: it sees for itself whether it should begin.
@pytest.mark.parametrize(
    ("said", "dead"),
    [
        ("no-answer", True),
        ("no-address", True),
        ("not-here", False),
        ("runs", False),
        ("protocol-version", False),
        ("too-many-connections", False),
        ("not-trusted", False),
    ],
)
def test_dead_is_who_gives_no_answer_or_has_no_address(said: str, dead: bool) -> None:  # noqa: FBT001
    street = dying(here="node-d")
    street.says["node-b"] = said
    street.failover.asked_for(1)
    street.turn()
    assert (list(street.host.running) == [1]) is dead


def test_node_that_answers_nobody_inherits_nothing() -> None:
    street = dying(here="node-d")
    street.known.remove("node-d")
    street.failover.asked_for(1)
    street.turn()
    assert street.host.tried == []


def test_shard_that_another_process_of_the_machine_runs_is_not_counted() -> None:
    street = dying(here="node-d")
    street.host.elsewhere = {1}
    street.failover.asked_for(1)
    street.turn()
    assert street.host.tried == [1]
    assert street.failover.taken_over == 0


@pytest.mark.parametrize(
    "problem",
    [Environment("tmpfs-full", "no room for a shard"), OSError(24, "Too many open files"), ZeroDivisionError()],
)
def test_shard_that_cannot_begin_keeps_no_other_from_it_and_is_tried_again(
    problem: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    street = Street("node-a", "node-a")
    street.host.failing, street.host.problem = {0}, problem
    street.turn()
    assert list(street.host.running) == [1]
    street.host.failing = set()
    street.turn()
    assert sorted(street.host.running) == [0, 1]
    assert "tenancy-failed shard=0" in caplog.text


# -- home-coming -------------------------------------------------------------------------------------------------------


def keeping(here: str = "node-d") -> Street:
    """Shard 1 of node-b runs here, which is dead so far."""
    street = dying(here=here)
    street.runs(1)
    return street


def test_shard_goes_home_in_good_order_as_soon_as_its_node_answers() -> None:
    street = keeping()
    street.turn()
    assert street.host.left == []
    street.says["node-b"] = "not-here"
    street.turn(after_ns=CHECK_NS)
    assert (street.host.left, street.host.dropped) == ([1], [])
    assert street.host.running == {}
    assert street.failover.handed_over == 1


# It is not begun again by the node that gave it back, however many still ask there.
def test_shard_that_went_home_stays_there() -> None:
    street = keeping()
    street.says["node-b"] = "not-here"
    street.turn()
    street.says["node-b"] = "runs"
    street.failover.asked_for(1)
    street.turn(after_ns=SECOND)
    assert street.host.running == {}


# An answer that is no "not here" says nothing: a shard is handed to nobody who does not wait for it.
@pytest.mark.parametrize("said", ["no-answer", "no-address", "runs", "protocol-version", "too-many-connections"])
def test_shard_stays_where_it_runs_unless_its_node_says_that_it_does_not_run_it(said: str) -> None:
    street = keeping()
    street.says["node-b"] = said
    street.turn()
    assert (street.host.left, street.host.dropped) == ([], [])
    assert street.failover.handed_over == 0


# Its holder would lose it: an orderly stop renews nothing.
def test_shard_of_which_a_lease_is_taken_while_its_node_is_asked_stays_until_that_is_given_back() -> None:
    street = keeping()
    street.says["node-b"] = "not-here"
    street.taken_meanwhile = True
    street.turn()
    assert (street.host.left, street.failover.handed_over) == ([], 0)
    street.taken_meanwhile, street.host.running[1].leases = False, 0
    street.turn(after_ns=CHECK_NS)
    assert (street.host.left, street.failover.handed_over) == ([1], 1)


def test_shard_that_leaves_is_not_sent_away_again_while_its_holders_finish() -> None:
    street = keeping()
    street.host.holders_are_done.clear()
    street.says["node-b"] = "not-here"
    try:
        for _ in range(3):
            street.turn(after_ns=CHECK_NS)
        assert street.host.left == [1]
        assert street.failover.handed_over == 1
    finally:
        street.host.holders_are_done.set()
        street.wait()


def test_owner_and_chain_are_asked_now_and_then_only() -> None:
    street = keeping()
    street.turn()
    street.turn(after_ns=CHECK_NS - 1)
    assert (street.probed, street.host.looked) == ([(1, "node-b")], [1])
    street.turn(after_ns=1)
    assert (street.probed, street.host.looked) == ([(1, "node-b")] * 2, [1, 1])


def test_shard_that_another_has_taken_over_is_dropped_at_once_and_stops_for_nobody() -> None:
    street = keeping()
    street.host.overtaken = {1}
    street.turn()
    assert (street.host.dropped, street.host.left) == ([1], [])


def test_shard_that_serves_nobody_any_more_is_dropped_and_begins_again_where_it_belongs() -> None:
    street = Street("node-a")
    street.runs(0)
    street.host.running[0].over = "another has linked a record"
    street.turn()
    assert street.host.dropped == [0]
    assert street.host.tried == [0]


# What should never happen is left for the daemon to see: it ends by name.
def test_shard_whose_server_broke_is_left_to_be_seen() -> None:
    street = Street("node-a")
    street.runs(0)
    street.host.running[0].over = street.host.running[0].broke = "its server has ended"
    street.turn(after_ns=CHECK_NS)
    assert (street.host.dropped, street.host.tried) == ([], [])
    assert 0 in street.host.running


# -- maps --------------------------------------------------------------------------------------------------------------


def test_shard_goes_by_each_newer_map_and_ends_with_the_last_that_has_it() -> None:
    street = Street("node-a", "node-a")
    street.turn()
    both = ShardMap(number=2, cluster_id=CLUSTER, owners=("node-a",), chains=(2,), before=street.map.layout)
    street.moved_to(both)
    street.turn()
    assert street.host.left == []
    assert sorted(street.host.running) == [0, 1, 1024]
    assert {each.map_number for shard, each in street.host.running.items() if shard < 1024} == {2}
    street.moved_to(replace(both, number=3, before=None))
    street.turn()
    assert sorted(street.host.left) == [0, 1]
    assert sorted(street.host.running) == [1024]


def test_map_with_the_same_shards_and_other_owners_moves_them_one_by_one() -> None:
    street = Street("node-a", "node-a")
    street.turn()
    street.moved_to(map_of("node-b", "node-a", number=2))
    street.says["node-b"] = "not-here"
    street.turn(after_ns=CHECK_NS)
    assert street.host.left == [0]
    assert list(street.host.running) == [1]


# A hand-over in good order asks for all leases back: who stands in keeps the shard as long as somebody has one.
def test_shard_of_another_node_is_not_handed_over_while_a_lease_is_out() -> None:
    street = Street("node-b")
    street.runs(0)
    street.host.running[0].leases = 1
    street.says["node-b"] = "not-here"
    street.turn(after_ns=CHECK_NS)
    assert street.host.left == []
    street.host.running[0].leases = 0
    street.turn(after_ns=CHECK_NS)
    assert street.host.left == [0]
