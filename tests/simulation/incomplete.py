"""Copies of which parts are missing: broken off, restored in part, or of files that nobody was allowed to read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

type Choice = Callable[[random.Random, set[str], list[str]], set[str]]
"""Which files are missing, of a copy's directories and files."""


def _broken_off(chance: random.Random, _: set[str], names: list[str]) -> set[str]:
    """A tool that goes by name came so far."""
    return set(names[chance.randrange(len(names)) :])


def _share(chance: random.Random, _: set[str], names: list[str]) -> set[str]:
    share = chance.choice((0.05, chance.random()))
    return {name for name in names if chance.random() < share}


def _directory(chance: random.Random, directories: set[str], names: list[str]) -> set[str]:
    below = chance.choice(sorted(directories)) + "/"
    return {name for name in names if name.startswith(below)}


def _single(chance: random.Random, _: set[str], names: list[str]) -> set[str]:
    return {chance.choice(names)}


def _kind(chance: random.Random, _: set[str], names: list[str]) -> set[str]:
    """All or half of what has such a name: seals, packs, lock files, data files, markers."""
    tail = chance.choice(sorted({name[-4:] for name in names}))
    share = chance.choice((1.0, 0.5))
    return {name for name in names if name.endswith(tail) and chance.random() < share}


CHOICES: tuple[Choice, ...] = (_broken_off, _share, _directory, _single, _kind)


def left_of(
    directories: set[str], files: dict[str, bytes], chance: random.Random
) -> tuple[str, set[str], dict[str, bytes]]:
    """Return how it was chosen what is missing, and the directories and files that are left: some may be empty."""
    if not files:
        return "nothing", directories, files
    choice = chance.choice(CHOICES)
    missing = choice(chance, directories, sorted(files))
    left = {path: data for path, data in files.items() if path not in missing}
    if chance.random() < 0.5:
        directories = {each for each in directories if any(path.startswith(f"{each}/") for path in left)}
    return choice.__name__.strip("_"), directories, left
