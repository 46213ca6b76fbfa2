"""The map record: how many shards, and which node should own each. Which shard a domain belongs to."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache

from timeagent.canonical import U64, Bytes16, Record

from .names import tree_of


class ShardMap(Record, frozen=True):
    """Numbered, immutable, signed by the cluster root key."""

    number: U64
    cluster_id: Bytes16
    owners: tuple[str, ...]
    """The node that should own each shard, by shard number."""

    def __post_init__(self) -> None:
        """Refuse (ValueError; Damaged while decoding) a map without shards."""
        if not self.owners:
            raise ValueError("a map has at least one shard")

    def shard_of(self, domain: str) -> int:
        """Return the shard of a domain, by rendezvous hashing of its tree.

        Weights do not depend on the map's number: a map with one shard more moves only what the new shard takes.
        """
        return _shard_of(tree_of(domain), len(self.owners))

    def heirs(self, shard: int, nodes: Iterable[str]) -> list[str]:
        """Return who should run a shard, the first that can: its owner, then the other nodes by rendezvous hashing."""
        owner = self.owners[shard]

        def weight(node: str) -> bytes:
            return hashlib.sha256(b"%d\0heir\0" % shard + node.encode()).digest()

        return [owner, *sorted(set(nodes) - {owner}, key=weight, reverse=True)]


@lru_cache(maxsize=16384)
def _shard_of(tree: str, shards: int) -> int:
    name = tree.encode()

    def weight(shard: int) -> bytes:
        return hashlib.sha256(b"%d\0" % shard + name).digest()

    return max(range(shards), key=weight)
