"""Rules about signatures: who said it, and whether those are the bytes that were signed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from appliance.formats.framing import Kind
from appliance.formats.stamped import CONTEXTS, body_digest
from auditor.finding import NamedInterval
from auditor.frames import HeldSession
from auditor.verification import EndedKey, misattributed, refusal_code
from timeagent.errors import Damaged
from timeagent.signedtime import SignedTime, TimeFlags
from timeagent.trust import Purpose

from .registry import found

if TYPE_CHECKING:
    from collections.abc import Iterator

    from appliance.formats.ceiling import CeilingRecord
    from appliance.formats.stamped import Signed, Stamped
    from auditor.finding import Evidence, Finding
    from auditor.frames import FrameEvidence, HeldWitness
    from auditor.verification import Signatures
    from timeagent.trust import Keyring


STAMPED: Final = {Kind.BIRTH: "a log's birth record", Kind.LOCK: "a lock file", Kind.SEAL: "a seal"}


def stamp_findings(
    signatures: Signatures, keyring: Keyring | None, kind: Kind, stamped: Stamped, node: str, where: Evidence
) -> tuple[SignedTime | None, list[Finding]]:
    """forged-time and ended-key: the stamp of a birth, a lock file or a seal. Returns the signed time if it holds."""
    try:
        token = stamped.signed_time(where.path)
    except Damaged as problem:
        title = f"the signed time of {STAMPED[kind]} is none"
        return None, [found("forged-time", where.path, problem.message, [where], title=title)]
    reason = None if token.flags & TimeFlags.NONCE else "the signed time came by the wrong door"
    if keyring is not None and reason is None:
        reason = misattributed(keyring, token, node)
        reason = reason or signatures.refuses_time(keyring, token, body_digest(kind, stamped.body))
    if reason is None:
        return token, []
    times = [NamedInterval.of("the stamp", token)]
    code = refusal_code("forged-time", reason)
    title = title_of(code, STAMPED[kind], f"the signed time of {STAMPED[kind]} does not verify")
    return None, [found(code, where.path, f"its stamp is refused: {reason}", [where], times, title=title)]


def title_of(code: str, what: str, forged: str = "") -> str:
    """Return the title of a finding about what is refused, where ``forged`` is that of what is nobody's."""
    return f"{what} is signed by a key that did not count then" if code == "ended-key" else forged


def of_unknown_key(keyring: Keyring, stamped: Stamped) -> bool:
    """Whether a stamp names a key that is not in these trust records."""
    try:
        return keyring.node_of(stamped.signed_time("a stamp").key_id) is None
    except Damaged:
        return False


def ceiling_findings(
    signatures: Signatures, keyring: Keyring | None, record: CeilingRecord, signed: Signed, where: Evidence
) -> Iterator[Finding]:
    """forged-record, forged-time and ended-key: a ceiling record, signed by its node's witness key."""
    try:
        token = SignedTime.decode(record.time, where.path)
    except Damaged as problem:
        yield found(
            "forged-time", where.path, problem.message, [where], title="the signed time of a ceiling record is none"
        )
        return
    if keyring is None:
        return
    owner = keyring.node_of(signed.key_id)
    reason = signatures.refuses(
        keyring,
        signed.key_id,
        Purpose.WITNESS,
        token.midpoint_ns,
        CONTEXTS[Kind.CEILING],
        signed.body,
        signed.signature,
    )
    if owner not in (None, record.node) and (reason is None or isinstance(reason, EndedKey)):
        reason = f"it says node {record.node}, its key is of {owner}"
    if reason:
        code = refusal_code("forged-record", reason)
        title = title_of(code, "a ceiling record", "the signature of a ceiling record does not verify")
        yield found(code, where.path, reason, [where], title=title)
        return
    reason = misattributed(keyring, token, record.node) or signatures.refuses_time(keyring, token)
    if reason:
        code = refusal_code("forged-time", reason)
        title = title_of(code, "a ceiling record", "the signed time of a ceiling record does not verify")
        yield found(code, where.path, reason, [where], title=title)


def frame_findings(evidence: FrameEvidence) -> Iterator[Finding]:
    """forged-witness, forged-time and ended-key: what a frame carries. Readers drop such a frame whole."""
    path = evidence.where.path
    if evidence.refusal:
        times = [NamedInterval.of("the frame", evidence.token)]
        reason = f"the frame's signed time is refused: {evidence.refusal.reason}"
        title = title_of(evidence.refusal.code, "a frame", "the signed time of a frame is refused")
        yield found(evidence.refusal.code, path, reason, [evidence.where], times, title=title)
    for reason in evidence.unreadable:
        yield found("forged-witness", path, f"the frame carries a witness that is none: {reason}", [evidence.where])
    all_held: list[HeldWitness | HeldSession] = [*evidence.witnesses, *evidence.sessions]
    for held in all_held:
        refusal = held.refusal
        if refusal is None:
            continue
        times = [NamedInterval.of("the witness", held.token)]
        lease = f"session lease {held.witness.session_id.hex()}" if isinstance(held, HeldSession) else _lease(held)
        reason = f"{path} carries a witness of {lease} that is refused: {refusal.reason}"
        forged = "the signed time of a witness is refused" if refusal.code == "forged-time" else ""
        title = title_of(refusal.code, "a witness", forged)
        yield found(refusal.code, f"{path} under {lease}", reason, [evidence.where], times, title=title)


def _lease(held: HeldWitness) -> str:
    return f"lease {held.witness.correlation_id.hex()} on {held.witness.domain!r}"
