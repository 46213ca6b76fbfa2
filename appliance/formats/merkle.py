"""Merkle trees in the shape of RFC 6962 (section 2.1): one signature covers a batch of leaves.

A leaf hashes with a prefix of 0, a node with a prefix of 1, and a tree of n leaves splits at the largest power of two
below n: no leaf is ever repeated, so two different batches never share a root.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def leaf_hash(leaf: bytes) -> bytes:
    """Return the 32-byte hash of one leaf."""
    return hashlib.sha256(b"\0" + leaf).digest()


def _node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()


def root(leaves: Sequence[bytes]) -> bytes:
    """Return the 32-byte root over at least one leaf."""
    return root_and_paths(leaves)[0]


def root_and_paths(leaves: Sequence[bytes]) -> tuple[bytes, list[tuple[bytes, ...]]]:
    """Return the root, and for each leaf its sibling hashes from the bottom up.

    Built level by level: a level's odd last node moves up unchanged, which is the RFC's split.
    """
    assert leaves, "a batch holds at least one leaf"
    level = [leaf_hash(leaf) for leaf in leaves]
    paths: list[list[bytes]] = [[] for _ in leaves]
    positions = list(range(len(leaves)))
    while len(level) > 1:
        for leaf, position in enumerate(positions):
            sibling = position ^ 1
            if sibling < len(level):
                paths[leaf].append(level[sibling])
            positions[leaf] = position >> 1
        above = [_node_hash(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        if len(level) % 2:
            above.append(level[-1])
        level = above
    return level[0], [tuple(path) for path in paths]


def root_of_path(leaf: bytes, index: int, count: int, path: Sequence[bytes]) -> bytes | None:
    """Return the root that this leaf and its path lead to, or None if the path does not fit index and count.

    ``count`` has to come from what signs the root: trees of different sizes can have paths of the same shape.
    """
    if not 0 <= index < count:
        return None
    current = leaf_hash(leaf)
    position, width, used = index, count, 0
    while width > 1:
        if position ^ 1 < width:
            if used == len(path):
                return None
            sibling = path[used]
            used += 1
            current = _node_hash(sibling, current) if position & 1 else _node_hash(current, sibling)
        position >>= 1
        width = (width + 1) >> 1
    return current if used == len(path) else None
