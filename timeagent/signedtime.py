"""``SignedTime``: midpoint and radius, signed by a node's time key; and the two rules that tie instants to it.

Two doors make it. The *page* door signs a time every period, ahead of its use: cheap, shared by every message until the
next. The *nonce* door signs a time together with 32 bytes of the caller's: proof that it was signed after they existed.
The two have contexts of their own, so that neither can stand for the other.
"""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag
from typing import Final

import msgspec

from .canonical import DIGEST_BYTES, signed_bytes
from .errors import Damaged
from .keys import Signer, Verifier
from .units import MS, Instant, Span, TimeInterval

PAGE_CONTEXT: Final = "signed time"
NONCE_CONTEXT: Final = "signed time over digest"
BODY_BYTES: Final = 64
TOKEN_BYTES: Final = 128

_MAGIC: Final = b"TNST"
_VERSION: Final = 1
_BODY: Final = struct.Struct(">4sBBHQQQQQ16s")
assert _BODY.size == BODY_BYTES
# What timeagent/agent/agent.py needs to make the bytes of ``sign_time(...).encode()`` without the object in between.
PAGE_BODY: Final = _BODY
PAGE_HEAD: Final = (_MAGIC, _VERSION)
PAGE_PREFIX: Final = signed_bytes(PAGE_CONTEXT, bytes(BODY_BYTES))[:-BODY_BYTES]


STALENESS_NS: Final[Span] = 250 * MS
"""How old a signed time of the page door, or a page, may be when it is used; stated in both."""


class ClockStatus(IntEnum):
    """What a node knows of its clock's error."""

    UNKNOWN = 0
    SYNCHRONIZED = 1
    FREE_RUNNING = 2
    DISRUPTED = 3

    @property
    def word(self) -> str:
        """The status as people and JSON have it."""
        return self.name.lower().replace("_", "-")

    @property
    def usable(self) -> bool:
        """Whether leases may be granted and messages stamped in this status."""
        return self in (ClockStatus.SYNCHRONIZED, ClockStatus.FREE_RUNNING)


class TimeFlags(IntFlag):
    """How the time was made."""

    NONE = 0
    NONCE = 1
    """Made by the nonce door."""
    ASSUMED = 2
    """The radius is a statement of the policy, not a measurement."""
    CLUSTER = 4
    """Relative to a named reference of the cluster, not to UTC: right for leases, not for the world."""


# By their numbers: asking an enum, and the operators of its members, take longer than all the rest of a decoding.
_STATUSES: Final = tuple(ClockStatus)
_FLAGS: Final = tuple(map(TimeFlags, range(int(TimeFlags.NONCE | TimeFlags.ASSUMED | TimeFlags.CLUSTER) + 1)))
_NONCE: Final = int(TimeFlags.NONCE)


