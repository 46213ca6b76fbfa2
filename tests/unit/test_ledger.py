import msgspec
import pytest

from appliance.formats.framing import Kind, pack, pieces
from appliance.formats.ledger import LedgerBlock, block_bytes, open_block
from tests.support.values import batch, entries, witness
from timeagent.canonical import encode
from timeagent.errors import Damaged


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
