"""Planted faults in leases: what is granted, written under them, and said at their end."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from appliance.formats.lease import LeaseOutcome, Mode, Phase
from appliance.formats.witness import Revoked, WitnessKind
from timeagent.units import MS, SECOND

from .fixtures import Story
from .plants import plants
from .shard import Lease, Shard
from .tree import ClusterTree, seed

if TYPE_CHECKING:
    from pathlib import Path


@plants("tentative-write")
def tentative_write(root: Path) -> ClusterTree:
    story = Story(root)
    lease = story.lease(phase=Phase.TENTATIVE)
    story.tree.advance(MS)
    story.writer.publish(story.grid, lease)
    return story.done()


@plants("read-mode-write")
def read_mode_write(root: Path) -> ClusterTree:
    story = Story(root)
    lease = story.lease(mode=Mode.S)
    story.tree.advance(MS)
    story.writer.publish(story.grid, lease)
    return story.done()


@plants("foreign-lease")
def foreign_lease(root: Path) -> ClusterTree:
    story = Story(root)
    lease = story.lease()
    story.tree.advance(MS)
    story.other.publish(story.grid, lease)
    return story.done()


def shared(story: Story, mode: Mode) -> tuple[Lease, Lease]:
    """Two holders of one domain at once, the second beside the first."""
    first = story.lease(mode=mode)
    story.tree.advance(MS)
    change = {"previous_id": first.witness.correlation_id}
    return first, story.shard.grant("alice", story.other, mode=mode, change=change)


@plants("early-grant")
def writer_beside_a_reader(root: Path) -> ClusterTree:
    story = Story(root)
    reader = story.lease(mode=Mode.S)
    story.tree.advance(MS)
    story.shard.grant("alice", story.other, mode=Mode.IX, change={"previous_id": reader.witness.correlation_id})
    return story.done()


@plants("early-grant")
def stronger_mode_beside_another_reader(root: Path) -> ClusterTree:
    story = Story(root)
    first, second = shared(story, Mode.S)
    story.tree.advance(MS)
    change = {"mode": Mode.X, "fence": second.witness.fence + 1}
    story.shard.prolong(first, WitnessKind.UPGRADE, change=change)
    return story.done()


@plants("fence-not-growing")
def stronger_mode_with_the_fence_of_its_grant(root: Path) -> ClusterTree:
    story = Story(root)
    first, second = shared(story, Mode.S)
    story.shard.end(second)
    story.shard.prolong(first, WitnessKind.UPGRADE, change={"mode": Mode.X})
    return story.done()


@plants("grant-overlap")
def watermark_of_a_shared_holder_forgotten(root: Path) -> ClusterTree:
    story = Story(root)
    first, second = shared(story, Mode.IX)
    story.writer.publish(story.grid, first)
    story.shard.end(first)
    story.shard.end(second)
    floor = {"floor_ns": second.witness.floor_ns}
    after = story.shard.grant("alice", story.other, change=floor)
    story.shard.end(after)
    return story.done()


@plants("watermark-below-message")
def watermark_below_message(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    assert lease.written_ns is not None
    story.shard.end(lease, change={"watermark_ns": lease.written_ns - 1})
    return story.done()


@plants("watermark-below-message")
def relinquished_as_unwritten(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    story.shard.end(lease, change={"watermark_ns": None, "watermark_time": None})
    return story.done()


@plants("watermark-beyond-expiry")
def watermark_beyond_expiry(root: Path) -> ClusterTree:
    story = Story(root)
    lease = story.lease(change={"expiry_ns": story.tree.now_ns + 500 * MS})
    story.tree.advance(50 * MS)
    story.writer.publish(story.grid, lease)
    story.shard.end(lease, change={"watermark_ns": lease.witness.expiry_ns})
    return story.done()


@plants("count-mismatch")
def fewer_messages_than_there_are(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    story.shard.end(lease, change={"messages": 1})
    return story.done()


@plants("count-mismatch")
def more_messages_than_there_are(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    story.shard.end(lease, change={"messages": 3})
    return story.done()


def aged(story: Story) -> ClusterTree:
    """Close nothing, and let the shard go on for so long that whatever was written must be in a closed bag."""
    story.tree.advance(20 * SECOND)
    story.shard.extend()
    return story.tree


@plants("count-mismatch")
def all_bags_of_a_lease_removed(root: Path) -> ClusterTree:
    story = Story(root)
    lease, path = story.written()
    story.shard.end(lease)
    shutil.rmtree((story.tree.root / path).parent)
    return aged(story)


@plants("count-mismatch")
def whole_log_removed(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    story.shard.end(lease)
    story.done()
    story.shard.extend()
    shutil.rmtree(story.tree.root / "logs/orders")
    return story.tree


@plants("early-grant")
def granted_while_held(root: Path) -> ClusterTree:
    story = Story(root)
    story.lease()
    story.tree.advance(SECOND)
    story.shard.grant("alice", story.other)
    return story.done()


@plants("broken-early")
def broken_before_it_was_surely_past(root: Path) -> ClusterTree:
    story = Story(root)
    lease = story.lease()
    story.tree.until(lease.witness.expiry_ns - 300 * MS)
    story.shard.end(lease, LeaseOutcome.EXPIRED)
    story.shard.grant("alice", story.other)
    return story.done()


@plants("early-grant")
def granted_by_two_runs_at_once(root: Path) -> ClusterTree:
    story = Story(root)
    lease = story.lease()
    rogue = Shard(story.tree, "n2")
    rogue.floor_ns, rogue.settle_to_ns = lease.witness.floor_ns, lease.witness.settle_to_ns
    shutil.rmtree(story.tree.root / "shards")
    story.tree.remove(rogue.ledger)
    rogue.sequence, rogue.previous = 0, bytes(32)
    story.tree.advance(SECOND)
    rogue.grant("alice", story.other)
    return story.done()


@plants("grant-overlap")
def floor_below_the_watermark(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    story.shard.end(lease)
    assert lease.written_ns is not None
    story.shard.grant("alice", story.other, change={"floor_ns": lease.written_ns - 1})
    return story.done()


@plants("grant-overlap")
def floor_below_the_expiry_of_a_broken_one(root: Path) -> ClusterTree:
    story = Story(root)
    lease = story.lease()
    story.shard.expire(lease)
    story.shard.grant("alice", story.other, change={"floor_ns": lease.witness.expiry_ns - 1})
    return story.done()


@plants("fence-not-growing")
def fence_not_growing(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    story.shard.end(lease)
    story.tree.advance(MS)
    story.shard.grant("alice", story.other, change={"fence": lease.witness.fence})
    return story.done()


@plants("floor-fell")
def floor_fell(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    story.shard.end(lease)
    after = story.lease()
    story.shard.end(after)
    story.tree.advance(MS)
    story.shard.grant("alice", story.other, change={"floor_ns": 0})
    return story.done()


@plants("floor-fell")
def settle_to_below_the_shards_own(root: Path) -> ClusterTree:
    story = Story(root)
    story.shard = Shard(story.tree)
    story.lease(change={"settle_to_ns": story.shard.settle_to_ns - 1})
    return story.done()


@plants("floor-fell")
def run_that_begins_below_the_ceiling(root: Path) -> ClusterTree:
    story = Story(root)
    Shard(story.tree, change={"floor_ns": story.shard.ceiling_ns - 1})
    return story.done()


@plants("broken-early")
def broken_early_and_granted_to_nobody(root: Path) -> ClusterTree:
    story = Story(root)
    lease = story.lease()
    story.tree.until(lease.witness.expiry_ns - SECOND)
    story.shard.end(lease, LeaseOutcome.EXPIRED)
    return story.done()


@plants("renewed-after-end")
def renewed_after_it_was_relinquished(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    story.shard.end(lease)
    story.tree.advance(SECOND)
    story.shard.prolong(lease)
    return story.done()


@plants("r2-breach")
def ended_before_the_time_in_its_watermark(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    lease.written_time = story.tree.nodes["n2"].time.token().encode()
    with story.tree.nodes["n1"].time.set_back(400 * MS):
        story.shard.end(lease)
    return story.done()


@plants("r2-breach")
def granted_by_a_clock_that_stepped_back_since_the_lease_had_run_out(root: Path) -> ClusterTree:
    story = Story(root)
    lease = story.lease()
    story.tree.until(lease.witness.expiry_ns + 300 * MS)
    story.shard.end(lease, LeaseOutcome.EXPIRED)
    with story.tree.nodes["n1"].time.set_back(2 * SECOND):
        story.shard.grant("alice", story.other)
    return story.done()


@plants("fence-not-growing")
def fence_below_the_shards_own_floor(root: Path) -> ClusterTree:
    story = Story(root)
    story.shard = Shard(story.tree)
    story.lease(change={"fence": story.shard.floor_ns})
    return story.done()


@plants("leaseless-write")
def message_under_no_lease(root: Path) -> ClusterTree:
    story = Story(root)
    story.writer.publish(story.grid)
    return story.done()


@plants("leaseless-write")
def witnesses_taken_out_of_a_frame(root: Path) -> ClusterTree:
    """Before its bag was closed, with everything else in it unchanged."""
    story = Story(root)
    lease, _ = story.written(witnesses=())
    lease.messages, lease.chain_head = 0, None
    story.shard.end(lease)
    return story.done()


@plants("misnamed-lease")
def correlation_id_of_another_fence(root: Path) -> ClusterTree:
    story = Story(root)
    story.shard.end(story.lease(change={"correlation_id": seed("another")[:16]}))
    return story.done()


@plants("misnamed-lease")
def renewal_with_a_fence_below_its_name(root: Path) -> ClusterTree:
    """Of a run without a ledger, so that the grant is not known."""
    story = Story(root)
    lease = story.lease()
    story.tree.remove(story.shard.ledger)
    story.shard.keeps_ledger = False
    story.shard.prolong(lease, change={"fence": lease.witness.fence - 1})
    story.tree.advance(MS)
    story.writer.publish(story.grid, lease)
    return story.done(seal=False)


@plants("expiry-fell")
def renewed_to_an_earlier_expiry(root: Path) -> ClusterTree:
    story = Story(root)
    lease = story.lease()
    story.tree.advance(SECOND)
    story.shard.prolong(lease, change={"expiry_ns": lease.witness.expiry_ns - MS})
    story.tree.advance(MS)
    story.shard.end(lease)
    return story.done()


@plants("floor-fell")
def ended_with_a_floor_below_its_watermark(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    assert lease.written_ns is not None
    story.shard.end(lease, states={"floor_ns": lease.written_ns - 1})
    return story.done()


@plants("floor-fell")
def broken_with_a_settle_to_below_its_expiry(root: Path) -> ClusterTree:
    story = Story(root)
    lease = story.lease()
    story.shard.extend()
    story.tree.until(lease.witness.expiry_ns + SECOND)
    story.shard.end(lease, LeaseOutcome.EXPIRED, states={"settle_to_ns": lease.witness.expiry_ns - 1})
    return story.done()


@plants("floor-fell")
def ended_with_a_floor_below_that_of_an_end_before(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    story.shard.end(lease)
    after = story.lease()
    story.shard.end(after, states={"floor_ns": after.witness.floor_ns - 1})
    return story.done()


@plants("revocation-incomplete")
def revoked_by_nobody(root: Path) -> ClusterTree:
    story = Story(root)
    story.shard.end(story.lease(), LeaseOutcome.REVOKED, says_who=False)
    return story.done()


@plants("revocation-incomplete")
def revoked_and_not_ended(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    witness, operator = lease.witness, story.other.holder
    story.shard.turn(Revoked(domain=witness.domain, correlation_id=witness.correlation_id, by=operator))
    story.shard.end(lease)
    return story.done()


@plants("ungranted-lease")
def first_word_on_a_lease_is_a_renewal(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    story.shard.end(lease)
    story.tree.advance(MS)
    story.shard.end(story.shard.grant("alice", story.other, change={"kind": WitnessKind.RENEWAL}))
    return story.done()


@plants("r2-breach")
def broken_early_with_an_instant_that_is_not_yet(root: Path) -> ClusterTree:
    story = Story(root)
    lease = story.lease()
    story.tree.advance(SECOND)
    story.shard.end(lease, LeaseOutcome.EXPIRED, change={"ended_ns": lease.witness.expiry_ns + SECOND})
    return story.done()


@plants("r1-breach")
def watermark_without_its_signed_time(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    story.shard.end(lease, change={"watermark_time": None})
    return story.done()


@plants("lease-changed")
def made_held_with_a_lower_settle_to(root: Path) -> ClusterTree:
    story = Story(root)
    story.shard.extend()
    story.shard.expire(story.lease())
    story.shard.extend()
    lease = story.shard.grant("alice", story.other, phase=Phase.TENTATIVE)
    story.shard.prolong(lease, WitnessKind.UPGRADE, change={"settle_to_ns": lease.witness.settle_to_ns - 1})
    return story.done()


@plants("grant-without-right")
def batch_of_another_node(root: Path) -> ClusterTree:
    story = Story(root)
    node = story.tree.nodes["n2"]
    story.lease(head={"node": "n2", "time": node.time.token()}, signer=node.witness_key)
    return story.done()
