"""One contract for every storage; and what only the operating system can do to the real one."""

import errno
import fcntl
import os
import random
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from appliance.bag.ports import Published, Storage
from appliance.bag.posix import PosixStorage
from appliance.bag.roots import PlacedStorage
from appliance.formats.framing import PAYLOAD_BYTES_MAX, Kind, measure, pack
from tests.support.storage import MemoryStorage, Mount, RecordingStorage
from timeagent.errors import Damaged, Environment


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def nowhere(named: str) -> Storage:
    raise AssertionError(named)


@pytest.fixture(params=["posix", "memory", "mount", "placed"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "posix":
        return PosixStorage(tmp_path)
    if request.param == "placed":
        return PlacedStorage(PosixStorage(tmp_path), nowhere)
    return MemoryStorage() if request.param == "memory" else Mount(MemoryStorage())


def test_directory_that_is_not_there_is_a_value(storage: Storage) -> None:
    assert storage.look("a/b", ("x",)) is None
    assert storage.list_afresh("a/b") is None
    assert storage.read("a/b/x") is None
    assert storage.size_of("a/b/x") is None
    assert storage.ensure_marker("a/b/x") is False
    assert storage.publish("a/b/x", b"1", "tmp") is Published.ABSENT
    storage.unlink("a/b/x")


def test_directories_are_made_to_any_depth_and_again(storage: Storage) -> None:
    storage.ensure_directory("a/b/c")
    storage.ensure_directory("a/b/c")
    assert storage.list_afresh("a") == ["b"]
    assert storage.look("a/b", ("c", "d")) == frozenset({"c"})
    assert storage.list_afresh("a/b/c") == []


def test_first_publication_wins_for_ever(storage: Storage) -> None:
    storage.ensure_directory("a")
    assert storage.publish("a/x", b"first", "tmp/n1") is Published.WON
    assert storage.publish("a/x", b"second", "tmp/n1") is Published.LOST
    assert storage.read("a/x") == b"first"
    assert storage.size_of("a/x") == 5
    assert storage.list_afresh("tmp/n1") == []


def test_marker_may_be_there_already(storage: Storage) -> None:
    storage.ensure_directory("a")
    assert storage.ensure_marker("a/prelock")
    assert storage.ensure_marker("a/prelock")
    assert storage.read("a/prelock") == b""


def test_what_is_no_regular_file_reads_as_empty(storage: Storage) -> None:
    storage.ensure_directory("a/x")
    assert storage.read("a/x") == b""


def test_append_goes_on_only_where_this_process_stopped(storage: Storage) -> None:
    storage.ensure_directory("a")
    assert storage.append("a/l", b"12", 0) == 2
    assert storage.append("a/l", b"345", 2) == 5
    with pytest.raises(Environment) as caught:
        storage.append("a/l", b"6", 4)
    assert caught.value.code == "size-not-expected"
    with pytest.raises(Environment):
        storage.append("a/l", b"6", 0)
    assert storage.read("a/l") == b"12345"


def test_unlink_removes_a_name_once_or_twice(storage: Storage) -> None:
    storage.ensure_directory("a")
    storage.ensure_marker("a/x")
    storage.unlink("a/x")
    storage.unlink("a/x")
    assert storage.look("a", ("x",)) == frozenset()


def test_server_clock_is_the_ctime_of_a_fresh_file(tmp_path: Path) -> None:
    (tmp_path / "probe").touch()
    clock = PosixStorage(tmp_path).server_clock("tmp/n1")
    assert 0 <= clock - (tmp_path / "probe").stat().st_ctime_ns < 60 * 10**9
    assert names_in(tmp_path / "tmp/n1") == []


# NFS repeats a LINK whose reply was lost; after a restart of the server the repeat is told EEXIST.
def test_lost_reply_to_our_own_link_is_a_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.link

    def twice(source: str, target: str) -> None:
        real(source, target)
        real(source, target)

    storage = PosixStorage(tmp_path)
    storage.ensure_directory("a")
    monkeypatch.setattr(os, "link", twice)
    assert storage.publish("a/x", b"ours", "tmp") is Published.WON


# What is under the name cannot be looked at, or our own file is gone: then nobody knows whose the name is.
@pytest.mark.parametrize(
    ("which", "number", "outcome"),
    [
        ("target", errno.ENOENT, Published.LOST),
        ("target", errno.EIO, "mount-failed"),
        ("target", errno.EACCES, "mount-refused"),
        ("prepared", errno.ENOENT, "path-absent"),
        ("prepared", errno.ELOOP, "not-a-directory"),
    ],
)
def test_lost_link_whose_winner_cannot_be_looked_at_is_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str, number: int, outcome: object
) -> None:
    storage, real = PosixStorage(tmp_path), os.open
    storage.ensure_directory("a")
    assert storage.publish("a/x", b"theirs", "tmp") is Published.WON

    def opened(path: str, flags: int, *rest: int) -> int:
        if not flags & os.O_CREAT and (path == f"{tmp_path}/a/x") == (which == "target"):
            raise OSError(number, os.strerror(number))
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", opened)
    try:
        found: object = storage.publish("a/x", b"ours", "tmp")
    except Environment as problem:
        found = problem.code
    assert found == outcome


# A backup that makes hard links of a tree in use (cp -al) gives a second name to what was just prepared.
def test_second_name_of_the_prepared_file_is_no_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.link

    def backed_up(source: str, target: str) -> None:
        real(source, tmp_path / "backup")
        real(source, target)

    storage = PosixStorage(tmp_path)
    storage.ensure_directory("a")
    assert storage.publish("a/x", b"theirs", "tmp") is Published.WON
    monkeypatch.setattr(os, "link", backed_up)
    assert storage.publish("a/x", b"ours", "tmp") is Published.LOST
    assert storage.read("a/x") == b"theirs"


@pytest.mark.parametrize("target", ["nowhere", "b"])
def test_symbolic_link_under_the_name_is_not_our_file(tmp_path: Path, target: str) -> None:
    storage = PosixStorage(tmp_path)
    storage.ensure_directory("a")
    (tmp_path / "b").write_bytes(b"b")
    (tmp_path / "a/x").symlink_to(tmp_path / target)
    assert storage.publish("a/x", b"ours", "tmp") is Published.LOST


def test_symbolic_link_and_pipe_are_no_files_of_ours(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"elsewhere")
    (tmp_path / "link").symlink_to("target")
    os.mkfifo(tmp_path / "pipe")
    storage = PosixStorage(tmp_path)
    assert storage.read("link") == b""
    assert storage.read("pipe") == b""
    assert storage.look("", ("link", "pipe")) == frozenset({"link", "pipe"})


# A pipe that somebody writes to has bytes, and no end yet: nobody may wait for it, and no two would read the same.
def test_pipe_with_a_writer_is_no_file_of_ours(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    storage = PosixStorage(tmp_path)
    ends = os.open(tmp_path / "pipe", os.O_RDWR | os.O_NONBLOCK)
    try:
        assert storage.read("pipe") == storage.read_from("pipe", 0, 10) == b""
        os.write(ends, b"somebody's")
        assert storage.read("pipe") == b""
    finally:
        os.close(ends)


# Who closes a pipe that was written to lets it end, once its bytes were read: it looks like a small file then.
def test_pipe_that_ends_while_it_is_read_is_no_file_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    storage, take = PosixStorage(tmp_path), os.read
    ends: list[int] = []

    def closing_behind(descriptor: int, limit: int) -> bytes:
        data = take(descriptor, limit)
        if ends:
            os.close(ends.pop())
        return data

    monkeypatch.setattr("appliance.bag.posix.os.read", closing_behind)
    for verb in ("read", "read_each"):
        ends.append(os.open(tmp_path / "pipe", os.O_RDWR | os.O_NONBLOCK))
        os.write(ends[0], b"somebody's")
        data = storage.read("pipe") if verb == "read" else next(storage.read_each("", ["pipe"]))
        assert data == b""
        assert not ends


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 300_000, 2_500_000])
def test_file_of_any_size_is_read_whole(tmp_path: Path, size: int) -> None:
    data = random.Random(size).randbytes(size)
    (tmp_path / "x").write_bytes(data)
    assert PosixStorage(tmp_path).read("x") == data
    assert list(PosixStorage(tmp_path).read_each("", ["x", "y", "x"])) == [data, None, data]


