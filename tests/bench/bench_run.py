"""What ``tenure run`` costs beside flock(1), in processor time and by the clock on the wall.

Run it as a script: ``python tests/bench/bench_run.py [--rounds N] [--json]``; ``SHORT=1`` for a quick look.
Each is a process of its own that runs ``true``; they take turns, and medians are compared. ``run`` takes a sub-lease of
a daemon that runs beside, ``own`` a lease of its own, as where none runs. Exit code 1 where ``run`` costs beyond an
interpreter that runs nothing more than a tenth of what ``own`` does. The goal, half as much again as flock(1) costs in
all, is not reached: ``fork``, an interpreter that does nothing but start ``true`` as a child, is beyond it already.
``modules`` is one that loads what ``run`` loads, and ends.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from appliance.daemon.daemon import Node  # noqa: E402 - a script finds the repository first
from tests.support.cluster import Site  # noqa: E402
from tests.support.run_stage import slow_policy  # noqa: E402

ROUNDS = 7 if os.environ.get("SHORT") else 25
GOAL = 1.5
MOST_OF_OWN = 0.1
FORK = "import os\nif not os.fork(): os.execvp('true', ['true'])\nos.wait()"
KINDS = ("processor", "wall")


def cost_s(command: list[str]) -> tuple[float, float]:
    """Return the processor time of a command and all that it waited for, and how long it took."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after, ended = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, ended - begun


def medians(place: Path, rounds: int) -> dict[str, tuple[float, float]]:
    """Return what each costs: the medians of rounds in which each had its turn."""
    site = Site(place, policy=slow_policy(place))
    try:
        run = [str(Path(sys.executable).with_name("tenure")), "run", *site.options(), "--lease", "bench"]
        commands = {
            "flock": ["flock", str(place / "lock"), "true"],
            "interpreter": [sys.executable, "-c", "pass"],
            "fork": [sys.executable, "-c", FORK],
            "modules": [sys.executable, "-c", "import tenure.script, appliance.recipes.quick_run"],
            "run": [*run, "--quick", "--", "true"],
            "own": [*run, "--", "true"],
        }
        with site.open() as cluster:
            node = Node(cluster)
            node.start()
            try:
                costs: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
                for command in commands.values():
                    cost_s(command)  # what is compiled and cached once
                for _ in range(rounds):
                    for name, command in commands.items():
                        costs[name].append(cost_s(command))
            finally:
                node.stop()
        node.close()
        return {name: (median(p for p, _ in each), median(w for _, w in each)) for name, each in costs.items()}
    finally:
        site.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = medians(Path(place), options.rounds)
    flock, interpreter, fork, run, own = (found[name][0] for name in ("flock", "interpreter", "fork", "run", "own"))
    added = (run - interpreter) / flock
    least = (fork - interpreter) / flock
    share = (run - interpreter) / (own - interpreter)
    if options.json:
        costs = {f"{name}_{kind}_s": s for name, both in found.items() for kind, s in zip(KINDS, both, strict=True)}
        print(json.dumps(costs | {"added_of_flock": added, "least_of_flock": least, "added_of_own": share}))
    else:
        for name, (processor, wall) in found.items():
            print(f"{name}: processor time {processor * 1000:.1f} ms, by the wall {wall * 1000:.1f} ms")
        print(f"run adds to an interpreter: {added:.1f} times flock(1), the goal is {GOAL}")
        print(f"of that {least:.1f} is the fork of an interpreter and the command")
        print(f"that is {share:.3f} of what a lease of its own adds; at most {MOST_OF_OWN} is to be")
    return 1 if share > MOST_OF_OWN else 0


if __name__ == "__main__":
    sys.exit(main())
