"""The bar that says which part of a table is seen. Drawn by the few pieces that it is made of, not line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.style import Style
from textual.scrollbar import ScrollBar, ScrollBarRender
from textual.strip import Strip

if TYPE_CHECKING:
    from rich.segment import Segment
    from textual.geometry import Region


class LineBar(ScrollBar):
    """Looks and behaves as the library's: only how it gets onto the screen is shorter."""

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return its lines: many, but of no more than five kinds."""
        bar = self.render()
        if not isinstance(bar, ScrollBarRender) or not isinstance(bar.style, Style):
            return ScrollBar.render_lines(self, crop)
        assert bar.style.bgcolor is not None and bar.style.color is not None  # noqa: PT018 - both
        _, background = self.background_colors
        ground = self.visual_style.rich_style
        filters = self.get_line_filters()
        strips: dict[int, Strip] = {}

        def drawn(piece: Segment) -> Strip:
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
        return [drawn(piece) for piece in made.segments][crop.y : crop.bottom]
