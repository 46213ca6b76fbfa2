"""Each rule by which a shard whose tmpfs is full forgets what is long past, broken once: the test beside it notices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from appliance.lease import shard, store, whole_shard
from tests.support.mutants import Mutant, check_noticed
from tests.unit import test_lease_crowd as tests

if TYPE_CHECKING:
    from tests.support.shards import World

world = tests.world

MUTANTS: dict[str, Mutant] = {
    "nothing is forgotten": Mutant(
        shard,
        "Shard.encoded",
        "self._relieve(turn, coming)",
        "[]",
        tests.test_what_is_long_past_is_forgotten_for_what_is_new_and_the_shard_floor_covers_it,
    ),
    "what is forgotten leaves the shard floor where it is": Mutant(
        whole_shard,
        "Eviction.evict",
        "max(self.floor_ns, newest)",
        "self.floor_ns",
        tests.test_what_is_long_past_is_forgotten_for_what_is_new_and_the_shard_floor_covers_it,
    ),
    "every turn looks for what can be forgotten": Mutant(
        shard,
        "Shard._relieve",
        "not any((isinstance(each, Acquire) for each in requests))",
        "False",
        tests.test_nobody_looks_for_what_can_be_forgotten_unless_somebody_asks_for_more,
    ),
    "leases that are past are left": Mutant(
        shard,
        "Shard.encoded",
        "self._break(turn, past)",
        "pass",
        tests.test_leases_that_are_surely_past_are_ended_and_forgotten_later,
    ),
    "what a turn ends is never where the next one forgets": Mutant(
        store,
        "LeaseStore.neighbours",
        "sorted(before | found)",
        "sorted(found)",
        tests.test_neighbours_are_looked_at_twice_in_a_row,
    ),
}


@pytest.mark.verify
@pytest.mark.parametrize("name", MUTANTS)
def test_broken_rule_is_noticed(name: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    check_noticed(monkeypatch, MUTANTS[name], {"world": world, "monkeypatch": monkeypatch})
