"""Merkle trees in the shape of RFC 6962 (section 2.1): one signature covers a batch of leaves.

A leaf hashes with a prefix of 0, a node with a prefix of 1, and a tree of n leaves splits at the largest power of two
below n: no leaf is ever repeated, so two different batches never share a root.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from timeagent import core


def root(leaves: Sequence[bytes]) -> bytes:
    """Return the 32-byte root over at least one leaf."""
    return tree(leaves)[-1][0]


def tree(leaves: Sequence[bytes]) -> list[list[bytes]]:
    """Return the hashes of a tree over at least one leaf: level by level, the leaves first, the root last.

    A level's odd last node moves up unchanged, which is the RFC's split.
    """
    assert leaves, "a batch holds at least one leaf"
    if core.native is not None:
        return core.native.tree(leaves)
    sha256 = hashlib.sha256
    level = [sha256(b"\0" + leaf).digest() for leaf in leaves]
    levels = [level]
    while len(level) > 1:
        above = [sha256(b"\1" + left + right).digest() for left, right in zip(level[::2], level[1::2], strict=False)]
        if len(level) % 2:
            above.append(level[-1])
        levels.append(above)
        level = above
    return levels


def path(levels: Sequence[Sequence[bytes]], index: int) -> tuple[bytes, ...]:
    """Return a leaf's sibling hashes from the bottom up."""
    found: list[bytes] = []
    for level in levels[:-1]:
        sibling = index ^ 1
        if sibling < len(level):
            found.append(level[sibling])
        index >>= 1
    return tuple(found)


def joined_paths(levels: Sequence[Sequence[bytes]], before: bytes) -> list[bytes]:
    """Return each leaf's path as one string: its hashes from the bottom up, each behind ``before``."""
    paths = [b""]
    for level in reversed(levels[:-1]):
        below: list[bytes] = []
        pairs = zip(level[::2], level[1::2], paths, strict=False)
        for left, right, above in pairs:
            below.append(b"".join((before, right, above)))
            below.append(b"".join((before, left, above)))
        if len(level) % 2:
            below.append(paths[-1])
        paths = below
    return paths


class KnownPaths:
    """Checks many paths of one tree: what the last good one has shown of the tree is not hashed again.

    Every node of a path that leads to the root is as good as the root. From such a node on, a path is good if and only
    if it goes on as the good one did. Paths in the order of their leaves have most of their nodes in common.
    """

    __slots__ = ("_count", "_known")

    def __init__(self, count: int, root: bytes) -> None:
        """Take what is signed: the root, and the number of leaves, because trees of two sizes may have equal paths."""
        self._count = count
        nowhere: tuple[int, bytes, tuple[bytes, ...]] = (-1, b"", ())
        self._known = [*[nowhere] * (count - 1).bit_length(), (0, root, ())]
        """By level, of the last good path: a node's position and hash, and the rest of the path from there."""

    def holds(self, leaf: bytes, index: int, path: Sequence[bytes]) -> bool:
        """Whether this leaf and its path, which has to fit index and count, lead to the root."""
        if not 0 <= index < self._count:
            return False
        sha256 = hashlib.sha256
        current = sha256(b"\0" + leaf).digest()
        position, width, rest = index, self._count, tuple(path)
        passed: list[tuple[int, bytes, tuple[bytes, ...]]] = []
        for known_position, known, known_rest in self._known:
            if position == known_position:
                if current != known or rest != known_rest:
                    return False
                break
            passed.append((position, current, rest))
            if position ^ 1 < width:
                if not rest:
                    return False
                sibling, rest = rest[0], rest[1:]
                current = sha256(b"\1" + (sibling + current if position & 1 else current + sibling)).digest()
            position >>= 1
            width = (width + 1) >> 1
        self._known[: len(passed)] = passed
        return True
