"""What a mount does with files, tried out in a directory of its own, and judged.

All of it happens in a directory of its own below ``tmp``, which no reader looks into. A verb may block for as long as
the server is away. What the operating system refuses is raised as OSError, as it came: the refusal is the finding.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from pathlib import Path
from typing import Final, Self

from timeagent.errors import BadRequest
from timeagent.units import MINUTE, SECOND, Instant, TimeInterval, span_text

from .health import HealthCheck, Room, failed, judged, passed, unsure

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_READS: Final = 5
_NAME: Final = re.compile(r"[a-z0-9.-]{1,64}", re.ASCII)
VERBS: Final = ("make", "append", "link", "sees", "sees_afresh", "read")
CLOCK_UNSURE_NS: Final = 2 * SECOND
CLOCK_FAIL_NS: Final = MINUTE
"""The default delay of a rack's seal: a server's clock that is so far ahead gives no second opinion on it."""


def room_of(path: Path) -> Room:
    found = os.statvfs(path)
    return Room(found.f_bavail * found.f_frsize, found.f_favail if found.f_files else None)


def checked(name: str) -> str:
    """Return a name that stays inside. Raises BadRequest."""
    if not _NAME.fullmatch(name) or ".." in name or name == ".":
        raise BadRequest("bad-name", f"{name[:80]!r} is no name of a probe", hint="a-z, 0-9, dot and hyphen")
    return name


class TrialDirectory:
    """A directory below ``tmp`` to try things in, on one mount; gone, with all that is in it, after the block."""

    def __init__(self, root: Path, name: str) -> None:
        """Take the root, and a name that nobody else uses. Touches nothing yet."""
        self._tmp = root / "tmp"
        self._place = self._tmp / name
        self._made_tmp = False

    def __enter__(self) -> Self:
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._tmp, 0o775)
            self._made_tmp = True
        os.mkdir(self._place, 0o775)
        return self

    def __exit__(self, kind: object, problem: object, trace: object) -> None:
        """Remove it, and ``tmp`` if it was made for it. Raises OSError, unless there is a problem already."""
        shutil.rmtree(self._place, ignore_errors=problem is not None)
        if self._made_tmp:
            with contextlib.suppress(OSError):
                os.rmdir(self._tmp)

    def ask(self, verb: str, *words: str) -> bool | str:
        """Do what one of VERBS says, which may have come over a pipe."""
        if verb not in VERBS:
            raise BadRequest("bad-verb", f"{verb!r} is no verb of a probe")
        said: bool | str = getattr(self, verb)(*words)
        return said

    def make(self, name: str, data: str) -> bool:
        """Create a file that nobody else has; return whether nobody had it."""
        try:
            descriptor = os.open(self._path(name), _NEW, 0o664)
        except FileExistsError:
            return False
        _write_and_close(descriptor, data)
        return True

    def append(self, name: str, data: str) -> bool:
        _write_and_close(os.open(self._path(name), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC), data)
        return True

    def link(self, name: str, source: str) -> bool:
        """Link one's own file to a name; return whether it was free."""
        try:
            os.link(self._path(source), self._path(name))
        except FileExistsError:
            return False
        return True

    def sees(self, name: str) -> bool:
        """Return whether a bare stat finds a name: possibly from what this client remembers."""
        return os.path.lexists(self._path(name))

    def sees_afresh(self, name: str) -> bool:
        descriptor = os.open(self._place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return False
        finally:
            os.close(descriptor)
        return True

    def lists(self, name: str) -> bool:
        return name in os.listdir(self._place)

    def read(self, name: str) -> str:
        """Open and read a file; "" where there is none."""
        try:
            return self._opened(name)[0].decode("ascii", "replace")
        except FileNotFoundError:
            return ""

    def stat(self, name: str) -> os.stat_result:
        return self._opened(name)[1]

    def _opened(self, name: str) -> tuple[bytes, os.stat_result]:
        descriptor = os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, 65536), os.fstat(descriptor)
        finally:
            os.close(descriptor)

    def _path(self, name: str) -> str:
        return os.fspath(self._place / checked(name))

    # What is tried here with one client, a line for each.

    def owner(self) -> HealthCheck:
        self.make("owner", "x")
        owner, user = self.stat("owner").st_uid, os.geteuid()
        wrong = f"user {user} made a file and user {owner} has it: the server maps users (all_squash, or an id domain)"
        way_out = "export without all_squash; the same numeric user and group on all machines"
        said = f"files belong to who makes them (user {user})"
        return judged("user mapping", said, wrong, way_out, holds=owner == user)

    def linked(self) -> HealthCheck:
        """Say whether link(2) decides, and says by open and fstat what it did."""
        self.make("first", "first")
        self.make("second", "second")
        self.link("target", "first")
        wrong = ""
        if self.link("target", "second"):
            wrong = "a second file was linked to a name that was taken"
        elif self.read("target") != "first":
            wrong = "the name holds another file than the one that was linked first"
        elif (names := self.stat("target").st_nlink) != 2:  # noqa: PLR2004 - "first" and "target"
            wrong = f"a file with two names says that it has {names}"
        way_out = "use a file system with hard links, and one for the whole root"
        return judged("hard links", "link(2) takes a name once, and says so", wrong, way_out, holds=not wrong)

    def exclusive(self) -> HealthCheck:
        refused = self.make("taken", "") and not self.make("taken", "")
        wrong, way_out = "O_EXCL opened a file that was there", "use NFSv3, v4 or a Linux file system"
        return judged("exclusive create", "O_EXCL takes a name once", wrong, way_out, holds=refused)

    def listed(self) -> HealthCheck:
        listed = self.make("listed", "bytes") and self.lists("listed") and self.read("listed") == "bytes"
        wrong, way_out = "a new file was not in its directory's list, or empty", "see dmesg; is the mount well?"
        return judged("listing", "a new file is seen at once, whole", wrong, way_out, holds=listed)

    def read_often(self) -> None:
        """Read a file so often that an NFSv4 server may hand out a delegation; remove it, so that it comes back."""
        self.make("often", "bytes")
        for _ in range(_READS):
            self.read("often")
        os.unlink(self._place / "often")


