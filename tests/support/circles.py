"""Which modules import each other in a circle, also where only a type checker follows the import.

``python -m tests.support.circles PACKAGE ...`` prints them, a line each, and ends with 1 if there are any.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import grimp

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def in_circles(imports: Mapping[str, Iterable[str]]) -> set[str]:
    """Return what is left once everything is gone that imports nothing that is left, or that nothing left imports."""
    left = set(imports)
    before = -1
    while len(left) != before:
        before = len(left)
        left = {each for each in left if left.intersection(imports[each])}
        left &= {found for each in left for found in imports[each]}
    return left


def main(packages: list[str]) -> int:
    graph = grimp.build_graph(*packages, cache_dir=None)
    found = in_circles({each: graph.find_modules_directly_imported_by(each) for each in graph.modules})
    print("\n".join(sorted(found)))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
