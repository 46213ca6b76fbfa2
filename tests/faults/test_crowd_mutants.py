"""Each rule by which a shard whose tmpfs is full forgets what is long past, broken once: the test beside it notices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from appliance.lease import shard, store
from tests.support.mutants import Mutant, check_noticed
from tests.unit import test_lease_crowd as tests

if TYPE_CHECKING:
    from tests.support.shards import World

world = tests.world

MUTANTS: dict[str, Mutant] = {
    "nothing is forgotten": Mutant(
        shard,
        "Shard._written",
        "self._relieve(turn)",
        "pass",
        tests.test_what_is_long_past_is_forgotten_for_what_is_new_and_the_shard_floor_covers_it,
    ),
    "what is forgotten leaves the shard floor where it is": Mutant(
        shard,
        "Shard._relieve",
        "self._eviction.evict(CROWD_MAX, turn.bounds.now.earliest, crowded=True)",
        "[self._store.forget(*each) for each in self._store.idle(turn.bounds.now.earliest, CROWD_MAX, crowded=True)]",
        tests.test_what_is_long_past_is_forgotten_for_what_is_new_and_the_shard_floor_covers_it,
    ),
    "every turn looks for what can be forgotten": Mutant(
        shard,
        "Shard._written",
        "self._store.full and any((isinstance(each, Acquire) for each in requests))",
        "self._store.full",
        tests.test_nobody_looks_for_what_can_be_forgotten_unless_somebody_asks_for_more,
    ),
    "a turn fails where there is no room to forget": Mutant(
        shard,
        "Shard._relieve",
        "contextlib.suppress(Environment)",
        "contextlib.suppress()",
        tests.test_turn_goes_on_where_there_is_no_room_even_to_forget,
    ),
    "leases that are past are left": Mutant(
        shard,
        "Shard._written",
        "self._store.past(turn.bounds.now.earliest, SWEEP_MAX, crowded=True)",
        "[]",
        tests.test_leases_that_are_surely_past_are_ended_and_forgotten_later,
    ),
    "what a turn ends is never where the next one forgets": Mutant(
        shard,
        "Shard._relieve",
        "self._store.transaction(sweep=False)",
        "self._store.transaction()",
        tests.test_leases_that_are_surely_past_are_ended_and_forgotten_later,
    ),
    "the same neighbours are tried for ever": Mutant(
        store,
        "LeaseStore._sweep_on",
        "self._crowd = (some[0], max(some))",
        "self._crowd = (some[0], max(some)); self._sweep += reversed(some)",
        tests.test_neighbours_are_tried_one_after_the_other,
    ),
}


@pytest.mark.verify
@pytest.mark.parametrize("name", MUTANTS)
def test_broken_rule_is_noticed(name: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    check_noticed(monkeypatch, MUTANTS[name], {"world": world, "monkeypatch": monkeypatch})
