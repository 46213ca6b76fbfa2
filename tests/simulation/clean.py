"""False alarms, measured: audit the trees of many schedules in which nobody broke a rule.

    python -m tests.simulation.clean --trees 10000            a table; exit 0: no alarm
    python -m tests.simulation.clean --trees 10000 --write    the table into docs/verification.md

Clocks may lie, and what a finding says of a clock that did is no false alarm. Trees in which bytes rot are left out:
there something has to be found.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from auditor.evidence.finding import Verdict
from tests.simulation import scenarios
from tests.simulation.audited import audited, innocent
from tests.simulation.measurement import Count, Measurement, over_seeds, spans_of_seeds
from tests.simulation.run import scenario_of

if TYPE_CHECKING:
    from collections.abc import Iterator

BEGINS = "<!-- clean trees: written by python -m tests.simulation.clean --write -->"
ENDS = "<!-- end of clean trees -->"


def judge(seed: int, count: Count) -> None:
    """Audit the tree of one seed of the mix."""
    scenario = scenario_of(seed)
    world = scenarios.SCENARIOS[scenario](seed)
    world.run()
    if world.rotting:
        return
    result = audited(world)
    count.cases[scenario] += 1
    summary = result.summary
    count.things.update(bags=summary.bags, messages=summary.messages, witnesses=summary.witnesses, lying=world.lying)
    for finding in result.findings:
        if finding.verdict is Verdict.OK or innocent(world, finding):
            count.told[scenario, finding.code] += 1
        else:
            count.wrong.append(f"{scenario} {seed}: {finding.verdict} {finding.code}: {finding.explanation}")


def lines(total: Count) -> Iterator[str]:
    """Yield the table."""
    things = total.things
    yield (
        f"{total.cases.total():,} trees ({things['lying']:,} with lying clocks), {things['bags']:,} bags, "
        f"{things['messages']:,} messages, {things['witnesses']:,} witnesses: **{len(total.wrong)} false alarms**."
    )
    yield ""
    yield "| scenario | trees | false alarms | told of what the simulation did |"
    yield "|---|---|---|---|"
    for scenario in sorted(total.cases):
        alarms = sum(alarm.startswith(f"{scenario} ") for alarm in total.wrong)
        told = ", ".join(f"{code} {n:,}" for (of, code), n in sorted(total.told.items()) if of == scenario)
        yield f"| {scenario} | {total.cases[scenario]:,} | {alarms} | {told} |"


MEASUREMENT = Measurement(__doc__ or "", "trees", spans_of_seeds, partial(over_seeds, judge), lines, (BEGINS, ENDS))

if __name__ == "__main__":
    sys.exit(MEASUREMENT.main())
