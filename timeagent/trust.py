"""The trust record: which key spoke for which node, for what, from when until when.

Numbered, immutable, signed by the cluster root key. A revocation names the instant from which it counts: what was
signed for an earlier instant stays accepted.
"""

from __future__ import annotations

from collections.abc import Iterable

from .canonical import U64, Bytes16, Bytes32, Record
from .keys import Purpose, Verifier, fingerprint, key_id
from .signedtime import SignedTime
from .units import Instant, rfc3339


class KeyEntry(Record, frozen=True):
    """One key of one node. Valid from its first instant until, and without, its last."""

    node: str
    purpose: Purpose
    public: Bytes32
    valid_from_ns: U64
    valid_until_ns: U64
    revoked_from_ns: U64 | None = None
    address: str | None = None
    """Of a TLS key: HOST:PORT where the node answers with it. None: other nodes do not reach it."""


class TrustRecord(Record, frozen=True):
    """All keys of a cluster, as of one number. A key stands in it once: it has one node, one purpose, one validity."""

    number: U64
    cluster_id: Bytes16
    keys: tuple[KeyEntry, ...]

    def __post_init__(self) -> None:
        """Refuse (ValueError; Damaged while decoding) a key that stands twice: which entry counts would be a guess."""
        if len({entry.public for entry in self.keys}) != len(self.keys):
            raise ValueError("a key stands twice in the trust record")


class Keyring:
    """The keys of a trust record, by key id. Verifies; never raises for what it does not know."""

    def __init__(self, keys: Iterable[KeyEntry]) -> None:
        self._entries = {key_id(entry.public): entry for entry in keys}
        self._verifiers: dict[bytes, Verifier] = {}

    def entries(self, purpose: Purpose) -> list[KeyEntry]:
        """Return all entries for a purpose, in the record's order, whatever their validity."""
        return [entry for entry in self._entries.values() if entry.purpose is purpose]

    def node_of(self, identifier: bytes) -> str | None:
        """Return the name of the node that owns this key id, or None."""
        entry = self._entries.get(identifier)
        return entry.node if entry else None

    def end_ns(self, identifier: bytes) -> Instant | None:
        """Return from when on this key counts no more, or None where nobody knows the key."""
        entry = self._entries.get(identifier)
        if entry is None or entry.revoked_from_ns is None:
            return entry.valid_until_ns if entry else None
        return min(entry.valid_until_ns, entry.revoked_from_ns)

    def named(self, identifier: bytes) -> str:
        """Return what people call a key: its fingerprint, or, where nobody knows the key, its id in hexadecimal."""
        entry = self._entries.get(identifier)
        return fingerprint(entry.public) if entry else identifier.hex()

    def verifier(self, identifier: bytes) -> Verifier | None:
        """Return the public key with this id, whatever its validity, or None."""
        entry = self._entries.get(identifier)
        if entry is None:
            return None
        if identifier not in self._verifiers:
            self._verifiers[identifier] = Verifier(entry.public)
        return self._verifiers[identifier]

    def counts_ever(self, identifier: bytes, purpose: Purpose) -> bool:
        """Whether a key is for this purpose, at some time or other."""
        entry = self._entries.get(identifier)
        return entry is not None and entry.purpose is purpose

    def refuses(self, identifier: bytes, purpose: Purpose, at: Instant) -> str | None:
        """Return why this key may not sign for this purpose at this instant, or None if it may."""
        entry = self._entries.get(identifier)
        if entry is None:
            return f"key {identifier.hex()} is not in the trust record"
        if entry.purpose is not purpose:
            return f"key {fingerprint(entry.public)} of {entry.node} is for {entry.purpose}, not for {purpose}"
        if not entry.valid_from_ns <= at < entry.valid_until_ns:
            return f"key {fingerprint(entry.public)} of {entry.node} is not valid at {rfc3339(at)}"
        if entry.revoked_from_ns is not None and at >= entry.revoked_from_ns:
            return f"key {fingerprint(entry.public)} of {entry.node} is revoked from {rfc3339(entry.revoked_from_ns)}"
        return None

    def refuses_signature(
        self, identifier: bytes, purpose: Purpose, at: Instant, context: str, payload: bytes, signature: bytes
    ) -> str | None:
        """Return why this signature is not accepted, or None if it is."""
        reason = self.refuses(identifier, purpose, at)
        if reason:
            return reason
        key = self.verifier(identifier)
        if key is None or not key.verifies(context, payload, signature):
            return f"the signature by key {self.named(identifier)} does not verify"
        return None

    def refuses_time(self, token: SignedTime, digest: bytes | None = None) -> str | None:
        """Return why this signed time (over ``digest``, if by the nonce door) is not accepted, or None if it is."""
        reason = self.refuses(token.key_id, Purpose.TIME, token.midpoint_ns)
        if reason:
            return reason
        if not token.status.usable:
            return f"the signed time has status {token.status.name.lower()}"
        key = self.verifier(token.key_id)
        if key is None or not token.verified_by(key, digest):
            return f"the signed time by key {self.named(token.key_id)} does not verify"
        return None