# Sparse: to read it whole would take all memory, of everybody who closes, reads or packs its bag.
def test_of_a_file_of_a_terabyte_the_pieces_are_read_that_it_begins_with(tmp_path: Path) -> None:
    storage = PosixStorage(tmp_path)
    (tmp_path / "empty").touch()
    whole = pack(Kind.FRAME, bytes(1000)) + pack(Kind.FRAME, bytes(50 << 20)) + pack(Kind.FRAME, bytes(40 << 20))
    (tmp_path / "begun").write_bytes(whole)
    for name in ("empty", "begun"):
        os.truncate(tmp_path / name, 1 << 40)
    assert [measure(data or b"")[1] for data in storage.read_each("", ["empty", "begun"])] == [0, len(whole)]
    assert storage.read("begun") == whole


def test_seal_that_is_larger_than_other_pieces_is_read_whole(tmp_path: Path) -> None:
    seal = pack(Kind.SEAL, bytes(PAYLOAD_BYTES_MAX + 1))
    (tmp_path / "seal").write_bytes(seal)
    assert PosixStorage(tmp_path).read("seal") == seal


def test_files_of_a_directory_are_read_one_after_another(storage: Storage) -> None:
    assert list(storage.read_each("a", ["x", "y"])) == [None, None]
    storage.ensure_directory("a/d")
    storage.publish("a/x", b"1", "tmp")
    storage.publish("a/y", b"22", "tmp")
    assert list(storage.read_each("a", ["y", "z", "d", "x"])) == [b"22", None, b"", b"1"]
    assert list(storage.read_each("a", [])) == []


