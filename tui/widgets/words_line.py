"""Lines of text: drawn anew only when they say something else, laid out anew only when they need other lines."""

from __future__ import annotations

from itertools import chain, starmap
from typing import TYPE_CHECKING, Final

from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from ..cellwidth import ELLIPSIS, cells_of, head_of, wrapped_ranges
from ..tones import drawn, segments, styled
from .framing import Framing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.style import Style
    from textual.geometry import Size

    from ..subjects import Cell

type Part = str | tuple[str, str]
"""Text, plain or with a style of the theme."""
type Line = tuple[Part, ...]

LINES_KEPT_MAX: Final = 256
"""So many lines that were drawn are kept: of what is said anew, most was said before."""


class WordsLine(Widget):
    """Lines of parts. What is too wide goes on below; with ``cut`` it is cut."""

    DEFAULT_CSS = "WordsLine { height: auto; }"

    def __init__(self, words: str = "", *, id: str, cut: bool = False) -> None:  # noqa: A002 - Textual's word
        """Say some words, or nothing yet."""
        super().__init__(id=id)
        self._said: tuple[Line, ...] = ((words,),)
        self._cut = cut
        self._laid: tuple[int, list[Line]] = (-1, [])
        self._drawn: dict[Line, Strip] = {}
        self._drawn_width = -1
        self._styles: dict[str, Style] = {}
        self._frame = Framing(self)

    def say(self, *parts: Part) -> None:
        """Show parts."""
        self.say_lines([parts])

    def say_cells(self, lines: Sequence[Sequence[Cell]]) -> None:
        """Show lines of cells, each in its tone."""
        self.say_lines([[styled(cell) for cell in line] for line in lines])

    def say_lines(self, lines: Sequence[Sequence[Part]]) -> None:
        """Show lines of parts. The same again costs nothing, and a line that stays is not drawn anew."""
        said = tuple(tuple(parts) for parts in lines)
        if said == self._said:
            return
        width, before = self._laid
        self._said = said
        self._laid = (-1, [])
        after = self._lines_in(width) if width >= 0 else []
        if width < 0 or len(after) != len(before):
            self.refresh(layout=self.styles.is_auto_height)
            return
        others = [y for y, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
        if others:
            self.refresh(Region(0, others[0], self.size.width, others[-1] - others[0] + 1))

    def show_title(self, title: str) -> None:
        """Show a title, plain text; the same one again costs nothing."""
        self._frame.show_title(title)

    @property
    def content(self) -> str:
        """What it says, without style."""
        return "\n".join("".join(map(_text, parts)) for parts in self._said)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return how many lines it needs in a width."""
        del container, viewport
        return len(self._lines_in(width))

    def render_lines(self, crop: Region) -> list[Strip]:
        """Render its lines with what stands around them."""
        width = self.content_size.width
        return self._frame.lines(crop, lambda y: self._line_in(y, width), super().render_lines)

    def render_line(self, y: int) -> Strip:
        """Render one of its lines."""
        return self._line_in(y, self.content_size.width)

    def _line_in(self, y: int, width: int) -> Strip:
        lines = self._lines_in(width)
        parts = lines[y] if y < len(lines) else ()
        if width != self._drawn_width or len(self._drawn) > LINES_KEPT_MAX:
            self._drawn.clear()
            self._drawn_width = width
        strip = self._drawn.get(parts)
        if strip is None:
            styled_parts = ((_text(part), self._style("" if isinstance(part, str) else part[1])) for part in parts)
            line = Strip(chain.from_iterable(starmap(segments, styled_parts)))
            strip = self._drawn[parts] = line.adjust_cell_length(width, self._style(""))
        return strip

    def notify_style_update(self) -> None:
        """Forget styles of another theme."""
        super().notify_style_update()
        self._styles.clear()
        self._drawn.clear()
        self._frame.forget()

    def _style(self, style: str) -> Style:
        found = self._styles.get(style)
        if found is None:
            found = self._styles[style] = drawn(self, style)
        return found

    def _lines_in(self, width: int) -> list[Line]:
        if self._laid[0] != width:
            self._laid = width, [line for parts in self._said for line in self._in_width(parts, max(1, width))]
        return self._laid[1]

    def _in_width(self, parts: Line, width: int) -> Iterator[Line]:
        text = "".join(map(_text, parts))
        if cells_of(text) <= width:
            yield parts
        elif self._cut:
            kept = head_of(text, width - 1).rstrip()
            yield (*_slice(parts, 0, len(kept)), (ELLIPSIS, "" if isinstance(parts[-1], str) else parts[-1][1]))
        else:
            for first, end in wrapped_ranges(text, width):
                yield tuple(_slice(parts, first, end))


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
