"""Signed pairs of acquire and relinquish per second, as ratios: against the same without signatures, and a bare echo.

Run it as a script: ``python tests/bench/bench_lease.py [--rounds N] [--pairs N] [--json]``. In process: one turn holds
1 or 64 requests. Over a Unix socket: a server process and this one, 1 or 64 connections with one request each. The
contenders take turns in an order that changes every round. Reported are medians over the rounds, of rates and of the
ratios within a round. ``unsigned`` is the same shard with a signer that returns zeros; ``echo`` is the same server loop
and the same wire around a shard that does nothing. Every signed round verifies a witness.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import multiprocessing
import os
import random
import signal
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from appliance.formats.policy import Policy  # noqa: E402 - a script finds the repository first
from appliance.formats.shardmap import ShardMap  # noqa: E402
from appliance.formats.witness import SignedWitness  # noqa: E402
from appliance.lease.ceiling import CeilingChain, Extended, ShardIdentity  # noqa: E402
from appliance.lease.server import ShardServer  # noqa: E402
from appliance.lease.shard import Shard  # noqa: E402
from appliance.lease.store import LeaseStore  # noqa: E402
from appliance.lease.wire import (  # noqa: E402
    LENGTH_BYTES,
    REPLY_FRAME_BYTES_MAX,
    Granted,
    Over,
    Reply,
    Request,
    Unavailable,
    body_length,
    decode_answer,
    encode_call,
)
from tests.support.shards import MemoryChain, World, acquire, relinquish  # noqa: E402
from tests.support.values import CLUSTER, TIME_KEY, WITNESS_KEY, trust_record, witness_refused  # noqa: E402
from timeagent.agent.bounded_clock import EmbeddedTime  # noqa: E402
from timeagent.canonical import decode  # noqa: E402
from timeagent.clock import SystemClock  # noqa: E402
from timeagent.keys import Signer  # noqa: E402
from timeagent.sources.local import AssumedSource  # noqa: E402
from timeagent.trust import Keyring  # noqa: E402
from timeagent.units import MS, SECOND  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

POLICY = Policy(number=1, cluster_id=CLUSTER, assumed_radius_ns=5 * MS)
KEYRING = Keyring(trust_record().keys)
CONTENDERS = ("signed", "unsigned", "echo")


class ZeroSigner(Signer):
    """Signs with zeros: all of a shard's work but the signature."""

    def __init__(self) -> None:
        self.id = WITNESS_KEY.id

    def sign(self, context: str, payload: bytes) -> bytes:
        del context, payload
        return bytes(64)


class NoLedger:
    def append(self, data: bytes) -> None:
        pass


class EchoShard:
    """Answers at once with as little as the wire allows."""

    def turn(self, requests: list[Request]) -> list[Reply]:
        ids = [getattr(each, "request_id", bytes(16)) for each in requests]
        return [Unavailable(request_id=each, code="", message="") for each in ids]

    def serve(self, requests: list[Request], waiters: object = ()) -> list[Reply]:
        del waiters
        return self.turn(requests)

    def due_in(self) -> None:
        return None

    def housekeeping(self) -> None:
        pass


def make_shard(kind: str, directory: Path) -> Any:  # noqa: ANN401 - an EchoShard is no Shard, and serves as one
    if kind == "echo":
        return EchoShard()
    clock = SystemClock()
    node_time = EmbeddedTime(clock, [AssumedSource(clock, POLICY.assumed_radius_ns)], TIME_KEY, radius_ns_max=250 * MS)
    signer: Signer = WITNESS_KEY if kind == "signed" else ZeroSigner()
    identity = ShardIdentity(CLUSTER, 1, 0, "node-a", bytes(8))
    shard = Shard(
        identity,
        ShardMap(number=1, cluster_id=CLUSTER, owners=("node-a",)),
        POLICY,
        store=LeaseStore(directory / f"{kind}.db"),
        chain=CeilingChain(MemoryChain(), node_time, WITNESS_KEY, POLICY, identity),
        time=node_time,
        signer=signer,
        ledger=NoLedger(),
        randomness=random.Random(1),
    )
    assert isinstance(shard.start(), Extended)
    return shard


class Load:
    """Makes the requests: 10,000 domains in turn; relinquishes what it was given."""

    def __init__(self, directory: Path) -> None:
        self._world = World(directory)
        self._names = itertools.cycle([f"domain-{n}" for n in range(10_000)])
        self.checked = 0

    def acquires(self, count: int) -> list[Request]:
        until = time.time_ns() + 60 * SECOND
        self._world.time.midpoint_ns = until - 60 * SECOND
        return [acquire(self._world, next(self._names), until_ns=until) for _ in range(count)]

    def relinquishes(self, asked: list[Request], replies: list[Reply], *, verify: bool) -> list[Request]:
        given: list[Request] = []
        for reply in replies:
            if isinstance(reply, Granted):
                signed = decode(SignedWitness, reply.signed)
                if verify:
                    assert witness_refused(signed, KEYRING, CLUSTER) is None
                    self.checked += 1
                    verify = False
                given.append(relinquish(self._world, signed.witness()))
            else:
                assert isinstance(reply, Unavailable), reply
        return given or [asked[n] for n in range(len(replies))]


