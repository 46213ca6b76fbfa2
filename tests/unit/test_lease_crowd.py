"""A shard whose tmpfs is full: what is long past is forgotten there, and new domains come in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from appliance.lease import store as store_module
from appliance.lease.wire import Granted, Unavailable
from tests.support.shards import POLICY, World, acquire, granted, one, opened, relinquish, renew, worlds
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from appliance.formats.witness import Witness
    from appliance.lease.shard import Shard

AGED = POLICY.span_ns + POLICY.grace_ns + 4 * POLICY.radius_ns_max + SECOND
"""How long after its last grant a domain can be forgotten, surely; less than a term."""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(store_module, "UNWRITTEN_MAX", 40)
    monkeypatch.setattr(store_module, "WRITE_MIN", 8)
    monkeypatch.setattr(store_module, "NEIGHBOURS_MAX", 64)
    yield from worlds(tmp_path)


def full(world: World, shard: Shard, held: int = 0) -> list[Witness]:
    """Take domains until there is no room for one more; return their leases. All but the first ``held`` go back."""
    world.leave_room(0)
    leases: list[Witness] = []
    while not isinstance(reply := one(shard, acquire(world, f"{len(leases):03d}" + "x" * 100)), Unavailable):
        leases.append(opened(reply)[1])
        if len(leases) > held:
            one(shard, relinquish(world, leases[-1]))
        assert len(leases) < 999, "never full"
    assert reply.code == "store-full"
    return leases


def test_what_is_long_past_is_forgotten_for_what_is_new_and_the_shard_floor_covers_it(world: World) -> None:
    shard = world.started()
    fences = [each.fence for each in full(world, shard)]
    remembered = world.stores[-1].domains
    assert remembered == len(fences)
    world.time.advance(AGED)
    new = granted(shard, acquire(world, "new"))
    assert world.stores[-1].domains < remembered
    assert fences[0] <= new.floor_ns <= fences[-1]
    for number in range(3 * len(fences)):
        world.time.advance(AGED)
        one(shard, relinquish(world, granted(shard, acquire(world, f"later-{number}"))))
    assert world.stores[-1].domains <= remembered


def test_lease_is_never_forgotten(world: World) -> None:
    shard = world.started()
    leases = full(world, shard, held=999)
    world.time.advance(AGED)
    for _ in range(len(leases)):
        assert isinstance(one(shard, acquire(world, "new")), Unavailable)
    assert world.stores[-1].leases == world.stores[-1].domains == len(leases)
    assert all(isinstance(one(shard, renew(world, each)), Granted) for each in leases)


def asked_until_granted(world: World, shard: Shard, turns: int) -> None:
    for _ in range(turns):
        if isinstance(one(shard, acquire(world, "new")), Granted):
            return
    raise AssertionError("never granted")


# Where there is no room first, there is nobody to be forgotten: they would be tried for ever.
def test_neighbours_are_tried_one_after_the_other(world: World) -> None:
    shard = world.started()
    leases = full(world, shard, held=40)
    world.time.advance(AGED)
    asked_until_granted(world, shard, len(leases))
    assert world.stores[-1].leases == 41


# What is past is ended in one turn, and can be forgotten in the next.
def test_neighbours_are_looked_at_twice_in_a_row(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "NEIGHBOURS_MAX", 2)
    shard = world.started()
    for domain in "abcde":
        granted(shard, acquire(world, domain))
    store = world.stores[-1]
    store.write_some()
    assert ["".join(store.neighbours()) for _ in range(4)] == ["ab", "abcd", "cde", "abe"]


def test_leases_that_are_surely_past_are_ended_and_forgotten_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "NEIGHBOURS_MAX", 32)
    shard = world.started()
    leases = full(world, shard, held=999)
    world.time.advance(3 * POLICY.lease_term_max_ns)
    assert isinstance(one(shard, acquire(world, "new")), Unavailable)
    assert world.stores[-1].leases < len(leases)
    asked_until_granted(world, shard, 1)


def test_nobody_looks_for_what_can_be_forgotten_unless_somebody_asks_for_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = world.started()
    leases = full(world, shard, held=5)
    asked: list[bool] = []

    def nobody() -> list[str]:
        asked.append(True)
        return []

    monkeypatch.setattr(world.stores[-1], "neighbours", nobody)
    assert isinstance(one(shard, renew(world, leases[0])), Granted)
    assert asked == []
    one(shard, acquire(world, "new"))
    assert asked == [True]
