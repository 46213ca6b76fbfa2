"""A table of any length that renders only what is seen (Line API). Its rows come from a function."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from rich.segment import Segment
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ..columns import fit, heading, laid_out
from ..words import Cell, Tone

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.style import Style

    from ..columns import Column, Field

type RowAt = Callable[[int], Sequence[Field]]

_CLASSES: Final = {tone: f"row-table--{tone.value}" for tone in Tone}


ROWS_WRITTEN_MAX: Final = 100_000


class RowTable(ScrollView, can_focus=True, inherit_bindings=False):
    """Rows under a heading that stays. What does not fit is scrolled to; nothing is selected."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {*_CLASSES.values(), "row-table--heading", "row-table--cursor"}
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
        self._fitted: tuple[int, list[int]] = (-1, [])
        self._styles: dict[str, Style] = {}
        self.border_title = title

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self._count

    def show_rows(self, count: int, row_at: RowAt, nothing: str) -> None:
        """Show so many rows; ``row_at`` is called for those in sight. ``nothing``: why there are none."""
        self._count, self._row_at, self._nothing = count, row_at, nothing
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

    def render_line(self, y: int) -> Strip:
        """Render one line of the widget."""
        width = self.scrollable_content_region.width
        widths = self._widths(width)
        if y == 0:
            return self._strip(laid_out(self._columns, widths, heading(self._columns)), width, "row-table--heading")
        index = y - 1 + self.scroll_offset.y
        if not self._count and y == 1:
            return self._strip([Cell(self._nothing, Tone.DIM)], width)
        if index >= self._count:
            return Strip.blank(width, self.rich_style)
        return self._strip(laid_out(self._columns, widths, self._row_at(index)), width)

    def _widths(self, width: int) -> list[int]:
        """Return the widths of the columns in a room; reckoned once for each."""
        if self._fitted[0] != width:
            self._fitted = width, fit(self._columns, width)
        return self._fitted[1]

    def notify_style_update(self) -> None:
        """Forget styles of another theme, or of another focus."""
        super().notify_style_update()
        self._styles.clear()

    def _strip(self, line: list[Cell], width: int, only: str = "") -> Strip:
        segments = [Segment(piece.text, self._style(piece.tone, only)) for piece in line if piece.text]
        return Strip(segments).adjust_cell_length(width, self.rich_style)

    def _style(self, tone: Tone, only: str) -> Style:
        name = only or _CLASSES[tone]
        style = self._styles.get(name)
        if style is None:
            style = self._styles[name] = self.get_component_rich_style(name)
        return style


def _plain(field: Field) -> str:
    return field.text if isinstance(field, Cell) else "".join(cell.text for cell in field)
