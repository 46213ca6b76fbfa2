"""Shards that are moved all the time, under sessions that miss maps and answers, and upgrade in the middle of it."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from appliance.lease import shard
from appliance.session import held
from tests.support.moving_world import MovingWorld
from tests.support.mutants import plant
from tests.support.shares import shares

if TYPE_CHECKING:
    from types import ModuleType

SHARES = 8
SEEDS = 25
"""Of each share."""


def run_all(first: int) -> list[MovingWorld]:
    return [run(seed) for seed in range(first, first + SEEDS)]


def run(seed: int) -> MovingWorld:
    with tempfile.TemporaryDirectory() as directory, closing(MovingWorld(Path(directory), seed)) as world:
        world.run()
    return world


@pytest.mark.parametrize("share", shares(SHARES))
def test_nobody_believes_beside_another_and_what_is_committed_is_read_over_many_moves(share: int) -> None:
    worlds = run_all(share * SEEDS)
    assert sum(each.moves for each in worlds) > len(worlds)
    assert sum(len(each.committed) for each in worlds) > len(worlds)


@pytest.mark.verify
@pytest.mark.parametrize(
    ("first", "module", "name", "old", "new", "says"),
    [
        (0, held, "Lease.halves", "(self, self.second)", "(self,)", "Counter"),
        (2, shard, "Shard.go_by", "self._store.latest_expiry() or 0", "0", "two holders believe"),
        (83, held, "Lease.take", "part_of(signed)[1] is not Half.COMING", "False", "earlier holder had"),
    ],
)
def test_wrong_step_of_a_move_is_noticed(
    monkeypatch: pytest.MonkeyPatch, first: int, module: ModuleType, name: str, old: str, new: str, says: str
) -> None:
    """``first``: the seed from which on it is tried."""
    plant(monkeypatch, module, name, old, new)
    with pytest.raises(AssertionError, match=says):
        run_all(first)
