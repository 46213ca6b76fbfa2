"""Lines of text: drawn anew only when they say something else, laid out anew only when they need other lines."""

from __future__ import annotations

from itertools import chain, starmap
from typing import TYPE_CHECKING

from textual.strip import Strip
from textual.widget import Widget

from ..cellwidth import ELLIPSIS, cells_of, head_of, wrapped_ranges
from ..tones import drawn, segments, styled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.style import Style
    from textual.geometry import Size

    from ..words import Cell

type Part = str | tuple[str, str]
"""Text, plain or with a style of the theme."""


class WordsLine(Widget):
    """Lines of parts. What is too wide goes on below; with ``cut`` it is cut."""

    DEFAULT_CSS = "WordsLine { height: auto; }"

    def __init__(self, words: str = "", *, id: str, cut: bool = False) -> None:  # noqa: A002 - Textual's word
        """Say some words, or nothing yet."""
        super().__init__(id=id)
        self._said: tuple[tuple[Part, ...], ...] = ((words,),)
        self._cut = cut
        self._titled = ""
        self._laid: tuple[int, list[list[Part]]] = (-1, [])
        self._drawn: dict[int, Strip] = {}
        self._styles: dict[str, Style] = {}

    def say(self, *parts: Part) -> None:
        """Show parts."""
        self.say_lines([parts])

    def say_cells(self, lines: Sequence[Sequence[Cell]]) -> None:
        """Show lines of cells, each in its tone."""
        self.say_lines([[styled(cell) for cell in line] for line in lines])

    def say_lines(self, lines: Sequence[Sequence[Part]]) -> None:
        """Show lines of parts. The same again costs nothing."""
        said = tuple(tuple(parts) for parts in lines)
        if said == self._said:
            return
        before = len(self._laid[1])
        width = self._laid[0]
        self._said = said
        self._forget()
        self.refresh(layout=width < 0 or len(self._lines_in(width)) != before)

    def show_title(self, title: str) -> None:
        """Show a title, plain text; the same one again costs nothing."""
        if title != self._titled:
            self._titled = title
            self.border_title = title.replace("[", "\\[")

    @property
    def content(self) -> str:
        """What it says, without style."""
        return "\n".join("".join(map(_text, parts)) for parts in self._said)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return how many lines it needs in a width."""
        del container, viewport
        return len(self._lines_in(width))

    def render_line(self, y: int) -> Strip:
        """Render one of its lines."""
        strip = self._drawn.get(y)
        width = self.content_size.width
        if strip is None or strip.cell_length != width:
            lines = self._lines_in(width)
            parts = lines[y] if y < len(lines) else []
            styled_parts = ((_text(part), self._style("" if isinstance(part, str) else part[1])) for part in parts)
            line = Strip(chain.from_iterable(starmap(segments, styled_parts)))
            strip = self._drawn[y] = line.adjust_cell_length(width, self._style(""))
        return strip

    def notify_style_update(self) -> None:
        """Forget styles of another theme."""
        super().notify_style_update()
        self._styles.clear()
        self._drawn.clear()

    def _forget(self) -> None:
        self._laid = (-1, [])
        self._drawn.clear()

    def _style(self, style: str) -> Style:
        found = self._styles.get(style)
        if found is None:
            found = self._styles[style] = drawn(self, style)
        return found

    def _lines_in(self, width: int) -> list[list[Part]]:
        if self._laid[0] != width:
            self._drawn.clear()
            self._laid = width, [line for parts in self._said for line in self._in_width(parts, max(1, width))]
        return self._laid[1]

    def _in_width(self, parts: Sequence[Part], width: int) -> Iterator[list[Part]]:
        text = "".join(map(_text, parts))
        if cells_of(text) <= width:
            yield list(parts)
        elif self._cut:
            kept = head_of(text, width - 1).rstrip()
            yield [*_slice(parts, 0, len(kept)), (ELLIPSIS, "" if isinstance(parts[-1], str) else parts[-1][1])]
        else:
            for first, end in wrapped_ranges(text, width):
                yield _slice(parts, first, end)


def _text(part: Part) -> str:
    return part if isinstance(part, str) else part[0]


def _slice(parts: Sequence[Part], first: int, end: int) -> list[Part]:
    """Return what of some parts lies between two places of their text."""
    found: list[Part] = []
    at = 0
    for part in parts:
        text = _text(part)
        piece = text[max(0, first - at) : max(0, end - at)]
        if piece:
            found.append(piece if isinstance(part, str) else (piece, part[1]))
        at += len(text)
    return found