def test_no_descriptor_is_left_by_who_reads_only_some_of_the_files(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_bytes(b"x")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in zip(range(1), PosixStorage(tmp_path).read_each("", ["a", "b", "c"]), strict=False):
        pass
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# A kernel may hand out less than it was asked for, in the middle of a file: that is no end.
@pytest.mark.parametrize("most", [7, 1_000, 65_536])
def test_short_reads_are_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    data = random.Random(most).randbytes(70_000)
    (tmp_path / "x").write_bytes(data)
    (tmp_path / "y").write_bytes(data[:500])
    read, pread = os.read, os.pread
    monkeypatch.setattr(os, "read", lambda descriptor, size: read(descriptor, min(size, most)))
    monkeypatch.setattr(os, "pread", lambda descriptor, size, at: pread(descriptor, min(size, most), at))
    storage = PosixStorage(tmp_path)
    assert storage.read("x") == data
    assert storage.read("y") == data[:500]
    assert storage.read_from("x", 10, 60_000) == data[10:60_010]


def test_root_that_is_not_there_is_never_made(tmp_path: Path) -> None:
    storage = PosixStorage(tmp_path / "unmounted")
    with pytest.raises(Environment) as caught:
        storage.ensure_directory("a/b")
    assert caught.value.code == "path-absent"
    assert not (tmp_path / "unmounted").exists()


def test_temporary_name_in_use_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / f"tmp/{os.getpid()}.1").write_bytes(b"left by a process with our number")
    storage = PosixStorage(tmp_path)
    storage.ensure_directory("a")
    assert storage.publish("a/x", b"1", "tmp") is Published.WON
    assert names_in(tmp_path / "tmp") == [f"{os.getpid()}.1"]


CLASSES = [
    (errno.EACCES, "mount-refused"),
    (errno.EROFS, "mount-refused"),
    (errno.ENOSPC, "mount-full"),
    (errno.EDQUOT, "mount-full"),
    (errno.ENAMETOOLONG, "name-too-long"),
    (errno.EXDEV, "no-hard-links"),
    (errno.EOPNOTSUPP, "no-hard-links"),
    (errno.EIO, "mount-failed"),
]
CALLS = ["open", "link", "fsync", "write", "close"]


@pytest.mark.parametrize(("number", "code"), CLASSES)
@pytest.mark.parametrize("call", CALLS)
def test_refusal_of_the_system_is_classified_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, code: str
) -> None:
    storage = PosixStorage(tmp_path)
    storage.ensure_directory("a")
    storage.ensure_directory("tmp")
    real = getattr(os, call)

    def refuse(*arguments: object, **options: object) -> None:
        if call == "close":
            real(*arguments, **options)
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, refuse)
        with pytest.raises(Environment) as caught:
            storage.publish("a/x", b"1", "tmp")
    assert caught.value.code == code
    assert "a/x" in caught.value.message
    assert caught.value.hint
    assert storage.list_afresh("a") == []
    assert names_in(tmp_path / "tmp") == []


