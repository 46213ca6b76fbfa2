"""The measurement of what tests catch: which mutants it knows, where it plants them, whom it asks, what it tells."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from appliance.formats import hints
from appliance.session import held
from tests.mutation import catalogue
from tests.mutation.imports import ROOT, names_in, nearest
from tests.mutation.run import CAUGHT, LIVES, UNDECIDED, Verdict, by_chance, known, lines
from tests.simulation.planting import Planter
from tests.support import mutants

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

INLINE = {"tests/tui/test_screen_mutants.py"}
"""Each mutant stands in a test of its own there: no table."""


def test_every_table_of_mutants_is_in_the_catalogue() -> None:
    files = {str(file.relative_to(ROOT)): file for file in (ROOT / "tests").rglob("test_*_mutants.py")}
    named = names_in(ROOT / "tests" / "mutation" / "catalogue.py")
    assert [file for file in files if file.removesuffix(".py").replace("/", ".") not in named | INLINE] == sorted(
        INLINE
    )


def test_every_mutant_has_a_name_of_its_own() -> None:
    assert len(set(catalogue.names())) == len(catalogue.names()) == sum(map(len, catalogue.TABLES.values()))
    assert all(catalogue.TABLES.values())


@pytest.mark.parametrize("table", catalogue.TABLES)
def test_mutants_of_every_table_can_be_planted(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(catalogue.TABLES[table])[:3]:
        with monkeypatch.context() as patch:
            catalogue.TABLES[table][name](patch)


def test_function_is_replaced_wherever_it_is_known_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    before = hints.joined
    knowing = [module for module in sys.modules.values() if vars(module).get("joined") is before]
    assert {hints, held} <= {*knowing}
    for module in knowing:  # whatever is planted for good is taken out again behind this test
        monkeypatch.setattr(module, "joined", before)
    assert "appliance.formats.hints" in catalogue.plant_for_good("hint: complete_from is lowered")
    assert vars(held)["joined"] is hints.joined is not before


def test_nearest_tests_come_first_and_those_that_never_come_there_not_at_all() -> None:
    files = [ROOT / "tests" / "unit" / f"test_{name}.py" for name in ("paths", "session_hints", "views")]
    assert [file.name for file in nearest(files, ["appliance.formats.hints"])] == ["test_session_hints.py"]
    assert nearest(files, ["appliance.formats.paths"])[0].name == "test_paths.py"


def test_order_by_chance_is_the_same_every_time() -> None:
    assert by_chance("abcdef") == by_chance("fedcba") != list("abcdef")


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
    outcomes = [
        (CAUGHT, "tests/unit/test_a.py::test_b[x|y]", 1),
        (LIVES, "", 3),
        (UNDECIDED, "", 2),
        (UNDECIDED, "", 0),
    ]
    told = list(lines({n: Verdict(n, *each, "c0ffee") for n, each in zip(names, outcomes, strict=False)}))
    assert told[0].startswith(f"Planted: 4 of the {len(catalogue.names())} mutants")
    assert "of commit c0ffee. Caught: 1, which is 25.0 % of those. Alive after all tests: 1. Not decided: 2" in told[0]
    assert "1 of these survived the seeds and the tests near to what is broken" in told[0]
    assert f"| session | {len(names)} | 4 | 1 | 1 | 2 |" in told
    assert not any(names[0] in line for line in told)
    assert f"- lives: {names[1]}" in told


@pytest.mark.timeout(600)
def test_mutant_is_met_by_tests_until_one_fails_and_its_verdict_is_kept(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    name = "crowd: every turn looks for what can be forgotten"
    command = [sys.executable, "-m", "tests.mutation.run", "--stages", "1", "--results", str(results), "--only", name]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=500).stdout
    (row,) = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    test = "tests/unit/test_lease_crowd.py::test_nobody_looks_for_what_can_be_forgotten_unless_somebody_asks_for_more"
    assert (row["mutant"], row["outcome"], row["by"], row["stages"]) == (name, CAUGHT, test, 1)
    assert known(results)[name].by == test
    assert f"{CAUGHT}  {name}  {test}" in said