class SignedTime(msgspec.Struct, frozen=True, gc=False):
    """A node's signed statement: true time was in midpoint plus or minus radius when this was signed."""

    status: ClockStatus
    flags: TimeFlags
    midpoint_ns: Instant
    radius_ns: Span
    staleness_ns: Span
    """How long after signing the page door may still hand it out; 0 from the nonce door."""
    sequence: int
    clock_epoch: int
    key_id: bytes
    signature: bytes

    @property
    def interval(self) -> TimeInterval:
        return TimeInterval.around(self.midpoint_ns, self.radius_ns)

    def body(self) -> bytes:
        """Return the 64 signed bytes."""
        return _BODY.pack(
            _MAGIC,
            _VERSION,
            self.status,
            self.flags,
            self.midpoint_ns,
            self.radius_ns,
            self.staleness_ns,
            self.sequence,
            self.clock_epoch,
            self.key_id,
        )

    def encode(self) -> bytes:
        """Return the 128 bytes: body and signature."""
        return self.body() + self.signature

    @classmethod
    def decode(cls, data: bytes, where: str = "a signed time") -> SignedTime:
        """Read 128 bytes. Raises Damaged, naming ``where``. The signature is not checked here.

        What was read is remembered: one signed time stands in many messages.
        """
        known = _remembered.get(data)
        if known is None:
            known = cls._read(data, where)
            if len(_remembered) >= _REMEMBERED_MAX:
                _remembered.clear()
            _remembered[bytes(data)] = known
        return known

    @classmethod
    def _read(cls, data: bytes, where: str) -> SignedTime:
        if len(data) != TOKEN_BYTES:
            raise Damaged("time-damaged", f"{where} has {len(data)} bytes, not {TOKEN_BYTES}")
        magic, version, status, flags, midpoint, radius, staleness, sequence, epoch, key = _BODY.unpack_from(data)
        if magic != _MAGIC or version != _VERSION or status >= len(_STATUSES) or flags >= len(_FLAGS):
            raise Damaged("time-damaged", f"{where} has an unknown head: {data[:8].hex()}")
        if midpoint >= 2**63 or radius >= 2**62 or staleness >= 2**62:
            raise Damaged("time-damaged", f"{where} has an instant out of range")
        if flags & _NONCE and staleness:
            raise Damaged("time-damaged", f"{where} came by the nonce door and claims a staleness of {staleness}")
        return cls(
            _STATUSES[status], _FLAGS[flags], midpoint, radius, staleness, sequence, epoch, key, data[BODY_BYTES:]
        )

    def verified_by(self, key: Verifier, digest: bytes | None = None) -> bool:
        """Whether this key signed it: by the page door, or over ``digest`` (32 bytes) by the nonce door."""
        if key.id != self.key_id or (digest is not None) != bool(int(self.flags) & _NONCE):
            return False
        if digest is None:
            return key.verifies(PAGE_CONTEXT, self.body(), self.signature)
        assert len(digest) == DIGEST_BYTES
        return key.verifies(NONCE_CONTEXT, self.body() + digest, self.signature)


_REMEMBERED_MAX: Final = 4096
_remembered: dict[bytes, SignedTime] = {}


def sign_time(
    signer: Signer,
    interval: TimeInterval,
    *,
    status: ClockStatus,
    flags: TimeFlags,
    staleness_ns: Span,
    sequence: int,
    clock_epoch: int,
    digest: bytes | None = None,
) -> SignedTime:
    """Sign an interval; with ``digest`` (32 bytes) by the nonce door."""
    assert digest is None or len(digest) == DIGEST_BYTES
    door = _FLAGS[int(flags) | _NONCE if digest is not None else int(flags) & ~_NONCE]
    fields = (
        status,
        door,
        interval.midpoint,
        interval.radius,
        staleness_ns if digest is None else 0,
        sequence,
        clock_epoch,
        signer.id,
    )
    body = _BODY.pack(_MAGIC, _VERSION, *fields)
    context = PAGE_CONTEXT if digest is None else NONCE_CONTEXT
    return SignedTime(*fields, signer.sign(context, body + (digest or b"")))


def r1_range(token: SignedTime, tolerance_ns: Span) -> range:
    """Return the timestamps that a message or a watermark with this signed time may have.

    R1: |timestamp - signed midpoint| <= tolerance + radius. The tolerance, the policy's, is for a token that was signed
    up to its staleness ago, and for a batch that was stamped up to the longest batch ago.
    """
    allowed = tolerance_ns + token.radius_ns
    return range(token.midpoint_ns - allowed, token.midpoint_ns + allowed + 1)


def r2_holds(cause: SignedTime, effect: SignedTime, *, effect_covers_cause: bool = False) -> bool:
    """Whether what came after was not signed wholly before: ``effect.latest + staleness >= cause.earliest``.

    ``effect_covers_cause``: the effect's token came by the nonce door over a digest that covers the cause; only then
    is the allowance for tokens signed ahead of use left out. False means that one of two clocks broke its bound, and
    the pair of tokens is the proof.
    """
    assert not effect_covers_cause or effect.flags & TimeFlags.NONCE
    allowance = 0 if effect_covers_cause else effect.staleness_ns
    return effect.midpoint_ns + effect.radius_ns + allowance >= cause.midpoint_ns - cause.radius_ns
