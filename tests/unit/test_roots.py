"""What a root is named by."""

from pathlib import Path

import pytest

from appliance.bag.objects import ObjectStorage
from appliance.bag.posix import PosixStorage
from appliance.bag.roots import parse_root, storage_at
from timeagent.errors import BadRequest


def test_directory_becomes_absolute() -> None:
    assert parse_root("here") == Path.cwd() / "here"
    assert parse_root(Path("/srv/tenure")) == Path("/srv/tenure")
    assert isinstance(storage_at(Path("/srv/tenure")), PosixStorage)


@pytest.mark.parametrize("address", ["s3://bucket", "gs://bucket/a/b.c", "az://container/x_y-z"])
def test_address_stays_as_it_is_but_for_a_slash_at_its_end(address: str) -> None:
    assert parse_root(address) == parse_root(f"{address}/") == address


# Of a variable that is not set a shell makes nothing, which is the directory one is in.
def test_empty_name_is_no_root() -> None:
    with pytest.raises(BadRequest, match="the root's name is empty"):
        parse_root("")


def test_storage_at_an_address_is_an_object_store() -> None:
    assert isinstance(storage_at("s3://bucket/prefix"), ObjectStorage)


@pytest.mark.parametrize(
    "address",
    ["s3://", "s3:///a", "s3://b//a", "s3://b/../a", "s3://b/a b", "http://b/a", "s3://b/a?x=1", "file:///srv"],
)
def test_what_is_no_address_is_refused_with_those_that_are(address: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_root(address)
    assert repr(address) in caught.value.message
    assert "s3://BUCKET/PREFIX" in caught.value.hint
