"""Roughtime packets: every version both ways, and everything that is not a good answer refused by name."""

from __future__ import annotations

import random
import struct
from typing import TYPE_CHECKING

import pytest
from roughly import tags
from roughly.models import Message, Packet, Tag
from roughly.server import get_merkle_path

from tests.support.roughtime import NOW_S, Witness, signer
from timeagent.errors import Damaged
from timeagent.roughtime.wire import (
    REQUEST_BYTES,
    VERSIONS,
    answer_batch,
    chained_nonce,
    delegate,
    make_request,
    nonce_of,
    open_answer,
    open_online_key,
)
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

WITNESS = Witness("witness")
NONCE = bytes(range(32))


@pytest.mark.parametrize("version", VERSIONS)
def test_answer_of_each_version_verifies(version: int) -> None:
    request = make_request(WITNESS.public, NONCE, [version])
    answer = open_answer(WITNESS.public, request, WITNESS.answer(request))
    assert (answer.version, answer.midpoint_s, answer.radius_s) == (version, NOW_S, 3)
    assert answer.interval.earliest == (NOW_S - 3) * SECOND
    assert answer.interval.latest == (NOW_S + 3) * SECOND


def test_of_all_versions_that_are_offered_the_rfc_is_taken() -> None:
    request = make_request(WITNESS.public, NONCE)
    assert len(request) == REQUEST_BYTES
    assert nonce_of(request) == NONCE
    assert open_answer(WITNESS.public, request, WITNESS.answer(request)).version == 1


# One signature answers all of one version; each has its path, and nobody gets more than was sent.
@pytest.mark.parametrize("count", [1, 2, 3, 64])
def test_batch_of_mixed_versions_is_answered_one_by_one(count: int) -> None:
    requests = [make_request(WITNESS.public, bytes([n]) * 32, [VERSIONS[n % len(VERSIONS)]]) for n in range(count)]
    answers = answer_batch(WITNESS.online, requests, NOW_S, 1)
    for request, answer in zip(requests, answers, strict=True):
        assert answer is not None
        assert len(answer) <= len(request)
        assert open_answer(WITNESS.public, request, answer).midpoint_s == NOW_S


def parts_of(packet: bytes) -> dict[int, bytes]:
    return {part.tag: part.value for part in Packet.from_bytes(packet).message.tags}


def packet_of(parts: dict[int, bytes]) -> bytes:
    return Packet(message=Message(tags=[Tag(tag=tag, value=parts[tag]) for tag in sorted(parts)])).dump()


def with_part(tag: int, value: bytes | None) -> Callable[[bytes], bytes]:
    def change(packet: bytes) -> bytes:
        parts = parts_of(packet)
        if value is None:
            del parts[tag]
        else:
            parts[tag] = value
        return packet_of(parts)

    return change


def flipped(tag: int) -> Callable[[bytes], bytes]:
    return lambda packet: with_part(tag, bytes([parts_of(packet)[tag][0] ^ 1, *parts_of(packet)[tag][1:]]))(packet)


MALFORMED, SIGNATURE = "roughtime-malformed", "roughtime-signature"
SPOILED: list[tuple[str, Callable[[bytes], bytes], str]] = [
    ("empty", lambda _: b"", MALFORMED),
    ("cut off", lambda packet: packet[:-4], MALFORMED),
    ("too long", lambda packet: packet + bytes(4), MALFORMED),
    ("another magic", lambda packet: b"roughtim" + packet[8:], MALFORMED),
    ("no header", lambda packet: packet[12:], MALFORMED),
    ("a request", lambda _: make_request(WITNESS.public, NONCE), MALFORMED),
    *[(f"without {tag:#x}", with_part(tag, None), MALFORMED) for tag in (tags.SIG, tags.SREP, tags.CERT, tags.INDX)],
    ("without a type", with_part(tags.TYPE, None), MALFORMED),
    ("a request's type", with_part(tags.TYPE, bytes(4)), MALFORMED),
    ("another nonce", with_part(tags.NONC, bytes(32)), MALFORMED),
    ("a path of 33 nodes", with_part(tags.PATH, bytes(33 * 32)), MALFORMED),
    ("half a node", with_part(tags.PATH, bytes(16)), MALFORMED),
    ("a node that is none of ours", with_part(tags.PATH, bytes(32)), SIGNATURE),
    ("an index outside the tree", with_part(tags.INDX, struct.pack("<I", 1)), MALFORMED),
    ("another signature", flipped(tags.SIG), SIGNATURE),
    ("a short signature", with_part(tags.SIG, bytes(60)), SIGNATURE),
]


@pytest.mark.parametrize(("change", "code"), [each[1:] for each in SPOILED], ids=[each[0] for each in SPOILED])
def test_spoiled_answer_is_refused_by_name(change: Callable[[bytes], bytes], code: str) -> None:
    request = make_request(WITNESS.public, NONCE)
    with pytest.raises(Damaged) as refused:
        open_answer(WITNESS.public, request, change(WITNESS.answer(request)))
    assert refused.value.code == code


# What the RFC demands: a client ignores tags that it does not know.
def test_unknown_tag_is_ignored() -> None:
    request = make_request(WITNESS.public, NONCE)
    greased = with_part(int.from_bytes(b"ABCD", "little"), b"what")(WITNESS.answer(request))
    assert open_answer(WITNESS.public, request, greased).midpoint_s == NOW_S


def test_every_flipped_bit_of_an_answer_is_noticed() -> None:
    request = make_request(WITNESS.public, NONCE)
    answer = WITNESS.answer(request)
    for bit in range(8 * len(answer)):
        spoiled = bytearray(answer)
        spoiled[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Damaged):
            open_answer(WITNESS.public, request, bytes(spoiled))


