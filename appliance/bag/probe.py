"""What a mount does with files, tried out: for the doctor alone. Leaves nothing behind, touches nothing that is there.

All of it happens in a directory of its own below ``tmp``, which no reader looks into. A verb may block for as long as
the server is away. What the operating system refuses is raised as OSError, as it came: the refusal is the finding.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

TMP: Final = "tmp"
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_READS: Final = 5


@dataclass(frozen=True, slots=True)
class Directory:
    """Owner and mode of a directory."""

    uid: int
    gid: int
    mode: int

    @property
    def sticky(self) -> bool:
        """Whether only owners may remove what is in it."""
        return bool(self.mode & stat.S_ISVTX)


@dataclass(frozen=True, slots=True)
class Linked:
    """What became of link(2)."""

    names: int
    """How many names the file had afterwards, by open and fstat: 2."""
    second_refused: bool
    """Whether a second file was refused under the name."""
    content_kept: bool
    """Whether the name holds what the first file held."""


@dataclass(frozen=True, slots=True)
class Room:
    """What is left for users that are not the superuser; None: the file system does not count it."""

    bytes_left: int
    names_left: int | None


def directory_of(path: Path) -> Directory:
    """Return owner and mode of a directory, by opening it. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    return Directory(found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode))


def room_of(path: Path) -> Room:
    """Return what is left. Raises OSError."""
    found = os.statvfs(path)
    return Room(found.f_bavail * found.f_frsize, found.f_favail if found.f_files else None)


class Probe:
    """A directory to try things in; gone at the end of the block."""

    def __init__(self, root: Path, name: str) -> None:
        """Take the root, and a name that nobody else uses. Touches nothing yet."""
        self._tmp = root / TMP
        self._place = self._tmp / f"doctor.{name}"
        self._made_tmp = False
        self._names: set[str] = set()

    def __enter__(self) -> Self:
        """Make it. Raises OSError."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._tmp, 0o775)
            self._made_tmp = True
        os.mkdir(self._place, 0o775)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove it, and ``tmp`` if it was made for it."""
        for name in self._names:
            with contextlib.suppress(OSError):
                os.unlink(self._place / name)
        with contextlib.suppress(OSError):
            os.rmdir(self._place)
            if self._made_tmp:
                os.rmdir(self._tmp)

    def _write(self, name: str, data: bytes) -> str:
        path = os.fspath(self._place / name)
        descriptor = os.open(path, _NEW, 0o664)
        self._names.add(name)
        try:
            os.write(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return path

    def _read(self, path: str) -> tuple[bytes, os.stat_result]:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, 4096), os.fstat(descriptor)
        finally:
            os.close(descriptor)

    def owner(self) -> int:
        """Return whom a new file belongs to."""
        return self._read(self._write("owner", b"x"))[1].st_uid

    def linked(self) -> Linked:
        """Link two files to one name, one after the other."""
        first, second = self._write("first", b"first"), self._write("second", b"second")
        target = os.fspath(self._place / "target")
        os.link(first, target)
        self._names.add("target")
        refused = False
        try:
            os.link(second, target)
        except FileExistsError:
            refused = True
        content, found = self._read(target)
        return Linked(found.st_nlink, refused, content == b"first")

    def exclusive(self) -> bool:
        """Return whether a name that is taken is refused to O_EXCL."""
        path = self._write("taken", b"")
        try:
            os.close(os.open(path, _NEW, 0o664))
        except FileExistsError:
            return True
        return False

    def listed(self) -> bool:
        """Return whether a new name is in the directory's list at once, with its bytes behind it."""
        path = self._write("listed", b"bytes")
        return "listed" in os.listdir(self._place) and self._read(path)[0] == b"bytes"

    def read_often(self) -> None:
        """Read a file so often that an NFSv4 server may hand out a delegation; remove it, so that it comes back."""
        path = self._write("often", b"bytes")
        for _ in range(_READS):
            self._read(path)
        os.unlink(path)
        self._names.discard("often")
