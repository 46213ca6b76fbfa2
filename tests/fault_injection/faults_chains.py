"""Planted faults in the chains of shards: batches, ceiling records, ledgers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from appliance.formats.chains import CeilingKind, open_ceiling
from appliance.formats.framing import Kind, pieces
from appliance.formats.stamped import sign
from appliance.formats.witness import head_digest, open_block
from timeagent.units import MS, SECOND

from .fixtures import Story, only_file
from .plants import plants
from .shard import Shard
from .tree import ClusterTree

if TYPE_CHECKING:
    from pathlib import Path


@plants("chain-gap")
def unknown_predecessor(root: Path) -> ClusterTree:
    story = Story(root)
    story.lease(change={"previous_id": bytes(16)})
    return story.done()


@plants("chain-fork")
def two_grants_after_one(root: Path) -> ClusterTree:
    story = Story(root)
    first = story.lease()
    story.shard.end(first)
    story.shard.end(story.lease())
    story.lease(change={"previous_id": first.witness.correlation_id})
    return story.done()


@plants("chain-fork")
def two_batches_with_one_sequence(root: Path) -> ClusterTree:
    story = Story(root)
    story.lease()
    shard = story.shard
    place = shard.sequence, shard.previous
    shard.grant("bob", story.writer)
    shard.sequence, shard.previous = place
    shard.grant("carol", story.writer)
    return story.done()


@plants("chain-fork")
def batch_that_names_another_before_it(root: Path) -> ClusterTree:
    story = Story(root)
    story.lease(head={"previous": bytes(31) + b"\1"})
    return story.done()


@plants("chain-fork")
def two_ceilings_with_one_number(root: Path) -> ClusterTree:
    story = Story(root)
    path = only_file(story.tree, "shards/*/*/*")
    record, _ = open_ceiling(story.tree.get(path), path)
    record = msgspec.structs.replace(record, floor_ns=1, settle_to_ns=1)
    story.tree.put(path, sign(Kind.CEILING, record, story.tree.nodes["n1"].witness_key))
    return story.done()


@plants("grant-above-ceiling")
def expiry_above_ceiling(root: Path) -> ClusterTree:
    story = Story(root)
    story.tree.advance(3 * SECOND)
    story.lease(change={"expiry_ns": story.shard.ceiling_ns + 1})
    return story.done()


@plants("grant-without-right")
def grant_under_a_ceiling_of_another_run(root: Path) -> ClusterTree:
    story = Story(root)
    Shard(story.tree, "n2")
    story.lease(head={"ceiling_number": 2})
    return story.done()


@plants("ceiling-fell")
def ceiling_fell(root: Path) -> ClusterTree:
    story = Story(root)
    story.shard.extend(change={"ceiling_ns": story.shard.ceiling_ns - 1})
    return story.done()


@plants("chain-fork")
def record_after_a_terminal_one(root: Path) -> ClusterTree:
    story = Story(root)
    story.shard.floor_ns = story.shard.settle_to_ns = story.shard.ceiling_ns
    story.shard.extend(kind=CeilingKind.TERMINAL)
    story.shard.extend()
    return story.done()


@plants("floor-fell")
def floor_that_falls_within_a_run(root: Path) -> ClusterTree:
    story = Story(root)
    Shard(story.tree, "n2").extend(change={"floor_ns": 0})
    return story.done()


@plants("floor-fell")
def end_of_a_chain_below_the_ceiling_of_its_run(root: Path) -> ClusterTree:
    story = Story(root)
    story.shard.extend(kind=CeilingKind.TERMINAL)
    return story.done()


@plants("term-above-policy")
def term_above_policy(root: Path) -> ClusterTree:
    story = Story(root)
    story.lease(change={"expiry_ns": story.tree.now_ns + 10 * SECOND + 6 * MS})
    story.writer.publish(story.grid, story.elsewhere())  # whose bag is closed afterwards, under the same policy
    return story.done()


@plants("wrong-shard")
def domain_of_another_shard(root: Path) -> ClusterTree:
    story = Story(root, shards=2)
    owned = next(str(n) for n in range(100) if story.tree.map.shard_of(str(n)) == 1)
    story.shard.grant(owned, story.writer)
    return story.done()


@plants("r2-breach")
def ceiling_record_signed_before_the_one_that_it_follows(root: Path) -> ClusterTree:
    story = Story(root)
    story.tree.advance(SECOND)
    story.shard.extend()
    with story.tree.nodes["n2"].time.set_back(700 * MS):
        Shard(story.tree, "n2")
    return story.done()


@plants("r2-breach")
def grant_signed_before_its_ceiling_record(root: Path) -> ClusterTree:
    story = Story(root)
    early = story.tree.nodes["n1"].time.token()
    story.tree.advance(SECOND)
    story.shard.keeps_ledger = False
    story.shard.extend()
    story.shard.keeps_ledger = True
    story.shard.sequence, story.shard.previous = 1, last_head(story)
    story.lease(head={"time": early}, change={"expiry_ns": story.tree.now_ns + SECOND})
    return story.done()


def last_head(story: Story) -> bytes:
    """What the next batch names as the one before it, by the ledger."""
    piece = pieces(story.tree.get(story.shard.ledger))[0][-1]
    return head_digest(open_block(piece, story.shard.ledger).head)


@plants("ledger-gap")
def block_that_is_not_in_the_ledger(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    story.shard.end(lease)
    story.shard.keeps_ledger = False
    story.shard.end(story.shard.grant("bob", story.other))
    story.shard.keeps_ledger = True
    story.tree.advance(SECOND)
    story.shard.extend()
    return story.done()


@plants("truncated-ledger")
def ledger_that_ends_long_before_its_run(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    story.shard.end(lease)
    whole = story.tree.get(story.shard.ledger)
    for _ in range(3):
        story.tree.advance(9 * SECOND)
        story.shard.extend()
    story.tree.put(story.shard.ledger, whole)
    return story.done()


@plants("grant-without-right")
def grant_under_a_ceiling_record_that_was_never_linked(root: Path) -> ClusterTree:
    story = Story(root)
    lease = story.lease(head={"ceiling_number": story.shard.ceiling_number + 99})
    story.shard.end(lease)
    return story.done()


@plants("lost-file")
def ceiling_record_removed_that_no_ledger_has(root: Path) -> ClusterTree:
    story = Story(root)
    story.shard.keeps_ledger = False
    for _ in range(3):
        story.tree.advance(SECOND)
        story.shard.extend()
    records = sorted((story.tree.root / "shards").glob("*/*/*"))
    records[-2].unlink()
    return story.done()
