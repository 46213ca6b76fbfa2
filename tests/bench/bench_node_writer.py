"""Many processes of one machine that publish at once: through the node's writer, and each for itself.

    python tests/bench/bench_node_writer.py [--directory DIR]     SHORT=1: fewer rounds

Each process publishes single messages under a lease of its own, as fast as it can, for a fixed number of them. Rounds
of both ways are interleaved; what is shown is the median of the ratios. Nothing is asserted: how large the batches
become depends on how slow the mount is. On a local file system sharing is not the default, and this shows why.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from appliance.node.settings import Sharing, save_settings  # noqa: E402 - a script finds the repository first
from tests.support.cluster import Site  # noqa: E402

SHORT = bool(os.environ.get("SHORT"))
ROUNDS = 1 if SHORT else 3
MESSAGES = 40 if SHORT else 150

PROGRAM = """
import sys
from appliance.cluster import Cluster
from appliance.bag.writing import Committed
root, node_dir, number, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
with Cluster.open(root, node_dir=node_dir, allow_root=True) as cluster, cluster.session(number) as session:
    with session.acquire("writer/" + number, record_only=True) as leases:
        print("ready", flush=True)
        sys.stdin.readline()
        for n in range(count):
            assert isinstance(session.publish("events", [b"x" * 300], under=leases), Committed)
        print("done", flush=True)
        sys.stdin.readline()
"""


def run(site: Site, processes: int, *, shared: bool) -> float:
    """Return messages a second of all processes together."""
    sharing = Sharing.ALWAYS if shared else Sharing.NEVER
    save_settings(replace(site.settings["node1"], node_writer=sharing))
    words = [sys.executable, "-m", "tenure", "node", "run", "--json", *site.options()]
    daemon = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert daemon.stdout is not None
    daemon.stdout.readline()
    words = [sys.executable, "-c", PROGRAM, str(site.root), str(site.node_dir())]
    writers = [
        subprocess.Popen([*words, str(n), str(MESSAGES)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for n in range(processes)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    began = time.perf_counter()
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "done\n"
    took = time.perf_counter() - began
    for writer in writers:
        writer.communicate("\n", timeout=60)
    daemon.terminate()
    daemon.wait(60)
    daemon.stdout.close()
    return processes * MESSAGES / took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, help="where the root is made (default: tmpfs and /tmp)")
    options = parser.parse_args()
    places = [options.directory] if options.directory else [Path("/dev/shm"), Path(tempfile.gettempdir())]
    for place in places:
        for processes in (1, 8) if SHORT else (1, 8, 32):
            rates: dict[bool, list[float]] = {True: [], False: []}
            files: dict[bool, int] = {}
            for _ in range(ROUNDS):
                for shared in (True, False):
                    with tempfile.TemporaryDirectory(prefix="tenure-bench-", dir=place) as directory:
                        site = Site(Path(directory))
                        rates[shared].append(run(site, processes, shared=shared))
                        files[shared] = sum(1 for path in site.root.glob("logs/events/20*/*/*/*.msg"))
                        site.close()
            ratio = statistics.median(a / b for a, b in zip(rates[True], rates[False], strict=True))
            print(
                f"{place}, {processes} processes: {statistics.median(rates[True]):,.0f} messages/s through the node's "
                f"writer in {files[True]:,} files, {statistics.median(rates[False]):,.0f} each for itself in "
                f"{files[False]:,}; ratio {ratio:.2f}"
            )


if __name__ == "__main__":
    main()
