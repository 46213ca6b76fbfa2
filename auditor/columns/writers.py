"""Writers' sequences of frames, all of a bucket at once: which runs of writers are clean.

A run is clean if no two of its frames have one sequence number, each lies above the one before it, and each committed
frame that one of them names is there and was not signed after it. All others are suspect, and judged by
``auditor.rules.sequences``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .layout import NOTHING

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from .layout import Bucket

type Writer = tuple[str, bytes]
"""Name and incarnation."""


def judge_writers(frames: Bucket, by_rows: AbstractSet[Writer]) -> list[Writer]:
    """Return which writers of a bucket are suspect. ``by_rows``: of which there are frames that are in no column."""
    names: list[Writer] = list(frames.names.values)
    bad = np.fromiter((name in by_rows for name in names), np.bool_, len(names))
    rows = frames.rows()
    if not len(rows):
        return []
    rows = rows[np.lexsort((rows["sequence"], rows["name"]))]
    name = rows["name"]
    same = name[1:] == name[:-1]
    disorder = (rows["sequence"][1:] == rows["sequence"][:-1]) | (rows["first"][1:] <= rows["last"][:-1])
    bad[name[1:][same & disorder]] = True
    bounds = np.searchsorted(name, np.arange(len(names) + 1))
    for number in range(len(names)):
        run = rows[bounds[number] : bounds[number + 1]]
        naming = run[run["committed"] != NOTHING]
        at = np.minimum(np.searchsorted(run["sequence"], naming["committed"]), len(run) - 1)
        there = (run["sequence"][at] == naming["committed"]) & (
            (run["digest"][at] == naming["committed_digest"]).all(axis=1)
            | ~naming["committed_digest"].any(axis=1)  # which one it was is not known: no digest is
        )
        before = naming["latest"] < run["earliest"][at] - naming["staleness"]
        if not there.all() or before.any():
            bad[number] = True
    return [names[n] for n in np.flatnonzero(bad).tolist()]
