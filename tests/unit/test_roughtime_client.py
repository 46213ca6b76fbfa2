"""Asking Roughtime servers: bounded by the round trip, chained, kept; liars are reported, the silent left alone."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.support.machine import START_NS, HandMachine
from tests.support.roughtime import NOW_S, Witness, chain_of, signer
from tests.support.shares import shares
from timeagent.errors import BadConfiguration, BadTime
from timeagent.roughtime import malfeasance
from timeagent.roughtime.client import RoughtimeServer, RoughtimeSource, load_servers, parse_servers, retry_after
from timeagent.roughtime.malfeasance import (
    WINDOW,
    Queried,
    RoughChain,
    RoughEvidenceFiles,
    decode_report,
    judge,
)
from timeagent.roughtime.wire import delegate
from timeagent.sources.port import Endpoint
from timeagent.units import DAY, MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


class Kept:
    """Evidence in memory."""

    def __init__(self) -> None:
        self.lines: list[Queried] = []
        self.reports: list[list[Queried]] = []

    def keep(self, queried: Queried) -> None:
        self.lines.append(queried)

    def report(self, chain: Sequence[Queried]) -> None:
        self.reports.append(list(chain))


class Asked:
    """A source for a witness, over a network that takes ``way_ns`` each way."""

    def __init__(self, witness: Witness, chain: RoughChain, machine: HandMachine, way_ns: int = 0) -> None:
        self.witness, self.machine, self.way_ns = witness, machine, way_ns
        self.asked = 0
        self.problem: BadTime | None = None
        entry = RoughtimeServer(witness.name, witness.public, Endpoint("127.0.0.1", 5319))
        self.source = RoughtimeSource(machine, entry, chain, lambda _: self._exchange)

    def _exchange(self, request: bytes, wanted: Callable[[bytes], bool]) -> bytes:
        self.asked += 1
        self.machine.pass_time(self.way_ns)
        if self.problem is not None:
            raise self.problem
        answer = self.witness.exchange(request, wanted)
        self.machine.pass_time(self.way_ns)
        return answer


@pytest.fixture
def machine() -> HandMachine:
    return HandMachine()


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def chain(kept: Kept) -> RoughChain:
    return RoughChain(random.Random(1), kept)


# -- the sample --------------------------------------------------------------------------------------------------------


def test_sample_is_as_wide_as_the_radius_and_the_round_trip(chain: RoughChain, machine: HandMachine) -> None:
    asked = Asked(Witness("w", NOW_S, 3), chain, machine, way_ns=40 * MS)
    machine.real = NOW_S * SECOND + 700 * MS
    boot = machine.boot
    sample = asked.source.sample()
    assert sample.offset.earliest == -3 * SECOND - 780 * MS
    assert sample.offset.latest == 3 * SECOND - 700 * MS
    assert sample.boot_ns == boot


@pytest.mark.parametrize("share", shares(6))
def test_truth_is_always_inside_whatever_the_network_does(chain: RoughChain, share: int) -> None:
    chance = random.Random(2 + share)
    for _ in range(330):
        truth = START_NS + chance.randrange(10 * SECOND)
        error = chance.randrange(-3600 * SECOND, 3600 * SECOND)
        machine = HandMachine(truth + error)
        radius = chance.choice([1, 3, 60])
        witness = Witness("w", 0, radius)
        asked = Asked(witness, chain, machine, way_ns=chance.randrange(SECOND))
        signed_at = truth + asked.way_ns
        witness.midpoint_s = signed_at // SECOND + chance.choice([0, 1])
        offset = asked.source.sample().offset
        assert offset.earliest <= -error <= offset.latest


# -- who does not answer, or not well ----------------------------------------------------------------------------------


def test_silent_server_is_left_alone_longer_each_time_until_it_answers(chain: RoughChain, machine: HandMachine) -> None:
    asked = Asked(Witness("w"), chain, machine)
    asked.problem = BadTime("no-answer", "nothing came", hint="")
    for wait in (1000 * MS, 1500 * MS, 2250 * MS, 3375 * MS):
        with pytest.raises(BadTime, match="nothing came"):
            asked.source.sample()
        machine.pass_time(wait - 1)
        with pytest.raises(BadTime) as refused:
            asked.source.sample()
        assert refused.value.code == "roughtime-waiting"
        machine.pass_time(1)
    assert asked.asked == 4
    asked.problem = None
    machine.pass_time(DAY)
    asked.source.sample()
    asked.source.sample()
    asked.problem = BadTime("no-answer", "nothing came", hint="")
    with pytest.raises(BadTime, match="nothing came"):
        asked.source.sample()
    machine.pass_time(SECOND)
    with pytest.raises(BadTime, match="nothing came"):
        asked.source.sample()


def test_waits_grow_by_half_up_to_a_day() -> None:
    assert [retry_after(n) for n in (1, 2, 3)] == [SECOND, SECOND * 3 // 2, SECOND * 9 // 4]
    assert retry_after(1000) == DAY
    assert all(retry_after(n) <= retry_after(n + 1) for n in range(1, 60))


@pytest.mark.parametrize(
    ("first", "last", "code"),
    [(NOW_S + 9, NOW_S + 10, "roughtime-delegation"), (NOW_S - 10, NOW_S - 9, "roughtime-delegation")],
)
def test_expired_and_not_yet_valid_delegations_are_refused_by_name(
    chain: RoughChain, machine: HandMachine, kept: Kept, first: int, last: int, code: str
) -> None:
    witness = Witness("w")
    witness.online = delegate(witness.long_term, signer("o"), first, last)
    with pytest.raises(BadTime) as refused:
        Asked(witness, chain, machine).source.sample()
    assert refused.value.code == code
    assert kept.lines == []


def test_answer_by_another_key_is_refused_and_is_no_evidence(
    chain: RoughChain, machine: HandMachine, kept: Kept
) -> None:
    honest, impostor = Asked(Witness("w"), chain, machine), Witness("i")
    impostor.online = replace(impostor.online, long_term=honest.witness.public)
    honest.witness.online = impostor.online
    with pytest.raises(BadTime) as refused:
        honest.source.sample()
    assert refused.value.code == "roughtime-signature"
    assert (kept.lines, kept.reports) == ([], [])


# -- the chain ---------------------------------------------------------------------------------------------------------


def test_all_answers_of_all_servers_are_one_chain(chain: RoughChain, machine: HandMachine, kept: Kept) -> None:
    servers = [Asked(Witness(name), chain, machine) for name in "abc"]
    for _ in range(2):
        for each in servers:
            each.source.sample()
    assert kept.lines[0].rand is None
    assert judge(kept.lines).word == "consistent"
    assert len(kept.lines) == 6
    assert kept.reports == []


def test_failed_question_does_not_break_the_chain(chain: RoughChain, machine: HandMachine, kept: Kept) -> None:
    first, second = (Asked(Witness(name), chain, machine) for name in "ab")
    first.source.sample()
    second.problem = BadTime("no-answer", "", hint="")
    with pytest.raises(BadTime):
        second.source.sample()
    first.source.sample()
    assert judge(kept.lines).word == "consistent"


@pytest.mark.parametrize("lie_s", [-3600, 3600])
def test_liar_is_reported_once_with_proof(chain: RoughChain, machine: HandMachine, kept: Kept, lie_s: int) -> None:
    honest, coarse = (Asked(Witness(name, NOW_S, radius), chain, machine) for name, radius in (("h", 3), ("c", 60)))
    liar = Asked(Witness("l", NOW_S + lie_s), chain, machine)
    for _ in range(3):
        for each in (coarse, honest, liar):
            each.source.sample()
    assert kept.reports
    assert len(kept.reports) == 2, "once for each two servers"
    for report in kept.reports:
        assert judge(report).word == "proven"
        assert liar.witness.public in {report[0].public, report[-1].public}
        assert report[0].rand is None


def test_evidence_in_memory_is_bounded(chain: RoughChain, machine: HandMachine) -> None:
    asked = Asked(Witness("w"), chain, machine)
    for _ in range(WINDOW + 10):
        asked.source.sample()
    assert len(chain._links) == WINDOW


# -- on disk -----------------------------------------------------------------------------------------------------------


def test_files_are_bounded_and_each_is_a_chain_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    witness = Witness("w")
    for name, most in (("LINES_MAX", 4), ("CHAINS_MAX", 3), ("REPORTS_MAX", 2)):
        monkeypatch.setattr(malfeasance, name, most)
    files = RoughEvidenceFiles(tmp_path / "e")
    exchanges = chain_of([(witness, NOW_S, 3)] * 20)
    for each in exchanges:
        files.keep(each)
    for _ in range(4):
        files.report(exchanges[:2])
    names = sorted(path.name for path in (tmp_path / "e").iterdir())
    assert [name.partition("-")[0] for name in names] == ["chain"] * 3 + ["report"] * 2
    seen: list[bytes] = []
    for name in names[:3]:
        chain = decode_report((tmp_path / "e" / name).read_bytes(), name)
        assert judge(chain).word == "consistent", name
        assert len(chain) <= 4
        seen += [each.response for each in chain]
    assert seen[-1] == exchanges[-1].response
    assert set(seen) == {each.response for each in exchanges[-(len(set(seen))) :]}
    assert decode_report((tmp_path / "e" / names[-1]).read_bytes(), "r") == tuple(exchanges[:2])


def test_next_run_begins_a_file_of_its_own(tmp_path: Path) -> None:
    witness = Witness("w")
    for _ in range(2):
        files = RoughEvidenceFiles(tmp_path)
        for each in chain_of([(witness, NOW_S, 3)] * 3):
            files.keep(each)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chain-00000001.jsonl", "chain-00000002.jsonl"]
    for path in tmp_path.iterdir():
        assert judge(decode_report(path.read_bytes(), "")).word == "consistent"


def test_disk_that_fails_costs_evidence_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    files = RoughEvidenceFiles(tmp_path / "file" / "e")
    exchanges = chain_of([(Witness("w"), NOW_S, 3)] * 2)
    files.keep(exchanges[0])
    files.report(exchanges)
    assert [record.getMessage().partition(" ")[0] for record in caplog.records] == ["roughtime-evidence-not-kept"] * 2


def test_chain_after_a_disk_that_was_full_proves_its_order(tmp_path: Path) -> None:
    """What was not kept is what the next nonce is made of: the next file begins with it."""
    files = RoughEvidenceFiles(tmp_path / "e")
    exchanges = chain_of([(Witness("w"), NOW_S, 3)] * 8)
    files.keep(exchanges[0])
    files.keep(exchanges[1])
    (tmp_path / "e").rename(tmp_path / "away")
    (tmp_path / "e").touch()
    files.keep(exchanges[2])
    files.keep(exchanges[3])
    (tmp_path / "e").unlink()
    (tmp_path / "away").rename(tmp_path / "e")
    for each in exchanges[4:]:
        files.keep(each)
    first, second = (decode_report(path.read_bytes(), "") for path in sorted((tmp_path / "e").iterdir()))
    assert [each.response for each in first] == [each.response for each in exchanges[:2]]
    assert [each.response for each in second] == [each.response for each in exchanges[3:]]
    assert judge(second).word == "consistent"


# -- the list of servers -----------------------------------------------------------------------------------------------

KEY = "AW5uAoTSTDfG5NfY1bTh08GUnOqlRb+HVhbJ3ODJvsE="


def listed(**change: object) -> bytes:
    server = {
        "name": "one",
        "version": 1,
        "publicKeyType": "ed25519",
        "publicKey": KEY,
        "addresses": [
            {"protocol": "tcp", "address": "h:1"},
            {"protocol": "udp", "address": "roughtime.example.com:2002"},
        ],
    }
    return json.dumps({"servers": [server | change], "sources": [], "reports": "https://x", "more": 7}).encode()


def test_list_is_read_as_others_write_it(tmp_path: Path) -> None:
    (tmp_path / "ecosystem.json").write_bytes(listed(version="IETF-Roughtime"))
    (server,) = load_servers(tmp_path / "ecosystem.json")
    assert (server.name, server.endpoint) == ("one", Endpoint("roughtime.example.com", 2002))
    assert len(server.public) == 32
    (ipv6,) = parse_servers(listed(addresses=[{"protocol": "udp", "address": "[2001:db8::2:33]:2002"}]), "l")
    assert ipv6.endpoint == Endpoint("2001:db8::2:33", 2002)


@pytest.mark.parametrize("change", [{"publicKeyType": "ml-dsa-44"}, {"addresses": []}])
def test_server_that_cannot_be_asked_is_left_out(change: dict[str, object]) -> None:
    assert parse_servers(listed(**change), "l") == ()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"servers": [{}]}',
        listed(publicKey="AAAA"),
        listed(publicKey="?"),
        listed(name=""),
        listed(addresses=[{"protocol": "udp", "address": "h"}]),
        listed(addresses=[{"protocol": "udp", "address": "h:0"}]),
        listed(addresses=[{"protocol": "udp", "address": ":1"}]),
        listed(addresses=[{"protocol": "udp", "address": "h\x1bc:1"}]),
        listed(addresses=[{"protocol": "udp", "address": "[::1\0]:1"}]),
        json.dumps({"servers": json.loads(listed())["servers"] * 2}).encode(),
        b" " * 2_000_000,
        b'{"more": ' + b"[" * 100_000 + b"]" * 100_000 + b', "servers": []}',
    ],
)
def test_damaged_list_is_refused_whole(data: bytes) -> None:
    with pytest.raises(BadConfiguration) as refused:
        parse_servers(data, "the list")
    assert refused.value.code == "bad-server-list"
    assert "the list" in refused.value.message


def test_list_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration, match=r"none\.json"):
        load_servers(tmp_path / "none.json")
