"""Evidence of clocks that contradict each other: what was said, by whom, and the signatures, one JSON file each.

Kept on the node's own disk, a bounded number, the oldest deleted first. Where a peer is part of it, the exchange is in
it: what this node's own sources said before it asked (covered by the nonce), what the peer's said, over the nonce, and
what this node's said afterwards, over the peer's answer, if that contradicts the answer. By R2 nobody can have signed
wholly before what its bytes contain: if one of the two edges breaks it, one of the two clocks was wrong, and the
signatures are the proof, for whoever has the public keys.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from ..canonical import digest
from ..errors import Damaged
from ..keys import Signer, Verifier, make_private
from ..signedtime import SignedTime, r2_holds
from ..sources.nonce import Exchanged, nonce_over, peer_digest
from ..units import TimeInterval
from .discipline import Agreed, SourcesContradict, Voice

SCHEMA: Final = "tenure.time.evidence"
FILES_MAX: Final = 256
BEFORE_CONTEXT: Final = "peer question"
"""What this node's signed time before it asks covers: ``digest(BEFORE_CONTEXT, chance)``."""
AFTER_CONTEXT: Final = "peer answer"
"""What this node's signed time after a peer's answer covers: ``digest(AFTER_CONTEXT, answer)``."""

_log = logging.getLogger(__name__)


class EvidenceSink(Protocol):
    """Where evidence is kept."""

    def keep(self, record: dict[str, Any]) -> None:
        """Keep one record. Never raises: time goes on without it."""


def keep_numbered(directory: Path, prefix: str, suffix: str, data: bytes, files_max: int) -> Path:
    """Write the next file of a kind, and delete the oldest beyond the limit. Makes the directory. Raises OSError."""
    make_private(directory)
    kept = sorted(directory.glob(f"{prefix}{'[0-9]' * 8}{suffix}"))
    number = int(kept[-1].name.removeprefix(prefix)[:8]) + 1 if kept else 1
    path = directory / f"{prefix}{number:08d}{suffix}"
    with path.open("xb") as file:
        try:
            file.write(data)
            file.flush()
        except OSError:
            path.unlink(missing_ok=True)  # half of it
            raise
    for old in kept[: max(0, len(kept) + 1 - files_max)]:
        with contextlib.suppress(FileNotFoundError):
            old.unlink()
    return path


@dataclass(frozen=True)
class EvidenceFiles:
    """A directory of evidence, made when there is something to keep."""

    _directory: Path

    def keep(self, record: dict[str, Any]) -> None:
        """Write one file and delete the oldest beyond the limit. What fails is logged."""
        data = msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"
        try:
            keep_numbered(self._directory, "", ".json", data, FILES_MAX)
        except OSError as problem:
            _log.warning("evidence-not-kept directory=%s reason=%s", self._directory, problem.strerror)


def evidence_record(
    found: SourcesContradict | Agreed,
    voices: Sequence[Voice],
    boot_ns: int,
    exchanged: Mapping[str, Exchanged],
    signer: Signer,
) -> dict[str, Any]:
    """Return the record of a clock that became disrupted, or of voices that were outvoted."""

    def ends(ahead: TimeInterval) -> dict[str, int]:
        return {"earliest_ns": boot_ns + ahead.earliest, "latest_ns": boot_ns + ahead.latest}

    record: dict[str, Any] = {"schema": SCHEMA, "version": 1, "kind": "dissent", "boot_ns": boot_ns}
    record["own_key_id"] = signer.id.hex()
    heard, dissenting = (found, found.dissenting) if isinstance(found, Agreed) else (found.heard, ())
    if isinstance(found, SourcesContradict):
        before = None if found.before is None else ends(found.before)
        record |= {"kind": "contradiction", "clock_epoch": found.epoch, "before": before}
    record["heard"] = ends(heard.ahead) if isinstance(heard, Agreed) else None
    record["voices"] = [
        {"source": each.source, "weight": each.weight.value, **ends(each.ahead), "dissents": each.source in dissenting}
        for each in voices
    ]
    record["exchanges"] = [
        {"peer": each.source, **{part: value.hex() for part, value in asdict(exchanged[each.source]).items()}}
        for each in voices
        if each.source in exchanged
    ]
    return record


def judge_exchange(exchange: Exchanged, own: Verifier, peer: Verifier) -> list[str]:
    """Return what the signatures of an exchange prove, in words: nothing if both clocks can have been right.

    Raises Damaged for a signed time that is none, or that its key did not sign over these bytes.
    """
    answer = SignedTime.decode(exchange.answer, "the peer's answer")
    if not answer.verified_by(peer, peer_digest(nonce_over(exchange.own, exchange.chance))):
        raise Damaged("evidence-unsigned", "the peer's answer is not signed by its key over this nonce")
    proven = []
    if exchange.own:
        before = SignedTime.decode(exchange.own, "the own signed time")
        if not before.verified_by(own, digest(BEFORE_CONTEXT, exchange.chance)):
            raise Damaged("evidence-unsigned", "the own signed time is not signed by its key")
        if not r2_holds(before, answer, effect_covers_cause=True):
            proven.append("the peer's answer covers a signed time that it lies wholly before")
    if exchange.after:
        where = "the own signed time afterwards"
        after = SignedTime.decode(exchange.after, where)
        if not after.verified_by(own, digest(AFTER_CONTEXT, exchange.answer)):
            raise Damaged("evidence-unsigned", f"{where} is not signed by its key over the answer")
        if not r2_holds(answer, after, effect_covers_cause=True):
            proven.append("the own signed time covers the peer's answer and lies wholly before it")
    return proven