def _write_and_close(descriptor: int, data: str) -> None:
    try:
        os.write(descriptor, data.encode("ascii"))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def judge_directory(where: Path) -> HealthCheck:
    """Say whether the processes of all machines can work in a directory: it is opened. Raises OSError."""
    descriptor = os.open(where, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    mode, name = stat.S_IMODE(found.st_mode), "directory mode"
    said = f"{where} has mode {mode:04o}, user {found.st_uid}, group {found.st_gid}"
    if mode & stat.S_ISVTX:
        why = "sticky ones refuse to open files that another user has made (fs.protected_regular)"
        return failed(name, f"{said}: {why}", f"chmod -t {where}, and one group for all processes")
    if mode & stat.S_IWOTH:
        return unsure(name, f"{said}: anybody may write there", f"chmod o-w {where}")
    return passed(name, said)


def judge_server_clock(server: Instant, local: TimeInterval) -> HealthCheck:
    """Say how far the file server's clock is from here. ``local``: CLOCK_REALTIME before and after it was asked."""
    name = "server clock"
    off = server - local.latest if server > local.latest else min(0, server - local.earliest)
    said = f"the file server's clock is {span_text(abs(off))} {'ahead' if off > 0 else 'behind'}"
    way_out = "run chrony on the file server, too"
    if off > CLOCK_FAIL_NS:
        return failed(name, f"{said}: it gives no second opinion on when a rack may be sealed", way_out)
    if abs(off) > CLOCK_UNSURE_NS:
        return unsure(name, f"{said}" + ("" if off > 0 else ": seals are late by as much"), way_out)
    return passed(name, said if off else "the file server's clock and this machine's agree")
