"""Agents that ask each other: the round trip is in the bound, refusals have names, and a stopped clock is found out."""

import argparse
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.cli.clock import COMMANDS
from tests.support.machine import START_NS, HandMachine, StatedSource
from tests.support.timeagent import HandAgent, own, peer_source
from timeagent.agent.bounded_clock import PERIOD_NS
from timeagent.agent.discipline import Listed, Weight
from timeagent.agent.evidence import judge_exchange
from timeagent.errors import BadTime, Damaged
from timeagent.keys import Signer, public_line
from timeagent.signedtime import ClockStatus, SignedTime
from timeagent.sources.local import AssumedSource
from timeagent.sources.nonce import Exchanged, NonceKind, NonceQuestion, PeerSource, encode_question, peer_digest
from timeagent.units import MS, SECOND, US, TimeInterval

HERE, THERE, THIRD = (Signer(bytes([each]) * 32) for each in (1, 2, 3))


def measured(machine: HandMachine, signer: Signer, radius_ns: int = 5 * MS) -> HandAgent:
    hand = HandAgent(machine, own(StatedSource(machine, radius_ns)), signer=signer)
    hand.ask()
    return hand


def test_bound_is_the_peers_radius_and_the_round_trip() -> None:
    machine = HandMachine()
    there, here = measured(HandMachine(boot_ns=77 * SECOND), THERE), measured(machine, HERE)

    def travel() -> None:
        there.machine.pass_time(MS)
        machine.pass_time(MS)

    sample = there.asked_by(here, round_trip=travel).sample()
    assert sample.offset == TimeInterval(-5 * MS - MS - 200, 5 * MS + MS + 200)


def test_peer_is_answered_with_what_its_own_sources_say() -> None:
    """Else two nodes without a source would vouch for each other for ever."""
    machine = HandMachine()
    first = HandAgent(machine, own(StatedSource(machine, 5 * MS)), signer=HERE)
    second = HandAgent(machine, Listed(peer_source(machine, "first", lambda: first, lambda: second)), signer=THERE)
    first.ask()
    second.ask()
    assert second.page.last.status is ClockStatus.SYNCHRONIZED
    with pytest.raises(BadTime) as refused:
        second.asked_by(first).sample()
    assert refused.value.code == "no-own-measure"


def test_silent_peer_says_why() -> None:
    machine = HandMachine()
    there, here = HandAgent(machine, own(StatedSource(machine)), signer=THERE), measured(machine, HERE)
    there.agent.turn()
    with pytest.raises(BadTime, match="peer there refuses") as refused:
        there.asked_by(here).sample()
    assert refused.value.code == "no-own-measure"


# A stated radius measures nothing: two clusters of assumptions must not become one measurement.
def test_peer_that_assumes_has_no_own_measure() -> None:
    machine = HandMachine()
    there = HandAgent(machine, Listed(AssumedSource(machine, MS), Weight.ASSUMED), signer=THERE)
    there.ask()
    with pytest.raises(BadTime) as refused:
        there.asked_by(measured(machine, HERE)).sample()
    assert refused.value.code == "no-own-measure"


def source_answered_by(change: Callable[[bytes], bytes], there: HandAgent, here: HandAgent) -> PeerSource:
    honest = there.asked_by(here)
    inner = honest._exchange

    def exchange(request: bytes, wanted: Callable[[bytes], bool]) -> bytes:
        return change(inner(request, wanted))

    return PeerSource(here.machine, "there", exchange, honest._refuses, random.Random(7))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "peer-key"),
        (lambda data: data[:-1], "door-garbled"),
        (lambda data: data[:0], "door-garbled"),
        (lambda data: data[:8] + bytes(8) + data[16:], "door-garbled"),
        (lambda data: data[:16] + b"XXXX" + data[20:], "door-garbled"),
    ],
)
def test_garbled_answer_is_refused_by_name(change: Callable[[bytes], bytes], code: str) -> None:
    machine = HandMachine()
    there, here = measured(machine, THERE), measured(machine, HERE)
    with pytest.raises(BadTime) as refused:
        source_answered_by(change, there, here).sample()
    assert refused.value.code == code


