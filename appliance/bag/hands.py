"""One client's hands in a directory that another client works in at the same time: for ``tenure probe`` alone.

All of it happens in ``tmp/probe.TOKEN`` below the root, which no reader looks into. A verb may block while the server
is away; what the operating system refuses is raised as OSError, as it came.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Final

from timeagent.errors import BadRequest

if TYPE_CHECKING:
    from pathlib import Path

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_NAME: Final = re.compile(r"[a-z0-9.-]{1,64}", re.ASCII)


class LocalHands:
    """Hands of this machine, on one mount."""

    def __init__(self, root: Path, token: str) -> None:
        """Take the root, and what both clients call the place. Touches nothing yet."""
        self._tmp = root / "tmp"
        self._place = self._tmp / f"probe.{_checked(token)}"
        self._made_tmp = False

    def begin(self) -> None:
        """Make the place."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._tmp, 0o775)
            self._made_tmp = True
        os.mkdir(self._place, 0o775)

    def end(self) -> None:
        """Remove the place, with all that is in it."""
        for name in os.listdir(self._place):
            os.unlink(self._path(name))
        os.rmdir(self._place)
        if self._made_tmp:
            with contextlib.suppress(OSError):
                os.rmdir(self._tmp)

    def make(self, name: str, data: str) -> bool:
        """Create a file that nobody else has; return whether nobody had it."""
        try:
            descriptor = os.open(self._path(name), _NEW, 0o664)
        except FileExistsError:
            return False
        try:
            os.write(descriptor, data.encode("ascii"))
        finally:
            os.close(descriptor)
        return True

    def append(self, name: str, data: str) -> bool:
        """Append to a file, and close it."""
        descriptor = os.open(self._path(name), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(descriptor, data.encode("ascii"))
        finally:
            os.close(descriptor)
        return True

    def link(self, name: str, source: str) -> bool:
        """Link one's own file to a name that both want; return whether it was free."""
        try:
            os.link(self._path(source), self._path(name))
        except FileExistsError:
            return False
        return True

    def sees(self, name: str) -> bool:
        """Return whether a bare stat finds a name: possibly from what this client remembers."""
        return os.path.lexists(self._path(name))

    def sees_afresh(self, name: str) -> bool:
        """Open the directory, then look for the name in it."""
        descriptor = os.open(self._place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return False
        finally:
            os.close(descriptor)
        return True

    def read(self, name: str) -> str:
        """Open and read a file; "" where there is none."""
        try:
            descriptor = os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return ""
        try:
            return os.read(descriptor, 65536).decode("ascii", "replace")
        finally:
            os.close(descriptor)

    def _path(self, name: str) -> str:
        return os.fspath(self._place / _checked(name))


def _checked(name: str) -> str:
    """Return a name that stays inside. Raises BadRequest."""
    if not _NAME.fullmatch(name) or ".." in name or name == ".":
        raise BadRequest("bad-name", f"{name[:80]!r} is no name of a probe", hint="a-z, 0-9, dot and hyphen")
    return name
