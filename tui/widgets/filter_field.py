"""The line in which a filter is typed."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widgets import Input


class FilterField(Input):
    """Filters while it is typed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "Keep the filter"),
        Binding("escape", "screen.unfilter", "No filter"),
    ]

    def __init__(self) -> None:
        """Begin empty."""
        super().__init__(placeholder="words in domain, holder, purpose; !word: not this one", id="filter")
