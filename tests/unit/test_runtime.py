"""A machine's directory on tmpfs, and the lock there."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from appliance.doctor import file_system
from appliance.node import runtime
from appliance.node.runtime import (
    LocalLock,
    default_directory,
    ensure_runtime,
    kept_by,
    open_doors,
    runtime_of,
    shard_socket,
)
from tests.support.values import CLUSTER
from timeagent.errors import Environment

if TYPE_CHECKING:
    from collections.abc import Iterator

DISK = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"


@pytest.fixture
def tmpfs() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="tenure-test-", dir="/dev/shm"))
    yield place
    shutil.rmtree(place)


def test_directory_is_made_for_its_user_alone(tmpfs: Path) -> None:
    place = ensure_runtime(tmpfs / "user" / "node")
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert ensure_runtime(place) == place


# The time agent, which may not change groups, comes first or last.
def test_group_enters_as_long_as_the_settings_name_it(tmpfs: Path) -> None:
    place, modes = tmpfs / "user" / "node", []
    for group in ({"group": os.getgid()}, {}, {"group": None}, {}):
        ensure_runtime(place, **group)
        modes.append(stat.S_IMODE(place.stat().st_mode))
    assert modes == [0o750, 0o750, 0o700, 0o700]


def test_directory_that_is_not_on_tmpfs_is_refused_and_not_made(tmp_path: Path) -> None:
    place = tmp_path / "user" / "node"
    with pytest.raises(Environment) as refused:
        ensure_runtime(place, DISK)
    assert refused.value.code == "not-tmpfs"
    assert "ext4" in refused.value.message
    assert "node.toml" in refused.value.hint
    assert list(tmp_path.iterdir()) == []


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can make what belongs to another user")


def not_ours(place: Path) -> str:
    with pytest.raises(Environment) as refused:
        ensure_runtime(place)
    assert refused.value.code == "runtime-not-ours"
    assert "superuser" in refused.value.hint
    return refused.value.message


# /dev/shm/tenure-<uid> can be made by anybody before the daemon comes: who owns it could move the daemon's away.
@needs_root
@pytest.mark.parametrize("made", ["user", "user/node"])
def test_directory_that_another_user_made_beforehand_is_refused(tmpfs: Path, made: str) -> None:
    tmpfs.chmod(0o1777)
    (tmpfs / made).mkdir(parents=True)
    os.chown(tmpfs / made, 65534, 65534)
    assert f"{tmpfs / made} belongs to user 65534" in not_ours(tmpfs / "user" / "node")
    assert not list((tmpfs / "user").glob("node/*"))


@needs_root
def test_symbolic_link_of_another_user_is_refused(tmpfs: Path) -> None:
    tmpfs.chmod(0o1777)
    (tmpfs / "mine").mkdir()
    (tmpfs / "user").symlink_to(tmpfs / "mine")
    ensure_runtime(tmpfs / "user" / "node")
    os.chown(tmpfs / "user", 65534, 65534, follow_symlinks=False)
    assert f"{tmpfs / 'user'} belongs to user 65534" in not_ours(tmpfs / "user" / "node")


@pytest.mark.parametrize("made", ["", "user", "user/node"])
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o707])
def test_directory_that_others_write_to_is_refused_without_the_sticky_bit(tmpfs: Path, made: str, mode: int) -> None:
    place = ensure_runtime(tmpfs / "user" / "node")
    (tmpfs / made).chmod(mode)
    assert f"{tmpfs / made} can be written to by other users" in not_ours(place)
    (tmpfs / made).chmod(mode | stat.S_ISVTX)
    if made != "user/node":  # in the place itself they could leave a socket of their own
        ensure_runtime(place)
    else:
        not_ours(place)


# Who reads the time page or connects to the socket there believes what it finds.
@needs_root
def test_those_who_look_for_the_daemon_refuse_it_too_unless_the_settings_are_of_that_user(
    tmpfs: Path, tmp_path: Path
) -> None:
    settings: Any = SimpleNamespace(runtime=tmpfs / "node", node="node1", directory=tmp_path)
    assert runtime_of(settings, CLUSTER) == tmpfs / "node"
    (tmpfs / "node").mkdir()
    os.chown(tmpfs / "node", 65534, 65534)
    with pytest.raises(Environment, match="belongs to user 65534"):
        runtime_of(settings, CLUSTER)
    os.chown(tmp_path, 65534, 65534)
    assert runtime_of(settings, CLUSTER) == tmpfs / "node"


# A node whose runtime is elsewhere looks for doors in the usual place all the same, which others may have made.
def test_doors_are_not_made_where_others_could_lead_them_elsewhere(tmpfs: Path) -> None:
    (tmpfs / "users").mkdir()
    (tmpfs / "mine").mkdir()
    (tmpfs / "mine" / "leads nowhere").symlink_to("lock of a browser")
    (tmpfs / "users" / "doors").symlink_to(tmpfs / "mine")
    (tmpfs / "users").chmod(0o777)
    open_doors([f"{tmpfs}/users/doors/%2Fsrv"], tmpfs / "writer.sock")
    assert [each.name for each in (tmpfs / "mine").iterdir()] == ["leads nowhere"]


def test_directory_of_the_service_is_used_by_its_user_where_it_forgets(
    tmpfs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = default_directory(CLUSTER, "node1")
    mounts = tmp_path / "mounts"
    mounts.write_text(f"{DISK}2 1 0:21 / {tmpfs} rw - tmpfs tmpfs rw\n")
    monkeypatch.setattr(file_system, "_MOUNTINFO", mounts)
    monkeypatch.setattr(runtime, "SERVICE", tmpfs)
    assert default_directory(CLUSTER, "node1") == tmpfs / usual.name
    monkeypatch.setattr(runtime, "SERVICE", tmp_path)  # on a disk
    assert default_directory(CLUSTER, "node1") == usual
    monkeypatch.setattr(runtime, "SERVICE", tmpfs)
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    assert default_directory(CLUSTER, "node1") == usual


def test_symbolic_link_away_from_tmpfs_is_refused(tmpfs: Path, tmp_path: Path) -> None:
    (tmpfs / "link").symlink_to(tmp_path)
    with pytest.raises(Environment, match="not on tmpfs"):
        ensure_runtime(tmpfs / "link", f"{DISK}2 1 0:21 / {tmpfs} rw - tmpfs tmpfs rw\n")


def test_missing_tmpfs_is_named_with_the_way_out() -> None:
    with pytest.raises(Environment) as refused:
        ensure_runtime(Path("/nowhere/at/all"), "1 0 0:21 / / rw - tmpfs tmpfs rw\n")
    assert refused.value.code == "no-runtime"
    assert "/nowhere/at/all" in refused.value.message
    assert "node.toml" in refused.value.hint
    assert not Path("/nowhere").exists()


def test_path_too_long_for_a_socket_is_refused_before_anything_is_made(tmpfs: Path) -> None:
    fits = tmpfs / ("x" * (107 - len(str(shard_socket(tmpfs, 0))) - 1))
    assert ensure_runtime(fits) == fits
    with pytest.raises(Environment, match="108 bytes"):
        ensure_runtime(fits.with_name(fits.name + "x"))
    assert [each.name for each in tmpfs.iterdir()] == [fits.name]


def test_usual_directory_is_short_and_names_the_user_the_cluster_and_the_node() -> None:
    first, second = default_directory(CLUSTER, "node1"), default_directory(CLUSTER, "node2")
    assert first != second
    assert f"tenure-{os.getuid()}" in str(first)
    assert len(str(shard_socket(first, 9999))) <= 107


def test_lock_is_had_by_one_at_a_time(tmpfs: Path) -> None:
    first, second = LocalLock(tmpfs / "lock"), LocalLock(tmpfs / "lock")
    assert first.try_acquire()
    assert not second.try_acquire()
    with first:
        pass
    assert second.try_acquire()
    second.release()
    second.release()


def test_lock_that_is_given_back_is_free_even_if_its_file_is_still_open_elsewhere(tmpfs: Path) -> None:
    first, second = LocalLock(tmpfs / "lock"), LocalLock(tmpfs / "lock")
    assert first.try_acquire()
    assert first._descriptor is not None
    copy = os.dup(first._descriptor)
    first.release()
    assert second.try_acquire()
    os.close(copy)
    second.release()


def test_lock_in_a_directory_that_was_removed_is_an_error_by_name(tmpfs: Path) -> None:
    with pytest.raises(Environment) as refused:
        LocalLock(tmpfs / "gone" / "lock").try_acquire()
    assert refused.value.code == "no-runtime"


FORK = """
import os, sys
from pathlib import Path
from appliance.node.runtime import LocalLock

