"""The commands of the simulation: how they end, their last line, and what a broken seed is replayed with."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.simulation import run, scenarios
from tests.simulation.checkers.catalogue import violations
from tests.simulation.mutants import MUTANTS
from tests.simulation.mutation import Death
from tests.simulation.run import Tally, main, scenario_of, summary
from tests.simulation.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
SUMMARY = re.compile(
    r"sim: ([\d,]+) seeds, [\d,]+ operations, [\d,]+ faults \([\d,]+ crashes, [\d,]+ pauses, [\d,]+ of the mount, "
    r"[\d,]+ messages lost; [\d,]+ seeds with lying clocks\), [\d,]+ writes, [\d,]+ leases, [\d,]+ audits, "
    r"(\d+) violations, [\d,]+ operations/s, \d+ s"
)
(MUTANT,) = (mutant for mutant in MUTANTS if mutant.name == "an append in doubt counts because its file is there")
"""One that is killed soon, in brief runs."""


@pytest.fixture
def broken_seed(monkeypatch: pytest.MonkeyPatch) -> int:
    """Plant a mutant, and return a seed of the mix in which its checker objects."""
    MUTANT.plant(monkeypatch)
    for seed in range(5_000):
        if scenario_of(seed) == MUTANT.scenario:
            world = scenarios.SCENARIOS[MUTANT.scenario](seed)
            world.run()
            if MUTANT.killed_by in {checker for checker, _ in violations(world)}:
                return seed
    pytest.fail("no seed is broken")


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_only_one_scenario_is_run_where_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int]] = []

    def simulated(scenario: str, seed: int, **_: bool) -> Tally:
        seen.append((scenario, seed))
        return Tally()

    monkeypatch.setattr(run, "simulate", simulated)
    run.run_all(7, 3, 1, only="objects")
    assert seen == [("objects", 7), ("objects", 8), ("objects", 9)]


@pytest.mark.parametrize(("processes", "seeds"), [("1", "60"), ("2", "20")])
def test_clean_run_ends_with_0_and_its_summary(processes: str, seeds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--first", "0", "--seeds", seeds, "--processes", processes]) == 0
    (last,) = said(capsys)
    found = SUMMARY.fullmatch(last)
    assert found is not None, last
    assert found.groups() == (seeds, "0")


def test_summary_says_what_was_counted() -> None:
    tally = Tally(broken=[("bags", 17, "committed", "it is gone")])
    names = ("seeds", "operations", "crashes", "pauses", "mount_faults", "messages_lost", "lying_clocks")
    tally.counts.update({name: 1_000 + n for n, name in enumerate((*names, "writes", "grants", "audits"))})
    assert summary(tally, 2.0) == (
        "sim: 1,000 seeds, 1,001 operations, 4,014 faults (1,002 crashes, 1,003 pauses, 1,004 of the mount, 1,005 "
        "messages lost; 1,006 seeds with lying clocks), 1,007 writes, 1,008 leases, 1,009 audits, 1 violations, 500 "
        "operations/s, 2 s"
    )


# The whole way of who finds something: the sitting fails, and the one line that it prints shows the fault again.
def test_broken_seed_ends_with_1_and_the_command_that_replays_it(
    broken_seed: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["--first", str(broken_seed), "--seeds", "1", "--processes", "1"]) == 1
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0].startswith("BROKEN ")
    (replay,) = (line for line in lines if "replay:" in line)
    command = replay.partition("replay: ")[2]
    assert command == f"{sys.executable} -m tests.simulation.run --replay {MUTANT.scenario} {broken_seed}"
    assert command in printed.err, "it is told as soon as it is found"
    found = SUMMARY.fullmatch(lines[-1])
    assert found is not None, lines[-1]
    assert found.groups() == ("1", "1")

    arguments = shlex.split(command)[3:]
    assert main(arguments) == 1
    lines = said(capsys)
    wrong = [line for line in lines if line.startswith("VIOLATION ")]
    assert any(line.startswith(f"VIOLATION {MUTANT.killed_by}: ") for line in wrong)
    ends = f"{MUTANT.scenario} {broken_seed}: {len(wrong)} violations, trace "
    assert re.fullmatch(ends + "[0-9a-f]{16}", lines[-1])

    monkeypatch.undo()
    assert main(arguments) == 0
    assert said(capsys)[-1].startswith(f"{MUTANT.scenario} {broken_seed}: 0 violations, trace ")


# What takes its order from the hash of a string is the same within one process, and another in the next.
@pytest.mark.parametrize(("scenario", "seed"), [("crowd", 3), ("together", 7)])
def test_replay_is_the_same_in_a_process_that_hashes_otherwise(
    scenario: str, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--replay", scenario, str(seed)]) == 0
    here = capsys.readouterr().out
    there = subprocess.run(
        [sys.executable, "-m", "tests.simulation.run", "--replay", scenario, str(seed)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    assert there.stdout == here
    world = scenarios.SCENARIOS[scenario](seed, traced=True)
    world.run()
    assert world.scheduler.trace is not None
    digest, _ = world.scheduler.fingerprint()
    assert here.splitlines() == [
        str(world.conditions),
        *"\n".join(world.scheduler.trace.told()).splitlines(),
        f"{scenario} {seed}: 0 violations, trace {digest[:16]}",
    ]


def test_seed_in_which_code_raises_what_it_must_not_is_broken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stepped(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Scheduler, "sleep", stepped)
    assert main(["--first", "0", "--seeds", "1", "--processes", "1"]) == 1
    assert said(capsys)[0].startswith("BROKEN bug: ")


def test_who_is_interrupted_is_told_what_is_done_and_ends_with_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> Iterator[Tally]:
        tally = Tally()
        tally.counts.update(seeds=50, operations=100)
        yield tally
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "spread", interrupted)
    assert main(["--seeds", "1000"]) == 1
    printed = capsys.readouterr()
    assert "interrupted: 50 of 1,000 seeds are done" in printed.err
    assert printed.out.startswith("sim: 50 seeds, 100 operations")


@pytest.mark.parametrize(("seeds", "ends"), [(7, 0), (None, 1)])
def test_mutant_that_survives_ends_the_run_with_1_and_is_named(
    seeds: int | None, ends: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    document = tmp_path / "docs" / "verification.md"
    document.parent.mkdir()
    document.write_text(f"before\n{run.TABLE_BEGINS}\nold\n{run.TABLE_ENDS}\nafter\n", encoding="utf-8")
    monkeypatch.setattr(run, "__file__", str(tmp_path / "tests" / "simulation" / "run.py"))
    monkeypatch.setattr(run, "deaths", lambda _: [Death(MUTANT, seeds, (), ())])
    assert main(["--mutants", "doubt"]) == ends
    assert [line for line in said(capsys) if line.startswith("SURVIVES: ")] == [f"SURVIVES: {MUTANT.name}"] * ends
    written = document.read_text(encoding="utf-8").splitlines()
    assert (written[0], written[-1]) == ("before", "after")
    assert any(line.startswith(f"| {MUTANT.name} | doubt | committed |") for line in written)


def test_bench_says_operations_a_second(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "BENCH_SEEDS", 5)
    assert main(["--bench"]) == 0
    assert re.fullmatch(r"bench-sim: [\d,]+ port operations a second on one core", said(capsys)[-1])
