"""Plant a fault in one function of ours: its own text with one piece replaced, compiled in its own module.

The piece must be there exactly once, so that a mutant cannot outlive the line that it breaks. A test that has to notice
it must fail in its own words: not because the mutant is no program.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
    # Inside a function with this argument ``super()`` finds its class as it does in the class's own body.
    made = f"def made(__class__):\n{textwrap.indent(text.replace(old, new), '    ')}\n    return {attribute}"
    exec(compile(f"from __future__ import annotations\n{made}", f"<{name}>", "exec"), vars(module), places)
    _put(patch, owner, attribute, places["made"](owner))


def plant_step(patch: pytest.MonkeyPatch, owner: type, step: str, wrong: Callable[..., object]) -> None:
    """Put a whole step that is wrong in the place of a method."""
    _put(patch, owner, step, wrong)


def _put(patch: pytest.MonkeyPatch, owner: object, attribute: str, value: object) -> None:
    """Put a mutant in its place: every one but those of the simulation's planter comes by here."""
    patch.setattr(owner, attribute, value)


@dataclass(frozen=True)
class Mutant:
    """Where it is planted, what is replaced by what, and the test that notices it."""

    module: ModuleType
    function: str
    old: str
    new: str
    caught_by: Callable[..., None]
    arguments: tuple[Any, ...] = ()
    """Of the test, behind its fixtures."""


def check_noticed(
    patch: pytest.MonkeyPatch,
    mutant: Mutant,
    ports: Mapping[str, object] | None = None,
    typos: tuple[type[Exception], ...] = (TypeError, NameError, SyntaxError),
) -> None:
    """Plant it, run its test, and see it fail. ``ports``: fixtures by name; ``typos``: what no test may fail by."""
    ports = ports or {}
    # A property test shows its examples' arguments as none at all.
    caught_by = mutant.caught_by
    parameters = [] if hasattr(caught_by, "hypothesis") else list(inspect.signature(caught_by).parameters)
    rest = [each for each in parameters if each not in ports]
    named = {each: ports[each] for each in parameters if each in ports} | dict(zip(rest, mutant.arguments, strict=True))
    plant(patch, mutant.module, mutant.function, mutant.old, mutant.new)
    # An assertion of the test, or of the code under it, or that nothing was raised where the test demands it.
    with pytest.raises((Exception, pytest.fail.Exception)) as caught:
        caught_by(**named)
    assert not isinstance(caught.value, typos), caught.value
