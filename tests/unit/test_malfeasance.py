"""Reports: liars are proven, honest servers never accused, and whatever is spoiled proves nothing."""

from __future__ import annotations

import dataclasses
import json
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec import structs
from roughly import ecosystem
from roughly.shared import DELEGATION_CONTEXT_STRING, RESPONSE_CONTEXT_STRING, ProtocolProfile

from tests.support.roughtime import NOW_S, Witness, chain_of, signer
from timeagent.errors import Damaged
from timeagent.roughtime.malfeasance import (
    Contradiction,
    Queried,
    accused,
    decode_report,
    encode_line,
    encode_report,
    judge,
)
from timeagent.roughtime.wire import chained_nonce

if TYPE_CHECKING:
    from collections.abc import Callable

HONEST, COARSE, LIAR = Witness("honest"), Witness("coarse"), Witness("liar")


def test_liar_among_three_is_proven_and_named_first() -> None:
    chain = chain_of(
        [(HONEST, NOW_S, 3), (COARSE, NOW_S + 1, 60), (LIAR, NOW_S - 3600, 3), (HONEST, NOW_S + 1, 3), (LIAR, NOW_S, 3)]
    )
    verdict = judge(decode_report(encode_report(chain), "report"))
    assert verdict.word == "proven"
    assert verdict.contradictions == (Contradiction(0, 2, 3594), Contradiction(1, 2, 3538))
    assert accused(chain, verdict)[0] == (LIAR.public, 2)


# The rule, at its very edge: touching intervals contradict nothing, one second apart is proof.
@pytest.mark.parametrize(("second", "proves"), [(NOW_S - 6, False), (NOW_S - 7, True)])
def test_one_second_decides(second: int, *, proves: bool) -> None:
    verdict = judge(chain_of([(HONEST, NOW_S, 3), (LIAR, second, 3)]))
    assert verdict.word == ("proven" if proves else "consistent")


# A later answer wholly after an earlier one is how time goes: no matter how far, it accuses nobody.
def test_later_answer_that_is_later_is_no_contradiction() -> None:
    assert judge(chain_of([(HONEST, NOW_S, 3), (COARSE, NOW_S + 10**6, 3)])).word == "consistent"


def test_honest_but_coarse_servers_are_never_accused() -> None:
    for number in range(300):
        chance = random.Random(number)
        now, said = NOW_S * 1000, []
        for _ in range(chance.randrange(2, 8)):
            now += chance.choice([0, 1, 500, 5_000, 10**7])
            radius = chance.choice([1, 2, 3, 10, 3600, 10**9])
            error = chance.randint(-radius, radius) * 1000
            # Truth within the interval: that is all an honest server promises.
            midpoint = (now + error) // 1000
            if abs(midpoint * 1000 - now) > radius * 1000:
                midpoint += 1
            said.append((chance.choice([HONEST, COARSE, LIAR]), midpoint, radius))
        assert judge(chain_of(said, chance)).word == "consistent", number


def spoiled(change: Callable[[list[Queried]], object]) -> list[Queried]:
    chain = chain_of([(HONEST, NOW_S, 3), (COARSE, NOW_S, 3), (LIAR, NOW_S - 3600, 3)])
    assert judge(chain).word == "proven"
    change(chain)
    return chain


def replaced(position: int, **fields: object) -> Callable[[list[Queried]], object]:
    return lambda chain: chain.__setitem__(position, structs.replace(chain[position], **fields))


def flipped(position: int, field: str, offset: int) -> Callable[[list[Queried]], object]:
    def change(chain: list[Queried]) -> None:
        data = bytearray(getattr(chain[position], field))
        data[offset] ^= 1
        chain[position] = structs.replace(chain[position], **{field: bytes(data)})

    return change


SPOILED = [
    ("another server's key", replaced(2, public=HONEST.public), 2),
    ("no point of the curve", replaced(2, public=b"\xff" * 32), 2),
    ("a flipped bit of the time", flipped(2, "response", 300), 2),
    ("a flipped signature", flipped(0, "response", 80), 0),
    ("a flipped request", flipped(1, "request", 1000), 1),
    ("another rand", replaced(1, rand=bytes(32)), 1),
    ("no rand", replaced(2, rand=None), 2),
    ("an answer left out", lambda chain: chain.pop(1), 1),
    ("another order", lambda chain: chain.reverse(), 1),
    ("nothing", lambda chain: chain.clear(), 0),
    ("an empty answer", replaced(0, response=b""), 0),
    ("a request that was never sent", replaced(0, request=b"ROUGHTIM"), 0),
    ("the answer twice", lambda chain: chain.append(chain[2]), 3),
]


