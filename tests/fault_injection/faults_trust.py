"""Planted faults in the row of trust records: each holds by itself, and takes back what one before it said."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from appliance.formats.framing import Kind
from timeagent.keys import Purpose, Signer
from timeagent.units import SECOND

from .fixtures import Story, small_tree
from .plants import plants
from .tree import START_NS, ClusterTree, seed

if TYPE_CHECKING:
    from pathlib import Path

    from timeagent.trust import KeyEntry


class Row:
    """A small tree, and more trust records behind its first: they have the key of a node that never did a thing."""

    def __init__(self, root: Path) -> None:
        self.tree = small_tree(root)
        self.number = 1
        public = Signer(seed("n7", "witness")).public
        self._key = msgspec.structs.replace(self.tree.trust.keys[0], node="n7", purpose=Purpose.WITNESS, public=public)
        self.says()

    def says(self, **change: object) -> None:
        """Publish the next record: with the key, as it was at first but for this."""
        self._publish(msgspec.structs.replace(self._key, **change))

    def leaves_out(self) -> None:
        """Publish the next record: without the key."""
        self._publish()

    def _publish(self, *keys: KeyEntry) -> None:
        trust = self.tree.trust
        self.number += 1
        record = msgspec.structs.replace(trust, number=self.number, keys=(*trust.keys, *keys))
        self.tree.put_register(Kind.TRUST, record)


@plants("key-moved")
def key_of_another_node_in_a_later_record(root: Path) -> ClusterTree:
    row = Row(root)
    row.says(node="n9")
    row.says(node="n9")
    return row.tree


@plants("key-moved")
def key_for_something_else_in_a_later_record(root: Path) -> ClusterTree:
    row = Row(root)
    row.says(purpose=Purpose.ROUGHTIME)
    return row.tree


@plants("key-moved")
def key_left_out_of_a_record_and_then_of_another_node(root: Path) -> ClusterTree:
    row = Row(root)
    row.leaves_out()
    row.says(node="n9")
    return row.tree


@plants("revocation-undone")
def revocation_that_the_next_record_does_not_know(root: Path) -> ClusterTree:
    row = Row(root)
    row.says(revoked_from_ns=row.tree.now_ns)
    row.says()
    row.says()
    return row.tree


@plants("revocation-undone")
def revocation_that_a_later_record_puts_off(root: Path) -> ClusterTree:
    row = Row(root)
    row.says(revoked_from_ns=row.tree.now_ns - SECOND)
    row.says(revoked_from_ns=row.tree.now_ns)
    return row.tree


@plants("revocation-undone")
def revoked_key_that_is_left_out_and_comes_back(root: Path) -> ClusterTree:
    row = Row(root)
    row.says(revoked_from_ns=row.tree.now_ns)
    row.leaves_out()
    row.says()
    return row.tree


def ending(root: Path, node: str, purpose: Purpose, **change: int) -> Story:
    """A story, and its trust record, by which a key of a node has ended by now."""
    story = Story(root)
    tree = story.tree
    ends = change or {"valid_until_ns": tree.now_ns}
    keys = (
        msgspec.structs.replace(each, **ends) if (each.node, each.purpose) == (node, purpose) else each
        for each in tree.trust.keys
    )
    tree.trust = msgspec.structs.replace(tree.trust, keys=tuple(keys))
    tree.put_register(Kind.TRUST, tree.trust)
    return story


@plants("ended-key")
def shard_that_goes_on_with_a_witness_key_that_ended(root: Path) -> ClusterTree:
    story = ending(root, "n1", Purpose.WITNESS)
    story.written()
    return story.done()


@plants("ended-key")
def writer_that_goes_on_with_a_time_key_that_was_revoked(root: Path) -> ClusterTree:
    story = ending(root, "n2", Purpose.TIME, revoked_from_ns=START_NS + SECOND)
    story.written()
    return story.done()
