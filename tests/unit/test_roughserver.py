"""The Roughtime server: the agent's bound in whole seconds, silent without time or key, unmoved by any datagram."""

from __future__ import annotations

import random
import socket
import struct
import threading
from typing import TYPE_CHECKING

import pytest
from roughly import server as library

from tests.support.roughtime import NOW_S, signer
from timeagent.errors import BadConfiguration, BadTime, Damaged, NotTrusted
from timeagent.keys import CREDENTIALS
from timeagent.roughtime import server as server_module
from timeagent.roughtime.server import (
    OWN_LIFE_NS,
    Delegations,
    RoughServer,
    load_delegation,
    load_delegations,
    make_ahead,
    rough_door,
    save_delegation,
    whole_seconds,
)
from timeagent.roughtime.wire import VERSIONS, RoughtimeAnswer, delegate, make_request, open_answer
from timeagent.units import DAY, HOUR, MS, SECOND, TimeInterval

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LONG_TERM = signer("long-term")
NOW = TimeInterval.around(NOW_S * SECOND + 300 * MS, 5 * MS)


def server(now: TimeInterval = NOW, delegations: Delegations | None = None) -> RoughServer:
    return RoughServer(lambda: now, delegations or Delegations([], LONG_TERM))


def asked(answering: RoughServer, nonce: bytes = bytes(32)) -> RoughtimeAnswer | None:
    request = make_request(LONG_TERM.public, nonce)
    (answer,) = answering.answers([request])
    return None if answer is None else open_answer(LONG_TERM.public, request, answer)


# -- the time ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("earliest", "latest", "expected"),
    [
        (0, 0, (0, 1)),
        (-SECOND, SECOND, (0, 1)),
        (-SECOND, SECOND + 1, (0, 2)),
        (499 * MS, 501 * MS, (1, 1)),
        (10 * SECOND, 14 * SECOND, (12, 2)),
        (10 * SECOND + 1, 14 * SECOND + 999 * MS, (12, 3)),
    ],
)
def test_bound_is_rounded_outwards_to_whole_seconds(earliest: int, latest: int, expected: tuple[int, int]) -> None:
    assert whole_seconds(TimeInterval(earliest, latest)) == expected


def test_answer_always_holds_the_agents_interval() -> None:
    chance = random.Random(5)
    for _ in range(20_000):
        middle = chance.randrange(NOW_S * SECOND, (NOW_S + 3) * SECOND)
        now = TimeInterval.around(middle, chance.choice([0, 1, 10 * MS, 999 * MS, chance.randrange(10 * SECOND)]))
        midpoint, radius = whole_seconds(now)
        assert (midpoint - radius) * SECOND <= now.earliest
        assert now.latest <= (midpoint + radius) * SECOND
        assert 1 <= radius <= now.radius // SECOND + 2


def test_server_says_the_agents_time_and_is_silent_without_one() -> None:
    answer = asked(server())
    assert answer is not None
    assert (answer.midpoint_s, answer.radius_s) == (NOW_S, 1)

    def nothing() -> TimeInterval:
        raise BadTime("no-time", "nothing", hint="")

    assert asked(RoughServer(nothing, Delegations([], LONG_TERM))) is None
    widest = asked(server(TimeInterval(0, 2**62)))
    assert widest is not None
    assert widest.interval.latest >= 2**62
    assert asked(server(TimeInterval(0, 2**63 + 2**62))) is None


# -- the keys ----------------------------------------------------------------------------------------------------------


def test_keys_made_ahead_follow_each_other_without_a_gap() -> None:
    made = list(make_ahead(LONG_TERM, NOW.latest, span_ns=30 * DAY, each_ns=7 * DAY))
    delegations = Delegations(made)
    used = []
    for hour in range(30 * 24):
        now = TimeInterval(NOW.earliest + hour * HOUR, NOW.latest + hour * HOUR)
        answer = asked(server(now, delegations))
        assert answer is not None, hour
        used.append(answer.delegated_until_s)
    assert len(set(used)) == len(made)
    assert used == sorted(used), "never back to a key that ends sooner"


