"""A title says what is there, also where one code has several subjects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from auditor.audit import audit
from auditor.evidence.finding import RULES, found
from auditor.evidence.signatures import Signatures
from auditor.evidence.tree import Tree
from tests.fault_injection.plants import all_plants

if TYPE_CHECKING:
    from pathlib import Path

SIGNATURES = Signatures()
TITLES = {
    "lost_file": "a file that its bag was closed with is missing",
    "lost_lock": "the lock file of a bag is missing",
    "lost_bag": "the directory of a bag is missing",
    "lost_seal": "the seal of a rack is missing",
    "lost_empty_rack": "sealed racks are missing",
    "newest_ceiling_record_removed": "a ceiling record is missing",
    "bytes_beyond_the_listed_size": "the end of a file came too late for its bag, and is void",
    "bytes_in_a_prelock": "a prelock is not empty",
    "prelock_of_a_bag_removed": "a bag was closed, and its prelock is missing",
    "prelock_of_a_sealed_rack_removed": "a rack was sealed, and its prelock is missing",
    "watermark_far_from_its_time": "a watermark is too far from its signed time",
    "r1_breach": "a timestamp is too far from its signed time",
    "bag_closed_before_its_message": "a bag was closed before a frame in it was signed",
    "message_signed_before_its_witness": "a frame was signed before a witness that it carries",
    "key_for_something_else_in_a_later_record": "a later trust record gives a key to another purpose",
    "revocation_that_a_later_record_puts_off": "a later trust record puts a revocation off",
    "two_grants_after_one": "two leases follow the same one",
    "two_batches_with_one_sequence": "two batches claim the same place in a chain",
}


@pytest.mark.parametrize("name", TITLES)
def test_title_is_that_of_what_was_planted(name: str, tmp_path: Path) -> None:
    (plant,) = (each for plants in all_plants().values() for each in plants if each.__name__ == name)
    findings = audit(Tree(plant(tmp_path).root), signatures=SIGNATURES).findings
    assert {each.title for each in findings} == {TITLES[name]}


def test_title_is_the_registers_where_there_is_no_own() -> None:
    for code, rule in RULES.items():
        assert found(code, "x", "y", []).title == rule.title
        assert found(code, "x", "y", [], title="its own").title == "its own"
