"""What `make test` catches by itself: each mutant of the tables planted, and the tests run until one fails.

    python -m tests.mutation.run                          all mutants that have no result yet; then the table
    python -m tests.mutation.run --only "session: "        those whose name has this in it, anew
    python -m tests.mutation.run --count 50                no more than so many now
    python -m tests.mutation.run --write                   the table into docs/verification.md

Each mutant is planted before the first test begins, in a process of its own, for all of its tests. Tests that plant a
mutant themselves are passed over: what they say is about theirs. First come the tests of the module that is broken,
then the fixed seeds of the simulation, then all others of `make test`, until one fails. A test that fails without the
mutant too does not count. Mutants are tried in an order by chance, the same every time: what is done is a fair sample.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.mutation import catalogue
from tests.simulation import planting
from tests.support import mutants as support
from tests.support.documents import write_between

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from multiprocessing.connection import Connection

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "dist" / "mutation.jsonl"
DOCUMENT = "docs/verification.md"
BEGINS = "<!-- what make test catches: written by python -m tests.mutation.run --write -->"
ENDS = "<!-- end of what make test catches -->"
SUITES = ("tests/unit", "tests/property", "tests/golden", "tests/simulation", "tests/faults", "tests/tui")
FIXED_SEEDS = "tests/simulation/test_schedules.py::test_no_promise_breaks_in_fixed_seeds"
FRESH_SEEDS = "tests/simulation/test_schedules.py::test_no_promise_breaks_in_fresh_seeds"
"""Left out: other seeds every time, and a share that nobody could measure again."""
OPTIONS = ("-x", "-q", "-m", "not slow and not lab", "--assert=plain", "-p", "no:cacheprovider")
GOOD = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
CAUGHT, LIVES, UNDECIDED = "caught", "lives", "undecided"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant."""

    mutant: str
    outcome: str
    by: str
    """The first test that failed."""
    commit: str


@dataclass(slots=True, eq=False)
class Watch:
    """What a run of tests is asked: which test failed first, and which files to leave out."""

    passed_over: frozenset[str] = frozenset()
    """Files, and tests."""
    failed: str | None = None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [each for each in items if not self.passed_over & {each.nodeid, each.nodeid.partition("::")[0]}]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.failed is None:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and self.failed is None:
            self.failed = report.nodeid


def _passes_over(*_: object) -> None:
    pytest.skip("plants a mutant itself")


def _tests(pipe: Connection, mutant: str | None, what: Sequence[str], watch: Watch) -> None:
    """Plant a mutant and run tests: in a process of its own."""
    os.setsid()
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    if mutant is not None:
        catalogue.plant_for_good(mutant)
        planting.Planter.plant = _passes_over  # type: ignore[method-assign]
        support._put = _passes_over
    pipe.send((int(pytest.main([*OPTIONS, *what], plugins=[watch])), watch.failed))


def run(mutant: str | None, what: Sequence[str], passed_over: Iterable[str], seconds: float) -> str | None:
    """Return which test failed first, or None. Raises TimeoutError: they took too long; EOFError: their process died."""
    context = get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_tests, args=(theirs, mutant, what, Watch(frozenset(passed_over))))
    process.start()
    theirs.close()
    try:
        if not ours.poll(max(0.0, seconds)):
            raise TimeoutError
        status, failed = ours.recv()
        assert status in GOOD or failed is not None, f"{mutant}: pytest ended with {status}, and no test failed"
        assert failed is None or isinstance(failed, str)
        return failed
    finally:
        _end(process.pid)
        process.join()


def _end(pid: int | None) -> None:
    """End a process and what it has started: it leads a session of its own."""
    assert pid is not None
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(pid, signal.SIGKILL)


