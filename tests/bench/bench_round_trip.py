"""A million lines through ``tenure publish`` and back through ``read``, before and after packing, and their audit.

Run it as a script: ``python tests/bench/bench_round_trip.py [--messages N] [--directory DIR] [--json]``; ``SHORT=1`` in
the environment for a quick look. Whatever comes back is compared to the byte. Each step is a process of its own; said
is its processor time, as a multiple of what a Python process takes to copy the same lines from one file to another
(``for line in stdin: stdout.write(line)``), and its most memory, also with a quarter of the messages.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from appliance.formats.birth import BagKind  # noqa: E402 - a script finds the repository first
from tests.support.cluster import sites  # noqa: E402
from tests.support.round_trip import Cost, RoundTrip  # noqa: E402

SHORT = bool(os.environ.get("SHORT"))
_COPY = "import sys\nfor line in sys.stdin.buffer: sys.stdout.buffer.write(line)"
_ROUNDS = 3


def copied_s(lines: Path) -> float:
    """Return the processor time of copying a file line by line, the start of Python included: the least of some."""
    found = []
    for _ in range(_ROUNDS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with lines.open("rb") as source, tempfile.TemporaryFile(dir=lines.parent) as target:
            subprocess.run([sys.executable, "-c", _COPY], stdin=source, stdout=target, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(found)


def trip(directory: Path, kind: BagKind, messages: int) -> tuple[dict[str, Cost], float]:
    """Go there and back; return what each step took, and what copying did."""
    place = directory / f"{kind}-{messages}"
    place.mkdir()
    for site in sites(place):
        there = RoundTrip(site, place / "trip", kind, messages)
        there.run()
        return there.costs, copied_s(there.sent)
    raise AssertionError("no site")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000 if SHORT else 1_000_000)
    parser.add_argument("--directory", type=Path, help="where to write; default: a temporary directory")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        for kind in BagKind:
            fewer, _ = trip(Path(directory), kind, options.messages // 4)
            costs, copied = trip(Path(directory), kind, options.messages)
            results[str(kind)] = {
                step: {
                    "processor_s": cost.processor_s,
                    "wall_s": cost.wall_s,
                    "of_copying": cost.processor_s / copied,
                    "peak_mib": cost.peak_bytes / 2**20,
                    "peak_mib_of_a_quarter": fewer[step].peak_bytes / 2**20,
                }
                for step, cost in costs.items()
            }
    if options.json:
        print(json.dumps(results, sort_keys=True))
        return 0
    print(f"{options.messages} messages of up to 68 bytes, there and back to the byte, audited clean")
    for name, steps in results.items():
        for step, each in steps.items():
            memory = (
                ""
                if not each["peak_mib"]
                else (f"{each['peak_mib_of_a_quarter']:6.0f} MiB at a quarter, {each['peak_mib']:4.0f} at all")
            )
            print(
                f"  {name:8s} {step:20s} {each['processor_s']:6.1f} s of processor, {each['wall_s']:6.1f} s, "
                f"{each['of_copying']:5.1f} x copying {memory}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
