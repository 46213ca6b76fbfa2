"""Each rule of which shards a node runs, broken once: the test named beside it must notice."""

from __future__ import annotations

import pytest

from appliance.daemon import failover
from appliance.formats import shardmap
from appliance.node import shards
from tests.support.cluster import Site
from tests.support.mutants import Mutant, check_noticed
from tests.unit import test_failover as tests
from tests.unit import test_shard_handover
from timeagent.errors import Environment

GIVES_WAY = "ShardHost._give_way"
INHERITS = "ShardFailover._inherits"
LOOK = "ShardFailover._look_at"
BEFORE = "all((self._routes.probe(shard, node) in _DEAD for node in order[:order.index(self._node)]))"
HOME = "self._routes.probe(shard, owner) == 'not-here'"
LEAVES = "self._leave(shard, f'it belongs to node {owner}, which answers')"

MUTANTS = {
    "heirs are all nodes by weight, the owner among them": Mutant(
        shardmap,
        "ShardMap.heirs",
        "[owner, *sorted(set(nodes) - {owner}, key=weight, reverse=True)]",
        "sorted({owner, *nodes}, key=weight, reverse=True)",
        tests.test_owner_is_first_also_where_it_answers_nowhere,
    ),
    "heirs are by name": Mutant(
        shardmap,
        "ShardMap.heirs",
        "sorted(set(nodes) - {owner}, key=weight, reverse=True)",
        "sorted(set(nodes) - {owner})",
        tests.test_heirs_of_one_nodes_shards_are_spread,
    ),
    "heirs are the other way round than in other releases": Mutant(
        shardmap,
        "ShardMap.heirs",
        "sorted(set(nodes) - {owner}, key=weight, reverse=True)",
        "sorted(set(nodes) - {owner}, key=weight)",
        tests.test_order_of_heirs_is_fixed_and_begins_with_the_owner,
    ),
    "heirs do not depend on the shard": Mutant(
        shardmap,
        "ShardMap.heirs",
        "b'%d\\x00heir\\x00' % shard + node.encode()",
        "b'heir' + node.encode()",
        tests.test_heirs_of_one_nodes_shards_are_spread,
    ),
    "heirs follow one another in a ring of those that are there": Mutant(
        shardmap,
        "ShardMap.heirs",
        "sorted(set(nodes) - {owner}, key=weight, reverse=True)",
        "(lambda ring: ring[shard % len(ring):] + ring[:shard % len(ring)])(sorted(set(nodes) - {owner}, "
        "key=lambda node: hashlib.sha256(node.encode() + b'%d' % len(set(nodes))).digest()))",
        tests.test_node_that_goes_leaves_the_order_of_the_others,
    ),
    "taken over unasked": Mutant(
        failover,
        INHERITS,
        "asked is None or self._time.boot_ns() - asked > ASKED_NS",
        "False",
        tests.test_dead_nodes_shard_is_taken_over_only_when_somebody_asks_for_it,
    ),
    "asking counts for ever": Mutant(
        failover,
        INHERITS,
        "asked is None or self._time.boot_ns() - asked > ASKED_NS",
        "asked is None",
        tests.test_asking_counts_for_a_while_and_for_its_shard_only,
    ),
    "asking counts a nanosecond less": Mutant(
        failover,
        INHERITS,
        "self._time.boot_ns() - asked > ASKED_NS",
        "self._time.boot_ns() - asked >= ASKED_NS",
        tests.test_asking_counts_for_a_while_and_for_its_shard_only,
    ),
    "asking for one shard counts for all": Mutant(
        failover,
        INHERITS,
        "self._asked.get(shard)",
        "max(self._asked.values(), default=None)",
        tests.test_asking_counts_for_a_while_and_for_its_shard_only,
    ),
    "taken over while the owner may grant": Mutant(
        failover,
        INHERITS,
        "self._node not in nodes or self._host.waits_for(shard, newest) is not None",
        "self._node not in nodes",
        tests.test_shard_whose_ceiling_is_not_surely_past_is_waited_for,
    ),
    "who answers nobody inherits": Mutant(
        failover,
        INHERITS,
        "self._node not in nodes or self._host.waits_for(shard, newest) is not None",
        "self._host.waits_for(shard, newest) is not None",
        tests.test_node_that_answers_nobody_inherits_nothing,
    ),
    "one dead before it is enough": Mutant(
        failover,
        INHERITS,
        BEFORE,
        BEFORE.replace("all(", "any("),
        tests.test_who_stands_behind_one_that_answers_takes_nothing_over,
        ("node-a",),
    ),
    "only the owner is asked": Mutant(
        failover,
        INHERITS,
        "order[:order.index(self._node)]",
        "order[:1]",
        tests.test_who_stands_behind_one_that_answers_takes_nothing_over,
        ("node-d",),
    ),
    "the owner is not asked": Mutant(
        failover,
        INHERITS,
        "order[:order.index(self._node)]",
        "order[1:order.index(self._node)]",
        tests.test_who_stands_behind_one_that_answers_takes_nothing_over,
        ("node-b",),
    ),
    "the next before it is not asked": Mutant(
        failover,
        INHERITS,
        "order[:order.index(self._node)]",
        "order[:max(1, order.index(self._node) - 1)]",
        tests.test_who_stands_behind_one_that_answers_takes_nothing_over,
        ("node-a",),
    ),
    "it asks itself too": Mutant(
        failover,
        INHERITS,
        "order[:order.index(self._node)]",
        "order[:order.index(self._node) + 1]",
        tests.test_heir_takes_over_when_all_before_it_are_dead_and_asks_these_alone,
        ("node-d", ["node-b"]),
    ),
    "who refuses in words is dead": Mutant(
        failover,
        INHERITS,
        "self._routes.probe(shard, node) in _DEAD",
        "self._routes.probe(shard, node) not in ('runs', 'not-here')",
        tests.test_dead_is_who_gives_no_answer_or_has_no_address,
        ("protocol-version", False),
    ),
    "who waits for its own shard is dead": Mutant(
        failover,
        INHERITS,
        "self._routes.probe(shard, node) in _DEAD",
        "self._routes.probe(shard, node) != 'runs'",
        tests.test_dead_is_who_gives_no_answer_or_has_no_address,
        ("not-here", False),
    ),
    "who has no address is alive": Mutant(
        failover,
        INHERITS,
        "self._routes.probe(shard, node) in _DEAD",
        "self._routes.probe(shard, node) == 'no-answer'",
        tests.test_dead_is_who_gives_no_answer_or_has_no_address,
        ("no-address", True),
    ),
    "own shard waits until it is asked for": Mutant(
        failover,
        "ShardFailover._consider",
        "owner != self._node and (not self._inherits(shard, newest))",
        "not self._inherits(shard, newest)",
        tests.test_own_shard_begins_unasked_and_asks_nobody,
    ),
    "every shard begins everywhere": Mutant(
        failover,
        "ShardFailover._consider",
        "owner != self._node and (not self._inherits(shard, newest))",
        "False",
        tests.test_dead_nodes_shard_is_taken_over_only_when_somebody_asks_for_it,
    ),
    "own shard counts as taken over": Mutant(
        failover,
        "ShardFailover._consider",
        "self.taken_over += owner != self._node",
        "self.taken_over += 1",
        tests.test_own_shard_begins_unasked_and_asks_nobody,
    ),
    "what did not begin counts as taken over": Mutant(
        failover,
        "ShardFailover._consider",
        "self._host.try_host(shard, newest)",
        "self._host.try_host(shard, newest) or True",
        tests.test_shard_that_another_process_of_the_machine_runs_is_not_counted,
    ),
    "shard that runs is begun again": Mutant(
        failover,
        "ShardFailover.turn",
        "self._host.hosted(shard) is None and self._stop.is_set() is False",
        "self._stop.is_set() is False",
        tests.test_own_shard_that_runs_is_left_alone,
    ),
    "one shard's failure ends the turn": Mutant(
        failover,
        "ShardFailover._guarded",
        "_log.warning('tenancy-failed shard=%d code=%s reason=%s', shard, problem.code, problem.message)",
        "raise",
        tests.test_shard_that_cannot_begin_keeps_no_other_from_it_and_is_tried_again,
        (Environment("tmpfs-full", "no room for a shard"),),
    ),
    "a bug in one shard's step ends the turn": Mutant(
        failover,
        "ShardFailover._guarded",
        "_log.exception('tenancy-failed shard=%d', shard)",
        "raise",
        tests.test_shard_that_cannot_begin_keeps_no_other_from_it_and_is_tried_again,
        (OSError(24, "Too many open files"),),
    ),
    "never goes home": Mutant(
        failover,
        LOOK,
        HOME,
        "False",
        tests.test_shard_goes_home_in_good_order_as_soon_as_its_node_answers,
    ),
    "goes home as in a crash": Mutant(
        failover,
        LOOK,
        LEAVES,
        "self._host.drop(shard)",
        tests.test_shard_goes_home_in_good_order_as_soon_as_its_node_answers,
    ),
    "handed to a node that is dead": Mutant(
        failover,
        LOOK,
        HOME,
        "True",
        tests.test_shard_stays_where_it_runs_unless_its_node_says_that_it_does_not_run_it,
        ("no-answer",),
    ),
    "handed to a node that refuses": Mutant(
        failover,
        LOOK,
        HOME,
        "self._routes.probe(shard, owner) not in _DEAD",
        tests.test_shard_stays_where_it_runs_unless_its_node_says_that_it_does_not_run_it,
        ("protocol-version",),
    ),
    "own shard is sent away": Mutant(
        failover,
        LOOK,
        "owner == self._node or now",
        "now",
        tests.test_own_shard_that_runs_is_left_alone,
    ),
    "sent away at every look": Mutant(
        failover,
        LOOK,
        "shard in self._leaving and self._leaving[shard].is_alive()",
        "False",
        tests.test_shard_that_leaves_is_not_sent_away_again_while_its_holders_finish,
    ),
    "owner is asked at every look": Mutant(
        failover,
        LOOK,
        "now - self._probed.get(shard, 0) < CHECK_NS",
        "False",
        tests.test_owner_and_chain_are_asked_now_and_then_only,
    ),
    "owner is asked once": Mutant(
        failover,
        LOOK,
        "now - self._probed.get(shard, 0) < CHECK_NS",
        "shard in self._probed",
        tests.test_owner_and_chain_are_asked_now_and_then_only,
    ),
    "shard of another runs on": Mutant(
        failover,
        LOOK,
        "self._host.superseded(shard)",
        "False",
        tests.test_shard_that_another_has_taken_over_is_dropped_at_once_and_stops_for_nobody,
    ),
    "shard of another stops as if it were its own": Mutant(
        failover,
        LOOK,
        "_log.warning('shard-superseded shard=%d', shard)",
        "return self._leave(shard, 'superseded')",
        tests.test_shard_that_another_has_taken_over_is_dropped_at_once_and_stops_for_nobody,
    ),
    "shard that ended is kept": Mutant(
        failover,
        LOOK,
        "hosted.broken() is None",
        "False",
        tests.test_shard_that_serves_nobody_any_more_is_dropped_and_begins_again_where_it_belongs,
    ),
    "broken server is covered up": Mutant(
        failover,
        LOOK,
        "hosted.broken() is None",
        "True",
        tests.test_shard_whose_server_broke_is_left_to_be_seen,
    ),
    "shards of the map before run on": Mutant(
        failover,
        LOOK,
        "owner is None",
        "False",
        tests.test_shard_goes_by_each_newer_map_and_ends_with_the_last_that_has_it,
    ),
    "a shard goes by the map under which it began": Mutant(
        failover,
        LOOK,
        "self._host.go_by(shard, newest)",
        "True",
        tests.test_shard_goes_by_each_newer_map_and_ends_with_the_last_that_has_it,
    ),
    "a node that waits for a chain takes its time": Mutant(
        failover,
        LOOK,
        "not self._host.go_by(shard, newest)",
        "self._host.go_by(shard, newest)",
        tests.test_node_looks_again_soon_while_a_shard_waits_for_the_chains_before_it,
    ),
    "a stand-in gives leases up": Mutant(
        failover,
        LOOK,
        "hosted.closes_if_free()",
        "True",
        tests.test_shard_of_which_a_lease_is_taken_while_its_node_is_asked_stays_until_that_is_given_back,
    ),
    "an application keeps its shard": Mutant(
        shards,
        GIVES_WAY,
        "self._shard_runtime.daemon_runs()",
        "False",
        test_shard_handover.test_shard_is_given_up_beside_its_loop_once_a_daemon_runs,
    ),
    "a shard is left whether there is a daemon or not": Mutant(
        shards,
        GIVES_WAY,
        "why is not None",
        "True",
        test_shard_handover.test_shard_is_given_up_beside_its_loop_once_a_daemon_runs,
    ),
    "an application keeps a shard that has ended": Mutant(
        shards,
        GIVES_WAY,
        "hosted.ended()",
        "None",
        test_shard_handover.test_shard_whose_ledger_has_ended_is_dropped_by_its_own_loop,
    ),
    "it is left twice at once": Mutant(
        shards,
        GIVES_WAY,
        "leaving is not None and leaving.is_alive()",
        "False",
        test_shard_handover.test_it_is_not_begun_twice_and_each_shard_by_itself,
    ),
    "tmpfs is looked at whenever the loop goes round": Mutant(
        shards,
        GIVES_WAY,
        "now - self._looked.get(shard, 0) < LOOK_NS",
        "False",
        test_shard_handover.test_it_is_looked_now_and_then_only,
    ),
    "an application begins a shard beside the daemon": Mutant(
        shards,
        "ShardHost.try_host",
        "self._pulse is None and self._shard_runtime.daemon_runs()",
        "False",
        test_shard_handover.test_application_begins_no_shard_while_a_daemon_runs,
    ),
    "an application begins a shard that other nodes need": Mutant(
        shards,
        "ShardHost.missing_daemon",
        "not others",
        "True",
        test_shard_handover.test_application_begins_no_shard_in_a_cluster_of_several_nodes,
    ),
    "an application keeps its shard from the nodes that join": Mutant(
        shards,
        GIVES_WAY,
        "self._other_nodes()",
        "False",
        test_shard_handover.test_shard_is_given_up_once_another_node_has_joined,
    ),
    "a node is another one to itself": Mutant(
        shards,
        "ShardHost._other_nodes",
        "node != self._settings.node",
        "True",
        test_shard_handover.test_shard_is_given_up_once_another_node_has_joined,
    ),
}


@pytest.mark.verify
@pytest.mark.parametrize("name", MUTANTS)
def test_broken_rule_is_noticed(
    name: str, site: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_noticed(monkeypatch, MUTANTS[name], {"site": site, "caplog": caplog})
