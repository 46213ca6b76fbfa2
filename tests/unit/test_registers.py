"""Numbered records on a mount: the newest counts, the first to link wins, and nothing foreign is believed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from appliance.bag.objects import ObjectStorage
from appliance.bag.ports import Published, RecordNumbers
from appliance.formats.framing import Kind
from appliance.formats.paths import ledger_path, record_name
from appliance.formats.policy import Policy
from appliance.formats.stamped import sign
from appliance.node.records import DIRECTORIES, Registers, StoredChain, StoredLedger
from tests.support.object_store import MemoryBucket
from tests.support.storage import FailingStorage, Fault, MemoryStorage, RecordingStorage
from tests.support.values import CLUSTER, ROOT_KEY, WITNESS_KEY, ceiling_record, shard_map, trust_record
from timeagent.errors import BadConfiguration, Damaged, Environment, NotTrusted

if TYPE_CHECKING:
    from timeagent.errors import TenureError

POLICY = Policy(number=1, cluster_id=CLUSTER)


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def registers(storage: MemoryStorage) -> Registers:
    registers = Registers(storage, CLUSTER, ROOT_KEY.verifier())
    for kind, record in ((Kind.POLICY, POLICY), (Kind.TRUST, trust_record()), (Kind.MAP, shard_map())):
        assert registers.publish(kind, record, ROOT_KEY)
    return registers


def again(registers: Registers, storage: MemoryStorage) -> Registers:
    """As another process reads them, which has nothing in memory."""
    return Registers(storage, registers.cluster_id, ROOT_KEY.verifier())


def test_records_are_read_back(registers: Registers, storage: MemoryStorage) -> None:
    other = again(registers, storage)
    assert other.newest_policy() == POLICY
    assert other.trust(1) == trust_record()
    assert other.newest_map() == shard_map()
    assert other.newest().trust == other.newest().policy == 1
    assert other.keyring(1).node_of(WITNESS_KEY.id) is not None


# A listing costs twelve times as much as a look for one name, and most of the time there is nothing new.
def test_where_listings_cost_the_next_number_is_looked_for() -> None:
    bucket = MemoryBucket()
    registers = Registers(ObjectStorage(bucket), CLUSTER, ROOT_KEY.verifier())
    assert registers.publish(Kind.POLICY, POLICY, ROOT_KEY)
    assert registers.newest_policy() == POLICY
    bucket.requests.clear()
    assert registers.newest_policy() == POLICY
    assert bucket.requests == ["look for policy/00000002"]
    third = msgspec.structs.replace(POLICY, number=3)
    for record in (msgspec.structs.replace(POLICY, number=2), third):
        assert registers.publish(Kind.POLICY, record, ROOT_KEY)
    assert registers.newest_policy() == third


def test_newest_is_the_highest_number_seen_afresh(registers: Registers) -> None:
    second = msgspec.structs.replace(POLICY, number=2, grace_ns=POLICY.grace_ns * 2)
    assert registers.newest_policy() == POLICY
    assert registers.publish(Kind.POLICY, second, ROOT_KEY)
    assert registers.newest_policy() == second
    assert registers.policy(1) == POLICY


@pytest.mark.parametrize(("kind", "numbers"), [(Kind.POLICY, (1, 2)), (Kind.TRUST, (2, 1))])
def test_each_register_is_looked_at_afresh_whenever_both_are_asked_for(
    registers: Registers, storage: MemoryStorage, kind: Kind, numbers: tuple[int, int]
) -> None:
    assert registers.newest() == RecordNumbers(trust=1, policy=1)
    record = POLICY if kind is Kind.POLICY else trust_record()
    assert again(registers, storage).publish(kind, msgspec.structs.replace(record, number=2), ROOT_KEY)
    assert registers.newest() == RecordNumbers(*numbers)


def test_what_was_seen_is_known_without_the_mount_until_a_look_fails(
    registers: Registers, storage: MemoryStorage
) -> None:
    recording = RecordingStorage(storage)
    other = Registers(recording, CLUSTER, ROOT_KEY.verifier())
    assert other.known is None
    assert other.newest() == other.known == RecordNumbers(1, 1)
    looks = len(recording.calls)
    second = msgspec.structs.replace(POLICY, number=2)
    assert registers.publish(Kind.POLICY, second, ROOT_KEY)
    assert other.known == RecordNumbers(1, 1)
    assert len(recording.calls) == looks
    assert other.newest_policy() == second
    assert other.known == RecordNumbers(1, 2)


def test_after_a_look_that_failed_nothing_is_known(registers: Registers, storage: MemoryStorage) -> None:
    other = again(registers, storage)
    assert other.newest() == other.known == RecordNumbers(1, 1)
    listing = storage.list_afresh
    storage.list_afresh = refusing  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(Environment):
            other.newest()
        assert other.known is None
    storage.list_afresh = listing  # type: ignore[method-assign]
    assert other.newest() == other.known == RecordNumbers(1, 1)


def refusing(directory: str) -> list[str] | None:
    raise Environment("mount-failed", f"cannot list {directory}", hint="wait")


def test_first_to_link_a_number_wins(registers: Registers) -> None:
    assert not registers.publish(Kind.POLICY, msgspec.structs.replace(POLICY, grace_ns=3 * 10**9), ROOT_KEY)
    assert registers.newest_policy() == POLICY


def test_record_is_read_once(storage: MemoryStorage, registers: Registers) -> None:
    recording = RecordingStorage(storage)
    other = Registers(recording, CLUSTER, ROOT_KEY.verifier())
    for _ in range(3):
        other.policy(1)
        other.keyring(1)
    assert [path for verb, path in recording.calls if verb == "read"] == ["policy/00000001", "trust/00000001"]


def test_names_that_are_no_numbers_are_passed_over(registers: Registers, storage: MemoryStorage) -> None:
    for name in ("00000009x", "9", "README", "00000000"):
        storage.files[f"policy/{name}"] = b"nothing"
    assert registers.newest_number(Kind.POLICY) == 1


def policy_file(policy: Policy = POLICY) -> bytes:
    return sign(Kind.POLICY, policy, ROOT_KEY)


@pytest.mark.parametrize(
    ("data", "error", "code"),
    [
        (policy_file()[:-1], Damaged, None),
        (policy_file()[:20], Damaged, None),
        (b"", Damaged, None),
        (policy_file()[:60] + bytes([policy_file()[60] ^ 1]) + policy_file()[61:], Damaged, None),
        (sign(Kind.TRUST, trust_record(), ROOT_KEY), Damaged, None),
        (sign(Kind.POLICY, POLICY, WITNESS_KEY), NotTrusted, "record-not-trusted"),
        (policy_file(msgspec.structs.replace(POLICY, number=2)), NotTrusted, "record-misplaced"),
        (policy_file(msgspec.structs.replace(POLICY, cluster_id=bytes(16))), NotTrusted, "record-misplaced"),
        (policy_file(msgspec.structs.replace(POLICY, grace_ns=0)), BadConfiguration, "bad-policy"),
        (None, Damaged, "no-record"),
    ],
)
def test_record_that_is_not_ours_is_an_error_that_names_it(
    storage: MemoryStorage, data: bytes | None, error: type[TenureError], code: str | None
) -> None:
    storage.ensure_directory("policy")
    if data is not None:
        storage.files["policy/00000001"] = data
    with pytest.raises(error) as refused:
        Registers(storage, CLUSTER, ROOT_KEY.verifier()).newest_policy()
    assert code in (None, refused.value.code)
    assert "policy" in refused.value.message


# Falling back would let whoever can damage a file bring an old policy, or a revoked key, back.
def test_damaged_newest_record_is_never_passed_over_for_an_older_one(
    registers: Registers, storage: MemoryStorage
) -> None:
    storage.files["policy/00000002"] = b"damaged"
    with pytest.raises(Damaged):
        again(registers, storage).newest_policy()


def test_only_the_root_key_publishes(registers: Registers) -> None:
    with pytest.raises(AssertionError, match="root key"):
        registers.publish(Kind.POLICY, msgspec.structs.replace(POLICY, number=2), WITNESS_KEY)


# -- chains and ledgers ------------------------------------------------------------------------------------------------


def test_chain_lists_links_reads_and_prunes(storage: MemoryStorage) -> None:
    chain = StoredChain(storage, "shards/00000001/0000")
    one, two = (
        sign(Kind.CEILING, msgspec.structs.replace(ceiling_record(), number=number), WITNESS_KEY) for number in (1, 2)
    )
    assert chain.list_afresh() == []
    assert chain.read(1) is None
    assert chain.link(1, one)
    assert chain.link(2, two)
    storage.files["shards/00000001/0000/junk"] = b""
    assert chain.list_afresh() == [1, 2]
    assert chain.read(2) == two
    chain.unlink(1)
    chain.unlink(1)
    assert chain.list_afresh() == [2]
    assert storage.files[f"shards/00000001/0000/{record_name(2)}"] == two


def test_second_to_link_a_number_loses_and_changes_nothing(storage: MemoryStorage) -> None:
    assert StoredChain(storage, "c").link(1, b"first")
    assert not StoredChain(storage, "c").link(1, b"second")
    assert StoredChain(storage, "c").read(1) == b"first"


def test_ledger_is_appended_to_by_its_only_writer(storage: MemoryStorage) -> None:
    ledger = StoredLedger(storage, 1, 2, bytes(8))
    ledger.append(b"one")
    ledger.append(b"two")
    assert storage.files == {ledger_path(1, 2, bytes(8)): b"onetwo"}


def test_ledger_in_an_object_store_is_one_file_after_another() -> None:
    bucket = MemoryBucket()
    ledger = StoredLedger(ObjectStorage(bucket), 1, 2, bytes(8))
    for block in (b"one", b"two", b"three"):
        ledger.append(block)
    assert bucket.objects == {
        ledger_path(1, 2, bytes(8), number): block for number, block in enumerate((b"one", b"two", b"three"), 1)
    }
    assert ledger.end == (3, 5)
    again = StoredLedger(ObjectStorage(bucket), 1, 2, bytes(8))
    assert again.resume(3, 5, 6) is None  # its last block would begin before the file
    assert again.resume(3, 5, 5) == b"three"
    again.append(b"four")
    assert bucket.objects[ledger_path(1, 2, bytes(8), 4)] == b"four"


@pytest.mark.parametrize("fault", [Fault.NOT_DONE, Fault.DONE_BUT_FAILED])
def test_after_a_doubtful_append_the_ledger_goes_on_in_a_new_file(storage: MemoryStorage, fault: Fault) -> None:
    ledger = StoredLedger(FailingStorage(storage, fault, at=3), 1, 2, bytes(8))
    ledger.append(b"one")
    with pytest.raises(Environment, match="append"):
        ledger.append(b"two")
    before = storage.files[ledger_path(1, 2, bytes(8))]
    ledger.append(b"two")
    ledger.append(b"three")
    assert storage.files[ledger_path(1, 2, bytes(8))] == before, "nothing stands behind what may be torn"
    assert storage.files[ledger_path(1, 2, bytes(8), 2)] == b"twothree"


def test_a_ledger_file_that_is_large_enough_is_followed_by_another(
    storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.node.records.LEDGER_FILE_BYTES_MAX", 8)
    ledger = StoredLedger(storage, 1, 2, bytes(8))
    for block in (b"aaaa", b"bbbb", b"c", b"dddddddddd", b"e"):
        ledger.append(block)
    files = [storage.files[ledger_path(1, 2, bytes(8), number)] for number in range(1, 5)]
    assert files == [b"aaaabbbb", b"c", b"dddddddddd", b"e"]


def test_record_that_is_neither_ours_nor_anothers_is_no_answer() -> None:
    class Swept(MemoryStorage):
        def publish(self, path: str, data: bytes, tmp: str) -> Published:
            self.unlink(f"{tmp}/{path}{len(data)}")
            return Published.ABSENT

    with pytest.raises(Environment) as doubt:
        StoredChain(Swept(), "shards/00000001/0000").link(1, b"record")
    assert doubt.value.code == "path-absent"


JUNK = 99_999_999


@pytest.mark.parametrize("kind", [Kind.POLICY, Kind.TRUST, Kind.MAP])
@pytest.mark.parametrize("junk", [b"", b"junk", "another cluster's"])
def test_number_behind_a_gap_that_is_no_record_counts_for_nobody(
    registers: Registers, storage: MemoryStorage, caplog: pytest.LogCaptureFixture, kind: Kind, junk: bytes | str
) -> None:
    path = f"{DIRECTORIES[kind]}/{record_name(JUNK)}"
    theirs = msgspec.structs.replace(POLICY, number=JUNK, cluster_id=bytes(16))
    storage.files[path] = junk if isinstance(junk, bytes) else sign(kind, theirs, WITNESS_KEY)
    other = again(registers, storage)
    assert other.newest_number(kind) == other.newest_number(kind) == 1
    assert [path in record.getMessage() for record in caplog.records] == [True], "told once"
    number = 2
    if kind is Kind.POLICY:
        assert registers.publish(kind, msgspec.structs.replace(POLICY, number=number), ROOT_KEY)
        assert other.newest_number(kind) == number


def test_record_behind_a_gap_counts(registers: Registers, storage: MemoryStorage) -> None:
    assert registers.publish(Kind.POLICY, msgspec.structs.replace(POLICY, number=5), ROOT_KEY)
    assert again(registers, storage).newest().policy == 5


# Not junk by its place: it may be the newest record, damaged. Nobody goes back behind a revocation for that.
@pytest.mark.parametrize("data", [b"junk", sign(Kind.POLICY, msgspec.structs.replace(POLICY, number=2), WITNESS_KEY)])
def test_next_number_that_is_no_record_is_an_error_that_names_both_ways_out(
    registers: Registers, storage: MemoryStorage, data: bytes
) -> None:
    storage.files[f"policy/{record_name(2)}"] = data
    with pytest.raises((Damaged, NotTrusted)) as refused:
        again(registers, storage).newest_policy()
    assert "delete it" in refused.value.hint


@pytest.mark.parametrize("records", [0, 1, 3])
def test_junk_in_a_chain_counts_for_nobody(storage: MemoryStorage, records: int) -> None:
    chain = StoredChain(storage, "chain")
    for number in range(1, records + 1):
        assert chain.link(number, b"record")
    storage.files[f"chain/{record_name(JUNK)}"] = b"junk"
    assert StoredChain(storage, "chain").list_afresh() == list(range(1, records + 1))


# Whoever finds junk is told to delete it: its number is published some day, by a revocation perhaps.
@pytest.mark.parametrize("seen_gone", [True, False])
def test_number_that_was_junk_counts_once_it_is_deleted_and_published(
    registers: Registers, storage: MemoryStorage, *, seen_gone: bool
) -> None:
    other, path = again(registers, storage), f"policy/{record_name(3)}"
    storage.files[path] = b"junk"
    assert other.newest_number(Kind.POLICY) == 1
    assert registers.publish(Kind.POLICY, msgspec.structs.replace(POLICY, number=2), ROOT_KEY)
    del storage.files[path]
    if seen_gone:
        assert other.newest_number(Kind.POLICY) == 2
    assert registers.publish(Kind.POLICY, msgspec.structs.replace(POLICY, number=3), ROOT_KEY)
    assert other.newest_number(Kind.POLICY) == 3
