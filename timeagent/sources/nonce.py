"""Signed times over a nonce: the datagrams (docs/protocol/time.md), the agent's two doors, and a client of one.

A question has 256 bytes, more than any answer that a stranger can get: nobody is flooded in another's name. A door
answers what is a question and ignores what is not: no datagram, however malformed, ends it.

The source *peer* is another node's agent, asked for a signed time over a nonce; good to its radius and the round trip.
A peer answers with what its own sources say, never with what its peers say: no word comes back to whom it is from, and
each peer is one voice. A machine that was paused with all its clocks cannot tell by itself; its peers' answers can.

The nonce covers a signed time of what this node's own sources say, and this node then signs over the answer: whichever
of the two clocks is wrong, the three signatures show by rule R2 that one of them is (timeagent/agent/evidence.py).

What is refused, by name: ``peer-key`` (not that node's trusted key, or a bad signature), ``peer-self`` (this node),
``peer-assumed`` (a stated radius measures nothing), ``no-answer``, ``door-garbled``, and what the peer itself refuses
with.
"""

from __future__ import annotations

import itertools
import random
import socket
import stat
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final, Protocol

from ..canonical import DIGEST_BYTES, digest
from ..clock import MachineClock
from ..errors import BadTime, Damaged, Environment
from ..signedtime import TOKEN_BYTES, SignedTime, TimeFlags
from ..units import MS, SECOND, Span
from .port import DatagramDoor, Exchange, Sample, first_wanted, offset_between

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
    return _ANSWER.pack(_ANSWER_MAGIC, _VERSION, question.kind, 0, question.name) + content


def encode_refusal(question: NonceQuestion, problem: BadTime) -> bytes:
    """Return the answer that says why there is nothing: the code, a newline, the message, shortened."""
    reason = f"{problem.code}\n{problem.message}".encode(errors="backslashreplace")[:_REASON_BYTES_MAX]
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


DOOR_NAME: Final = "time.sock"
TIMEOUT_NS: Final[Span] = SECOND
"""An agent answers within a millisecond; one that does not stands still, and its page is stale by then."""


class Signing(Protocol):
    """What stands behind a door."""

    def sign_over(self, digest: bytes) -> SignedTime:
        """Return a signed time over 32 bytes, made now. Raises BadTime."""

    def sign_for_peer(self, digest: bytes) -> SignedTime:
        """The same, of what this node's own sources say: no peer's word comes back to it. Raises BadTime."""

    def report(self) -> bytes:
        """Return what each source says, as JSON."""


def answer(signing: Signing, data: bytes, *, local_door: bool) -> bytes | None:
    """Return the answer to a datagram, or None for what is not answered. Never raises for what a stranger sends."""
    question = decode_question(data)
    if question is None or (question.kind is not NonceKind.PEER and not local_door):
        return None
    try:
        match question.kind:
            case NonceKind.SIGN:
                content = signing.sign_over(question.nonce).encode()
            case NonceKind.PEER:
                content = signing.sign_for_peer(peer_digest(question.nonce)).encode()
            case NonceKind.REPORT:
                content = signing.report()
    except BadTime as problem:
        return encode_refusal(question, problem)
    return encode_answer(question, content)


def nonce_door(bound: socket.socket, signing: Signing, *, local_door: bool) -> DatagramDoor:
    """Return a door of the agent: that of its own machine, which answers everything, or that for peers."""

    def answers_to(asked: Sequence[bytes]) -> list[bytes | None]:
        return [answer(signing, data, local_door=local_door) for data in asked]

    return DatagramDoor(bound, answers_to, bytes_max=QUESTION_BYTES)


def bind_unix(directory: Path) -> socket.socket:
    """Return the bound door of this machine. What another run left is replaced: the caller holds the node's lock."""
    path = directory / DOOR_NAME
    door = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        path.unlink(missing_ok=True)
        door.bind(str(path))
        # Who was let into the directory may ask, by the `group` of node.toml; where all may enter, this user alone.
        path.chmod(0o700 if directory.stat().st_mode & stat.S_IXOTH else 0o666)
    except OSError as problem:
        door.close()
        raise Environment(
            "door-unbound", f"cannot bind {path}: {problem.strerror or problem}", hint="check its directory"
        ) from None
    return door


