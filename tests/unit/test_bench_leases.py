"""The benchmark of leases believes nobody: planted faults are found, and what is absent is named."""

import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from appliance.formats.witness import SignedWitness
from appliance.lease.wire import Granted
from tests.bench.leases import peers
from tests.bench.leases.bars import BARS, judged
from tests.bench.leases.generator import Generator, NotBelieved, compiled, refuse, verify
from tests.bench.leases.peers import Absent
from tests.bench.leases.served import KEYRING
from tests.support.shards import World, acquire
from tests.support.values import CLUSTER
from timeagent.canonical import decode, encode

CLEAN = {"double_holders": 0, "fence_faults": 0, "short": 0, "faults": 0, "first_fault": "", "pairs": 1}


class FakeRedis:
    """Answers what looks like RESP on a Unix socket; ``grants`` says whether a SET is granted."""

    def __init__(self, path: Path, grants: Callable[[bytes], bool]) -> None:
        self._grants = grants
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._connections: list[socket.socket] = []
        Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                each, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(each)
            Thread(target=self._serve, args=(each,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            while head := lines.readline():
                words = []
                for _ in range(int(head[1:])):
                    size = int(lines.readline()[1:])
                    words.append(lines.read(size + 2)[:-2])
                match words[0]:
                    case b"SCRIPT":
                        answer = b"$40\r\n" + b"a" * 40 + b"\r\n"
                    case b"SET":
                        answer = b"+OK\r\n" if self._grants(words[1]) else b"$-1\r\n"
                    case _:
                        answer = b":1\r\n"
                try:
                    connection.sendall(answer)
                except OSError:
                    return

    def close(self) -> None:
        self._listener.close()
        for each in self._connections:
            each.close()


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Generator:
    directory = tmp_path_factory.mktemp("generator")
    try:
        program = compiled(directory)
    except Absent as problem:
        pytest.skip(str(problem))
    return Generator(program, directory, KEYRING, CLUSTER, warm_ms=1, run_ms=50)


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Callable[[Callable[[bytes], bool]], str]]:
    made: list[FakeRedis] = []

    def make(grants: Callable[[bytes], bool]) -> str:
        made.append(FakeRedis(tmp_path / f"{len(made)}.sock", grants))
        return str(tmp_path / f"{len(made) - 1}.sock")

    yield make
    for each in made:
        each.close()


def test_a_server_that_grants_a_held_key_is_reported(load: Generator, fake: Callable[..., str]) -> None:
    target = fake(lambda _: True)
    with pytest.raises(NotBelieved, match="grants of a key that had a holder"):
        load.run("redis", target, connections=1, batch=2, keys=1)


def test_two_clients_that_hold_one_key_at_once_are_reported(load: Generator, fake: Callable[..., str]) -> None:
    with pytest.raises(NotBelieved, match="grants of a key that had a holder"):
        load.run("redis", fake(lambda _: True), connections=16, keys=1, run_ms=1000)


# The same server is believed while nobody else wants what a client has: it is the grants that are judged.
def test_the_same_server_with_one_client_is_measured(load: Generator, fake: Callable[..., str]) -> None:
    assert load.run("redis", fake(lambda _: True), connections=1, keys=2).rate > 0


def test_a_server_that_grants_nothing_has_no_figure(load: Generator, fake: Callable[..., str]) -> None:
    with pytest.raises(NotBelieved, match="nothing was granted"):
        load.run("redis", fake(lambda _: False), connections=1, keys=2)


@pytest.mark.parametrize(
    ("planted", "words"),
    [
        ({"double_holders": 3}, "3 grants of a key that had a holder"),
        ({"fence_faults": 1}, "fences that did not grow"),
        ({"faults": 1, "first_fault": "a reply: -ERR"}, "a reply: -ERR"),
        ({"short": 7}, "7 keys that were to be filled"),
        ({"pairs": 0}, "nothing was granted"),
    ],
)
def test_what_a_generator_counted_rules_its_figures_out(planted: dict[str, Any], words: str) -> None:
    refuse("a server", CLEAN)
    with pytest.raises(NotBelieved, match=words):
        refuse("a server", CLEAN | planted)


def sampled(name: str, witness: SignedWitness) -> bytes:
    raw = encode(witness)
    return len(name).to_bytes(4, "big") + len(raw).to_bytes(4, "big") + name.encode() + raw


@pytest.fixture
def witness(tmp_path: Path) -> Iterator[SignedWitness]:
    world = World(tmp_path)
    (reply,) = world.started().turn([acquire(world, "a")])
    assert isinstance(reply, Granted)
    yield decode(SignedWitness, reply.signed)
    world.close()


def test_a_witness_counts_only_with_its_signature_and_for_its_key(witness: SignedWitness) -> None:
    assert verify(sampled("a", witness) * 2, KEYRING, CLUSTER) == 2
    with pytest.raises(NotBelieved, match="is about a"):
        verify(sampled("b", witness), KEYRING, CLUSTER)
    forged = SignedWitness(
        entry=witness.entry, index=witness.index, path=witness.path, head=witness.head, signature=bytes(64)
    )
    with pytest.raises(NotBelieved, match="proves nothing"):
        verify(sampled("a", forged), KEYRING, CLUSTER)
    assert verify(sampled("a", forged), KEYRING, CLUSTER, signed=False) == 1
    with pytest.raises(NotBelieved, match="has signed"):
        verify(sampled("a", witness), KEYRING, CLUSTER, signed=False)


def test_a_missed_bar_and_one_that_nobody_measured_are_short() -> None:
    met = {bar.number: bar.bound for bar in BARS}
    assert judged(met, {})[1]
    for bar in BARS:
        missed = met | {bar.number: bar.bound * 1.01 + 1 if bar.at_most else bar.bound * 0.99}
        lines, good = judged(missed, {})
        assert not good
        assert sum("SHORT" in line for line in lines) == 1
        unmeasured = {name: value for name, value in met.items() if name != bar.number}
        assert not judged(unmeasured, {})[1]


def test_bars_of_an_absent_peer_are_skipped_by_its_name() -> None:
    met = {bar.number: bar.bound for bar in BARS if "kazoo" not in bar.number}
    lines, good = judged(met, {"kazoo": "no java on PATH"})
    assert good
    assert sum("skipped, kazoo: no java on PATH" in line for line in lines) == 3


def test_a_peer_that_cannot_be_had_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("java") is None
    with pytest.raises(Absent, match="no java on PATH"), peers.zookeeper(tmp_path):
        pass
    with pytest.raises(Absent, match="its Debian packages cannot be had"), peers.redis(tmp_path):
        pass
    with pytest.raises(Absent, match="no C compiler"):
        compiled(tmp_path)


def test_the_command_says_what_it_takes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.leases.run", "--help"], capture_output=True, text=True, check=True
    )
    assert "--short" in done.stdout
