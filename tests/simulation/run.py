"""Try the promises in many schedules: ``make sim SEEDS=100000``; and what a failing seed is replayed with.

    python -m tests.simulation.run --seeds 100000            all scenarios, all cores; exit 0 only when clean
    python -m tests.simulation.run --only bags                one scenario
    python -m tests.simulation.run --audit-one-in 1           the auditor judges each of them, not one in 23
    python -m tests.simulation.run --replay bags 17           one seed, with its trace
    python -m tests.simulation.run --mutants [SCENARIO]       every mutant has to be killed; writes the table
    python -m tests.simulation.run --bench                    operations a second on one core

The last line of a run is its summary. Columns of a trace: true time, how far the actor's clock is off (seconds), who,
what, and what it saw.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.simulation import scenarios
from tests.simulation.audited import false_alarms
from tests.simulation.checkers.catalogue import violations
from tests.simulation.measurement import spread
from tests.simulation.mutation import deaths, table
from tests.simulation.world import silence

BATCH = 50
BENCH_SEEDS = 2_000
TABLE_BEGINS = "<!-- mutants: written by python -m tests.simulation.run --mutants -->"
TABLE_ENDS = "<!-- end of mutants -->"
SHOWN_MAX = 5
"""So many broken seeds are printed with what is wrong, all others in a line each."""
AUDITED_ONE_IN = 23
"""The auditor runs on the tree of one seed in so many, unless told otherwise: it takes longer than the run."""


@dataclass(slots=True)
class Tally:
    """What a number of schedules came to."""

    counts: Counter[str] = field(default_factory=Counter)
    broken: list[tuple[str, int, str, str]] = field(default_factory=list)
    """Scenario, seed, checker, what it says: the first of each seed."""

    def add(self, other: Tally) -> None:
        self.counts.update(other.counts)
        self.broken += other.broken


def scenario_of(seed: int) -> str:
    """Return which scenario a seed of the mix is."""
    names = scenarios.MIX
    return names[seed % len(names)]


def is_audited(seed: int, one_in: int) -> bool:
    """Return whether the auditor judges a seed of the mix: in ``one_in`` rounds of the mix, each place of it once.

    A plain remainder of the seed would audit a few scenarios only, whenever ``one_in`` divides the mix's length.
    """
    around, place = divmod(seed, len(scenarios.MIX))
    return (around + place) % one_in == 0


def simulate(scenario: str, seed: int, *, audit: bool) -> Tally:
    """Run one schedule and judge it; ``audit``: by the auditor too, unless its disks rot."""
    world = scenarios.SCENARIOS[scenario](seed)
    world.run()
    tally = Tally()
    scheduler = world.scheduler
    tally.counts.update(
        seeds=1,
        operations=scheduler.operations,
        crashes=scheduler.crashes,
        pauses=scheduler.pauses,
        mount_faults=world.mount_faults,
        messages_lost=world.network.lost,
        lying_clocks=world.lying,
        writes=len(world.history.attempts) + len(world.history.wrote),
        grants=len(world.history.holds),
    )
    try:
        found = violations(world)
        if audit and not world.rotting:
            tally.counts["audits"] += 1
            found += [("auditor", text) for text in false_alarms(world)]
    except Exception:  # noqa: BLE001 - a tree that cannot be judged is a finding, and the other seeds go on
        found = [("judge", traceback.format_exc())]
    if found:
        tally.broken.append((scenario, seed, *found[0]))
    world.forget()
    return tally


def batch(span: tuple[int, int], one_in: int = AUDITED_ONE_IN, only: str | None = None) -> Tally:
    """Run some seeds of the mix, or of one scenario, and the auditor on one in so many."""
    tally = Tally()
    gc.freeze()  # what was there before is there for good
    gc.disable()  # a world is one large cycle: collected once a batch
    try:
        with silence():
            for seed in range(*span):
                tally.add(simulate(only or scenario_of(seed), seed, audit=is_audited(seed, one_in)))
    finally:
        gc.enable()
        gc.collect()
    return tally


def run_all(first: int, count: int, processes: int, one_in: int = AUDITED_ONE_IN, only: str | None = None) -> Tally:
    """Run many seeds, ``only`` of one scenario or of the mix, on several cores, with a progress bar on a terminal.

    Who is interrupted returns what is done. A broken seed is told on stderr at once: a sitting takes an hour.
    """
    spans = [(start, min(start + BATCH, first + count)) for start in range(first, first + count, BATCH)]
    total, began, live = Tally(), time.perf_counter(), sys.stderr.isatty()
    results = enumerate(spread(partial(batch, one_in=one_in, only=only), spans, processes), 1)
    while True:
        try:
            done, tally = next(results)
        except StopIteration:
            break
        except KeyboardInterrupt:
            print(f"interrupted: {total.counts['seeds']:,} of {count:,} seeds are done", file=sys.stderr)
            break
        total.add(tally)
        for scenario, seed, checker, _ in tally.broken:
            lead = "\n" if live else ""
            print(f"{lead}BROKEN {checker}; replay: {_replay_command(scenario, seed)}", file=sys.stderr, flush=True)
        if live:
            share = done / len(spans)
            rate = total.counts["operations"] / (time.perf_counter() - began)
            bar = "#" * int(40 * share)
            print(
                f"\r[{bar:40}] {total.counts['seeds']:,} seeds {rate:,.0f} op/s {len(total.broken)} broken ",
                end="",
                file=sys.stderr,
            )
    if live:
        print(file=sys.stderr)
    return total


def summary(tally: Tally, seconds: float) -> str:
    """Return the last line of a run."""
    counts = tally.counts
    faults = counts["crashes"] + counts["pauses"] + counts["mount_faults"] + counts["messages_lost"]
    return (
        f"sim: {counts['seeds']:,} seeds, {counts['operations']:,} operations, {faults:,} faults "
        f"({counts['crashes']:,} crashes, {counts['pauses']:,} pauses, {counts['mount_faults']:,} of the mount, "
        f"{counts['messages_lost']:,} messages lost; {counts['lying_clocks']:,} seeds with lying clocks), "
        f"{counts['writes']:,} writes, {counts['grants']:,} leases, {counts['audits']:,} audits, "
        f"{len(tally.broken)} violations, {counts['operations'] / seconds:,.0f} operations/s, {seconds:.0f} s"
    )


def complaints(tally: Tally) -> list[str]:
    """Return every seed that broke a promise, each with the command that replays it; the first with what is wrong."""
    broken = sorted(tally.broken)
    first = [
        f"BROKEN {checker}: {text}\n  replay: {_replay_command(scenario, seed)}"
        for scenario, seed, checker, text in broken[:SHOWN_MAX]
    ]
    rest = [
        f"BROKEN {checker}; replay: {_replay_command(scenario, seed)}"
        for scenario, seed, checker, _ in broken[SHOWN_MAX:]
    ]
    return first + rest


def _replay_command(scenario: str, seed: int) -> str:
    return f"{sys.executable} -m tests.simulation.run --replay {scenario} {seed}"


def fresh_seed() -> int:
    """Return a first seed that was hardly ever tried."""
    return random.SystemRandom().randrange(10**6, 10**12)


def replay(scenario: str, seed: int) -> int:
    """Print the trace of one seed, and what is wrong with it."""
    world = scenarios.SCENARIOS[scenario](seed, traced=True)
    world.run()
    assert world.scheduler.trace is not None
    print(world.conditions, *world.scheduler.trace.told(), sep="\n")
    found = violations(world)
    if not world.rotting:
        found += [("auditor", text) for text in false_alarms(world)]
    for checker, text in found:
        print(f"VIOLATION {checker}: {text}")
    print(f"{scenario} {seed}: {len(found)} violations, trace {world.scheduler.fingerprint()[0][:16]}")
    return 1 if found else 0


def mutants(scenario: str | None) -> int:
    """Kill every mutant, or those of one scenario, and write the table into the document."""
    killed = deaths(scenario)
    document = Path(__file__).parents[2] / "docs" / "verification.md"
    text = document.read_text(encoding="utf-8")
    begin, end = text.index(TABLE_BEGINS) + len(TABLE_BEGINS), text.index(TABLE_ENDS)
    rows = "\n".join(table(killed, text[begin:end].strip().splitlines()))
    document.write_text(f"{text[:begin]}\n{rows}\n{text[end:]}", encoding="utf-8")
    survivors = [death.mutant.name for death in killed if death.seeds is None]
    print(f"mutants: {len(killed)} planted, {len(killed) - len(survivors)} killed; {document} has the table")
    for name in survivors:
        print(f"SURVIVES: {name}")
    return 1 if survivors else 0


def bench() -> int:
    """Measure port operations a second on one core, judging included."""
    batch((0, BATCH))  # what is made once
    began = time.process_time()
    tally = Tally()
    for start in range(BATCH, BENCH_SEEDS, BATCH):
        tally.add(batch((start, start + BATCH)))
    seconds = time.process_time() - began
    print(f"bench-sim: {tally.counts['operations'] / seconds:,.0f} port operations a second on one core")
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed; -1: somewhere new")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--audit-one-in",
        type=int,
        default=AUDITED_ONE_IN,
        metavar="N",
        help="run the auditor on the tree of one seed in N (default: %(default)s)",
    )
    parser.add_argument("--only", choices=sorted(scenarios.SCENARIOS), metavar="SCENARIO")
    parser.add_argument("--replay", nargs=2, metavar=("SCENARIO", "SEED"))
    one = ("all", *sorted(scenarios.SCENARIOS))
    parser.add_argument("--mutants", nargs="?", const="all", choices=one, metavar="SCENARIO", help="all, or of one")
    parser.add_argument("--bench", action="store_true")
    options = parser.parse_args(arguments)
    if options.audit_one_in < 1:
        parser.error(f"--audit-one-in {options.audit_one_in}: has to be 1 (every seed) or more")
    if options.mutants:
        return mutants(None if options.mutants == "all" else options.mutants)
    if options.bench:
        return bench()
    if options.replay:
        return replay(options.replay[0], int(options.replay[1]))
    first = options.first if options.first >= 0 else fresh_seed()
    began = time.perf_counter()
    tally = run_all(first, options.seeds, options.processes, options.audit_one_in, options.only)
    for complaint in complaints(tally):
        print(complaint)
    print(summary(tally, time.perf_counter() - began))
    return 1 if tally.broken or tally.counts["seeds"] < options.seeds else 0


if __name__ == "__main__":
    sys.exit(main())
