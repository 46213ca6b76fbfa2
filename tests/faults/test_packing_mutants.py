"""Each step of packing and retention done wrong is caught; done right, death at any call breaks nothing."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from appliance.bag.packer import NotPacked, OldPack, Packer, PackReport, PackState, Retention
from appliance.formats.closed import PACK
from appliance.formats.paths import LOCK, PRELOCK, SEAL, parse_data_name
from tests.support.mutants import plant_step
from tests.support.racks import MESSAGES, SealedRack
from tests.support.storage import Crash, FailingStorage, Fault, MemoryStorage
from timeagent.errors import TenureError
from timeagent.units import DAY, MINUTE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from appliance.bag.closedbags import PackedRack
    from appliance.formats.closed import PackMaker
    from appliance.formats.paths import Bag, Rack
    from timeagent.units import Instant

CALLS_MAX = 120


def server(sealed: SealedRack) -> MemoryStorage:
    assert isinstance(sealed.storage, MemoryStorage)
    return sealed.storage


def broken_in(sealed: SealedRack, *, deleted: bool = False) -> list[str]:
    """Return which promises a tree breaks, as it stands after a packer or retention died."""
    found = []
    names = set(sealed.names())
    if not {PRELOCK, SEAL} <= names:
        found.append(f"the rack has only {sorted(names)}: somebody can begin it again")
    directories = {path.rpartition("/")[0] for path in server(sealed).files if parse_data_name(path.rpartition("/")[2])}
    found += [
        f"{place} holds data and looks open"
        for place in sorted(directories)
        if not {PRELOCK, LOCK} <= set(sealed.storage.list_afresh(place) or ())
    ]
    if deleted:
        return found
    try:
        read = sealed.process().settled()
    except TenureError as problem:
        return [*found, f"cannot be read: {problem.message}"]
    return found if read == MESSAGES else [*found, f"{read} was read"]


def dies_at_any_call() -> list[str]:
    """Let a packer die before each of its calls, then look; let another one finish, and look again."""
    for at in range(1, CALLS_MAX):
        sealed = SealedRack()
        storage = FailingStorage(sealed.storage, Fault.CRASH_BEFORE, at)
        with suppress(Crash, TenureError):
            sealed.packer(storage).pack(sealed.rack)
        found = broken_in(sealed)
        if not found:
            with suppress(TenureError):
                sealed.packer().pack(sealed.rack)
            found = broken_in(sealed)
        if found:
            return [f"died at call {at}", *found]
        if storage.calls < at:
            return []
    raise AssertionError("packing has more calls than expected")


SPOILT: list[Callable[[bytes], bytes]] = [
    lambda data: data[:300] + bytes([data[300] ^ 1]) + data[301:],
    lambda data: data[:-1],
    lambda data: data + b"x",
]


def finds_a_bad_pack() -> list[str]:
    """A pack that is damaged, or of another rack, is in place already: the bags are the only good copy."""
    for spoil in SPOILT:
        sealed, other = SealedRack(), SealedRack()
        other.packer().pack(other.rack)
        server(sealed).files[f"{sealed.rack.path}/{PACK}"] = spoil(server(other).files[f"{other.rack.path}/{PACK}"])
        with suppress(TenureError):
            sealed.packer().pack(sealed.rack)
        if any(sealed.storage.read(f"{file.bag.path}/{file.name.text()}") is None for file in sealed.files):
            return ["a bag was deleted, and its pack is bad"]
    return []


def finds_an_altered_file() -> list[str]:
    sealed = SealedRack()
    path = f"{sealed.files[0].bag.path}/{sealed.files[0].name.text()}"
    server(sealed).files[path] = b"\0" + server(sealed).files[path][1:]
    with suppress(TenureError, AssertionError):
        sealed.packer().pack(sealed.rack)
    return ["packed what was not listed"] if PACK in sealed.names() else []


def finds_a_rack_that_is_not_sealed() -> list[str]:
    sealed = SealedRack()
    del server(sealed).files[f"{sealed.rack.path}/{SEAL}"]
    before = dict(server(sealed).files)
    with suppress(TenureError, AssertionError):
        sealed.packer().pack(sealed.rack)
    return [] if server(sealed).files == before else ["packed or deleted without a seal"]


def finds_a_file_of_other_people() -> list[str]:
    sealed = SealedRack()
    path = f"{sealed.files[0].bag.path}/notes.txt"
    server(sealed).files[path] = b"mine"
    sealed.packer().pack(sealed.rack)
    return [] if path in server(sealed).files else ["a file of other people was deleted"]


def retains() -> list[str]:
    """Old and packed; old and not packed; young; and by a fast clock."""
    sealed = SealedRack()
    sealed.packer().pack(sealed.rack)
    sealed.retention().turn(9)
    if PACK not in sealed.names():
        return ["deleted what is young"]
    sealed.node.time.advance(2 * DAY)
    sealed.retention().turn(9)
    found = broken_in(sealed, deleted=True)
    other = SealedRack()
    other.packer().pack(other.rack)
    bag = other.files[0].bag.path
    other.storage.ensure_directory(bag)
    other.node.time.advance(2 * DAY)
    other.retention().turn(9)
    if PACK not in other.names():
        found.append("deleted the pack of a rack that has bags")
    fast = SealedRack(MemoryStorage(lambda: sealed.rack.end_ns + MINUTE))
    fast.packer().pack(fast.rack)
    fast.node.time.advance(2 * DAY)
    fast.retention().turn(9)
    if PACK not in fast.names():
        found.append("one fast clock deleted a pack")
    return found


TRIALS = (
    dies_at_any_call,
    finds_a_bad_pack,
    finds_an_altered_file,
    finds_a_rack_that_is_not_sealed,
    finds_a_file_of_other_people,
    retains,
)


def broken() -> list[str]:
    return next((found for trial in TRIALS if (found := trial())), [])


def test_packing_as_designed_breaks_no_promise() -> None:
    assert broken() == []


def never_verified(_: Packer, rack: Rack) -> bool:
    return bool(rack)


def swept_before_the_pack(self: Packer, rack: Rack) -> PackReport:
    if self._sealer.sealed(rack) is None:
        return PackReport(PackState.UNSEALED)
    maker = self._maker(rack)
    data = list(self._bytes(rack, maker)) if not self._has_pack(rack) else []
    self._sweep(PackState.PACKED, self._bags_there(rack))
    if data:
        self._storage.publish_stream(f"{rack.path}/{PACK}", data, self._tmp)
    return PackReport(PackState.PACKED)


def lock_before_data(self: Packer, bag: Bag) -> bool:
    names = self._storage.list_afresh(bag.path) or []
    for name in sorted(names, key=lambda each: each not in (PRELOCK, LOCK)):
        self._storage.unlink(f"{bag.path}/{name}")
    return self._storage.remove_directory(bag.path)


def everything_in_the_directory(self: Packer, bag: Bag) -> bool:
    names = self._storage.list_afresh(bag.path) or []
    for name in sorted(names, key=lambda each: each in (PRELOCK, LOCK)):
        self._storage.unlink(f"{bag.path}/{name}")
    return self._storage.remove_directory(bag.path)


def rack_swept_too(self: Packer, state: PackState, bags: list[Bag], *, made: bool = False) -> PackReport:
    report = sweep(self, state, bags, made=made)
    for bag in bags[:1]:
        self._storage.unlink(f"{bag.rack.path}/{PRELOCK}")
    return report


sweep = Packer._sweep


def packed_without_a_seal(self: Packer, rack: Rack) -> PackReport:
    """Go by the lock files alone: sweep what is closed."""
    if self._sealer.sealed(rack) is not None:
        return pack(self, rack)
    return self._sweep(PackState.PACKED, self._bags_there(rack))


pack = Packer.pack


def files_as_they_are(self: Packer, rack: Rack, maker: PackMaker) -> Iterator[bytes]:
    """Copy without asking what was listed."""
    yield maker.head
    for each in maker.listed:
        yield self._read(f"{rack.path}/{each.bag}/{each.entry.name}") or b""
    yield b"index"


def verified_by_its_index(self: Packer, rack: Rack) -> bool:
    from appliance.bag.closedbags import open_packed

    packed: PackedRack | None = open_packed(self._storage, rack)
    return packed is not None


def seals_deleted(self: Retention, old: OldPack) -> None:
    self._storage.unlink(old.path)
    self._storage.unlink(f"{old.rack.path}/{SEAL}")


def packs_deleted_beside_bags(self: Retention, cutoff: Instant) -> Iterator[OldPack | NotPacked]:
    for rack in self._racks_before(cutoff):
        path = f"{rack.path}/{PACK}"
        size = self._storage.size_of(path)
        if size is not None:
            yield OldPack(rack, path, size)


def own_clock_only(self: Retention) -> Instant:
    return self._time.now().earliest - self._keep_ns


def a_day_is_nothing(self: Retention) -> Instant:
    return self._time.now().earliest


MUTANTS: list[tuple[type, str, Callable[..., object]]] = [
    (Packer, "_verified", never_verified),
    (Packer, "_verified", verified_by_its_index),
    (Packer, "pack", swept_before_the_pack),
    (Packer, "pack", packed_without_a_seal),
    (Packer, "_remove", lock_before_data),
    (Packer, "_remove", everything_in_the_directory),
    (Packer, "_sweep", rack_swept_too),
    (Packer, "_bytes", files_as_they_are),
    (Retention, "delete", seals_deleted),
    (Retention, "old", packs_deleted_beside_bags),
    (Retention, "cutoff", own_clock_only),
    (Retention, "cutoff", a_day_is_nothing),
]


@pytest.mark.verify
@pytest.mark.parametrize(("owner", "step", "wrong"), MUTANTS, ids=[wrong.__name__ for _, _, wrong in MUTANTS])
def test_step_done_wrong_is_caught(
    monkeypatch: pytest.MonkeyPatch, owner: type, step: str, wrong: Callable[..., object]
) -> None:
    plant_step(monkeypatch, owner, step, wrong)
    assert broken() != []
