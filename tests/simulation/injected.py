"""Recall and precision, measured: plant each fault behind many random clean histories, and see what is found.

    python -m tests.simulation.injected --injections 10000            a table; exit 0: exactly what was planted, always
    python -m tests.simulation.injected --injections 10000 --write    the table into docs/verification.md

An injection is one planted fault in a tree that begins with a history of its own (auditor/planting/history.py): other
logs, domains, writers, racks, packs. Every story of every rule gets equally many.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from auditor.against import compared
from auditor.audit import audit
from auditor.load import Tree
from auditor.planting.history import at_random, beginning_with
from auditor.planting.plants import all_plants, all_twins
from auditor.rules.registry import RULES
from auditor.verification import Signatures
from tests.simulation.run import _as_a_worker
from tests.support.documents import write_between

if TYPE_CHECKING:
    from collections.abc import Iterator

MEMORY = Path("/dev/shm")
EVENTS_MAX = 8
SHOWN_MAX = 20
BEGINS = "<!-- injections: written by python -m tests.simulation.injected --write -->"
ENDS = "<!-- end of injections -->"


@dataclass(slots=True)
class Score:
    """What a number of injections came to, by code."""

    planted: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    """Trees with the fault in which its code was found."""
    reported: Counter[str] = field(default_factory=Counter)
    """Trees in which the code was found."""
    things: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def add(self, other: Score) -> None:
        self.planted.update(other.planted)
        self.found.update(other.found)
        self.reported.update(other.reported)
        self.things.update(other.things)
        self.wrong += other.wrong


def stories() -> list[tuple[str, str]]:
    """Return (code, name) of every planted fault."""
    planted = [(code, each.__name__) for code, some in all_plants().items() for each in some]
    return planted + [(code, each.__name__) for code, some in all_twins().items() for each in some]


def inject(code: str, name: str, seed: int, score: Score, signatures: Signatures) -> None:
    """Plant one fault behind one history, and audit the tree."""
    plant = next((each for each in all_plants().get(code, ()) if each.__name__ == name), None)
    pair = next((each for each in all_twins().get(code, ()) if each.__name__ == name), None)
    past = at_random(seed, 1 + seed % EVENTS_MAX)
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as place, beginning_with(past):
        root, other = Path(place) / "tree", Path(place) / "other"
        if plant is not None:
            result = audit(Tree(plant(root).root), signatures=signatures)
        else:
            assert pair is not None
            one, two = Tree(pair(root, other).root), Tree(other)
            result = compared(audit(one, signatures=signatures), audit(two, signatures=signatures), one, two)
    codes = {finding.code for finding in result.findings}
    score.planted[code] += 1
    score.found[code] += code in codes
    score.reported.update(codes)
    score.things.update(messages=result.summary.messages, bags=result.summary.bags)
    if codes != {code} or result.exit_status == 0:
        said = "; ".join(f"{each.code}: {each.explanation}" for each in result.findings if each.code != code)
        score.wrong.append(f"{code} {name} {seed}: found {sorted(codes)}: {said[:300]}")


def batch(work: list[tuple[str, str, int]]) -> Score:
    """Do some injections."""
    score, signatures = Score(), Signatures()
    for code, name, seed in work:
        inject(code, name, seed, score, signatures)
    gc.collect()
    return score


def _scores(work: list[list[tuple[str, str, int]]], processes: int) -> Iterator[Score]:
    if processes == 1:
        yield from map(batch, work)
        return
    with get_context("fork").Pool(processes, _as_a_worker) as pool:
        yield from pool.imap_unordered(batch, work)


def measure(injections: int, first: int = 0, processes: int = 1, seconds_max: float = float("inf")) -> Score:
    """Inject so many times at least, unless time runs out; each history is used with every story."""
    every, total, began = stories(), Score(), time.monotonic()
    rounds = -(-injections // len(every))
    work = [[(code, name, seed) for code, name in every] for seed in range(first, first + rounds)]
    for score in _scores(work, processes):
        total.add(score)
        if sys.stderr.isatty():
            print(f"\r{total.planted.total():,} of {injections:,}, {len(total.wrong)} wrong ", end="", file=sys.stderr)
        if time.monotonic() - began > seconds_max:
            break
    return total


def lines(total: Score) -> Iterator[str]:
    """Yield the table."""
    right = total.planted.total() - len(total.wrong)
    yield (
        f"{total.planted.total():,} injections over {len(total.planted)} rules, in trees with "
        f"{total.things['messages']:,} messages and {total.things['bags']:,} bags together: in {right:,} exactly "
        "what was planted was found."
    )
    yield ""
    yield "| rule | code | injections | recall | precision |"
    yield "|---|---|---|---|---|"
    for code, rule in RULES.items():
        planted, found, reported = total.planted[code], total.found[code], total.reported[code]
        recall = f"{100 * found / planted:.2f} %" if planted else "not tried"
        precision = f"{100 * found / reported:.2f} %" if reported else "-"
        yield f"| {rule.number} | {code} | {planted:,} | {recall} | {precision} |"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--injections", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the first history")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long with what there is")
    parser.add_argument("--write", action="store_true", help="write the table into docs/verification.md")
    options = parser.parse_args(arguments)
    total = measure(options.injections, options.first, options.processes, options.seconds)
    for wrong in total.wrong[:SHOWN_MAX]:
        print(f"WRONG {wrong}")
    print(*lines(total), sep="\n")
    if options.write:
        write_between("docs/verification.md", BEGINS, ENDS, lines(total))
    return 1 if total.wrong or total.planted.total() < options.injections else 0


if __name__ == "__main__":
    sys.exit(main())
