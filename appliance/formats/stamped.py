"""Two envelopes: a body *stamped* by the nonce door, and a body *signed* by a key (docs/protocol/formats.md).

Stamped are birth records, lock files and seals; signed are numbered records and ceilings. Both keep the body as the
bytes that were signed. Each context is used for one kind of body only.
"""

from __future__ import annotations

from typing import Final

from timeagent.canonical import Bytes16, Bytes64, Record, Token, decode, digest, encode, encode_for_ever
from timeagent.clock import Stamper
from timeagent.keys import Signer, Verifier
from timeagent.signedtime import SignedTime

from .framing import Kind, pack, unpack

CONTEXTS: Final = {
    Kind.BIRTH: "log birth",
    Kind.LOCK: "lock file",
    Kind.SEAL: "rack seal",
    Kind.POLICY: "policy record",
    Kind.TRUST: "trust record",
    Kind.MAP: "map record",
    Kind.CEILING: "ceiling record",
    Kind.EPOCH: "epoch record",
}


class Stamped(Record, frozen=True):
    """A body, and a signed time over its digest: signed after the body existed."""

    body: bytes
    time: Token

    def signed_time(self, where: str) -> SignedTime:
        """Return the signed time. Raises Damaged. Its signature is not checked here."""
        return SignedTime.decode(self.time, where)


def body_digest(kind: Kind, body: bytes) -> bytes:
    """Return the 32 bytes that a stamp's signed time covers."""
    return digest(CONTEXTS[kind], body)


def stamp(kind: Kind, body: Record, stamper: Stamper) -> bytes:
    """Return the whole file: the body and a signed time made now over its digest. Raises BadTime."""
    return stamp_and_time(kind, encode_for_ever(body), stamper)[0]


def stamp_and_time(kind: Kind, raw: bytes, stamper: Stamper) -> tuple[bytes, SignedTime]:
    """Return the whole file, as ``stamp`` does, of an encoded body, and the signed time in it."""
    token = stamper.token_over(body_digest(kind, raw))
    return pack(kind, encode(Stamped(body=raw, time=token.encode()))), token


def open_stamped(kind: Kind, data: bytes, where: str) -> Stamped:
    """Read a stamped file. Raises Damaged. The signed time is not verified here."""
    return decode(Stamped, unpack(data, kind, where), where)


class Signed(Record, frozen=True):
    """A body, and a signature over it."""

    body: bytes
    key_id: Bytes16
    signature: Bytes64

    def verified_by(self, kind: Kind, key: Verifier) -> bool:
        return key.id == self.key_id and key.verifies(CONTEXTS[kind], self.body, self.signature)


def sign(kind: Kind, body: Record, signer: Signer) -> bytes:
    raw = encode_for_ever(body)
    signed = Signed(body=raw, key_id=signer.id, signature=signer.sign(CONTEXTS[kind], raw))
    return pack(kind, encode(signed))


def open_signed(kind: Kind, data: bytes, where: str) -> Signed:
    """Read a signed file. Raises Damaged. The signature is not verified here."""
    return decode(Signed, unpack(data, kind, where), where)
