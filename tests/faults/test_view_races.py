"""Aggregators may race and die anywhere: every checkpoint is what one fold over all settled messages gives.

Each step of an advance done wrong is caught by some interleaving.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from appliance import views as module
from tests.simulation.planting import Planter
from tests.support.bags import T0
from tests.support.view_world import ViewWorld, nodes, view
from timeagent.units import MINUTE, SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from appliance.bag.message import MessageBatch

SEEDS = 200


def broken(seeds: int = SEEDS) -> tuple[int, list[str]] | None:
    """Return the first seed after which something is wrong, and what. Half of the runs have crashes."""
    for seed in range(seeds):
        found = ViewWorld(seed).run()
        if found:
            return seed, found
    return None


@pytest.mark.parametrize("seeds", [10, pytest.param(SEEDS, marks=pytest.mark.verify)])
def test_every_checkpoint_is_what_one_fold_gives(seeds: int) -> None:
    assert broken(seeds) is None


REFRESHED = "horizon = min((reader.horizon.refresh() for reader in self._readers))"

MUTANTS = {
    "the horizon of one log only": (REFRESHED, "horizon = self._readers[0].horizon.refresh()"),
    "the greatest of the horizons": (REFRESHED, REFRESHED.replace("min(", "max(")),
    "a checkpoint above the horizon": (REFRESHED, REFRESHED + " + 1000000000"),
    "the newest is looked for after the horizons": (
        "newest = self.newest()\n" + REFRESHED,
        REFRESHED + "\nnewest = self.newest()",
    ),
    "what the newest holds is taken in again": (
        "readings = [reader.batches(before(start), horizon - 1) for reader in self._readers]",
        "readings = [reader.batches(before(0), horizon - 1) for reader in self._readers]",
    ),
    "messages at the horizon are taken in": (
        "readings = [reader.batches(before(start), horizon - 1) for reader in self._readers]",
        "readings = [reader.batches(before(start), horizon + 999999999, 'latest') for reader in self._readers]",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_step_done_wrong_is_caught(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    Planter(monkeypatch).plant(module, "View.advance", *MUTANTS[name])
    assert broken() is not None


def test_checkpoint_that_appears_in_pieces_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    Planter(monkeypatch).plant(
        module,
        "View._published",
        "published = self._storage.publish(path, data, self._tmp)",
        "published = Published.LOST if self._storage.read(path) is not None else Published.WON\n"
        "if published is Published.WON:\n"
        "    self._storage.append(path, data[:9], 0)\n"
        "    self._storage.append(path, data[9:], 9)",
    )

    assert broken() is not None


def one_log_after_the_other(logs: Sequence[Iterator[MessageBatch]]) -> Iterator[MessageBatch]:
    for log in logs:
        yield from log


def test_logs_taken_in_one_after_the_other_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "in_one_order", one_log_after_the_other)
    assert broken() is not None


def test_checkpoints_on_the_way_change_no_byte_of_the_last() -> None:
    one, other = ViewWorld(2), ViewWorld(2)
    for world, turns in ((one, (8,)), (other, range(1, 9))):
        for second in turns:
            for node in nodes(world.server, T0 + MINUTE):
                node.horizon.settle(T0 + second * SECOND)
            newest = view(world.server).advance()
        path = f"{view(world.server).path}/{newest.horizon_ns:019d}"
        assert world.server.files[path] == one.server.files[path]
