"""Trust records as a row: what a later one says otherwise is told once, and accuses nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from appliance.formats.framing import Kind
from auditor.audit import audit
from auditor.evidence import records as trust
from auditor.evidence.finding import Verdict
from auditor.evidence.tree import Tree
from tests.fault_injection.faults_trust import (
    Row,
    key_for_something_else_in_a_later_record,
    key_left_out_of_a_record_and_then_of_another_node,
    key_of_another_node_in_a_later_record,
    revocation_that_a_later_record_puts_off,
    revocation_that_the_next_record_does_not_know,
    revoked_key_that_is_left_out_and_comes_back,
)
from tests.fault_injection.fixtures import Story
from tests.support.mutants import plant
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from auditor.evidence.finding import Finding
    from tests.fault_injection.tree import ClusterTree


def findings(tree: ClusterTree) -> tuple[Finding, ...]:
    return audit(Tree(tree.root)).findings


# A rotation shortens what a key is valid for, a revocation may be moved to an earlier instant, nodes answer elsewhere.
def test_what_commands_do_to_keys_is_no_finding(tmp_path: Path) -> None:
    row = Row(tmp_path)
    now = row.tree.now_ns
    row.says(valid_until_ns=now + 10 * SECOND, address="n7:4711")
    row.says(revoked_from_ns=now)
    row.says(revoked_from_ns=now)
    row.says(revoked_from_ns=now - SECOND)
    row.leaves_out()
    row.says(revoked_from_ns=now - SECOND)
    assert findings(row.tree) == ()


@pytest.mark.parametrize(
    ("story", "code", "records", "words"),
    [
        (key_of_another_node_in_a_later_record, "key-moved", (2, 3), "of n7, record 3 as the witness key of n9"),
        (key_for_something_else_in_a_later_record, "key-moved", (2, 3), "as the roughtime key of n7"),
        (key_left_out_of_a_record_and_then_of_another_node, "key-moved", (2, 4), "record 4 as the witness key of n9"),
        (revocation_that_the_next_record_does_not_know, "revocation-undone", (3, 4), "record 4 does not revoke it"),
        (revocation_that_a_later_record_puts_off, "revocation-undone", (3, 4), "record 4 revokes it from"),
        (revoked_key_that_is_left_out_and_comes_back, "revocation-undone", (3, 5), "record 5 does not revoke it"),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_change_is_told_once_with_both_records(
    tmp_path: Path, story: Callable[[Path], ClusterTree], code: str, records: tuple[int, int], words: str
) -> None:
    (finding,) = findings(story(tmp_path))
    assert (finding.code, finding.verdict) == (code, Verdict.OK)
    assert [each.path for each in finding.evidence] == [f"trust/{number:08d}" for number in records]
    assert words in finding.explanation


# The record in between may be missing from the copy: that is told by itself, and hides nothing.
def test_record_that_is_missing_hides_no_change(tmp_path: Path) -> None:
    tree = key_of_another_node_in_a_later_record(tmp_path)
    tree.remove("trust/00000003")
    assert {finding.code for finding in findings(tree)} == {"unverifiable-trust", "key-moved"}


MUTANTS: dict[str, tuple[str, str, str, Callable[[Path], ClusterTree]]] = {
    "only the node counts": (
        "check_trust",
        "(before.entry.node, before.entry.purpose) != (entry.node, entry.purpose)",
        "before.entry.node != entry.node",
        key_for_something_else_in_a_later_record,
    ),
    "only the purpose counts": (
        "check_trust",
        "(before.entry.node, before.entry.purpose) != (entry.node, entry.purpose)",
        "before.entry.purpose != entry.purpose",
        key_of_another_node_in_a_later_record,
    ),
    "what is told is told again": (
        "check_trust",
        "named[entry.public] = now",
        "named.setdefault(entry.public, now)",
        key_of_another_node_in_a_later_record,
    ),
    "a revocation that is undone is undone for ever": (
        "check_trust",
        "revoked.pop(entry.public, None)",
        "revoked.get(entry.public)",
        revocation_that_the_next_record_does_not_know,
    ),
    "a revocation may be put off": (
        "check_trust",
        "until is None or until > (ended.entry.revoked_from_ns or 0)",
        "until is None",
        revocation_that_a_later_record_puts_off,
    ),
    "a revocation may be left out": (
        "check_trust",
        "until is None or until > (ended.entry.revoked_from_ns or 0)",
        "until is not None and until > (ended.entry.revoked_from_ns or 0)",
        revoked_key_that_is_left_out_and_comes_back,
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_part_of_the_rule_is_needed(tmp_path: Path, mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, old, new, story = MUTANTS[mutant]
    tree = story(tmp_path)
    assert len(findings(tree)) == 1
    plant(monkeypatch, trust, function, old, new)
    assert len(findings(tree)) != 1


def test_revocation_from_an_earlier_instant_judges_no_bag_of_a_record_that_is_missing(tmp_path: Path) -> None:
    story = Story(tmp_path)
    began = story.tree.now_ns
    lease, _ = story.written()
    story.shard.end(lease)
    first = story.tree.trust
    story.tree.put_register(Kind.TRUST, msgspec.structs.replace(first, number=2))
    story.tree.advance(4 * SECOND)
    story.tree.close(story.grid.bag(began + 50 * MS), node="n1", change={"trust_number": 2})
    revoked = [msgspec.structs.replace(key, revoked_from_ns=began) if key.node == "n2" else key for key in first.keys]
    story.tree.put_register(Kind.TRUST, msgspec.structs.replace(first, number=3, keys=tuple(revoked)))
    story.tree.settle(story.grid, node="n1")
    assert {each.code for each in findings(story.tree)} == set()
    story.tree.remove("trust/00000002")
    assert {each.code for each in findings(story.tree)} == {"unverifiable-trust"}
