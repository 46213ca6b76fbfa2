import pytest

from appliance.formats.chains import CeilingKind, open_ceiling
from appliance.formats.framing import Kind
from appliance.formats.stamped import sign
from tests.support.values import ROOT_KEY, WITNESS_KEY, ceiling_file, ceiling_record, shard_map
from timeagent.errors import Damaged


def test_ceiling_is_read_back_and_verifies() -> None:
    record, signed = open_ceiling(ceiling_file(), "f")
    assert record == ceiling_record()
    assert signed.verified_by(Kind.CEILING, WITNESS_KEY.verifier())
    assert not signed.verified_by(Kind.CEILING, ROOT_KEY.verifier())


def test_what_is_no_ceiling_is_refused() -> None:
    for data in (
        b"",
        ceiling_file()[:-1],
        sign(Kind.MAP, shard_map(), ROOT_KEY),
        sign(Kind.CEILING, shard_map(), ROOT_KEY),
    ):
        with pytest.raises(Damaged, match="the record"):
            open_ceiling(data, "the record")


def test_chain_goes_on_in_three_ways() -> None:
    assert [str(kind) for kind in CeilingKind] == ["running", "orderly", "terminal"]
