"""Witnesses: a shard's signed statements about a grant, an upgrade, a renewal, a session (docs/protocol/witness.md).

A shard signs a batch at a time: the head carries the Merkle root of the batch's entries, the shard's signed time and
the digest of the head before, so that all heads of one incarnation are a chain. A holder gets its entry with the path
to the root; the ledger keeps the head with all entries, a block for each batch. Both are the same bytes.

Leases that are taken under a session lease have no expiry of their own but that of its newest witness: one renewal
keeps all of them. A lease's witness names its session, and the two count only together, from one shard incarnation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

import msgspec

from timeagent.canonical import (
    DIGEST_BYTES,
    U64,
    Bytes8,
    Bytes16,
    Bytes32,
    Bytes64,
    Record,
    Token,
    array_head,
    bytes_head,
    decode,
    decode_all,
    digest,
    encode,
    encode_for_ever,
)
from timeagent.errors import Damaged
from timeagent.keys import Purpose, Signer
from timeagent.signedtime import SignedTime
from timeagent.trust import Keyring

from .framing import Kind, Piece, pack
from .lease import Domain, Ending, Holder, LeaseOutcome, Mode, Phase
from .merkle import joined_paths, path, root, tree

ENDED_MAX: Final = 256
"""How many of its leases a shard may end alone under one session lease. Then it is not renewed any more."""


class SessionKind(StrEnum):
    GRANT = "grant"
    RENEWAL = "renewal"


class SessionWitness(Record, frozen=True, tag="session"):
    """A session lease was granted or renewed. The shard and its signed time stand in the batch head."""

    kind: SessionKind
    session_id: Bytes16
    """The shard's midpoint at the grant, 8 bytes, big-endian, and 8 random bytes."""
    holder: Holder
    expiry_ns: U64
    """Until when every lease under it may be written under, but for those that are named here."""
    ended: tuple[Bytes16, ...]
    """The leases that the shard ended alone while the session lived, in order: over for good, whatever the expiry."""


class SessionEnded(Record, frozen=True, tag="session-ended"):
    """A session lease ended, and every lease under it that was out. In the ledger only.

    Its leases end one by one when they are met again; the entries of those say the same outcome.
    """

    session_id: Bytes16
    outcome: LeaseOutcome
    """``dropped`` by its holder, or ``expired``."""
    ended_ns: U64
    """The shard's midpoint when it ended."""
    expiry_ns: U64
    """As it was last renewed: floor and settle_to of every domain, where it expired."""
    leases: U64
    """How many leases ended with it."""
    watermark_ns: U64 | None
    """The holder's word, with a dropped one only: an upper bound of all timestamps under those leases."""
    watermark_time: Token | None
    """The signed time of the message that set the watermark; None where nothing was written."""
    messages: U64
    """The holder's word: how many messages it wrote under those leases and knows Committed."""
    chain_head: Bytes32 | None
    """The holder's word: the digest of its last frame under any of them."""


HEAD_CONTEXT: Final = "witness batch"
NO_HEAD: Final = bytes(32)
"""What the first head of an incarnation names as the one before."""


class WitnessKind(StrEnum):
    GRANT = "grant"
    RENEWAL = "renewal"
    UPGRADE = "upgrade"


class Witness(Record, frozen=True, tag="witness"):
    """One grant, upgrade or renewal. The shard, its incarnation and its signed time stand in the batch head."""

    kind: WitnessKind
    domain: Domain
    mode: Mode
    phase: Phase
    holder: Holder
    correlation_id: Bytes16
    fence: U64
    expiry_ns: U64
    floor_ns: U64
    """What the holder must write above."""
    settle_to_ns: U64
    """Up to where the holder must settle a log before it first reads or writes it."""
    session_id: Bytes16 | None
    """The session lease that it is taken under: then ``expiry_ns`` is what that one's was, and does not count."""
    previous_id: Bytes16 | None
    """The domain's grant before this one, if this incarnation knows of one; in a shared mode it may still be out."""
    last_ended: Ending | None
    floor_set_by: Ending | None
    """The lease that set the floor, where it is not ``last_ended``."""
    others: U64
    """How many leases ended since the previous grant beside these two. Only shared modes have any."""
    others_digest: Bytes32 | None


class Ended(Record, frozen=True, tag="ended"):
    """A lease ended. In the ledger only: what a later witness says in short."""

    domain: Domain
    ending: Ending
    floor_ns: U64
    settle_to_ns: U64


def others_digest(entries: Sequence[Ended]) -> bytes | None:
    """Return the digest by which a witness names the leases that ended beside the two it describes, in order."""
    return digest("ended leases", b"".join(encode(each) for each in entries)) if entries else None


class CeilingCopy(Record, frozen=True, tag="ceiling"):
    """A copy of a ceiling record that the shard linked (the file's bytes): the chain itself is pruned."""

    record: bytes


