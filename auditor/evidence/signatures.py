"""Signatures, each checked once; and frames and witnesses as evidence, with what their signatures are worth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from appliance.formats.framing import Frame, Piece, open_frame, pieces
from appliance.formats.merkle import KnownPaths
from appliance.formats.witness import HEAD_CONTEXT, BatchHead, Half, SessionWitness, SignedWitness, Witness, head_digest
from timeagent.canonical import decode, digest
from timeagent.errors import Damaged, NotTrusted
from timeagent.keys import Purpose, Verifier
from timeagent.signedtime import NONCE_CONTEXT, PAGE_CONTEXT, SignedTime, TimeFlags
from timeagent.trust import Keyring
from timeagent.units import Instant

from .finding import Evidence

ANSWERS_MAX: Final = 200_000
"""A bound on memory: about 60 MB."""


class EndedKey(str):
    """Why a signature that verifies is not accepted, where all that is wrong is when: the key did not count then."""

    __slots__ = ()


def refusal_code(forged: str, reason: str) -> str:
    """Return the code of a finding about a signature that is not accepted."""
    return "ended-key" if isinstance(reason, EndedKey) else forged


class PartialKeyring(Keyring):
    """The keys of some trust records, where others cannot be read: of a key that is not among them nothing is known."""


class Signatures:
    """The answers so far. May be shared by several audits: an answer depends on nothing but the bytes."""

    def __init__(self) -> None:
        self._answers: dict[tuple[bytes, bytes, bytes], bool] = {}
        self.checked = 0

    def verifies(self, key: Verifier, context: str, payload: bytes, signature: bytes) -> bool:
        """Whether the signature is this key's over the payload in this context."""
        name = (key.public, digest(context, payload), signature)
        answer = self._answers.get(name)
        if answer is None:
            if len(self._answers) >= ANSWERS_MAX:
                self._answers.clear()
            self.checked += 1
            answer = self._answers[name] = key.verifies(context, payload, signature)
        return answer

    def refuses(
        self,
        keyring: Keyring,
        identifier: bytes,
        purpose: Purpose,
        at: Instant,
        context: str,
        payload: bytes,
        signature: bytes,
    ) -> str | None:
        """Return why this signature is not accepted, or None if it is."""
        if isinstance(keyring, PartialKeyring) and keyring.node_of(identifier) is None:
            return None
        reason = keyring.refuses(identifier, purpose, at)
        if reason and not keyring.counts_ever(identifier, purpose):
            return reason
        try:
            key = keyring.verifier(identifier)
        except NotTrusted as problem:
            return problem.message
        if key is None or not self.verifies(key, context, payload, signature):
            return f"the signature by key {identifier.hex()} does not verify"
        return EndedKey(reason) if reason else None

    def refuses_time(self, keyring: Keyring, token: SignedTime, covered: bytes | None = None) -> str | None:
        """Return why this signed time is not accepted, or None if it is.

        ``covered``: the 32 bytes that it was made over, by the nonce door.
        """
        if (covered is not None) != bool(token.flags & TimeFlags.NONCE):
            return "the signed time came by the wrong door"
        if not token.status.usable:
            return f"the signed time has status {token.status.name.lower()}"
        context = PAGE_CONTEXT if covered is None else NONCE_CONTEXT
        key, at, payload = token.key_id, token.midpoint_ns, token.body() + (covered or b"")
        return self.refuses(keyring, key, Purpose.TIME, at, context, payload, token.signature)


def misattributed(keyring: Keyring | None, token: SignedTime, node: str) -> str | None:
    """Return why a signed time is not that of the node that is said to have made it, or None."""
    owner = keyring.node_of(token.key_id) if keyring else None
    return None if owner in (None, node) else f"the signed time is of node {owner}, not of {node}"


WITNESSES_KEPT: Final = 4_000
HEADS_KEPT: Final = 256
"""So many batches, each with the nodes of its tree that are known."""


@dataclass(frozen=True, slots=True)
class FrameRefusal:
    """Why a signature proves nothing, and under which code that is reported."""

    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class _Held:
    signed: SignedWitness
    head: BatchHead
    token: SignedTime
    refusal: FrameRefusal | None
    head_digest: bytes
    """What the next head names this one by."""


