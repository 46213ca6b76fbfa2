"""The doors: whatever arrives at them, they go on answering."""

import contextlib
import json
import os
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.machine import HandMachine, StatedSource
from tests.support.timeagent import KEY, HandAgent, own
from timeagent.errors import BadTime, Environment
from timeagent.sources import nonce
from timeagent.sources.nonce import (
    QUESTION_BYTES,
    NonceClient,
    NonceKind,
    NonceQuestion,
    answer,
    answers,
    bind_unix,
    decode_question,
    encode_answer,
    encode_question,
    encode_refusal,
    nonce_door,
    peer_digest,
    token_of,
)
from timeagent.sources.port import Endpoint, UdpExchange, bind_udp, first_wanted
from timeagent.units import MS, SECOND

NONCE = bytes(range(32))
ASKED = NonceQuestion(NonceKind.PEER, b"12345678", NONCE)


@pytest.fixture
def hand() -> HandAgent:
    machine = HandMachine()
    hand = HandAgent(machine, own(StatedSource(machine)))
    hand.ask()
    return hand


@pytest.fixture
def udp(hand: HandAgent) -> Iterator[int]:
    bound = bind_udp("127.0.0.1", 0)
    stopped = threading.Event()
    door = nonce_door(bound, hand.agent, local_door=False)
    thread = threading.Thread(target=door.serve, args=(stopped.is_set,), daemon=True)
    thread.start()
    yield bound.getsockname()[1]
    stopped.set()
    door.wake()
    thread.join(10)
    door.close()


def ask(port: int, question: NonceQuestion = ASKED, *, tries: int = 40) -> bytes:
    """Ask until there is an answer: a full queue drops a datagram, and a busy machine empties it late."""
    exchange = UdpExchange(Endpoint("127.0.0.1", port), timeout_ns=SECOND)
    for left in reversed(range(tries)):
        try:
            return exchange(encode_question(question), lambda data: answers(question, data))
        except BadTime:
            if not left:
                raise
    raise AssertionError


def test_question_reads_back() -> None:
    assert len(encode_question(ASKED)) == QUESTION_BYTES
    assert decode_question(encode_question(ASKED)) == ASKED


@given(st.binary(max_size=300), st.booleans())
def test_any_datagram_is_a_question_or_ignored(data: bytes, local: bool) -> None:  # noqa: FBT001
    machine = HandMachine()
    hand = HandAgent(machine, own(StatedSource(machine)))
    assert answer(hand.agent, data, local_door=local) is None
    assert answer(hand.agent, data.ljust(QUESTION_BYTES, b"\0")[:QUESTION_BYTES], local_door=local) is None


