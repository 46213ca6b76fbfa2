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
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from ..canonical import digest
from ..errors import Damaged
from ..keys import Signer, Verifier
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
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    kept = sorted(directory.glob(f"{prefix}{'[0-9]' * 8}{suffix}"))
    number = int(kept[-1].name.removeprefix(prefix)[:8]) + 1 if kept else 1
    path = directory / f"{prefix}{number:08d}{suffix}"
    with path.open("xb") as file:
        file.write(data)
    for old in kept[: max(0, len(kept) + 1 - files_max)]:
        with contextlib.suppress(FileNotFoundError):
            old.unlink()
    return path


class EvidenceFiles:
    """A directory of evidence."""

    def __init__(self, directory: Path) -> None:
        """Take the directory; it is made when there is something to keep."""
        self._directory = directory

    def keep(self, record: dict[str, Any]) -> None:
        """Write one file and delete the oldest beyond the limit. What fails is logged."""
        data = msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"
        try:
            keep_numbered(self._directory, "", ".json", data, FILES_MAX)
        except OSError as problem:
            _log.warning("evidence-not-kept directory=%s reason=%s", self._directory, problem.strerror)


def contradiction_record(
    outcome: SourcesContradict,
    voices: Sequence[Voice],
    boot_ns: int,
    exchanged: Mapping[str, Exchanged],
    signer: Signer,
) -> dict[str, Any]:
    """Return the record of a clock that became disrupted."""
    heard = outcome.heard.ahead if isinstance(outcome.heard, Agreed) else None
    return {
        **_head("contradiction", boot_ns, signer),
        "clock_epoch": outcome.epoch,
        "before": _ends(outcome.before, boot_ns),
        "heard": _ends(heard, boot_ns),
        "voices": _voices(voices, boot_ns, ()),
        "exchanges": _exchanges(exchanged, {voice.source for voice in voices}),
    }


def dissent_record(
    verdict: Agreed, voices: Sequence[Voice], boot_ns: int, exchanged: Mapping[str, Exchanged], signer: Signer
) -> dict[str, Any]:
    """Return the record of voices that were outvoted."""
    return {
        **_head("dissent", boot_ns, signer),
        "heard": _ends(verdict.ahead, boot_ns),
        "voices": _voices(voices, boot_ns, verdict.dissenting),
        "exchanges": _exchanges(exchanged, {voice.source for voice in voices}),
    }


def _head(kind: str, boot_ns: int, signer: Signer) -> dict[str, Any]:
    return {"schema": SCHEMA, "version": 1, "kind": kind, "boot_ns": boot_ns, "own_key_id": signer.id.hex()}


def _ends(ahead: TimeInterval | None, boot_ns: int) -> dict[str, int] | None:
    if ahead is None:
        return None
    return {"earliest_ns": boot_ns + ahead.earliest, "latest_ns": boot_ns + ahead.latest}


def _voices(voices: Sequence[Voice], boot_ns: int, dissenting: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {
            "source": voice.source,
            "weight": voice.weight.value,
            **(_ends(voice.ahead, boot_ns) or {}),
            "dissents": voice.source in dissenting,
        }
        for voice in voices
    ]


def _exchanges(exchanged: Mapping[str, Exchanged], sources: set[str]) -> list[dict[str, str]]:
    return [
        {"peer": name, **{part: value.hex() for part, value in asdict(each).items()}}
        for name, each in exchanged.items()
        if name in sources
    ]


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
        after = SignedTime.decode(exchange.after, "the own signed time afterwards")
        if not after.verified_by(own, digest(AFTER_CONTEXT, exchange.answer)):
            raise Damaged(
                "evidence-unsigned", "the own signed time afterwards is not signed by its key over the answer"
            )
        if not r2_holds(answer, after, effect_covers_cause=True):
            proven.append("the own signed time covers the peer's answer and lies wholly before it")
    return proven
