import pytest

from appliance.formats.marker import Marker, decode_marker
from tests.support.values import CLUSTER, ROOT_KEY
from timeagent.errors import Damaged
from timeagent.keys import fingerprint

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
