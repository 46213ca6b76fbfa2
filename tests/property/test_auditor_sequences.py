"""Rules about sequences, over columns: of any frames they find what each two of them, held side by side, break."""

from __future__ import annotations

import itertools
import random
import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
import pytest

from auditor.columns.index import Coverage, Index
from auditor.columns.layout import FRAME, FRAMES, NOTHING, ChunkMaker, RowBucket
from auditor.rules import sequences
from auditor.rules.sequences import check_sequences
from tests.support.mutants import plant_in_text

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import ArrayLike

    from auditor.columns.layout import Column

NO_DIGEST = bytes(32)
SETTLED_NS = 10**6
"""Later than any frame here: what is missing is missing."""

type Told = set[tuple[str, ...]]


def random_frames(rng: random.Random) -> list[dict[str, Any]]:
    """Some frames of two runs of a writer: numbers that are used twice, unknown digests, clocks that jump."""
    found: list[dict[str, Any]] = []
    for place in range(rng.randint(1, 12)):
        first = rng.randint(1, 40)
        committed = rng.choice([NOTHING, rng.randint(1, 6)])
        midpoint = rng.randint(1, 60)
        found.append(
            {
                "name": ("n1", bytes([rng.randint(0, 1)]) * 8),
                "where": (f"logs/mails/{rng.choice('ba')}", place, 1),
                "proven": rng.random() < 0.9,
                "sequence": rng.randint(1, 6),
                "digest": bytes([rng.randint(1, 2)]) * 32,
                "first": first,
                "last": first + rng.randint(0, 5),
                "committed": committed,
                "committed_digest": rng.choice([NO_DIGEST, b"\1" * 32]) if committed != NOTHING else NO_DIGEST,
                "earliest": midpoint - 5,
                "latest": midpoint + 5,
                "staleness": rng.randint(0, 3),
            }
        )
    return found


def by_columns(frames: list[dict[str, Any]]) -> Told:
    maker, bucket, index = ChunkMaker(FRAMES), RowBucket(FRAMES), Index()
    for rank, frame in enumerate(frames):
        maker.add_one(rank=rank, **frame)
    for chunk in maker.chunks():
        bucket.take(0, chunk, chunk.data)
    found: Told = set()
    for finding in check_sequences(bucket, Coverage(index, SETTLED_NS)):
        places = sorted(f"{each.path} {each.offset}" for each in finding.evidence)
        found.add((finding.code, finding.subject, *places))
    index.close()
    return found


def side_by_side(frames: list[dict[str, Any]]) -> Told:
    """Say the same of frames as they are."""
    found: Told = set()
    for run in {frame["name"] for frame in frames}:
        own = sorted(
            (frame for frame in frames if frame["name"] == run),
            key=lambda frame: (frame["sequence"], frame["first"], frame["where"]),
        )

        def named(sequence: int, run: tuple[str, bytes] = run) -> str:
            return f"frame {sequence} of {run[0]} ({run[1].hex()})"

        def fits(naming: dict[str, Any], frame: dict[str, Any]) -> bool:
            wanted = naming["committed_digest"]
            return naming["committed"] == frame["sequence"] and wanted in (NO_DIGEST, frame["digest"])

        for sequence in {frame["sequence"] for frame in own}:
            same = [frame for frame in own if frame["sequence"] == sequence]
            if len({frame["digest"] for frame in same}) > 1:
                found.add(("sequence-reused", named(sequence), *sorted(map(_place, same))))
        for before, after in itertools.pairwise(own):
            if before["sequence"] < after["sequence"] and after["first"] <= before["last"]:
                places = sorted([_place(before), _place(after)])
                found.add(("sequence-disorder", named(after["sequence"]), *places))
        lost = [each for each in own if each["committed"] != NOTHING and not any(fits(each, one) for one in own)]
        for sequence in {each["committed"] for each in lost}:
            naming = min((each for each in lost if each["committed"] == sequence), key=lambda each: each["where"])
            found.add(("lost-frame", named(sequence), _place(naming)))
        for naming in own:
            for frame in own:
                late = frame["earliest"] - naming["staleness"] > naming["latest"]
                if fits(naming, frame) and late and naming["proven"] and frame["proven"]:
                    places = sorted([_place(frame), _place(naming)])
                    found.add(("r2-breach", named(naming["sequence"]), *places))
    return found


