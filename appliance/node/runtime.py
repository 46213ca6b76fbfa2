"""This machine's part of a node: its directory on tmpfs, and the lock that says who runs a shard there.

A lease shard must forget: its database lives on tmpfs, so that no reboot can bring old leases back. The lock is
flock(2) on that local tmpfs, never on the mount; the kernel drops it when its process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import grp
import hashlib
import os
import socket
import stat
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Final, Self
from weakref import WeakSet

from timeagent.errors import BadConfiguration, Environment

from ..doctor.file_system import FORGETFUL, mount_of
from ..lease.sockets import credentials

if TYPE_CHECKING:
    from .settings import Settings

SERVICE: Final = Path("/run/tenure")
"""What the units and systemd/tenure.tmpfiles.conf make for their user (RuntimeDirectory=)."""

HTTP_SOCKET: Final = "http.sock"
"""The daemon's read-only door, in the tmpfs directory; the settings may name another place beside it."""

CHECKS_PATH: Final = "/v1/checks"
"""Where it says there how the node is."""

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - the tmpfs that every Linux has
_SOCKET_BYTES_MAX: Final = 107
"""The longest path of a Unix socket."""


def user_directory() -> Path:
    """Return what all nodes of this user lie in: the service's directory on tmpfs where it is this user's."""
    with contextlib.suppress(OSError):
        if SERVICE.lstat().st_uid == os.geteuid() and _kind_of(SERVICE) in FORGETFUL:
            return SERVICE
    return SHARED_MEMORY / f"tenure-{os.getuid()}"


def default_directory(cluster_id: bytes, node: str) -> Path:
    """Return the usual place: short, because a Unix socket's path has at most 107 bytes."""
    return user_directory() / hashlib.sha256(cluster_id + node.encode()).hexdigest()[:16]


def runtime_of(settings: Settings, cluster_id: bytes) -> Path:
    """Return a node's directory on tmpfs, which need not be there yet.

    Raises Environment where it is in the hands of others than this user, the superuser, and who owns the settings.
    """
    path = settings.runtime or default_directory(cluster_id, settings.node)
    refuse_strangers(path, settings.directory.stat().st_uid)
    return path


def refuse_strangers(path: Path, *known: int) -> None:
    """Raise Environment where another user could put something into a directory, or in its place. It need not be there.

    It, and each one that it lies in, belongs to this user, the superuser or one of ``known``, and nobody else may write
    there; above it they may where the sticky bit keeps them from what is not theirs. Symbolic links are looked at, and
    what they lead to.
    """
    ends = path.absolute(), path.resolve()
    for each in sorted({place for end in ends for place in (end, *end.parents)}):
        try:
            status = each.lstat()
        except FileNotFoundError:
            continue
        except OSError as problem:
            what = f"{path} cannot be looked at: {each}: {problem.strerror}"
            raise Environment("no-runtime", what, hint="set runtime in node.toml to a directory of this user") from None
        others = 0 if each not in ends and status.st_mode & stat.S_ISVTX else stat.S_IWGRP | stat.S_IWOTH
        if status.st_uid not in (os.geteuid(), 0, *known):
            why = f"belongs to user {status.st_uid}"
        elif status.st_mode & others and not stat.S_ISLNK(status.st_mode):
            why = "can be written to by other users"
        else:
            continue
        raise Environment(
            "runtime-not-ours",
            f"{path} may be changed by others: {each} {why}",
            hint="have the superuser remove it, or set runtime in node.toml to a directory that is this user's alone",
        )


def _kind_of(path: Path, mountinfo: str | None = None) -> str:
    """Return the type of the file system that holds an existing path."""
    mount = mount_of(path.resolve(), mountinfo)
    return "unknown" if mount is None else mount.kind


def ensure_runtime(path: Path, mountinfo: str | None = None, group: int | None = -1) -> Path:
    """Create the node's directory, for its user alone, once it is sure that it is on tmpfs. Raises Environment.

    ``group``: who else may enter it, to use the sockets there, None: nobody, -1: who may by now; the directories above
    it are not changed.
    """
    longest = len(os.fsencode(shard_socket(path, 0)))
    if longest > _SOCKET_BYTES_MAX:
        raise Environment(
            "runtime-too-long",
            f"{path} is too long: a socket in it has a path of {longest} bytes, {_SOCKET_BYTES_MAX} are possible",
            hint="set runtime in node.toml to a shorter path",
        )
    refuse_strangers(path)
    try:
        above = next(each for each in (path, *path.parents) if each.exists())
        _refuse_lasting(path, above, mountinfo)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        owner = path.stat().st_uid
        if group != -1 and owner == os.geteuid():
            if group is not None:
                os.chown(path, -1, group)
            path.chmod(0o700 if group is None else 0o750)
    except OSError as problem:
        raise Environment(
            "no-runtime",
            f"cannot make {path}: {problem.strerror}",
            hint="mount a tmpfs there, or set runtime in node.toml",
        ) from None
    refuse_strangers(path)  # again: it may have been made by another just now
    if owner != os.geteuid():
        raise Environment("no-runtime", f"{path} belongs to another user", hint="set runtime in node.toml")
    _refuse_lasting(path, path, mountinfo)
    return path


def _refuse_lasting(path: Path, existing: Path, mountinfo: str | None) -> None:
    kind = _kind_of(existing, mountinfo)
    if kind not in FORGETFUL:
        raise Environment(
            "not-tmpfs",
            f"{path} is on {kind}, not on tmpfs: a lease shard must forget everything when the machine stops",
            hint="mount a tmpfs (every Linux has /dev/shm), or set runtime in node.toml to a directory on one",
        )


