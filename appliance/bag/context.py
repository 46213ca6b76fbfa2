"""What everything in a bag's protocol is given: ports, the name of this node, and how it signs for ever."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from appliance.formats.framing import Kind
from appliance.formats.paths import LOGS, TMP
from appliance.formats.policy import Policy
from appliance.formats.stamped import stamp_and_time
from timeagent.clock import NodeTime
from timeagent.errors import NotTrusted
from timeagent.keys import Purpose
from timeagent.trust import Keyring

from .storage import Storage


class Parallel:
    """Does one thing to each of several items: here one after the other, in the caller's thread.

    Protocol code does not depend on it: what is done at once is independent, and what has an order is done in order.
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
            return list(pool.map(do, items))


class RecordNumbers(msgspec.Struct, frozen=True):
    """The numbers of a trust record and of a policy record."""

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
