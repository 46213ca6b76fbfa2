"""Which file system a path is on, how it is mounted, and what it does with files: judged by what docs/nfs.md relies on.

How it is mounted ``/proc/self/mountinfo`` and ``/proc/self/mountstats`` say. What it does with files is tried out in a
directory of its own below ``tmp``, which no reader looks into. A verb may block for as long as the server is away. What
the operating system refuses is raised as OSError, as it came: the refusal is the finding.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from timeagent.errors import BadRequest
from timeagent.units import MINUTE, SECOND, Instant, TimeInterval, span_text

from .health import HealthCheck, Room, failed, judged, passed, unsure

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_THERE: Final = os.O_CLOEXEC | os.O_NOFOLLOW
_READS: Final = 5
_NAME: Final = re.compile(r"[a-z0-9.-]{1,64}", re.ASCII)
VERBS: Final = ("make", "append", "link", "sees", "sees_afresh", "read")
CLOCK_UNSURE_NS: Final = 2 * SECOND
CLOCK_FAIL_NS: Final = MINUTE
"""The default delay of a rack's seal: a server's clock that is so far ahead gives no second opinion on it."""
_MOUNTINFO: Final = Path("/proc/self/mountinfo")
_NFS: Final = frozenset({"nfs", "nfs4"})
_LASTING: Final = frozenset({"ext4", "ext3", "xfs", "btrfs", "zfs", "f2fs", "bcachefs"})
FORGETFUL: Final = frozenset({"tmpfs", "ramfs"})
_NEVER: Final = frozenset({"cifs", "smb3", "smbfs", "vfat", "exfat", "msdos", "ntfs", "ntfs3", "iso9660", "squashfs"})
_LINE: Final = re.compile(r"(?:[^ ]+ ){4}([^ ]+) ([^ ]+)(?: [^ ]+)* - ([^ ]*) ([^ ]*) ([^ ]*)")
"""Of a mountinfo: the mount's point and options; behind the dash the file system, its source and its options.

In a name the kernel escapes what separates names here, and nothing else that is blank to Unicode.
"""
_AGE_S_MAX: Final = 60
"""The kernel's own ceiling for what a client may remember (acregmax, acdirmax)."""
_DEFAULT_AGES: Final = {"acregmin": 3, "acregmax": 60, "acdirmin": 30, "acdirmax": 60}


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
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._place)  # left by a run of this name that was killed
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
        _write_and_close(os.open(self._path(name), os.O_WRONLY | os.O_APPEND | _THERE), data)
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
        descriptor = os.open(self._path(name), os.O_RDONLY | _THERE)
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


# -- the mount ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mount:
    point: str
    kind: str
    source: str
    options: Mapping[str, str]
    """Of the mount and of its file system together; "" for those without a value."""

    @property
    def nfs(self) -> bool:
        return self.kind in _NFS

    @property
    def version(self) -> str:
        """The protocol's version, such as 4.2; "" where it is no NFS."""
        major, minor = self.options.get("vers", ""), self.options.get("minorversion", "")
        return major if not minor or "." in major else f"{major}.{minor}"


def parse_mountinfo(text: str) -> list[Mount]:
    """Return all mounts, the later ones over the earlier. Lines that are none are left out."""
    found = []
    for line in text.split("\n"):
        if parts := _LINE.match(line):
            point, own, kind, source, its = parts.groups()
            options = dict(each.partition("=")[::2] for each in f"{own},{its}".split(",") if each)
            found.append(Mount(_unescaped(point), kind, _unescaped(source), options))
    return found


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), text)


def mount_of(path: Path, mountinfo: str | None = None) -> Mount | None:
    """Return the mount that holds an absolute path without symbolic links: the longest point above it, the last one.

    ``mountinfo``: the text of ``/proc/self/mountinfo``, which is read if it is not given.
    """
    best: Mount | None = None
    for mount in parse_mountinfo(os.fsdecode(_MOUNTINFO.read_bytes()) if mountinfo is None else mountinfo):
        inside = str(path) == mount.point or str(path).startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def is_local(path: Path, mountinfo: str | None = None) -> bool:
    """Whether a path lies on a file system whose every change this kernel makes. Unknown ones count as not."""
    mount = mount_of(path.resolve(), mountinfo)
    return mount is not None and mount.kind in _LASTING | {"tmpfs", "ext2", "overlay"}


