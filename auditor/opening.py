"""What may be audited: a root or a copy of it, a part of one, a tar file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from appliance.formats.marker import FORMAT, format_of
from appliance.formats.paths import MARKER
from timeagent.console import printable
from timeagent.errors import Damaged, Environment

from .load import TOPS, Tree
from .tarred import TarTree

if TYPE_CHECKING:
    from pathlib import Path

PART: Final = f"a part of a tree: it holds no file {MARKER}"
NAMED_MAX: Final = 4
"""So many trees below a directory are named."""


def _of_our_format(tree: Tree) -> Tree:
    """Return the tree. Raises Damaged for one that another version wrote: what it holds would be judged wrongly."""
    stated = format_of(tree.read(MARKER, 256) or b"")
    if stated not in (None, FORMAT):
        what = f"{tree.root} is a tree of format {stated}; this version judges format {FORMAT}"
        raise Damaged("other-format", what, hint="audit it with the version of tenure that wrote it")
    return tree


def find_root(path: Path, *, part: bool = False) -> Path:
    """Return the path, which is a root. Raises Damaged for what is none, with the trees below it as the way out.

    ``part``: a part of one will do. None is chosen of what lies below: whoever reads a verdict must know of what.
    """
    try:
        if not path.is_dir():
            what = "is not a directory" if path.exists() else "is not there"
            raise Damaged("not-a-tree", f"{path} {what}", hint="name a copy of a tenure root")
        if os.path.lexists(path / MARKER):
            return path
        inner = (each for each in sorted(path.iterdir()) if each.name not in TOPS)
        below = [each for each in inner if each.is_dir() and os.path.lexists(each / MARKER)]
        if part and not below and any((path / name).is_dir() for name in TOPS):
            return path
    except OSError as problem:
        raise Environment("unreadable", f"cannot read {path}: {problem.strerror}", hint="check its mode") from None
    what = f"{path} holds no file {MARKER}"
    if not below:
        hint = "name the directory that holds it: the root of the cluster, or a copy of it"
        raise Damaged("not-a-tree", what, hint=hint)
    names = ", ".join(map(str, below[:NAMED_MAX])) + (", …" if len(below) > NAMED_MAX else "")
    there = f"a tree lies below it: {names}" if len(below) == 1 else f"{len(below)} trees lie below it: {names}"
    raise Damaged("not-a-tree", f"{what}; {there}", hint=f"name it: {names}" if len(below) == 1 else "name one of them")


def open_tree(path: Path) -> Tree:
    """Return the tree at a path. Raises Damaged with the way out where there is none, Environment for no access."""
    return _of_our_format(TarTree(path) if path.is_file() else Tree(find_root(path, part=True)))


def whereabouts(tree: Tree) -> dict[str, Any]:
    """Return what JSON shows of where a tree is: a report without it may be of another one than its reader thinks."""
    return {
        "path": printable(str(tree.root.resolve())),
        "inside": tree.inside,
        "marker": any(name == MARKER for name, _ in tree.names("")),
    }


def where_words(place: dict[str, Any]) -> str:
    """Return the same in words."""
    inside = f", in it {printable(place['inside'])}" if place["inside"] else ""
    return f"{place['path']}{inside}" + ("" if place["marker"] else f" ({PART})")
