"""Who imports what in this repository, read from the text: which tests can notice what is broken in a module."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parents[2]


def module_name(file: Path) -> str:
    """Return what a file of the repository is imported as."""
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def _file(module: str) -> Path | None:
    place = ROOT.joinpath(*module.split("."))
    return next((each for each in (place.with_suffix(".py"), place / "__init__.py") if each.exists()), None)


@cache
def imports(file: Path) -> frozenset[str]:
    """Return the modules of the repository that a file imports, wherever in it."""
    found: set[str] = set()
    package = list(file.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            whole = ".".join([*above, *([node.module] if node.module else [])])
            found |= {whole, *(f"{whole}.{each.name}" for each in node.names)}
    return frozenset(each for each in found if _file(each) is not None)


def nearest(files: Iterable[Path], broken: Iterable[str]) -> list[Path]:
    """Return those files that come to a broken module, however far away: those by the fewest steps first.

    Among equals those first that import little: they are about little else.
    """
    broken = set(broken)

    @cache
    def modules_after(file: Path, steps: int) -> frozenset[str]:
        found = imports(file)
        if steps == 0:
            return found
        before = modules_after(file, steps - 1)
        return before.union(*(imports(where) for each in before if (where := _file(each)) is not None))

    def distance(file: Path) -> int | None:
        steps = 0
        while broken.isdisjoint(modules_after(file, steps)):
            if steps and modules_after(file, steps) == modules_after(file, steps - 1):
                return None
            steps += 1
        return steps

    far = [(away, len(imports(file)), file) for file in files if (away := distance(file)) is not None]
    return [file for _, _, file in sorted(far)]
