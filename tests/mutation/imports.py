"""Who imports what in this repository, read from the text: which tests can notice what is broken in a module."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parents[2]


def module_name(file: Path) -> str:
    """Return what a file of the repository is imported as."""
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def names_in(file: Path) -> set[str]:
    """Return what a file imports, wherever in it: modules, and names that may be modules."""
    found: set[str] = set()
    package = list(file.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            whole = ".".join([*above, *([node.module] if node.module else [])])
            found |= {whole, *(f"{whole}.{each.name}" for each in node.names)}
    return found


@cache
def _importers() -> dict[str, set[str]]:
    """Return by module which modules import it: all packages and tests."""
    packages = [each for each in ROOT.iterdir() if each.is_dir() and not each.name.startswith(".")]
    found: dict[str, set[str]] = defaultdict(set)
    for file in (each for package in packages for each in package.rglob("*.py")):
        for name in names_in(file):
            found[name].add(module_name(file))
    return found


def nearest(files: Iterable[Path], broken: Iterable[str]) -> list[Path]:
    """Return those files that come to a broken module, however far away: those by the fewest steps first.

    Among equals those first that import little: they are about little else.
    """
    steps, away = 0, dict.fromkeys(broken, 0)
    newest = set(away)
    while newest:
        steps += 1
        newest = {each for module in newest for each in _importers().get(module, ())} - away.keys()
        away |= dict.fromkeys(newest, steps)
    found = [(away[module_name(file)], len(names_in(file)), file) for file in files if module_name(file) in away]
    return [file for _, _, file in sorted(found)]
