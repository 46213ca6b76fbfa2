"""What `make test` catches by itself: each mutant of the tables planted, and the tests run until one fails.

    python -m tests.mutation.run                           goes on with all mutants that are not decided
    python -m tests.mutation.run --only "session: "         those whose name has this in it, anew
    python -m tests.mutation.run --stages 2 --count 50      the first stages only; no more than so many mutants
    python -m tests.mutation.run --write                    the table into docs/verification.md

Each mutant is planted before the first test begins, in a process of its own, for all of its tests. Tests that plant a
mutant themselves are passed over: what they say is about theirs. The stages: the unit and property tests that import
the module that is broken, directly first; the fixed seeds of the simulation; all others of `make test`. Mutants of the
simulation meet the seeds first. What a stage does not catch goes to the next one when all have been through the one
before; who runs out of time is tried again by the next call. A test that fails without the mutant too does not count.
Mutants are taken in an order by chance, the same every time: what is done is a fair sample. Programs that tests start
run as they are. Which test catches which mutant is kept in results.jsonl beside this file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.mutation import catalogue
from tests.mutation.imports import ROOT, nearest
from tests.simulation import planting
from tests.support import mutants as support
from tests.support.documents import write_between

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet
    from multiprocessing.connection import Connection

RESULTS = ROOT / "tests" / "mutation" / "results.jsonl"
DOCUMENT = "docs/verification.md"
BEGINS = "<!-- what make test catches: written by python -m tests.mutation.run --write -->"
ENDS = "<!-- end of what make test catches -->"
SUITES = ("tests/unit", "tests/property", "tests/golden", "tests/simulation", "tests/faults", "tests/tui")
FIXED_SEEDS = "tests/simulation/test_schedules.py::test_no_promise_breaks_in_fixed_seeds"
FRESH_SEEDS = "tests/simulation/test_schedules.py::test_no_promise_breaks_in_fresh_seeds"
"""Left out: other seeds every time, and a share that nobody could measure again."""
OPTIONS = ("-x", "-q", "-m", "not slow and not lab and not verify", "--assert=plain", "-p", "no:cacheprovider")
GOOD = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
STAGES = ("the first stage", "the seeds and the tests near to what is broken", "all tests")
CAUGHT, LIVES, UNDECIDED = "caught", "lives", "not decided"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant."""

    mutant: str
    outcome: str
    by: str
    """The first test that failed."""
    stages: int
    """How many it has been through."""
    commit: str


