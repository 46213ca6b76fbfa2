"""What one turn of a shard gathers before it is signed and written."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from .domain import hint_bytes

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

    def note_hints(self, before: State, after: State) -> None:
        """Take account of what a decision has added to the hints: it is not left for others of this turn."""
        grown = 0 if before is after else hint_bytes(after) - hint_bytes(before)
        if grown:
            self.bounds = replace(self.bounds, hint_bytes_left=max(0, self.bounds.hint_bytes_left - grown))
