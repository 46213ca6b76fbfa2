"""Storage on a mounted directory: the only file with operating-system calls on the mount (docs/nfs.md).

Only what was measured to be safe on NFSv3 and v4: mkdir, opening and listing a directory, link(2) of a complete file,
open-read-close, exclusive creation, append to one's own file, unlink. No rename, no flock, no chmod, no descriptor kept
across calls, no stat of a path as an answer.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import Final

from appliance.formats.framing import PIECE_BYTES_MAX, whole_pieces
from timeagent.errors import Environment
from timeagent.units import Instant, Span

from .ports import NOT_A_DIRECTORY, PATH_ABSENT, SIZE_NOT_EXPECTED, Published

_NOT_EMPTY: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST})
_NO_DIRECTORY: Final = frozenset({errno.ENOTDIR, errno.ELOOP})
_NO_FILE: Final = frozenset({errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ESPIPE})
"""What opening or reading says of a symbolic link, a socket, a directory, a pipe: no regular file, so not ours."""
_IN_THE_WAY: Final = (
    "a file or a symbolic link stands where a directory belongs: move it out of the way, "
    "or, as a root, name the directory itself"
)
_PROBLEMS: Final = (
    (
        {errno.EACCES, errno.EPERM, errno.EROFS},
        "mount-refused",
        "check owner, group and mode of the directory, and the mount's options",
    ),
    ({errno.ENOSPC, errno.EDQUOT}, "mount-full", "free space or raise the quota"),
    (
        {errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK},
        "no-hard-links",
        "use a file system with hard links, and one for the whole root",
    ),
    ({errno.ENAMETOOLONG}, "name-too-long", "mount the root at a shorter path, or name the log shorter"),
    ({errno.ENOENT}, PATH_ABSENT, "check that the root is mounted"),
    (
        {errno.ESTALE},
        "mount-stale",
        "try again; if that lasts, the server exports something else than was mounted: mount it anew",
    ),
    (_NO_DIRECTORY, NOT_A_DIRECTORY, _IN_THE_WAY),
)
"""What the operating system says, the code of the error that it becomes, and the way out."""

_FILE_MODE: Final = 0o664
_DIRECTORY_MODE: Final = 0o775
"""Group-writable; the process's umask has the last word. Never sticky: fs.protected_regular would refuse O_CREAT."""
_FOREIGN_OPEN: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""How a file is opened that anybody may have put there: a symbolic link or a pipe must not lead away or block."""
_DIRECTORY_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_NEW_APPEND: Final = _NEW | os.O_APPEND
_OWN_APPEND: Final = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
_AT_ONCE: Final = 64 * 1024
"""How much of a file is read before its size is asked for: most files are smaller."""
_TRIES: Final = 3
_NAMES_TRIED: Final = 1_000


def _anew[**P, T](verb: Callable[P, T]) -> Callable[P, T]:
    """Let a verb begin anew where what it had found was deleted meanwhile (ESTALE): it finds what is there now.

    Where that is said again and again, nobody knows what is there: ``mount-stale``, and not that nothing is.
    """

    @functools.wraps(verb)
    def again(*arguments: P.args, **named: P.kwargs) -> T:
        for _ in range(_TRIES - 1):
            try:
                return verb(*arguments, **named)
            except (OSError, Environment) as problem:
                if getattr(problem.__cause__ or problem, "errno", None) != errno.ESTALE:
                    raise
        return verb(*arguments, **named)

    return again


class PosixStorage:
    """A Storage under a directory of a mounted file system. Safe to share between threads."""

    listing_pause_ns: Span = 0

    def __init__(self, root: Path, *, at_work: bool = False) -> None:
        """Take the root, which must exist. Touches nothing yet. ``at_work``: it is one: empty, it is not mounted."""
        self._root = os.fspath(root)
        self._at_work = at_work
        self._device: int | None = None
        """The file system on which the root of a cluster at work was last seen not empty."""
        self._numbers = itertools.count(1)

    # What the operating system says becomes an Environment error in each verb by itself: a context manager around them
    # all would be a tenth of what a flush costs.

    @_anew
    def ensure_directory(self, path: str) -> None:
        try:
            self._refuse_links(path)
            self._mkdir(path)
        except OSError as problem:
            raise self._refused("mkdir", path, problem) from problem

    @_anew
    def look(self, directory: str, names: Collection[str]) -> frozenset[str] | None:
        seen = []
        try:
            descriptor = os.open(f"{self._root}/{directory}", _DIRECTORY_OPEN)
            try:
                for name in names:
                    try:
                        os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    seen.append(name)
            finally:
                os.close(descriptor)
        except OSError as problem:
            if self._is_absent(problem):
                return None
            raise self._refused("open", directory, problem) from problem
        return frozenset(seen)

    @_anew
    def list_afresh(self, directory: str) -> list[str] | None:
        try:
            descriptor = os.open(f"{self._root}/{directory}", _DIRECTORY_OPEN)
            try:
                return sorted(os.listdir(descriptor))
            finally:
                os.close(descriptor)
        except OSError as problem:
            if self._is_absent(problem):
                return None
            raise self._refused("list", directory, problem) from problem

    def read(self, path: str) -> bytes | None:
        return self._looked_into(path, _read_whole, b"")

    @_anew
    def _looked_into[T](self, path: str, look: Callable[[int], T], nothing: T) -> T | None:
        """Open a file, look, and close it; None if it is not there, and ``nothing`` of what is no regular file."""
        try:
            descriptor = os.open(f"{self._root}/{path}", _FOREIGN_OPEN)
            try:
                return look(descriptor)
            finally:
                os.close(descriptor)
        except OSError as problem:
            return None if self._not_read(path, problem) is None else nothing

    def read_each(self, directory: str, names: Sequence[str]) -> Iterator[bytes | None]:
        """Yield all bytes of each of a directory's files: the directory is found once, not once for each of them."""
        opened = self._opened(directory)
        if opened is None:
            yield from itertools.repeat(None, len(names))
            return
        try:
            for name in names:
                try:
                    descriptor = os.open(name, _FOREIGN_OPEN, dir_fd=opened)
                    try:
                        data: bytes | None = _read_whole(descriptor)
                    finally:
                        os.close(descriptor)
                except OSError as problem:
                    if problem.errno == errno.ESTALE:
                        data = self.read(f"{directory}/{name}")
                    else:
                        data = self._not_read(f"{directory}/{name}", problem)
                yield data
        finally:
            with contextlib.suppress(OSError):  # what was read of its files has been closed before
                os.close(opened)

    @_anew
    def _opened(self, directory: str) -> int | None:
        try:
            return os.open(f"{self._root}/{directory}", _DIRECTORY_OPEN)
        except OSError as problem:
            if self._is_absent(problem):
                return None
            raise self._refused("open", directory, problem) from problem

    def read_from(self, path: str, offset: int, limit: int) -> bytes | None:
        return self._looked_into(path, lambda descriptor: _read_range(descriptor, offset, limit), b"")

    def size_of(self, path: str) -> int | None:
        return self._looked_into(path, lambda descriptor: os.fstat(descriptor).st_size, 0)

    def publish(self, path: str, data: bytes, tmp: str) -> Published:
        return self.publish_stream(path, (data,), tmp)

    def publish_stream(self, path: str, chunks: Iterable[bytes], tmp: str) -> Published:
        try:
            prepared = self._prepare(tmp, chunks)
            try:
                return self._link(prepared, self._full(path))
            finally:
                self._remove_litter(prepared)
        except OSError as problem:
            raise self._refused("publish", path, problem) from problem

    @_anew
    def ensure_marker(self, path: str) -> bool:
        try:
            self._refuse_link(path.rpartition("/")[0])
            os.close(os.open(self._full(path), _NEW, _FILE_MODE))
        except FileExistsError:
            return True
        except OSError as problem:
            if self._is_absent(problem):
                return False
            raise self._refused("create", path, problem) from problem
        return True

    def append(self, path: str, data: bytes, expected_size: int) -> int:
        try:
            descriptor = self._opened_to_append(path, _OWN_APPEND if expected_size else _NEW_APPEND)
            try:
                found = os.fstat(descriptor).st_size
                if found != expected_size:
                    raise _size_not_expected(path, f"has {found} bytes where this process left {expected_size}")
                _write_all(descriptor, data)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except FileExistsError:
            raise _size_not_expected(path, "is there already") from None
        except OSError as problem:
            if problem.errno == errno.ELOOP:
                raise _size_not_expected(path, "is a symbolic link") from None
            raise self._refused("append", path, problem) from problem
        return expected_size + len(data)

    @_anew
    def _opened_to_append(self, path: str, flags: int) -> int:
        return os.open(f"{self._root}/{path}", flags, _FILE_MODE)

    @_anew
    def unlink(self, path: str) -> None:
        try:
            os.unlink(self._full(path))
        except OSError as problem:
            if problem.errno not in (errno.ENOENT, errno.EISDIR):
                raise self._refused("unlink", path, problem) from problem

    @_anew
    def remove_directory(self, path: str) -> bool:
        try:
            os.rmdir(self._full(path))
        except OSError as problem:
            if problem.errno in _NOT_EMPTY or problem.errno == errno.ENOTDIR:
                return False
            if problem.errno != errno.ENOENT:
                raise self._refused("rmdir", path, problem) from problem
        return True

    @_anew
    def server_clock(self, tmp: str) -> Instant:
        """Return the ctime of a fresh file: closed and opened again, so that the server has said it."""
        try:
            probe = self._prepare(tmp, ())
            try:
                descriptor = os.open(probe, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    return os.fstat(descriptor).st_ctime_ns
                finally:
                    os.close(descriptor)
            finally:
                self._remove_litter(probe)
        except OSError as problem:
            raise self._refused("create", tmp, problem) from problem

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _is_absent(self, problem: OSError) -> bool:
        """Whether that says that something is not there. Raises Environment where its file system is gone meanwhile."""
        if problem.errno != errno.ENOENT:
            return False
        if self._at_work:
            try:
                device = os.stat(self._root).st_dev  # of all that is asked of the mount, this costs least
                if device != self._device and (self._device is not None or os.listdir(self._root)):
                    self._check_mounted()
                    self._device = device
            except OSError as lost:
                if self._device is not None:
                    raise self._refused("look at", "", lost) from lost
        return True

    def _check_mounted(self) -> None:
        """Raise ENOENT where the root of a cluster at work is empty: an unmounted mount point is."""
        if not os.listdir(self._root):
            raise OSError(errno.ENOENT, f"{self._root} is empty: its file system is not mounted")

    def _not_read(self, path: str, problem: OSError) -> bytes | None:
        """Return what there is of a file that cannot be read: None if it is not there, b"" if it is no file of ours."""
        if self._is_absent(problem):
            return None
        if problem.errno in _NO_FILE:
            return b""
        raise _environment("read", self._full(path), problem) from problem

    def _refused(self, verb: str, path: str, problem: OSError) -> Environment:
        return _environment(verb, os.path.normpath(self._full(path)), problem)

    @staticmethod
    def _remove_litter(prepared: str) -> None:
        # What cannot be removed now stays as litter: nobody reads it.
        with contextlib.suppress(OSError):
            os.unlink(prepared)

    def _refuse_links(self, path: str) -> None:
        """Raise ENOTDIR if a directory on the way to the path, or the path, is a symbolic link."""
        end = path.find("/")
        while end > 0:
            if not self._refuse_link(path[:end]):
                return
            end = path.find("/", end + 1)
        self._refuse_link(path)

    def _refuse_link(self, path: str) -> bool:
        """Raise ENOTDIR if that is a symbolic link; false if it is not there. Attributes may be old: a type is not."""
        try:
            mode = os.lstat(f"{self._root}/{path}").st_mode
        except FileNotFoundError:
            return False
        if stat.S_ISLNK(mode):
            raise OSError(errno.ENOTDIR, f"{path} is a symbolic link")
        return True

    def _mkdir(self, path: str) -> None:
        if self._at_work and "/" not in path:
            self._check_mounted()
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
            self._remove_litter(path)
            raise
        return path

    @_anew
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

    @staticmethod
    def _is_same_file(prepared: str, target: str) -> bool:
        statuses = []
        for path in (prepared, target):
            try:
                descriptor = os.open(path, _FOREIGN_OPEN)
            except OSError as problem:
                if path == target and (problem.errno == errno.ENOENT or problem.errno in _NO_FILE):
                    return False  # a link, or what was deleted since: not ours
                raise
            try:
                statuses.append(os.fstat(descriptor))
            finally:
                os.close(descriptor)
        return statuses[0].st_nlink > 1 and os.path.samestat(*statuses)

    @_anew
    def _link(self, prepared: str, target: str) -> Published:
        try:
            os.link(prepared, target)
        except FileExistsError:
            # NFS repeats a LINK whose reply was lost, and after a restart of the server the repeat says EEXIST though
            # we won: then our file has two names. By open and fstat: attributes by path may be seconds old.
            # And not the link count alone: a backup that makes hard links may have given our file its second name.
            return Published.WON if self._is_same_file(prepared, target) else Published.LOST
        except FileNotFoundError:
            return Published.ABSENT
        return Published.WON


def _size_not_expected(path: str, what: str) -> Environment:
    hint = "somebody else wrote to it, or an append was torn: begin a new file"
    return Environment(SIZE_NOT_EXPECTED, f"{path} {what}", hint=hint)


def _environment(verb: str, path: str, problem: OSError) -> Environment:
    said = f"{verb} {path}: {problem.strerror or problem}"
    for errnos, code, hint in _PROBLEMS:
        if problem.errno in errnos:
            return Environment(code, said, hint=hint)
    return Environment("mount-failed", said, hint="the operation may or may not have been done: ask again")


def _read_whole(descriptor: int) -> bytes:
    """Return all bytes of a file, of a large one its whole pieces; b"" of anything else.

    Raises OSError; ESPIPE is one of _NO_FILE.
    """
    try:
        data = os.read(descriptor, _AT_ONCE)
    except BlockingIOError:  # a pipe. Said of opening, it is of a file that another client has a delegation on
        return b""
    # Asked for its end, a file says whether that was all, and a pipe that it is none. Python takes longer for a status.
    if len(data) < _AT_ONCE and os.lseek(descriptor, 0, os.SEEK_END) == len(data):
        return data
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        return b""
    if found.st_size > PIECE_BYTES_MAX:
        return b"".join(whole_pieces(functools.partial(_read_range, descriptor)))
    os.lseek(descriptor, 0, os.SEEK_SET)
    return FileIO(descriptor, closefd=False).readall()


def _read_range(descriptor: int, offset: int, limit: int) -> bytes:
    data = os.pread(descriptor, limit, offset)
    if len(data) == limit:
        return data
    parts = [data]
    while parts[-1] and (rest := limit - sum(map(len, parts))):
        parts.append(os.pread(descriptor, rest, offset + limit - rest))
    return b"".join(parts)


def _write_all(descriptor: int, data: bytes) -> None:
    written = os.write(descriptor, data)
    while written < len(data):
        written += os.write(descriptor, memoryview(data)[written:])
