"""Planted faults in signed times and timestamps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from timeagent.units import MS, SECOND

from . import sessions
from .fixtures import Story
from .plants import plants
from .tree import ClusterTree

if TYPE_CHECKING:
    from pathlib import Path


@plants("r1-breach")
def r1_breach(root: Path) -> ClusterTree:
    story = Story(root)
    old = story.tree.nodes["n2"].time.token()
    lease = story.lease()
    story.tree.advance(1200 * MS)
    story.writer.publish(story.grid, lease, change={"time": old.encode()})
    return story.done()


@plants("r1-breach")
def watermark_far_from_its_time(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    story.shard.end(lease, change={"watermark_ns": story.tree.now_ns + 2 * SECOND})
    return story.done()


@plants("policy-misnamed")
def lease_for_longer_than_the_policy_that_is_named(root: Path) -> ClusterTree:
    story = Story(root)
    lease = story.lease()
    number = story.tree.change_policy(lease_term_max_ns=5 * SECOND)
    story.writer.publish(story.grid, lease, change={"policy_number": number})
    return story.done()


@plants("policy-misnamed")
def lease_that_only_a_later_policy_allows(root: Path) -> ClusterTree:
    story = Story(root)
    story.tree.change_policy(lease_term_max_ns=20 * SECOND)
    story.shard.extend()
    lease = story.lease(change={"expiry_ns": story.tree.now_ns + 11 * SECOND})
    story.writer.publish(story.grid, lease)
    return story.done()


@plants("policy-misnamed")
def session_lease_for_longer_than_the_policy_that_is_named(root: Path) -> ClusterTree:
    story = Story(root)
    session = sessions.begin(story.shard, story.writer)
    lease = sessions.under(session, "alice", story.writer, {"expiry_ns": story.tree.now_ns + SECOND})
    number = story.tree.change_policy(lease_term_max_ns=5 * SECOND)
    story.writer.publish(story.grid, lease, change={"policy_number": number})
    return story.done()


@plants("r2-breach")
def message_signed_before_its_witness(root: Path) -> ClusterTree:
    story = Story(root)
    lease = story.lease()
    with story.tree.nodes["n2"].time.set_back(400 * MS):
        story.writer.publish(story.grid, lease, at=story.tree.now_ns + MS)
    return story.done()


@plants("r2-breach")
def frame_signed_before_the_one_that_it_names(root: Path) -> ClusterTree:
    story = Story(root)
    lease = story.lease()
    story.tree.advance(600 * MS)
    story.writer.publish(story.grid, lease)
    with story.tree.nodes["n2"].time.set_back(400 * MS):
        story.writer.publish(story.grid, lease, at=story.tree.now_ns + MS)
    return story.done()


@plants("r2-breach")
def batch_signed_before_the_one_before(root: Path) -> ClusterTree:
    story = Story(root)
    story.lease()
    with story.tree.nodes["n1"].time.set_back(400 * MS):
        story.shard.grant("bob", story.writer)
    return story.done()


@plants("r2-breach")
def bag_closed_before_its_message(root: Path) -> ClusterTree:
    story = Story(root)
    lease = story.lease()
    story.tree.nodes["n2"].time.advance(890 * MS)
    story.writer.publish(story.grid, lease, at=story.grid.first_ns + 1990 * MS)
    # By its own time the closer is not early, and yet it closed over what was signed after that.
    story.tree.nodes["n2"].time.advance(50 * MS)
    story.writer.publish(story.grid, lease, at=story.grid.first_ns + 1995 * MS)
    story.tree.nodes["n1"].time.midpoint_ns = story.grid.first_ns + 1996 * MS
    story.tree.close(story.grid.bag(story.grid.first_ns + SECOND), node="n1")
    return story.tree


@plants("timestamp-outside-bag")
def message_in_another_bag(root: Path) -> ClusterTree:
    story = Story(root)
    lease = story.lease()
    story.tree.advance(MS)
    story.writer.publish(story.grid, lease, bag=story.grid.bag(story.grid.first_ns))
    return story.done()


@plants("timestamp-after-expiry")
def message_after_expiry(root: Path) -> ClusterTree:
    story = Story(root)
    lease = story.lease()
    story.tree.until(lease.witness.expiry_ns - MS)
    story.writer.publish(story.grid, lease, at=lease.witness.expiry_ns - 1)
    return story.done()


@plants("timestamp-below-floor")
def message_below_floor(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    story.shard.end(lease)
    after = story.shard.grant("alice", story.other)
    story.other.publish(story.grid, after, at=after.witness.floor_ns)
    return story.done()


HOUR = 3600 * SECOND


def closed_afterwards(story: Story) -> ClusterTree:
    """Write once more, and close that: until then no later policy can have allowed what was before."""
    story.tree.advance(2 * SECOND)
    story.shard.extend()
    story.writer.publish(story.grid, story.elsewhere())
    return story.done()


@plants("radius-above-policy")
def granted_by_a_clock_that_is_known_to_an_hour(root: Path) -> ClusterTree:
    story = Story(root)
    with story.tree.nodes["n1"].time.known_to(HOUR):
        lease = story.lease()
    story.tree.advance(50 * MS)
    story.writer.publish(story.grid, lease)
    story.shard.end(lease)
    return closed_afterwards(story)


@plants("radius-above-policy")
def granted_for_an_hour_by_a_clock_that_is_known_to_that(root: Path) -> ClusterTree:
    """By its radius every term is short."""
    story = Story(root)
    story.shard.extend(change={"ceiling_ns": story.tree.now_ns + 2 * HOUR})
    with story.tree.nodes["n1"].time.known_to(HOUR):
        story.lease(change={"expiry_ns": story.tree.now_ns + HOUR})
    return closed_afterwards(story)


@plants("radius-above-policy")
def written_by_a_clock_that_is_known_to_an_hour(root: Path) -> ClusterTree:
    """By its radius every timestamp is near its signed time."""
    story = Story(root)
    lease = story.lease()
    story.tree.advance(50 * MS)
    with story.tree.nodes["n2"].time.known_to(HOUR):
        story.writer.publish(story.grid, lease, at=story.tree.now_ns + 5 * SECOND)
    return story.done()


@plants("radius-above-policy")
def bag_closed_by_a_clock_that_is_known_to_a_second(root: Path) -> ClusterTree:
    story = Story(root)
    story.written()
    story.tree.advance(5 * SECOND)
    with story.tree.nodes["n2"].time.known_to(SECOND):
        story.tree.close_due(story.grid)
    story.tree.advance(SECOND)
    return closed_afterwards(story)


@plants("radius-above-policy")
def rack_sealed_by_a_clock_that_is_known_to_a_second(root: Path) -> ClusterTree:
    story = Story(root)
    story.written()
    story.done(seal=False)
    rack = story.grid.rack(story.grid.first_ns)
    story.tree.until(rack.end_ns + story.tree.policy.seal_delay_ns + 3 * SECOND)
    with story.tree.nodes["n1"].time.known_to(SECOND):
        story.tree.seal(rack)
    return closed_afterwards(story)


@plants("radius-above-policy")
def log_born_by_a_clock_that_is_known_to_a_second(root: Path) -> ClusterTree:
    story = Story(root)
    with story.tree.nodes["n1"].time.known_to(SECOND):
        story.tree.log("invoices")
    return closed_afterwards(story)


@plants("radius-above-policy")
def ceiling_record_by_a_clock_that_is_known_to_a_second(root: Path) -> ClusterTree:
    story = Story(root)
    with story.tree.nodes["n1"].time.known_to(SECOND):
        wide = story.tree.nodes["n1"].time.token()
    story.shard.extend(change={"time": wide.encode()})
    return closed_afterwards(story)


@plants("radius-above-policy")
def watermark_by_a_clock_that_is_known_to_a_second(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    with story.tree.nodes["n2"].time.known_to(SECOND):
        wide = story.tree.nodes["n2"].time.token()
    story.shard.end(lease, change={"watermark_time": wide.encode()})
    return story.done()


@plants("radius-above-policy")
def watermark_of_a_session_lease_by_a_clock_that_is_known_to_a_second(root: Path) -> ClusterTree:
    story = Story(root)
    session = sessions.begin(story.shard, story.writer)
    lease = sessions.under(session, "alice", story.writer)
    story.tree.advance(50 * MS)
    story.writer.publish(story.grid, lease)
    with story.tree.nodes["n2"].time.known_to(SECOND):
        wide = story.tree.nodes["n2"].time.token()
    sessions.end(session, change={"watermark_time": wide.encode()})
    return story.done()


@plants("policy-misnamed")
def lease_by_a_clock_that_the_policy_that_is_named_does_not_allow(root: Path) -> ClusterTree:
    story = Story(root)
    with story.tree.nodes["n1"].time.known_to(100 * MS):
        lease = story.lease()
    number = story.tree.change_policy(radius_ns_max=50 * MS)
    story.tree.advance(200 * MS)
    story.writer.publish(story.grid, lease, change={"policy_number": number})
    return story.done()


@plants("stale-time")
def frame_that_may_be_an_hour_older_than_it_shows(root: Path) -> ClusterTree:
    """By its staleness everything may have come before it."""
    story = Story(root)
    lease = story.lease()
    story.tree.nodes["n2"].time.staleness_ns = HOUR
    story.writer.publish(story.grid, lease)
    story.tree.nodes["n2"].time.staleness_ns = 250 * MS
    return story.done()


@plants("stale-time")
def batch_that_may_be_an_hour_older_than_it_shows(root: Path) -> ClusterTree:
    """By its staleness every lease before it may have run out."""
    story = Story(root)
    story.tree.nodes["n1"].time.staleness_ns = HOUR
    lease = story.lease()
    story.tree.nodes["n1"].time.staleness_ns = 250 * MS
    story.shard.end(lease)
    return story.done()


@plants("stale-time")
def watermark_that_may_be_an_hour_older_than_it_shows(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    story.tree.nodes["n2"].time.staleness_ns = HOUR
    stale = story.tree.nodes["n2"].time.token()
    story.tree.nodes["n2"].time.staleness_ns = 250 * MS
    story.shard.end(lease, change={"watermark_time": stale.encode()})
    return story.done()
