"""The storage port in an object store: what the verbs promise, whatever becomes of the requests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from appliance.bag import objects
from appliance.bag.objects import ObjectStorage, RemoteBucket
from appliance.bag.ports import Published
from appliance.formats import framing
from appliance.formats.framing import Kind, pack
from tests.support.object_store import MemoryBucket, Mishap, S3Server, s3_server
from timeagent.errors import BadConfiguration, Damaged, Environment


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with s3_server(monkeypatch) as serving:
        yield serving


@pytest.fixture(params=["memory", "remote"])
def storage(request: pytest.FixtureRequest) -> ObjectStorage:
    if request.param == "memory":
        return ObjectStorage(MemoryBucket())
    request.getfixturevalue("server")
    return ObjectStorage(RemoteBucket("s3://bucket/some/prefix"))


def test_every_directory_is_there(storage: ObjectStorage) -> None:
    assert storage.look("a/b", ("x",)) == frozenset()
    assert storage.list_afresh("a/b") == []
    assert storage.read("a/b/x") is None
    assert storage.size_of("a/b/x") is None
    assert storage.read_from("a/b/x", 0, 4) is None
    assert storage.publish("a/b/x", b"1", "tmp") is Published.WON
    assert storage.list_afresh("a") == ["b"]
    assert storage.list_afresh(".") == ["a"]
    assert storage.look(".", ("TENURE",)) == frozenset()
    storage.unlink("a/b/y")


def test_first_publication_wins_for_ever(storage: ObjectStorage) -> None:
    assert storage.publish("a/x", b"first", "tmp/n1") is Published.WON
    assert storage.publish("a/x", b"second", "tmp/n1") is Published.LOST
    assert storage.read("a/x") == b"first"
    assert storage.size_of("a/x") == 5
    assert storage.look("a", ("x", "y")) == frozenset({"x"})
    assert storage.list_afresh("tmp/n1") == []


def test_marker_may_be_there_already(storage: ObjectStorage) -> None:
    assert storage.ensure_marker("a/prelock")
    assert storage.ensure_marker("a/prelock")
    assert storage.read("a/prelock") == b""


def test_files_of_a_directory_are_read_one_after_another(storage: ObjectStorage) -> None:
    storage.publish("a/x", b"1", "tmp")
    storage.publish("a/y", b"22", "tmp")
    assert list(storage.read_each("a", ["y", "z", "x"])) == [b"22", None, b"1"]


# To read it whole would take all memory, and more time than a request has, of everybody who closes its bag.
def test_of_an_object_of_any_size_the_pieces_are_read_that_it_begins_with(
    storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (objects, framing):
        monkeypatch.setattr(module, "PIECE_BYTES_MAX", 100)
    whole = b"".join(pack(Kind.FRAME, bytes(size)) for size in (10, 20, 30, 72))
    seal = pack(Kind.SEAL, bytes(101))
    for name, data in (("begun", whole + bytes(900)), ("empty", bytes(900)), ("lock", whole), ("seal", seal)):
        assert storage.publish(f"a/{name}", data, "tmp") is Published.WON
        assert storage.publish(f"a/{name}", data, "tmp") is Published.WON  # its own put, of which the reply was lost
        assert storage.publish(f"a/{name}", data[:-1], "tmp") is Published.LOST
    assert list(storage.read_each("a", ["begun", "lock", "empty", "seal"])) == [whole, whole, bytes(100), seal]


def test_range_of_a_file_ends_where_the_file_does(storage: ObjectStorage) -> None:
    storage.publish("a/x", b"0123456789", "tmp")
    assert storage.read_from("a/x", 0, 4) == b"0123"
    assert storage.read_from("a/x", 8, 4) == b"89"
    assert storage.read_from("a/x", 10, 4) == storage.read_from("a/x", 99, 4) == b""


def test_file_is_made_by_an_append_and_never_appended_to(storage: ObjectStorage) -> None:
    assert storage.append("a/l", b"12", 0) == 2
    for expected in (0, 1, 2):
        with pytest.raises(Environment) as caught:
            storage.append("a/l", b"345", expected)
        assert caught.value.code == "size-not-expected"
    assert storage.read("a/l") == b"12"


def test_directory_is_gone_once_nothing_is_in_it(storage: ObjectStorage) -> None:
    storage.ensure_marker("a/b/x")
    assert not storage.remove_directory("a/b")
    storage.unlink("a/b/x")
    assert storage.remove_directory("a/b")
    assert storage.list_afresh("a") == []


def test_object_that_marks_a_folder_is_no_name_in_it(server: S3Server) -> None:
    """As a console puts one, where somebody makes a folder for a cluster by hand."""
    server.objects |= {"folder/": b"", "folder/a/": b"", "folder/a/x": b""}
    storage = ObjectStorage(RemoteBucket("s3://bucket/folder"))
    assert storage.list_afresh("a") == ["x"]
    assert storage.list_afresh(".") == ["a"]


@pytest.mark.parametrize("key", ["a//x", "a/../x", "a/.", "a/b\x01c"])
def test_object_with_a_key_that_no_cluster_has_is_named_and_told_how_to_be_rid_of(server: S3Server, key: str) -> None:
    server.objects |= {"a/plain": b"", key: b""}
    with pytest.raises(Environment) as foreign:
        ObjectStorage(RemoteBucket("s3://bucket")).list_afresh("a")
    assert foreign.value.code == "foreign-key"
    assert "a/" in foreign.value.message
    assert "delete or move that object" in foreign.value.hint


def test_stream_is_published_whole_or_not_at_all(storage: ObjectStorage) -> None:
    def broken() -> Iterator[bytes]:
        yield b"12"
        raise Damaged("planted", "the third byte cannot be had")

    with pytest.raises(Damaged):
        storage.publish_stream("a/x", broken(), "tmp/n1")
    assert storage.list_afresh("a") == []
    assert storage.publish_stream("a/x", iter((b"12", b"", b"3")), "tmp/n1") is Published.WON
    assert storage.read("a/x") == b"123"


def test_store_tells_its_clock_and_keeps_nothing_of_it(storage: ObjectStorage) -> None:
    assert storage.server_clock("tmp/n1") > 1_700_000_000 * 10**9
    assert storage.list_afresh("tmp/n1") == []


def test_own_put_whose_reply_was_lost_is_a_win() -> None:
    storage = ObjectStorage(MemoryBucket(Mishap.REPLY_LOST, Mishap.REPLY_LOST))
    assert storage.publish("a/x", b"ours", "tmp") is Published.WON
    assert storage.append("a/l", b"ours", 0) == 4


def test_refusal_of_a_busy_store_is_no_presence() -> None:
    bucket = MemoryBucket(Mishap.BUSY, Mishap.BUSY)
    assert ObjectStorage(bucket).ensure_marker("a/prelock")
    assert bucket.objects == {"a/prelock": b""}


def test_store_that_stays_busy_leaves_it_open_what_was_done() -> None:
    with pytest.raises(Environment) as caught:
        ObjectStorage(MemoryBucket(*[Mishap.BUSY] * 9)).ensure_marker("a/prelock")
    assert caught.value.code == "store-busy"


@pytest.mark.parametrize("mishap", [Mishap.FAILED, Mishap.DONE_BUT_FAILED])
def test_failed_put_is_never_a_refusal(mishap: Mishap) -> None:
    bucket = MemoryBucket(mishap)
    with pytest.raises(Environment):
        ObjectStorage(bucket).publish("a/x", b"ours", "tmp")
    assert bucket.requests == ["put a/x"]


# What the store answers to the library, which asks again by itself; 409 is said of a name that another put is about.
@pytest.mark.parametrize("answers", [["503"], ["503", "503"], ["done, 500"], ["409"], ["503", "done, 500", "503"]])
def test_library_that_repeats_a_put_loses_no_outcome(server: S3Server, answers: list[str]) -> None:
    server.answers = answers.copy()
    storage = ObjectStorage(RemoteBucket("s3://bucket"))
    assert storage.publish("a/x", b"ours", "tmp") is Published.WON
    assert storage.publish("a/x", b"theirs", "tmp") is Published.LOST
    assert server.objects == {"a/x": b"ours"}
    assert server.requests.count("PUT a/x") > len(answers)


def test_put_that_was_done_without_an_answer_is_told_apart_from_one_that_was_refused(server: S3Server) -> None:
    server.answers = ["done, dropped"]
    storage = ObjectStorage(RemoteBucket("s3://bucket"))
    with contextlib.suppress(Environment):  # that is how an Unknown begins; the library may also ask again by itself
        assert storage.publish("a/x", b"ours", "tmp") is Published.WON
    assert server.objects == {"a/x": b"ours"}


def test_frame_larger_than_a_part_is_put_at_once_and_under_its_condition(server: S3Server) -> None:
    storage = ObjectStorage(RemoteBucket("s3://bucket"))
    data = bytes(12 * 1024 * 1024)
    assert storage.publish_stream("a/x", (data, b"1"), "tmp") is Published.WON
    assert storage.publish("a/x", data, "tmp") is Published.LOST
    assert [each for each in server.requests if each.startswith("PUT")] == ["PUT a/x"] * 2


def test_address_that_the_library_refuses_is_named() -> None:
    with pytest.raises(BadConfiguration, match="nowhere://bucket"):
        RemoteBucket("nowhere://bucket")
