"""Signed pairs of acquire and relinquish per second by TCP and TLS, as ratios against the same shard's Unix socket.

Run it as a script: ``python tests/bench/bench_transport.py [--rounds N] [--pairs N] [--json]``. One server process, and
this one as the client: 1 or 64 connections with one request each, and one connection with 100 requests a call. The
contenders take turns in an order that changes every round; reported are medians of the rates and of the ratios within
a round, the server's CPU time per pair beside them, and the time to make a connection. Every round verifies a witness.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import signal
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from appliance.formats.names import Address  # noqa: E402 - a script finds the repository first
from appliance.lease import tls  # noqa: E402
from appliance.lease.listeners import TlsListener  # noqa: E402
from appliance.lease.server import ShardServer  # noqa: E402
from appliance.lease.wire import (  # noqa: E402
    LENGTH_BYTES,
    REPLY_FRAME_BYTES_MAX,
    Over,
    Reply,
    Request,
    Unavailable,
    Welcome,
    body_length,
    decode_answer,
    encode_call,
)
from tests.bench.bench_lease import Load, interleaved, make_shard  # noqa: E402
from tests.support.nodes import HandTrust, entry, hello, read_exactly, tls_key  # noqa: E402
from tests.support.values import CLUSTER  # noqa: E402
from timeagent.clock import SystemClock  # noqa: E402
from timeagent.units import SECOND  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

SHAPES = {"1": (1, 1), "64": (64, 1), "1_by_100": (1, 100)}
"""Connections, and requests in each call."""


def serve(directory: Path) -> None:
    """Serve one shard both ways until SIGTERM; the port is written last."""
    clock, trust = SystemClock(), HandTrust(entry("node-a"), entry("node-b"))
    server = ShardServer(make_shard("signed", directory), directory / "s", clock=clock, trust=trust)
    context = tls.server_context(tls_key("node-a"))
    door = TlsListener(Address("127.0.0.1", 0), context, trust, CLUSTER, lambda _: server, clock)
    signal.signal(signal.SIGTERM, lambda *_: server.stop())
    Thread(target=door.run, daemon=True).start()
    (directory / "port.new").write_text(str(door.address.port))
    (directory / "port").hardlink_to(directory / "port.new")  # whole from the first look
    server.run()
    door.stop()


def by_unix(directory: Path) -> socket.socket:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.settimeout(30)
    line.connect(str(directory / "s"))
    return line


def by_tls(directory: Path) -> socket.socket:
    plain = socket.create_connection(("127.0.0.1", int((directory / "port").read_text())), timeout=30)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line = tls.client_context(tls_key("node-b")).wrap_socket(plain)
    line.sendall(encode_call([hello("node-b")]))
    assert isinstance(answer(line, 1)[0], Welcome)
    return line


WAYS: dict[str, Callable[[Path], socket.socket]] = {"tls": by_tls, "unix": by_unix}


def answer(line: socket.socket, requests: int) -> list[Reply]:
    length = body_length(read_exactly(line, LENGTH_BYTES), REPLY_FRAME_BYTES_MAX)
    return decode_answer(read_exactly(line, length), requests)


def pairs_by(lines: list[socket.socket], load: Load, pairs: int, each: int, process: int) -> tuple[float, float]:
    """Return pairs a second of the round trips alone, and the server's CPU seconds per pair."""
    spent, batch, verify = 0, len(lines) * each, True
    began_cpu = cpu_seconds(process)
    for _ in range(max(1, pairs // batch)):
        asked = load.acquires(batch)
        replies, took = exchanged(lines, asked, each)
        spent += took
        over, took = exchanged(lines, load.relinquishes(asked, replies, verify=verify), each)
        spent += took
        verify = False
        assert all(isinstance(reply, Over | Unavailable) for reply in over)
    done = max(1, pairs // batch) * batch
    return done * SECOND / spent, (cpu_seconds(process) - began_cpu) / done


def exchanged(lines: list[socket.socket], requests: list[Request], each: int) -> tuple[list[Reply], int]:
    frames = [encode_call(requests[at : at + each]) for at in range(0, len(requests), each)]
    began = time.perf_counter_ns()
    for line, frame in zip(lines, frames, strict=True):
        line.sendall(frame)
    replies = [reply for line in lines for reply in answer(line, each)]
    return replies, time.perf_counter_ns() - began


def cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def connecting(way: Callable[[Path], socket.socket], directory: Path) -> float:
    """Return milliseconds for one connection to be made, and greeted where it must be."""
    began = time.perf_counter_ns()
    for _ in range(20):
        way(directory).close()
    return (time.perf_counter_ns() - began) / 20e6


def run(directory: Path, rounds: int, pairs: int) -> dict[str, float]:
    result: dict[str, float] = {}
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(directory,), daemon=True)
    process.start()
    try:
        while not (directory / "port").exists():
            assert process.is_alive()
            time.sleep(0.01)
        assert process.pid is not None
        load = Load(directory)
        for shape, (count, each) in SHAPES.items():
            lines = {name: [way(directory) for _ in range(count)] for name, way in WAYS.items()}
            cpu: dict[str, list[float]] = {name: [] for name in WAYS}

            def measure(name: str, at: dict[str, list[socket.socket]], each: int, cpu: dict[str, list[float]]) -> float:
                rate, used = pairs_by(at[name], load, pairs, each, process.pid or 0)
                cpu[name].append(used)
                return rate

            found = interleaved(rounds, {name: functools.partial(measure, name, lines, each, cpu) for name in WAYS})
            for name, rates in found.items():
                result[f"{shape}_{name}_pairs"] = statistics.median(rates)
                result[f"{shape}_{name}_server_us"] = statistics.median(cpu[name]) * 1e6
            ratios = [mine / theirs for mine, theirs in zip(found["tls"], found["unix"], strict=True)]
            result[f"{shape}_tls_against_unix"] = statistics.median(ratios)
            for line in (line for each_way in lines.values() for line in each_way):
                line.close()
        found = interleaved(rounds, {name: functools.partial(connecting, way, directory) for name, way in WAYS.items()})
        for name, spans in found.items():
            result[f"connect_{name}_ms"] = statistics.median(spans)
        result["witnesses_verified"] = float(load.checked)
    finally:
        if process.pid is not None:
            os.kill(process.pid, signal.SIGTERM)
            process.join(10)
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
    print("pairs of acquire and relinquish by TLS and by a Unix socket; medians of interleaved rounds")
    for name, value in result.items():
        print(f"  {name:28s} {value:12.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