@cache
def _imports(file: Path) -> frozenset[str]:
    """Return what a test file imports, modules and names of modules alike."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return frozenset(found)


def nearest(broken: Iterable[str]) -> list[str]:
    """Return the files of quick tests that import what is broken, the most particular first."""
    files = [each for suite in SUITES[:2] for each in (ROOT / suite).glob("test_*.py")]
    near = [each for each in files if not _imports(each).isdisjoint(broken)]
    return [str(each.relative_to(ROOT)) for each in sorted(near, key=lambda each: (len(_imports(each)), each))]


@dataclass(slots=True)
class Trial:
    """One mutant against all tests, stage after stage."""

    mutant: str
    seconds: float
    steady: dict[str, bool]
    """Tests that failed with a mutant, and whether they pass without one."""
    out: set[str] = field(default_factory=lambda: {FRESH_SEEDS})

    def verdict(self, commit: str) -> Verdict:
        ends = time.monotonic() + self.seconds
        with get_context("fork").Pool(1) as pool:  # planted elsewhere, to hear where it is
            broken = pool.apply(catalogue.plant_for_good, (self.mutant,))
        near = nearest(broken)
        try:
            for what in ([near] if near else []) + [[FIXED_SEEDS], list(SUITES)]:
                while failed := run(self.mutant, what, self.out, ends - time.monotonic()):
                    if self._counts(failed):
                        return Verdict(self.mutant, CAUGHT, failed, commit)
                    self.out.add(failed)
                self.out.update(what)
        except TimeoutError:
            return Verdict(self.mutant, UNDECIDED, "", commit)
        return Verdict(self.mutant, LIVES, "", commit)

    def _counts(self, test: str) -> bool:
        if test not in self.steady:
            self.steady[test] = run(None, [test], (), self.seconds) is None
        return self.steady[test]


def by_chance(mutants: Iterable[str]) -> list[str]:
    """Return mutants in an order that has nothing to do with what they are, and is always the same."""
    return sorted(mutants, key=lambda each: hashlib.sha256(each.encode()).digest())


def known(results: Path) -> dict[str, Verdict]:
    """Return the newest verdict on each mutant that is still in a table."""
    lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
    verdicts = [Verdict(**json.loads(line)) for line in lines]
    return {each.mutant: each for each in verdicts if each.mutant in set(catalogue.names())}


def share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def lines(verdicts: dict[str, Verdict]) -> Iterator[str]:
    """Yield what it came to, and the table."""
    every = catalogue.names()
    rows = [verdicts[each] for each in every if each in verdicts]
    count = {each: sum(row.outcome == each for row in rows) for each in (CAUGHT, LIVES, UNDECIDED)}
    yield (
        f"Planted: {len(rows)} of the {len(every)} mutants of the tables, taken by chance; of commit "
        f"{', '.join(sorted({row.commit for row in rows}))}. Caught: {count[CAUGHT]}, which is "
        f"{share(count[CAUGHT], len(rows))}. Alive after all tests: {count[LIVES]}. Not decided in the time that was "
        f"given: {count[UNDECIDED]}."
    )
    yield ""
    yield "| table | mutants | planted | caught | alive | not decided |"
    yield "|---|---|---|---|---|---|"
    for table, mutants in catalogue.TABLES.items():
        own = [row.outcome for row in rows if row.mutant.partition(": ")[0] == table]
        counts = " | ".join(str(own.count(each)) for each in (CAUGHT, LIVES, UNDECIDED))
        yield f"| {table} | {len(mutants)} | {len(own)} | {counts} |"
    yield ""
    yield "| mutant | caught by |"
    yield "|---|---|"
    for row in rows:
        by = f"`{row.by.removeprefix('tests/')}`" if row.outcome == CAUGHT else f"**{row.outcome}**"
        yield f"| {row.mutant} | {by} |".replace("\n", " ")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="TEXT", help="mutants whose name has this in it, also those with a result")
    parser.add_argument("--count", type=int, default=sys.maxsize, help="how many mutants to try now")
    parser.add_argument("--seconds", type=float, default=3_600, help="how long one mutant is tried (default: an hour)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where results are kept (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help=f"try none; write the table into {DOCUMENT}")
    options = parser.parse_args(arguments)
    verdicts = known(options.results)
    if options.write:
        write_between(DOCUMENT, BEGINS, ENDS, lines(verdicts))
        return 0
    wanted = (
        [each for each in catalogue.names() if each not in verdicts]
        if options.only is None
        else [each for each in catalogue.names() if options.only in each]
    )
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
    options.results.parent.mkdir(parents=True, exist_ok=True)
    steady: dict[str, bool] = {}
    for mutant in by_chance(wanted)[: options.count]:
        began = time.monotonic()
        verdict = Trial(mutant, options.seconds, steady).verdict(commit)
        with options.results.open("a", encoding="utf-8") as results:
            results.write(json.dumps(asdict(verdict)) + "\n")
        verdicts[mutant] = verdict
        print(f"{time.monotonic() - began:5.0f} s  {verdict.outcome}  {mutant}  {verdict.by}", flush=True)
    print(next(lines(verdicts)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
