"""The Roughtime server of a node, and its online keys: made by the long-term key, changed before they expire.

The long-term key is the node's identity as a Roughtime server and need not be on the node: ``tenure trust delegate``
makes online keys ahead, where the long-term key is, for as long as one likes. Their stretches overlap, and the server
takes the one that lasts longest of those that are valid now. Where the long-term key does lie on the node, the server
makes an online key a day by itself and keeps it in memory.

The radius is the agent's own bound, rounded up to whole seconds so that the answer's interval holds the agent's. A
datagram that is no request is not answered, and no answer is longer than its request, so nobody can be flooded by it.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from ..errors import BadConfiguration, BadTime, Damaged
from ..keys import (
    CREDENTIAL_MODE,
    CREDENTIALS,
    Signer,
    load_private_text,
    parse_public_line,
    public_line,
    save_private_text,
)
from ..sources.port import DatagramDoor
from ..units import DAY, HOUR, SECOND, Instant, Span, TimeInterval, rfc3339
from .wire import PACKET_BYTES_MAX, OnlineKey, answer_batch, delegate, open_online_key

DIRECTORY: Final = "roughtime"
"""In the node's directory: where its delegations lie."""
OWN_LIFE_NS: Final[Span] = DAY
"""How long an online key is good that the server makes for itself; it makes the next one at half of that."""
BACKDATE_NS: Final[Span] = HOUR
MARGIN_NS: Final[Span] = 2 * SECOND
"""A midpoint is rounded to a second and must lie within the delegation: this far from its ends, none is used."""
DELEGATIONS_MAX: Final = 1000

_log = logging.getLogger(__name__)


class _File(msgspec.Struct, forbid_unknown_fields=True, rename={"schema_name": "schema"}, kw_only=True):
    schema_name: Literal["tenure.roughtime.delegation"] = "tenure.roughtime.delegation"
    version: Literal[1] = 1
    valid_from: str
    valid_until: str
    long_term: str
    certificates: list[bytes]
    private_key: str


