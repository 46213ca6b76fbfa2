"""``tenure time evidence FILE --key FILE ...``: what the signatures in an agent's evidence prove, offline.

Exit codes: 0 they prove nothing; 1 they prove that one of two clocks was wrong; 3 a key that is needed was not named;
65 it is no evidence, or a signature in it is bad.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import msgspec

from .console import print_json, say
from .errors import Damaged, Environment
from .evidence import SCHEMA, Exchanged, judge_exchange
from .keys import Verifier, parse_public_line
from .signedtime import SignedTime

_FILE_BYTES_MAX = 1 << 20
_WAY_OUT = "name a file of the agent's evidence directory, as it was written"


class _Exchange(msgspec.Struct):
    peer: str
    own: str
    chance: str
    answer: str
    after: str

    def parts(self) -> Exchanged:
        return Exchanged(*(bytes.fromhex(each) for each in (self.own, self.chance, self.answer, self.after)))


class _Record(msgspec.Struct, rename={"schema_name": "schema"}):
    schema_name: str
    kind: str
    own_key_id: str
    exchanges: list[_Exchange]


def add_evidence_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the verb takes."""
    parser.add_argument("file", metavar="FILE", help="a file of the agent's evidence directory")
    parser.add_argument(
        "--key", metavar="FILE", action="append", default=[], help="a node's public time key, one line; once per node"
    )


def judge_evidence(options: argparse.Namespace) -> int:
    """Judge one file. Raises Damaged, Environment, BadConfiguration."""
    record = _opened(_read(options.file), options.file)
    keys = {key.id: key for key in (Verifier(_public(each)) for each in options.key)}
    shown: list[dict[str, Any]] = []
    for each in record.exchanges:
        try:
            parts = each.parts()
        except ValueError:
            what = f"{options.file}: the exchange with {each.peer} is not in hex"
            raise Damaged("evidence-damaged", what, hint=_WAY_OUT) from None
        own = keys.get(bytes.fromhex(record.own_key_id))
        peer = keys.get(SignedTime.decode(parts.answer, options.file).key_id)
        proven = judge_exchange(parts, own, peer) if own and peer else None
        shown.append({"peer": each.peer, "proven": proven})
    if options.json:
        print_json("tenure.time.evidence.verdict", {"kind": record.kind, "exchanges": shown})
    for each_shown in [] if options.json else shown:
        proven = each_shown["proven"]
        what = "not checked: name both public time keys with --key" if proven is None else "; ".join(proven)
        say(f"{each_shown['peer']}: {what or 'both clocks can have been right'}")
    if any(each_shown["proven"] for each_shown in shown):
        return 1
    return 3 if any(each_shown["proven"] is None for each_shown in shown) else 0


def _opened(data: bytes, where: str) -> _Record:
    try:
        record = msgspec.json.decode(data, type=_Record)
        bytes.fromhex(record.own_key_id)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as problem:
        what = f"{where} is no evidence of a time agent: {problem}"
        raise Damaged("evidence-damaged", what, hint=_WAY_OUT) from None
    if record.schema_name != SCHEMA:
        what = f"{where} has the schema {record.schema_name!r}, not {SCHEMA!r}"
        raise Damaged("evidence-damaged", what, hint=_WAY_OUT)
    return record


def _public(file: str) -> bytes:
    return parse_public_line(_read(file)[:4096].decode("ascii", "replace").strip(), file)


def _read(file: str) -> bytes:
    try:
        with Path(file).open("rb") as opened:
            return opened.read(_FILE_BYTES_MAX)
    except OSError as problem:
        raise Environment("unreadable", f"cannot read {file}: {problem.strerror}", hint="check the path") from None