def in_process(shard: Any, load: Load, pairs: int, batch: int, *, verify: bool) -> float:  # noqa: ANN401
    """Return pairs per second of the turns alone: making requests and reading replies is not counted."""
    spent = 0
    for _ in range(pairs // batch):
        asked = load.acquires(batch)
        began = time.perf_counter_ns()
        replies = shard.turn(asked)
        spent += time.perf_counter_ns() - began
        given = load.relinquishes(asked, replies, verify=verify)
        verify = False
        began = time.perf_counter_ns()
        over = shard.turn(given)
        spent += time.perf_counter_ns() - began
        assert all(isinstance(each, Over | Unavailable) for each in over)
    return pairs // batch * batch * SECOND / spent


def serve(kind: str, directory: Path) -> None:
    server = ShardServer(make_shard(kind, directory), directory / f"{kind}.sock")
    signal.signal(signal.SIGTERM, lambda *_: server.stop())
    server.run()


class Lines:
    """Some connections to one server; a round trip sends on all of them before it reads."""

    def __init__(self, path: Path, count: int) -> None:
        self._sockets = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(count)]
        for each in self._sockets:
            each.settimeout(30)
            each.connect(str(path))

    def close(self) -> None:
        for each in self._sockets:
            each.close()

    def exchange(self, frames: list[bytes]) -> list[Reply]:
        for each, frame in zip(self._sockets, frames, strict=True):
            each.sendall(frame)
        bodies = []
        for each in self._sockets:
            length = body_length(each.recv(LENGTH_BYTES, socket.MSG_WAITALL), REPLY_FRAME_BYTES_MAX)
            bodies.append(each.recv(length, socket.MSG_WAITALL))
        return [decode_answer(body, 1)[0] for body in bodies]


def over_socket(lines: Lines, load: Load, pairs: int, batch: int, *, verify: bool) -> float:
    spent = 0
    for _ in range(pairs // batch):
        asked = load.acquires(batch)
        frames = [encode_call([each]) for each in asked]
        began = time.perf_counter_ns()
        replies = lines.exchange(frames)
        spent += time.perf_counter_ns() - began
        frames = [encode_call([each]) for each in load.relinquishes(asked, replies, verify=verify)]
        verify = False
        began = time.perf_counter_ns()
        lines.exchange(frames)
        spent += time.perf_counter_ns() - began
    return pairs // batch * batch * SECOND / spent


def interleaved(rounds: int, measures: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in measures}
    names = list(measures)
    for each in names:
        measures[each]()
    for turn in range(rounds):
        for each in names[turn % len(names) :] + names[: turn % len(names)]:
            found[each].append(measures[each]())
    return found


def summary(label: str, found: dict[str, list[float]]) -> dict[str, float]:
    result = {f"{label}_{name}": statistics.median(values) for name, values in found.items()}
    signed = found["signed"]
    for other, values in found.items():
        if other != "signed":
            ratios = [mine / theirs for mine, theirs in zip(signed, values, strict=True)]
            result[f"{label}_signed_against_{other}"] = statistics.median(ratios)
    return result


def run(directory: Path, rounds: int, pairs: int) -> dict[str, float]:
    result: dict[str, float] = {}
    load = Load(directory)
    shards = {kind: make_shard(kind, directory) for kind in CONTENDERS[:2]}
    for batch in (1, 64):
        measures: dict[str, Callable[[], float]] = {
            kind: functools.partial(in_process, shard, load, pairs, batch, verify=kind == "signed")
            for kind, shard in shards.items()
        }
        result |= summary(f"in_process_{batch}", interleaved(rounds, measures))
    context = multiprocessing.get_context("spawn")
    servers = {kind: directory / f"served-{kind}" for kind in CONTENDERS}
    for each in servers.values():
        each.mkdir()
    processes = [context.Process(target=serve, args=(kind, place), daemon=True) for kind, place in servers.items()]
    try:
        for process in processes:
            process.start()
        for kind, place in servers.items():
            while not (place / f"{kind}.sock").exists():
                time.sleep(0.01)
        for batch in (1, 64):
            lines = {kind: Lines(place / f"{kind}.sock", batch) for kind, place in servers.items()}
            measures = {
                kind: functools.partial(over_socket, line, load, pairs, batch, verify=kind == "signed")
                for kind, line in lines.items()
            }
            result |= summary(f"socket_{batch}", interleaved(rounds, measures))
            for line in lines.values():
                line.close()
    finally:
        for process in processes:
            if process.pid is not None:
                os.kill(process.pid, signal.SIGTERM)
                process.join(10)
    result["witnesses_verified"] = float(load.checked)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--pairs", type=int, default=2048, help="pairs in each round of each contender")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as directory:
        result = run(Path(directory), options.rounds, options.pairs)
    if options.json:
        print(json.dumps(result, sort_keys=True))
        return 0
    print("pairs of acquire and relinquish, each witness signed; medians of interleaved rounds")
    for name, value in result.items():
        print(f"  {name:42s} {value:12.2f}" if "against" in name else f"  {name:42s} {value:12.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
