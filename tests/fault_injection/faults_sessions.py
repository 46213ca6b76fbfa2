"""Planted faults in session leases: one expiry for many, and the few that end alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.formats.lease import LeaseOutcome
from timeagent.canonical import encode
from timeagent.units import MS, SECOND

from . import sessions
from .fixtures import Story
from .plants import plants

if TYPE_CHECKING:
    from pathlib import Path

    from .shard import Lease, Session
    from .tree import ClusterTree


def kept_together(root: Path, *domains: str) -> tuple[Story, Session, list[Lease]]:
    """One holder with a session lease and leases under it."""
    story = Story(root)
    session = sessions.begin(story.shard, story.writer)
    leases = [sessions.under(session, domain, story.writer) for domain in domains or ("alice",)]
    story.tree.advance(50 * MS)
    return story, session, leases


@plants("session-witness-missing")
def frame_without_the_witness_of_its_session_lease(root: Path) -> ClusterTree:
    story, _, (lease,) = kept_together(root)
    story.writer.publish(story.grid, lease, change={"witnesses": (encode(lease.signed),)})
    return story.done()


@plants("session-witness-missing")
def frame_with_the_witness_of_another_session_lease(root: Path) -> ClusterTree:
    story, _, (lease,) = kept_together(root)
    other = sessions.begin(story.shard, story.writer)
    witnesses = (encode(lease.signed), encode(other.signed))
    story.writer.publish(story.grid, lease, change={"witnesses": witnesses})
    return story.done()


@plants("session-witness-missing")
def frame_with_the_session_lease_of_another_holder(root: Path) -> ClusterTree:
    story = Story(root)
    session = sessions.begin(story.shard, story.writer, {"holder": story.other.holder})
    lease = sessions.under(session, "alice", story.writer)
    story.tree.advance(50 * MS)
    story.writer.publish(story.grid, lease)
    return story.done()


@plants("ended-lease-write")
def written_under_a_lease_that_was_ended_alone(root: Path) -> ClusterTree:
    story, session, (lease, _) = kept_together(root, "alice", "bob")
    sessions.end_alone(lease)
    sessions.renew(session)
    story.tree.advance(50 * MS)
    story.writer.publish(story.grid, lease)
    return story.done()


@plants("ended-lease-forgotten")
def renewal_that_forgets_what_was_ended_alone(root: Path) -> ClusterTree:
    story, session, (lease, _) = kept_together(root, "alice", "bob")
    sessions.end_alone(lease)
    story.tree.advance(SECOND)
    sessions.renew(session, {"ended": ()})
    return story.done()


@plants("ended-lease-forgotten")
def second_renewal_that_forgets_what_the_first_named(root: Path) -> ClusterTree:
    story, session, (lease, _) = kept_together(root, "alice", "bob")
    sessions.end_alone(lease, LeaseOutcome.ABANDONED)
    sessions.renew(session)
    story.tree.advance(SECOND)
    sessions.renew(session, {"ended": ()})
    return story.done()


@plants("session-outlived")
def renewed_after_it_was_dropped(root: Path) -> ClusterTree:
    story, session, _ = kept_together(root)
    sessions.end(session)
    story.tree.advance(SECOND)
    sessions.renew(session)
    return story.done()


@plants("session-outlived")
def lease_granted_under_one_that_was_dropped(root: Path) -> ClusterTree:
    story, session, _ = kept_together(root)
    sessions.end(session)
    story.tree.advance(MS)
    sessions.under(session, "bob", story.writer)
    return story.done()


@plants("timestamp-after-expiry")
def written_at_the_expiry_of_the_session_lease(root: Path) -> ClusterTree:
    story = Story(root)
    session = sessions.begin(story.shard, story.writer, {"expiry_ns": story.tree.now_ns + 200 * MS})
    lease = sessions.under(session, "alice", story.writer, {"expiry_ns": story.tree.now_ns + SECOND})
    story.tree.advance(200 * MS)
    story.writer.publish(story.grid, lease, at=session.witness.expiry_ns)
    return story.done()


@plants("expiry-fell")
def session_lease_renewed_to_an_earlier_expiry(root: Path) -> ClusterTree:
    story, session, _ = kept_together(root)
    story.tree.advance(SECOND)
    sessions.renew(session, {"expiry_ns": session.witness.expiry_ns - MS})
    return story.done()


@plants("expiry-fell")
def session_lease_that_ended_with_an_earlier_expiry(root: Path) -> ClusterTree:
    story, session, _ = kept_together(root)
    story.tree.advance(SECOND)
    sessions.renew(session)
    story.tree.advance(SECOND)
    sessions.end(session, change={"expiry_ns": session.witness.expiry_ns - MS})
    return story.done()


@plants("revocation-incomplete")
def lease_under_a_session_lease_revoked_by_nobody(root: Path) -> ClusterTree:
    story, session, (lease, _) = kept_together(root, "alice", "bob")
    sessions.end_alone(lease, says_who=False)
    sessions.renew(session)
    return story.done()


@plants("leaseless-write")
def frame_with_the_witness_of_a_session_lease_only(root: Path) -> ClusterTree:
    story, session, _ = kept_together(root)
    story.writer.publish(story.grid, change={"witnesses": (encode(session.signed),)})
    return story.done()


@plants("early-grant")
def granted_while_the_session_lease_of_another_lives(root: Path) -> ClusterTree:
    story, session, (lease,) = kept_together(root)
    story.tree.advance(6 * SECOND)
    story.shard.extend()
    sessions.renew(session)
    story.tree.until(lease.witness.expiry_ns + SECOND)
    story.shard.grant("alice", story.other, change={"previous_id": lease.witness.correlation_id})
    return story.done()


@plants("early-grant")
def floor_below_the_expiry_of_the_session_lease_of_one_that_was_ended_alone(root: Path) -> ClusterTree:
    story, session, (lease, _) = kept_together(root, "alice", "bob")
    story.tree.advance(SECOND)
    sessions.renew(session)
    sessions.end_alone(lease)
    memory = story.shard.memories["alice"]
    change = {"floor_ns": lease.witness.expiry_ns, "settle_to_ns": memory.settle_to_ns}
    story.shard.grant("alice", story.other, change=change)
    return story.done()


@plants("grant-overlap")
def floor_below_the_watermark_of_a_dropped_session_lease(root: Path) -> ClusterTree:
    story, session, (lease,) = kept_together(root)
    story.writer.publish(story.grid, lease)
    sessions.end(session)
    story.tree.advance(MS)
    story.shard.grant("alice", story.other, change={"floor_ns": story.shard.floor_ns})
    return story.done()


@plants("watermark-below-message")
def dropped_with_a_watermark_below_a_message(root: Path) -> ClusterTree:
    story, session, (lease,) = kept_together(root)
    story.writer.publish(story.grid, lease)
    assert lease.written_ns is not None
    sessions.end(session, change={"watermark_ns": lease.written_ns - 1})
    return story.done()


@plants("watermark-beyond-expiry")
def dropped_with_a_watermark_at_its_expiry(root: Path) -> ClusterTree:
    story = Story(root)
    session = sessions.begin(story.shard, story.writer, {"expiry_ns": story.tree.now_ns + 500 * MS})
    lease = sessions.under(session, "alice", story.writer)
    story.tree.advance(50 * MS)
    story.writer.publish(story.grid, lease)
    sessions.end(session, change={"watermark_ns": session.witness.expiry_ns})
    return story.done()


@plants("count-mismatch")
def dropped_with_fewer_messages_than_there_are(root: Path) -> ClusterTree:
    story, session, (lease, other) = kept_together(root, "alice", "bob")
    story.writer.publish(story.grid, lease)
    story.tree.advance(MS)
    story.writer.publish(story.grid, other)
    sessions.end(session, change={"messages": 3})
    return story.done()


@plants("term-above-policy")
def session_lease_for_longer_than_the_policy_allows(root: Path) -> ClusterTree:
    story = Story(root)
    story.tree.advance(SECOND)
    story.shard.extend()
    longer = story.tree.now_ns + story.tree.policy.lease_term_max_ns + SECOND
    sessions.begin(story.shard, story.writer, {"expiry_ns": longer})
    story.writer.publish(story.grid, story.elsewhere())  # whose bag is closed afterwards, under the same policy
    return story.done()


@plants("grant-above-ceiling")
def session_lease_above_the_ceiling(root: Path) -> ClusterTree:
    story = Story(root)
    story.tree.advance(5 * SECOND)
    sessions.begin(story.shard, story.writer, {"expiry_ns": story.shard.ceiling_ns + 1})
    return story.done()


@plants("last-frame-mismatch")
def dropped_with_the_last_frame_of_another_lease(root: Path) -> ClusterTree:
    story, session, leases = kept_together(root, "alice", "bob")
    for lease in leases:
        story.writer.publish(story.grid, lease)
        story.tree.advance(MS)
    sessions.end(session, change={"chain_head": leases[0].chain_head})
    return story.done()


@plants("last-frame-mismatch")
def dropped_with_no_last_frame(root: Path) -> ClusterTree:
    story, session, (lease,) = kept_together(root)
    story.writer.publish(story.grid, lease)
    sessions.end(session, change={"chain_head": None})
    return story.done()


@plants("last-frame-mismatch")
def dropped_with_a_last_frame_that_nobody_wrote(root: Path) -> ClusterTree:
    """Its last attempt came to nothing: the watermark lies above what is there."""
    story, session, (lease,) = kept_together(root)
    story.writer.publish(story.grid, lease)
    assert lease.written_ns is not None
    sessions.end(session, change={"watermark_ns": lease.written_ns + MS, "chain_head": bytes(32)})
    return story.done()


@plants("r2-breach")
def dropped_before_the_time_in_its_watermark(root: Path) -> ClusterTree:
    story, session, (lease,) = kept_together(root)
    story.tree.advance(600 * MS)
    story.writer.publish(story.grid, lease)
    with story.tree.nodes["n1"].time.set_back(400 * MS):
        sessions.end(session)
    return story.done()


@plants("r2-breach")
def dropped_with_a_watermark_from_before_it_was_granted(root: Path) -> ClusterTree:
    story = Story(root)
    early = story.tree.nodes["n2"].time.token().encode()
    story.tree.advance(400 * MS)
    session = sessions.begin(story.shard, story.writer)
    lease = sessions.under(session, "alice", story.writer)
    story.tree.advance(50 * MS)
    story.writer.publish(story.grid, lease)
    sessions.end(session, change={"watermark_time": early})
    return story.done()


@plants("r1-breach")
def dropped_with_a_watermark_without_its_signed_time(root: Path) -> ClusterTree:
    story, session, (lease,) = kept_together(root)
    story.writer.publish(story.grid, lease)
    sessions.end(session, change={"watermark_time": None})
    return story.done()


@plants("r2-breach")
def session_lease_broken_early_with_an_instant_that_is_not_yet(root: Path) -> ClusterTree:
    story, session, _ = kept_together(root)
    story.tree.advance(SECOND)
    sessions.end(session, LeaseOutcome.EXPIRED, change={"ended_ns": session.witness.expiry_ns + SECOND})
    return story.done()
