"""What `make test` catches by itself: each mutant of the tables planted, and tests run until one fails.

    make test ARGS='-p tests.mutation.reach'    first: which functions each test runs, and how long it takes
    python -m tests.mutation.run                goes on with all mutants that have no verdict; two at a time
    python -m tests.mutation.run --only TEXT    those whose name has this in it, anew
    python -m tests.mutation.run --write        the table into docs/verification.md

Each mutant is planted in a process of its own, before its first test begins, and met by all tests of `make test` that
were seen to run the function that it breaks, the quickest first. Tests that plant a mutant themselves are passed over:
what they say is about theirs. A test that fails without the mutant too does not count. Programs that tests start run as
they are. Which test catches which mutant is kept in results.jsonl beside this file.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.mutation import catalogue, reach
from tests.simulation import planting
from tests.support import mutants as support
from tests.support.documents import write_between

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection

ROOT = reach.ROOT
RESULTS = ROOT / "tests" / "mutation" / "results.jsonl"
DOCUMENT = "docs/verification.md"
BEGINS = "<!-- what make test catches: written by python -m tests.mutation.run --write -->"
ENDS = "<!-- end of what make test catches -->"
FRESH_SEEDS = "tests/simulation/test_schedules.py::test_no_promise_breaks_in_fresh_seeds"
"""Left out: other seeds every time, and a share that nobody could measure again."""
OPTIONS = (
    "-q",
    "-s",
    "-m",
    "not slow and not lab and not verify",
    "--assert=plain",
    "-p",
    "no:cacheprovider",
    "-o",
    "timeout=120",
)
CAUGHT, LIVES, UNDECIDED = "caught", "lives", "not decided"
AT_ONCE = 30
"""So many of the quickest tests are run in the order of their time; the others file by file."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant."""

    mutant: str
    outcome: str
    by: str
    """The first test that failed; "" where none did."""
    tests: int
    """How many met it, or would have."""
    commit: str


class Watch:
    """The plugin that hears which test failed."""

    failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed = self.failed or report.failed


def pass_over_planting() -> None:
    """Skip tests that plant a mutant themselves, in this process."""

    def skip(*_: object) -> None:
        pytest.skip("plants a mutant itself")

    patch = pytest.MonkeyPatch()  # never undone
    patch.setattr(planting.Planter, "plant", skip)
    patch.setattr(support, "_replace", skip)  # it finds what it replaces no more, where that is broken already
    patch.setattr(support, "_put", skip)


def in_order(tests: Sequence[str], seconds: Callable[[str], float]) -> list[str]:
    """Return tests, quickest first, in an order that sets what the tests of a file share up once: but for the first."""
    rest: dict[str, list[str]] = {}
    for test in tests[AT_ONCE:]:
        rest.setdefault(test.partition("::")[0], []).append(test)
    files = sorted(rest.values(), key=lambda each: sum(map(seconds, each)))
    return [*tests[:AT_ONCE], *(test for each in files for test in each)]


