"""Recall and precision, measured: plant each fault behind many random clean histories, and see what is found.

    python -m tests.simulation.injected --injections 10000            a table; exit 0: exactly what was planted, always
    python -m tests.simulation.injected --injections 10000 --write    the table into docs/verification.md

An injection is one planted fault in a tree that begins with a history of its own (tests/fault_injection/history.py):
other logs, domains, writers, racks, packs. Every story of every rule gets equally many.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

from auditor.audit import audit
from auditor.evidence.finding import RULES
from auditor.evidence.signatures import Signatures
from auditor.evidence.tree import Tree
from auditor.report.comparing import compared
from auditor.rules.result import FailOn, exit_status
from tests.fault_injection.history import at_random, beginning_with
from tests.fault_injection.plants import all_plants, all_twins
from tests.simulation.audited import place_in_memory
from tests.simulation.measurement import Count, Measurement

if TYPE_CHECKING:
    from collections.abc import Iterator

EVENTS_MAX = 8
FOUND, REPORTED = "found", "reported"
"""Trees with the fault in which its code was found; trees in which the code was found."""
BEGINS = "<!-- injections: written by python -m tests.simulation.injected --write -->"
ENDS = "<!-- end of injections -->"


def stories() -> list[tuple[str, str]]:
    """Return (code, name) of every planted fault."""
    planted = [(code, each.__name__) for code, some in all_plants().items() for each in some]
    return planted + [(code, each.__name__) for code, some in all_twins().items() for each in some]


def inject(code: str, name: str, seed: int, count: Count, signatures: Signatures) -> None:
    """Plant one fault behind one history, and audit the tree."""
    plant = next((each for each in all_plants().get(code, ()) if each.__name__ == name), None)
    pair = next((each for each in all_twins().get(code, ()) if each.__name__ == name), None)
    past = at_random(seed, 1 + seed % EVENTS_MAX)
    with place_in_memory() as place, beginning_with(past):
        root, other = place / "tree", place / "other"
        if plant is not None:
            result = audit(Tree(plant(root).root), signatures=signatures)
        else:
            assert pair is not None
            one, two = Tree(pair(root, other).root), Tree(other)
            result = compared(audit(one, signatures=signatures), audit(two, signatures=signatures), one, two)
    codes = {finding.code for finding in result.findings}
    count.cases[code] += 1
    count.told[FOUND, code] += code in codes
    count.told.update((REPORTED, each) for each in codes)
    count.things.update(messages=result.summary.messages, bags=result.summary.bags)
    if codes != {code} or exit_status(result, FailOn.ANY) == 0:
        said = "; ".join(f"{each.code}: {each.explanation}" for each in result.findings if each.code != code)
        count.wrong.append(f"{code} {name} {seed}: found {sorted(codes)}: {said[:300]}")


def rounds(first: int, injections: int) -> list[list[tuple[str, str, int]]]:
    """Return every story behind one history, and again behind the next: a batch each."""
    every = stories()
    last = first - (-injections // len(every))
    return [[(code, name, seed) for code, name in every] for seed in range(first, last)]


def batch(work: list[tuple[str, str, int]]) -> Count:
    """Do some injections."""
    count, signatures = Count(), Signatures()
    for code, name, seed in work:
        inject(code, name, seed, count, signatures)
    gc.collect()
    return count


def lines(total: Count) -> Iterator[str]:
    """Yield the table."""
    right = total.cases.total() - len(total.wrong)
    yield (
        f"{total.cases.total():,} injections over {len(total.cases)} rules, in trees with "
        f"{total.things['messages']:,} messages and {total.things['bags']:,} bags together: in {right:,} exactly "
        "what was planted was found."
    )
    yield ""
    yield "| rule | code | injections | recall | precision |"
    yield "|---|---|---|---|---|"
    for code, rule in RULES.items():
        planted, found, reported = total.cases[code], total.told[FOUND, code], total.told[REPORTED, code]
        recall = f"{100 * found / planted:.2f} %" if planted else "not tried"
        precision = f"{100 * found / reported:.2f} %" if reported else "-"
        yield f"| {rule.number} | {code} | {planted:,} | {recall} | {precision} |"


MEASUREMENT = Measurement(__doc__ or "", "injections", rounds, batch, lines, (BEGINS, ENDS))

if __name__ == "__main__":
    sys.exit(MEASUREMENT.main())
