"""False alarms, measured: audit the trees of many schedules in which nobody broke a rule.

    python -m tests.simulation.clean --trees 10000            a table; exit 0: no alarm
    python -m tests.simulation.clean --trees 10000 --write    the table into docs/verification.md

Clocks may lie, and what a finding says of a clock that did is no false alarm. Trees in which bytes rot are left out:
there something has to be found.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import TYPE_CHECKING

from auditor.finding import Verdict
from tests.simulation import scenarios
from tests.simulation.audited import audited, innocent
from tests.simulation.run import _as_a_worker, scenario_of
from tests.support.documents import write_between

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCH = 25
SHOWN_MAX = 20
BEGINS = "<!-- clean trees: written by python -m tests.simulation.clean --write -->"
ENDS = "<!-- end of clean trees -->"


@dataclass(slots=True)
class Count:
    """What a number of trees came to, by scenario."""

    trees: Counter[str] = field(default_factory=Counter)
    things: Counter[str] = field(default_factory=Counter)
    told: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Findings that the simulation brought about, by scenario and code."""
    alarms: list[str] = field(default_factory=list)

    def add(self, other: Count) -> None:
        self.trees.update(other.trees)
        self.things.update(other.things)
        self.told.update(other.told)
        self.alarms += other.alarms


def judge(seed: int, count: Count) -> None:
    """Audit the tree of one seed of the mix."""
    scenario = scenario_of(seed)
    world = scenarios.SCENARIOS[scenario](seed)
    world.run()
    if world.rotting:
        return
    result = audited(world)
    count.trees[scenario] += 1
    summary = result.summary
    count.things.update(bags=summary.bags, messages=summary.messages, witnesses=summary.witnesses, lying=world.lying)
    for finding in result.findings:
        if finding.verdict is Verdict.OK or innocent(world, finding):
            count.told[scenario, finding.code] += 1
        else:
            count.alarms.append(f"{scenario} {seed}: {finding.verdict} {finding.code}: {finding.explanation}")


def batch(span: tuple[int, int]) -> Count:
    """Audit the trees of some seeds."""
    count = Count()
    for seed in range(*span):
        judge(seed, count)
    gc.collect()
    return count


def _counts(spans: list[tuple[int, int]], processes: int) -> Iterator[Count]:
    if processes == 1:
        yield from map(batch, spans)
        return
    with get_context("fork").Pool(processes, _as_a_worker) as pool:
        yield from pool.imap_unordered(batch, spans)


def measure(trees: int, first: int = 0, processes: int = 1, seconds_max: float = float("inf")) -> Count:
    """Audit so many trees at least, unless time runs out."""
    total, began = Count(), time.monotonic()
    spans = [(start, start + BATCH) for start in range(first, first + 2 * trees + BATCH, BATCH)]
    for count in _counts(spans, processes):
        total.add(count)
        done = total.trees.total()
        if sys.stderr.isatty():
            print(f"\r{done:,} of {trees:,} trees, {len(total.alarms)} alarms ", end="", file=sys.stderr)
        if done >= trees or time.monotonic() - began > seconds_max:
            break
    return total


def lines(total: Count) -> Iterator[str]:
    """Yield the table."""
    things = total.things
    yield (
        f"{total.trees.total():,} trees ({things['lying']:,} with lying clocks), {things['bags']:,} bags, "
        f"{things['messages']:,} messages, {things['witnesses']:,} witnesses: **{len(total.alarms)} false alarms**."
    )
    yield ""
    yield "| scenario | trees | false alarms | told of what the simulation did |"
    yield "|---|---|---|---|"
    for scenario in sorted(total.trees):
        alarms = sum(alarm.startswith(f"{scenario} ") for alarm in total.alarms)
        told = ", ".join(f"{code} {n:,}" for (of, code), n in sorted(total.told.items()) if of == scenario)
        yield f"| {scenario} | {total.trees[scenario]:,} | {alarms} | {told} |"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long with what there is")
    parser.add_argument("--write", action="store_true", help="write the table into docs/verification.md")
    options = parser.parse_args(arguments)
    total = measure(options.trees, options.first, options.processes, options.seconds)
    for alarm in total.alarms[:SHOWN_MAX]:
        print(f"ALARM {alarm}")
    print(*lines(total), sep="\n")
    if options.write:
        write_between("docs/verification.md", BEGINS, ENDS, lines(total))
    return 1 if total.alarms or total.trees.total() < options.trees else 0


if __name__ == "__main__":
    sys.exit(main())
