"""The paths of many witnesses to the roots of their batches, checked together: each node of a tree is hashed once.

Level by level, what lies below one node becomes that node: two leaves that say the same of their way from there on are
one from there on. Where two do not say the same of one node, at most one of them is right, and the paths of that batch
are left to be checked one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

type Hashes = NDArray[np.uint64]
"""A row of four words each."""
type Column = NDArray[np.int64]
type Flags = NDArray[np.bool_]

_HASH: Final = 32
_NODE: Final = 1 + 2 * _HASH


@dataclass(frozen=True, slots=True)
class Leaves:
    """Leaves with their paths, a row each."""

    batch: Column
    """In which tree it is."""
    index: Column
    steps: Column
    """How many hashes its path has."""
    path: Hashes
    """Shape (leaves, longest, 4): the path at its end, so that the last step of each is in the last place."""


def check_paths(
    entries: Sequence[bytes], leaves: Leaves, counts: Column, roots: Hashes
) -> tuple[Flags, NDArray[np.int64]]:
    """Say of each leaf whether its path leads to the root of its tree, and which trees are disputed.

    ``counts``, ``roots``: of each tree, how many leaves are signed, and the root over them. Of leaves in disputed trees
    nothing is said.
    """
    batch, longest = leaves.batch, leaves.path.shape[1]
    width, position, left_over = counts[batch], leaves.index.copy(), leaves.steps.copy()
    good = (position >= 0) & (position < width)
    position[~good] = 0
    current = _words(b"".join([sha256(b"\0" + each).digest() for each in entries]))
    steps = leaves.path.reshape(-1, _HASH // 8)
    leaf = owner = np.arange(len(entries))
    disputed = np.zeros(len(counts), np.bool_)
    while (width > 1).any():
        paired = (width > 1) & ((position ^ 1) < width)
        good &= ~paired | (left_over > 0)
        if longest:
            step = np.where(paired & (left_over > 0), longest - left_over, 0)
            sibling = steps.take(leaf * longest + step, 0)
        else:
            sibling = np.zeros_like(current)
        odd = (position & 1 == 1)[:, None]
        pair = np.concatenate((np.where(odd, sibling, current), np.where(odd, current, sibling)), axis=1)
        left_over = left_over - (paired & (left_over > 0))
        position >>= 1
        width = (width + 1) >> 1
        # What leads to one node is one from here on, if it says the same of the rest of the way.
        _, firsts, of_row = np.unique(batch << 32 | position, return_index=True, return_inverse=True)
        again = np.flatnonzero(firsts[of_row] != np.arange(len(of_row)))
        first = firsts[of_row[again]]
        differ = (good[again] != good[first]) | (left_over[again] != left_over[first])
        of_pair = (pair.take(again, 0) != pair.take(first, 0)).any(axis=1)
        of_one = (current.take(again, 0) != current.take(first, 0)).any(axis=1)
        differ |= np.where(paired[again], of_pair, of_one)
        for place in range(longest - int(left_over.max()), longest):
            one, other = (steps.take(leaf[each] * longest + place, 0) for each in (again, first))
            differ |= (place >= longest - left_over[again]) & (one != other).any(axis=1)
        disputed[batch[again[differ]]] = True
        pair, paired, current = pair[firsts], paired[firsts], current[firsts]
        current[paired] = _nodes(pair[paired])
        batch, position, width, left_over = batch[firsts], position[firsts], width[firsts], left_over[firsts]
        good, leaf, owner = good[firsts], leaf[firsts], of_row[owner]
    good &= (left_over == 0) & (current == roots[batch]).all(axis=1)
    return good[owner], np.flatnonzero(disputed)


def _words(hashes: bytes) -> Hashes:
    return np.frombuffer(hashes, "<u8").reshape(-1, _HASH // 8)


def _nodes(pairs: Hashes) -> Hashes:
    """Return the hash of each node above two."""
    whole = np.ones((len(pairs), _NODE), np.uint8)
    whole[:, 1:] = np.ascontiguousarray(pairs).view(np.uint8)
    raw = whole.tobytes()
    return _words(b"".join([sha256(raw[at : at + _NODE]).digest() for at in range(0, len(raw), _NODE)]))