def _place(frame: dict[str, Any]) -> str:
    path, offset, _ = frame["where"]
    return f"{path} {offset}"


def differing(seeds: range) -> list[int]:
    each = ((seed, random_frames(random.Random(seed))) for seed in seeds)
    return [seed for seed, frames in each if by_columns(frames) != side_by_side(frames)]


def test_columns_of_frames_say_what_frames_say_side_by_side() -> None:
    assert differing(range(400)) == []
    codes = {told[0] for seed in range(100) for told in by_columns(random_frames(random.Random(seed)))}
    assert codes == {"sequence-reused", "sequence-disorder", "lost-frame", "r2-breach"}


def made(count: int, **columns: ArrayLike) -> tuple[RowBucket, Coverage]:
    """Rows of a run of a writer as somebody makes them up."""
    maker, bucket = ChunkMaker(FRAMES), RowBucket(FRAMES)
    rows = np.zeros(count, FRAME)
    rows["plain"], rows["proven"], rows["committed"], rows["first"], rows["last"] = True, True, NOTHING, 1, 1
    for name, values in columns.items():
        rows[name] = values
    rows["name"], rows["path"] = maker.names.of(("n1", bytes(8))), maker.paths.of("logs/mails/a")
    maker.add(rows)
    for chunk in maker.chunks():
        bucket.take(0, chunk, chunk.data)
    return bucket, Coverage(Index(), SETTLED_NS)


# Half of the frames have one number, and the others name that as committed: each of the pairs would take 16 bytes.
@pytest.mark.parametrize("digest", [0, 1])
def test_frames_that_name_many_of_one_number_are_held_against_a_few_of_them(digest: int) -> None:
    half = 2_000
    named = np.arange(2 * half) >= half
    of_all = {"sequence": np.where(named, 1, 2 + np.arange(2 * half)), "committed": np.where(named, NOTHING, 1)}
    frames, coverage = made(2 * half, digest=1, committed_digest=digest, **of_all)
    tracemalloc.start()
    try:
        assert "lost-frame" not in {finding.code for finding in check_sequences(frames, coverage)}
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()


def test_numbers_that_are_used_twice_or_are_lost_are_looked_for_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    twice, count = np.repeat(np.arange(200) * 2, 2), 400
    committed = np.arange(count) * 2 + 1
    frames, coverage = made(count, sequence=twice, digest=np.arange(count)[:, None], committed=committed)
    looked, flatnonzero = [], np.flatnonzero

    def looking(values: Column) -> Column:
        looked.append(len(values))
        return flatnonzero(values)

    monkeypatch.setattr(np, "flatnonzero", looking)
    asked: list[Any] = []
    monkeypatch.setattr(Coverage, "missing_frame", lambda *span: asked.append(span))
    list(check_sequences(frames, coverage))
    assert (len(looked) < 20, len(asked) < 220) == (True, True)


MUTANTS: dict[str, tuple[str, str, str]] = {
    "a number used twice": ("_reused", "(digest[1:] != digest[:-1]).any(axis=1)", "False"),
    "the same frame twice": ("_reused", "(digest[1:] != digest[:-1]).any(axis=1)", "True"),
    "frames in order": (
        "_disordered",
        "rows['first'][1:] <= rows['last'][:-1]",
        "rows['first'][1:] < rows['last'][:-1]",
    ),
    "one number twice is no disorder": ("_disordered", "rows['sequence'][:-1] < rows['sequence'][1:]", "True"),
    "the order of one number": ("_ordered", "twice.any()", "False"),
    "any of a number": ("_named", "names & ~exact", "names & False"),
    "the digest that is named": ("_marks", "rows[digest]", "rows[digest] * 0"),
    "the place that names it first": ("_lost", "sorted(naming.tolist(), key=run.where)", "naming.tolist()"),
    "signed times that hold": ("_signed_before_named", "rows['proven'][naming]", "True"),
    "signed times that hold of what is named": ("_signed_before_named", "rows['proven'][named]", "True"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_part_of_the_rules_counts(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_in_text(monkeypatch, sequences, *MUTANTS[mutant])
    assert differing(range(200))