class Watch:
    """What a run of tests is told: which to leave out; and asked: which failed first."""

    def __init__(self, without: AbstractSet[str]) -> None:
        self._without = without
        self.failed: str | None = None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [each for each in items if self._without.isdisjoint((each.nodeid, each.nodeid.partition("::")[0]))]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._look_at(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._look_at(report)

    def _look_at(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed and self.failed is None:
            self.failed = report.nodeid


def pass_over_planting() -> None:
    """Skip tests that plant a mutant themselves, in this process."""

    def skip(*_: object) -> None:
        pytest.skip("plants a mutant itself")

    patch = pytest.MonkeyPatch()  # never undone
    patch.setattr(planting.Planter, "plant", skip)
    patch.setattr(support, "_replace", skip)  # it finds what it replaces no more, where that is broken already
    patch.setattr(support, "_put", skip)


def _tests(pipe: Connection, mutant: str | None, what: Sequence[str], watch: Watch) -> None:
    """Plant a mutant and run tests: in a process of its own."""
    os.setsid()
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    if mutant is not None:
        catalogue.plant_for_good(mutant)
        pass_over_planting()
    pipe.send((int(pytest.main([*OPTIONS, *what], plugins=[watch])), watch.failed))


def run(mutant: str | None, what: Sequence[str], seconds: float, without: AbstractSet[str] = frozenset()) -> str | None:
    """Run tests, but for some files and tests; return which failed first, or None.

    Raises TimeoutError: they took too long; EOFError: their process died.
    """
    context = get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_tests, args=(theirs, mutant, what, Watch(without)))
    process.start()
    theirs.close()
    try:
        if not ours.poll(max(0.0, seconds)):
            raise TimeoutError
        status, failed = ours.recv()
    finally:
        _end(process.pid)
        process.join()
    assert status in GOOD or failed is not None, f"{mutant}: pytest ended with {status}, and no test failed"
    assert failed is None or isinstance(failed, str)
    return failed


def _end(pid: int | None) -> None:
    """End a process and what it has started: it leads a session of its own."""
    assert pid is not None
    for end in (os.killpg, os.kill):
        try:
            end(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


class Trials:
    """Mutants against tests, stage after stage."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._files = [each for suite in SUITES[:2] for each in (ROOT / suite).glob("test_*.py")]
        self._steady: dict[str, bool] = {}
        """Tests that failed with a mutant, and whether they pass without one."""

    def caught_by(self, mutant: str, stage: int) -> str | None:
        """Return the test of a stage that catches the mutant. Raises TimeoutError, EOFError."""
        near = [str(each.relative_to(ROOT)) for each in nearest(self._files, _broken(mutant))]
        first = [near, [FIXED_SEEDS]]
        what = [*(first[::-1] if mutant.startswith("simulation: ") else first), list(SUITES)][stage]
        without = {FRESH_SEEDS, *([FIXED_SEEDS, *near] if stage > 1 else [])}
        ends = time.monotonic() + self._seconds
        while what and (failed := run(mutant, what, ends - time.monotonic(), without)) is not None:
            if failed not in self._steady:
                self._steady[failed] = run(None, [failed], self._seconds) is None
            if self._steady[failed]:
                return failed
            without.add(failed)
        return None


def _broken(mutant: str) -> list[str]:
    """Return the modules that a mutant is in: planted elsewhere, to hear it."""
    with get_context("fork").Pool(1) as pool:
        return pool.apply(catalogue.plant_for_good, (mutant,))


def by_chance(mutants: Iterable[str]) -> list[str]:
    """Return mutants in an order that has nothing to do with what they are, and is always the same."""
    return sorted(mutants, key=lambda each: hashlib.sha256(each.encode()).digest())


def known(results: Path) -> dict[str, Verdict]:
    """Return the newest verdict on each mutant that is still in a table."""
    rows = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
    verdicts = [Verdict(**json.loads(row)) for row in rows]
    names = set(catalogue.names())
    return {each.mutant: each for each in verdicts if each.mutant in names}


def lines(verdicts: dict[str, Verdict]) -> Iterator[str]:
    """Yield what it came to, and the table."""
    every = catalogue.names()
    rows = [verdicts[each] for each in every if each in verdicts]
    outcomes = [row.outcome for row in rows]
    caught, lives, rest = (outcomes.count(each) for each in (CAUGHT, LIVES, UNDECIDED))
    through = [sum(row.outcome == UNDECIDED and row.stages == n for row in rows) for n in range(len(STAGES))]
    yield (
        f"Planted: {len(rows)} of the {len(every)} mutants of the tables, taken by chance; of commit "
        f"{', '.join(sorted({row.commit for row in rows}))}. Caught: {caught}, which is "
        f"{100 * caught / max(1, len(rows)):.1f} % of those. Alive after all tests: {lives}. Not decided: {rest}"
        + "".join(f"; {count} of these survived {STAGES[n - 1]}" for n, count in enumerate(through) if n and count)
        + "."
    )
    yield ""
    yield "| table | mutants | planted | caught | alive | not decided |"
    yield "|---|---|---|---|---|---|"
    for table, mutants in catalogue.TABLES.items():
        own = [row.outcome for row in rows if row.mutant.partition(": ")[0] == table]
        counts = " | ".join(str(own.count(each)) for each in (CAUGHT, LIVES, UNDECIDED))
        yield f"| {table} | {len(mutants)} | {len(own)} | {counts} |"
    yield ""
    yield "Not caught, or not yet:"
    yield ""
    for row in rows:
        if row.outcome != CAUGHT:
            yield f"- {row.outcome}: {' '.join(row.mutant.split())}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="TEXT", help="mutants whose name has this in it, anew")
    parser.add_argument("--count", type=int, default=sys.maxsize, help="how many mutants to try in each stage")
    parser.add_argument("--stages", type=int, default=len(STAGES), help="how many stages (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=3_600, help="how long a stage may take (default: an hour)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where results are kept (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help=f"try none; write the table into {DOCUMENT}")
    options = parser.parse_args(arguments)
    verdicts = known(options.results)
    if options.write:
        write_between(DOCUMENT, BEGINS, ENDS, lines(verdicts))
        return 0
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
    wanted = by_chance(each for each in catalogue.names() if (options.only or "") in each)
    if options.only is not None:
        verdicts = {name: each for name, each in verdicts.items() if name not in wanted}
    trials = Trials(options.seconds)
    for stage in range(options.stages):
        for mutant in wanted[: options.count]:
            before = verdicts.get(mutant)
            if (0 if before is None else before.stages) != stage or (before and before.outcome != UNDECIDED):
                continue
            began = time.monotonic()
            verdicts[mutant] = verdict = _tried(trials, mutant, stage, commit)
            with options.results.open("a", encoding="utf-8") as results:
                results.write(json.dumps(asdict(verdict)) + "\n")
            print(f"{time.monotonic() - began:5.0f} s  {verdict.outcome}  {mutant}  {verdict.by}", flush=True)
    print(next(lines(verdicts)))
    return 0


def _tried(trials: Trials, mutant: str, stage: int, commit: str) -> Verdict:
    try:
        by = trials.caught_by(mutant, stage)
    except (TimeoutError, EOFError) as why:
        return Verdict(mutant, UNDECIDED, type(why).__name__, stage, commit)
    if by is not None:
        return Verdict(mutant, CAUGHT, by, stage + 1, commit)
    return Verdict(mutant, LIVES if stage + 1 == len(STAGES) else UNDECIDED, "", stage + 1, commit)


if __name__ == "__main__":
    sys.exit(main())
