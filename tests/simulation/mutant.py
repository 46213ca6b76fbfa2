"""What a mutant is: pieces of the text of production functions, and what is put in their place.

A mutant cannot outlive the line that it breaks (planting.py); one that survives is a failing test.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import pytest

from tests.simulation.planting import Planter

type Break = tuple[ModuleType, str, str, str]
"""Module, function, what stands there, what is put in its place."""


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    """What is wrong."""
    breaks: tuple[Break, ...]
    killed_by: str
    scenario: str = "bags"
    first: int = 0
    """The seed that is tried first: where thousands before it are known to show nothing."""

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        planter = Planter(patch)
        for module, function, old, new in self.breaks:
            planter.plant(module, function, old, new)


def one(module: ModuleType, function: str, old: str, new: str) -> tuple[Break, ...]:
    return ((module, function, old, new),)
