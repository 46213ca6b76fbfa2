"""Plant a fault in one function of ours: its own text with one piece replaced, compiled in its own module.

The piece must be there exactly once, so that a mutant cannot outlive the line that it breaks.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from types import ModuleType
from typing import Any

import pytest


def plant(patch: pytest.MonkeyPatch, module: ModuleType, name: str, old: str, new: str) -> None:
    """Replace ``old`` by ``new`` in the function ``name`` ("function" or "Class.method") of a module."""
    # One spelling, so that a mutant does not depend on where the formatter breaks a line.
    _replace(patch, module, name, ast.unparse(ast.parse(old)), new)


def plant_in_text(patch: pytest.MonkeyPatch, module: ModuleType, name: str, old: str, new: str) -> None:
    """Replace a piece of a string in the function, such as of its SQL: pieces of one string are put together first."""
    _replace(patch, module, name, old, new)


def _replace(patch: pytest.MonkeyPatch, module: ModuleType, name: str, old: str, new: str) -> None:
    *owners, attribute = name.split(".")
    owner: Any = module
    for each in owners:
        owner = getattr(owner, each)
    original: Any = inspect.getattr_static(owner, attribute)
    text = ast.unparse(ast.parse(textwrap.dedent(inspect.getsource(original))))
    assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in {name}"
    places: dict[str, Any] = {}
    code = compile("from __future__ import annotations\n" + text.replace(old, new), f"<{name}>", "exec")
    exec(code, vars(module), places)
    patch.setattr(owner, attribute, places[attribute])
