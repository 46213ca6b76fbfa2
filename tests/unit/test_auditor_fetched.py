"""A tree that was moved into an object store is judged as the one that it came from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from appliance.bag.objects import ObjectStorage, RemoteBucket
from auditor.audit import Options, audit
from auditor.evidence import fetched
from auditor.evidence.fetched import FetchedTree
from auditor.evidence.opening import address_of, open_tree
from auditor.evidence.tree import Tree
from auditor.report.formats import json_fields
from tests.fault_injection.fixtures import eventful_tree, small_tree
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
    there = open_tree(Path("s3://bucket/moved"))
    assert verdict(there) == verdict(open_tree(tmp_path / "tree"))
    files = [path for path in (tmp_path / "tree").rglob("*") if path.is_file()]
    back = {path: there.read(path.relative_to(tmp_path / "tree").as_posix()) for path in files}
    assert back == {path: path.read_bytes() for path in files}


def test_altered_object_is_found(tmp_path: Path, server: S3Server) -> None:
    small_tree(tmp_path / "tree")
    moved(tmp_path / "tree", "s3://bucket/moved")
    key = next(key for key in sorted(server.objects) if key.endswith(".msg"))
    server.objects[key] = server.objects[key][:-1] + b"?"
    assert audit(FetchedTree("s3://bucket/moved")).findings != audit(open_tree(tmp_path / "tree")).findings


@pytest.mark.parametrize("jobs", [1, 3])
def test_all_processes_that_judge_have_what_is_fetched_about_once(tmp_path: Path, server: S3Server, jobs: int) -> None:
    eventful_tree(tmp_path / "tree")
    moved(tmp_path / "tree", "s3://bucket/moved")
    server.requests.clear()
    found = audit(open_tree(Path("s3://bucket/moved")), options=Options(jobs=jobs))
    assert found.findings == audit(open_tree(tmp_path / "tree")).findings
    filled = {f"GET {key}" for key, data in server.objects.items() if data}
    assert filled < set(server.requests) <= filled | {"GET list"}
    assert len(server.requests) < 1.3 * len(filled)


def test_what_nobody_asks_for_is_kept_within_bounds(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetched, "_KEPT_BYTES_MAX", 16 * 1000)
    server.objects.update({f"{number:03}": bytes([number]) * 1000 for number in range(200)} | {"004": b"4" * 1001})
    fetching = fetched._Fetching("s3://bucket")
    fetching.listed().close()
    for number in range(0, 200, 10):
        with fetching.taken(f"{number:03}") as file:
            assert os.pread(file.fileno(), 2000, 0) == bytes([number]) * 1000
        assert 0 < len(fetching._kept) <= 16
        assert fetching._kept_bytes == sum(fetching._sizes[key] for key in fetching._kept)
        assert "004" not in fetching._kept, "it is more than a sixteenth of what may be kept"
    fetching.close()
    assert (fetching._kept, fetching._kept_bytes) == ({}, 0)


def test_store_that_fails_meanwhile_leaves_a_file_unread_and_says_why(server: S3Server) -> None:
    server.objects["policy/1"] = b"x"
    tree = FetchedTree("s3://bucket")
    server.objects["policy/1"] = b"y"
    assert tree.read("policy/1") == b"y"
    tree._process.close()
    assert tree.read("policy/1") is None
    assert tree.hides("policy/1")
    assert tree.identity("policy/1")
    assert tree.read("policy/2") is None
    assert not tree.hides("policy/2")


def test_object_in_the_place_of_a_directory_is_named_but_for_the_empty_one_of_a_console(server: S3Server) -> None:
    server.objects.update({"a": b"", "a/b": b"2"})
    assert FetchedTree("s3://bucket").names("") == [("a", True)]
    server.objects["a"] = b"1"
    with pytest.raises(Damaged, match="'a"):
        FetchedTree("s3://bucket")


@pytest.mark.parametrize("key", ["a//b", "a/../b", "a/\x1b[2J"])
def test_object_that_no_file_can_be_named_as_is_named_with_the_way_out(server: S3Server, key: str) -> None:
    server.objects[key] = b"anybody's"
    with pytest.raises(Environment, match="invalid path") as caught:
        FetchedTree("s3://bucket")
    assert "move that object away" in caught.value.hint


def test_address_that_holds_nothing_is_no_empty_tree(server: S3Server) -> None:
    with pytest.raises(Environment, match="s3://bucket/nothing"):
        FetchedTree("s3://bucket/nothing")


@pytest.mark.parametrize(
    ("path", "address"),
    [("s3://b/c", "s3://b/c"), ("gs://b", "gs://b"), ("/s3/b", None), ("s3", None), ("x/s3://b", None)],
)
def test_path_stands_for_an_address_if_it_was_one(path: str, address: str | None) -> None:
    assert address_of(Path(path)) == address