@dataclass(frozen=True, slots=True)
class HeldWitness(_Held):
    """A witness as a frame carries it, decoded."""

    witness: Witness

    @property
    def name(self) -> str:
        return f"lease {self.witness.correlation_id.hex()} on {self.witness.domain!r}"


@dataclass(frozen=True, slots=True)
class HeldSession(_Held):
    """The same of a session lease."""

    witness: SessionWitness

    @property
    def name(self) -> str:
        return f"session lease {self.witness.session_id.hex()}"

    @property
    def run(self) -> tuple[int, int, bytes, bytes]:
        """Which session lease of which run: the two count only together."""
        head = self.head
        return head.map_number, head.shard, head.incarnation, self.witness.session_id


@dataclass(frozen=True, slots=True)
class FrameEvidence:
    frame: Frame
    where: Evidence
    token: SignedTime
    refusal: FrameRefusal | None
    """Of the frame's own signed time."""
    witnesses: tuple[HeldWitness, ...]
    unreadable: tuple[str, ...]
    """Why some of the bytes that stand for witnesses are none."""
    sessions: tuple[HeldSession, ...] = ()
    """Witnesses of session leases."""

    @property
    def proven(self) -> bool:
        """Whether every signature holds, and is of whom the frame says."""
        return self.refusal is None and not self.unreadable and all(each.refusal is None for each in self.carried)

    @property
    def carried(self) -> tuple[HeldWitness | HeldSession, ...]:
        """The witnesses of its leases, then those of their session leases."""
        return *self.witnesses, *self.sessions

    def sessions_of(self, held: HeldWitness) -> list[HeldSession]:
        """Return the witnesses here of the session lease that a lease is under: of that run of its shard."""
        head, name = held.head, held.witness.session_id
        run = (head.map_number, head.shard, head.incarnation, name)
        return [each for each in self.sessions if each.run == run]

    def leases(self) -> Iterator[tuple[HeldWitness, bool]]:
        """Yield a witness of each lease once, and whether that counts here without a half from a later chain."""
        for held in {each.witness.correlation_id: each for each in reversed(self.witnesses)}.values():
            yield held, self.part_of(held)[1] is not Half.LEAVING

    def part_of(self, held: HeldWitness) -> tuple[int, Half]:
        """Return by which map a lease is how much of one: as its session lease says, or itself where that is newer."""
        heads = [*(each.head for each in self.sessions_of(held)[:1]), held.head]
        newest = max(heads, key=lambda head: head.going_by)
        return newest.going_by, newest.half

    def has_other_half(self, held: HeldWitness) -> bool:
        """Whether a lease that is half of one is here together with the other half."""
        going_by, half = self.part_of(held)
        whose = held.witness.domain, held.witness.holder
        return any(
            (each.witness.domain, each.witness.holder) == whose and self.part_of(each) == (going_by, half.other)
            for each in self.witnesses
        )


@dataclass(frozen=True, slots=True)
class KnownToken:
    """What a frame's signed time is worth: many frames share one."""

    token: SignedTime
    refusal: FrameRefusal | None


@dataclass(frozen=True, slots=True)
class KnownHead:
    """What a batch head is worth: all witnesses of a batch share it."""

    head: BatchHead
    token: SignedTime
    refusal: FrameRefusal | None
    digest: bytes
    paths: KnownPaths


