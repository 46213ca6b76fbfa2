"""The measurement of what tests catch: which mutants it knows, where it plants them, whom it asks, what it tells."""

from __future__ import annotations

import json
import subprocess
import sys
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from appliance.formats import hints
from appliance.session import held
from tests.mutation import catalogue
from tests.mutation.reach import ROOT, read
from tests.mutation.run import CAUGHT, LIVES, UNDECIDED, Verdict, in_order, known, lines
from tests.simulation.planting import Planter
from tests.support import mutants

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

INLINE = {"tests/tui/test_screen_mutants.py", "tests/faults/test_core_mutants.py"}
"""Each mutant stands in a test of its own in the first: no table. Those of the second are in C, and are compiled."""


def listen(directory: Path, *files: str) -> None:
    """Run tests, and write what they run."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.mutation.reach", "--reach", str(directory), *files]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=300)


def test_every_table_of_mutants_is_in_the_catalogue() -> None:
    files = {str(file.relative_to(ROOT)) for file in (ROOT / "tests").rglob("test_*_mutants.py")}
    known = {str(module.__name__) for module in vars(catalogue).values() if isinstance(module, ModuleType)}
    assert {file for file in files if file.removesuffix(".py").replace("/", ".") not in known} == INLINE


def test_every_mutant_has_a_name_of_its_own() -> None:
    assert len(set(catalogue.names())) == len(catalogue.names()) == sum(map(len, catalogue.TABLES.values()))
    assert all(catalogue.TABLES.values())


@pytest.mark.parametrize("many", [3, pytest.param(10_000, marks=pytest.mark.verify)])
@pytest.mark.parametrize("table", catalogue.TABLES)
def test_mutants_of_every_table_can_be_planted(table: str, many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(catalogue.TABLES[table])[:many]:
        with monkeypatch.context() as patch:
            catalogue.TABLES[table][name](patch)


def test_function_is_replaced_wherever_it_is_known_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    before = hints.joined
    knowing = [module for module in sys.modules.values() if vars(module).get("joined") is before]
    assert {hints, held} <= {*knowing}
    for module in knowing:  # whatever is planted for good is taken out again behind this test
        monkeypatch.setattr(module, "joined", before)
    assert "appliance/formats/hints.py:joined" in catalogue.plant_for_good("hint: complete_from is lowered")
    assert vars(held)["joined"] is hints.joined is not before


def test_reach_is_what_each_test_runs_and_what_its_shared_fixtures_run(tmp_path: Path) -> None:
    listen(tmp_path, "tests/unit/test_session_hints.py", "tests/unit/test_chains.py")
    seen = read(tmp_path)
    assert {test.partition("::")[0] for test in seen.tests_of("appliance/formats/hints.py:joined")} == {
        "tests/unit/test_session_hints.py"
    }
    assert seen.tests_of("appliance/formats/paths.py:nothing_of_that_name") == []
    seen.shared["tree"], seen.fixtures["a::b"], seen.seconds["a::b"] = {"x.py:made"}, ["tmp_path", "tree"], 1.0
    assert seen.tests_of("x.py:made") == ["a::b"]


def test_quickest_tests_come_first_and_the_others_file_by_file() -> None:
    seconds = {f"{'cab'[n % 3]}::{n}": float(n) for n in range(60)}
    ordered = in_order(list(seconds), seconds.__getitem__)
    assert ordered[:30] == list(seconds)[:30]
    assert [test[0] for test in ordered[30:]] == list("c" * 10 + "a" * 10 + "b" * 10)


def test_tests_that_plant_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.mutation.run import pass_over_planting

    for owner, name in ((Planter, "plant"), (mutants, "_replace"), (mutants, "_put")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    pass_over_planting()
    plantings: list[Callable[[pytest.MonkeyPatch], None]] = [
        next(iter(each.values())) for each in catalogue.TABLES.values()
    ]
    for planting in plantings:
        with pytest.raises(pytest.skip.Exception):
            planting(monkeypatch)


def test_verdicts_are_told_with_their_share() -> None:
    names = [each for each in catalogue.names() if each.startswith("session: ")]
    outcomes = [(CAUGHT, "tests/unit/test_a.py::test_b[x|y]"), (LIVES, ""), (UNDECIDED, ""), (UNDECIDED, "")]
    told = list(lines({n: Verdict(n, *each, 7, "c0ffee") for n, each in zip(names, outcomes, strict=False)}))
    assert told[0].startswith(f"Planted: 4 of the {len(catalogue.names())} mutants")
    assert "of commit c0ffee. Caught: 1, which is 25.0 % of those. Alive after all tests: 1. Not decided: 2" in told[0]
    assert f"| session | {len(names)} | 4 | 1 | 1 | 2 |" in told
    assert not any(names[0] in line for line in told)
    assert f"- lives: {names[1]}" in told


@pytest.mark.timeout(600)
@pytest.mark.verify
def test_mutant_is_met_by_tests_until_one_fails_and_its_verdict_is_kept(tmp_path: Path) -> None:
    listen(tmp_path, "tests/unit/test_lease_crowd.py")
    results = tmp_path / "results.jsonl"
    name = "crowd: every turn looks for what can be forgotten"
    places = ["--reach", str(tmp_path), "--results", str(results)]
    command = [sys.executable, "-m", "tests.mutation.run", *places, "--only", name]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=500).stdout
    (row,) = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    test = "tests/unit/test_lease_crowd.py::test_nobody_looks_for_what_can_be_forgotten_unless_somebody_asks_for_more"
    assert (row["mutant"], row["outcome"], row["by"]) == (name, CAUGHT, test)
    assert known(results)[name].by == test
    assert f"{CAUGHT}  {name}  {test}" in said
