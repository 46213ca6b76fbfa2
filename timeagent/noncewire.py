"""What is said at the agent's doors: one datagram asks, one answers. Pure; laid out in docs/protocol/time.md.

A question has 256 bytes, more than any answer that a stranger can get: nobody is flooded in another's name.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from .canonical import DIGEST_BYTES, digest
from .errors import BadTime, Damaged
from .signedtime import TOKEN_BYTES, SignedTime

QUESTION_BYTES: Final = 256
PEER_CONTEXT: Final = "peer exchange"

_QUESTION_MAGIC: Final = b"TNTQ"
_ANSWER_MAGIC: Final = b"TNTA"
_VERSION: Final = 1
_QUESTION: Final = struct.Struct(">4sBB2x8s32s")
_ANSWER: Final = struct.Struct(">4sBBH8s")
_REFUSED: Final = 1
_REASON_BYTES_MAX: Final = 200


class NonceKind(IntEnum):
    """What is asked for."""

    SIGN = 1
    """A signed time over the 32 bytes. By the Unix socket only."""
    PEER = 2
    """A signed time over ``peer_digest`` of the 32 bytes, of what this node's own sources say."""
    REPORT = 3
    """What each source says, as JSON. By the Unix socket only."""


@dataclass(frozen=True, slots=True)
class NonceQuestion:
    """One question; the name is echoed, so that an answer to another one is not mistaken for this one's."""

    kind: NonceKind
    name: bytes
    nonce: bytes


def peer_digest(nonce: bytes) -> bytes:
    """Return what a peer signs: no stranger can have it sign the digest of a lock file."""
    return digest(PEER_CONTEXT, nonce)


def encode_question(question: NonceQuestion) -> bytes:
    """Return the 256 bytes."""
    assert len(question.name) == 8  # noqa: PLR2004 - bytes on the wire
    assert len(question.nonce) == DIGEST_BYTES
    head = _QUESTION.pack(_QUESTION_MAGIC, _VERSION, question.kind, question.name, question.nonce)
    return head.ljust(QUESTION_BYTES, b"\0")


def decode_question(data: bytes) -> NonceQuestion | None:
    """Read a question; None for whatever else arrives at a door."""
    if len(data) != QUESTION_BYTES:
        return None
    magic, version, kind, name, nonce = _QUESTION.unpack_from(data)
    if magic != _QUESTION_MAGIC or version != _VERSION or kind not in tuple(NonceKind):
        return None
    question = NonceQuestion(NonceKind(kind), name, nonce)
    return question if encode_question(question) == data else None


def encode_answer(question: NonceQuestion, content: bytes) -> bytes:
    """Return the answer with what was asked for."""
    return _ANSWER.pack(_ANSWER_MAGIC, _VERSION, question.kind, 0, question.name) + content


def encode_refusal(question: NonceQuestion, problem: BadTime) -> bytes:
    """Return the answer that says why there is nothing: the code, a newline, the message, shortened."""
    reason = f"{problem.code}\n{problem.message}".encode()[:_REASON_BYTES_MAX]
    return _ANSWER.pack(_ANSWER_MAGIC, _VERSION, question.kind, _REFUSED, question.name) + reason


def answers(question: NonceQuestion, data: bytes) -> bool:
    """Whether this is an answer to the question."""
    if len(data) < _ANSWER.size:
        return False
    magic, version, kind, _, name = _ANSWER.unpack_from(data)
    return (magic, version, kind, name) == (_ANSWER_MAGIC, _VERSION, question.kind, question.name)


def content_of(question: NonceQuestion, data: bytes, where: str) -> bytes:
    """Return what was asked for. Raises BadTime: refused, with the agent's own code, or no answer to this at all."""
    if not answers(question, data):
        raise BadTime("door-garbled", f"{where} answers with what is no answer", hint="what else listens there?")
    refused = _ANSWER.unpack_from(data)[3]
    content = data[_ANSWER.size :]
    if not refused:
        return content
    code, _, message = content.decode("utf-8", "replace").partition("\n")
    plain = "".join(each if each.isprintable() else "?" for each in message)
    known = code if code.replace("-", "").isalnum() and code.isascii() else "door-refused"
    raise BadTime(known, f"{where} refuses: {plain}", hint="tenure time sources, on that machine")


def token_of(question: NonceQuestion, data: bytes, where: str) -> SignedTime:
    """Return the signed time of an answer. Raises BadTime: refused, or damaged. The signature is not checked here."""
    content = content_of(question, data, where)
    if len(content) != TOKEN_BYTES:
        raise BadTime("door-garbled", f"{where} answers with {len(content)} bytes", hint="run both from one version")
    try:
        return SignedTime.decode(content, where)
    except Damaged as problem:
        raise BadTime("door-garbled", problem.message, hint="run both from one version") from None