def mutated(chance: random.Random, answer: bytes) -> bytes:
    data = bytearray(answer)
    match chance.randrange(5):
        case 0:
            return chance.randbytes(chance.randrange(700))
        case 1:
            return bytes(data[: chance.randrange(len(data))])
        case 2:  # header, number of tags, offsets
            struct.pack_into("<I", data, 8 + 4 * chance.randrange(16), chance.choice([0, 1, 7, 2**31, 2**32 - 1]))
        case 3:
            place = 4 * chance.randrange(len(data) // 4 - 8)
            data[place : place + 32] = chance.randbytes(4 * chance.randrange(12))
        case _:
            for _ in range(chance.randrange(1, 20)):
                data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


# A hostile server must not end the thread that asks it: one error, whatever comes.
def test_whatever_a_server_sends_there_is_one_error() -> None:
    chance = random.Random(11)
    request = make_request(WITNESS.public, NONCE)
    answer = WITNESS.answer(request)
    for _ in range(20_000):
        spoiled = mutated(chance, answer)
        if spoiled == answer:
            continue
        nonce_of(spoiled)
        with pytest.raises(Damaged):
            open_answer(WITNESS.public, request, spoiled)


def test_answer_to_another_request_or_of_another_server_is_refused() -> None:
    request = make_request(WITNESS.public, NONCE)
    other = Witness("another")
    with pytest.raises(Damaged, match="ertificate"):
        open_answer(other.public, request, WITNESS.answer(request))
    # The same nonce in another request: the tree is over the whole packet.
    with pytest.raises(Damaged, match="Merkle"):
        open_answer(WITNESS.public, make_request(WITNESS.public, NONCE, [1]), WITNESS.answer(request))
    assert answer_batch(WITNESS.online, [make_request(other.public, NONCE)], NOW_S, 1) == [None]


def test_version_that_was_not_offered_is_refused() -> None:
    draft = make_request(WITNESS.public, NONCE, [0x8000000C])
    with pytest.raises(Damaged, match="not in request"):
        open_answer(WITNESS.public, make_request(WITNESS.public, NONCE, [1]), WITNESS.answer(draft))


# The delegation's ends belong to it; a second outside, a client refuses.
@pytest.mark.parametrize(
    ("first", "last", "code"),
    [
        (NOW_S, NOW_S, None),
        (NOW_S + 1, NOW_S + 2, "roughtime-delegation"),
        (NOW_S - 2, NOW_S - 1, "roughtime-delegation"),
    ],
)
def test_answer_outside_its_delegation_is_refused(first: int, last: int, code: str | None) -> None:
    online = delegate(WITNESS.long_term, signer("online"), first, last)
    request = make_request(WITNESS.public, NONCE)
    (answer,) = answer_batch(online, [request], NOW_S, 1)
    assert answer is not None
    if code is None:
        assert open_answer(WITNESS.public, request, answer).delegated_until_s == last
        return
    with pytest.raises(Damaged) as refused:
        open_answer(WITNESS.public, request, answer)
    assert refused.value.code == code


@pytest.mark.parametrize("radius", [0, 2**32 - 1])
def test_radius_of_zero_is_refused_and_the_widest_taken(radius: int) -> None:
    request = make_request(WITNESS.public, NONCE)
    (answer,) = answer_batch(WITNESS.online, [request], NOW_S, radius)
    assert answer is not None
    if radius:
        assert open_answer(WITNESS.public, request, answer).radius_s == radius
    else:
        with pytest.raises(Damaged, match="RADI"):
            open_answer(WITNESS.public, request, answer)


@pytest.mark.parametrize("midpoint", [2**63, 2**64 - 1])
def test_midpoint_that_is_no_instant_is_refused(midpoint: int) -> None:
    online = delegate(WITNESS.long_term, signer("online"), 0, 2**64 - 1)
    request = make_request(WITNESS.public, NONCE)
    (answer,) = answer_batch(online, [request], midpoint, 1)
    assert answer is not None
    with pytest.raises(Damaged, match="not an instant"):
        open_answer(WITNESS.public, request, answer)


def test_nonce_of_what_has_none() -> None:
    assert nonce_of(b"") is None
    assert nonce_of(packet_of({tags.VER: bytes(4)})) is None


def test_online_key_is_read_back_and_a_strange_certificate_refused() -> None:
    raw = WITNESS.online.encoded()
    read = open_online_key(WITNESS.public, WITNESS.online.signer, raw)
    assert (read.from_s, read.until_s) == (WITNESS.online.from_s, WITNESS.online.until_s)
    assert read.certificates == WITNESS.online.certificates
    other = delegate(WITNESS.long_term, WITNESS.online.signer, 5, 6)
    for bad in ([], raw[:-1], [*raw[:-1], other.encoded()[0]], [b"junk"], [*raw[1:], raw[0][:-4]]):
        with pytest.raises(Damaged):
            open_online_key(WITNESS.public, WITNESS.online.signer, bad)
    with pytest.raises(Damaged, match="long-term"):
        open_online_key(signer("x").public, WITNESS.online.signer, raw)
    with pytest.raises(Damaged, match="another key"):
        open_online_key(WITNESS.public, signer("x"), raw)


def test_nonce_is_chained_by_the_hash_of_answer_and_rand() -> None:
    assert chained_nonce(b"a", b"b") == chained_nonce(b"ab", b"") != chained_nonce(b"b", b"a")
    assert get_merkle_path([[b"1"]], 0) == []
