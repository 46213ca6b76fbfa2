"""Each rule of which node is asked for a shard, broken once: the test named beside it must notice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from appliance.node import releases, routes
from tests.support.mutants import Mutant, check_noticed
from tests.unit import test_routes as tests

if TYPE_CHECKING:
    from pathlib import Path

NODE_AT = "ShardRoutes.node_at"
MISSED = "ShardRoutes.missed"
CALL = "ShardWay.call"

MUTANTS = {
    "what an older map's callers found out is believed": Mutant(
        routes,
        NODE_AT,
        "node if number == newest.number else owner",
        "node or owner",
        tests.test_new_map_is_believed_before_what_was_found_out_by_an_older_one,
    ),
    "only the owner is ever asked": Mutant(
        routes,
        NODE_AT,
        "node if number == newest.number else owner",
        "owner",
        tests.test_owner_is_asked_first_then_the_heirs_in_their_order_then_the_owner_again,
    ),
    "shard that the map does not have is looked up": Mutant(
        routes,
        "ShardRoutes._owner",
        "owner is None",
        "False",
        tests.test_shard_that_a_new_map_does_not_have_has_moved,
    ),
    "who misses a shard of an older map fails": Mutant(
        routes,
        MISSED,
        "newest.owner_of(shard) is None or self.node_at(shard) != node",
        "self.node_at(shard) != node",
        tests.test_shard_that_a_new_map_does_not_have_has_moved,
    ),
    "each thread that misses a shard goes on by one": Mutant(
        routes,
        MISSED,
        "newest.owner_of(shard) is None or self.node_at(shard) != node",
        "newest.owner_of(shard) is None",
        tests.test_node_that_was_missed_already_is_not_missed_again,
    ),
    "no newer map is looked for": Mutant(
        routes,
        MISSED,
        "self.maps.look()",
        "pass",
        tests.test_owner_is_asked_first_then_the_heirs_in_their_order_then_the_owner_again,
    ),
    "a newer map is looked for by the first who misses a shard only": Mutant(
        routes,
        MISSED,
        "self.maps.look()",
        "shard in self._at or self.maps.look()",
        tests.test_node_that_was_missed_already_is_not_missed_again,
    ),
    "the same node is asked again": Mutant(
        routes,
        MISSED,
        "order.index(node) + 1 if node in order else 0",
        "order.index(node) if node in order else 0",
        tests.test_owner_is_asked_first_then_the_heirs_in_their_order_then_the_owner_again,
    ),
    "the last heir is the end": Mutant(
        routes,
        MISSED,
        "order[place % len(order)]",
        "order[min(place, len(order) - 1)]",
        tests.test_owner_is_asked_first_then_the_heirs_in_their_order_then_the_owner_again,
    ),
    "this node is no heir": Mutant(
        routes,
        "ShardRoutes._reachable",
        "[*self._settings.peers, self._settings.node, *self._trust.nodes()]",
        "[*self._settings.peers, *self._trust.nodes()]",
        tests.test_owner_is_asked_first_then_the_heirs_in_their_order_then_the_owner_again,
    ),
    "what is found out of one shard counts for all": Mutant(
        routes,
        MISSED,
        "self._at[shard] = (newest.number, order[place % len(order)])",
        "self._at = dict.fromkeys(range(9), (newest.number, order[place % len(order)]))",
        tests.test_what_was_found_out_about_one_shard_counts_for_that_one,
    ),
    "who answers is left": Mutant(
        routes,
        CALL,
        "any((_is_elsewhere(reply) for reply in not_done))",
        "True",
        tests.test_who_answers_is_asked_again,
    ),
    "all replies have to say that it is elsewhere": Mutant(
        routes,
        CALL,
        "any((_is_elsewhere(reply) for reply in not_done))",
        "all((_is_elsewhere(reply) for reply in not_done))",
        tests.test_shard_that_says_it_is_over_is_looked_for_elsewhere,
        ("deposed",),
    ),
    "another owner is not looked for": Mutant(
        routes,
        "_is_elsewhere",
        "_is_gone(reply)",
        "isinstance(reply, wire.Unavailable) and reply.code == 'not-running'",
        tests.test_shard_that_says_it_is_over_is_looked_for_elsewhere,
        ("deposed",),
    ),
    "whoever has no time is left": Mutant(
        routes,
        "_is_elsewhere",
        "_is_gone(reply)",
        "isinstance(reply, wire.Unavailable)",
        tests.test_what_a_shard_says_otherwise_is_its_answer_and_moves_nothing,
        (tests.BUSY,),
    ),
    "domain of another shard is no reason to look for a map": Mutant(
        routes,
        "_is_elsewhere",
        "reply.code == 'wrong-shard'",
        "False",
        tests.test_domain_of_another_shard_is_for_later_and_has_the_map_looked_for,
    ),
    "domain of another shard is refused for good": Mutant(
        routes,
        "_not_now",
        "reply.code == 'wrong-shard'",
        "False",
        tests.test_domain_of_another_shard_is_for_later_and_has_the_map_looked_for,
    ),
    "every refusal is for later": Mutant(
        routes,
        "_not_now",
        "isinstance(reply, wire.Refused) and reply.code == 'wrong-shard'",
        "isinstance(reply, wire.Refused)",
        tests.test_what_a_shard_says_otherwise_is_its_answer_and_moves_nothing,
        (tests.REFUSED,),
    ),
    "who does not answer runs another release": Mutant(
        releases,
        "skewed",
        "release is not None",
        "True",
        tests.test_releases_differ_between_nodes_that_answer,
        ({"node-a": "1.0", "node-b": None}, False),
    ),
    "who names no release runs the same": Mutant(
        releases,
        "skewed",
        "release is not None",
        "release not in (None, UNSAID)",
        tests.test_releases_differ_between_nodes_that_answer,
        ({"node-a": "1.0", "node-b": releases.UNSAID}, True),
    ),
    "two releases are one": Mutant(
        releases,
        "skewed",
        "len({release for release in known.values() if release is not None}) > 1",
        "len({release for release in known.values() if release is not None}) > 2",
        tests.test_releases_differ_between_nodes_that_answer,
        ({"node-a": "1.0", "node-b": "1.1"}, True),
    ),
}


@pytest.mark.verify
@pytest.mark.parametrize("name", MUTANTS)
def test_broken_rule_is_noticed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_noticed(monkeypatch, MUTANTS[name], {"town": tests.Town(tmp_path, *tests.OWNERS)})
