"""This machine's part of a node: its directory on tmpfs, and the lock that says who runs a shard there.

A lease shard must forget: its database lives on tmpfs, so that no reboot can bring old leases back. The lock is
flock(2) on that local tmpfs, never on the mount; the kernel drops it when its process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from timeagent.errors import Environment

if TYPE_CHECKING:
    from types import TracebackType

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - the tmpfs that every Linux has
_MOUNTS: Final = Path("/proc/self/mounts")
_FORGETFUL: Final = frozenset({"tmpfs", "ramfs"})


def default_directory(cluster_id: bytes, node: str) -> Path:
    """Return the usual place: short, because a Unix socket's path has at most 107 bytes."""
    name = hashlib.sha256(cluster_id + node.encode()).hexdigest()[:16]
    return SHARED_MEMORY / f"leasehold-{os.getuid()}" / name


def file_system_of(path: Path, mounts: str) -> str:
    """Return the type of the file system that holds an existing path, by the longest mount point above it."""
    best, found = "", "unknown"
    for line in mounts.splitlines():
        fields = line.split(" ")
        point = fields[1].replace("\\040", " ")
        inside = str(path) == point or str(path).startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, found = point, fields[2]
    return found


def ensure_runtime(path: Path, mounts: str | None = None) -> Path:
    """Create the node's directory, for its user alone, and make sure that it is on tmpfs. Raises Environment."""
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        real = path.resolve()
    except OSError as problem:
        raise Environment(
            "no-runtime",
            f"cannot make {path}: {problem.strerror}",
            hint="mount a tmpfs there, or set runtime in node.toml",
        ) from None
    if path.stat().st_uid != os.getuid():
        raise Environment("no-runtime", f"{path} belongs to another user", hint="set runtime in node.toml")
    kind = file_system_of(real, _MOUNTS.read_text(encoding="utf-8") if mounts is None else mounts)
    if kind not in _FORGETFUL:
        raise Environment(
            "not-tmpfs",
            f"{path} is on {kind}, not on tmpfs: a lease shard must forget everything when the machine stops",
            hint="mount a tmpfs (every Linux has /dev/shm), or set runtime in node.toml to a directory on one",
        )
    return path


def shard_socket(runtime: Path, shard: int) -> Path:
    """Return the socket by which a node's shard is reached on this machine."""
    return runtime / f"shard-{shard:04d}.sock"


class LocalLock:
    """An exclusive lock of this machine; held until ``release`` or the end of the process."""

    def __init__(self, path: Path) -> None:
        """Take the lock file's path, on tmpfs. Does not lock yet."""
        self._path = path
        self._descriptor: int | None = None

    def try_acquire(self) -> bool:
        """Take the lock if nobody has it. Never blocks."""
        assert self._descriptor is None
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Give it back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        """Hold it for a block; it must have been acquired."""
        assert self._descriptor is not None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give it back."""
        self.release()
