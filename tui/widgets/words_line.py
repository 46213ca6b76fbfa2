"""Text that is drawn anew only when it says something else, and laid out anew only when it needs other lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.content import Content
from textual.widgets import Static

if TYPE_CHECKING:
    from collections.abc import Sequence


class WordsLine(Static):
    """A few lines of text. Four times a second the same costs nothing."""

    _said = ""
    _lines = 0

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's word
        """Say nothing yet."""
        super().__init__(id=id, markup=False)

    def say(self, *parts: str | tuple[str, str]) -> None:
        """Show parts, each plain or with a style."""
        self.say_lines([parts])

    def say_lines(self, lines: Sequence[Sequence[str | tuple[str, str]]]) -> None:
        """Show lines of parts."""
        content = Content("\n").join(Content.assemble(*parts) for parts in lines)
        said = content.plain
        if said == self._said:
            return
        width = max(1, self.size.width)
        needed = sum(1 + len(line) // width for line in said.split("\n"))
        self._said = said
        self.update(content, layout=needed != self._lines)
        self._lines = needed

    def on_resize(self) -> None:
        """In another width other lines are needed."""
        self._said, self._lines = "", 0
