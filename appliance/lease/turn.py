"""What one turn of a shard gathers before it is signed and written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from timeagent.signedtime import SignedTime

    from ..formats.witness import Entry
    from .domain import Bounds, State


@dataclass(slots=True)
class Staged:
    """A domain in this turn: as it was read, and as it will be written."""

    before: State
    revision: int
    """0: not remembered before this turn."""
    state: State
    answers: dict[bytes, int] = field(default_factory=dict)
    """Which entry of this turn is the newest witness of each of its leases, by correlation id."""


@dataclass(slots=True)
class Turn:
    """What one turn gathers."""

    bounds: Bounds
    token: SignedTime
    entries: list[Entry]
    staged: dict[str, Staged] = field(default_factory=dict)
    new: int = 0
    """How many domains will be remembered that were not."""
