"""Packing and scanning, as ratios: packing to reading and hashing the same bytes; scanning more bags to scanning few.

Run it as a script: ``python tests/bench/bench_pack.py [--rounds N] [--directory DIR] [--json]``; SHORT=1 in the
environment asks for a look instead of a measurement. Contenders take turns, in an order that changes every round;
reported are medians over the rounds.

Packing is measured with everything that it does: each file checked against its list, the pack written and flushed, read
back and made again. Its peer copies the same bags' files with ``cat``, and hashes the copy with OpenSSL's SHA-256.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from appliance.bag.closedbags import ClosedBags, Stretches  # noqa: E402 - a script finds the repository first
from appliance.bag.packer import Packer  # noqa: E402
from appliance.bag.posix import PosixStorage  # noqa: E402
from appliance.formats.closed import (  # noqa: E402
    PACK,
    LockFile,
    RackSeal,
    SealEntry,
)
from appliance.formats.framing import Kind  # noqa: E402
from appliance.formats.paths import PRELOCK, SEAL, Grid  # noqa: E402
from appliance.formats.stamped import stamp  # noqa: E402
from tests.support.bags import CLUSTER, T0, Node  # noqa: E402
from timeagent.units import MINUTE, SECOND  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

SHORT: Final = os.environ.get("SHORT") == "1"
FRAMES: Final = 40 if SHORT else 400
MESSAGES: Final = 256
MESSAGE: Final = bytes(range(256)) + b"." * 44
SCANS: Final = (1_000, 10_000) if SHORT else (1_000, 10_000, 100_000)


def timed(do: Callable[[], object]) -> float:
    begin = time.perf_counter()
    do()
    return time.perf_counter() - begin


def sealed_rack(root: Path) -> tuple[Node, int]:
    """One rack of ten bags, many frames of 256 messages of 300 bytes; its bytes."""
    root.mkdir()
    node = Node(PosixStorage(root))
    size = 0
    for sequence in range(1, FRAMES + 1):
        file = node.file(*[MESSAGE] * MESSAGES, sequence=sequence)
        size += len(file.data)
        node.writer.write(file)
        node.time.advance(9 * SECOND // FRAMES)
    node.time.advance(MINUTE)
    node.sealer.seal(node.grid.rack(T0))
    return node, size


def packing(place: Path, rounds: int) -> dict[str, float]:
    rates: dict[str, list[float]] = {"pack": [], "cat + SHA-256": []}
    for number in range(rounds):
        root = place / f"pack-{number}"
        node, size = sealed_rack(root)
        rack = node.grid.rack(T0)
        files = sorted(str(path) for path in (root / rack.path).glob("*/*.msg"))

        def peer(files: list[str] = files, root: Path = root) -> None:
            with (root / "copy").open("wb") as copy:
                subprocess.run(["cat", *files], stdout=copy, check=True)
                os.fsync(copy.fileno())
            with (root / "copy").open("rb") as copied:
                hashlib.file_digest(copied, "sha256")

        again = node.again()
        packer = Packer(again.context, again.grid, again.sealer)
        rates["cat + SHA-256"].append(size / timed(peer) / 1e6)
        rates["pack"].append(size / timed(lambda packer=packer, rack=rack: packer.pack(rack)) / 1e6)  # type: ignore[misc]
        assert (root / rack.path / PACK).exists()
    return {name: statistics.median(each) for name, each in rates.items()}


def many_bags(place: Path, count: int) -> Node:
    """Sealed racks of empty bags, ten to a rack, as the sealer makes them."""
    root = place / f"scan-{count}"
    root.mkdir()
    node = Node(PosixStorage(root))
    rack = node.grid.rack(T0)
    for _ in range(count // 10):
        entries = []
        for number in range(10):
            bag = node.grid.bag(rack.start_ns + number * SECOND)
            lock = LockFile(
                cluster_id=CLUSTER,
                log=bag.log,
                bag=bag.path,
                closer="n1",
                trust_number=1,
                policy_number=1,
                entries=(),
            )
            entries.append(SealEntry(bag=bag.name, lock=stamp(Kind.LOCK, lock, node.time)))
        seal = RackSeal(cluster_id=CLUSTER, log=rack.log, rack=rack.path, sealer="n1", entries=tuple(entries))
        directory = root / rack.path
        directory.mkdir(parents=True)
        (directory / PRELOCK).touch()
        (directory / SEAL).write_bytes(stamp(Kind.SEAL, seal, node.time))
        rack = node.grid.next_rack(rack)
    return node


def scanning(place: Path, rounds: int) -> dict[str, float]:
    """Return microseconds for each bag."""
    nodes = {count: many_bags(place, count) for count in SCANS}
    costs: dict[int, list[float]] = {count: [] for count in SCANS}
    for number in range(rounds):
        for count in SCANS if number % 2 else reversed(SCANS):
            known = nodes[count]  # a grid that remembers nothing: few bags must not be cheaper by that
            again = Node(known.context.storage, time=known.time, grid=Grid(known.grid.birth))
            bags = ClosedBags(again.context.storage, again.grid, again.authority, CLUSTER)
            end = T0 + count * SECOND

            def scan(bags: ClosedBags = bags, end: int = end, count: int = count) -> None:
                found = sum(1 for _ in bags.between(T0, end, Stretches("events", ok=False)))
                assert found == count, (found, count)

            costs[count].append(timed(scan) / count * 1e6)
    return {f"{count:,} bags": statistics.median(costs[count]) for count in SCANS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3 if SHORT else 7)
    parser.add_argument(
        "--directory", type=Path, action="append", help="where to measure (default: /dev/shm, /var/tmp)"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for where in options.directory or [Path("/dev/shm"), Path("/var/tmp")]:
        with tempfile.TemporaryDirectory(prefix="tenure-bench-", dir=where) as directory:
            rates = packing(Path(directory), options.rounds)
            costs = scanning(Path(directory), options.rounds)
        ratio = rates["pack"] / rates["cat + SHA-256"]
        flat = max(costs.values()) / min(costs.values())
        if options.json:
            print(
                json.dumps({"where": str(where), "mb_per_s": rates, "ratio": ratio, "us_per_bag": costs, "flat": flat})
            )
            continue
        print(f"{where}: packing {rates['pack']:.0f} MB/s, cat + SHA-256 {rates['cat + sha256sum']:.0f}: {ratio:.2f}")
        print("  " + ", ".join(f"{name} {cost:.1f} us/bag" for name, cost in costs.items()) + f": within {flat:.2f}x")


if __name__ == "__main__":
    main()