def judge_kind(mount: Mount) -> HealthCheck:
    name, said = "file system", f"{mount.kind} at {mount.point}"
    if mount.nfs:
        if mount.version in ("3", "4.1", "4.2"):
            return passed(name, f"NFS {mount.version} of {mount.source} at {mount.point}")
        said = f"NFS {mount.version or 'of unknown version'} of {mount.source}"
        return unsure(name, f"{said}: what is relied on was measured on 3 and 4.2", "mount it with vers=4.2 or vers=3")
    if mount.kind in _NEVER:
        wrong = f"{said} has no hard links that decide between two machines"
        return failed(name, wrong, "use NFS, or a Linux file system")
    if mount.kind in FORGETFUL:
        price = f"{said} forgets everything when the machine stops"
        return unsure(name, price, "good for a trial; use a disk or NFS for a record")
    if mount.kind in _LASTING:
        return passed(name, f"{said}: a local file system, for the processes of this machine alone")
    way_out = "run tenure probe with a second machine; docs/nfs.md says what is relied on"
    return unsure(name, f"{said}: nobody has measured what it keeps", way_out)


def judge_options(mount: Mount) -> list[HealthCheck]:
    options = mount.options
    wrong, way_out = f"{mount.point} is mounted read-only", f"mount -o remount,rw {mount.point}"
    found = [judged("writable", "mounted read-write", wrong, way_out, holds="ro" not in options)]
    if not mount.nfs:
        return found
    if {"soft", "softerr", "softreval"} & options.keys():
        price = "a soft mount turns a slow server into errors: writes end as Unknown, and have to be resolved"
        found.append(unsure("hard mount", price, "mount it hard (the default)"))
    else:
        found.append(passed("hard mount", "hard: a server that is away makes calls wait, not fail"))
    said, wrong = "opening revalidates (no nocto)", "nocto: opening a file need not show what was closed before"
    found.append(judged("close-to-open", said, wrong, "mount it without nocto", holds="nocto" not in options))
    found.append(_judge_caching(options))
    lock = options.get("local_lock", "none")
    found.append(passed("locks", f"no lock of the file system is used; local_lock={lock} changes nothing"))
    return found


def _judge_caching(options: Mapping[str, str]) -> HealthCheck:
    name = "caching"
    if "noac" in options:
        price = "noac: nothing is remembered, each stat asks the server"
        return unsure(name, price, "leave noac out: it is not needed")
    told = {each: options.get("actimeo", options.get(each, "")) for each in _DEFAULT_AGES}
    ages = {each: int(told[each]) if told[each].isdecimal() else age for each, age in _DEFAULT_AGES.items()}
    oldest = max(ages["acregmax"], ages["acdirmax"])
    lookups = options.get("lookupcache", "all")
    absent = f"absent names up to {ages['acdirmin']} s (lookupcache={lookups})"
    said = f"what is not opened anew may be {oldest} s old, {absent}"
    if oldest > _AGE_S_MAX:
        return unsure(name, f"{said}: longer than was ever measured", f"acregmax and acdirmax of {_AGE_S_MAX} at most")
    if "fsc" in options:
        return unsure(name, f"{said}; fsc keeps file contents on a local disk: not measured", "mount it without fsc")
    return passed(name, f"{said}; the protocol opens anew whatever it depends on")


def delegations_returned(mountstats: str, point: str) -> int | None:
    """Return how many delegations this client has given back on a mount so far; None where the file does not say."""
    here = False
    for line in mountstats.split("\n"):
        if mounted := re.match(r"device [^ ]+ mounted on ([^ ]+)|device", line):
            here = _unescaped(mounted[1] or "") == point
        elif here and (returned := re.match(r"\s*DELEGRETURN: (\d+)", line, re.ASCII)):
            return int(returned[1])
    return None


def judge_delegations(mount: Mount, before: int | None, after: int | None) -> HealthCheck | None:
    """Say whether the server hands out read delegations: counted around reading a file often and removing it."""
    name = "delegations"
    if not mount.nfs or mount.version.startswith("3"):
        return None
    way_out = "on the server: sysctl fs.leases-enable=0, then mount again; or mount with vers=3"
    risk = "a client that was cut off reads old bytes, and stalls others' links until its NFS lease ends (90 s)"
    if before is None or after is None:
        price = f"NFS {mount.version} may hand them out, and this kernel does not count them: {risk}"
        return unsure(name, price, way_out)
    if after > before:
        return failed(name, f"the server hands them out: {risk}", way_out)
    return passed(name, "none was handed out for a file that was read again and again")
