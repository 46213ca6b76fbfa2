"""Which file system a path is on and how it is mounted, judged by what docs/nfs.md relies on.

All that it reads are the texts of ``/proc/self/mountinfo`` and ``/proc/self/mountstats``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .health import HealthCheck, failed, judged, passed, unsure

_MOUNTINFO: Final = Path("/proc/self/mountinfo")
_NFS: Final = frozenset({"nfs", "nfs4"})
_LASTING: Final = frozenset({"ext4", "ext3", "xfs", "btrfs", "zfs", "f2fs", "bcachefs"})
FORGETFUL: Final = frozenset({"tmpfs", "ramfs"})
_NEVER: Final = frozenset({"cifs", "smb3", "smbfs", "vfat", "exfat", "msdos", "ntfs", "ntfs3", "iso9660", "squashfs"})
_LINE: Final = re.compile(r"\S+ \S+ \S+ \S+ (\S+) (\S+)( .*)? - (\S*) (\S*) (\S*)")
"""Of a mountinfo: the mount's point and options; behind the dash the file system, its source and its options."""
_AGE_S_MAX: Final = 60
"""The kernel's own ceiling for what a client may remember (acregmax, acdirmax)."""
_DEFAULT_AGES: Final = {"acregmin": 3, "acregmax": 60, "acdirmin": 30, "acdirmax": 60}


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
    for line in text.splitlines():
        if parts := _LINE.match(line):
            point, own, _, kind, source, its = parts.groups()
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
    for mount in parse_mountinfo(_MOUNTINFO.read_text("utf-8", "replace") if mountinfo is None else mountinfo):
        inside = str(path) == mount.point or str(path).startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def is_local(path: Path, mountinfo: str | None = None) -> bool:
    """Whether a path lies on a file system whose every change this kernel makes. Unknown ones count as not."""
    mount = mount_of(path, mountinfo)
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
    for line in mountstats.splitlines():
        if mounted := re.match(r"device \S+ mounted on (\S+)|device", line):
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
