"""What everything in a bag's protocol is given: ports, the name of this node, and how it signs for ever.

The storage port has the few operations that behave the same on a local file system, NFS and in the simulator. Paths are
relative to the root, with forward slashes. Every verb may touch the mount and may block for as long as the server is
away (hard mounts). Not being there is a value, ``None`` or ``ABSENT``, never an exception; every other refusal of the
operating system is raised as Environment, and then **the verb may or may not have been done**: the reply may be what
was lost. docs/nfs.md says why each verb is allowed. The one file with calls on a mount is posix.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

import msgspec

from appliance.formats.framing import Kind
from appliance.formats.paths import LOGS, TMP
from appliance.formats.policy import Policy
from appliance.formats.stamped import stamp_and_time
from timeagent.clock import NodeTime
from timeagent.errors import NotTrusted
from timeagent.keys import Purpose
from timeagent.trust import Keyring
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

        Of one that is larger than a piece may be, at least the whole pieces that it begins with.
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


class Parallel:
    """Does one thing to each of several items: here one after the other, in the caller's thread.

    Protocol code does not depend on it: what is done at once is independent, and may be done again; what has an order
    is done in order.
    """

    width: int = 1
    """So many at once."""

    def each[T, R](self, do: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Return the results in order. Raises what the first of them raises, when none is under way any more."""
        return [do(item) for item in items]


class Threads(Parallel):
    """In threads that end with the call. The ports below must be safe to share between threads."""

    def __init__(self, width: int = 16) -> None:
        self.width = width

    def each[T, R](self, do: Callable[[T], R], items: Sequence[T]) -> list[R]:
        if len(items) == 1:
            return [do(items[0])]
        with ThreadPoolExecutor(self.width, "tenure-bags") as pool:
            try:
                results = pool.map(do, items)
            except RuntimeError:  # this process may have no more threads: what was begun is done again
                pool.shutdown(cancel_futures=True)
                return super().each(do, items)
            return list(results)


class RecordNumbers(msgspec.Struct, frozen=True):
    trust: int
    policy: int


class NumberedRecords(Protocol):
    """Trust and policy records of one cluster. What has a number never changes: any of it may be cached."""

    @property
    def cluster_id(self) -> bytes:
        """The 16 bytes that name the cluster."""

    @property
    def known(self) -> RecordNumbers | None:
        """The newest numbers that ``newest`` has seen in this process; None where the last look failed, or none was."""

    def newest(self) -> RecordNumbers:
        """Return the newest numbers, both directories opened afresh. Touches the mount."""

    def keyring(self, number: int) -> Keyring:
        """Return the keys of a trust record. Raises Damaged if there is no such record."""

    def policy(self, number: int) -> Policy:
        """Return a policy record. Raises Damaged if there is no such record."""


def wake_nobody(log: str) -> None:
    """Tell no metronome."""


@dataclass(frozen=True, slots=True)
class BagContext:
    """The ports. Protocol code below has no other way to the world."""

    storage: Storage
    time: NodeTime
    records: NumberedRecords
    node: str
    parallel: Parallel = field(default_factory=Parallel)
    """How requests to the mount that do not depend on each other are made."""
    wake: Callable[[str], None] = wake_nobody
    """Told the name of a log that is written to, or whose horizon is asked for: its metronome looks at it soon.

    Never raises, never waits, touches no mount. Nothing depends on it: without it a log is looked at once a rack.
    """

    def tmp(self, log: str) -> str:
        """Return the directory where this node prepares files of a log."""
        return f"{LOGS}/{log}/{TMP}/{self.node}"


def signed_for_ever(kind: Kind, body: bytes, time: NodeTime, keyring: Keyring) -> bytes:
    """Return the whole file, with a signed time made now over the encoded body. Raises BadTime.

    Readers believe what was linked first, whoever linked it: otherwise a list by a revoked node could not be told from
    a bag that is still open, and no other could take its place. So a node whose key is refused by now signs no list. It
    leaves what it has begun to the others, as if it had died there.

    ``body``: what ``encode_for_ever`` has returned: it was read once as everybody will read it.
    ``keyring``: of the newest trust record. Raises NotTrusted if that refuses this node's key: the audit would.
    """
    raw, token = stamp_and_time(kind, body, time)
    reason = keyring.refuses(token.key_id, Purpose.TIME, token.midpoint_ns)
    if reason:
        raise NotTrusted(
            "key-not-trusted",
            f"this node may not sign for the cluster: {reason}",
            hint="tenure trust rotate makes the next keys; what is revoked stays so: tenure trust ls",
        )
    return raw
