"""Copies that are made while writers, closers, packers and retention go on: what they lack is held against nobody."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from auditor.evidence import records
from auditor.evidence.finding import RULES, Verdict
from auditor.rules import bags
from tests.simulation.copied import MEASUREMENT, MISSING, RECORDS_KEPT, accusations, audit_of, copied, pruning_early
from tests.simulation.incomplete import CHOICES
from tests.support.mutants import plant

if TYPE_CHECKING:
    import pytest

COPIES = 120
PACKED_MEANWHILE = ("packs", 410)
"""A rack was listed before it was packed, and a bag of it read after that one had been swept."""
PRUNED_MEANWHILE = ("outside", 14)
"""A chain was listed, and its oldest records were pruned before they were read."""


@pytest.mark.verify
def test_no_copy_of_a_tree_at_work_accuses_anybody() -> None:
    count = MEASUREMENT.measure(COPIES, processes=2)
    assert count.wrong == []
    # What they were made for did happen: bags open, files gone before they were read, records of different instants.
    assert count.things["open"] > COPIES
    assert count.things["after"] < count.cases.total()
    assert count.told[Verdict.INDETERMINATE.value, "lost-file"] > 0
    assert count.things["missing"] > COPIES
    assert all(count.told[MISSING, choice.__name__.strip("_")] for choice in CHOICES)


def lost(scenario: str, seed: int) -> tuple[set[str], int]:
    """Return the verdicts on what the copy of a schedule lacks, and how many of all findings accuse somebody."""
    world, copier = copied(scenario, seed)
    result = audit_of(world, copier)
    verdicts = {finding.verdict.value for finding in result.findings if finding.code == "lost-file"}
    return verdicts, len(list(accusations(world, result)))


def test_what_was_packed_between_two_looks_is_no_proof() -> None:
    assert lost(*PACKED_MEANWHILE) == ({"indeterminate"}, 0)


def test_what_was_pruned_between_two_looks_is_no_proof() -> None:
    with pruning_early(RECORDS_KEPT):
        assert lost(*PRUNED_MEANWHILE) == ({"indeterminate"}, 0)


# The measurement itself has to be able to fail: a judge that takes what is missing for a crime accuses in both.
def test_judge_that_takes_what_is_missing_for_a_crime_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, "lost-file", replace(RULES["lost-file"], verdict=Verdict.VIOLATION))
    assert lost(*PACKED_MEANWHILE)[1] > 0
    with pruning_early(RECORDS_KEPT):
        assert lost(*PRUNED_MEANWHILE)[1] > 0


UNNAMED = ("packs", 467)
"""The marker and all records signed by the root key are missing: what is left says of which cluster it is."""
UNSEALED = ("packs", 565)
"""A pack is there, and the seal is missing that it was made from."""


def accused_in_part(scenario: str, seed: int) -> set[str]:
    """Return the codes of what accuses somebody when parts of a schedule's copy are missing."""
    world, copier = copied(scenario, seed)
    copier.lose()
    return {finding.code for finding in accusations(world, audit_of(world, copier))}


def test_missing_parts_are_no_proof() -> None:
    assert accused_in_part(*UNNAMED) == set()
    assert accused_in_part(*UNSEALED) == set()


def test_judge_of_a_part_that_takes_it_for_another_clusters_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "named_clusters", lambda _: iter(()))
    assert accused_in_part(*UNNAMED) == {"damaged-record"}


def test_judge_who_takes_a_pack_for_proof_of_its_seal_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "found('lost-file', seal.path, reason, [seal, pack], title='the seal of a packed rack is missing')"
    plant(monkeypatch, bags, "pack_without_seal", said, f"{said[:-1]}, verdict=Verdict.VIOLATION)")
    assert accused_in_part(*UNSEALED) == {"lost-file"}


def test_same_seed_makes_the_same_copy() -> None:
    files = [copied("bags", 12)[1].files for _ in range(2)]
    assert files[0] == files[1]
