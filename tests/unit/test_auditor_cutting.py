"""Files are cut as a parser of one frame after the other cuts them, paths checked as one by one; mutants of both."""

from __future__ import annotations

import itertools
import random
import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest

from appliance.formats import merkle
from appliance.formats.framing import CHECKSUM_BYTES, HEADER_BYTES, Kind, pack, pieces
from auditor.columns import frames
from auditor.columns.layout import NotPlain, bytes_of
from tests.support.mutants import plant
from tests.support.values import root_and_paths, root_of_path
from timeagent import core

if TYPE_CHECKING:
    from collections.abc import Sequence

MESSAGES_MAX = 6
PAYLOAD_MAX = 400

type Row = tuple[int, int, int, bytes, bytes, int, int, int]
"""File, offset, length, digest, head, messages, first and last timestamp."""


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a test can exceed."""
    monkeypatch.setattr(frames, "FRAME_MESSAGES_MAX", MESSAGES_MAX)
    monkeypatch.setattr(frames, "PAYLOAD_BYTES_MAX", PAYLOAD_MAX)


def payload(
    stamps: Sequence[int] = (5, 6, 9),
    lengths: Sequence[int] = (0, 3, 20),
    said_head: int | None = None,
    said_count: int | None = None,
) -> bytes:
    """What a frame holds. ``said_``: another length of the head, or number of messages, than there is."""
    head = b"a head"
    count = len(stamps)
    columns = struct.pack(f"<{count}q{len(lengths)}I", *stamps, *lengths)
    body = b"m" * sum(lengths)
    return b"".join(
        (
            struct.pack("<I", len(head) if said_head is None else said_head),
            head,
            struct.pack("<I", count if said_count is None else said_count),
            columns,
            body,
        )
    )


def frame(
    stamps: Sequence[int] = (5, 6, 9),
    lengths: Sequence[int] = (0, 3, 20),
    said_head: int | None = None,
    said_count: int | None = None,
) -> bytes:
    return pack(Kind.FRAME, payload(stamps, lengths, said_head, said_count))


def by_one(files: Sequence[bytes], *, hashed: bool) -> list[Row] | None:
    """One frame after the other; None: not whole frames alone."""
    rows: list[Row] = []
    for number, data in enumerate(files):
        found, rest = pieces(data)
        if rest or not found:
            return None
        for piece in found:
            raw = piece.payload
            end = piece.offset + HEADER_BYTES + len(raw)
            if piece.kind is not Kind.FRAME or len(raw) > PAYLOAD_MAX or len(raw) < 8:
                return None
            head_end = 4 + int.from_bytes(raw[:4], "little")
            if head_end + 4 > len(raw):
                return None
            count = int.from_bytes(raw[head_end : head_end + 4], "little")
            body = head_end + 4 + 12 * count
            if not 0 < count <= MESSAGES_MAX or body > len(raw):
                return None
            stamps = struct.unpack_from(f"<{count}q", raw, head_end + 4)
            lengths = struct.unpack_from(f"<{count}I", raw, head_end + 4 + 8 * count)
            if sum(lengths) != len(raw) - body or any(a >= b for a, b in itertools.pairwise(stamps)):
                return None
            digest = piece.digest if hashed else data[end : end + CHECKSUM_BYTES] + frames.NO_CHECK
            length = end + CHECKSUM_BYTES - piece.offset
            rows.append((number, piece.offset, length, digest, raw[4:head_end], count, stamps[0], stamps[-1]))
    return rows


def at_once(files: Sequence[bytes], *, hashed: bool) -> list[Row] | None:
    try:
        cut = frames.Cut([frames.cut(each, hashed=hashed) for each in files])
    except NotPlain:
        return None
    columns = (cut.file, cut.offset, cut.length, bytes_of(cut.digests), cut.raw_heads, cut.counts, cut.first, cut.last)
    return list(zip(*(each if isinstance(each, list) else each.tolist() for each in columns), strict=True))


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


WHOLE = frame()
FILES: dict[str, list[bytes]] = {
    "one frame": [WHOLE],
    "several files": [WHOLE + frame((1,), (0,)), frame((-3, 2), (1, 0)), frame((7,), (9,)) * 3],
    "as many messages as may be": [frame(range(MESSAGES_MAX), [1] * MESSAGES_MAX)],
    "as long as may be": [frame((1,), (PAYLOAD_MAX - 26,))],
    "a torn end": [WHOLE, WHOLE[:-1]],
    "a frame that goes on in the next file": [WHOLE + WHOLE[:50], WHOLE[50:] + WHOLE],
    "a piece that is no frame": [WHOLE + pack(Kind.LOCK, payload())],
    "a flipped message": [WHOLE, flipped(WHOLE, len(WHOLE) - CHECKSUM_BYTES - 1)],
    "a flipped checksum": [flipped(WHOLE, len(WHOLE) - 1)],
    "an empty file": [WHOLE, b"", WHOLE],
    "nothing": [b""],
    "a short payload": [pack(Kind.FRAME, bytes(7))],
    "no payload": [pack(Kind.FRAME, b""), WHOLE],
    "too long": [frame((1,), (PAYLOAD_MAX - 25,))],
    "a head longer than the rest": [frame(said_head=1 << 31)],
    "a head up to the end": [frame(said_head=len(payload()) - 4), WHOLE],
    "no messages": [frame((), ())],
    "no messages before a frame that begins with an empty one": [frame((), ()) + WHOLE],
    "too many messages": [frame(range(MESSAGES_MAX + 1), [1] * (MESSAGES_MAX + 1))],
    "more messages than there is room for": [frame((1,), (0,), said_count=MESSAGES_MAX)],
    "timestamps that stand still": [frame((5, 5, 9))],
    "timestamps that fall": [WHOLE, frame((5, 9, 6))],
    "lengths that say too little": [pack(Kind.FRAME, payload() + b"m")],
    "lengths that say too much": [pack(Kind.FRAME, payload()[:-1])],
}


@pytest.mark.usefixtures("each_core")
@pytest.mark.parametrize("name", FILES)
def test_files_are_cut_as_one_by_one(name: str) -> None:
    files = FILES[name]
    assert at_once(files, hashed=True) == by_one(files, hashed=True)
    if "flipped" not in name:
        assert at_once(files, hashed=False) == by_one(files, hashed=False)
    assert (at_once(files, hashed=True) is None) == (list(FILES).index(name) >= list(FILES).index("a torn end"))


CUTTING: dict[str, tuple[str, str]] = {
    "what a frame begins with": ("data[at:at + 8] != _START", "False"),
    "the checksum": ("digest[:CHECKSUM_BYTES] != data[end:after]", "False"),
    "a file without a frame": (
        "CutFile(b''.join(rows), b''.join(digests), heads) if rows else None",
        "CutFile(b''.join(rows), b''.join(digests), heads)",
    ),
    "the longest": ("end - body > PAYLOAD_BYTES_MAX", "False"),
    "at least one": ("0 < count", "0 <= count"),
    "at most so many": ("count <= FRAME_MESSAGES_MAX", "True"),
    "the columns' end": ("rest > end", "False"),
    "rising": ("not all(map(lt, instants, instants[1:]))", "False"),
    "strictly": ("map(lt, instants, instants[1:])", "(a <= b for a, b in zip(instants, instants[1:]))"),
    "the lengths": ("sum(lengths) != end - rest", "False"),
}


@pytest.mark.parametrize("mutant", CUTTING)
def test_each_condition_of_cutting_is_needed(monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    monkeypatch.setattr(core, "native", None)
    plant(monkeypatch, frames, "cut", *CUTTING[mutant])
    assert [name for name in FILES if not _same(FILES[name])]


def _same(files: Sequence[bytes]) -> bool:
    try:
        return at_once(files, hashed=True) == by_one(files, hashed=True)
    except (ValueError, IndexError, struct.error):
        return False


# -- paths -----------------------------------------------------------------------------------------------------------

type Leaf = tuple[int, int, bytes, list[bytes]]
"""Tree, index, entry, path."""
HARMS = ("none", "none", "hash", "longer", "shorter", "sibling", "beyond", "below", "far", "entry", "place", "root")


def forest(chance: random.Random) -> tuple[list[Leaf], list[int], list[bytes], set[int]]:
    """Leaves of several trees, some harmed: leaves, numbers of leaves, roots, and the trees with a harmed one."""
    leaves: list[Leaf] = []
    counts: list[int] = []
    roots: list[bytes] = []
    harmed: set[int] = set()
    for tree in range(chance.randint(1, 4)):
        count = chance.choice((1, 2, 3, 4, 5, 6, 7, 8, 13))
        entries = [chance.randbytes(3) for _ in range(count)]
        root, ways = root_and_paths(entries)
        counts.append(count)
        some = chance.choices(range(count), k=chance.randint(1, 2 * count))
        leaves += [(tree, index, entries[index], list(ways[index])) for index in some]
        harm = chance.choice(HARMS)
        if harm == "root":
            root = chance.randbytes(32)
        elif harm != "none":
            mine = [n for n, leaf in enumerate(leaves) if leaf[0] == tree]
            at = chance.choice(mine)
            leaves[at] = _harmed(chance, leaves[at], count, harm)
        roots.append(root)
        if harm != "none":
            harmed.add(tree)
    return leaves, counts, roots, harmed


def _harmed(chance: random.Random, leaf: Leaf, count: int, harm: str) -> Leaf:
    tree, index, entry, way = leaf
    some = chance.randrange(len(way)) if way else 0
    if harm in ("hash", "sibling") and way:
        way = [*way[:some], chance.randbytes(32), *way[some + 1 :]]
    elif harm == "longer":
        way = [*way, chance.randbytes(32)]
    elif harm == "shorter":
        way = way[:-1]
    elif harm == "beyond":
        index = count + chance.randrange(3)
    elif harm == "below":
        index = -1 - chance.randrange(count)
    elif harm == "far":
        index += 1 << (32 + chance.randrange(2))
    elif harm == "entry":
        entry = chance.randbytes(3)
    elif harm == "place":
        index = chance.randrange(count)
    return tree, index, entry, way


def by_columns(leaves: list[Leaf], counts: list[int], roots: list[bytes]) -> list[bool]:
    trees, indices = (np.array([leaf[at] for leaf in leaves], np.int64) for at in (0, 1))
    paths = [b"\xc4\x20".join(leaf[3]) for leaf in leaves]
    good = frames.check_paths([leaf[2] for leaf in leaves], paths, trees, indices, counts, roots)
    return [bool(each) for each in good]


def told_wrongly(seed: int) -> bool:
    """Whether columns say of a leaf what its own path does not."""
    leaves, counts, roots, _ = forest(random.Random(seed))
    try:
        good = by_columns(leaves, counts, roots)
    except (IndexError, ValueError):
        return True
    return good != [
        0 <= index < counts[tree] and root_of_path(entry, index, counts[tree], way) == roots[tree]
        for tree, index, entry, way in leaves
    ]


# Whoever signs may sign any root: one over which the same hash stands twice on the way, and is given once.
@pytest.mark.usefixtures("each_core")
def test_path_that_is_too_short_does_not_hold_where_its_last_hash_would_do_twice() -> None:
    assert not _twice()


def _twice() -> bool:
    way = [bytes(32)]
    root = root_of_path(b"entry", 0, 4, way * 2)
    assert root is not None
    assert by_columns([(0, 0, b"entry", way * 2)], [4], [root]) == [True]
    return by_columns([(0, 0, b"entry", way)], [4], [root])[0]


SEEDS = 600


@pytest.mark.usefixtures("each_core")
def test_paths_that_are_checked_together_hold_where_they_hold_by_themselves() -> None:
    assert [seed for seed in range(SEEDS) if told_wrongly(seed)] == []


PATHS: dict[str, tuple[str, str]] = {
    "not below": ("0 <= index", "True"),
    "not beyond": ("index < self._count", "True"),
    "no path that is too short": ("not rest", "False"),
    "the same node": ("current != known", "False"),
    "the same way on": ("rest != known_rest", "False"),
    "which side": ("sibling + current if position & 1 else current + sibling", "current + sibling"),
    "what a good path has shown": ("self._known[:len(passed)] = passed", "self._known[1:] = passed"),
}


@pytest.mark.parametrize("mutant", PATHS)
def test_each_condition_of_paths_is_needed(monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    monkeypatch.setattr(core, "native", None)
    plant(monkeypatch, merkle, "KnownPaths.holds", *PATHS[mutant])
    assert _fails()


def _fails() -> bool:
    try:
        return _twice() or any(told_wrongly(seed) for seed in range(SEEDS))
    except (IndexError, TypeError):
        return True
