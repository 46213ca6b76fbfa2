import msgspec
import pytest

from appliance.formats.framing import Kind, pack, pieces
from appliance.formats.witness import (
    HEAD_CONTEXT,
    NO_HEAD,
    Batch,
    BatchHead,
    Half,
    LedgerBlock,
    SignedWitness,
    block_bytes,
    decode_entry,
    head_digest,
    head_refused,
    open_block,
    sign_batch,
)
from tests.support.values import (
    CLUSTER,
    INCARNATION,
    NODE,
    NOW_NS,
    ROOT_KEY,
    TIME_KEY,
    WITNESS_KEY,
    batch,
    ending,
    entries,
    keyring,
    nonce_token,
    page_token,
    trust_record,
    witness,
    witness_refused,
)
from timeagent.canonical import decode, encode
from timeagent.errors import Damaged
from timeagent.keys import Purpose, Signer
from timeagent.trust import KeyEntry, Keyring
from timeagent.units import DAY


def signed(index: int = 0) -> SignedWitness:
    return batch().signed_witness(index)


def test_signed_witness_proves_its_statement() -> None:
    one = decode(SignedWitness, encode(signed()))
    assert one.witness() == witness()
    assert witness_refused(one, keyring(), CLUSTER) is None
    assert one.batch_head().signed_time() == page_token()


@pytest.mark.parametrize("count", [1, 2, 3, 5, 64, 300])
def test_every_entry_of_a_batch_is_proved_by_its_own_path(count: int) -> None:
    of = batch([witness(f"accounts/{index}") for index in range(count)])
    for index in range(count):
        one = of.signed_witness(index)
        assert witness_refused(one, keyring(), CLUSTER) is None
        assert one.witness().domain == f"accounts/{index}"
        assert of.encoded_witnesses()(index) == encode(one)
        moved = msgspec.structs.replace(one, index=(index + 1) % count if count > 1 else 1)
        assert "not in the batch" in str(witness_refused(moved, keyring(), CLUSTER))


def test_altered_statement_is_not_in_the_batch() -> None:
    forged = encode(msgspec.structs.replace(witness(), fence=witness().fence + 1))
    reason = witness_refused(msgspec.structs.replace(signed(), entry=forged), keyring(), CLUSTER)
    assert reason == "the witness is not in the batch that its head signs"


def altered(**changes: object) -> tuple[bytes, bytes]:
    """A head with other values, signed by the shard as if it were true."""
    head = encode(msgspec.structs.replace(signed().batch_head(), **changes))
    return head, WITNESS_KEY.sign(HEAD_CONTEXT, head)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"cluster_id": bytes(16)}, "of another cluster"),
        ({"node": "node-b"}, "says node node-b, its key is of node-a"),
        ({"key_id": ROOT_KEY.id}, "not in the trust record"),
        ({"key_id": TIME_KEY.id}, "is for time, not for witness"),
        ({"time": page_token(NOW_NS - 2 * DAY).encode()}, "not valid"),
        ({"time": page_token(signer=ROOT_KEY).encode()}, "not in the trust record"),
        ({"time": nonce_token(bytes(32)).encode()}, "does not verify"),
    ],
)
def test_head_that_proves_nothing_is_refused_by_name(changes: dict[str, object], reason: str) -> None:
    assert reason in str(head_refused(*altered(**changes), keyring(), CLUSTER))


def test_head_with_another_signature_is_refused() -> None:
    one = signed()
    for signature in (bytes(64), WITNESS_KEY.sign("witness", one.head), ROOT_KEY.sign(HEAD_CONTEXT, one.head)):
        assert "does not verify" in str(head_refused(one.head, signature, keyring(), CLUSTER))


# A shard states its own time; a signed time of another node, however good, is not that.
def test_head_with_the_time_of_another_node_is_refused() -> None:
    foreign = Signer(bytes(32))
    entry = KeyEntry(
        node="node-b", purpose=Purpose.TIME, public=foreign.public, valid_from_ns=0, valid_until_ns=NOW_NS + DAY
    )
    ring = Keyring((*trust_record().keys, entry))
    raw, signature = altered(time=page_token(signer=foreign).encode())
    assert head_refused(raw, signature, ring, CLUSTER) == "the witness says node node-a, its signed time is of node-b"


