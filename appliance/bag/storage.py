"""The storage port: the few operations that behave the same on a local file system, NFS and in the simulator.

Paths are relative to the root, with forward slashes. Every verb may touch the mount and may block for as long as the
server is away (hard mounts). Not being there is a value, ``None`` or ``ABSENT``, never an exception; every other
refusal of the operating system is raised as Environment, and then **the verb may or may not have been done**: the reply
may be what was lost. docs/nfs.md says why each verb is allowed.

The one file with calls on a mount is posix.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import Enum
from typing import Final, Protocol

from timeagent.units import Instant, Span

SIZE_NOT_EXPECTED: Final = "size-not-expected"
PATH_ABSENT: Final = "path-absent"
"""Codes of Environment by which ``append`` says that it surely has appended nothing."""
NOT_A_DIRECTORY: Final = "not-a-directory"
"""Code of Environment for a name that stands where a directory is expected, and is none."""


class Published(Enum):
    """What became of a publication."""

    WON = "won"
    """The name is there now, and its content is ours."""
    LOST = "lost"
    """The name was there before us: read what it holds."""
    ABSENT = "absent"
    """The directory is not there: nothing was published."""


class Storage(Protocol):
    """A shared directory tree, by protocol verbs."""

    @property
    def listing_pause_ns(self) -> Span:
        """How long to wait between two listings that nobody asks for. 0: they cost nothing but the time of a server."""

    def ensure_directory(self, path: str) -> None:
        """Make a directory and those above it, where they are missing. Idempotent."""

    def look(self, directory: str, names: Collection[str]) -> frozenset[str] | None:
        """Open the directory afresh, then say which of the names are there; None if the directory is not.

        Whatever was published before this call began is seen: opening the directory drops what this machine had cached
        about it (revalidation).
        """

    def list_afresh(self, directory: str) -> list[str] | None:
        """Open the directory afresh and return its names, sorted; None if it is not there. Revalidates like look."""

    def read(self, path: str) -> bytes | None:
        """Return all bytes of a file, as of its last close; None if it is not there; b"" for what is no regular file.

        None may come from a cache, for a name that was looked for in vain before: an absence counts only after ``look``
        or ``list_afresh`` of its directory.
        """

    def read_each(self, directory: str, names: Sequence[str]) -> Iterator[bytes | None]:
        """Yield all bytes of each of a directory's files, in the order of the names; each as ``read`` returns it.

        One is in memory at a time. A symbolic link in the place of the directory is refused, NOT_A_DIRECTORY.
        """

    def size_of(self, path: str) -> int | None:
        """Return a file's size by open and fstat, never from cached attributes; None if it is not there."""

    def read_from(self, path: str, offset: int, limit: int) -> bytes | None:
        """Return at most ``limit`` bytes of a file from an offset, fewer only at its end; otherwise as ``read``.

        Each call opens the file anew: two ranges of a file that somebody replaces need not be of the same bytes.
        """

    def publish(self, path: str, data: bytes, tmp: str) -> Published:
        """Let a complete, durable file appear under a name that is taken once: the first one wins, for ever.

        Prepared in the directory ``tmp`` (made if missing), written, flushed, closed, and linked. A lost reply to the
        link is recognised by link count and file, so that WON and LOST are true. Never replaces anything.
        """

    def publish_stream(self, path: str, chunks: Iterable[bytes], tmp: str) -> Published:
        """As ``publish``, for what is too large for memory: one chunk is held at a time.

        What the iteration raises comes out here, and then nothing was published.
        """

    def ensure_marker(self, path: str) -> bool:
        """Make an empty file; true also if it is there already; false if its directory is not there."""

    def append(self, path: str, data: bytes, expected_size: int) -> int:
        """Append to a file that only this process writes; flush, close; return the new size.

        ``expected_size`` 0 makes the file. Raises Environment; code ``size-not-expected``: somebody else wrote, or made
        the file, and nothing was appended; ``path-absent``: the file or its directory is not there. After any other
        error all, some or none of the bytes may be in the file, or come later.
        """

    def unlink(self, path: str) -> None:
        """Remove a name; nothing happens if it is not there, or a directory's."""

    def remove_directory(self, path: str) -> bool:
        """Remove an empty directory; true also if it is not there; false if it is not empty, or no directory."""

    def server_clock(self, tmp: str) -> Instant:
        """Return the file server's clock: the ctime that it gives to a fresh file in ``tmp`` (made if missing)."""
