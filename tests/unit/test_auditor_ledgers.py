"""Ledgers that are cut, lost, or behind their chain: what that proves of a shard, and what it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from appliance.formats.framing import pieces
from appliance.formats.lease import Ending, LeaseOutcome, Mode
from appliance.formats.paths import chain_path, record_name
from appliance.formats.witness import Ended, WitnessKind, others_digest
from appliance.lease.ceiling import RECORDS_KEPT
from auditor.audit import audit
from auditor.evidence.finding import Verdict
from auditor.evidence.tree import Tree
from auditor.rules import history
from tests.fault_injection.faults_leases import shared
from tests.fault_injection.fixtures import Story, only_file, small_tree
from tests.fault_injection.moving import Move, end_chain, goes_alone
from tests.fault_injection.shard import Shard
from tests.fault_injection.tree import ClusterTree
from tests.support.mutants import plant
from tests.support.shares import shares
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from pathlib import Path

    from auditor.rules.result import Audit


def codes(result: Audit) -> set[str]:
    return {finding.code for finding in result.findings}


def audited(tree: ClusterTree) -> Audit:
    return audit(Tree(tree.root))


# A killed shard's ledger is cut anywhere, in the middle of a block too: that is a gap, never a finding.
@pytest.mark.parametrize("share", shares(4))
def test_ledger_cut_anywhere_is_a_gap_and_no_finding(tmp_path: Path, share: int) -> None:
    tree = small_tree(tmp_path)
    path = only_file(tree, "ledger/*/*/*.ledger")
    whole = tree.get(path)
    for length in range(7 * share, len(whole), 28):
        tree.put(path, whole[:length])
        result = audited(tree)
        assert result.findings == (), length
    tree.remove(path)
    result = audited(tree)
    assert codes(result) == {"missing-ledger"}
    assert result.summary.ledger_gaps == 1


# An append that failed may have left a torn block; the run goes on with the same block in its next file.
def test_ledger_that_goes_on_in_another_file_is_read_as_one(tmp_path: Path) -> None:
    tree = small_tree(tmp_path)
    path = only_file(tree, "ledger/*/*/*.ledger")
    whole = tree.get(path)
    blocks = pieces(whole)[0]
    assert len(blocks) > 2
    for number, block in enumerate(blocks):
        for torn in (block.offset, block.offset + 1, block.end - 1, block.end):
            tree.put(path, whole[:torn])
            for later, start in ((2, block.offset), (11, blocks[-1].offset)):
                tree.put(path.replace(".ledger", f".{later}.ledger"), whole[start:])
            result = audited(tree)
            assert result.findings == (), (number, torn)
            assert result.summary.ledger_gaps == 0, (number, torn)
    tree.put(path.replace(".ledger", ".12.ledger"), whole[blocks[-1].offset : -1])
    assert audited(tree).summary.ledger_gaps == 1, "nobody knows which block the last file begins"
    tree.put(path.replace(".ledger", ".13.ledger"), b"x" * 40)
    assert codes(audited(tree)) == {"damaged-ledger"}


# It was linked into the chain, and killed before anything was appended.
def test_run_that_was_killed_at_its_start_needs_no_ledger(tmp_path: Path) -> None:
    story = Story(tmp_path)
    lease, _ = story.written()
    story.tree.remove(story.shard.ledger)
    story.shard = Shard(story.tree, "n2")
    story.tree.remove(story.shard.ledger)
    assert lease.witness.expiry_ns > story.tree.now_ns
    assert audited(story.tree).findings == ()


# It died between its orderly record and the last blocks of its ledger: how its leases ended, nobody can know any more.
def test_lease_whose_end_a_cut_ledger_lost_does_not_accuse_the_successor(tmp_path: Path) -> None:
    story = Story(tmp_path)
    lease, _ = story.written()
    whole = story.tree.get(story.shard.ledger)
    story.shard.end(lease)
    story.shard.stop_orderly()
    story.tree.put(story.shard.ledger, whole)
    story.shard = Shard(story.tree, "n2")
    successor, _ = story.written()
    story.shard.end(successor)
    assert successor.witness.floor_ns < lease.witness.expiry_ns
    assert codes(audited(story.done())) == {"truncated-ledger"}


# And where its orderly record has been pruned since, nobody knows that it stopped so.
def test_lease_of_a_run_whose_orderly_record_was_pruned_does_not_accuse_the_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(tmp_path)
    lease, _ = story.written()
    whole = story.tree.get(story.shard.ledger)
    story.shard.end(lease)
    story.shard.stop_orderly()
    orderly = story.shard.ceiling_number
    story.tree.put(story.shard.ledger, whole)
    story.shard = Shard(story.tree, "n2")
    successor, _ = story.written()
    story.shard.end(successor)
    assert successor.witness.floor_ns < lease.witness.expiry_ns
    for _ in range(RECORDS_KEPT):
        story.tree.advance(SECOND)
        story.shard.extend()
    for pruned in range(1, orderly + 1):
        story.tree.remove(f"{chain_path(1, 0)}/{record_name(pruned)}")
    assert audited(story.done()).findings == ()
    monkeypatch.setattr("auditor.rules.history.RecordedChain.was_cut_off", lambda *_: True)
    assert codes(audited(story.tree)) == {"early-grant"}


# A copy had listed the chain, and read that slot when its record had been pruned and a run that had stood still, before
# or after it signed, had linked one there. So nobody knows how the run stopped that the successor came after.
@pytest.mark.parametrize("signed_late", [False, True])
def test_record_in_a_slot_that_was_pruned_while_it_was_copied_accuses_nobody(
    tmp_path: Path, *, signed_late: bool
) -> None:
    story = Story(tmp_path)
    tree, slot = story.tree, story.shard.ceiling_number + 1
    path = f"{chain_path(1, 0)}/{record_name(slot)}"
    lease, _ = story.written()
    whole = tree.get(story.shard.ledger)
    story.shard.end(lease)
    story.shard.stop_orderly()
    tree.put(story.shard.ledger, whole)
    orderly = tree.get(path)

    def late_record() -> bytes:
        newer = {each: tree.get(each) for each in tree.files() if each.startswith(chain_path(1, 0)) and each >= path}
        for each in newer:
            tree.remove(each)
        tree.advance(30 * SECOND)
        slept = Shard(tree, "n2")
        assert slept.ceiling_number == slot
        record = tree.get(path)
        tree.remove(slept.ledger)
        for each, data in newer.items():
            tree.put(each, data)
        return record

    late = b"" if signed_late else late_record()
    tree.advance(SECOND)
    story.shard = Shard(tree, "n1")
    successor, _ = story.written()
    story.shard.end(successor)
    assert successor.witness.floor_ns < lease.witness.expiry_ns
    tree.put(path, late or late_record())
    found = audited(story.done()).findings
    doubted = {"floor-fell", "ceiling-fell"} if signed_late else {"floor-fell"}
    assert {(each.code, each.verdict) for each in found} == {(code, Verdict.INDETERMINATE) for code in doubted}
    tree.put(path, orderly)
    assert codes(audited(tree)) == {"truncated-ledger"}


# The run after it, which granted nothing, shows that it never stopped: nothing excuses the one after that.
def test_lease_of_a_run_that_was_cut_off_accuses_whoever_grants_too_early_two_runs_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(tmp_path)
    lease, _ = story.written()
    Shard(story.tree, "n2")
    third = Shard(story.tree, "n1")
    third.floor_ns, third.settle_to_ns = lease.witness.floor_ns, lease.witness.settle_to_ns
    story.tree.advance(SECOND)
    third.grant("alice", story.other)
    assert "early-grant" in codes(audited(story.done()))
    plant(monkeypatch, history, "RecordedChain.was_cut_off", "no_room or incarnation in self._cut_off", "no_room")
    assert "early-grant" not in codes(audited(story.tree))


# Or it was copied in that moment. Before that it had been silent for long, with nothing to grant.
def test_run_that_died_right_after_a_ceiling_record_is_not_doubted(tmp_path: Path) -> None:
    story = Story(tmp_path)
    lease, _ = story.written()
    story.shard.end(lease)
    whole = story.tree.get(story.shard.ledger)
    story.tree.advance(9 * SECOND)
    story.shard.extend()
    story.tree.put(story.shard.ledger, whole)
    assert audited(story.done()).findings == ()


# Of what was signed and linked when, a tree shows only the first: here the machine stood still in between.
def test_run_that_died_soon_after_it_had_linked_what_it_signed_long_before_is_not_doubted(tmp_path: Path) -> None:
    story = Story(tmp_path)
    lease, _ = story.written()
    story.shard.end(lease)
    whole = story.tree.get(story.shard.ledger)
    story.shard.extend()
    for seconds in (11, 4):
        story.tree.advance(seconds * SECOND)
        story.shard.extend()
    story.tree.put(story.shard.ledger, whole)
    assert audited(story.done()).findings == ()
    story.tree.advance(2 * SECOND)
    story.shard.extend()
    story.tree.put(story.shard.ledger, whole)
    (finding,) = audited(story.done()).findings
    assert finding.code == "truncated-ledger", "long after what it signed once the first was linked"


# What repeats its mode and fence comes after a later grant to somebody else, and was granted before that.
def test_stronger_mode_that_a_gap_of_the_ledger_lost_accuses_nobody(tmp_path: Path) -> None:
    story = Story(tmp_path)
    first = story.lease(mode=Mode.IS)
    story.tree.advance(MS)
    story.shard.keeps_ledger = False
    stronger = {"mode": Mode.IX, "fence": first.witness.fence + 1}
    story.shard.prolong(first, WitnessKind.UPGRADE, change=stronger)
    story.shard.keeps_ledger = True
    story.tree.advance(MS)
    change = {"previous_id": first.witness.correlation_id}
    second = story.shard.grant("alice", story.other, mode=Mode.IX, change=change)
    assert second.witness.fence > first.witness.fence
    story.shard.prolong(first)
    assert codes(audited(story.done())) == {"ledger-gap"}


# A witness names one end, and the others by a digest: which they were, the ledger says, and here it lost that.
def test_end_that_a_gap_of_the_ledger_lost_does_not_accuse_who_comes_after_shared_leases(tmp_path: Path) -> None:
    story = Story(tmp_path)
    first, second = shared(story, Mode.IX)
    assert second.witness.fence > first.witness.fence
    story.shard.keeps_ledger = False
    lost = story.shard.end(second)
    told = story.shard.end(first)
    story.shard.keeps_ledger = True
    entries = [Ended(domain=second.witness.domain, ending=lost, floor_ns=0, settle_to_ns=0)]
    change = {
        "previous_id": second.witness.correlation_id,
        "last_ended": told,
        "others": 1,
        "others_digest": others_digest(entries),
    }
    story.shard.end(story.lease(change=change))
    assert codes(audited(story.done())) == {"ledger-gap"}


# What ended just before a grant is signed with it: of a grant that only a message carries the ledger lost that too.
def test_ends_that_were_signed_with_a_grant_that_the_ledger_lost_accuse_nobody(tmp_path: Path) -> None:
    story = Story(tmp_path)
    leases = shared(story, Mode.S)
    story.tree.advance(MS)
    lost, told = (
        Ending(
            correlation_id=lease.witness.correlation_id,
            outcome=LeaseOutcome.RELINQUISHED,
            ended_ns=story.tree.now_ns,
            watermark_ns=None,
            watermark_time=None,
            messages=0,
            chain_head=None,
        )
        for lease in leases
    )
    story.shard.keeps_ledger = False
    change = {
        "previous_id": told.correlation_id,
        "last_ended": told,
        "others": 1,
        "others_digest": others_digest(
            [Ended(domain=leases[0].witness.domain, ending=lost, floor_ns=0, settle_to_ns=0)]
        ),
    }
    story.writer.publish(story.grid, story.lease(change=change))
    assert codes(audited(story.done())) == set()


# The old shard was killed, and its ledger lacks how two leases ended that were shared: a witness names one, and counts.
def test_end_that_the_ledger_of_a_chain_that_left_lost_does_not_accuse_who_went_on_by_the_new_one(
    tmp_path: Path,
) -> None:
    move = Move(tmp_path)
    tree, old = move.tree, move.old
    tree.advance(5 * MS)
    first = old.grant("alice", move.other, mode=Mode.IX)
    change = {"previous_id": first.witness.correlation_id}
    second = old.grant("alice", move.other, mode=Mode.IX, change=change)
    tree.advance(50 * MS)
    move.other.publish(move.grid, first)
    tree.advance(5 * MS)
    old.keeps_ledger = False
    lost, ended = old.end(first), old.end(second)
    memory = old.memories["alice"]
    entry = Ended(domain="alice", ending=lost, floor_ns=memory.floor_ns, settle_to_ns=memory.settle_to_ns)
    move.both()
    more = {
        "previous_id": second.witness.correlation_id,
        "last_ended": ended,
        "floor_set_by": None,
        "others": 1,
        "others_digest": others_digest([entry]),
    }
    leaving = old.grant("alice", move.writer, change=more)
    coming = move.of("alice").grant("alice", move.writer, change={"floor_ns": leaving.witness.floor_ns})
    tree.advance(5 * MS)
    move.writer.publish(move.grid, leaving, coming)
    move.publish(3)
    # It does not hear of that, for longer than others are patient; then it is killed, and they end its chain.
    for _ in range(6):
        tree.advance(4 * SECOND)
        for shard, half in ((old, leaving), (coming.shard, coming)):
            shard.extend()
            shard.prolong(half)
    end = end_chain(tree, old)
    tree.advance(MS)
    for shard in move.coming:
        goes_alone(shard, floor_ns=end.floor_ns, settle_to_ns=end.settle_to_ns)
    coming.shard.prolong(coming)
    tree.advance(5 * MS)
    move.writer.publish(move.grid, coming)
    coming.shard.end(coming)
    (finding,) = audited(move.done()).findings
    assert (finding.code, finding.verdict) == ("whole-too-early", Verdict.INDETERMINATE)


@pytest.mark.parametrize("given_back", [False, True])
def test_half_that_becomes_whole_too_early_after_a_ledger_that_is_whole_is_accused(
    tmp_path: Path, *, given_back: bool
) -> None:
    move = Move(tmp_path)
    lease = move.old.grant("alice", move.writer)
    move.both()
    coming = move.coming[0].grant("alice", move.other)
    move.writer.publish(move.grid, lease)
    if given_back:
        move.old.end(lease)
    move.coming[0].extend()
    move.tree.until(lease.witness.expiry_ns - SECOND)
    move.coming[0].prolong(coming)
    move.tree.until(lease.witness.expiry_ns + SECOND)
    move.new()
    coming.shard.prolong(coming)
    found = {each.code: each.verdict for each in audited(move.done()).findings}
    assert found["whole-too-early"] is Verdict.VIOLATION


# A large append goes to an NFS server in several requests, in any order: a machine that loses its power leaves what had
# arrived. A run that lives on appends the same blocks to its next file.
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("page", [0, 1, 2])
def test_hole_in_an_append_that_a_dead_machine_left_half_done_is_only_doubted(
    tmp_path: Path, page: int, *, again: bool
) -> None:
    story = Story(tmp_path)
    lease, _ = story.written()
    story.shard.end(lease)
    tree, path = story.done(), story.shard.ledger
    story.shard.extend()
    before = tree.get(path)
    expiry_ns = story.shard.node.time.midpoint_ns + SECOND
    fences = range(tree.now_ns, tree.now_ns + 150)
    grants = [
        msgspec.structs.replace(
            lease.witness,
            domain=f"d{fence}",
            fence=fence,
            correlation_id=fence.to_bytes(8, "big") + bytes(8),
            expiry_ns=expiry_ns,
            previous_id=None,
        )
        for fence in fences
    ]
    story.shard.turn(*grants)
    whole = tree.get(path)
    assert audited(tree).findings == ()
    start, end = ((len(before) // 4096 + each) * 4096 for each in (page, page + 1))
    assert end < len(whole)
    start = max(start, len(before))
    tree.put(path, whole[:start] + bytes(end - start) + whole[end:])
    if again:
        tree.put(path.replace(".ledger", ".2.ledger"), whole[len(before) :])
    (finding,) = audited(tree).findings
    assert (finding.code, finding.subject, finding.verdict) == ("damaged-ledger", path, Verdict.INDETERMINATE)
    tree.put(path, whole[:start] + bytes(end - start - 1) + b"x" + whole[end:])
    (finding,) = audited(tree).findings
    assert (finding.code, finding.subject, finding.verdict) == ("damaged-ledger", path, Verdict.VIOLATION)
