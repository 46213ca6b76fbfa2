"""Whatever a client sends: no crash, nothing kept of it, nobody granted what another has.

A short run is part of the tests, a run of a million inputs is marked slow: both are the same code from a seed.
"""

from __future__ import annotations

import gc
import os
import random
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.property import fuzz as fuzz_doors
from tests.property.fuzz import ShardDoor
from tests.support.cluster import wait_until
from tests.support.frames import Frames, JudgingLedger, WrongGrant
from tests.support.nodes import read_to_the_end
from tests.support.shards import HOLDER, RIVAL, World, acquire, opened
from timeagent.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator

CLOCK = SystemClock()
GROWTH_BYTES_MAX = 48 * 2**20
"""How much more memory than after its first fifth a run may use: what is kept of 800,000 inputs would be more."""


@pytest.fixture
def fuzzed(tmp_path: Path) -> Iterator[ShardDoor]:
    each = ShardDoor(tmp_path)
    yield each
    each.close()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def fuzz(fuzzed: ShardDoor, inputs: int, seed: int) -> None:
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
    wait_until(CLOCK, lambda: descriptors() <= before)
    assert len(fuzzed.server._peers) <= 1
    gc.collect()
    assert resident is not None
    assert resident_bytes() - resident < GROWTH_BYTES_MAX


def test_server_outlives_whatever_is_sent_to_it(fuzzed: ShardDoor) -> None:
    fuzz(fuzzed, 20_000, seed=5)
    assert fuzzed.ledger.grants > 300  # good frames went in between
    assert sum(fuzzed.server.counts.closed.values()) > 3_000
    fuzzed.check(random.Random(1))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_server_outlives_a_million_inputs(fuzzed: ShardDoor) -> None:
    fuzz(fuzzed, 1_000_000, seed=6)
    fuzzed.check(random.Random(1))


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


# The whole of it: python -m tests.property.fuzz
@pytest.mark.parametrize("name", fuzz_doors.FUZZERS)
@pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning", "ignore:Attribute's length")
def test_no_door_is_closed_by_what_comes_in(name: str) -> None:
    wanted = 40 if name in fuzz_doors.CERTIFICATES else 1_000
    assert fuzz_doors.fuzz(name, wanted) >= wanted


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", fuzz_doors.FUZZERS)
@pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning", "ignore:Attribute's length")
def test_no_door_is_closed_by_a_million_inputs(name: str) -> None:
    wanted = 10_000 if name in fuzz_doors.CERTIFICATES else 1_000_000
    assert fuzz_doors.fuzz(name, wanted) >= wanted
