"""Every interleaving of the small casts keeps every promise; each wrong step breaks the one that is named.

The short casts take part in `make test`; the others: python -m pytest -m slow tests/simulation/test_exhaustive_casts.py
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.simulation.exhaustive.table import LONG, MUTANTS, SHORT, VERY_LONG, Cast, explored

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.explorer import Explored


def keeps_every_promise(cast: Cast, patch: pytest.MonkeyPatch, states_max: int = 3_000_000) -> Explored:
    found = explored(cast, patch, states_max=states_max)
    assert not found.bounded, f"{found.states} states and no end: this explored nothing to its end"
    assert not found.breaches, "\n".join([found.breaches[0].promise, *found.breaches[0].schedule])
    return found


@pytest.mark.verify
@pytest.mark.parametrize("name", SHORT)
def test_short_cast_keeps_every_promise(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keeps_every_promise(SHORT[name], monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("name", LONG)
def test_long_cast_keeps_every_promise(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keeps_every_promise(LONG[name], monkeypatch, states_max=5_000_000)


@pytest.mark.slow
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("name", VERY_LONG)
def test_very_long_cast_keeps_every_promise(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keeps_every_promise(VERY_LONG[name], monkeypatch, states_max=20_000_000)


# A cast in which nothing is ever late, or never in time, would keep every promise too.
@pytest.mark.verify
def test_casts_meet_what_they_are_about(monkeypatch: pytest.MonkeyPatch) -> None:
    closing = keeps_every_promise(SHORT["writer, 3 closers, 1 fault"], monkeypatch).told()
    assert {note[-1] for note in closing if note[0] == "outcome"} == {"Committed", "NotCommitted", "Unknown"}
    sealing = keeps_every_promise(SHORT["writer, sealer, late closer"], monkeypatch).told()
    assert {note[-1] is None for note in sealing if note[0] == "contents"} == {True, False}
    assert {len(note[1]) for note in sealing if note[0] == "sealed"} == {0, 1}
    packing = keeps_every_promise(SHORT["writer, sealer, packer"], monkeypatch).told()
    assert {note[1] for note in packing if note[0] == "packed"} == {"unsealed", "empty", "packed"}
    chain = keeps_every_promise(SHORT["chain, 2 contenders, terminator"], monkeypatch).told()
    assert {"terminated", "given back", "finished"} <= {note[0] for note in chain}
    assert {note[1] for note in chain if note[0] == "finished"} == {"Extended", "Deposed"}
    served = keeps_every_promise(SHORT["chain, 2 shards"], monkeypatch).told()
    assert {note[1] for note in served if note[0] == "finished"} >= {"StoppedOrderly", "Deposed"}
    assert any(note[0] == "reach" and note[2] > note[3] for note in served), "no run came after an orderly stop"


@pytest.mark.verify
@pytest.mark.parametrize("name", MUTANTS)
def test_wrong_step_breaks_its_promise(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    keeps_every_promise(mutant.cast, monkeypatch)
    mutant.apply(monkeypatch)
    found = explored(mutant.cast, monkeypatch, breadth_first=True)
    assert found.breaches, f"survived {found.states} states"
    assert found.breaches[0].promise == mutant.breaks


# The largest of the chains: what it says is worth nothing unless what is wrong shows there too.
@pytest.mark.verify
@pytest.mark.parametrize(
    "name",
    [
        "EEXIST of a ceiling ignored",
        "ceiling may fall",
        "successor takes a running record's floor",
        "linked after a terminal record",
        "terminal record with the floor of the run",
    ],
)
def test_wrong_step_shows_among_contenders_and_terminators(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    mutant.apply(monkeypatch)
    found = explored(LONG["chain, 2 contenders, 2 terminators"], monkeypatch, states_max=20_000)
    assert [breach.promise for breach in found.breaches[:1]] == [mutant.breaks]


# The large casts of packers, likewise.
@pytest.mark.verify
@pytest.mark.parametrize(
    ("cast", "name"),
    [
        ("writer, sealer, packer, late closer", "rack swept before its pack is there"),
        ("2 writers, sealer, packer", "rack swept before its pack is there"),
        ("2 writers, sealer, packer", "rack swept before it is sealed"),
        ("2 writers, sealer, packer", "prelock of the rack swept with its bags"),
    ],
)
def test_wrong_step_shows_among_writers_sealers_and_packers(
    cast: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    MUTANTS[name].apply(monkeypatch)
    found = explored(LONG[cast], monkeypatch, states_max=30_000)
    assert [breach.promise for breach in found.breaches[:1]] == [MUTANTS[name].breaks]


def test_tables_in_the_docs_name_every_cast_and_every_mutant(repository: Path) -> None:
    text = (repository / "docs/verification-exhaustive.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| ([^|]+?) \|", text, re.MULTILINE))
    assert rows >= {*SHORT, *LONG, *VERY_LONG, *MUTANTS}