class Stopped(Record, frozen=True, tag="stopped"):
    """The shard stopped orderly: no later entry of this incarnation exists."""

    floor_ns: U64
    settle_to_ns: U64


class Resumed(Record, frozen=True, tag="resumed"):
    """The run was stopped for a restart, and goes on: it has signed nothing since. In the ledger only."""

    since_ns: U64
    """The latest instant that it had signed."""


class Revoked(Record, frozen=True, tag="revoked"):
    """An operator ended a lease: the ``ended`` entry before says the rest. In the ledger only."""

    domain: Domain
    correlation_id: Bytes16
    by: Holder
    """Who did, and, as the purpose, why: that process's word, which nobody has signed but the shard."""


type Entry = Witness | Ended | Revoked | SessionWitness | SessionEnded | CeilingCopy | Resumed | Stopped


class Half(StrEnum):
    """How much of a lease a shard grants, by the map that it goes by."""

    WHOLE = "whole"
    """A lease that needs no other."""
    LEAVING = "leaving"
    """Half a lease, in phase *both*: the shard's chain is of the layout before."""
    COMING = "coming"
    """The other half: the shard's chain is of the layout to come. Either counts only together with the other."""

    @property
    def other(self) -> Half | None:
        """The half together with which this one counts; None: it needs none."""
        return {Half.LEAVING: Half.COMING, Half.COMING: Half.LEAVING}.get(self)


class BatchHead(Record, frozen=True):
    """What is signed, once for all entries of a turn."""

    cluster_id: Bytes16
    node: str
    map_number: U64
    """The map under which the shard's ceiling chain began."""
    shard: U64
    incarnation: Bytes8
    going_by: U64
    """The newest map that the shard knows when it signs: never lower than in the head before."""
    half: Half
    ceiling_number: U64
    """The newest ceiling record of this incarnation: nothing in the batch expires after its ceiling."""
    ceiling_ns: U64
    sequence: U64
    """1 for the first batch of an incarnation, then each next number."""
    previous: Bytes32
    """head_digest of the batch before; NO_HEAD for the first."""
    count: U64
    root: Bytes32
    time: Token
    """The shard's signed time, by the page door."""
    key_id: Bytes16

    def signed_time(self, where: str = "a witness") -> SignedTime:
        """Return the shard's signed time. Raises Damaged."""
        return SignedTime.decode(self.time, where)


def head_digest(head: bytes) -> bytes:
    """Return the digest by which the next head names this one."""
    return digest("witness batch head", head)


class SignedWitness(Record, frozen=True):
    """A witness with all that is needed to verify it: what a holder keeps and a frame carries."""

    entry: bytes
    index: U64
    path: tuple[Bytes32, ...]
    head: bytes
    signature: Bytes64

    def witness(self, where: str = "a witness") -> Witness:
        """Return the statement. Raises Damaged."""
        entry = decode_entry(self.entry, where)
        if not isinstance(entry, Witness):
            raise Damaged("record-damaged", f"{where} holds a {type(entry).__name__}, not a Witness")
        return entry

    def statement(self, where: str = "a witness") -> Witness | SessionWitness:
        """Return what it says: of a lease, or of a session lease. Raises Damaged."""
        entry = decode_entry(self.entry, where)
        if not isinstance(entry, Witness | SessionWitness):
            raise Damaged("record-damaged", f"{where} holds a {type(entry).__name__}, not a witness")
        return entry

    def batch_head(self, where: str = "a witness") -> BatchHead:
        """Return the head. Raises Damaged."""
        try:
            return _head(self.head)
        except Damaged:
            return decode(BatchHead, self.head, where)  # in words


@lru_cache(64)  # all witnesses of a batch have the same
def _head(raw: bytes) -> BatchHead:
    return decode(BatchHead, raw)


def head_refused(raw: bytes, signature: bytes, keyring: Keyring, cluster_id: bytes) -> str | None:
    """Return why a batch head is not accepted, or None. Raises Damaged. Costs two signature checks: cache by bytes."""
    head = decode(BatchHead, raw, "a witness head")
    token = head.signed_time()
    if head.cluster_id != cluster_id:
        return f"the witness is of another cluster, {head.cluster_id.hex()}"
    owner = keyring.node_of(head.key_id)
    if owner is not None and owner != head.node:
        return f"the witness says node {head.node}, its key is of {owner}"
    clock_owner = keyring.node_of(token.key_id)
    if clock_owner is not None and clock_owner != head.node:
        return f"the witness says node {head.node}, its signed time is of {clock_owner}"
    reason = keyring.refuses_signature(head.key_id, Purpose.WITNESS, token.midpoint_ns, HEAD_CONTEXT, raw, signature)
    return reason or keyring.refuses_time(token)


