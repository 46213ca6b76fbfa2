"""Faults that leave everything else clean: of each but one condition of the columns takes notice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from appliance.formats.lease import LeaseOutcome
from timeagent.canonical import encode
from timeagent.units import MS, SECOND

from . import sessions
from .faults_sessions import kept_together
from .fixtures import Story
from .shard import Shard
from .tree import ClusterTree, changed
from .writer import Writer

if TYPE_CHECKING:
    from pathlib import Path

    from .tree import Change


def one_lease(
    root: Path,
    *,
    settle_to: tuple[int, int] = (0, 0),
    beyond_ns: int = 0,
    moved: int = 0,
    late: bool = False,
    change: Change | None = None,
    named: str = "",
) -> None:
    """A lease and a frame, the one or the other not as it should be, and the lease of the same domain after it."""
    tree = ClusterTree(root)
    grid, shard, writer = tree.log(), Shard(tree), Writer(tree)
    tree.advance(3 * SECOND)
    early = tree.nodes[writer.node].time.token().encode()
    tree.advance(900 * MS)
    first, after = ({"settle_to_ns": tree.now_ns + each if each < 0 else each} for each in settle_to)
    if beyond_ns:
        first["expiry_ns"] = tree.now_ns + tree.policy.lease_term_max_ns + beyond_ns
    lease = shard.grant("alice", writer, change=first)
    lease.signed = msgspec.structs.replace(lease.signed, index=lease.signed.index + moved)
    tree.advance(20 * MS)
    path = root / writer.publish(grid, lease, change=change)
    if named:
        path.rename(path.with_name(path.name.replace(writer.node, named, 1)))
    if late:
        lease.written_time = early
    shard.end(lease, states={"settle_to_ns": lease.witness.settle_to_ns})
    tree.advance(20 * MS)
    heir = shard.grant("alice", writer, change=after)
    shard.end(heir, states={"settle_to_ns": heir.witness.settle_to_ns})
    tree.settle(grid)


def longer_than_the_policy_allows(root: Path) -> None:
    one_lease(root, beyond_ns=SECOND)


def at_another_place_in_its_batch(root: Path) -> None:
    one_lease(root, moved=1)


def written_before_the_log_was_settled(root: Path) -> None:
    one_lease(root, settle_to=(-500 * MS, -500 * MS))


def settle_to_above_that_of_its_own_end(root: Path) -> None:
    tree = ClusterTree(root)
    grid, shard, writer = tree.log(), Shard(tree), Writer(tree)
    tree.advance(SECOND)
    shard.end(shard.grant("alice", writer, change={"settle_to_ns": 5}), states={"settle_to_ns": 4})
    tree.settle(grid)


def settle_to_above_that_of_the_next(root: Path) -> None:
    one_lease(root, settle_to=(5, 0))


def watermark_with_a_time_before_the_grant(root: Path) -> None:
    one_lease(root, late=True)


def of_another_cluster(root: Path) -> None:
    one_lease(root, change={"cluster_id": bytes(16)})


def of_another_log(root: Path) -> None:
    one_lease(root, change={"log": "others"})


def of_another_writer(root: Path) -> None:
    one_lease(root, named="n1")


def of_later_keys(root: Path) -> None:
    one_lease(root, change={"trust_number": 2})


def settle_to_above_that_of_the_stop(root: Path) -> None:
    tree = ClusterTree(root)
    grid, shard, writer = tree.log(), Shard(tree), Writer(tree)
    tree.advance(SECOND)
    shard.end(shard.grant("alice", writer, change={"settle_to_ns": 5}), states={"settle_to_ns": 5})
    shard.stop_orderly()
    tree.settle(grid)


def told_twice_how_it_ended(root: Path) -> None:
    story = Story(root)
    lease, _ = story.written()
    story.shard.end(lease)
    story.shard.end(lease, change={"ended_ns": story.tree.now_ns - 1})
    story.done()


def broken_at_the_instant_of_its_expiry(root: Path) -> None:
    story = Story(root)
    lease = story.lease()
    story.tree.until(lease.witness.expiry_ns + SECOND)
    story.shard.end(lease, LeaseOutcome.EXPIRED, change={"ended_ns": lease.witness.expiry_ns})
    story.done()


def ended_at_an_instant_that_is_to_come(root: Path) -> None:
    story = Story(root)
    lease, _ = story.written()
    story.shard.end(lease, change={"ended_ns": story.tree.now_ns + 10 * SECOND})
    story.done()


def with_its_session_lease_twice(root: Path) -> None:
    story, session, (lease,) = kept_together(root)
    carried = (encode(lease.signed), *2 * (encode(session.signed),))
    story.writer.publish(story.grid, lease, change={"witnesses": carried})
    story.done()


def under_the_session_lease_of_another_process(root: Path) -> None:
    story = Story(root)
    session = sessions.begin(story.shard, story.writer, {"holder": changed(story.writer.holder, {"process": 5})})
    lease = sessions.under(session, "alice", story.writer)
    story.tree.advance(50 * MS)
    story.writer.publish(story.grid, lease)
    story.done()


def behind_the_expiry_of_its_session_lease(root: Path) -> None:
    story = Story(root)
    session = sessions.begin(story.shard, story.writer, {"expiry_ns": story.tree.now_ns + 100 * MS})
    lease = sessions.under(session, "alice", story.writer, {"expiry_ns": story.tree.now_ns + 5 * SECOND})
    story.tree.advance(200 * MS)
    story.writer.publish(story.grid, lease)
    story.done()


def given_back_when_its_session_lease_was_over(root: Path) -> None:
    story, session, (lease,) = kept_together(root)
    story.writer.publish(story.grid, lease)
    nothing = {"messages": 0, "watermark_ns": None, "watermark_time": None, "chain_head": None}
    sessions.end(session, change=nothing)
    story.shard.end(lease)
    story.done()


CRAFTED = (
    told_twice_how_it_ended,
    broken_at_the_instant_of_its_expiry,
    ended_at_an_instant_that_is_to_come,
    with_its_session_lease_twice,
    under_the_session_lease_of_another_process,
    behind_the_expiry_of_its_session_lease,
    given_back_when_its_session_lease_was_over,
    settle_to_above_that_of_the_stop,
    of_another_cluster,
    of_another_log,
    of_another_writer,
    of_later_keys,
    longer_than_the_policy_allows,
    at_another_place_in_its_batch,
    written_before_the_log_was_settled,
    settle_to_above_that_of_its_own_end,
    settle_to_above_that_of_the_next,
    watermark_with_a_time_before_the_grant,
)
