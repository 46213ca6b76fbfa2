"""The two themes, and how it is drawn: lines of a widget are kept, with what stands around them; drawings held back.

The library asks a dozen styles for each line that it draws anew. Where lines are kept, that takes longer than all the
rest: here it is asked once for all lines, until a style, the width or the theme is another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

from rich.segment import Segment
from rich.style import Style as Drawn
from textual.color import Color
from textual.filter import LineFilter
from textual.geometry import Region
from textual.screen import Screen
from textual.scrollbar import ScrollBar, ScrollBarRender
from textual.strip import Strip
from textual.style import Style
from textual.theme import Theme
from textual.widget import Widget

from ..model.state import Cell, Tone

DARK: Final = Theme(
    name="tenure-dark",
    primary="#0178D4",
    secondary="#004578",
    warning="#FFA62B",
    error="#D5556F",
    success="#4EBF71",
    accent="#3FA9F5",
    foreground="#E0E0E0",
    background="#121212",
    surface="#1E1E1E",
    panel="#242F38",
    dark=True,
    variables={
        "text-success": "#8AD4A1",
        "text-warning": "#FFC473",
        "text-error": "#F28FA3",
        "text-accent": "#7CC7FF",
        "primary-muted": "#0C304C",
    },
)
LIGHT: Final = Theme(
    name="tenure-light",
    primary="#004578",
    secondary="#0178D4",
    warning="#8A5300",
    error="#A3142F",
    success="#1B6E37",
    accent="#0B63B0",
    foreground="#1A1A1A",
    background="#FAFAFA",
    surface="#F0F0F0",
    panel="#DCE4EB",
    dark=False,
    variables={
        "text-success": "#17632F",
        "text-warning": "#7D4A00",
        "text-error": "#9B1230",
        "text-accent": "#0B5594",
        "primary-muted": "#C9DDF0",
    },
)


MUTED: Final = "$foreground 70%"
"""The theme's own $text-muted, as a style of text, is drawn in full white or black."""
STYLES: Final = {
    Tone.PLAIN: "",
    Tone.GOOD: "bold $text-success",
    Tone.WARN: "bold $text-warning",
    Tone.BAD: "bold $text-error",
    Tone.DIM: MUTED,
    Tone.STRONG: "bold",
}
CELL_STYLES: Final = STYLES | {Tone.GOOD: "$text-success"}
"""In tables, where much is good."""
CURSOR: Final = "on $primary-muted"


def styled(cell: Cell) -> tuple[str, str]:
    return cell.text, STYLES[cell.tone]


def segments(text: str, style: Drawn) -> list[Segment]:
    """Return text as it is drawn, spaces that lead by themselves: drawn as SVG, some readers would leave them out."""
    words = text.lstrip(" ")
    if not words or len(words) == len(text):
        return [Segment(text, style)]
    return [Segment(" " * (len(text) - len(words)), style), Segment(words, style)]


LINES_KEPT_MAX: Final = 1_024
"""So many lines of a widget are kept, with what stands around them: most keys show again what was seen before."""


