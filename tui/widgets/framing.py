"""Keeps the lines of a widget as they were drawn, with room at their sides and a border with a title above them.

The library asks a dozen styles for each line that it draws anew. Where lines are kept, that takes longer than all the
rest: here it is asked once for all lines, until a style, the width or the theme is another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.segment import Segment
from rich.style import Style as Drawn
from textual.geometry import Region
from textual.scrollbar import ScrollBar, ScrollBarRender
from textual.strip import Strip
from textual.style import Style

from .theme import drawn, partial

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.color import Color
    from textual.filter import LineFilter
    from textual.widget import Widget


LINES_KEPT_MAX: Final = 1_024
"""So many lines of a widget are kept, with what stands around them: most keys show again what was seen before."""


class Framing:
    """Puts around the lines of one widget what its styles ask for."""

    def __init__(self, widget: Widget) -> None:
        self._widget = widget
        self._title = ""
        self._width = -1
        self._filters: Sequence[LineFilter] = ()
        self._ground: Drawn | None = None
        """What room is drawn in; None: the styles ask for more than is done here."""
        self._background: Color | None = None
        self._above, self._left, self._right = 0, 0, 0
        self._edge: Strip | None = None
        self._framed: dict[int, tuple[Strip, Strip]] = {}
        """By the identity of a line: the line, so that nothing else gets its identity, and all of it."""
        self._styles: dict[str, Drawn] = {}
        self._drawn: dict[object, Strip] = {}
        self._drawn_width = -1

    def show_title(self, title: str) -> None:
        """Show a title in the border, plain text; the same one again costs nothing."""
        if title != self._title:
            self._title = title
            self._edge = None
            self._widget.border_title = title.replace("[", "\\[")

    def forget(self) -> None:
        """Ask again, and draw all anew: a style is another."""
        self._width = -1
        self._styles.clear()
        self._drawn.clear()

    def style(self, style: str = "") -> Drawn:
        """Return a style of the theme on the widget's own."""
        known = self._styles.get(style)
        if known is None:
            known = self._styles[style] = drawn(self._widget, style)
        return known

    def partial(self, style: str) -> Drawn:
        """Return a style of the theme by itself, to be laid over others."""
        known = self._styles.get(name := f"over {style}")
        if known is None:
            known = self._styles[name] = partial(style)
        return known

    def redraw(self) -> None:
        """Forget the lines that were drawn."""
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

    def lines(
        self, crop: Region, line_at: Callable[[int], Strip], draw: Callable[[Region], list[Strip]]
    ) -> list[Strip]:
        """Return a part of a widget with all that stands around it.

        ``line_at``: a line of its content; the same object as long as it looks the same. ``draw``: how the library
        draws a part: what is cut off at a side, and borders elsewhere than above, are left to it.
        """
        filters = self._widget.get_line_filters()
        if crop.width != self._width or filters != self._filters:
            self._ask(crop.width, filters)
        if self._ground is None or crop.x or crop.width != self._widget.outer_size.width:
            return draw(crop)
        lines = []
        for y in crop.line_range:
            if y < self._above:
                if self._edge is None:
                    (self._edge,) = draw(Region(0, y, crop.width, 1))
                lines.append(self._edge)
                continue
            line = line_at(y - self._above)
            known = self._framed.get(id(line))
            if known is None:
                if len(self._framed) > LINES_KEPT_MAX:
                    self._framed.clear()
                known = self._framed[id(line)] = line, self._put_around(line, self._ground)
            lines.append(known[1])
        return lines

    def _ask(self, width: int, filters: Sequence[LineFilter]) -> None:
        widget = self._widget
        self._width, self._filters = width, filters
        self._framed.clear()
        self._edge = None
        base, self._background = widget.background_colors
        self._ground = Style(background=base + self._background).rich_style if self._plain else None
        padding, gutter = widget.styles.padding, widget.styles.gutter
        self._above, self._left, self._right = gutter.top, padding.left, padding.right

    @property
    def _plain(self) -> bool:
        """Whether the styles ask for no more than room at the sides and one line above."""
        widget, styles = self._widget, self._widget.styles
        (above, _), *others = styles.border
        edges = [*others, *styles.outline]
        return (
            not any(kind for kind, _ in edges)
            and styles.gutter.top == bool(above)
            and not styles.gutter.bottom
            and widget.opacity == styles.text_opacity == 1.0
            and not styles.tint.a
            and not styles.has_rule("hatch")
        )

    def _put_around(self, line: Strip, ground: Drawn) -> Strip:
        line = line.adjust_cell_length(self._width - self._left - self._right, ground)
        if self._left or self._right:
            left, right = ([Segment(" " * cells, ground)] if cells else [] for cells in (self._left, self._right))
            line = Strip([*left, *line, *right], self._width)
        assert self._background is not None
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
