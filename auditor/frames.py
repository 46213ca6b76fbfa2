"""Frames and witnesses as evidence: decoded, with what their signatures are worth and where they stand in the tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from appliance.formats.frame import open_frame
from appliance.formats.framing import Piece, pieces
from appliance.formats.merkle import root_of_path
from appliance.formats.witness import HEAD_CONTEXT, SignedWitness
from timeagent.canonical import decode
from timeagent.errors import Damaged
from timeagent.trust import Purpose

from .finding import Evidence
from .verification import misattributed

if TYPE_CHECKING:
    from appliance.formats.frame import Frame
    from appliance.formats.witness import BatchHead, Witness
    from timeagent.signedtime import SignedTime
    from timeagent.trust import Keyring

    from .verification import Signatures

WITNESSES_KEPT: Final = 20_000


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a signature proves nothing, and under which code that is reported."""

    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class HeldWitness:
    """A witness as a frame carries it, decoded."""

    signed: SignedWitness
    witness: Witness
    head: BatchHead
    token: SignedTime
    refusal: Refusal | None
    stranger: str | None
    """Why the signed time is not that of the shard's node, though it verifies. Readers do not ask."""


@dataclass(frozen=True, slots=True)
class FrameEvidence:
    """A frame in the tree."""

    frame: Frame
    where: Evidence
    token: SignedTime
    refusal: Refusal | None
    """Of the frame's own signed time."""
    stranger: str | None
    """Why the signed time is not the writer's own, though it verifies. Readers do not ask."""
    witnesses: tuple[HeldWitness, ...]
    unreadable: tuple[str, ...]
    """Why some of the bytes that stand for witnesses are none."""

    @property
    def proven(self) -> bool:
        """Whether every signature that readers ask for holds."""
        return self.refusal is None and not self.unreadable and all(w.refusal is None for w in self.witnesses)


class FrameReader:
    """Reads frames and checks what they carry. One witness is checked once, however many frames carry it."""

    def __init__(self, signatures: Signatures, cluster_id: bytes) -> None:
        """Take the answers so far."""
        self._signatures = signatures
        self._cluster_id = cluster_id
        self._witnesses: dict[tuple[int, bytes], HeldWitness | str] = {}

    def frames(
        self, data: bytes, path: str, keyring: Keyring | None, begins_at: int = 0
    ) -> tuple[list[FrameEvidence], list[tuple[Evidence, str]]]:
        """Return the frames of a file, and where what should be one is none. ``begins_at``: the data in the file."""
        whole, rest = pieces(data)
        frames: list[FrameEvidence] = []
        damage: list[tuple[Evidence, str]] = []
        for piece in whole:
            where = Evidence(path, begins_at + piece.offset, piece.end - piece.offset)
            try:
                frames.append(self._frame(piece, where, keyring))
            except Damaged as problem:
                damage.append((where, problem.message))
        if rest:
            end = whole[-1].end if whole else 0
            damage.append(
                (Evidence(path, begins_at + end, len(data) - end), f"{path}, offset {begins_at + end}: {rest}")
            )
        return frames, damage

    def _frame(self, piece: Piece, where: Evidence, keyring: Keyring | None) -> FrameEvidence:
        frame = open_frame(piece, where.path)
        token = frame.head.signed_time(where.path)
        reason = self._signatures.refuses_time(keyring, token) if keyring else None
        stranger = misattributed(keyring, token, frame.head.writer)
        held: list[HeldWitness] = []
        unreadable: list[str] = []
        for raw in frame.head.witnesses:
            witness = self._witness(raw, keyring)
            if isinstance(witness, str):
                unreadable.append(witness)
            else:
                held.append(witness)
        refusal = Refusal("forged-time", reason) if reason else None
        return FrameEvidence(frame, where, token, refusal, stranger, tuple(held), tuple(unreadable))

    def _witness(self, raw: bytes, keyring: Keyring | None) -> HeldWitness | str:
        name = (id(keyring), raw)
        known = self._witnesses.get(name)
        if known is None:
            if len(self._witnesses) >= WITNESSES_KEPT:
                self._witnesses.clear()
            known = self._witnesses[name] = self._open_witness(raw, keyring)
        return known

    def _open_witness(self, raw: bytes, keyring: Keyring | None) -> HeldWitness | str:
        try:
            signed = decode(SignedWitness, raw, "a witness")
            witness, head = signed.witness(), signed.batch_head()
            token = head.signed_time()
        except Damaged as problem:
            return problem.message
        refusal = None
        if root_of_path(signed.entry, signed.index, head.count, signed.path) != head.root:
            refusal = Refusal("forged-witness", "the witness is not in the batch that its head signs")
        elif keyring is not None:
            refusal = head_refusal(self._signatures, keyring, self._cluster_id, signed.head, head, signed.signature)
        return HeldWitness(signed, witness, head, token, refusal, misattributed(keyring, token, head.node))


def head_refusal(
    signatures: Signatures, keyring: Keyring, cluster_id: bytes, raw: bytes, head: BatchHead, signature: bytes
) -> Refusal | None:
    """Return why a batch head proves nothing, or None. Raises Damaged for a signed time that is none."""
    token = head.signed_time()
    if head.cluster_id != cluster_id:
        return Refusal("forged-witness", f"the witness is of another cluster, {head.cluster_id.hex()}")
    owner = keyring.node_of(head.key_id)
    if owner is not None and owner != head.node:
        return Refusal("forged-witness", f"the witness says node {head.node}, its key is of {owner}")
    reason = signatures.refuses(keyring, head.key_id, Purpose.WITNESS, token.midpoint_ns, HEAD_CONTEXT, raw, signature)
    if reason:
        return Refusal("forged-witness", reason)
    reason = signatures.refuses_time(keyring, token)
    return Refusal("forged-time", reason) if reason else None