@pytest.mark.parametrize(
    ("call", "verb"),
    [
        ("unlink", "unlink"),
        ("rmdir", "remove_directory"),
        ("mkdir", "ensure_directory"),
        ("listdir", "list_afresh"),
        ("open", "read"),
        ("open", "size_of"),
        ("open", "ensure_marker"),
    ],
)
def test_refusal_of_the_system_is_no_answer_of_any_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, verb: str
) -> None:
    storage = PosixStorage(tmp_path)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    storage.ensure_directory("a")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(Environment, match="/a") as caught:
            getattr(storage, verb)("a" if call == "listdir" else "a/x")
    assert caught.value.code == "mount-failed"


def test_no_entry_means_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = PosixStorage(tmp_path)

    def gone(*_: object, **__: object) -> None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr(os, "open", gone)
    monkeypatch.setattr(os, "listdir", gone)
    assert storage.look("a", ("x",)) is None
    assert storage.list_afresh("a") is None
    assert storage.read("a/x") is None
    assert storage.ensure_marker("a/x") is False


VERBS: dict[str, tuple[Callable[[PosixStorage], object], object]] = {
    "look": (lambda storage: storage.look("a", ("x", "y")), frozenset({"x"})),
    "list_afresh": (lambda storage: storage.list_afresh("a"), ["x"]),
    "read": (lambda storage: storage.read("a/x"), b"1"),
    "read_each": (lambda storage: list(storage.read_each("a", ("x", "y"))), [b"1", None]),
    "read_from": (lambda storage: storage.read_from("a/x", 0, 9), b"1"),
    "size_of": (lambda storage: storage.size_of("a/x"), 1),
    "publish": (lambda storage: storage.publish("a/new", b"2", "tmp"), Published.WON),
    "ensure_marker": (lambda storage: storage.ensure_marker("a/x"), True),
    "append": (lambda storage: storage.append("a/x", b"2", 1), 2),
    "ensure_directory": (lambda storage: storage.ensure_directory("a/b"), None),
    "remove_directory": (lambda storage: storage.remove_directory("a"), False),
    "unlink": (lambda storage: storage.unlink("a/x"), None),
}
SYSTEM_CALLS = ("open", "stat", "lstat", "listdir", "read", "fstat", "link", "mkdir", "rmdir", "unlink")


# ESTALE: what a name led to was deleted meanwhile. Or its server exports something else: then all is as if deleted.
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("times", [1, 2, 99])
def test_who_is_told_of_a_stale_handle_finds_what_is_there_or_says_that_nobody_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, times: int
) -> None:
    ask, answer = VERBS[verb]
    met = 0
    for call in SYSTEM_CALLS:
        root = tmp_path / call
        root.mkdir()
        storage = PosixStorage(root)
        storage.ensure_directory("tmp")
        storage.ensure_directory("a")
        storage.append("a/x", b"1", 0)
        real: Callable[..., object] = getattr(os, call)
        left = times

        def stale(*arguments: object, real: Callable[..., object] = real, **options: object) -> object:
            nonlocal left
            if left:
                left -= 1
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            return real(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, stale)
            refused: Environment | None = None
            try:
                found = ask(storage)
            except Environment as problem:
                refused = problem
        if refused is not None:
            assert refused.code == "mount-stale"
            assert times == 99 or (verb == "append" and call == "fstat")  # nobody knows what was written
            assert "mount it anew" in str(refused.hint)
        else:
            assert found == answer
            assert left in (0, times) or call == "unlink"  # of what nobody reads
        met += left < times
    assert met


# What is not there because nothing is: under a lease, all that earlier holders wrote would be missing.
def test_nothing_is_called_absent_where_the_root_is_not_mounted(tmp_path: Path) -> None:
    root, full = tmp_path / "mount point", tmp_path / "file system"
    elsewhere = (each for each in map(Path, ("/dev/shm", "/var/tmp")) if each.is_dir())
    other = next((each for each in elsewhere if each.stat().st_dev != tmp_path.stat().st_dev), None)
    if other is None:
        pytest.skip("needs another file system")
    full.mkdir()
    (full / "a").mkdir()
    root.symlink_to(full)
    storage = PosixStorage(root, at_work=True)
    assert storage.read("a/x") is None
    with TemporaryDirectory(dir=other) as empty:
        root.unlink()
        root.symlink_to(empty)
        for ask in (VERBS[verb][0] for verb in ("look", "list_afresh", "read", "read_each", "ensure_marker")):
            with pytest.raises(Environment, match="is empty: its file system is not mounted"):
                ask(storage)
        (Path(empty) / "a").mkdir()  # another one is mounted now
        assert storage.read("a/x") is None
    root.unlink()
    root.symlink_to(full)
    assert storage.list_afresh("a") == []
    assert storage.list_afresh("b") is None