@pytest.mark.parametrize("days", [-1, 8])
def test_server_without_a_valid_key_is_silent(days: int) -> None:
    made = Delegations([delegate(LONG_TERM, signer("online"), NOW_S, NOW_S + 7 * 86400)])
    now = TimeInterval(NOW.earliest + days * DAY, NOW.latest + days * DAY)
    assert asked(server(now, made)) is None


def test_server_with_the_long_term_key_makes_the_next_key_long_before_the_last_expires() -> None:
    delegations = Delegations([], LONG_TERM)
    ends = set()
    for hour in range(72):
        now = TimeInterval(NOW.earliest + hour * HOUR, NOW.latest + hour * HOUR)
        answer = asked(server(now, delegations))
        assert answer is not None
        assert answer.delegated_until_s * SECOND - now.latest > OWN_LIFE_NS // 2 - HOUR
        ends.add(answer.delegated_until_s)
    assert 5 <= len(ends) <= 8


def test_delegations_lie_in_files_that_only_their_owner_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "roughtime"
    place.mkdir()
    made = list(make_ahead(LONG_TERM, NOW.latest, span_ns=DAY, each_ns=DAY))
    paths = [save_delegation(place, each) for each in made]
    assert [load_delegation(path).from_s for path in paths] == [each.from_s for each in made]
    assert len(load_delegations(tmp_path, LONG_TERM.public)) == len(made)
    assert load_delegations(tmp_path, signer("another").public) == []
    paths[0].chmod(0o640)
    with pytest.raises(NotTrusted):
        load_delegation(paths[0])
    paths[0].chmod(0o600)
    paths[0].write_bytes(b"{}")
    with pytest.raises(BadConfiguration, match="no delegation"):
        load_delegation(paths[0])
    assert len(load_delegations(tmp_path, LONG_TERM.public)) == len(made) - 1
    paths[1].chmod(0o440)  # what systemd's access list looks like
    assert len(load_delegations(tmp_path, LONG_TERM.public)) == len(made) - 2
    monkeypatch.setenv(CREDENTIALS, str(place))
    assert len(load_delegations(tmp_path / "elsewhere", LONG_TERM.public)) == len(made) - 1


# A year's keys, and next year's beside them.
def test_of_too_many_delegations_the_newest_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list(make_ahead(LONG_TERM, NOW.latest, span_ns=9 * DAY, each_ns=DAY))
    for number, each in enumerate(made):
        place = tmp_path / ("roughtime" if number % 2 else "credentials")
        place.mkdir(exist_ok=True)
        save_delegation(place, each)
    monkeypatch.setenv(CREDENTIALS, str(tmp_path / "credentials"))
    monkeypatch.setattr(server_module, "DELEGATIONS_MAX", 3)
    found = load_delegations(tmp_path, LONG_TERM.public)
    assert [each.until_s for each in found] == [each.until_s for each in made[-3:]]


@pytest.mark.parametrize("spoil", [("certificates", []), ("version", 2), ("long_term", "ssh-ed25519 AAAA x"), ("x", 1)])
def test_spoiled_delegation_is_refused_by_name(tmp_path: Path, spoil: tuple[str, object]) -> None:
    import msgspec

    path = save_delegation(tmp_path, delegate(LONG_TERM, signer("online"), 1, 2))
    raw = msgspec.json.decode(path.read_bytes())
    raw[spoil[0]] = spoil[1]
    path.write_bytes(msgspec.json.encode(raw))
    with pytest.raises(BadConfiguration):
        load_delegation(path)


# -- datagrams ---------------------------------------------------------------------------------------------------------


