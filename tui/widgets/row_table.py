"""A table of any length that renders only what is seen (Line API). Its rows come from a function."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from rich.segment import Segment
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ..cellwidth import cells_of
from ..columns import heading, laid_out, layout
from ..subjects import Cell, Tone
from ..tones import CELL_STYLES, drawn, segments
from .framing import Framing
from .line_bar import LineBar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.style import Style
    from textual.geometry import Region
    from textual.scrollbar import ScrollBar

    from ..columns import Column, Field, Layout

type RowAt = Callable[[int], Sequence[Field]]

ROWS_WRITTEN_MAX: Final = 100_000
LINES_KEPT_MAX: Final = 1_024
"""So many lines that were drawn are kept: most keys show lines again that were seen before."""


class RowTable(ScrollView, can_focus=True, inherit_bindings=False):
    """Rows under a heading that stays. What does not fit is scrolled to; nothing is selected."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll_up", "Up", show=False),
        Binding("down,j", "scroll_down", "Down", show=False),
        Binding("pageup", "page_up", "A page up", show=False),
        Binding("pagedown", "page_down", "A page down", show=False),
        Binding("home,g", "scroll_home", "First row", show=False),
        Binding("end,G", "scroll_end", "Last row", show=False),
    ]

    def __init__(self, columns: Sequence[Column], title: str, **settings: str) -> None:
        """Take the columns. There are no rows yet."""
        super().__init__(id=settings.get("id"))
        self._columns = columns
        self._count = 0
        self._row_at: RowAt = lambda _index: ()
        self._nothing = ""
        self._laid: tuple[object, Layout] | None = None
        self._styles: dict[Tone, Style] = {}
        self._drawn: dict[object, Strip] = {}
        self._drawn_width = -1
        self._frame = Framing(self)
        self.show_title(title)

    @property
    def vertical_scrollbar(self) -> ScrollBar:
        """The bar at its right; made when it is first asked for."""
        if self._vertical_scrollbar is None:
            self._vertical_scrollbar = bar = LineBar(name="vertical", thickness=self.scrollbar_size_vertical)
            bar.display = False
            self.app._start_widget(self, bar)  # noqa: SLF001 - the library has no other door for a bar of one's own
        return self._vertical_scrollbar

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self._count

    def show_rows(self, count: int, row_at: RowAt, nothing: str) -> None:
        """Show so many rows; ``row_at`` is called for those in sight. ``nothing``: why there are none."""
        same = count == self._count == 0 and nothing == self._nothing
        self._count, self._row_at, self._nothing = count, row_at, nothing
        if same:
            return
        self._laid = None
        self._drawn.clear()
        size = Size(self.size.width, max(1, count) + 1)
        if size != self.virtual_size:
            self.virtual_size = size
        self.refresh()

    def on_resize(self) -> None:
        """Take the new width."""
        self.virtual_size = Size(self.size.width, max(1, self._count) + 1)

    def text_at(self, y: int) -> str:
        """Return what stands in a line of the widget, without style."""
        return self.render_line(y).text.rstrip()

    def rows_shown(self) -> list[dict[str, str]]:
        """Return its rows as text, by the titles of the columns; at most ROWS_WRITTEN_MAX."""
        names = [column.title or "mark" for column in self._columns] or ["line"]
        return [
            dict(zip(names, (_plain(field) for field in self.fields_at(row)), strict=False))
            for row in range(min(self._count, ROWS_WRITTEN_MAX))
        ]

    def fields_at(self, row: int) -> Sequence[Field]:
        """Return what stands in the columns of a row."""
        return self._row_at(row)

    def show_title(self, title: str) -> None:
        """Show a title, plain text; the same one again costs nothing."""
        self._frame.show_title(title)

    def render_lines(self, crop: Region) -> list[Strip]:
        """Render lines with what stands around them."""
        width, top = self.scrollable_content_region.width, self.scroll_offset.y
        return self._frame.lines(crop, lambda y: self.line_in(y, width, top), super().render_lines)

    def render_line(self, y: int) -> Strip:
        """Render one line of the widget."""
        return self.line_in(y, self.scrollable_content_region.width, self.scroll_offset.y)

    def line_in(self, y: int, width: int, top: int) -> Strip:
        """Return a line of the widget in a width; ``top``: to which row it is scrolled."""
        as_laid = self.columns_in(width)
        if y == 0:
            return self.kept("heading", width, lambda: laid_out(self._columns, as_laid, self._heading))
        index = y - 1 + top
        if not self._count and y == 1:
            return self.kept("nothing", width, lambda: [Cell(self._nothing, Tone.DIM)])
        if index >= self._count:
            return self.kept("blank", width, list)
        return self.kept(index, width, lambda: laid_out(self._columns, as_laid, self._row_at(index)))

    @property
    def _heading(self) -> Sequence[Field]:
        return heading(self._columns)

    def kept(self, name: object, width: int, line: Callable[[], list[Cell]]) -> Strip:
        """Return a line that was drawn since the rows were shown, else draw it. ``name``: which line it is."""
        if width != self._drawn_width or len(self._drawn) > LINES_KEPT_MAX:
            self._drawn.clear()
            self._drawn_width = width
        strip = self._drawn.get(name)
        if strip is None:
            strip = self._drawn[name] = self.strip_of(line(), width)
        return strip

    def columns_in(self, width: int) -> Layout:
        """Return how the rows in sight are laid out in a room. Lines that were drawn otherwise are forgotten."""
        top = self.scroll_offset.y
        sight = range(top, min(self._count, top + self.size.height))
        key = width, sight
        if self._laid is None or self._laid[0] != key:
            found = layout(self._columns, width, [self.in_sight(index) for index in sight])
            if self._laid is not None and self._laid[1] != found:
                self._drawn.clear()
            self._laid = key, found
        return self._laid[1]

    def in_sight(self, index: int) -> Sequence[Field]:
        """Return the fields of a row as far as the columns' widths depend on them."""
        return self._row_at(index)

    def notify_style_update(self) -> None:
        """Forget styles of another theme, or of another focus."""
        super().notify_style_update()
        self._styles.clear()
        self._drawn.clear()
        self._frame.forget()

    def strip_of(self, line: Sequence[Cell], width: int) -> Strip:
        """Draw pieces of text, cut or filled to a width."""
        drawn_as = [each for piece in line if piece.text for each in segments(piece.text, self.style_of(piece.tone))]
        size = sum(cells_of(piece.text) for piece in line)
        if size < width:
            drawn_as.append(Segment(" " * (width - size), self.style_of(Tone.PLAIN)))
            size = width
        strip = Strip(drawn_as, size)
        return strip if size == width else strip.crop(0, width)

    def style_of(self, tone: Tone) -> Style:
        """Return what a tone is drawn in."""
        style = self._styles.get(tone)
        if style is None:
            style = self._styles[tone] = drawn(self, CELL_STYLES[tone])
        return style


def _plain(field: Field) -> str:
    return field.text if isinstance(field, Cell) else "".join(cell.text for cell in field)