class Trials:
    """The plugin that runs mutants' tests in the place of a session's own: what it collects is imported once."""

    def __init__(self, mutants: Sequence[str], options: argparse.Namespace, commit: str) -> None:
        self._mutants, self._options, self._commit = mutants, options, commit
        self._reach = reach.read(options.reach)
        self._items: dict[str, pytest.Item] = {}
        self._steady: dict[str, bool] = {}
        """Tests that failed with a mutant, and whether they pass without one."""

    @property
    def files(self) -> list[str]:
        """Return the files of all tests that were seen."""
        return sorted({test.partition("::")[0] for test in self._reach.seconds})

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try the mutants, some in each of some processes."""
        self._items = {item.nodeid: item for item in session.items if item.nodeid != FRESH_SEEDS}
        gc.freeze()
        fork = get_context("fork")
        jobs = [fork.Process(target=self._try, args=(n,)) for n in range(self._options.jobs)]
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
        assert not any(job.exitcode for job in jobs), "a process of this measurement failed"
        return True

    def _try(self, share: int) -> None:
        for mutant in self._mutants[share :: self._options.jobs]:
            began = time.monotonic()
            verdict = self._tried(mutant)
            with self._options.results.open("a", encoding="utf-8") as results:
                results.write(json.dumps(asdict(verdict)) + "\n")
            print(f"{time.monotonic() - began:5.0f} s  {verdict.outcome}  {mutant}  {verdict.by}", flush=True)

    def _tried(self, mutant: str) -> Verdict:
        broken = self._in_a_process(catalogue.plant_for_good, mutant)
        found = {test for function in broken for test in self._reach.tests_of(function)} & self._items.keys()
        quickest = sorted(found, key=self._reach.seconds.__getitem__)
        tests = in_order(quickest, self._reach.seconds.__getitem__)
        ends = time.monotonic() + self._options.seconds
        while True:
            try:
                failed = self._in_a_process(self._first_that_fails, mutant, tests, ends=ends)
            except TimeoutError:
                return Verdict(mutant, UNDECIDED, "", len(found), self._commit)
            if failed is None:
                return Verdict(mutant, LIVES, "", len(found), self._commit)
            if failed not in self._steady:
                self._steady[failed] = self._in_a_process(self._first_that_fails, None, [failed]) is None
            if self._steady[failed]:
                return Verdict(mutant, CAUGHT, failed, len(found), self._commit)
            tests = tests[tests.index(failed) + 1 :]

    def _first_that_fails(self, mutant: str | None, tests: Sequence[str]) -> str | None:
        """Plant a mutant and run tests: in a process of its own, for all of them."""
        if mutant is not None:
            catalogue.plant_for_good(mutant)
            pass_over_planting()
        items = [self._items[test] for test in tests]
        for item, following in zip(items, [*items[1:], None], strict=True):
            watch = Watch()
            item.config.pluginmanager.register(watch)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            item.config.pluginmanager.unregister(watch)
            if watch.failed:
                return item.nodeid
        return None

    def _in_a_process[R](self, what: Callable[..., R], *args: object, ends: float = float("inf")) -> R:
        """Return what a call in another process returns. Raises TimeoutError."""
        fork = get_context("fork")
        ours, theirs = fork.Pipe(duplex=False)
        directory = tempfile.mkdtemp(prefix="mutant-")
        process = fork.Process(target=_alone, args=(theirs, directory, what, args))
        process.start()
        theirs.close()
        try:
            if not ours.poll(None if ends == float("inf") else max(0.0, ends - time.monotonic())):
                raise TimeoutError
            answer: R = ours.recv()
        finally:
            _end(process.pid)
            process.join()
            shutil.rmtree(directory, ignore_errors=True)
        return answer


def _alone(pipe: Connection, directory: str, what: Callable[..., object], args: tuple[object, ...]) -> None:
    os.setsid()
    silent = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(silent, stream)
    os.environ["TMPDIR"] = os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.tempdir = directory
    pipe.send(what(*args))


def _end(pid: int | None) -> None:
    """End a process and what it has started: it leads a session of its own."""
    assert pid is not None
    for end in (os.killpg, os.kill):
        try:
            end(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


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
    yield (
        f"Planted: {len(rows)} of the {len(every)} mutants of the tables; of commit "
        f"{', '.join(sorted({row.commit for row in rows}))}. Caught: {caught}, which is "
        f"{100 * caught / max(1, len(rows)):.1f} % of those. Alive after all tests: {lives}. Not decided: {rest}."
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
    parser.add_argument("--count", type=int, default=sys.maxsize, help="how many mutants to try")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=900, help="how long each may take (default: %(default)s)")
    parser.add_argument("--reach", type=Path, default=reach.DIRECTORY, help="what tests run (default: %(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where results are kept (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help=f"try none; write the table into {DOCUMENT}")
    options = parser.parse_args(arguments)
    verdicts = known(options.results)
    if options.write:
        write_between(DOCUMENT, BEGINS, ENDS, lines(verdicts))
        return 0
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
    wanted = [
        each
        for each in catalogue.names()
        if (options.only in each if options.only else each not in verdicts or verdicts[each].outcome == UNDECIDED)
    ]
    os.chdir(ROOT)
    trials = Trials(wanted[: options.count], options, commit)
    status = pytest.main([*OPTIONS, *trials.files], plugins=[trials])
    print(next(lines(known(options.results))))
    return 0 if status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) else 70


if __name__ == "__main__":
    sys.exit(main())
