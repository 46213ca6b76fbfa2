"""Who writes a path is alone in it: at no true instant has another what is it, is in it, or has it in itself."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History, PathsHeld


def check(history: History, _: Record) -> Iterator[str]:
    held = sorted(history.paths, key=lambda each: each.from_ns)
    for one, other in combinations(held, 2):
        if one.who != other.who and other.from_ns <= one.until_ns:
            for path, theirs in _touching(one, other):
                yield f"{one.who} has {path} and {other.who} has {theirs}, and one of them writes, at {other.from_ns}"


def _touching(one: PathsHeld, other: PathsHeld) -> Iterator[tuple[str, str]]:
    pairs = [(mine, theirs) for mine in one.write for theirs in (*other.read, *other.write)]
    pairs += [(mine, theirs) for mine in one.read for theirs in other.write]
    return ((mine, theirs) for mine, theirs in pairs if _in(mine, theirs) or _in(theirs, mine))


def _in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
