"""A rack is packed by one process and given up by retention at any two moments of a third: nothing is damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from appliance.bag import closedbags, packer
from appliance.bag.packer import PackState
from appliance.bag.reader import Level
from appliance.formats.closed import PACK
from appliance.formats.paths import LOCK
from tests.support.bags import T0, Node
from tests.support.mutants import Mutant, check_noticed, plant
from tests.support.racks import MESSAGES, SealedRack
from tests.support.readings import fill, fresh_node, seal_all
from tests.support.storage import MemoryStorage, WrappedStorage
from timeagent.errors import BadRequest, Damaged, TryAgain
from timeagent.units import DAY, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS_MAX = 60


class Overtaken(WrappedStorage):
    """A slow process: others do something before some of its calls, by their numbers."""

    def __init__(self, sealed: SealedRack, others: dict[int, Callable[[], object]]) -> None:
        super().__init__(sealed.storage)
        self.calls = 0
        self._others = others

    def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:
        del verb, path
        self.calls += 1
        if self.calls in self._others:
            self._others[self.calls]()
        return call()


def pack(sealed: SealedRack) -> bytes:
    sealed.packer().pack(sealed.rack)
    made = sealed.storage.read(f"{sealed.rack.path}/{PACK}")
    assert made is not None
    return made


def delete(sealed: SealedRack) -> None:
    sealed.node.time.advance(2 * DAY)
    assert len(sealed.retention().turn(10)) == 1


def any_two_moments(work: Callable[[SealedRack, Overtaken], None]) -> int:
    """Have a rack packed and deleted at any two moments of the work; return how often both came while it worked."""
    both = 0
    for packed_at in range(1, CALLS_MAX):
        for deleted_at in range(packed_at + 1, CALLS_MAX):
            sealed = SealedRack()
            slow = Overtaken(
                sealed,
                {packed_at: lambda sealed=sealed: pack(sealed), deleted_at: lambda sealed=sealed: delete(sealed)},  # type: ignore[misc]
            )
            work(sealed, slow)
            if slow.calls < deleted_at:
                break
            both += 1
    return both


def test_packer_that_is_overtaken_calls_nothing_damaged() -> None:
    def work(sealed: SealedRack, slow: Overtaken) -> None:
        state = sealed.packer(slow).pack(sealed.rack).state
        assert state in (PackState.PACKED, PackState.RETAINED)

    assert any_two_moments(work) > 100


# A packer was stopped, or the server is late with its link: what it made comes back after it was given up.
def test_packer_under_whom_the_pack_goes_and_comes_calls_nothing_damaged() -> None:
    together = 0
    for given_up_at in range(1, CALLS_MAX, 3):
        for back_at in range(given_up_at + 1, CALLS_MAX):
            sealed = SealedRack()
            assert isinstance(sealed.storage, MemoryStorage)
            kept: list[bytes] = []

            def give_up(sealed: SealedRack = sealed, kept: list[bytes] = kept) -> None:
                kept.append(pack(sealed))
                delete(sealed)

            def come_back(sealed: SealedRack = sealed, kept: list[bytes] = kept) -> None:
                assert isinstance(sealed.storage, MemoryStorage)
                sealed.storage.files.setdefault(f"{sealed.rack.path}/{PACK}", kept[0])

            def go_again(sealed: SealedRack = sealed) -> None:
                sealed.retention().turn(1)

            slow = Overtaken(sealed, {given_up_at: give_up, back_at: come_back, back_at + 1: go_again})
            state = sealed.packer(slow).pack(sealed.rack).state
            assert state in (PackState.PACKED, PackState.RETAINED)
            if slow.calls < back_at:
                break
            together += 1
    assert together > 30


def test_reader_that_is_overtaken_is_told_to_read_on_or_that_it_is_gone() -> None:
    told = set()

    def work(sealed: SealedRack, slow: Overtaken) -> None:
        process: Node = sealed.process(slow)
        try:
            assert process.settled() == MESSAGES
        except (BadRequest, TryAgain) as problem:
            told.add(problem.code)

    assert any_two_moments(work) > 100
    assert told == {"gone", "pack-vanished"}


def test_reader_under_whom_a_rack_is_packed_reads_on() -> None:
    for packed_at in range(1, CALLS_MAX):
        sealed = SealedRack()
        slow = Overtaken(sealed, {packed_at: lambda sealed=sealed: pack(sealed)})  # type: ignore[misc]
        process: Node = sealed.process(slow)
        assert process.settled() == MESSAGES
        if slow.calls < packed_at:
            break
    assert packed_at > 10


# Whoever reads the same stretch again days later knew its bags from before the rack was sealed.
@pytest.mark.parametrize("level", [Level.SETTLED, Level.STALE_OK])
def test_reader_that_knew_the_bags_of_a_rack_is_told_that_they_are_gone(level: Level) -> None:
    node = fresh_node()
    fill(node, [(second, "n1", b"a" * 8, [0]) for second in range(8)])
    node.time.midpoint_ns = T0 + 10 * SECOND
    process = node.again()
    process.horizon.settle(T0 + 6 * SECOND)

    def read() -> list[int]:
        return [len(batch) for batch in process.reader.batches(until_ns=T0 + 6 * SECOND - 1, level=level)]

    assert read() == [1] * 6
    seal_all(node)
    packer.Packer(node.context, node.grid, node.sealer).pack(node.grid.rack(T0))
    node.time.advance(2 * DAY)
    assert len(packer.Retention(node.context, node.grid, DAY).turn(10)) == 1
    with pytest.raises(TryAgain, match="read on from where it stopped: what retention gave up is named then"):
        read()
    with pytest.raises(BadRequest, match="was given up"):
        read()


# The mark alone proves nothing: a bag that stands there with its lock lost its file by somebody's hand.
def test_missing_file_of_a_bag_that_is_there_is_damage_whatever_the_mark_says() -> None:
    sealed = SealedRack()
    sealed.storage.ensure_marker(f"{sealed.rack.path}/retained")
    sealed.storage.unlink(f"{sealed.files[0].bag.path}/{sealed.files[0].name.text()}")
    assert sealed.storage.look(sealed.files[0].bag.path, (LOCK,))
    with pytest.raises(Damaged, match="is not there"):
        sealed.process().settled()


MUTANTS = {
    "a rack without directories and pack is damaged": Mutant(
        packer, "Packer.pack", "len(void) < len(bags)", "True", test_packer_that_is_overtaken_calls_nothing_damaged
    ),
    "a file that is gone with its pack is damaged": Mutant(
        closedbags,
        "ListedFiles._given_up",
        "bool(marked)",
        "False",
        test_reader_that_is_overtaken_is_told_to_read_on_or_that_it_is_gone,
    ),
    "the mark alone says that a file was given up": Mutant(
        closedbags,
        "ListedFiles._given_up",
        "not self._storage.look(bag.path, (LOCK,))",
        "True",
        test_missing_file_of_a_bag_that_is_there_is_damage_whatever_the_mark_says,
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_broken_rule_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_noticed(monkeypatch, MUTANTS[name])


def test_pack_that_goes_while_it_is_opened_and_counts_as_damaged_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, closedbags, "open_packed", "raise _Deleted", "return b''")
    monkeypatch.setattr(packer, "open_packed", closedbags.open_packed)  # it has the name by itself
    with pytest.raises(Damaged, match="found 0"):
        test_packer_under_whom_the_pack_goes_and_comes_calls_nothing_damaged()
