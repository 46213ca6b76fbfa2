"""Whatever a client sends: no crash, nothing kept of it, nobody granted what another has.

A short run is part of the tests, a run of a million inputs is marked slow: both are the same code from a seed.
"""

from __future__ import annotations

import gc
import os
import random
import socket
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import msgspec
import pytest

from appliance.formats.shardmap import ShardMap
from appliance.lease.ceiling import CeilingChain, Extended, ShardIdentity
from appliance.lease.connection import Limits
from appliance.lease.server import ShardServer
from appliance.lease.shard import Shard
from appliance.lease.store import LeaseStore
from appliance.lease.wire import Granted, Hello, Welcome, encode_call
from tests.support.cluster import wait_until
from tests.support.frames import Frames, JudgingLedger, WrongGrant
from tests.support.nodes import DoorWorld, hello, read_answer, read_to_the_end
from tests.support.shards import HOLDER, POLICY, RIVAL, World, acquire, opened
from tests.support.values import CLUSTER, NODE, WITNESS_KEY
from timeagent.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator

CLOCK = SystemClock()
GROWTH_BYTES_MAX = 48 * 2**20
"""How much more memory than after its first fifth a run may use: what is kept of 800,000 inputs would be more."""


class Fuzzed:
    """A served shard whose ledger judges every grant."""

    def __init__(self, path: Path) -> None:
        self.world = World(path)
        self.ledger = JudgingLedger()
        identity = ShardIdentity(CLUSTER, 1, 0, NODE, bytes(8))
        self.store = LeaseStore(path / "fuzzed.db")
        shard = Shard(
            identity,
            ShardMap(number=1, cluster_id=CLUSTER, owners=(NODE,)),
            POLICY,
            store=self.store,
            chain=CeilingChain(self.world.chain, self.world.time, WITNESS_KEY, POLICY, identity),
            time=self.world.time,
            signer=WITNESS_KEY,
            ledger=self.ledger,
            randomness=self.world.chance,
            domains_max=10_000,
        )
        assert isinstance(shard.start(), Extended)
        self.path = path / "s"
        self.server = ShardServer(shard, self.path, limits=Limits(connections_max=16), clock=CLOCK)
        self.thread = Thread(target=self.server.run, daemon=True)
        self.thread.start()

    def connected(self) -> socket.socket:
        plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        plain.settimeout(60)
        plain.connect(str(self.path))
        return plain

    def out(self) -> list[object]:
        return [each for holders in list(self.ledger.out.values()) for each in list(holders.values())]

    def close(self) -> None:
        self.server.stop()
        self.thread.join(60)
        assert not self.thread.is_alive()
        self.store.close()
        self.world.close()


@pytest.fixture
def fuzzed(tmp_path: Path) -> Iterator[Fuzzed]:
    each = Fuzzed(tmp_path)
    yield each
    each.close()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def fuzz(fuzzed: Fuzzed, inputs: int, seed: int) -> None:
    """Send so many inputs, a few on each connection; some connections end in the middle of everything."""
    chance = random.Random(seed)
    frames = Frames(fuzzed.world, chance, fuzzed.out)  # type: ignore[arg-type]
    before = descriptors()
    sent, resident = 0, None
    while sent < inputs:
        plain = fuzzed.connected()
        few = chance.randint(1, 8)
        data = b"".join(frames.one() for _ in range(few))
        sent += few
        try:
            plain.sendall(data)
            if chance.randrange(8):
                plain.shutdown(socket.SHUT_WR)
                read_to_the_end(plain)
        except OSError:
            pass  # cut off before all of it was sent
        plain.close()
        if resident is None and sent > inputs // 5:
            gc.collect()
            resident = resident_bytes()
    wait_until(CLOCK, lambda: fuzzed.server.connections == 0)
    assert fuzzed.thread.is_alive()
    assert descriptors() <= before
    assert len(fuzzed.server._guests.peers) <= 1
    gc.collect()
    assert resident is not None
    assert resident_bytes() - resident < GROWTH_BYTES_MAX


def works_as_ever(fuzzed: Fuzzed) -> None:
    """A well-behaved client is served: one has it, the other does not, whatever was sent before."""
    with fuzzed.connected() as plain:
        plain.sendall(encode_call([Hello(version=1, cluster_id=CLUSTER)]))
        assert isinstance(read_answer(plain)[0], Welcome)
        plain.sendall(encode_call([acquire(fuzzed.world, "new", holder=HOLDER)]))
        mine = read_answer(plain)[0]
        plain.sendall(encode_call([acquire(fuzzed.world, "new", holder=RIVAL)]))
        theirs = read_answer(plain)[0]
    assert isinstance(mine, Granted)
    assert not isinstance(theirs, Granted)
    held = {str(each.domain) for each in fuzzed.out()}  # type: ignore[attr-defined]
    assert "new" in held


def test_server_outlives_whatever_is_sent_to_it(fuzzed: Fuzzed) -> None:
    fuzz(fuzzed, 20_000, seed=5)
    assert fuzzed.ledger.grants > 300  # good frames went in between
    assert sum(fuzzed.server.counts.closed.values()) > 3_000
    works_as_ever(fuzzed)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_server_outlives_a_million_inputs(fuzzed: Fuzzed) -> None:
    fuzz(fuzzed, 1_000_000, seed=6)
    works_as_ever(fuzzed)


# The judge is worth something only if it sees a grant too many.
def test_judge_sees_a_second_holder(tmp_path: Path) -> None:
    world = World(tmp_path)
    shard = world.started()
    first = opened(shard.turn([acquire(world, "a", holder=HOLDER)])[0])[1]
    second = msgspec.structs.replace(first, holder=RIVAL, correlation_id=bytes(16))
    judge = JudgingLedger()
    judge.judge(first)
    with pytest.raises(WrongGrant, match="node-r"):
        judge.judge(second)
    world.close()


def test_door_outlives_what_is_sent_behind_a_good_handshake(tmp_path: Path) -> None:
    world = DoorWorld(tmp_path)
    chance = random.Random(9)
    frames = Frames(world.world, chance, list)
    good = encode_call([hello("node-b")])
    for number in range(300):
        with world.raw() as connection:
            try:
                if number % 3 == 0:
                    connection.sendall(good)
                frames.one()
                connection.sendall(frames.spoiled(good) if number % 3 else b"".join(frames.one() for _ in range(3)))
                connection.shutdown(socket.SHUT_WR)
                read_to_the_end(connection)
            except OSError:
                pass
    wait_until(CLOCK, lambda: not world.door._visitors and world.server.connections == 0)
    with world.raw() as connection:
        connection.sendall(good)
        assert isinstance(read_answer(connection)[0], Welcome)
    world.close()


def test_door_outlives_what_is_no_tls_at_all(tmp_path: Path) -> None:
    world = DoorWorld(tmp_path)
    chance = random.Random(10)
    for _ in range(300):
        begin = chance.choice([b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"])
        with socket.create_connection(("127.0.0.1", world.door.address.port), timeout=60) as plain:
            plain.sendall(begin + chance.randbytes(chance.randrange(600)))
    wait_until(CLOCK, lambda: not world.door._visitors)
    with world.raw() as connection:
        connection.sendall(encode_call([hello("node-b")]))
        assert isinstance(read_answer(connection)[0], Welcome)
    world.close()