class NonceClient:
    """Asks the agent of this machine. Thread-safe, and the same in a child after fork: each question has its socket."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / DOOR_NAME
        self._asked = itertools.count(1)

    def sign(self, digest: bytes) -> SignedTime:
        """Return a signed time over 32 bytes. Blocks for the answer. Raises BadTime."""
        return token_of(*self._asked_of(NonceKind.SIGN, digest), "the time agent")

    def report(self) -> bytes:
        """Return what each source says, as JSON. Blocks for the answer. Raises BadTime."""
        return content_of(*self._asked_of(NonceKind.REPORT, bytes(32)), "the time agent")

    def _asked_of(self, kind: NonceKind, nonce: bytes) -> tuple[NonceQuestion, bytes]:
        question = NonceQuestion(kind, next(self._asked).to_bytes(8, "big"), nonce)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as door:
                door.settimeout(TIMEOUT_NS / SECOND)
                door.connect(str(self._path))  # first: who is not at that path cannot send to what is connected to it
                door.bind("")  # an abstract name that the kernel chooses: the answer needs an address
                door.send(encode_question(question))
                return question, first_wanted(door, lambda data: answers(question, data))
        except TimeoutError:
            pass
        except OSError as problem:
            raise BadTime(
                "door-absent",
                f"the time agent cannot be asked at {self._path}: {problem.strerror or problem}",
                hint="does it run? tenure time run",
            ) from None
        raise BadTime(
            "door-silent",
            f"the time agent does not answer at {self._path}",
            hint="does it stand still, or get no processor time (docs/operators.md)? Else kill -9, and start it again",
        )


# ---- the source ----

PEER_TIMEOUT_NS: Final[Span] = 500 * MS
_PEER_NONCE_CONTEXT: Final = "peer nonce"

type Refusing = Callable[[SignedTime, bytes], str | None]
"""Why a signed time over a digest is not accepted as this peer's, or None."""


@dataclass(frozen=True, slots=True)
class Exchanged:
    """One exchange with a peer, as evidence: the nonce is ``nonce_over(own, chance)``."""

    own: bytes
    """What this node's own sources said before it asked, signed over ``chance``, encoded; or nothing."""
    chance: bytes
    answer: bytes
    after: bytes = b""
    """What they said afterwards, signed over the answer, where that contradicts it."""


def nonce_over(own: bytes, chance: bytes) -> bytes:
    """Return the nonce that covers this node's own signed time."""
    return digest(_PEER_NONCE_CONTEXT, own + chance)


class PeerSource:
    """Another node's agent."""

    def __init__(
        self,
        machine: MachineClock,
        node: str,
        exchange: Exchange,
        refuses: Refusing,
        chance: random.Random,
        *,
        own_word: Callable[[bytes], bytes] = lambda _: b"",
    ) -> None:
        """Take the way to the peer, and who judges its signatures: the trust record's keys of that node.

        ``own_word``: what this node's own sources say, signed over 32 bytes and encoded; nothing if they are silent.
        """
        self.name = f"peer {node}"
        self._machine = machine
        self._exchange = exchange
        self._refuses = refuses
        self._chance = chance
        self._own_word = own_word
        self.asked: Exchanged | None = None
        """The exchange behind the newest sample."""

    def sample(self) -> Sample:
        """Ask once. Blocks at most for the exchange's time-out. Raises BadTime."""
        self.asked = None
        chance = self._chance.randbytes(DIGEST_BYTES)
        own = self._own_word(chance)
        nonce = nonce_over(own, chance)
        question = NonceQuestion(NonceKind.PEER, chance[:8], nonce)
        boot_ns = self._machine.boot_ns()
        before = self._machine.realtime_ns()
        data = self._exchange(encode_question(question), lambda each: answers(question, each))
        after = self._machine.realtime_ns()
        token = token_of(question, data, self.name)
        reason = self._refuses(token, peer_digest(nonce))
        if reason is not None:
            raise BadTime("peer-key", f"{self.name}: {reason}", hint="compare the trust record and the peer's address")
        if own and SignedTime.decode(own).key_id == token.key_id:
            what = f"{self.name} is this node itself, whose own sources count already"
            raise BadTime("peer-self", what, hint="leave it out in time.toml")
        if token.flags & TimeFlags.ASSUMED:
            raise BadTime(
                "peer-assumed", f"{self.name} states its radius and measures nothing", hint="run chrony there"
            )
        self.asked = Exchanged(own, chance, token.encode())
        cluster_time = bool(token.flags & TimeFlags.CLUSTER)
        return Sample(offset_between(token.interval, before, after), boot_ns, cluster_time=cluster_time)