lock, other = (LocalLock(Path(sys.argv[1])) for _ in range(2))
assert lock.try_acquire()
go_on, stop = os.pipe()
done, say = os.pipe()
child = os.fork()
if child == 0:
    lock.release()  # not the child's to give back
    os.write(say, b"x")
    os.close(stop)
    os.read(go_on, 1)  # outlives the parent's release
    os._exit(0)
os.read(done, 1)
print("taken" if not other.try_acquire() else "free")
lock.release()
print("taken" if not other.try_acquire() else "free")
os.close(stop)
os.waitpid(child, 0)
"""


# A lock of flock(2) belongs to the open file, which a child has too.
def test_child_after_fork_neither_keeps_the_lock_nor_gives_it_back(tmpfs: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK, str(tmpfs / "lock")], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["taken", "free"]


def raising(number: int) -> Any:  # noqa: ANN401 - in the place of any call
    def refused(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return refused


def test_lock_for_which_the_machine_has_no_means_is_named_and_leaves_nothing_open(
    tmpfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = LocalLock(tmpfs / "lock")
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    with monkeypatch.context() as patch:
        patch.setattr("fcntl.flock", raising(errno.ENOLCK))
        with pytest.raises(Environment, match="No locks available"):
            lock.try_acquire()
        assert not lock.is_held()
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before
    assert lock.try_acquire()
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", raising(errno.ENOMEM))
        assert lock.is_there(), "nobody can say that somebody removed it"
        patch.setattr("fcntl.flock", raising(errno.ENOLCK))
        lock.release()
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before
    assert lock.try_acquire()
    (tmpfs / "lock").unlink()
    assert not lock.is_there()
    lock.release()


def test_directory_that_may_not_be_looked_at_is_named(tmpfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: Any = SimpleNamespace(runtime=tmpfs / "user" / "node", directory=tmpfs)
    looked = Path.lstat

    def looks(path: Path) -> os.stat_result:
        return raising(errno.EACCES)() if path == settings.runtime else looked(path)

    monkeypatch.setattr(Path, "lstat", looks)
    with pytest.raises(Environment, match=r"node cannot be looked at: .*Permission denied") as refused:
        runtime_of(settings, CLUSTER)
    assert "node.toml" in refused.value.hint


def test_who_listens_is_not_seen_without_a_descriptor(tmpfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket.socket, "__init__", raising(errno.EMFILE))
    assert kept_by(tmpfs / "shard-0000.sock") is None