class KeptLines(Widget):
    """A widget of lines. Its styles may ask for a line above with a title, and room at its sides; for nothing else."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._title = ""
        self._width = -1
        self._filters: Sequence[LineFilter] = ()
        self._ground = Drawn()
        """What room is drawn in."""
        self._background = Color(0, 0, 0)
        self._above, self._left, self._right = 0, 0, 0
        self._edge: Strip | None = None
        self._framed: dict[int, tuple[Strip, Strip]] = {}
        """By the identity of a line: the line, so that nothing else gets its identity, and all of it."""
        self._styles_kept: dict[str, Drawn] = {}
        self._drawn: dict[object, Strip] = {}
        self._drawn_width = -1

    def line_in(self, y: int, width: int) -> Strip:
        """Return a line of the content; the same object as long as it looks the same."""
        raise NotImplementedError

    def show_title(self, title: str) -> None:
        """Show a title in the border, plain text; the same one again costs nothing."""
        if title != self._title:
            self._title = title
            self._edge = None
            self.border_title = title.replace("[", "\\[")

    def notify_style_update(self) -> None:
        """Forget what was drawn in another theme, or with another focus."""
        super().notify_style_update()
        self._width = -1
        self._styles_kept.clear()
        self._drawn.clear()

    def style_in(self, style: str = "") -> Drawn:
        known = self._styles_kept.get(style)
        if known is None:
            whole = self.visual_style
            known = self._styles_kept[style] = ((whole + Style.parse(style)) if style else whole).rich_style
        return known

    def style_over(self, style: str) -> Drawn:
        """Return a style of the theme by itself, to be laid over others."""
        known = self._styles_kept.get(name := f"over {style}")
        if known is None:
            known = self._styles_kept[name] = Style.parse(style).rich_style
        return known

    def forget_lines(self) -> None:
        self._drawn.clear()

    def kept(self, name: object, width: int, line: Callable[[], Strip]) -> Strip:
        """Return a line that was drawn in this width since all was drawn anew, else draw it. ``name``: which it is."""
        if width != self._drawn_width or len(self._drawn) > LINES_KEPT_MAX:
            self._drawn.clear()
            self._drawn_width = width
        strip = self._drawn.get(name)
        if strip is None:
            strip = self._drawn[name] = line()
        return strip

    def render_line(self, y: int) -> Strip:
        return self.line_in(y, self.scrollable_content_region.width)

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return lines with all that stands around them; what is cut off at a side the library draws."""
        filters = self.get_line_filters()
        if crop.width != self._width or filters != self._filters:
            self._ask(crop.width, filters)
        if crop.x or crop.width != self.outer_size.width:
            return super().render_lines(crop)
        width = self.scrollable_content_region.width
        lines = []
        for y in crop.line_range:
            if y < self._above:
                if self._edge is None:
                    (self._edge,) = super().render_lines(Region(0, y, crop.width, 1))
                lines.append(self._edge)
                continue
            line = self.line_in(y - self._above, width)
            known = self._framed.get(id(line))
            if known is None:
                if len(self._framed) > LINES_KEPT_MAX:
                    self._framed.clear()
                known = self._framed[id(line)] = line, self._put_around(line)
            lines.append(known[1])
        return lines

    def _ask(self, width: int, filters: Sequence[LineFilter]) -> None:
        self._width, self._filters = width, filters
        self._framed.clear()
        self._edge = None
        base, self._background = self.background_colors
        self._ground = Style(background=base + self._background).rich_style
        padding = self.styles.padding
        self._above, self._left, self._right = self.styles.gutter.top, padding.left, padding.right

    def _put_around(self, line: Strip) -> Strip:
        line = line.adjust_cell_length(self._width - self._left - self._right, self._ground)
        if self._left or self._right:
            left, right = ([Segment(" " * cells, self._ground)] if cells else [] for cells in (self._left, self._right))
            line = Strip([*left, *line, *right], self._width)
        for each in self._filters:
            line = line.apply_filter(each, self._background)
        return line


class LineBar(ScrollBar):
    """Looks and behaves as the library's: only how it gets onto the screen is shorter."""

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return its lines: many, but of no more than five kinds."""
        bar = self.render()
        if not isinstance(bar, ScrollBarRender) or not isinstance(bar.style, Drawn):
            return ScrollBar.render_lines(self, crop)
        assert bar.style.bgcolor is not None and bar.style.color is not None  # noqa: PT018 - both
        _, background = self.background_colors
        ground = self.visual_style.rich_style
        filters = self.get_line_filters()
        strips: dict[int, Strip] = {}

        def strip_of(piece: Segment) -> Strip:
            if id(piece) not in strips:
                strip = Strip([piece], self.thickness).apply_style(ground)
                for each in filters:
                    strip = strip.apply_filter(each, background)
                strips[id(piece)] = strip
            return strips[id(piece)]

        made = bar.render_bar(
            self.size.height,
            bar.virtual_size,
            bar.window_size,
            bar.position,
            bar.thickness,
            back_color=bar.style.bgcolor,
            bar_color=bar.style.color,
        )
        return [strip_of(piece) for piece in made.segments][crop.y : crop.bottom]


HELD: Final = 0.05
"""Seconds for which nothing is drawn while the thread works: mostly it is ready by then, and all is drawn at once."""


class BatchedRedraw:
    """Holds back what one screen draws; never longer than HELD."""

    def __init__(self, screen: Screen[None]) -> None:
        self._screen = screen
        self._held: ExitStack | None = None

    @property
    def on(self) -> bool:
        return self._held is not None

    def begin(self) -> None:
        """Draw nothing from now on, where the screen is the one that is seen."""
        if self._held is None and self._screen.is_current:
            self._held = ExitStack()
            self._held.enter_context(self._screen.app.batch_update())
            asyncio.get_running_loop().call_later(HELD, self.end, self._held)

    def end(self, held: ExitStack | None = None) -> None:
        """Draw what there is. ``held``: only if this is still held."""
        if self._held is not None and held in (None, self._held):
            self._held.close()
            self._held = None
            for screen in self._screen.app.screen_stack[-1:]:  # another one by now, or none while the program ends
                screen.check_idle()