def test_every_flipped_bit_of_a_head_or_its_signature_is_noticed() -> None:
    one, ring = signed(), keyring()
    for name in ("head", "signature"):
        raw = getattr(one, name)
        for bit in range(8 * len(raw)):
            flipped = bytearray(raw)
            flipped[bit // 8] ^= 1 << bit % 8
            try:
                reason = witness_refused(msgspec.structs.replace(one, **{name: bytes(flipped)}), ring, CLUSTER)
            except Damaged:
                continue
            assert reason is not None, (name, bit)


# The test above is worth nothing if it passes without signatures.
def test_flipped_bits_are_found_by_the_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timeagent.keys.Verifier.verifies", lambda *_: True)
    with pytest.raises(AssertionError):
        test_every_flipped_bit_of_a_head_or_its_signature_is_noticed()


def test_every_flipped_bit_of_an_entry_or_path_is_noticed() -> None:
    one, ring = batch().signed_witness(0), keyring()
    whole = one.entry + b"".join(one.path)
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        entry, path = bytes(flipped[: len(one.entry)]), bytes(flipped[len(one.entry) :])
        other = msgspec.structs.replace(one, entry=entry, path=(path[:32], path[32:]))
        assert witness_refused(other, ring, CLUSTER) is not None, bit


def test_each_kind_of_entry_is_read_back_as_itself() -> None:
    for entry in entries():
        assert decode_entry(encode(entry)) == entry


@pytest.mark.parametrize(
    "data", [b"", b"\x91\xa7witness", b"\x92\xa7unknown\x01", encode(ending()), encode(witness()) + b"\0", b"\xc0"]
)
def test_what_is_no_entry_is_refused(data: bytes) -> None:
    with pytest.raises(Damaged, match="entry 3"):
        decode_entry(data, "the block, entry 3")


def test_entry_in_another_encoding_is_refused() -> None:
    stopped = b"\x93\xa7stopped\x01\x02"
    assert encode(decode_entry(stopped)) == stopped
    with pytest.raises(Damaged) as refused:
        decode_entry(b"\x93\xa7stopped\xcc\x01\x02")
    assert refused.value.code == "record-not-canonical"


def test_holder_is_given_statements_only() -> None:
    assert signed(0).witness() == witness()
    with pytest.raises(Damaged, match="holds a Stopped"):
        signed(3).witness()


def test_heads_of_one_incarnation_are_a_chain() -> None:
    first = batch()
    second = sign_batch(
        [witness()],
        WITNESS_KEY,
        cluster_id=CLUSTER,
        node=NODE,
        map_number=1,
        shard=0,
        incarnation=INCARNATION,
        going_by=1,
        half=Half.WHOLE,
        ceiling_number=1,
        ceiling_ns=NOW_NS,
        sequence=2,
        previous=head_digest(first.head),
        time=page_token(),
    )
    assert decode(BatchHead, first.head).previous == NO_HEAD
    assert decode(BatchHead, second.head).previous == head_digest(first.head)


def test_batch_that_nobody_could_read_is_never_signed() -> None:
    with pytest.raises(AssertionError):
        batch([msgspec.structs.replace(witness(), fence=2**63)])
    with pytest.raises(AssertionError):
        batch([msgspec.structs.replace(witness(), domain="")])
    with pytest.raises(AssertionError):
        batch([])


def test_batch_keeps_a_path_for_each_entry() -> None:
    of: Batch = batch()
    assert len(of.entries) == len(of.levels[0]) == decode(BatchHead, of.head).count == 4


def block() -> LedgerBlock:
    found, rest = pieces(block_bytes(batch()))
    assert rest == ""
    return open_block(found[0], "ledger, offset 0")


def test_block_holds_a_turn_as_it_was_signed() -> None:
    one = block()
    assert list(one.decoded("a block")) == entries()
    assert one.entries_match(one.batch_head("a block"))
    assert one.head == batch().head


@pytest.mark.parametrize(
    "change",
    [
        lambda of: of[:-1],
        lambda of: (*of, of[0]),
        lambda of: (*of[1:], of[0]),
        lambda of: (of[0] + b"\0", *of[1:]),
        lambda _: (),
    ],
)
def test_other_entries_do_not_match_the_head(change: object) -> None:
    assert callable(change)
    one = block()
    changed = msgspec.structs.replace(one, entries=change(one.entries))
    assert not changed.entries_match(one.batch_head("a block"))


def test_count_is_part_of_what_is_signed() -> None:
    one = block()
    head = one.batch_head("a block")
    assert not one.entries_match(msgspec.structs.replace(head, count=head.count + 1))


def test_damaged_entry_is_named_by_its_place() -> None:
    one = msgspec.structs.replace(block(), entries=(encode(witness()), b"\xc0"))
    with pytest.raises(Damaged, match="a block, entry 1"):
        list(one.decoded("a block"))


def test_what_is_no_block_is_refused() -> None:
    for payload in (b"", b"\xc0", encode(witness())):
        found, _ = pieces(pack(Kind.LEDGER, payload))
        with pytest.raises(Damaged, match="ledger, offset 0"):
            open_block(found[0], "ledger, offset 0")