def test_mount_hides_a_name_until_its_directory_is_opened() -> None:
    server = MemoryStorage()
    server.ensure_directory("a")
    mount, blind = Mount(server), Mount(server, revalidates=False)
    for each in (mount, blind):
        assert each.look("a", ("x",)) == frozenset()
    server.publish("a/x", b"1", "tmp")
    assert mount.read("a/x") is None
    assert mount.look("a", ("x",)) == frozenset({"x"})
    assert mount.read("a/x") == b"1"
    assert blind.look("a", ("x",)) == frozenset()


def test_recording_storage_names_every_call() -> None:
    storage = RecordingStorage(MemoryStorage())
    storage.ensure_directory("a")
    storage.look("a", ("x",))
    assert storage.calls == [("ensure_directory", "a"), ("look", "a")]


def test_range_of_a_file_ends_where_the_file_does(storage: Storage) -> None:
    storage.ensure_directory("a")
    storage.publish("a/x", b"0123456789", "tmp")
    assert storage.read_from("a/x", 0, 4) == b"0123"
    assert storage.read_from("a/x", 8, 4) == b"89"
    assert storage.read_from("a/x", 10, 4) == storage.read_from("a/x", 99, 4) == b""
    assert storage.read_from("a/y", 0, 4) is None
    assert storage.read_from("b/x", 0, 4) is None


def test_stream_is_published_whole_or_not_at_all(storage: Storage) -> None:
    def broken() -> Iterator[bytes]:
        yield b"12"
        raise Damaged("planted", "the third byte cannot be had")

    storage.ensure_directory("a")
    with pytest.raises(Damaged):
        storage.publish_stream("a/x", broken(), "tmp/n1")
    assert storage.list_afresh("a") == []
    assert storage.publish_stream("a/x", iter((b"12", b"", b"3")), "tmp/n1") is Published.WON
    assert storage.publish_stream("a/x", (b"4",), "tmp/n1") is Published.LOST
    assert storage.publish_stream("b/x", (b"4",), "tmp/n1") is Published.ABSENT
    assert storage.read("a/x") == b"123"
    assert storage.list_afresh("tmp/n1") == []


def test_directory_is_removed_only_when_it_is_empty(storage: Storage) -> None:
    storage.ensure_directory("a/b")
    storage.ensure_marker("a/b/x")
    assert not storage.remove_directory("a/b")
    assert storage.list_afresh("a/b") == ["x"]
    storage.unlink("a/b/x")
    assert storage.remove_directory("a/b")
    assert storage.remove_directory("a/b")
    assert storage.list_afresh("a") == []


def test_directory_whose_closing_fails_is_an_error_of_the_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, close = PosixStorage(tmp_path), os.close
    storage.ensure_directory("a")

    def closed(descriptor: int) -> None:
        close(descriptor)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", closed)
        with pytest.raises(Environment, match=r"open .*a: Input/output error"):
            storage.look("a", ("x",))


# What came of its files is known then; and whoever is at work on a bag takes nothing but an Environment from the mount.
def test_files_are_read_where_the_closing_of_their_directory_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").write_bytes(b"1")
    storage, close = PosixStorage(tmp_path), os.close

    def closed(descriptor: int) -> None:
        directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        close(descriptor)
        if directory:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", closed)
        assert list(storage.read_each("", ["x", "y"])) == [b"1", None]


# Who reads on the file server's own machine while a client has a write delegation is told to come again (EAGAIN): that
# the file is empty must not be the answer, or a lock file would say so for ever.
def test_file_that_cannot_be_opened_at_once_is_not_taken_for_an_empty_one(
    tmp_path: Path,
) -> None:
    storage = PosixStorage(tmp_path)
    (tmp_path / "f").write_bytes(b"x")
    kept = os.open(tmp_path / "f", os.O_RDWR)
    told = signal.signal(signal.SIGIO, signal.SIG_IGN)
    try:
        fcntl.fcntl(kept, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        for read in (
            lambda: storage.read("f"),
            lambda: list(storage.read_each(".", ["f"])),
            lambda: storage.read_from("f", 0, 9),
            lambda: storage.size_of("f"),
        ):
            with pytest.raises(Environment, match=r"read .*/f: Resource temporarily unavailable"):
                read()
    finally:
        os.close(kept)
        signal.signal(signal.SIGIO, told)
    assert storage.read("f") == b"x"
