"""What many cases come to: judged in batches on several cores, and told in lines or in a table of docs/verification.md.

Batches count in their order, so that the same command comes to the same figures on any number of cores.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import TYPE_CHECKING

from tests.support.documents import write_between

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

BATCH = 25
SHOWN_MAX = 20
DOCUMENT = "docs/verification.md"


@dataclass(slots=True)
class Count:
    """What a number of cases came to."""

    cases: Counter[str] = field(default_factory=Counter)
    """How many were judged, by scenario or by code."""
    things: Counter[str] = field(default_factory=Counter)
    told: Counter[tuple[str, str]] = field(default_factory=Counter)
    """What was found, by a word of the measurement's own and by code."""
    wrong: list[str] = field(default_factory=list)

    def add(self, other: Count) -> None:
        self.cases.update(other.cases)
        self.things.update(other.things)
        self.told.update(other.told)
        self.wrong += other.wrong


@dataclass(frozen=True, slots=True)
class Measurement[Batch]:
    """How cases of one kind are made, judged and told."""

    about: str
    """What its command says of itself."""
    noun: str
    """What the cases are called: ``--trees``."""
    batches: Callable[[int, int], Sequence[Batch]]
    """Batches for at least so many cases, from the first seed on."""
    judge: Callable[[Batch], Count]
    lines: Callable[[Count], Iterator[str]]
    marks: tuple[str, str] | None = None
    """Between what the lines stand in the document, if they do."""

    def measure(self, cases: int, first: int = 0, processes: int = 1, seconds_max: float = float("inf")) -> Count:
        """Judge so many cases at least, unless time runs out."""
        total, began = Count(), time.monotonic()
        for count in spread(self.judge, self.batches(first, cases), processes):
            total.add(count)
            done = total.cases.total()
            if sys.stderr.isatty():
                told = f"\r{done:,} of {cases:,} {self.noun}, {len(total.wrong)} wrong "
                print(told, end="", file=sys.stderr)
            if done >= cases or time.monotonic() - began > seconds_max:
                break
        return total

    def main(self, arguments: list[str] | None = None) -> int:
        """Measure as the command line says, and print what it came to. Returns 0 if nothing is wrong, nor missing."""
        parser = argparse.ArgumentParser(description=self.about, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument(f"--{self.noun}", dest="cases", type=int, default=10_000)
        parser.add_argument("--first", type=int, default=0, help="the first seed")
        parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
        parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long with what there is")
        if self.marks is not None:
            parser.add_argument("--write", action="store_true", help=f"write the table into {DOCUMENT}")
        options = parser.parse_args(arguments)
        total = self.measure(options.cases, options.first, options.processes, options.seconds)
        for wrong in total.wrong[:SHOWN_MAX]:
            print(f"WRONG {wrong}")
        print(*self.lines(total), sep="\n")
        if self.marks is not None and options.write:
            write_between(DOCUMENT, *self.marks, self.lines(total))
        return 1 if total.wrong or total.cases.total() < options.cases else 0


def spans_of_seeds(first: int, cases: int) -> list[tuple[int, int]]:
    """Return batches of seeds of the mix: twice as many as cases, for not every seed is one."""
    return [(start, start + BATCH) for start in range(first, first + 2 * cases + BATCH, BATCH)]


def over_seeds(judge: Callable[[int, Count], None], span: tuple[int, int]) -> Count:
    """Judge some seeds of the mix: a batch."""
    count = Count()
    for seed in range(*span):
        judge(seed, count)
    gc.collect()  # a world is one large cycle
    return count


def spread[Batch, Result](
    judge: Callable[[Batch], Result], batches: Sequence[Batch], processes: int
) -> Iterator[Result]:
    """Yield the result of each batch, in their order."""
    if processes == 1:
        yield from map(judge, batches)
        return
    with get_context("fork").Pool(processes, _as_a_worker) as pool:
        yield from pool.imap(judge, batches)


def _as_a_worker() -> None:
    """Leave Ctrl-C to the parent; end at its SIGTERM, whatever handler the parent had when it forked."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
