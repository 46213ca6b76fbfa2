"""Ending the chains of one map, and beginning those of the next."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from appliance.formats.chains import CeilingKind, CeilingRecord, open_ceiling
from appliance.formats.framing import Kind
from appliance.formats.shardmap import shard_number
from appliance.formats.stamped import sign
from appliance.lease.ceiling import (
    Beginning,
    CeilingChain,
    Deposed,
    Extended,
    InDoubt,
    ShardIdentity,
    Succession,
    newest_record,
)
from tests.support.clocks import HandTime
from tests.support.shards import POLICY, MemoryChain
from tests.support.values import CLUSTER, NODE, NOW_NS, TIME_KEY, WITNESS_KEY
from timeagent.errors import Damaged, Environment
from timeagent.units import SECOND

TIME = HandTime(TIME_KEY, NOW_NS)


class Chains:
    """All chains of a cluster, in memory."""

    def __init__(self) -> None:
        self.chains: dict[tuple[int, int], MemoryChain] = {}

    def port(self, number: int, shard: int) -> MemoryChain:
        return self.chains.setdefault((number, shard), MemoryChain())

    def succession(self, *counts: int, **options: object) -> SimpleNamespace:
        """What ends all chains but the last ones, of maps with so many shards each; all of them begin anew."""

        def before(chain: int) -> list[int]:
            return [] if chain == 1 else [shard_number(chain - 1, place) for place in range(counts[chain - 2])]

        made = Succession(CLUSTER, before, self.port, TIME, WITNESS_KEY, NODE, b"ended---", **options)  # type: ignore[arg-type]
        return SimpleNamespace(beginning=lambda: made.beginning(len(counts)))

    def run(self, number: int, shard: int, incarnation: bytes, *counts: int) -> CeilingChain:
        identity = ShardIdentity(CLUSTER, number, shard, NODE, incarnation.ljust(8, b"-"))
        origin = self.succession(*counts).beginning if counts else None
        return CeilingChain(self.port(number, shard), TIME, WITNESS_KEY, POLICY, identity, origin)

    def newest(self, number: int, shard: int) -> CeilingRecord:
        record = newest_record(self.port(number, shard))
        assert record is not None
        return record


def test_first_map_begins_with_nothing() -> None:
    assert Chains().succession(4).beginning() == Beginning(0, 0)


def test_running_chain_ends_at_its_ceiling_and_its_owner_is_deposed() -> None:
    chains = Chains()
    owner = chains.run(1, 0, b"owner")
    began = owner.begin()
    assert isinstance(began, Extended)
    ceiling = began.record.ceiling_ns
    assert chains.succession(1, 2).beginning() == Beginning(ceiling, ceiling)
    assert chains.newest(1, 0).kind is CeilingKind.TERMINAL
    assert chains.newest(1, 0).ceiling_ns == ceiling
    assert isinstance(owner.extend(), Deposed)
    successor = chains.run(1, 0, b"next").begin()
    assert isinstance(successor, Deposed)
    assert "read the map anew" in successor.reason


def test_orderly_chain_ends_with_its_two_numbers() -> None:
    chains = Chains()
    owner = chains.run(1, 0, b"owner")
    owner.begin()
    owner.finish(NOW_NS - 5, NOW_NS - 7)
    assert chains.succession(1, 2).beginning() == Beginning(NOW_NS - 5, NOW_NS - 7)


def test_new_chain_begins_with_the_highest_numbers_of_all_old_ones() -> None:
    chains = Chains()
    for shard, (floor, settle_to) in enumerate(((3, 9), (8, 2), (1, 1))):
        chains.run(1, shard, b"owner").begin()
        chains.port(1, shard).records[2] = _orderly(chains.newest(1, shard), floor, settle_to)
    new = chains.run(2, 4, b"new", 4, 6)
    began = new.begin()
    assert isinstance(began, Extended)
    assert (began.record.floor_ns, began.record.settle_to_ns, began.record.map_number) == (8, 9, 2)
    assert chains.newest(1, 3).number == 1, "a chain that never began is ended too"
    assert (chains.newest(1, 3).floor_ns, chains.newest(1, 3).settle_to_ns) == (0, 0)


def _orderly(record: CeilingRecord, floor_ns: int, settle_to_ns: int) -> bytes:
    import msgspec

    changed = {"number": 2, "kind": CeilingKind.ORDERLY, "floor_ns": floor_ns, "settle_to_ns": settle_to_ns}
    return sign(Kind.CEILING, msgspec.structs.replace(record, **changed), WITNESS_KEY)


def test_map_that_nobody_carried_out_is_passed_through() -> None:
    chains = Chains()
    owner = chains.run(1, 0, b"owner")
    owner.begin()
    ceiling = owner.ceiling_ns
    assert chains.succession(1, 3, 2).beginning() == Beginning(ceiling, ceiling)
    assert {chains.newest(2, shard).ceiling_ns for shard in range(3)} == {ceiling}


def test_what_is_done_is_done_once() -> None:
    chains = Chains()
    chains.run(1, 0, b"owner").begin()
    first = chains.succession(1, 2).beginning()
    records = dict(chains.port(1, 0).records)
    assert chains.succession(1, 2).beginning() == first
    assert chains.port(1, 0).records == records


def test_owner_may_be_given_time_and_one_that_stopped_needs_none() -> None:
    chains = Chains()
    owner = chains.run(1, 0, b"owner")
    owner.begin()
    succession = chains.succession(1, 2, polite=lambda record: f"{record.node} stops")
    waits = succession.beginning()
    assert isinstance(waits, InDoubt)
    assert f"{NODE} stops" in waits.reason
    assert chains.newest(1, 0).kind is CeilingKind.RUNNING
    owner.finish(4, 2)
    assert succession.beginning() == Beginning(4, 2)


def test_chain_of_a_later_map_waits_until_the_old_ones_have_ended() -> None:
    chains = Chains()
    chains.run(1, 0, b"owner").begin()
    chains.port(1, 0).list_afresh = _fails  # type: ignore[method-assign]
    assert isinstance(chains.run(2, 0, b"new", 1, 2).begin(), InDoubt)
    assert chains.port(2, 0).records == {}


def test_one_chain_that_has_ended_says_nothing_of_the_others() -> None:
    chains = Chains()
    for shard in range(3):
        chains.run(1, shard, b"owner").begin()
    for unknown in range(3):
        chains.port(1, unknown).list_afresh, listed = _fails, chains.port(1, unknown).list_afresh  # type: ignore[method-assign]
        assert isinstance(chains.succession(3, 2).beginning(), InDoubt)
        chains.port(1, unknown).list_afresh = listed  # type: ignore[method-assign]
    assert isinstance(chains.succession(3, 2).beginning(), Beginning)


# A listing that takes long: the slot is pruned and linked again after it began, and what came meanwhile is not in it.
def test_terminal_record_in_a_pruned_slot_is_not_the_end_for_who_did_not_link_it() -> None:
    chains = Chains()
    owner = chains.run(1, 0, b"owner")
    owner.begin()
    port, listed = chains.port(1, 0), chains.port(1, 0).list_afresh
    port.list_afresh = lambda: [1]  # type: ignore[method-assign]
    chains.succession(1, 2).beginning()
    (terminal,) = (data for number, data in port.records.items() if number == 2)
    del port.records[2]
    port.list_afresh = listed  # type: ignore[method-assign]
    for _ in range(4):
        TIME.advance(SECOND)
        owner.extend()
    port.records[2] = terminal

    def slowly() -> list[int]:
        port.list_afresh = listed  # type: ignore[method-assign]
        return [1, 2]

    port.list_afresh = slowly  # type: ignore[method-assign]
    assert chains.succession(1, 2).beginning() == Beginning(owner.ceiling_ns, owner.ceiling_ns)


def _fails() -> list[int]:
    raise Environment("mount-failed", "planted")


def test_slot_that_was_pruned_is_not_the_end() -> None:
    chains = Chains()
    owner = chains.run(1, 0, b"owner")
    owner.begin()
    port = chains.port(1, 0)
    listed = port.list_afresh

    def then_go_on() -> list[int]:
        numbers = listed()
        port.list_afresh = listed  # type: ignore[method-assign]
        for _ in range(3):
            TIME.advance(SECOND)
            owner.extend()
        port.unlink(2)
        return numbers

    port.list_afresh = then_go_on  # type: ignore[method-assign]
    ceiling = owner.ceiling_ns + 3 * SECOND
    assert chains.succession(1, 2).beginning() == Beginning(ceiling, ceiling)
    assert open_ceiling(port.records[2], "the pruned slot")[0].kind is CeilingKind.TERMINAL
    assert chains.newest(1, 0).number == 5


def test_record_of_another_chain_is_damage() -> None:
    chains = Chains()
    chains.run(1, 0, b"owner").begin()
    chains.port(1, 1).records[1] = chains.port(1, 0).records[1]
    with pytest.raises(Damaged, match="shard 1"):
        chains.succession(2, 3).beginning()
