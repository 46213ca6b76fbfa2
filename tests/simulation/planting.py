"""Plant a fault in production code: some lines of one function replaced, compiled in its own module.

The lines must stand there exactly once, in the spelling of ``ast.unparse``: a mutant cannot outlive what it breaks.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

    import pytest


class Planter:
    """Plants several faults, also into one function, and takes them out again with the patch."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._texts: dict[tuple[str, str], str] = {}

    def plant(self, module: ModuleType, name: str, old: str, new: str) -> None:
        """Replace ``old`` by ``new`` in the function ``name`` ("function" or "Class.method"); indents follow."""
        *owners, attribute = name.split(".")
        owner: Any = module
        for each in owners:
            owner = getattr(owner, each)
        original = inspect.getattr_static(owner, attribute)
        key = (module.__name__, name)
        if key not in self._texts:
            function: Any = original.fget if isinstance(original, property) else original
            function = function.__func__ if isinstance(function, staticmethod | classmethod) else function
            self._texts[key] = ast.unparse(ast.parse(textwrap.dedent(inspect.getsource(function))))
        text = self._texts[key] = replaced(self._texts[key], old, new, f"{module.__name__}.{name}")
        places: dict[str, Any] = {}
        exec(compile("from __future__ import annotations\n" + text, f"<{name}>", "exec"), vars(module), places)
        self._patch.setattr(owner, attribute, places[attribute])


def replaced(text: str, old: str, new: str, where: str) -> str:
    """Return the text with whole lines, or one piece of a line, replaced. It must be there exactly once."""
    if "\n" not in old and text.count(old) == 1 and "\n" not in new:
        return text.replace(old, new)
    lines = [re.escape(line.lstrip()) for line in old.splitlines()]
    pattern = re.compile(r"^( *)" + r"\n *".join(lines) + r"$", re.MULTILINE)
    found = list(pattern.finditer(text))
    assert len(found) == 1, f"{old!r} is {len(found)} times in {where}:\n{text}"
    indent = found[0].group(1)
    put = "\n".join(indent + line for line in new.splitlines())
    return text[: found[0].start()] + put + text[found[0].end() :]