# Signed by a node that is trusted, but not the one that was asked.
def test_answer_of_another_node_is_refused() -> None:
    machine = HandMachine()
    there, here = measured(machine, THERE), measured(machine, HERE)
    there.trusted = THIRD.verifier()
    with pytest.raises(BadTime) as refused:
        there.asked_by(here).sample()
    assert refused.value.code == "peer-key"


# One time.toml for all nodes names each of them to itself: its word would count twice, and outvote a peer.
def test_node_is_no_peer_of_its_own() -> None:
    here = measured(HandMachine(), HERE)
    with pytest.raises(BadTime) as refused:
        here.asked_by(here).sample()
    assert refused.value.code == "peer-self"


def test_stranger_gets_no_signature_over_bytes_of_its_choice() -> None:
    there = measured(HandMachine(), THERE)
    nonce = bytes(range(32))
    token = there.agent.sign_for_peer(peer_digest(nonce))
    assert not token.verified_by(THERE.verifier(), nonce)
    request = encode_question(NonceQuestion(NonceKind.PEER, bytes(8), nonce))
    assert len(request) >= 16 + 128  # no answer to a stranger is longer than the question


class Three:
    """Three nodes that ask each other."""

    def __init__(self) -> None:
        names = ("n1", "n2", "n3")
        machines = [HandMachine(boot_ns=(each + 1) * 1000 * SECOND) for each in range(3)]
        self.hands: list[HandAgent] = []

        def asking(me: int, other: int) -> Listed:
            hands = self.hands
            return Listed(peer_source(machines[me], names[other], lambda: hands[other], lambda: hands[me]))

        for me, signer in enumerate((HERE, THERE, THIRD)):
            peers = [asking(me, other) for other in range(3) if other != me]
            self.hands.append(HandAgent(machines[me], own(StatedSource(machines[me])), *peers, signer=signer))
        for hand in self.hands:  # a peer has something to say once it was heard itself
            hand.agent.poll(hand.listed[0])
            hand.run(SECOND, asking=False)

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            for hand in self.hands:
                hand.run(SECOND - PERIOD_NS, asking=False)
            for hand in self.hands:
                for each in hand.listed:
                    hand.agent.poll(each)
            for hand in self.hands:
                hand.run(PERIOD_NS, asking=False)

    def statuses(self) -> list[ClockStatus]:
        return [hand.page.last.status for hand in self.hands]


GOOD, BAD = ClockStatus.SYNCHRONIZED, ClockStatus.DISRUPTED


def test_three_nodes_agree() -> None:
    three = Three()
    three.run(5)
    assert three.statuses() == [GOOD] * 3
    assert all(not hand.evidence.kept for hand in three.hands)


# All clocks of a paused virtual machine stop, and its own time service finds nothing wrong. Its peers know better.
def test_paused_machine_is_recognised_by_its_peers_and_by_itself() -> None:
    three = Three()
    three.run(3)
    paused, *others = three.hands
    for hand in others:
        hand.machine.pass_time(30 * SECOND)
        for count in range(40):
            hand.agent.turn()
            if count == 0:
                hand.agent.poll(hand.listed[0])
    three.run(3)
    assert three.statuses() == [BAD, GOOD, GOOD]
    for hand in others:
        record = hand.evidence.kept[-1]
        assert [voice["source"] for voice in record["voices"] if voice["dissents"]] == ["peer n1"]
    contradiction = paused.evidence.kept[-1]
    assert contradiction["kind"] == "contradiction"
    assert {exchange["peer"] for exchange in contradiction["exchanges"]} == {"peer n2", "peer n3"}
    proofs = [proven_by(each, HERE, key) for each, key in zip(contradiction["exchanges"], (THERE, THIRD), strict=True)]
    assert all(proofs)


def proven_by(exchange: dict[str, str], own_key: Signer, peer_key: Signer) -> list[str]:
    parts = (bytes.fromhex(exchange[part]) for part in ("own", "chance", "answer", "after"))
    return judge_exchange(Exchanged(*parts), own_key.verifier(), peer_key.verifier())


