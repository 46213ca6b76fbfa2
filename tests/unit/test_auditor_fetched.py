"""A tree that was moved into an object store is judged as the one that it came from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from appliance.bag.bucket import RemoteBucket
from appliance.bag.objects import ObjectStorage
from auditor.audit import audit
from auditor.evidence.fetched import FetchedTree, address_of
from auditor.evidence.opening import open_tree
from auditor.evidence.tree import Tree
from auditor.report.formats import json_fields
from tests.fault_injection.fixtures import small_tree
from tests.support.object_store import S3Server, s3_server
from timeagent.errors import Damaged, Environment


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with s3_server(monkeypatch) as serving:
        yield serving


def moved(root: Path, address: str) -> None:
    storage = ObjectStorage(RemoteBucket(address))
    for path in root.rglob("*"):
        if path.is_file():
            storage.publish(path.relative_to(root).as_posix(), path.read_bytes(), "tmp")


def verdict(tree: Tree) -> bytes:
    return msgspec.json.encode(json_fields(audit(tree)))


def test_tree_that_was_moved_to_an_object_store_and_back_is_judged_alike(tmp_path: Path, server: S3Server) -> None:
    small_tree(tmp_path / "tree")
    moved(tmp_path / "tree", "s3://bucket/moved")
    fetched = open_tree(Path("s3://bucket/moved"))
    assert verdict(fetched) == verdict(open_tree(tmp_path / "tree"))
    files = {path.relative_to(tmp_path / "tree"): path for path in (tmp_path / "tree").rglob("*") if path.is_file()}
    back = {path.relative_to(fetched.root): path for path in fetched.root.rglob("*") if path.is_file()}
    assert {name: path.read_bytes() for name, path in back.items()} == {n: p.read_bytes() for n, p in files.items()}


def test_altered_object_is_found(tmp_path: Path, server: S3Server) -> None:
    small_tree(tmp_path / "tree")
    moved(tmp_path / "tree", "s3://bucket/moved")
    key = next(key for key in sorted(server.objects) if key.endswith(".msg"))
    server.objects[key] = server.objects[key][:-1] + b"?"
    assert audit(FetchedTree("s3://bucket/moved")).findings != audit(open_tree(tmp_path / "tree")).findings


def test_copy_is_removed_with_its_tree(server: S3Server) -> None:
    server.objects["x"] = b"1"
    tree = FetchedTree("s3://bucket")
    place = tree.root
    assert (place / "x").read_bytes() == b"1"
    del tree
    assert not place.exists()


def test_object_in_the_place_of_a_directory_is_named(server: S3Server) -> None:
    server.objects.update({"a": b"1", "a/b": b"2"})
    with pytest.raises(Damaged, match="'a"):
        FetchedTree("s3://bucket")


def test_address_that_holds_nothing_is_no_empty_tree(server: S3Server) -> None:
    with pytest.raises(Environment, match="s3://bucket/nothing"):
        FetchedTree("s3://bucket/nothing")


@pytest.mark.parametrize(
    ("path", "address"),
    [("s3://b/c", "s3://b/c"), ("gs://b", "gs://b"), ("/s3/b", None), ("s3", None), ("x/s3://b", None)],
)
def test_path_stands_for_an_address_if_it_was_one(path: str, address: str | None) -> None:
    assert address_of(Path(path)) == address