_ENTRY: Final[Any] = Witness | Ended | Revoked | SessionWitness | SessionEnded | CeilingCopy | Resumed | Stopped
_entry_lists: Final = msgspec.msgpack.Decoder(list[_ENTRY])
_encode: Final = msgspec.msgpack.Encoder().encode
WITNESS_HEAD: Final = array_head(len(SignedWitness.__struct_fields__))


def decode_entry(data: bytes, where: str = "a ledger entry") -> Entry:
    """Read one entry of a batch. Raises Damaged."""
    entry: Entry = decode(_ENTRY, data, where)
    return entry


class Batch(msgspec.Struct, frozen=True):
    """A signed turn: the head's bytes, its signature, each entry's bytes, in order, and the tree over them."""

    head: bytes
    signature: bytes
    entries: tuple[bytes, ...]
    levels: list[list[bytes]]

    def signed_witness(self, index: int) -> SignedWitness:
        """Return one entry with its path: made here, since nobody asks for the path of a lease's end."""
        return SignedWitness(
            entry=self.entries[index],
            index=index,
            path=path(self.levels, index),
            head=self.head,
            signature=self.signature,
        )

    @property
    def rest(self) -> bytes:
        """How each of its encoded witnesses ends."""
        return _encode(self.head) + _encode(self.signature)

    def encoded_witnesses(self) -> Callable[[int], bytes]:
        """Return a function of an index: ``encode(signed_witness(index))``, for all that a turn has granted."""
        entries = self.entries
        paths: list[bytes] = []
        rest = self.rest
        hash_bytes = len(bytes_head(DIGEST_BYTES)) + DIGEST_BYTES

        def encoded(index: int) -> bytes:
            if not paths:  # many turns end leases only, of which nobody asks for a witness
                paths.extend(joined_paths(self.levels, bytes_head(DIGEST_BYTES)))
            entry, path = entries[index], paths[index]
            return b"".join(
                (
                    WITNESS_HEAD,
                    bytes_head(len(entry)),
                    entry,
                    _encode(index),
                    array_head(len(path) // hash_bytes),
                    path,
                    rest,
                )
            )

        return encoded


def _readable(entries: Sequence[Entry | bytes]) -> tuple[bytes, ...]:
    """Return each entry's only encoding, after making sure that every decoder will take it: ``encode_for_ever``.

    Who brings one that is encoded has made sure.
    """
    raw = tuple([each if type(each) is bytes else _encode(each) for each in entries])
    made = [msgspec.Raw(data) for data, each in zip(raw, entries, strict=True) if type(each) is not bytes]
    try:
        _entry_lists.decode(_encode(made))
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise AssertionError(f"an entry that nobody could read: {problem}") from None
    return raw


def sign_batch(  # noqa: PLR0913 - the fields of the head
    entries: Sequence[Entry | bytes],
    signer: Signer,
    *,
    cluster_id: bytes,
    node: str,
    map_number: int,
    shard: int,
    incarnation: bytes,
    going_by: int,
    half: Half,
    ceiling_number: int,
    ceiling_ns: int,
    sequence: int,
    previous: bytes,
    time: SignedTime,
) -> Batch:
    """Sign a turn's entries, at least one, with one signature."""
    raw = _readable(entries)
    levels = tree(raw)
    head = encode_for_ever(
        BatchHead(
            cluster_id=cluster_id,
            node=node,
            map_number=map_number,
            shard=shard,
            incarnation=incarnation,
            going_by=going_by,
            half=half,
            ceiling_number=ceiling_number,
            ceiling_ns=ceiling_ns,
            sequence=sequence,
            previous=previous,
            count=len(raw),
            root=levels[-1][0],
            time=time.encode(),
            key_id=signer.id,
        )
    )
    return Batch(head, signer.sign(HEAD_CONTEXT, head), raw, levels)


class LedgerBlock(Record, frozen=True):
    """Head, signature and raw entries of one batch, as they were signed."""

    head: bytes
    signature: Bytes64
    entries: tuple[bytes, ...]

    def batch_head(self, where: str) -> BatchHead:
        """Return the head. Raises Damaged."""
        return decode(BatchHead, self.head, where)

    def decoded(self, where: str) -> Iterator[Entry]:
        """Yield the entries in order. Raises Damaged."""
        try:
            yield from decode_all(_ENTRY, list(self.entries), "a ledger entry")
        except Damaged:  # say which
            for index, entry in enumerate(self.entries):
                decode_entry(entry, f"{where}, entry {index}")
            raise

    def entries_match(self, head: BatchHead) -> bool:
        """Whether these are the entries that the head signs."""
        return bool(self.entries) and len(self.entries) == head.count and root(self.entries) == head.root


def block_bytes(batch: Batch) -> bytes:
    return pack(Kind.LEDGER, encode(LedgerBlock(head=batch.head, signature=batch.signature, entries=batch.entries)))


def open_block(piece: Piece, where: str) -> LedgerBlock:
    """Read a block from its piece. Raises Damaged."""
    return decode(LedgerBlock, piece.payload, where)