@pytest.fixture
def contradicted() -> dict[str, str]:
    """An exchange of two nodes whose clocks are ten seconds apart."""
    machine, other = HandMachine(), HandMachine()
    other.pass_time(10 * SECOND)
    there = measured(other, THERE)
    peers: list[HandAgent] = []
    source = peer_source(machine, "there", lambda: there, lambda: peers[0])
    here = HandAgent(machine, own(StatedSource(machine)), Listed(source), signer=HERE)
    peers.append(here)
    here.agent.poll(here.listed[0])
    here.run(2 * SECOND, asking=False)
    here.ask()
    here.run(SECOND, asking=False)
    assert here.page.last.status is BAD
    exchange: dict[str, str] = here.evidence.kept[-1]["exchanges"][0]
    return exchange


def test_two_clocks_apart_leave_both_signatures(contradicted: dict[str, str]) -> None:
    assert proven_by(contradicted, HERE, THERE) == [
        "the own signed time covers the peer's answer and lies wholly before it"
    ]


# The evidence must not be able to accuse anybody by a slip: each part is covered by a signature.
@pytest.mark.parametrize("part", ["own", "chance", "answer", "after"])
def test_altered_evidence_proves_nothing(contradicted: dict[str, str], part: str) -> None:
    data = bytearray.fromhex(contradicted[part])
    data[-1] ^= 1
    contradicted[part] = data.hex()
    with pytest.raises(Damaged):
        proven_by(contradicted, HERE, THERE)


def test_honest_exchange_proves_nothing() -> None:
    machine = HandMachine()
    there, here = measured(machine, THERE, 50 * MS), measured(machine, HERE, 10 * US)
    source = there.asked_by(here)
    source.sample()
    assert source.asked is not None
    exchange = source.asked
    assert judge_exchange(exchange, HERE.verifier(), THERE.verifier()) == []


# From the file alone, offline: what an auditor of two machines is handed.
def test_command_says_what_a_file_of_evidence_proves(
    contradicted: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = {"schema": "tenure.time.evidence", "kind": "contradiction", "own_key_id": HERE.id.hex()}

    def judged(exchange: dict[str, str], *keys: Signer) -> int:
        words = [str(tmp_path / "evidence.json")]
        (tmp_path / "evidence.json").write_text(json.dumps(record | {"exchanges": [exchange]}))
        for index, key in enumerate(keys):
            (tmp_path / f"{index}.pub").write_text(public_line(key.public, "node"))
            words += ["--key", str(tmp_path / f"{index}.pub")]
        parser = argparse.ArgumentParser()
        COMMANDS["time"].add_arguments(parser)
        return COMMANDS["time"].run(parser.parse_args(["evidence", *words]))

    assert judged(contradicted, HERE, THERE) == 1
    assert "lies wholly before it" in capsys.readouterr().out
    assert judged(contradicted | {"peer": "a\x1b[2Jb"}, HERE) == 3
    assert capsys.readouterr().out.startswith(r"a\x1b[2Jb: "), "the file is another machine's"
    assert judged(contradicted | {"after": ""}, HERE, THERE) == 0
    with pytest.raises(Damaged):
        judged(contradicted | {"after": contradicted["own"]}, HERE, THERE)
    with pytest.raises(Damaged):
        judged(contradicted | {"own": "xx"}, HERE, THERE)
    record["schema"] = "another"
    with pytest.raises(Damaged):
        judged(contradicted, HERE, THERE)


# What is signed over a peer's answer is evidence in this node's own name.
def test_what_is_signed_over_a_peer_that_disagrees_counts_the_slew_since_the_last_turn() -> None:
    machine, other = HandMachine(), HandMachine()
    other.real += 3600 * SECOND
    there = HandAgent(other, own(StatedSource(other, 100 * US)), signer=THERE)

    def way() -> None:
        machine.pass_time(MS)
        other.pass_time(MS)

    peer = Listed(peer_source(machine, "there", lambda: there, lambda: here, way))
    here = HandAgent(machine, own(StatedSource(machine, 100 * US)), peer)
    there.ask()
    here.ask()
    here.agent.turn()
    machine.pass_time(45 * MS)
    other.pass_time(45 * MS)
    machine.slew(3_750 * US)
    here.agent.poll(peer)
    (exchanged,) = here.agent._exchanged.values()
    signed = SignedTime.decode(exchanged.after)
    true_ns = START_NS + machine.raw - 100 * SECOND
    assert signed.interval.earliest <= true_ns <= signed.interval.latest
