"""A table with a cursor: one row is chosen, and opened with enter. The cursor follows its row, not its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.reactive import reactive

from ..columns import laid_out
from ..subjects import Cell, Tone
from ..tones import CURSOR, partial
from .row_table import RowTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.style import Style
    from textual.events import Click
    from textual.strip import Strip

    from .row_table import RowAt

type KeyAt = Callable[[int], object]
"""What a row is about: equal for the same thing before and after a refresh, a sort, a filter."""
type PlaceOf = Callable[[object], int | None]
"""Where the row about something is now, if there is one."""

MARK: Final = "▸"
NEAR: Final = 256
"""So far from its old place a row is looked for where nobody can say where it went."""


class PickTable(RowTable, inherit_bindings=False):
    """Rows, one of which is under the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup", "move_page(-1)", "A page up", show=False),
        Binding("pagedown", "move_page(1)", "A page down", show=False),
        Binding("home,g", "first", "First row", show=False),
        Binding("end,G", "last", "Last row", show=False),
        Binding("enter", "choose", "Open"),
    ]
    cursor: reactive[int] = reactive(0, repaint=False)
    headed: ClassVar[bool] = True
    """Whether the columns have titles."""

    class Moved(Message):
        """The cursor is on another row, or on another thing."""

        def __init__(self, table: PickTable) -> None:
            """Name the table."""
            super().__init__()
            self.table = table

        @property
        def control(self) -> PickTable:
            """The table."""
            return self.table

        def can_replace(self, message: Message) -> bool:
            """Whether this takes the place of one that waits."""
            return isinstance(message, PickTable.Moved) and message.table is self.table

    class Chosen(Message):
        """Enter was pressed on a row, or it was clicked."""

        def __init__(self, table: PickTable, index: int) -> None:
            """Name the row."""
            super().__init__()
            self.table = table
            self.index = index

        @property
        def control(self) -> PickTable:
            """The table."""
            return self.table

    _cursor_drawn: Style | None = None
    _key_at: KeyAt | None = None
    _key: object = None

    def show_picks(
        self, count: int, row_at: RowAt, nothing: str, key_at: KeyAt, place_of: PlaceOf | None = None
    ) -> None:
        """Show so many rows. ``key_at`` says what each is about.

        ``place_of`` says where that is now; without it, it is looked for near its old place.
        """
        self._key_at = key_at
        self.show_rows(count, row_at, nothing)
        if not count:
            return
        place = self._found(count, key_at, place_of)
        if place != self.cursor:
            self.cursor = place
        elif (key := key_at(place)) != self._key:
            self._key = key
            self.post_message(self.Moved(self))

    def _found(self, count: int, key_at: KeyAt, place_of: PlaceOf | None) -> int:
        last = min(self.cursor, count - 1)
        if self._key is None or key_at(last) == self._key:
            return last
        if place_of is not None:
            found = place_of(self._key)
            return last if found is None else found
        near = range(max(0, last - NEAR), min(count, last + NEAR))
        return next((index for index in near if key_at(index) == self._key), last)

    @property
    def key(self) -> object:
        """What the row under the cursor is about; None where there are no rows."""
        return self._key_at(self.cursor) if self._key_at is not None and self._count else None

    def validate_cursor(self, cursor: int) -> int:
        """Stay on a row."""
        return max(0, min(cursor, self._count - 1))

    def watch_cursor(self, before: int, after: int) -> None:
        """Bring the row into sight, and tell."""
        self._key = self.key
        if not self.bring_into_sight():
            self.refresh_lines(before + self.headed)
            self.refresh_lines(after + self.headed)
        self.post_message(self.Moved(self))

    def on_resize(self) -> None:
        """Keep the cursor in sight."""
        self.call_after_refresh(self.bring_into_sight)

    def bring_into_sight(self) -> bool:
        """Scroll to the row under the cursor, and say whether that was needed."""
        height = max(1, self.size.height - self.headed)
        top = self.scroll_offset.y
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False, immediate=True, force=True)
        elif self.cursor >= top + height:
            self.scroll_to(y=self.cursor - height + 1, animate=False, immediate=True, force=True)
        else:
            return False
        return True

    def action_move(self, rows: int) -> None:
        """Move the cursor by rows."""
        self.cursor += rows

    def action_move_page(self, pages: int) -> None:
        """Move the cursor by what is seen."""
        self.cursor += pages * max(1, self.size.height - self.headed)

    def action_first(self) -> None:
        """Go to the first row."""
        self.cursor = 0

    def action_last(self) -> None:
        """Go to the last row."""
        self.cursor = self._count - 1

    def action_choose(self) -> None:
        """Open the row under the cursor."""
        if self._count:
            self.post_message(self.Chosen(self, self.cursor))

    def on_click(self, event: Click) -> None:
        """Move the cursor to the row that is clicked; open it when it is clicked again."""
        index = event.y - self.headed + self.scroll_offset.y
        if not 0 <= index < self._count or event.y < self.headed:
            return
        if index == self.cursor and self.has_focus and event.chain > 1:
            self.action_choose()
        self.cursor = index

    def line_in(self, y: int, width: int, top: int) -> Strip:
        """Return a line of the widget: the cursor is a mark, and a background."""
        room = max(1, width - len(MARK))
        as_laid = self.columns_in(room)
        if y == 0 and self.headed:
            return self.kept("heading", width, lambda: [Cell(" "), *laid_out(self._columns, as_laid, self._heading)])
        row = y - self.headed
        index = row + top
        if not self._count and row == 0:
            return self.kept("nothing", width, lambda: [Cell(f" {self._nothing}", Tone.DIM)])
        if index >= self._count:
            return self.kept("blank", width, list)
        here = index == self.cursor
        name = self.name_of(index)
        strip = self.kept((name, here), width, lambda: [Cell(MARK if here else " "), *self.line_of(index, room)])
        return strip.apply_style(self._cursor_style) if here and self.has_focus else strip

    def name_of(self, index: int) -> object:
        """Return what is equal as long as the row looks the same, the cursor's mark aside."""
        return index

    @property
    def _cursor_style(self) -> Style:
        if self._cursor_drawn is None:
            self._cursor_drawn = partial(CURSOR)
        return self._cursor_drawn

    def notify_style_update(self) -> None:
        """Forget the style of another theme."""
        super().notify_style_update()
        self._cursor_drawn = None

    def line_of(self, index: int, room: int) -> list[Cell]:
        """Return a row's text in a width."""
        return laid_out(self._columns, self.columns_in(room), self._row_at(index))
