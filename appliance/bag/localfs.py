"""Whether a path lies on a file system of this machine alone."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_LOCAL: Final = frozenset({"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"})


def is_local(path: Path, mounts: str | None = None) -> bool:
    """Whether a path lies on a file system whose every change this kernel makes. Unknown ones count as not.

    ``mounts``: the text of ``/proc/self/mountinfo``, which is read if it is not given.
    """
    text = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace") if mounts is None else mounts
    best, kind = -1, ""
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        fields = before.split()
        if not dash or len(fields) < 5:  # noqa: PLR2004 - the mount point is the fifth
            continue
        point = Path(fields[4].encode().decode("unicode_escape"))
        # The last line of the deepest mount point counts: it covers those before it.
        if path.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), after.split()[0]
    return kind in _LOCAL
