"""What ``tenure run`` costs beside flock(1), in processor time.

Run it as a script: ``python tests/bench/bench_run.py [--rounds N] [--json]``; ``SHORT=1`` for a quick look.
Each is a process of its own that runs ``true``; they take turns, and medians are compared. ``lease hold`` takes a lease
and gives it back: the start of an interpreter that has loaded what a lease needs. What ``run`` adds to it is to be at
most half as much again as flock(1) costs in all: exit code 1 where it is more.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.support.cluster import Site  # noqa: E402 - a script finds the repository first
from tests.support.run_stage import slow_policy  # noqa: E402

ROUNDS = 7 if os.environ.get("SHORT") else 25
MOST_ADDED = 1.5


def processor_s(command: list[str]) -> float:
    """Return the processor time of a command and all that it waited for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def medians(place: Path, rounds: int) -> dict[str, float]:
    """Return what each costs: the median of rounds in which each had its turn."""
    site = Site(place, policy=slow_policy(place))
    try:
        tenure = [sys.executable, "-m", "tenure"]
        commands = {
            "flock": ["flock", str(place / "lock"), "true"],
            "interpreter": [sys.executable, "-c", "pass"],
            "hold": [*tenure, "lease", "hold", "bench", "--seconds", "0", *site.options()],
            "run": [*tenure, "run", "--lease", "bench", *site.options(), "--", "true"],
        }
        with site.open() as cluster:
            cluster.routes.host.try_host(0, cluster.map)
            for command in commands.values():
                processor_s(command)  # what is compiled and cached once
            costs: dict[str, list[float]] = {name: [] for name in commands}
            for _ in range(rounds):
                for name, command in commands.items():
                    costs[name].append(processor_s(command))
        return {name: statistics.median(each) for name, each in costs.items()}
    finally:
        site.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = medians(Path(place), options.rounds)
    added = (found["run"] - found["hold"]) / found["flock"]
    if options.json:
        print(json.dumps({f"{name}_s": cost for name, cost in found.items()} | {"added_of_flock": added}))
    else:
        print("processor time, medians: " + ", ".join(f"{name} {cost * 1000:.1f} ms" for name, cost in found.items()))
        print(f"run adds to hold: {added:.2f} of flock(1); at most {MOST_ADDED} is to be")
    return 1 if added > MOST_ADDED else 0


if __name__ == "__main__":
    sys.exit(main())