@pytest.mark.parametrize(("change", "position"), [each[1:] for each in SPOILED], ids=[each[0] for each in SPOILED])
def test_what_does_not_verify_proves_nothing(change: Callable[[list[Queried]], object], position: int) -> None:
    verdict = judge(spoiled(change))
    assert verdict.word == "unverified"
    assert verdict.position == position


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"responses": 7}',
        b'{"responses": [{"publicKey": "AA==", "request": "", "response": ""}]}',
        b'{"responses": [{"publicKey": "?", "request": "", "response": ""}]}',
        b'{"responses": [{"request": "", "response": ""}]}',
        b"\xff\xfe",
        b'{"publicKey"',
        b'{"more": ' + b"[" * 100_000 + b"]" * 100_000 + b', "responses": []}',
    ],
)
def test_bytes_that_are_no_report_are_damaged(data: bytes) -> None:
    with pytest.raises(Damaged):
        decode_report(data, "it")


# A power cut, or a full disk, while the last line was written.
def test_line_that_was_cut_off_takes_nothing_from_those_before() -> None:
    chain = chain_of([(Witness("w"), NOW_S + number, 1) for number in range(3)])
    lines = [encode_line(each) for each in chain]
    for cut in (1, 20, len(lines[2]) - 2):
        assert decode_report(b"".join(lines[:2]) + lines[2][:cut], "it") == tuple(chain[:2])
    assert decode_report(b"".join(lines)[:-1], "it") == tuple(chain)
    with pytest.raises(Damaged):
        decode_report(lines[0] + lines[1][:20] + b"\n" + lines[2], "it")


def test_report_has_the_shape_that_the_rfc_gives() -> None:
    chain = chain_of([(HONEST, NOW_S, 3), (LIAR, NOW_S - 60, 3)])
    report = json.loads(encode_report(chain))
    assert list(report) == ["responses"]
    assert [sorted(each) for each in report["responses"]] == [
        ["publicKey", "request", "response"],
        ["publicKey", "rand", "request", "response"],
    ]
    assert decode_report(encode_report(chain), "it") == tuple(chain)
    assert decode_report(b"".join(map(encode_line, chain)), "it") == tuple(chain)


# Another implementation's judge comes to the same verdict. It wants `rand` everywhere and takes a bare list.
@pytest.mark.parametrize(("midpoint", "proves"), [(NOW_S - 60, True), (NOW_S - 1, False)])
def test_the_library_confirms_what_we_report(midpoint: int, *, proves: bool) -> None:
    report = json.loads(encode_report(chain_of([(HONEST, NOW_S, 3), (LIAR, midpoint, 3)])))["responses"]
    report[0]["rand"] = ""
    assert ecosystem.confirm_malfeasance(report) is proves


def test_nonce_is_a_hash_of_the_whole_answer_and_the_rand() -> None:
    chain = chain_of([(HONEST, NOW_S, 3), (COARSE, NOW_S, 3)])
    assert chain[1].rand is not None
    assert chained_nonce(chain[0].response, chain[1].rand) in chain[1].request
    assert signer("honest").public == HONEST.public


# -- the example of RFC 10049, appendix B ------------------------------------------------------------------------------


def rfc_example() -> tuple[Queried, ...]:
    """The example, cut out of the text of the RFC or of draft-ietf-ntp-roughtime-19, which one has to provide."""
    place = os.environ.get("TENURE_ROUGHTIME_RFC")
    if not place:
        pytest.skip("TENURE_ROUGHTIME_RFC does not name the text of RFC 10049")
    text = Path(place).read_text(encoding="utf-8")
    text = text[text.rindex("Example Malfeasance Report") :]
    report = "".join(line.strip() for line in text[text.index("{") : text.index("Authors' Addresses")].splitlines())
    return decode_report(report.encode(), place)


# It was made with the strings of the drafts and says version 1: as an answer of that version it is not signed.
def test_example_of_the_rfc_does_not_verify_as_what_it_says_it_is() -> None:
    verdict = judge(rfc_example())
    assert verdict.word == "unverified"
    assert verdict.position == 0


def test_example_of_the_rfc_proves_its_liar_with_the_strings_it_was_made_with(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = rfc_example()
    old = dataclasses.replace(
        ProtocolProfile.from_version(1),
        response_context=RESPONSE_CONTEXT_STRING,
        delegation_context=DELEGATION_CONTEXT_STRING,
    )
    monkeypatch.setattr(ProtocolProfile, "from_version", staticmethod(lambda _: old))
    verdict = judge(chain)
    assert verdict.word == "proven"
    assert [(each.earlier, each.later) for each in verdict.contradictions] == [(0, 1), (0, 2)]
