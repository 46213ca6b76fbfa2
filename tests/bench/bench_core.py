"""A shard with the native core against the same without: processor time of the server for a pair, in one run.

``python tests/bench/bench_core.py [--rounds N] [--run-ms N]``. Two servers on Unix sockets, one of them with
``TENURE_CORE=python``, take turns under the C generator of `tests/bench/leases`, which verifies a sample of the
witnesses: 64 connections with one lease a request, 8 with 100. Reported are medians of the rounds, and of the ratios
within a round.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.bench.leases.generator import Generator, compiled  # noqa: E402 - a script finds the repository first
from tests.bench.leases.served import KEYRING  # noqa: E402
from tests.support.values import CLUSTER  # noqa: E402
from timeagent import core  # noqa: E402

LOADS: dict[str, dict[str, object]] = {
    "64 connections, one a request": {"connections": 64, "batch": 1, "keys": 100_000, "prefix": "a"},
    "8 connections, 100 a request": {"connections": 8, "batch": 100, "keys": 100_000, "prefix": "b"},
}


def started(directory: Path, kind: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.bench.leases.served", str(directory), kind]
    server = subprocess.Popen(command, cwd=ROOT, env={**os.environ, core.VARIABLE: kind})
    while not (directory / f"{kind}.sock").exists():
        if server.poll() is not None:
            sys.exit(f"bench: the server with {core.VARIABLE}={kind} has ended")
        time.sleep(0.01)
    return server


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--run-ms", type=int, default=1000)
    options = parser.parse_args()
    if core.native is None:
        print("bench: the native core is not here, or not chosen: there is nothing to compare")
        return 0
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as place:
        directory = Path(place)
        generator = Generator(compiled(directory), directory, KEYRING, CLUSTER, warm_ms=100, run_ms=options.run_ms)
        servers = {kind: started(directory, kind) for kind in ("python", "native")}
        try:
            print(f"us of the server for a pair; core: {core.said()}")
            for load, settings in LOADS.items():
                found: dict[str, list[float]] = {kind: [] for kind in servers}
                for _ in range(options.rounds):
                    for kind, server in servers.items():
                        figure = generator.run("lease", str(directory / f"{kind}.sock"), server.pid, **settings)
                        found[kind].append(figure.cpu_us)
                ratios = [one / other for one, other in zip(found["native"], found["python"], strict=True)]
                words = ", ".join(f"{kind} {statistics.median(each):.1f}" for kind, each in found.items())
                print(f"  {load:32s} {words}, ratio {statistics.median(ratios):.2f}")
        finally:
            for server in servers.values():
                server.terminate()
                server.wait(30)
    return 0


if __name__ == "__main__":
    sys.exit(main())