def mutated(chance: random.Random) -> bytes:
    """A datagram that began as a good request, or never was one."""
    data = bytearray(make_request(LONG_TERM.public, chance.randbytes(32), chance.choice([VERSIONS, VERSIONS[:1]])))
    match chance.randrange(9):
        case 0:
            return chance.randbytes(chance.randrange(0, 1500))
        case 1:
            return bytes(data[: chance.randrange(len(data))])
        case 2:
            data += chance.randbytes(chance.choice([1, 4, 3000, 5000]))
        case 3:
            for _ in range(chance.randrange(1, 40)):
                data[chance.randrange(100)] ^= 1 << chance.randrange(8)
        case 4:
            for _ in range(chance.randrange(1, 4)):
                data[chance.randrange(len(data))] = chance.randrange(256)
        case 5:  # the number of tags, and their offsets
            struct.pack_into("<I", data, 12 + 4 * chance.randrange(6), chance.choice([0, 1, 2**31, 2**32 - 1, 7, 4096]))
        case 6:  # the tags themselves: other names, out of order, twice
            place = 32 + 4 * chance.randrange(5)
            data[place : place + 4] = chance.choice([data[32:36], data[40:44], b"TYPE", b"CERT", bytes(4)])
        case 7:  # a version list of another length, an unframed packet
            return bytes(data[12:]) if chance.random() < 0.5 else bytes(data[:8] + struct.pack("<I", 0) + data[12:])
        case _:
            struct.pack_into("<I", data, 8, chance.randrange(2**32))
    return bytes(data)


def fuzz(count: int, seed: int) -> None:
    chance = random.Random(seed)
    answering = server()
    done = 0
    while done < count:
        batch = [mutated(chance) for _ in range(63)]
        good = make_request(LONG_TERM.public, chance.randbytes(32))
        place = chance.randrange(64)
        batch.insert(place, good)
        answers = answering.answers(batch)
        assert len(answers) == len(batch)
        for request, answer in zip(batch, answers, strict=True):
            assert answer is None or len(answer) <= len(request), "amplified"
        answer = answers[place]
        assert answer is not None, "a good request in bad company has its answer"
        assert open_answer(LONG_TERM.public, good, answer).midpoint_s == NOW_S
        done += len(batch)


def test_server_answers_on_whatever_datagrams_come() -> None:
    fuzz(20_000, 1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_server_answers_on_whatever_million_datagrams_come() -> None:
    fuzz(1_000_000, 2)


# What does not come from the library as its own error must not cost the others their answers.
def test_failure_inside_the_library_costs_one_answer_only(monkeypatch: pytest.MonkeyPatch) -> None:
    real = library.handle_batch
    bad = make_request(LONG_TERM.public, b"x" * 32)

    def failing(answering: object, requests: list[bytes]) -> list[bytes | None]:
        if bad in requests:
            raise ZeroDivisionError
        return real(answering, requests)  # type: ignore[arg-type]

    monkeypatch.setattr(library, "handle_batch", failing)
    good = make_request(LONG_TERM.public, b"y" * 32)
    answers = server().answers([good, bad, good])
    assert [answer is not None for answer in answers] == [True, False, True]


class OverTheWire:
    """A server on a loopback socket, in a thread."""

    def __init__(self, answering: RoughServer) -> None:
        bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        bound.bind(("127.0.0.1", 0))
        self.port: int = bound.getsockname()[1]
        self._stopped = threading.Event()
        self.door = rough_door(bound, answering)
        self._thread = threading.Thread(target=self.door.serve, args=(self._stopped.is_set,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self.door.wake()
        self._thread.join(30)
        assert not self._thread.is_alive()
        self.door.close()


@pytest.fixture
def wire() -> Iterator[OverTheWire]:
    served = OverTheWire(server())
    yield served
    served.stop()


def test_door_serves_on_after_junk(wire: OverTheWire) -> None:
    chance = random.Random(3)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(1)
        client.connect(("127.0.0.1", wire.port))
        for _ in range(200):
            client.send(mutated(chance)[:1400])
        for number in range(10):
            answer = _answer_to(client, make_request(LONG_TERM.public, bytes([number]) * 32))
            assert answer.midpoint_s == NOW_S


def _answer_to(client: socket.socket, request: bytes) -> RoughtimeAnswer:
    client.send(request)
    for _ in range(300):  # flips outside of what is checked are requests too, and have answers
        try:
            return open_answer(LONG_TERM.public, request, client.recv(4096))
        except Damaged:
            continue
        except TimeoutError:  # a full queue drops datagrams: this one, or the answer
            client.send(request)
    raise AssertionError("no answer")


def test_log_is_not_written_by_strangers(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(4)
    server().answers([mutated(chance) for _ in range(500)])
    assert [record for record in caplog.records if record.name.startswith("roughly")] == []
    assert capfd.readouterr().err == ""