class Delegations:
    """The online keys of one server."""

    def __init__(self, made: Sequence[OnlineKey], long_term: Signer | None = None) -> None:
        """Take the keys that were made ahead, and the long-term key where it is at hand."""
        self._made = list(made)
        self._long_term = long_term

    def at(self, now: TimeInterval) -> OnlineKey | None:
        """Return the key to sign with now, or None: every client would refuse an answer outside its delegation."""
        earliest, latest = now.earliest - MARGIN_NS, now.latest + MARGIN_NS
        usable = [each for each in self._made if each.from_s * SECOND <= earliest and latest <= each.until_s * SECOND]
        best = max(usable, key=lambda each: each.until_s, default=None)
        if self._long_term is None or (best and best.until_s * SECOND - now.latest > OWN_LIFE_NS // 2):
            return best
        own = delegate(
            self._long_term,
            Signer.generate(),
            max(0, now.earliest - BACKDATE_NS) // SECOND,
            (now.latest + OWN_LIFE_NS) // SECOND,
        )
        self._made = [each for each in self._made if each.until_s * SECOND > now.earliest]
        self._made.append(own)
        return own


def make_ahead(long_term: Signer, now: Instant, *, span_ns: Span, each_ns: Span) -> Iterator[OnlineKey]:
    """Yield online keys that cover a span from now on, each good for ``each_ns``, overlapping by a quarter of that."""
    assert each_ns >= HOUR
    start = max(0, now - BACKDATE_NS)
    while start < now + span_ns:
        yield delegate(long_term, Signer.generate(), start // SECOND, (start + each_ns) // SECOND)
        start += each_ns - each_ns // 4


def save_delegation(directory: Path, online: OnlineKey) -> Path:
    """Write an online key into a directory, which exists; mode 0600, never over a file. Raises Environment."""
    path = directory / f"delegation-{online.from_s}.json"
    written = _File(
        valid_from=rfc3339(online.from_s * SECOND),
        valid_until=rfc3339(online.until_s * SECOND),
        long_term=public_line(online.long_term, "roughtime"),
        certificates=online.encoded(),
        private_key=online.signer.to_pem().decode("ascii"),
    )
    save_private_text(path, msgspec.json.format(msgspec.json.encode(written), indent=2) + b"\n")
    return path


def load_delegation(path: Path, *, tolerated_mode: int = 0) -> OnlineKey:
    """Read an online key. Raises NotTrusted if others may read it, BadConfiguration for what is none."""
    data = load_private_text(path, tolerated_mode=tolerated_mode)
    try:
        read = msgspec.json.decode(data, type=_File)
        long_term = parse_public_line(read.long_term, str(path))
        return open_online_key(long_term, Signer.from_pem(read.private_key.encode(), str(path)), read.certificates)
    except (msgspec.DecodeError, UnicodeError, Damaged) as problem:
        raise BadConfiguration(
            "bad-delegation", f"{path} is no delegation: {problem}", hint="make it anew: tenure trust delegate"
        ) from None


def load_delegations(node_directory: Path, long_term: bytes) -> list[OnlineKey]:
    """Read the delegations of a node by its long-term key: its own files, and those that systemd hands over.

    What belongs to another long-term key, or cannot be read, is logged and left out: one bad file must not silence the
    server while there is a good one.
    """
    places = [(node_directory / DIRECTORY, 0)]
    credentials = os.environ.get(CREDENTIALS)
    if credentials:
        places.append((Path(credentials), CREDENTIAL_MODE))
    found = []
    paths = sorted((path.name, path, mode) for place, mode in places for path in place.glob("delegation-*.json"))
    for _, path, mode in paths[-DELEGATIONS_MAX:]:  # the newest
        try:
            online = load_delegation(path, tolerated_mode=mode)
        except Exception as problem:  # noqa: BLE001 - whatever is wrong with it, the others count
            _log.warning("delegation-unusable path=%s reason=%s", path, problem)
            continue
        if online.long_term == long_term:
            found.append(online)
        else:
            _log.warning("delegation-of-another-key path=%s", path)
    return found


RADIUS_S_MIN: Final = 1
"""RFC 10049: never 0. It suggests 3 where nobody tells of leap seconds; the sources of an agent do, or it is silent."""
RADIUS_S_MAX: Final = 2**32 - 1
BATCH_MAX: Final = 64


def whole_seconds(now: TimeInterval) -> tuple[int, int]:
    """Return the midpoint and the least radius, in whole seconds, whose interval holds ``now``."""
    midpoint_s = (now.midpoint + SECOND // 2) // SECOND
    reach = max(now.latest - midpoint_s * SECOND, midpoint_s * SECOND - now.earliest)
    return midpoint_s, max(RADIUS_S_MIN, -(-reach // SECOND))


class RoughServer:
    """Answers requests. Thread-compatible; never raises for what a stranger sends."""

    def __init__(self, now: Callable[[], TimeInterval], delegations: Delegations) -> None:
        """Take what says the time (raising BadTime where it cannot), and the keys."""
        self._now = now
        self._delegations = delegations
        self._silent = ""

    def answers(self, requests: Sequence[bytes]) -> list[bytes | None]:
        """Return an answer to each request, or None for what is not answered."""
        said, silent = self._said()
        if silent != self._silent:  # not once a datagram
            _log.warning("roughtime-silent reason=%s", silent) if silent else _log.info("roughtime-speaks")
            self._silent = silent
        return [None] * len(requests) if said is None else answer_batch(said[0], requests, *said[1])

    def _said(self) -> tuple[tuple[OnlineKey, tuple[int, int]] | None, str]:
        """Return what to sign with, midpoint and radius; or why nothing is said."""
        try:
            now = self._now()
        except BadTime as problem:
            return None, problem.code
        online, (midpoint_s, radius_s) = self._delegations.at(now), whole_seconds(now)
        if online is None:
            return None, "no-delegation"
        if midpoint_s < 0 or radius_s > RADIUS_S_MAX:
            return None, "radius-too-wide"
        return (online, (midpoint_s, radius_s)), ""


def rough_door(bound: socket.socket, server: RoughServer) -> DatagramDoor:
    """Return a server's UDP socket. What waits is answered as one batch."""
    return DatagramDoor(bound, server.answers, bytes_max=PACKET_BYTES_MAX, batch_max=BATCH_MAX)
