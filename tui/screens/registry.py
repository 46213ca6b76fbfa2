"""The screens that a number opens. A screen is a file and a line here; keys, tabs, help and palette follow from it."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .base import TopScreen


@dataclass(frozen=True, slots=True)
class Entry:
    """One screen."""

    key: str
    name: str
    title: str
    place: str
    """Module below this package, and class. Imported when the screen is first opened."""

    def load(self) -> type[TopScreen]:
        """Return the class."""
        module, _, name = self.place.partition(":")
        found = getattr(importlib.import_module(f"{__package__}.{module}"), name)
        assert isinstance(found, type)
        return found


ENTRIES: Final = (
    Entry("1", "overview", "Overview", "overview:OverviewScreen"),
    Entry("2", "leases", "Leases", "leases:LeasesScreen"),
    Entry("3", "bags", "Bags", "bags:BagsScreen"),
    Entry("4", "time", "Time", "time:TimeScreen"),
    Entry("5", "findings", "Findings", "findings:FindingsScreen"),
    Entry("6", "replay", "Replay", "replay:ReplayScreen"),
)