class FrameReader:
    """Reads frames and checks what they carry. One witness is checked once, however many frames carry it."""

    def __init__(self, signatures: Signatures, cluster_id: bytes) -> None:
        self._signatures = signatures
        self._cluster_id = cluster_id
        self._known_token = lru_cache(WITNESSES_KEPT)(self._open_token)
        self._witness = lru_cache(WITNESSES_KEPT)(self._open_witness)
        self._known_head = lru_cache(HEADS_KEPT)(self._open_head)

    def frames(
        self, data: bytes, path: str, keyring: Keyring | None, begins_at: int = 0
    ) -> tuple[list[FrameEvidence], list[tuple[Evidence, str]]]:
        """Return the frames of a file, and where what should be one is none. ``begins_at``: the data in the file."""
        whole, rest = pieces(data)
        frames: list[FrameEvidence] = []
        damage: list[tuple[Evidence, str]] = []
        for piece in whole:
            try:
                frames.append(self.frame(piece, Evidence(path, begins_at), keyring))
            except Damaged as problem:
                where = Evidence(path, begins_at + piece.offset, piece.end - piece.offset)
                damage.append((where, problem.message))
        if rest:
            end = whole[-1].end if whole else 0
            damage.append(
                (Evidence(path, begins_at + end, len(data) - end), f"{path}, offset {begins_at + end}: {rest}")
            )
        return frames, damage

    def frame(self, piece: Piece, file: Evidence, keyring: Keyring | None) -> FrameEvidence:
        """Return a frame. ``file``: where the bytes begin that it is a piece of. Raises Damaged."""
        where = Evidence(file.path, file.offset + piece.offset, piece.end - piece.offset)
        frame = open_frame(piece, where.path)
        head = frame.head
        known = self.token(head.time, head.writer, keyring, where.path)
        opened = [self._witness(raw, keyring) for raw in head.witnesses]
        held = tuple(each for each in opened if isinstance(each, HeldWitness))
        unreadable = tuple(each for each in opened if isinstance(each, str))
        sessions = tuple(each for each in opened if isinstance(each, HeldSession))
        return FrameEvidence(frame, where, known.token, known.refusal, held, unreadable, sessions)

    def token(self, raw: bytes, writer: str, keyring: Keyring | None, where: str = "a frame") -> KnownToken:
        """Return what a signed time is worth in a frame of a writer. Raises Damaged."""
        try:
            return self._known_token(raw, writer, keyring)
        except Damaged:
            SignedTime.decode(raw, where)  # says where
            raise

    def _open_token(self, raw: bytes, writer: str, keyring: Keyring | None) -> KnownToken:
        token = SignedTime.decode(raw)
        reason = misattributed(keyring, token, writer)
        reason = reason or (self._signatures.refuses_time(keyring, token) if keyring else None)
        return KnownToken(token, FrameRefusal(refusal_code("forged-time", reason), reason) if reason else None)

    def _open_witness(self, raw: bytes, keyring: Keyring | None) -> HeldWitness | HeldSession | str:
        try:
            signed = decode(SignedWitness, raw, "a witness")
            witness = signed.statement()
            known = self.head(signed, keyring)
        except Damaged as problem:
            return problem.message
        refusal = known.refusal
        if not known.paths.holds(signed.entry, signed.index, signed.path):
            refusal = FrameRefusal("forged-witness", "the witness is not in the batch that its head signs")
        held = signed, known.head, known.token, refusal, known.digest
        return HeldSession(*held, witness) if isinstance(witness, SessionWitness) else HeldWitness(*held, witness)

    def head(self, signed: SignedWitness, keyring: Keyring | None) -> KnownHead:
        """Return what the batch head of a witness is worth. Raises Damaged."""
        return self._known_head(signed.head, signed.signature, keyring)

    def _open_head(self, raw: bytes, signature: bytes, keyring: Keyring | None) -> KnownHead:
        head = decode(BatchHead, raw, "a witness")
        token, refusal = head.signed_time(), None
        if keyring is not None:
            refusal = head_refusal(self._signatures, keyring, self._cluster_id, raw, head, signature)
        return KnownHead(head, token, refusal, head_digest(raw), KnownPaths(head.count, head.root))


def head_refusal(
    signatures: Signatures, keyring: Keyring, cluster_id: bytes, raw: bytes, head: BatchHead, signature: bytes
) -> FrameRefusal | None:
    """Return why a batch head proves nothing, or None. Raises Damaged for a signed time that is none."""
    token = head.signed_time()
    if head.cluster_id != cluster_id:
        return FrameRefusal("forged-witness", f"the witness is of another cluster, {head.cluster_id.hex()}")
    owner = keyring.node_of(head.key_id)
    if owner is not None and owner != head.node:
        return FrameRefusal("forged-witness", f"the witness says node {head.node}, its key is of {owner}")
    reason = signatures.refuses(keyring, head.key_id, Purpose.WITNESS, token.midpoint_ns, HEAD_CONTEXT, raw, signature)
    if reason:
        return FrameRefusal(refusal_code("forged-witness", reason), reason)
    reason = misattributed(keyring, token, head.node) or signatures.refuses_time(keyring, token)
    return FrameRefusal(refusal_code("forged-time", reason), reason) if reason else None
