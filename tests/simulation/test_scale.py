"""The model of what a cluster asks of the mount holds for a small one, and notices what would be needless."""

from __future__ import annotations

import pytest

from tests.simulation.cluster import UNTUNED
from tests.simulation.scale.cast import Load
from tests.simulation.scale.mutants import MUTANTS, plant_needless
from tests.simulation.scale.run import complaints, simulated
from tests.simulation.scale.spread import complaints as uneven
from tests.simulation.scale.spread import spread

SMALL = Load(nodes=4, shards=3, idle_logs=4, used_logs=1, writers=2, clients=9)
MINUTES = 10
"""A rack's: less would see no seal, or two."""


def test_model_and_simulation_agree() -> None:
    assert complaints(simulated(SMALL, MINUTES), UNTUNED, 0.05) == []


@pytest.mark.verify
@pytest.mark.parametrize("name", MUTANTS)
def test_needless_step_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_needless(monkeypatch, name)
    assert complaints(simulated(SMALL, MINUTES), UNTUNED, 0.05) != []


def test_shard_of_a_dead_node_begins_at_its_heir_when_the_model_says() -> None:
    row = simulated(Load(nodes=4, clients=4), 2, deaths=2)
    assert row["recovery_s"]
    assert complaints(row | {"predicted": {}, "bytes_predicted": {}}, UNTUNED, 0.05) == []


def test_domains_spread_evenly_and_few_move() -> None:
    assert uneven(spread(2_000, 10, 11)) == []
