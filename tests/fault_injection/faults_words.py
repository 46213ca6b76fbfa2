"""Planted faults in what is said twice: of a lease in a renewal, of its end, of its last frame, of a run that stops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.formats.lease import LeaseOutcome
from timeagent.units import MS

from .fixtures import Story
from .plants import plants
from .shard import Lease
from .tree import Change, ClusterTree, changed, seed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from appliance.formats.lease import Ending


def renewed(root: Path, change: Callable[[Story], Change]) -> ClusterTree:
    """The second holder of a domain renews once, with a change."""
    story = Story(root)
    first, _ = story.written()
    story.shard.end(first)
    story.tree.advance(300 * MS)
    lease = story.shard.grant("alice", story.other)
    story.shard.prolong(lease, change=change(story))
    story.tree.advance(MS)
    story.shard.end(lease)
    return story.done()


@plants("lease-changed")
def renewed_with_a_lower_floor(root: Path) -> ClusterTree:
    return renewed(root, lambda _: {"floor_ns": 0})


@plants("lease-changed")
def renewed_with_another_settle_to(root: Path) -> ClusterTree:
    return renewed(root, lambda story: {"settle_to_ns": story.tree.now_ns - 900 * MS})


@plants("lease-changed")
def renewed_with_another_fence(root: Path) -> ClusterTree:
    return renewed(root, lambda story: {"fence": story.shard.memories["alice"].fence + 7})


@plants("lease-changed")
def renewed_for_somebody_else(root: Path) -> ClusterTree:
    return renewed(root, lambda story: {"holder": story.writer.holder})


def told_again(root: Path, change: Callable[[Ending], Change]) -> ClusterTree:
    """The next grant of a domain says otherwise how the lease before it ended."""
    story = Story(root)
    first, _ = story.written()
    story.shard.end(first)
    story.tree.advance(300 * MS)
    memory = story.shard.memories["alice"]
    assert memory.last_ended is not None
    memory.last_ended = changed(memory.last_ended, change(memory.last_ended))
    story.shard.end(story.shard.grant("alice", story.other))
    return story.done()


@plants("lease-changed")
def told_again_with_a_lower_watermark(root: Path) -> ClusterTree:
    return told_again(root, lambda ending: {"watermark_ns": (ending.watermark_ns or 1) - 1})


@plants("lease-changed")
def told_again_as_broken(root: Path) -> ClusterTree:
    return told_again(root, lambda _: {"outcome": LeaseOutcome.REVOKED})


@plants("lease-changed")
def told_again_with_another_count(root: Path) -> ClusterTree:
    return told_again(root, lambda ending: {"messages": ending.messages + 1})


@plants("lease-changed")
def told_again_with_another_last_frame(root: Path) -> ClusterTree:
    return told_again(root, lambda _: {"chain_head": seed("another frame")})


@plants("lease-changed")
def told_again_as_what_set_the_floor(root: Path) -> ClusterTree:
    story = Story(root)
    first, _ = story.written()
    ending = story.shard.end(first)
    story.tree.advance(300 * MS)
    other = changed(ending, {"ended_ns": ending.ended_ns - MS})
    story.shard.end(story.shard.grant("alice", story.other, change={"floor_set_by": other}))
    return story.done()


@plants("last-frame-mismatch")
def last_frame_replaced(root: Path) -> ClusterTree:
    """With the same number, the same instants and as many messages, before its bag was closed."""
    story = Story(root)
    lease, path = story.written()
    committed = lease.chain_head
    story.tree.remove(path)
    lease.messages, story.writer.sequence, story.writer.committed = 0, 0, None
    assert lease.written_ns is not None
    story.writer.publish(story.grid, lease, payloads=(b"six", b"ten"), at=lease.written_ns - 1)
    lease.chain_head = committed
    story.shard.end(lease)
    return story.done()


@plants("last-frame-mismatch")
def last_frame_is_not_the_last(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    first = lease.chain_head
    story.tree.advance(5 * MS)
    story.writer.publish(story.grid, lease)
    lease.chain_head = first
    story.shard.end(lease)
    return story.done()


def stopped(root: Path, forget: Callable[[Story, Lease], None], *, broken: bool = False) -> ClusterTree:
    """The shard forgets something of a lease that ended, and stops orderly."""
    story = Story(root)
    lease, _ = story.written()
    story.shard.extend()
    if broken:
        story.shard.expire(lease)
    else:
        story.shard.end(lease)
    forget(story, lease)
    story.shard.stop_orderly()
    return story.done()


@plants("floor-fell")
def stopped_with_a_floor_below_a_watermark(root: Path) -> ClusterTree:
    def forget(story: Story, lease: Lease) -> None:
        memory = story.shard.memories["alice"]
        memory.fence, memory.floor_ns = lease.witness.fence, lease.witness.fence

    return stopped(root, forget)


@plants("floor-fell")
def stopped_with_a_floor_below_a_fence(root: Path) -> ClusterTree:
    story = Story(root)
    lease = story.lease()
    story.shard.end(lease)
    memory = story.shard.memories["alice"]
    memory.fence, memory.floor_ns = 0, lease.witness.fence - 1
    story.shard.stop_orderly()
    return story.done()


@plants("floor-fell")
def stopped_with_a_settle_to_below_the_expiry_of_a_broken_lease(root: Path) -> ClusterTree:
    def forget(story: Story, lease: Lease) -> None:
        story.shard.memories["alice"].settle_to_ns = lease.witness.expiry_ns - 1

    return stopped(root, forget, broken=True)


@plants("floor-fell")
def stopped_with_a_lease_out(root: Path) -> ClusterTree:
    story = Story(root)
    story.written()
    story.shard.stop_orderly()
    return story.done()
