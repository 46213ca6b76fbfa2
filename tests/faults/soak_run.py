"""Random commands under leases that are lost in every way: ``python -m tests.faults.soak_run --runs N``.

Judged by two rules alone: when the next holder's ``acquire`` returns, nothing of the command lives; and the exit code
is the command's own, or 76 where the lease was taken away. With ``--mutant`` a wrong step is planted, and it must be
seen. Two exceptions are the documented ones: a runner that stands still can stop nobody, and one that is killed takes
only the command itself with it.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from tests.support.run_stage import Runner, Stage, marked
from tests.support.runner import MUTANTS
from timeagent.units import MS, SECOND

LEASE_LOST = 76
KINDS = ("deaf", "fork", "session", "daemon", "stopped", "flood", "chain")
FAULTS = (
    *("none", "none", "revoke", "cut", "hold", "blip", "crash", "stall"),
    *("terminate", "interrupt", "kill-runner", "pause-runner"),
)
HARMLESS = frozenset({"none", "terminate", "interrupt"})
"""After these the command's own code has to be kept."""


@dataclass(frozen=True)
class Plan:
    """One run, by its seed."""

    seed: int
    kinds: tuple[str, ...]
    end: tuple[str, ...]
    fault: str
    delay_ns: int

    @classmethod
    def of(cls, seed: int) -> Plan:
        chance = random.Random(seed)
        kinds = tuple(chance.sample(KINDS, chance.randint(0, 4)))
        fault = chance.choice(FAULTS)
        after = f"after={chance.randint(0, 1500)}"
        ends: list[tuple[str, ...]] = [
            (after, f"exit={chance.choice((0, 1, 3, 75, 76, 127, 255))}"),
            (after, f"die={chance.choice((6, 9, 15))}"),
        ]
        if fault not in HARMLESS or (fault != "none" and "deaf" not in kinds):
            ends += [("sleep",), ("sleep",), ("stop",)]
        end = chance.choice(ends)
        if fault in ("terminate", "interrupt") and end == ("stop",):
            end = ("sleep",)  # who is stopped does not hear it before it goes on
        return cls(seed, kinds, end, fault, chance.randint(0, 800 * MS))

    @property
    def own_code(self) -> int | None:
        """The command's own exit code; None where it does not end by itself."""
        name, _, value = self.end[-1].partition("=")
        if name == "exit":
            return int(value)
        deaf_to_it = "deaf" in self.kinds and value == str(int(signal.SIGTERM))
        if name == "die":
            return 0 if deaf_to_it else 128 + int(value)
        return None

    def codes(self) -> set[int | None]:
        """What the runner may exit with."""
        codes = {self.own_code} - {None}
        if self.fault not in HARMLESS:
            codes.add(LEASE_LOST)
        if self.fault == "kill-runner":
            codes.add(-signal.SIGKILL)
        if "deaf" not in self.kinds and self.fault in ("terminate", "interrupt"):
            codes.add(128 + (signal.SIGTERM if self.fault == "terminate" else signal.SIGINT))
        return codes


@dataclass
class Tally:
    """What was found."""

    violations: list[str] = field(default_factory=list)
    codes: dict[int, int] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def add(self, plan: Plan, code: int, found: list[str]) -> None:
        with self.lock:
            self.codes[code] = self.codes.get(code, 0) + 1
            for each in found:
                self.violations.append(f"seed {plan.seed}: {each} ({plan})")
                print(self.violations[-1], flush=True)


def strike(stage: Stage, runner: Runner, name: str, plan: Plan) -> None:
    """Do what goes wrong."""
    match plan.fault:
        case "revoke":
            stage.revoke(name)
        case "cut" | "blip":
            stage.line.cut()
        case "hold":
            stage.line.hold()
        case "crash":
            stage.crash_shard()
        case "stall":
            stage.shard.send_signal(signal.SIGSTOP)
            stage.clock.sleep(8 * SECOND)
            stage.shard.send_signal(signal.SIGCONT)
        case "terminate":
            runner.process.send_signal(signal.SIGTERM)
        case "interrupt":
            runner.process.send_signal(signal.SIGINT)
        case "kill-runner":
            runner.process.kill()
        case "pause-runner":
            runner.process.send_signal(signal.SIGSTOP)
    if plan.fault == "blip":
        stage.clock.sleep(plan.delay_ns)
        stage.line.mend()
        if plan.own_code is None:
            stage.revoke(name)  # else it would hold its lease for ever


def play(stage: Stage, plan: Plan, mutant: str | None) -> tuple[int, list[str]]:
    """Play one run; return the runner's exit code, and which rule was broken."""
    name, mark, ready = stage.fresh_name(), f"{stage.path.name}-{plan.seed}", stage.path / f"ready-{plan.seed}"
    runner = stage.run(name, mark, *plan.kinds, f"ready={ready}", *plan.end, mutant=mutant)
    found = []
    try:
        runner.wait_ready(stage.clock, ready)
        if not ready.exists():
            return runner.code(), [f"it never began: {runner.said}"]
        stage.clock.sleep(plan.delay_ns)
        strike(stage, runner, name, plan)
        alive = stage.when_rival_has(name, mark)
        if alive and plan.fault not in ("kill-runner", "pause-runner"):
            found.append(f"{len(alive)} processes outlived the lease: {runner.said}")
        runner.process.send_signal(signal.SIGCONT)
        code = runner.code()
        if code not in plan.codes():
            found.append(f"exit code {code} is none of {plan.codes()}: {runner.said}")
        if plan.fault != "kill-runner" and marked(mark):
            found.append(f"something lives after the runner: {runner.said}")
        return code, found
    finally:
        stage.line.mend()
        runner.end()


def soak(seeds: range, jobs: int, mutant: str | None) -> Tally:
    """Play these, several at a time, each beside a shard of its own."""
    tally = Tally()

    def work(share: range) -> None:
        with tempfile.TemporaryDirectory() as place:
            stage = Stage(Path(place), random.Random(share.start))
            try:
                for seed in share:
                    plan = Plan.of(seed)
                    tally.add(plan, *play(stage, plan, mutant))
            finally:
                stage.close()

    with ThreadPoolExecutor(jobs) as pool:
        for done in [pool.submit(work, seeds[place::jobs]) for place in range(min(jobs, len(seeds)))]:
            done.result()
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--jobs", type=int, default=3, help="how many at a time")
    parser.add_argument("--mutant", choices=MUTANTS)
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # who is begun in the background ignores it, and all below
    tally = soak(range(options.seed, options.seed + options.runs), options.jobs, options.mutant)
    print(f"{options.runs} runs, exit codes {dict(sorted(tally.codes.items()))}, {len(tally.violations)} violations")
    return (not tally.violations) if options.mutant else bool(tally.violations)


if __name__ == "__main__":
    sys.exit(main())
