"""What goes over the wire about session leases: part of ``wire`` (docs/protocol/lease.md, "Session leases")."""

from __future__ import annotations

from timeagent.canonical import U64, Bytes16, Bytes32, Record, Token

from ..formats.lease import Holder
from ..formats.witness import Revoked


class BeginSession(Record, frozen=True, tag="begin-session"):
    """Get a session lease: leases that name it in their acquire are kept by its renewals."""

    request_id: Bytes16
    holder: Holder
    term_ns: U64
    expiry_ns_max: U64


class RenewSession(Record, frozen=True, tag="renew-session"):
    """Move the expiry of a session lease, and so that of every lease under it."""

    request_id: Bytes16
    session_id: Bytes16
    term_ns: U64
    expiry_ns_max: U64


class DropSession(Record, frozen=True, tag="drop-session"):
    """Give a session lease back with every lease under it: they were over for the holder before this was sent.

    The holder's word is about all of them together. Only when every attempt under any of them has a known outcome.
    """

    request_id: Bytes16
    session_id: Bytes16
    watermark_ns: U64 | None
    """The highest timestamp written under any of them; None where nothing was written."""
    watermark_time: Token | None
    messages: U64
    chain_head: Bytes32 | None


class SessionGranted(Record, frozen=True, tag="session-granted"):
    """A session lease is granted or renewed, with its proof."""

    request_id: Bytes16
    signed: bytes
    """An encoded SignedWitness."""
    leases: U64
    """How many leases are out under it, as the shard counts: where the holder knows of fewer, an answer was lost."""
    revoked: tuple[Revoked, ...] = ()
    """Unsigned: of the leases that the witness names as ended, who revoked them and why, where the shard remembers."""
