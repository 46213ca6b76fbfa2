"""Who signed what a finding rests on, where the copy lacks trust records: a key of nobody proves nothing.

Of a key that no record has, where one is missing, nothing is known. What it signed is taken as it stands, since it may
be good; but anybody can make such a key, and so it accuses nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Final

from appliance.formats.chains import CeilingRecord
from appliance.formats.framing import Kind, Piece, pieces
from appliance.formats.stamped import Signed, Stamped
from appliance.formats.witness import open_block
from timeagent.canonical import decode
from timeagent.errors import Damaged
from timeagent.signedtime import SignedTime
from timeagent.trust import Keyring

from .finding import FORGED, Evidence, Finding, Severity, Verdict
from .signatures import FrameReader, Signatures
from .tree import Tree

_STAMPED: Final = frozenset({Kind.BIRTH, Kind.LOCK, Kind.SEAL})


def doubted(findings: Iterable[Finding], tree: Tree, keys: Keyring | None) -> Iterator[Finding]:
    """Yield the findings; a violation is indeterminate where a key that signed of it is not among ``keys``.

    Asked where trust records are missing. Reads the evidence once more.
    """
    reader = FrameReader(Signatures(), b"")
    for each in findings:
        strange = None
        # What is damaged, or signed by nobody, is so whoever else signed.
        is_damage = each.code.startswith("damaged-") or each.code in FORGED
        if each.verdict is Verdict.VIOLATION and not is_damage:
            raw = (tree.read_range(place.path, place.offset, place.length) or b"" for place in each.evidence)
            known = (key for data in raw for key in _signers(data, reader))
            strange = next((key for key in known if keys is None or keys.node_of(key) is None), None)
        yield each if strange is None else _doubted(each, strange)


def _doubted(finding: Finding, key: bytes) -> Finding:
    words = f"{finding.explanation}; key {key.hex()}, which signed of it, is in no trust record of the copy"
    return replace(finding, verdict=Verdict.INDETERMINATE, severity=Severity.WARNING, explanation=words)


def _signers(data: bytes, reader: FrameReader) -> Iterator[bytes]:
    """Yield the keys that signed the pieces in some bytes, and what these carry. What is damaged is passed over."""
    for piece in pieces(data)[0]:
        with suppress(Damaged):
            yield from _signers_of(piece, reader)


def _signers_of(piece: Piece, reader: FrameReader) -> Iterator[bytes]:
    if piece.kind is Kind.FRAME:
        frame = reader.frame(piece, Evidence(""), None)
        yield frame.token.key_id
        for held in frame.carried:
            yield from (held.head.key_id, held.token.key_id)
    elif piece.kind is Kind.LEDGER:
        head = open_block(piece, "").batch_head("")
        yield from (head.key_id, head.signed_time().key_id)
    elif piece.kind in _STAMPED:
        yield decode(Stamped, piece.payload, "").signed_time("").key_id
    elif piece.kind is Kind.CEILING:
        signed = decode(Signed, piece.payload, "")
        yield from (signed.key_id, SignedTime.decode(decode(CeilingRecord, signed.body, "").time).key_id)
