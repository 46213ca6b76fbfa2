"""What may be audited: a root or a copy of it, a directory with one in it, a part of one, a tar file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from appliance.formats.marker import FORMAT, format_of
from appliance.formats.paths import MARKER
from timeagent.errors import Damaged

from .load import TOPS, Tree, find_root
from .tarred import TarTree

if TYPE_CHECKING:
    from pathlib import Path

OTHER_FORMAT: Final = "other-format"


def _of_our_format(tree: Tree) -> Tree:
    """Return the tree. Raises Damaged for one that another version wrote: what it holds would be judged wrongly."""
    stated = format_of(tree.read(MARKER, 256) or b"")
    if stated not in (None, FORMAT):
        what = f"{tree.root} is a tree of format {stated}; this version judges format {FORMAT}"
        raise Damaged(OTHER_FORMAT, what, hint="audit it with the version of leasehold that wrote it")
    return tree


def open_tree(path: Path) -> Tree:
    """Return the tree at a path. Raises Damaged with the way out where there is none, Environment for no access."""
    if path.is_file():
        return _of_our_format(TarTree(path))
    try:
        return _of_our_format(Tree(find_root(path)))
    except Damaged as problem:
        if problem.code == OTHER_FORMAT:
            raise
        if any((path / name).is_dir() for name in TOPS):
            return Tree(path)
        raise