def test_every_flipped_bit_of_the_head_is_ignored_or_another_question(hand: HandAgent) -> None:
    good = encode_question(ASKED)
    for bit in range(8 * QUESTION_BYTES):
        data = bytearray(good)
        data[bit // 8] ^= 1 << bit % 8
        reply = answer(hand.agent, bytes(data), local_door=False)
        assert reply is None or not answers(ASKED, reply) or bit // 8 in range(16, 48)


# Who is not on this machine gets a peer's answer, and nothing else: no report, no signature over bytes of its choice.
@pytest.mark.parametrize("kind", [NonceKind.SIGN, NonceKind.REPORT])
def test_stranger_is_not_answered(hand: HandAgent, kind: NonceKind) -> None:
    assert answer(hand.agent, encode_question(NonceQuestion(kind, b"12345678", NONCE)), local_door=False) is None
    assert answer(hand.agent, encode_question(NonceQuestion(kind, b"12345678", NONCE)), local_door=True) is not None


def test_no_answer_to_a_stranger_is_longer_than_its_question(hand: HandAgent) -> None:
    reply = answer(hand.agent, encode_question(ASKED), local_door=False)
    assert reply is not None
    assert len(reply) <= QUESTION_BYTES
    assert encode_refusal(ASKED, BadTime("no-time", "read /a\udcff/tmp")).endswith(b"read /a\\udcff/tmp")
    refusal = encode_refusal(ASKED, BadTime("no-time", "x" * 1000))
    assert len(refusal) <= QUESTION_BYTES
    with pytest.raises(BadTime) as refused:
        token_of(ASKED, refusal, "the peer")
    assert refused.value.code == "no-time"


# What a stranger says is printed on somebody's terminal.
def test_refusal_cannot_paint_the_screen() -> None:
    with pytest.raises(BadTime) as refused:
        token_of(ASKED, encode_refusal(ASKED, BadTime("x\x1b[2J", "a\x1b[2Jb\nc")), "the peer")
    assert refused.value.code == "door-refused"
    assert refused.value.message == "the peer refuses: a?[2Jb?c"


def test_peers_door_answers_over_udp(udp: int) -> None:
    token = token_of(ASKED, ask(udp), "the peer")
    assert token.verified_by(KEY.verifier(), peer_digest(NONCE))


def test_peers_door_survives_ten_thousand_datagrams_that_are_none(udp: int) -> None:
    chance = random.Random(3)
    good = encode_question(ASKED)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.connect(("127.0.0.1", udp))
        for _ in range(10_000):
            data = bytearray(
                good[: chance.choice((0, 1, 47, 48, 255, 256))] + chance.randbytes(chance.choice((0, 1, 900)))
            )
            if data:
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            stranger.send(data)
    assert len(ask(udp)) == 16 + 128


@pytest.mark.parametrize("silent_peers", [0, 500])
def test_client_asks_for_the_report_over_the_unix_socket(tmp_path: Path, silent_peers: int) -> None:
    machine = HandMachine()
    sources = [StatedSource(machine, name=f"peer node{number:03}") for number in range(1 + silent_peers)]
    for each in sources[1:]:
        each.refusal = BadTime("no-answer", "node.example.com port 7425 does not answer: timed out", hint="up?" * 20)
    hand = HandAgent(machine, *map(own, sources))
    hand.ask()
    stopped = threading.Event()
    door = nonce_door(bind_unix(tmp_path), hand.agent, local_door=True)
    thread = threading.Thread(target=door.serve, args=(stopped.is_set,), daemon=True)
    thread.start()
    report = json.loads(NonceClient(tmp_path).report())
    assert (report["schema"], len(report["sources"])) == ("tenure.time.report", 1 + silent_peers)
    stopped.set()
    door.wake()
    thread.join(10)
    door.close()


# The name that the kernel chooses is no secret, and no mode guards it: anybody of this machine can send to it.
def test_what_a_stranger_sends_to_the_name_of_a_client_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound, first = bind_unix(tmp_path), NonceQuestion(NonceKind.REPORT, bytes(7) + b"\1", bytes(32))
    sent: list[int] = []

    class Watched(socket.socket):
        def bind(self, address: Any) -> None:  # noqa: ANN401 - as there
            super().bind(address)
            with contextlib.suppress(PermissionError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
                sent.append(stranger.sendto(encode_answer(first, b"forged"), self.getsockname()))

    monkeypatch.setattr(nonce, "TIMEOUT_NS", 20 * MS)
    monkeypatch.setattr(socket, "socket", Watched)
    with bound, pytest.raises(BadTime) as refused:
        NonceClient(tmp_path).report()
    assert (refused.value.code, sent) == ("door-silent", [])


def test_socket_that_another_run_left_is_replaced(hand: HandAgent, tmp_path: Path) -> None:
    bind_unix(tmp_path).close()
    bind_unix(tmp_path).close()
    with pytest.raises(Environment) as refused:
        bind_unix(tmp_path / "nowhere")
    assert refused.value.code == "door-unbound"


# The directory decides who that is, by the `group` of node.toml too; where it lets everybody in, the user alone.
@pytest.mark.parametrize(("directory", "socket"), [(0o700, 0o666), (0o750, 0o666), (0o755, 0o700)])
@pytest.mark.parametrize("umask", [0o077, 0o002, 0o000])
def test_whoever_was_let_into_the_directory_may_ask(tmp_path: Path, directory: int, socket: int, umask: int) -> None:
    tmp_path.chmod(directory)
    before = os.umask(umask)
    try:
        bind_unix(tmp_path).close()
    finally:
        os.umask(before)
    assert (tmp_path / "time.sock").stat().st_mode & 0o777 == socket


def test_address_that_cannot_be_listened_on_is_refused_by_name(udp: int) -> None:
    for host, port in (("127.0.0.1", udp), ("no.such.host.invalid", 1)):
        with pytest.raises(Environment) as refused:
            bind_udp(host, port)
        assert refused.value.code == "door-unbound"


def test_peer_that_does_not_answer_is_named() -> None:
    bound = bind_udp("127.0.0.1", 0)
    port = bound.getsockname()[1]
    exchange = UdpExchange(Endpoint("127.0.0.1", port), timeout_ns=20 * MS)
    with pytest.raises(BadTime) as refused:
        exchange(encode_question(ASKED), lambda _: True)
    assert refused.value.code == "no-answer"
    bound.close()
    with pytest.raises(BadTime) as refused:
        exchange(encode_question(ASKED), lambda _: True)
    assert refused.value.code == "no-answer"


class Chatty:
    """A socket at which an answer to another question comes every now and then."""

    def __init__(self) -> None:
        self.asked = 0

    def gettimeout(self) -> float:
        return 0.5

    def settimeout(self, _: float) -> None: ...

    def recv(self, _: int) -> bytes:
        self.asked += 1
        threading.Event().wait(0.15)
        return b"no"


# Else a Roughtime server that answers nonsense slowly would hold up the questions to all others.
def test_answers_to_other_questions_make_no_exchange_longer() -> None:
    chatty = Chatty()
    with pytest.raises(TimeoutError):
        first_wanted(cast("socket.socket", chatty), lambda _: False)
    assert chatty.asked <= 4
