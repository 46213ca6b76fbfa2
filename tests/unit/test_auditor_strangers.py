"""A copy that took the cluster's records first, and the rest after they had changed, accuses nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from appliance.formats.framing import Kind
from auditor.audit import Options, audit
from auditor.evidence import records as unknown_keys
from auditor.evidence.finding import Verdict
from auditor.evidence.tree import Tree
from auditor.rules import records
from tests.fault_injection.fixtures import small_tree
from tests.fault_injection.shard import Shard
from tests.fault_injection.tree import ClusterTree, seed
from tests.fault_injection.writer import Writer
from tests.support.mutants import plant
from timeagent.keys import Purpose, Signer
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TRUST, POLICY = "trust/00000002", "policy/00000002"
KEYS = {Purpose.WITNESS: Signer(seed("n1", "witness", 2)), Purpose.TIME: Signer(seed("n1", "time", 2))}


def told(tree: ClusterTree) -> set[tuple[str, Verdict]]:
    return {(finding.code, finding.verdict) for finding in audit(Tree(tree.root)).findings}


def later_tree(root: Path) -> ClusterTree:
    """A tree in which all is closed, and then node n1 gets new keys."""
    tree = small_tree(root)
    tree.advance(10 * SECOND)
    first = tree.trust.keys[0]
    new = (msgspec.structs.replace(first, node="n1", purpose=each, public=key.public) for each, key in KEYS.items())
    tree.put_register(Kind.TRUST, msgspec.structs.replace(tree.trust, number=2, keys=(*tree.trust.keys, *new)))
    node = tree.nodes["n1"]
    node.witness_key = KEYS[Purpose.WITNESS]
    node.time.signer = KEYS[Purpose.TIME]
    return tree


def new_run(tree: ClusterTree) -> None:
    """Ceiling records and a ledger."""
    shard = Shard(tree)
    tree.advance(SECOND)
    shard.end(shard.grant("bob", Writer(tree)))


def new_seal(tree: ClusterTree) -> None:
    """The rack after those that are sealed."""
    grid = tree.grids["orders"]
    rack = grid.rack(grid.first_ns)
    while (tree.root / rack.path / "seal").exists():
        rack = grid.next_rack(rack)
    tree.until(rack.end_ns + tree.policy.seal_delay_ns + SECOND)
    tree.seal(rack)


def close_late(tree: ClusterTree, **change: object) -> None:
    """Close a bag long after it was due."""
    bag = tree.grids["orders"].bag(tree.now_ns)
    tree.until(bag.due_ns + 10 * SECOND)
    tree.close(bag, change=change)


DEEDS = [new_run, new_seal]


@pytest.mark.parametrize("deed", DEEDS)
def test_copy_that_is_older_than_a_key_does_not_call_it_a_forgers(
    tmp_path: Path, deed: Callable[[ClusterTree], None]
) -> None:
    tree = later_tree(tmp_path)
    deed(tree)
    assert told(tree) == set()
    tree.remove(TRUST)
    assert ("unverifiable-trust", Verdict.UNVERIFIABLE) in told(tree)
    assert not {code for code, verdict in told(tree) if verdict is Verdict.VIOLATION}


@pytest.mark.parametrize("deed", DEEDS)
def test_judge_who_takes_the_copys_keys_for_all_there_are_accuses(
    tmp_path: Path, deed: Callable[[ClusterTree], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, unknown_keys, "judge_strangers", "each.signed_ns < until", "True")
    monkeypatch.setattr("auditor.audit.judge_strangers", unknown_keys.judge_strangers)
    with pytest.raises(AssertionError):
        test_copy_that_is_older_than_a_key_does_not_call_it_a_forgers(tmp_path, deed)


# Somebody closed a bag long afterwards, and knew of no newer record: then there was none, and the key was a stranger's.
@pytest.mark.parametrize("deed", DEEDS)
@pytest.mark.parametrize("mutant", [False, True])
def test_key_that_nobody_knew_of_later_is_a_forgers(
    tmp_path: Path, deed: Callable[[ClusterTree], None], monkeypatch: pytest.MonkeyPatch, *, mutant: bool
) -> None:
    if mutant:
        plant(monkeypatch, unknown_keys, "known_until", "number <= newest", "number > newest")
    tree = later_tree(tmp_path)
    deed(tree)
    tree.remove(TRUST)
    close_late(tree)
    accused = {code for code, verdict in told(tree) if verdict is Verdict.VIOLATION}
    assert bool(accused & {"forged-witness", "forged-record", "forged-time"}) is not mutant


def longer_tree(root: Path) -> ClusterTree:
    """A tree in which all is closed, and then a lease is granted for longer than was allowed before."""
    tree = small_tree(root)
    tree.advance(10 * SECOND)
    longer = 3 * tree.policy.lease_term_max_ns
    tree.change_policy(lease_term_max_ns=longer)
    shard = Shard(tree, change={"ceiling_ns": tree.now_ns + 2 * longer})
    tree.advance(SECOND)
    shard.end(shard.grant("bob", Writer(tree), change={"expiry_ns": tree.now_ns + longer}))
    return tree


def test_copy_that_is_older_than_a_policy_does_not_hold_its_terms_against_a_shard(tmp_path: Path) -> None:
    tree = longer_tree(tmp_path)
    assert told(tree) == set()
    tree.remove(POLICY)
    assert told(tree) == {("unverifiable-policy", Verdict.UNVERIFIABLE)}


def test_judge_who_takes_the_copys_policies_for_all_there_are_accuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, records, "Policies.judged", "signed_ns < self.until_ns", "True")
    with pytest.raises(AssertionError):
        test_copy_that_is_older_than_a_policy_does_not_hold_its_terms_against_a_shard(tmp_path)


# Somebody closed a bag long afterwards under the policy of the copy: then that one counted when the lease was granted.
@pytest.mark.parametrize("mutant", [False, True])
def test_term_that_nobody_knew_of_later_is_against_the_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, mutant: bool
) -> None:
    if mutant:
        plant(monkeypatch, records, "Policies.judged", "signed_ns < self.until_ns", "False")
    tree = longer_tree(tmp_path)
    tree.remove(POLICY)
    close_late(tree, policy_number=1)
    expected = "unverifiable-policy" if mutant else "term-above-policy"
    assert expected in {code for code, _ in told(tree)}


# The same where the tree's newest record was published when the last bag had been closed.
@pytest.mark.parametrize("mutant", [False, True])
def test_record_that_nobody_closed_a_bag_under_excuses_no_forger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, mutant: bool
) -> None:
    if mutant:
        plant(monkeypatch, unknown_keys, "known_until", "number <= newest", "number == newest")
    tree = later_tree(tmp_path)
    new_run(tree)
    tree.remove(TRUST)
    close_late(tree)
    tree.put_register(Kind.TRUST, msgspec.structs.replace(tree.trust, number=2))
    accused = {code for code, verdict in told(tree) if verdict is Verdict.VIOLATION}
    assert bool(accused & {"forged-witness", "forged-record"}) is not mutant


def test_policy_that_nobody_closed_a_bag_under_excuses_no_term(tmp_path: Path) -> None:
    tree = longer_tree(tmp_path)
    tree.remove(POLICY)
    close_late(tree, policy_number=1)
    tree.put_register(Kind.POLICY, msgspec.structs.replace(tree.policy, number=2))
    assert {code for code, _ in told(tree)} == {"term-above-policy"}


# Some of the readers would know by then that a record is missing.
def test_report_is_the_same_however_many_read_the_tree(tmp_path: Path) -> None:
    tree = later_tree(tmp_path / "tree")
    new_run(tree)
    grid = tree.log("later")
    tree.advance(SECOND)
    writer = Writer(tree, "n1")
    writer.publish(grid, Shard(tree).grant("bob", writer), change={"trust_number": 2})
    tree.remove("trust/00000002")
    assert len({repr(audit(Tree(tree.root), options=Options(jobs=jobs))) for jobs in (1, 2)}) == 1