def begin(thread: Thread) -> None:
    """Start a thread. Raises Environment where this process may have no more."""
    try:
        thread.start()
    except RuntimeError as problem:
        what = f"no more threads: {thread.name}: {problem}"
        raise Environment("no-threads", what, hint="raise TasksMax, or LimitNPROC") from None


def group_id(name: str) -> int | None:
    """Return the number of a Unix group; None for no name. Raises BadConfiguration for one that is not there."""
    if not name:
        return None
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise BadConfiguration(
            "no-group", f"this machine has no group {name!r}", hint="see `group` in node.toml"
        ) from None


def shard_socket(runtime: Path, shard: int) -> Path:
    return runtime / f"shard-{shard:04d}.sock"


def is_there(path: Path) -> bool:
    """Whether there is such a file, as far as one may look."""
    return os.path.exists(path)


def writer_socket(runtime: Path) -> Path:
    return runtime / "writer.sock"


def open_doors(paths: list[str], socket: Path) -> None:
    """Make the links, where no other user could put something; what hinders that costs speed only. Touches tmpfs.

    Those that lead nowhere are removed: of daemons that were killed, and whose directory has gone since.
    """
    for path in paths:
        folder = os.path.dirname(path)
        try:
            for each in (os.path.dirname(folder), folder):
                if not os.path.isdir(each):
                    os.mkdir(each, 0o700)
                refuse_strangers(Path(each))
            if os.path.lexists(path):
                os.unlink(path)
            os.symlink(socket, path)
            for entry in os.scandir(folder):
                if entry.is_symlink() and not os.path.exists(entry.path):
                    os.unlink(entry.path)
        except (OSError, Environment):
            continue


def close_doors(paths: list[str], socket: Path) -> None:
    """Remove the links that lead to this socket. Touches tmpfs; raises nothing."""
    for path in paths:
        with contextlib.suppress(OSError):
            if os.readlink(path) == str(socket):
                os.unlink(path)


def kept_by(path: Path) -> str | None:
    """Return in words which other process of this machine listens at a shard's socket; None: none that is seen.

    Touches tmpfs only; never blocks. It is there also while it stands still.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.settimeout(0)
            asking.connect(str(path))
            process = credentials(asking)[0]
    except BlockingIOError:
        process = 0  # so many wait to be let in that nobody hears who it is
    except OSError:
        return None
    if process == os.getpid():
        return None
    return f"process {process} of this machine" if process else "another process of this machine"


class Wakes:
    """The logs of one node that were woken and not yet taken up: a file on tmpfs for each. Thread-safe.

    By it the processes of a machine wake its daemon's metronome. The daemon takes the files away as it takes the logs
    up, so that none is lost; at most one for each log is left where no daemon runs. Nothing depends on it.
    """

    def __init__(self, runtime: Path) -> None:
        """Take the node's directory on tmpfs. Touches nothing yet."""
        self._path = runtime / "woken"

    def open(self) -> None:
        """Make it possible to wake: a daemon has begun. Raises OSError."""
        self._path.mkdir(mode=0o700, exist_ok=True)

    def wake(self, log: str) -> None:
        """Have the daemon look at a log soon, if one has run here. Never raises, never waits."""
        with contextlib.suppress(OSError):
            (self._path / log).touch(0o600)

    def taken(self) -> list[str]:
        """Return the logs that were woken since this was called last. Never raises.

        A file is taken away before its log is looked at: who wakes it later makes a new one.
        """
        names = []
        with contextlib.suppress(OSError):
            for path in self._path.iterdir():
                with contextlib.suppress(OSError):
                    path.unlink()
                    names.append(path.name)
        return names


class LocalLock:
    """An exclusive lock of this machine; held until ``release`` or the end of the process."""

    def __init__(self, path: Path) -> None:
        """Take the lock file's path, on tmpfs. Does not lock yet."""
        self._path = path
        self._descriptor: int | None = None

    def try_acquire(self) -> bool:
        """Take the lock if nobody has it. Never blocks."""
        assert self._descriptor is None
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                raise
        except BlockingIOError:
            return False
        except OSError as problem:
            raise Environment(
                "no-runtime", f"cannot lock {self._path}: {problem.strerror}", hint="see who removes files there"
            ) from None
        self._descriptor = descriptor
        _held.add(self)
        return True

    def is_held(self) -> bool:
        """Whether some process has it, as far as one may look. Never blocks; for an instant nobody can take it."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            finally:
                os.close(descriptor)
        except BlockingIOError:
            return True
        except OSError:
            pass  # nobody made it, or it is another user's: who could not take it is not asked to give way
        return False

    def is_there(self) -> bool:
        """Whether its file is still under its name: else whoever looks there sees no lock. It must be held."""
        assert self._descriptor is not None
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._descriptor))
        except OSError as problem:
            return problem.errno != errno.ENOENT  # else nobody can say now

    def release(self) -> None:
        """Give it back: at once, even if a child that was forked just now has the descriptor open still."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):  # nobody else has the descriptor, as a rule
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self.forget()

    def forget(self) -> None:
        """Close the descriptor, without giving the lock back: in a child after fork it is the parent's."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        _held.discard(self)

    def __enter__(self) -> Self:
        """Hold it for a block; it must have been acquired."""
        assert self._descriptor is not None
        return self

    def __exit__(self, *problem: object) -> None:
        self.release()


def daemon_lock(runtime: Path) -> LocalLock:
    """Return the lock of the one process of a machine that is its node's daemon."""
    return LocalLock(runtime / "daemon.lock")


_held: Final[WeakSet[LocalLock]] = WeakSet()


def _after_fork() -> None:
    """In a child: close the copies. A lock of flock(2) is held as long as any process has the descriptor open."""
    for lock in list(_held):
        lock.forget()


os.register_at_fork(after_in_child=_after_fork)
