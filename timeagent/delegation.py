"""Online Roughtime keys: made by the long-term key for a stretch of time, kept in files, changed before they expire.

The long-term key is the node's identity as a Roughtime server and need not be on the node: ``tenure trust delegate``
makes online keys ahead, where the long-term key is, for as long as one likes. Their stretches overlap, and the server
takes the one that lasts longest of those that are valid now. Where the long-term key does lie on the node, the server
makes an online key a day by itself and keeps it in memory.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from .errors import BadConfiguration, Damaged
from .interval import TimeInterval
from .keyfiles import CREDENTIAL_MODE, CREDENTIALS
from .keys import Signer, load_private_text, parse_public_line, public_line, save_private_text
from .roughwire import OnlineKey, delegate, open_online_key
from .units import DAY, HOUR, SECOND, Instant, Span, rfc3339

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
    certificates: list[str]
    private_key: str


class Delegations:
    """The online keys of one server."""

    def __init__(self, made: Sequence[OnlineKey], long_term: Signer | None = None) -> None:
        """Take the keys that were made ahead, and the long-term key where it is at hand."""
        self._made = list(made)
        self._long_term = long_term

    def at(self, now: TimeInterval) -> OnlineKey | None:
        """Return the key to sign with now, or None: every client would refuse an answer outside its delegation."""
        usable = [each for each in self._made if _usable(each, now)]
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

    def end_ns(self, now: TimeInterval) -> Instant | None:
        """Return until when there is a key without a gap, as far as is known; None where there is none now."""
        if self._long_term is not None:
            return now.latest + OWN_LIFE_NS
        end: Instant | None = None
        for each in sorted(self._made, key=lambda each: each.from_s):
            reached = now.latest if end is None else end
            if each.from_s * SECOND + MARGIN_NS <= reached < each.until_s * SECOND - MARGIN_NS:
                end = each.until_s * SECOND - MARGIN_NS
        return end


def _usable(each: OnlineKey, now: TimeInterval) -> bool:
    return each.from_s * SECOND + MARGIN_NS <= now.earliest and now.latest <= each.until_s * SECOND - MARGIN_NS


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
        certificates=[base64.b64encode(raw).decode("ascii") for raw in online.certificates.values()],
        private_key=online.signer.to_pem().decode("ascii"),
    )
    save_private_text(path, msgspec.json.format(msgspec.json.encode(written), indent=2) + b"\n")
    return path


def load_delegation(path: Path, *, tolerated_mode: int = 0) -> OnlineKey:
    """Read an online key. Raises NotTrusted if others may read it, BadConfiguration for what is none."""
    data = load_private_text(path, tolerated_mode=tolerated_mode)
    try:
        read = msgspec.json.decode(data, type=_File)
        certificates = [base64.b64decode(text, validate=True) for text in read.certificates]
        long_term = parse_public_line(read.long_term, str(path))
        return open_online_key(long_term, Signer.from_pem(read.private_key.encode(), str(path)), certificates)
    except (msgspec.DecodeError, binascii.Error, UnicodeError, Damaged) as problem:
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
    paths = sorted((path, mode) for place, mode in places for path in place.glob("delegation-*.json"))
    for path, mode in paths[:DELEGATIONS_MAX]:
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
