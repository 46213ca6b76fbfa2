import pytest

from appliance.formats.birth import SPAN_NS_MIN, BagKind, Marker, check_grid, decode_marker
from tests.support.values import CLUSTER, ROOT_KEY
from timeagent.errors import BadConfiguration, Damaged
from timeagent.keys import fingerprint
from timeagent.units import DAY, HOUR, MINUTE, MS, SECOND


@pytest.mark.parametrize(
    ("span", "grace", "rack"),
    [
        (SECOND, 2 * SECOND, 10 * MINUTE),
        (SPAN_NS_MIN, 0, SECOND),
        (DAY, DAY, DAY),
        (SECOND, 1_500 * MS, 90 * SECOND),
        (HOUR, 0, DAY),
    ],
)
def test_grid_that_names_can_say_is_taken(span: int, grace: int, rack: int) -> None:
    check_grid(span, grace, rack)


@pytest.mark.parametrize(
    ("span", "grace", "rack"),
    [
        (0, 0, MINUTE),
        (-SECOND, 0, MINUTE),
        (SPAN_NS_MIN - 1, 0, MINUTE),
        (SPAN_NS_MIN - MS, 0, 9 * SECOND),
        (SECOND + 1, 0, MINUTE),
        (SECOND, 1, MINUTE),
        (SECOND, -SECOND, MINUTE),
        (7 * SECOND, 0, MINUTE),  # a bag across two racks
        (2 * MINUTE, 0, MINUTE),
        (SECOND, 0, 0),
        (SECOND, 0, -MINUTE),
        (500 * MS, 0, 1_500 * MS),
        (SECOND, 0, 7 * MINUTE),  # a rack across two days
        (SECOND, 0, 2 * DAY),
    ],
)
def test_grid_that_names_cannot_say_is_refused(span: int, grace: int, rack: int) -> None:
    with pytest.raises(BadConfiguration) as refused:
        check_grid(span, grace, rack)
    assert refused.value.code == "bad-grid"
    assert refused.value.hint


def test_kinds_of_bags_are_two() -> None:
    assert [str(kind) for kind in BagKind] == ["maildir", "log"]


MARKER = Marker(CLUSTER, ROOT_KEY.public)
RAW = MARKER.encode()


def test_marker_is_plain_text_and_read_back() -> None:
    assert RAW.splitlines()[:2] == [b"tenure root, format 1", b"cluster 000102030405060708090a0b0c0d0e0f"]
    assert decode_marker(RAW, "f") == MARKER
    assert MARKER.fingerprint == fingerprint(ROOT_KEY.public)


def test_every_flipped_bit_is_noticed_or_names_another_cluster() -> None:
    for bit in range(8 * len(RAW)):
        flipped = bytearray(RAW)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            other = decode_marker(bytes(flipped), "f")
        except Damaged:
            continue
        assert other != MARKER, bit


@pytest.mark.parametrize(
    "data",
    [
        b"",
        RAW[:-1],
        RAW + b"\n",
        RAW + RAW,
        RAW.replace(b"\n", b"\r\n"),
        RAW.replace(b"format 1", b"format 2"),
        RAW.replace(b"cluster 0001", b"cluster 00 01"),
        RAW.replace(b"cluster 0001", b"cluster 01"),
        RAW.replace(b"0a0b", b"0A0B"),
        RAW.replace(b"0a0b", b"xyzw"),
        RAW.replace(b"ssh-ed25519 AAAA", b"ssh-ed25519 AAAB"),
        RAW.replace(b"ssh-ed25519", b"ssh-rsa"),
        RAW.replace(b"tenure-root", b"someone"),
        b"\xff" + RAW,
    ],
)
def test_what_is_not_written_as_we_write_it_is_refused(data: bytes) -> None:
    with pytest.raises(Damaged, match="the marker") as refused:
        decode_marker(data, "the marker")
    assert refused.value.code == "bad-marker"
