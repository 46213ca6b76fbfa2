"""Each rule against the smallest breach of it: exactly that code; and good trees: nothing at all."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import msgspec
import pytest

from appliance.bag.posix import PosixStorage
from appliance.formats.framing import pieces
from appliance.formats.lease import LeaseOutcome, Mode, Phase
from appliance.formats.paths import chain_path, record_name
from appliance.formats.witness import NO_HEAD, Stopped, WitnessKind
from appliance.lease.ceiling import RECORDS_KEPT, CeilingChain, Deposed, ShardIdentity
from appliance.node.records import StoredChain
from auditor.audit import audit
from auditor.evidence.finding import RULES, Evidence, Severity, Verdict
from auditor.evidence.tree import Tree
from auditor.report.comparing import compared
from auditor.rules import grants, history
from auditor.rules.result import FailOn, exit_status
from tests.fault_injection import sessions
from tests.fault_injection.faults_bags import premature_lock
from tests.fault_injection.faults_bytes import joined_later
from tests.fault_injection.faults_leases import aged, shared
from tests.fault_injection.fixtures import Story, eventful_tree, only_file, small_tree, two_sealed_racks
from tests.fault_injection.moving import Move, end_chain, goes_alone, moved_tree, resharded_tree
from tests.fault_injection.plants import Plant, Twins, all_plants, all_twins
from tests.fault_injection.shard import Shard
from tests.fault_injection.tree import ClusterTree, seed
from tests.fault_injection.writer import Writer
from tests.support.by_rules import by_columns_first, by_rules
from tests.support.mutants import plant
from tests.support.values import ceiling_record, page_token
from timeagent.errors import BadRequest
from timeagent.keys import Signer
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from auditor.rules.result import Audit


def codes(result: Audit) -> set[str]:
    return {finding.code for finding in result.findings}


def audited(tree: ClusterTree) -> Audit:
    return audit(Tree(tree.root))


# Good trees.


@pytest.mark.parametrize("make", [small_tree, eventful_tree, moved_tree, resharded_tree])
def test_good_tree_has_no_finding(make: Callable[[Path], ClusterTree], tmp_path: Path) -> None:
    result = audited(make(tmp_path))
    assert result.findings == ()
    assert exit_status(result) == 0


def test_node_that_joined_later_is_no_finding(tmp_path: Path) -> None:
    tree, _ = joined_later(tmp_path)
    assert audited(tree).findings == ()


# `tmp` is set aside in a log's directory only: as the name of a log it is like any other.
def test_log_named_tmp_is_audited_like_any_other(tmp_path: Path) -> None:
    story = Story(tmp_path)
    grid = story.tree.log("tmp")
    lease = story.lease()
    path = story.writer.publish(grid, lease)
    story.shard.end(lease)
    story.tree.settle(grid)
    assert audited(story.done()).findings == ()
    story.tree.remove(path)
    assert "lost-file" in codes(audited(story.tree))


def test_story_without_a_breach_has_no_finding(tmp_path: Path) -> None:
    story = Story(tmp_path)
    lease, _ = story.written()
    story.shard.end(lease)
    assert audited(story.done()).findings == ()


# What they wrote at the same time lies in any order: neither excludes the other.
def test_holders_in_modes_that_go_together_are_no_finding(tmp_path: Path) -> None:
    story = Story(tmp_path)
    first, second = shared(story, Mode.IX)
    story.tree.advance(10 * MS)
    story.other.publish(story.grid, second)
    story.tree.advance(10 * MS)
    story.writer.publish(story.grid, first)
    story.shard.end(first)
    story.shard.end(second)
    story.shard.end(story.lease())
    assert audited(story.done()).findings == ()


def test_change_to_a_stronger_mode_after_the_others_have_ended_is_no_finding(tmp_path: Path) -> None:
    story = Story(tmp_path)
    first, second = shared(story, Mode.IX)
    story.tree.advance(10 * MS)
    story.writer.publish(story.grid, first)
    story.tree.advance(10 * MS)
    story.other.publish(story.grid, second)
    story.shard.end(second)
    change = {"mode": Mode.X, "fence": second.witness.fence + 1}
    story.shard.prolong(first, WitnessKind.UPGRADE, change=change)
    story.tree.advance(10 * MS)
    story.writer.publish(story.grid, first)
    story.shard.end(first)
    story.shard.end(story.lease(change={"previous_id": second.witness.correlation_id}))
    assert audited(story.done()).findings == ()


# Who sleeps between listing a chain and linking may find its number free again, pruned. It looks, and grants nothing.
def test_record_in_a_slot_that_had_been_pruned_is_no_finding(tmp_path: Path) -> None:
    tree = small_tree(tmp_path)
    node, owner = tree.nodes["n2"], Shard(tree, "n1")
    directory, linked = chain_path(1, 0), []

    class Sleeper(StoredChain):
        def link(self, number: int, data: bytes) -> bool:
            for _ in range(RECORDS_KEPT + 1):
                tree.advance(SECOND)
                owner.extend()
            for pruned in range(number, owner.ceiling_number - RECORDS_KEPT + 1):
                tree.remove(f"{directory}/{record_name(pruned)}")
            linked.append(number)
            return super().link(number, data)

    identity = ShardIdentity(tree.cluster_id, 1, 0, "n2", b"sleeper!")
    port = Sleeper(PosixStorage(tree.root), directory)
    chain = CeilingChain(port, node.time, node.witness_key, tree.policy, identity)
    assert isinstance(chain.begin(), Deposed)
    assert audited(tree).findings == ()
    # With something signed under it the same record is a breach.
    owner.incarnation, owner.sequence, owner.previous = b"sleeper!", 0, NO_HEAD
    owner.turn(Stopped(floor_ns=0, settle_to_ns=0), change={"ceiling_number": linked[0]})
    assert "chain-fork" in codes(audited(tree))


# The same, in a copy that had listed the chain before, and read the slot after that: it knows no higher number.
@pytest.mark.parametrize("granted", [False, True])
def test_slot_that_is_linked_again_while_a_copy_is_made_counts_once_something_is_signed_under_it(
    granted: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    chain, own = chain_path(1, 0), ceiling_record()
    late = msgspec.structs.replace(own, incarnation=b"sleeper!")
    facts = [
        history.CeilingFact(own, b"own", page_token(), Evidence("ledger/00000001/0000/a.ledger")),
        history.CeilingFact(late, b"late", page_token(), Evidence(f"{chain}/{record_name(1)}")),
    ]
    signed_under = {(late.incarnation, late.number)} if granted else set()
    left = [fact.raw for fact in history._without_late(facts, chain, signed_under)]
    assert left == ([b"own", b"late"] if granted else [b"own"])


# An append in doubt that was repeated, as a log bag's writer does it.
def test_equal_frames_in_an_open_bag_count_once(tmp_path: Path) -> None:
    story = Story(tmp_path)
    lease, path = story.written()
    story.tree.put(path.replace(".00000001.", ".00000002."), story.tree.get(path))
    assert len(story.tree.data_files(story.grid.bag(story.tree.now_ns))) == 2
    story.shard.end(lease)
    assert audited(story.tree).findings == ()


# Whoever goes on with a run appends the blocks that its ledger may lack, also when another has gone on meanwhile.
def test_blocks_that_are_appended_again_are_in_no_disorder(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.shard.end(story.lease())
    story.shard.end(story.lease())
    data = story.tree.get(story.shard.ledger)
    blocks, _ = pieces(data)
    assert len(blocks) > 2
    story.shard.file += 1
    story.tree.put(story.shard.ledger, data[: blocks[0].end])
    assert audited(story.tree).findings == ()


def test_open_bag_is_provisional_and_no_finding(tmp_path: Path) -> None:
    story = Story(tmp_path)
    lease, _ = story.written()
    story.shard.end(lease)
    result = audited(story.tree)
    assert result.findings == ()
    assert (result.summary.provisional, result.summary.messages) == (1, 0)


def test_restart_may_grant_at_once_what_a_dead_run_had_granted(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.written()
    story.shard = Shard(story.tree, "n2")
    heir = story.lease()
    assert heir.witness.floor_ns > story.tree.now_ns
    assert audited(story.done()).findings == ()


def test_relinquished_without_a_message_below_a_floor_ahead_is_no_finding(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.written()
    story.shard = Shard(story.tree, "n2")
    heir = story.lease()
    story.shard.end(heir, change={"watermark_ns": heir.witness.floor_ns})
    assert heir.witness.floor_ns >= heir.witness.expiry_ns
    assert audited(story.done()).findings == ()


@pytest.mark.parametrize(
    ("code", "plant"),
    [
        pytest.param(code, plant, id=f"{code}-{plant.__name__}")
        for code, all_of in all_plants().items()
        for plant in all_of
    ],
)
def test_planted_breach_is_named_and_nothing_else(code: str, plant: Plant, tmp_path: Path) -> None:
    result = audited(plant(tmp_path))
    assert codes(result) == {code}, [finding.explanation for finding in result.findings]
    most = 3 if RULES[code].verdict is Verdict.UNVERIFIABLE else 1
    assert exit_status(result, FailOn.ANY) == most
    assert exit_status(result) == (0 if {each.severity for each in result.findings} == {Severity.INFO} else most)


def test_every_code_is_planted() -> None:
    assert set(all_plants()) | set(all_twins()) == set(RULES)


@pytest.mark.parametrize("pair", [each for pairs in all_twins().values() for each in pairs])
def test_copies_that_contradict_each_other_are_named_and_nothing_else(pair: Twins, tmp_path: Path) -> None:
    one, two = Tree(pair(tmp_path / "one", tmp_path / "two").root), Tree(tmp_path / "two")
    for tree, twin in ((one, two), (two, one)):
        first, second = audit(tree), audit(twin)
        assert first.findings == second.findings == ()
        result = compared(first, second, tree, twin)
        assert codes(result) == {"forked-history"}
        assert (exit_status(result), result.summary.violations) == (1, len(result.findings))


# One is older, lacks files and racks, ends in the middle of an append, or is damaged: none of that is another history.
def test_copies_of_one_history_do_not_contradict_each_other(tmp_path: Path) -> None:
    tree = eventful_tree(tmp_path / "tree")
    older = tmp_path / "older"
    shutil.copytree(tree.root, older)
    for path in sorted(older.rglob("*.ledger")):
        path.write_bytes(path.read_bytes()[:-7])
    for path in sorted(older.glob("logs/orders/*/*/seal"))[-1:]:
        path.unlink()
    for path in sorted(older.glob("logs/*/*/*/*/*.msg"))[:1]:
        path.write_bytes(b"?" * 200)
    one, two = Tree(tree.root), Tree(older)
    assert "forked-history" not in codes(compared(audit(one), audit(two), one, two))
    assert "forked-history" not in codes(compared(audit(two), audit(one), two, one))


def test_trees_of_two_clusters_are_not_compared(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "tree")
    other = ClusterTree(tmp_path / "other", cluster_id=bytes(15) + b"x")
    one, two = Tree(tree.root), Tree(other.root)
    with pytest.raises(BadRequest, match="of cluster"):
        compared(audit(one), audit(two), one, two)


# What two rules say together.


def test_messages_of_two_holders_that_interleave_break_exclusion_in_the_record(tmp_path: Path) -> None:
    story = Story(tmp_path)
    first = story.lease()
    second = story.shard.grant("alice", story.other)
    story.tree.advance(20 * MS)
    now = story.tree.now_ns
    story.other.publish(story.grid, second, at=now)
    story.writer.publish(story.grid, first, at=now + 100)
    result = audited(story.done())
    assert codes(result) == {"early-grant", "grant-overlap"}


# Readers see what two chains granted in one order only: that of the timestamps.
def test_messages_of_the_old_shard_alone_and_of_the_new_one_that_interleave_break_exclusion(tmp_path: Path) -> None:
    move = Move(tmp_path)
    lease = move.old.grant("alice", move.writer)
    move.tree.advance(50 * MS)
    move.writer.publish(move.grid, lease)
    move.both()
    end_chain(move.tree, move.old, {"floor_ns": 0, "settle_to_ns": 0})
    move.publish(3)
    goes_alone(move.coming[0], floor_ns=0, settle_to_ns=0)
    move.other.publish(move.grid, move.coming[0].grant("alice", move.other), at=move.tree.now_ns - 20 * MS)
    assert {"grant-overlap", "whole-too-early"} <= codes(audited(move.done()))


# It kept the fence of its grant, which lay above the floor of then; the next fence will lie above both.
def test_lease_that_its_shard_makes_held_when_it_has_raised_its_floor_breaks_no_rule(tmp_path: Path) -> None:
    move = Move(tmp_path)
    move.old.end(move.old.grant("bob", move.other))
    move.both()
    lease = move.coming[0].grant("alice", move.writer, phase=Phase.TENTATIVE)
    move.new()
    move.coming[0].prolong(lease, WitnessKind.UPGRADE)
    assert lease.witness.fence < move.coming[0].floor_ns
    assert audited(move.done()).findings == ()
    assert by_rules(tmp_path) == by_columns_first(tmp_path)


# Its session lease says that it counts alone: that was said by the map before, when it had no lease.
def test_half_of_a_lease_under_a_session_lease_of_before_the_move_asks_nothing_of_the_end(tmp_path: Path) -> None:
    move = Move(tmp_path)
    session = sessions.begin(move.old, move.writer)
    move.both()
    move.old.alone_ns = 0
    sessions.under(session, "alice", move.writer)
    sessions.under(sessions.begin(move.of("alice"), move.writer), "alice", move.writer)
    move.new()
    assert audited(move.done()).findings == ()
    assert by_rules(tmp_path) == by_columns_first(tmp_path)


def test_bag_closed_early_that_made_a_file_void_is_a_violation(tmp_path: Path) -> None:
    tree = premature_lock(tmp_path)
    grid = tree.grids["orders"]
    Writer(tree).publish(grid, bag=grid.bag(tree.now_ns))
    result = audited(tree)
    assert codes(result) == {"late-writer", "premature-lock"}
    (early,) = [finding for finding in result.findings if finding.code == "premature-lock"]
    assert (early.verdict, early.severity) == (Verdict.VIOLATION, Severity.ERROR)


# The shard's token may be up to its staleness older than its decision; its radius alone proves nothing against it.
def test_grant_that_may_have_been_in_time_is_indeterminate(tmp_path: Path) -> None:
    story = Story(tmp_path)
    lease = story.lease()
    story.tree.until(lease.witness.expiry_ns - 250 * MS)
    story.shard.grant("alice", story.other)
    found = [(each.code, each.verdict) for each in audited(story.done()).findings]
    assert ("early-grant", Verdict.INDETERMINATE) in found
    assert ("early-grant", Verdict.VIOLATION) not in found


# How it ended a lease the shard says itself, with the instant of its decision: then no staleness explains it.
def test_lease_that_its_shard_broke_before_the_expiry_by_its_own_word_is_a_violation(tmp_path: Path) -> None:
    story = Story(tmp_path)
    lease = story.lease()
    story.tree.until(lease.witness.expiry_ns - 250 * MS)
    story.shard.end(lease, LeaseOutcome.EXPIRED)
    story.shard.grant("alice", story.other)
    (finding,) = audited(story.done()).findings
    assert (finding.code, finding.verdict) == ("broken-early", Verdict.VIOLATION)


# The copy may have passed by before they were sealed, so a missing seal is no proof of a crime.
def test_racks_that_are_missing_in_a_row_are_one_indeterminate_finding(tmp_path: Path) -> None:
    tree = two_sealed_racks(tmp_path)
    for _ in range(3):
        tree.settle(tree.grids["orders"])
    racks = sorted(path.parent for path in tree.root.glob("logs/*/*/*/seal"))
    for rack in racks[1:4]:
        shutil.rmtree(rack)
    (finding,) = audited(tree).findings
    assert (finding.code, finding.verdict) == ("lost-file", Verdict.INDETERMINATE)
    assert finding.subject == f"{racks[1].relative_to(tree.root)}/seal"


def test_zeros_at_the_end_of_a_ledger_are_indeterminate(tmp_path: Path) -> None:
    tree = small_tree(tmp_path)
    tree.append(only_file(tree, "ledger/*/*/*"), bytes(4096))
    (finding,) = audited(tree).findings
    assert (finding.code, finding.verdict) == ("damaged-ledger", Verdict.INDETERMINATE)


def test_what_is_missing_because_a_bag_is_open_is_no_mismatch(tmp_path: Path) -> None:
    story = Story(tmp_path)
    lease, _ = story.written()
    story.shard.end(lease, change={"messages": 4})
    assert audited(story.tree).findings == ()


# What a copy lacks because it passed by too early must not be held against anybody.
def test_copy_that_has_one_log_of_earlier_than_the_rest_accuses_nobody(tmp_path: Path) -> None:
    story = Story(tmp_path)
    other = story.tree.log("other")
    lease = story.lease()
    paths = []
    for grid in (story.grid, other, story.grid):
        story.tree.advance(MS)
        paths.append(story.writer.publish(grid, lease))
    story.shard.end(lease)
    story.done()
    story.tree.settle(other)
    assert audited(story.tree).findings == ()
    bag = (story.tree.root / paths[1]).parent
    day, kept = bag.parent.parent, tmp_path / "kept"
    day.rename(kept)
    found = {(each.code, each.verdict) for each in audited(story.tree).findings}
    assert found == {("count-mismatch", Verdict.INDETERMINATE), ("lost-frame", Verdict.INDETERMINATE)}
    # Where every log is closed beyond it a log that the copy lacks may hold it: born, or copied, after its names were.
    kept.rename(day)
    shutil.rmtree(bag)
    story.tree.seal(other.rack(other.first_ns))
    assert {(each.code, each.verdict) for each in audited(story.tree).findings} == found
    shutil.rmtree(story.tree.root / other.log_path)
    assert {(each.code, each.verdict) for each in audited(story.tree).findings} == found


def test_bag_that_is_not_copied_yet_is_no_finding_while_it_is_fresh(tmp_path: Path) -> None:
    story = Story(tmp_path)
    lease, path = story.written()
    story.shard.end(lease)
    story.tree.remove(path)
    (story.tree.root / path).parent.rmdir()
    assert audited(story.tree).findings == ()
    (finding,) = audited(aged(story)).findings
    assert (finding.code, finding.verdict) == ("count-mismatch", Verdict.INDETERMINATE)
    assert "not in this copy" in finding.explanation


# The forged frame is told once: the count that its holder gave is not a second breach.
def test_count_is_not_held_against_a_holder_whose_frame_is_refused(tmp_path: Path) -> None:
    story = Story(tmp_path)
    lease = story.lease()
    story.tree.advance(MS)
    real = lease.signed
    lease.signed = msgspec.structs.replace(real, signature=bytes(64))
    story.writer.publish(story.grid, lease)
    story.shard.end(lease)
    result = audited(story.done())
    assert codes(result) == {"forged-witness"}
    assert (result.summary.messages, result.summary.rejected) == (0, 2)


def test_pinned_root_key_overrules_the_tree(tmp_path: Path) -> None:
    tree = small_tree(tmp_path)
    stranger = Signer(seed("stranger"))
    assert codes(audit(Tree(tree.root), root_key=stranger.public)) == {"forged-record"}
    assert audit(Tree(tree.root), root_key=tree.root_key.public).findings == ()


def test_renewals_and_upgrades_are_witnesses_of_the_same_lease(tmp_path: Path) -> None:
    story = Story(tmp_path)
    lease = story.lease(phase=Phase.TENTATIVE)
    story.shard.prolong(lease, WitnessKind.UPGRADE)
    story.tree.advance(4 * SECOND)
    story.shard.extend()
    story.shard.prolong(lease)
    story.tree.advance(8 * SECOND)
    story.writer.publish(story.grid, lease)
    story.shard.end(lease)
    result = audited(story.done())
    assert result.findings == ()
    assert result.summary.witnesses == 3


# A change of mode names only what ended since its own grant: what that named, or a lost batch held, it does not repeat.
@pytest.mark.parametrize("mutant", [False, True])
def test_lease_whose_end_was_lost_is_not_in_the_way_of_a_change_of_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, mutant: bool
) -> None:
    if mutant:
        plant(monkeypatch, grants, "_would_be_known", "witness.kind is WitnessKind.GRANT", "True")
    story = Story(tmp_path)
    first, second = shared(story, Mode.S)
    story.shard.keeps_ledger = False
    story.shard.end(second)
    story.shard.keeps_ledger = True
    story.shard.end(first)
    story.tree.advance(MS)
    two = {"previous_id": second.witness.correlation_id, "others": 1, "others_digest": bytes(32)}
    third = story.shard.grant("alice", story.other, mode=Mode.S, change=two)
    story.tree.advance(MS)
    none = {"mode": Mode.X, "fence": third.witness.fence + 1, "others": 0, "others_digest": None}
    story.shard.prolong(third, WitnessKind.UPGRADE, change=none)
    findings = audit(Tree(story.done().root)).findings
    accused = {each.code for each in findings if each.verdict is Verdict.VIOLATION}
    assert accused == ({"early-grant"} if mutant else set())
