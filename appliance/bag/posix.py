"""Storage on a mounted directory: the only file with operating-system calls on the mount (docs/nfs.md).

Only what was measured to be safe on NFSv3 and v4: mkdir, opening and listing a directory, link(2) of a complete file,
open-read-close, exclusive creation, append to one's own file, unlink. No rename, no flock, no chmod, no descriptor kept
across calls, no stat of a path as an answer.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from typing import TYPE_CHECKING, Final

from timeagent.errors import Environment

from .storage import NOT_A_DIRECTORY, PATH_ABSENT, SIZE_NOT_EXPECTED, Published

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from timeagent.units import Instant

_ABSENT: Final = frozenset({errno.ENOENT, errno.ESTALE})
"""Not there under this name now. ESTALE is how NFS says it of something that was deleted while it was in use."""
_REFUSED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_NOT_EMPTY: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST})
_NO_DIRECTORY: Final = frozenset({errno.ENOTDIR, errno.ELOOP})
_NO_LINKS: Final = frozenset({errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})

_IN_THE_WAY: Final = (
    "a file or a symbolic link stands where a directory belongs: move it out of the way, "
    "or, as a root, name the directory itself"
)

_FILE_MODE: Final = 0o664
_DIRECTORY_MODE: Final = 0o775
"""Group-writable; the process's umask has the last word. Never sticky: fs.protected_regular would refuse O_CREAT."""
_FOREIGN_OPEN: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""How a file is opened that anybody may have put there: a symbolic link or a pipe must not lead away or block."""
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_TRIES: Final = 3
_NAMES_TRIED: Final = 1_000


class PosixStorage:
    """A Storage under a directory of a mounted file system. Safe to share between threads."""

    def __init__(self, root: Path) -> None:
        """Take the root, which must exist. Touches nothing yet."""
        self._root = os.fspath(root)
        self._numbers = itertools.count(1)

    def ensure_directory(self, path: str) -> None:
        """Make a directory and those above it."""
        with _Classified("mkdir", path):
            self._mkdir(path)

    def look(self, directory: str, names: Collection[str]) -> frozenset[str] | None:
        """Open the directory afresh, then say which of the names are there."""
        with _Classified("open", directory):
            try:
                descriptor = os.open(self._full(directory), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError as problem:
                if problem.errno in _ABSENT:
                    return None
                raise
            try:
                return frozenset(name for name in names if self._there(name, descriptor))
            finally:
                os.close(descriptor)

    def list_afresh(self, directory: str) -> list[str] | None:
        """Open the directory afresh and return its names, sorted."""
        with _Classified("list", directory):
            try:
                return sorted(os.listdir(self._full(directory)))
            except OSError as problem:
                if problem.errno in _ABSENT:
                    return None
                raise

    def read(self, path: str) -> bytes | None:
        """Return all bytes of a file."""
        return self._read(path, _read_all)

    def read_from(self, path: str, offset: int, limit: int) -> bytes | None:
        """Return at most so many bytes of a file from an offset."""
        return self._read(path, lambda descriptor, _: _read_range(descriptor, offset, limit))

    def _read(self, path: str, read: Callable[[int, int], bytes]) -> bytes | None:
        with _Classified("read", path):
            opened = self._open(path)
            if not isinstance(opened, int):
                return opened
            try:
                status = os.fstat(opened)
                return read(opened, status.st_size) if stat.S_ISREG(status.st_mode) else b""
            except OSError as problem:
                if problem.errno == errno.ESTALE:
                    return None
                raise
            finally:
                os.close(opened)

    def size_of(self, path: str) -> int | None:
        """Return a file's size by open and fstat."""
        with _Classified("size", path):
            opened = self._open(path)
            if not isinstance(opened, int):
                return None if opened is None else 0
            try:
                return os.fstat(opened).st_size
            finally:
                os.close(opened)

    def publish(self, path: str, data: bytes, tmp: str) -> Published:
        """Let a complete, durable file appear under a name, first one wins."""
        return self.publish_stream(path, (data,), tmp)

    def publish_stream(self, path: str, chunks: Iterable[bytes], tmp: str) -> Published:
        """As ``publish``, chunk by chunk."""
        with _Classified("publish", path):
            prepared = self._prepare(tmp, chunks)
            try:
                return self._link(prepared, self._full(path))
            finally:
                # What cannot be removed now is only litter: nobody reads it.
                with contextlib.suppress(OSError):
                    os.unlink(prepared)

    def ensure_marker(self, path: str) -> bool:
        """Make an empty file where there is none."""
        with _Classified("create", path):
            try:
                descriptor = os.open(self._full(path), _NEW, _FILE_MODE)
            except FileExistsError:
                return True
            except OSError as problem:
                if problem.errno in _ABSENT:
                    return False
                raise
            os.close(descriptor)
            return True

    def append(self, path: str, data: bytes, expected_size: int) -> int:
        """Append to one's own file, flush and close."""
        with _Classified("append", path):
            how = _NEW if expected_size == 0 else os.O_WRONLY | os.O_CLOEXEC
            try:
                descriptor = os.open(self._full(path), how | os.O_APPEND, _FILE_MODE)
            except FileExistsError:
                raise _size_not_expected(path, "is there already") from None
            try:
                found = os.fstat(descriptor).st_size
                if found != expected_size:
                    raise _size_not_expected(path, f"has {found} bytes where this process left {expected_size}")
                _write_all(descriptor, data)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            return expected_size + len(data)

    def unlink(self, path: str) -> None:
        """Remove a name that is no directory's."""
        with _Classified("unlink", path):
            try:
                os.unlink(self._full(path))
            except OSError as problem:
                if problem.errno not in _ABSENT and problem.errno != errno.EISDIR:
                    raise

    def remove_directory(self, path: str) -> bool:
        """Remove an empty directory."""
        with _Classified("rmdir", path):
            try:
                os.rmdir(self._full(path))
            except OSError as problem:
                if problem.errno in _NOT_EMPTY or problem.errno == errno.ENOTDIR:
                    return False
                if problem.errno not in _ABSENT:
                    raise
            return True

    def server_clock(self, tmp: str) -> Instant:
        """Return the ctime of a fresh file: closed and opened again, so that the server has said it."""
        with _Classified("create", tmp):
            probe = self._prepare(tmp, ())
            try:
                descriptor = os.open(probe, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    return os.fstat(descriptor).st_ctime_ns
                finally:
                    os.close(descriptor)
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(probe)

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}"

    @staticmethod
    def _there(name: str, descriptor: int) -> bool:
        try:
            os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        except OSError as problem:
            if problem.errno in _ABSENT:
                return False
            raise
        return True

    def _open(self, path: str) -> int | bytes | None:
        """Return a descriptor; None for what is not there; b"" for what is no regular file and cannot be opened."""
        try:
            return os.open(self._full(path), _FOREIGN_OPEN)
        except OSError as problem:
            if problem.errno in _ABSENT:
                return None
            if problem.errno in (errno.ELOOP, errno.ENXIO):
                return b""
            raise

    def _mkdir(self, path: str) -> None:
        for _ in range(_TRIES):
            try:
                os.mkdir(self._full(path), _DIRECTORY_MODE)
            except FileExistsError:
                return
            except FileNotFoundError:
                # Never above the root: a root that is not there is a mount that is not there.
                if "/" not in path:
                    raise
                self._mkdir(path.rpartition("/")[0])
            else:
                return
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))

    def _prepare(self, tmp: str, chunks: Iterable[bytes]) -> str:
        """Write, flush and close a new file in ``tmp``; return its full path."""
        path, descriptor = self._new_in(tmp)
        try:
            try:
                written = 0
                for chunk in chunks:
                    _write_all(descriptor, chunk)
                    written += len(chunk)
                if written:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)  # its result counts: on NFS it can be the only call that reports a rejected write
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
        return path

    def _new_in(self, tmp: str) -> tuple[str, int]:
        """Create a file that nobody else has: exclusive creation decides, the name only makes a collision rare."""
        for _ in range(_NAMES_TRIED):
            path = f"{self._full(tmp)}/{os.getpid()}.{next(self._numbers)}"
            try:
                return path, os.open(path, _NEW, _FILE_MODE)
            except FileNotFoundError:
                self._mkdir(tmp)
            except FileExistsError:
                continue  # left by a process that had this number before, or in use on another host
        raise OSError(errno.EEXIST, f"{_NAMES_TRIED} temporary names are all taken")

    def _link(self, prepared: str, target: str) -> Published:
        try:
            os.link(prepared, target)
        except FileExistsError:
            # NFS repeats a LINK whose reply was lost, and after a restart of the server the repeat says EEXIST though
            # we won: then our file has two names. By open and fstat: attributes by path may be seconds old.
            descriptor = os.open(prepared, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return Published.WON if os.fstat(descriptor).st_nlink > 1 else Published.LOST
            finally:
                os.close(descriptor)
        except OSError as problem:
            if problem.errno in _ABSENT:
                return Published.ABSENT
            raise
        return Published.WON


def _size_not_expected(path: str, what: str) -> Environment:
    hint = "somebody else wrote to it, or an append was torn: begin a new file"
    return Environment(SIZE_NOT_EXPECTED, f"{path} {what}", hint=hint)


class _Classified:
    """Turns what the operating system says into an Environment error, once and here. Every verb goes through it."""

    __slots__ = ("_path", "_verb")

    def __init__(self, verb: str, path: str) -> None:
        self._verb = verb
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        if isinstance(problem, OSError):
            raise _environment(self._verb, self._path, problem) from problem


def _environment(verb: str, path: str, problem: OSError) -> Environment:
    said = f"{verb} {path}: {problem.strerror or problem}"
    if problem.errno in _REFUSED:
        return Environment(
            "mount-refused", said, hint="check owner, group and mode of the directory, and the mount's options"
        )
    if problem.errno in _FULL:
        return Environment("mount-full", said, hint="free space or raise the quota")
    if problem.errno in _NO_LINKS:
        return Environment("no-hard-links", said, hint="use a file system with hard links, and one for the whole root")
    if problem.errno == errno.ENAMETOOLONG:
        return Environment("name-too-long", said, hint="mount the root at a shorter path, or name the log shorter")
    if problem.errno in _ABSENT:
        return Environment(PATH_ABSENT, said, hint="check that the root is mounted")
    if problem.errno in _NO_DIRECTORY:
        return Environment(NOT_A_DIRECTORY, said, hint=_IN_THE_WAY)
    return Environment("mount-failed", said, hint="the operation may or may not have been done: ask again")


def _read_all(descriptor: int, size: int) -> bytes:
    data = os.read(descriptor, size + 1)
    if len(data) == size:
        return data
    parts = [data]
    while parts[-1]:
        parts.append(os.read(descriptor, 1 << 20))
    return b"".join(parts)


def _read_range(descriptor: int, offset: int, limit: int) -> bytes:
    data = os.pread(descriptor, limit, offset)
    if len(data) == limit:
        return data
    parts = [data]
    while parts[-1] and (rest := limit - sum(map(len, parts))):
        parts.append(os.pread(descriptor, rest, offset + limit - rest))
    return b"".join(parts)


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
