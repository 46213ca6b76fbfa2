"""Tables of any length that draw what is seen (Line API): plain, with a cursor that follows its row, of details."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Final

from rich.segment import Segment
from rich.style import Style as Drawn
from textual.binding import Binding, BindingType
from textual.events import Click
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.scrollbar import ScrollBar
from textual.strip import Strip
from textual.style import Style

from timeagent.console import printable
from timeagent.errors import TenureError
from timeagent.units import SECOND, Instant

from ..model import tables
from ..model.state import Cell, ClusterState, DetailLine, Subject, Tone
from ..model.tables import OPEN, Arrangement, Column, ColumnWidths, Field, GroupHeading, ListOptions, arrange, cut
from ..model.words import matching, short_span
from .lines import STYLES, Titled

type LookUp = Callable[[Subject, Callable[[Sequence[DetailLine] | TenureError], None]], None]
"""Asks, and calls back on the screen's thread."""


type RowAt = Callable[[int], Sequence[Field]]

ROWS_WRITTEN_MAX: Final = 100_000
LINES_KEPT_MAX: Final = 1_024
"""So many lines of a table are kept as they were drawn: most keys show again what was seen before."""


class KeptBar(ScrollBar):
    """Is not drawn again where it stood before: for its many lines the library asks as many styles as for a page."""

    def __init__(self, thickness: int) -> None:
        super().__init__(name="vertical", thickness=thickness)
        self._drawn: dict[object, list[Strip]] = {}

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._drawn.clear()

    def render_lines(self, crop: Region) -> list[Strip]:
        if len(self._drawn) > LINES_KEPT_MAX // crop.height:
            self._drawn.clear()
        place = self.window_virtual_size, self.window_size, self.position
        looks = crop, self.size, *place, self.mouse_over, self.grabbed
        if looks not in self._drawn:
            self._drawn[looks] = super().render_lines(crop)
        return self._drawn[looks]


class RowTable(ScrollView, Titled, can_focus=True, inherit_bindings=False):
    """Rows under a heading that stays. What does not fit is scrolled to; nothing is selected.

    A line that looks as it did is not drawn again: not where it scrolls, and not where its screen is seen again.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll_up", "Up", show=False),
        Binding("down,j", "scroll_down", "Down", show=False),
        Binding("pageup", "page_up", "A page up", show=False),
        Binding("pagedown", "page_down", "A page down", show=False),
        Binding("home,g", "scroll_home", "First row", show=False),
        Binding("end,G", "scroll_end", "Last row", show=False),
    ]

    headed: ClassVar[bool] = True
    indent: ClassVar[int] = 0
    """How many cells stand before the columns."""

    def __init__(self, columns: Sequence[Column], title: str, **settings: str) -> None:
        super().__init__(id=settings.get("id"))
        self._columns = columns
        self.count = 0
        self._row_at: RowAt = lambda _index: ()
        self._nothing = ""
        self._laid: tuple[object, ColumnWidths] | None = None
        self._styles_kept: dict[str, Drawn] = {}
        self._drawn: dict[object, Strip] = {}
        self._drawn_width = -1
        self._framed: dict[int, tuple[Strip, Strip]] = {}
        """By the identity of a line, which another theme, focus or width makes anew: the line, and all of it."""
        self.show_title(title)

    @property
    def vertical_scrollbar(self) -> ScrollBar:
        if self._vertical_scrollbar is None:
            self._vertical_scrollbar = bar = KeptBar(self.scrollbar_size_vertical)
            bar.display = False
            self.app._start_widget(self, bar)  # noqa: SLF001 - the library has no other door for a bar of one's own
        return self._vertical_scrollbar

    def notify_style_update(self) -> None:
        """Forget what was drawn in another theme, or with another focus."""
        super().notify_style_update()
        self._styles_kept.clear()
        self._drawn.clear()

    def style_of(self, tone: Tone) -> Drawn:
        known = self._styles_kept.get(tone)
        if known is None:
            style = "$text-success" if tone is Tone.GOOD else STYLES[tone]  # in tables much is good
            whole = self.visual_style
            known = self._styles_kept[tone] = ((whole + Style.parse(style)) if style else whole).rich_style
        return known

    def kept(self, name: object, width: int, line: Callable[[], Strip]) -> Strip:
        """Return a line that was drawn in this width since all was drawn anew, else draw it. ``name``: which it is."""
        if width != self._drawn_width or len(self._drawn) > LINES_KEPT_MAX:
            self._drawn.clear()
            self._drawn_width = width
        strip = self._drawn.get(name)
        if strip is None:
            strip = self._drawn[name] = line()
        return strip

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return lines with what stands around them; that is kept too: the library asks a dozen styles for it."""
        if crop.x or crop.width != self.outer_size.width:
            return super().render_lines(crop)
        above = self.gutter.top
        lines = {y: self.render_line(y - above) for y in crop.line_range if y >= above}
        if any(id(line) not in self._framed for line in lines.values()):
            if len(self._framed) > LINES_KEPT_MAX:
                self._framed.clear()
            drawn = super().render_lines(crop)
            self._framed.update((id(line), (line, drawn[y - crop.y])) for y, line in lines.items())
            return drawn
        edge = super().render_lines(Region(0, crop.y, crop.width, above - crop.y)) if crop.y < above else []
        return [*edge, *(self._framed[id(line)][1] for line in lines.values())]

    def strip_of(self, line: Sequence[Cell], width: int) -> Strip:
        """Draw a line; spaces that lead stand by themselves: drawn as SVG, some readers would leave them out."""
        drawn = []
        for cell in line:
            text = printable(cell.text)
            words = text.lstrip(" ")
            parts = " " * (len(text) - len(words)), words
            drawn += [Segment(part, self.style_of(cell.tone)) for part in parts if part]
        return Strip(drawn).adjust_cell_length(width, self.style_of(Tone.PLAIN))

    def show_rows(self, count: int, row_at: RowAt, nothing: str) -> None:
        """Show so many rows; ``row_at`` is called for those in sight. ``nothing``: why there are none."""
        same = count == self.count == 0 and nothing == self._nothing
        self.count, self._row_at, self._nothing = count, row_at, nothing
        if same:
            return
        self._laid = None
        self._drawn.clear()
        self._make_room()
        self.refresh()

    def on_resize(self) -> None:
        self._make_room()

    def _make_room(self) -> None:
        size = Size(self.size.width, max(1, self.count) + self.headed)
        if size != self.virtual_size:
            self.virtual_size = size

    def rows_shown(self) -> list[dict[str, str]]:
        """Return its rows as text, by the titles of the columns; at most ROWS_WRITTEN_MAX."""
        names = [column.title or "mark" for column in self._columns] or ["line"]
        rows = map(self._row_at, range(min(self.count, ROWS_WRITTEN_MAX)))
        texts = [["".join(cell.text for cell in tables.pieces_of(field)) for field in row] for row in rows]
        return [dict(zip(names, row, strict=False)) for row in texts]

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        room = max(1, width - self.indent)
        as_laid = self.columns_in(room)
        lead = Cell(" " * self.indent)
        row = y - self.headed
        if row < 0:
            return self._kept("heading", width, lambda: [lead, *tables.laid_out(self._columns, as_laid, self._heading)])
        if not self.count and row == 0:
            return self._kept("nothing", width, lambda: [lead, Cell(self._nothing, Tone.DIM)])
        row += self.scroll_offset.y
        if row >= self.count:
            return self._kept("blank", width, list)
        return self.row_in(row, width, room)

    def row_in(self, index: int, width: int, room: int) -> Strip:
        """Return a row in the width of the widget; there is so much room for its columns."""
        return self._kept(index, width, lambda: self.line_of(index, room))

    def line_of(self, index: int, room: int) -> list[Cell]:
        return tables.laid_out(self._columns, self.columns_in(room), self._row_at(index))

    @property
    def _heading(self) -> Sequence[Field]:
        return tables.heading(self._columns)

    def _kept(self, name: object, width: int, line: Callable[[], list[Cell]]) -> Strip:
        return self.kept(name, width, lambda: self.strip_of(line(), width))

    def columns_in(self, width: int) -> ColumnWidths:
        """Return how the rows in sight are laid out in a room. Lines that were drawn otherwise are forgotten."""
        top = self.scroll_offset.y
        sight = range(top, min(self.count, top + self.size.height))
        key = width, sight
        if self._laid is None or self._laid[0] != key:
            found = tables.layout(self._columns, width, [self.in_sight(index) for index in sight])
            if self._laid is not None and self._laid[1] != found:
                self._drawn.clear()
            self._laid = key, found
        return self._laid[1]

    def in_sight(self, index: int) -> Sequence[Field]:
        """Return the fields of a row as far as the columns' widths depend on them."""
        return self._row_at(index)


type KeyAt = Callable[[int], object]
"""What a row is about: equal for the same thing before and after a refresh, a sort, a filter."""

MARK: Final = "▸"
CURSOR: Final = "on $primary-muted"
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
    indent = len(MARK)

    class Moved(Message):
        """The cursor is on another row, on another thing, or on none any more."""

        def __init__(self, table: PickTable) -> None:
            super().__init__()
            self.table = table

        def can_replace(self, message: Message) -> bool:
            return isinstance(message, PickTable.Moved) and message.table is self.table

    class Chosen(Message):
        """Enter was pressed on a row, or it was clicked."""

    _key_at: KeyAt | None = None
    _key: object = None

    def show_picks(self, count: int, row_at: RowAt, nothing: str, key_at: KeyAt, place: int | None = None) -> None:
        """Show so many rows. ``key_at`` says what each is about.

        ``place`` says where the row under the cursor is now; without it, it is looked for near its old place.
        """
        self._key_at = key_at
        before = self.count
        self.show_rows(count, row_at, nothing)
        if not count:
            if before:
                self.post_message(self.Moved(self))
            return
        place = self._found(count, key_at) if place is None else place
        if place != self.cursor:
            self.cursor = place
        elif not before or key_at(place) != self._key:
            self._key = key_at(place)
            self.post_message(self.Moved(self))

    def _found(self, count: int, key_at: KeyAt) -> int:
        last = min(self.cursor, count - 1)
        if self._key is None or key_at(last) == self._key:
            return last
        near = range(max(0, last - NEAR), min(count, last + NEAR))
        return next((index for index in near if key_at(index) == self._key), last)

    @property
    def key(self) -> object:
        return self._key_at(self.cursor) if self._key_at is not None and self.count else None

    def validate_cursor(self, cursor: int) -> int:
        return max(0, min(cursor, self.count - 1))

    def watch_cursor(self, before: int, after: int) -> None:
        self._key = self.key
        if not self.bring_into_sight():
            self.refresh_lines(before + self.headed)
            self.refresh_lines(after + self.headed)
        self.post_message(self.Moved(self))

    def on_resize(self) -> None:
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
        self.cursor += rows

    def action_move_page(self, pages: int) -> None:
        self.cursor += pages * max(1, self.size.height - self.headed)

    def action_first(self) -> None:
        self.cursor = 0

    def action_last(self) -> None:
        self.cursor = self.count - 1

    def action_choose(self) -> None:
        if self.count:
            self.post_message(self.Chosen())

    def on_click(self, event: Click) -> None:
        row = event.y - self.gutter.top - self.headed
        index = row + self.scroll_offset.y
        if row < 0 or index >= self.count:
            return
        if index == self.cursor and self.has_focus and event.chain > 1:
            self.action_choose()
        self.cursor = index

    def row_in(self, index: int, width: int, room: int) -> Strip:
        here = index == self.cursor
        name = self.name_of(index), here
        strip = self._kept(name, width, lambda: [Cell(MARK if here else " "), *self.line_of(index, room)])
        return strip.apply_style(Style.parse(CURSOR).rich_style) if here and self.has_focus else strip

    def name_of(self, index: int) -> object:
        """Return what is equal as long as the row looks the same, the cursor's mark aside."""
        return index


INLINE_MAX: Final = 5_000
"""So many rows are arranged at once; more of them by a thread, and until it has, the rows stay as they were."""

DRAWN_MAX: Final = 256


class ListTable[R, C](PickTable):
    """Rows in an order and in groups, narrowed; the cursor stays on its row, wherever that goes."""

    LISTING: ClassVar[tables.Listing[Any, Any]]
    wanted: ListOptions
    _made: Arrangement[R] | None = None

    def __init__(self, **settings: str) -> None:
        super().__init__(self.LISTING.columns, "", **settings)

    def show_list(
        self, rows: Sequence[R], wanted: ListOptions, context: C, title: Callable[[int], str], nothing: str
    ) -> None:
        """Show rows, with what else they depend on. Many stay as they are until a thread has arranged them.

        ``title`` is told how many are shown; ``nothing``: why there are none.
        """
        self.wanted = wanted
        self._given, self._title_of, self._why = context, title, nothing
        made = self._made
        if made is not None and made.wanted == wanted and made.rows is rows:
            self._fill()
        elif self._at_once(len(rows)):
            self._put(arrange(self.LISTING, rows, wanted, context))
        else:
            self._arrange_behind(rows, context)
            self._fill()

    def _at_once(self, rows: int) -> bool:
        """Whether arranging takes no time: of few rows, and in the order in which they came, or its reverse."""
        listing, wanted = self.LISTING, self.wanted
        found = (listing.orders[wanted.order], listing.groups[wanted.group]) == (None, None)
        return rows <= INLINE_MAX or (found and not wanted.words.split())

    def _arrange_behind(self, rows: Sequence[R], context: C) -> None:
        wanted = self.wanted

        def work() -> None:
            self.app.call_from_thread(self._take, arrange(self.LISTING, rows, wanted, context))

        self.run_worker(work, thread=True, exclusive=True, group="arrange")

    def _take(self, made: Arrangement[R]) -> None:
        if made.wanted == self.wanted and self.is_mounted:
            self._put(made)

    def _put(self, made: Arrangement[R]) -> None:
        before, self._made = self._made, made
        known = before is not None and before.rows is made.rows and self.cursor < len(before.places)
        number = before.places[self.cursor] if before is not None and known else -1
        self._fill(made.places.index(number) if number >= 0 and number in made.places else None)

    def _fill(self, place: int | None = None) -> None:
        """Draw what is arranged, the cursor on a place; without one, on what it is on, wherever that is now."""
        made, listing, context = self._made, self.LISTING, self._given
        self.show_title(self._title_of(0 if made is None else made.shown))
        if made is None:
            self.show_rows(0, lambda _index: (), "arranging …")
            return

        @lru_cache(DRAWN_MAX)  # asked for a row's widths, and again for its line
        def cells(index: int) -> tuple[Cell, ...]:
            row = made.at(index)
            if isinstance(row, GroupHeading):
                return Cell(OPEN), Cell(f"{row.name}  {row.count}"), *(Cell(""),) * (len(self._columns) - 2)
            return listing.cells(row, context)

        def about(index: int) -> Subject | str:
            row = made.at(index)
            return row.name if isinstance(row, GroupHeading) else listing.subject(row)

        self.show_picks(len(made.places), cells, self._why, about, place)

    def at(self, index: int) -> R | GroupHeading:
        assert self._made is not None
        return self._made.at(index)

    def in_sight(self, index: int) -> Sequence[Field]:
        return () if isinstance(self.at(index), GroupHeading) else super().in_sight(index)

    def line_of(self, index: int, room: int) -> list[Cell]:
        row = self.at(index)
        if isinstance(row, GroupHeading):
            return cut((Cell(f"{OPEN} {row.name}  {row.count}", Tone.STRONG),), room)
        return super().line_of(index, room)

    @property
    def row(self) -> R | None:
        """The row under the cursor; None on a heading."""
        found = self.at(self.cursor) if self.count else None
        return None if isinstance(found, GroupHeading) else found


LEADS: Final = " →"
FILTERED_MAX: Final = 200_000


class DetailTable(PickTable):
    """Lines, any number; the cursor may stand on each."""

    headed = False

    def __init__(self, **settings: str) -> None:
        super().__init__((Column("line", 1),), "", **settings)
        self.about: Subject | None = None
        self._lines: Sequence[DetailLine] = ()
        self._asked_ns: Instant | None = None
        self._answer: Sequence[DetailLine] | TenureError | None = None
        self._words = ""
        self._asked = 0

    def ask(self, subject: Subject | None, look_up: LookUp) -> None:
        """Ask what is known of a subject. What is shown of the same subject stays until the answer has come."""
        if subject != self.about:
            self._answer = None
            self.cursor, self._key = 0, None
        self.about, self._asked_ns = subject, None
        self._asked += 1
        number = self._asked

        def take(found: Sequence[DetailLine] | TenureError) -> None:
            if number == self._asked and self.is_mounted:  # of several that were asked, the last counts
                self._answer = found
                self._fill()

        if subject is not None:
            look_up(subject, take)
        self._fill()

    def tick(self, state: ClusterState) -> None:
        if self._answer is not None or self.about is None:
            return
        now = state.clock.now.midpoint
        if self._asked_ns is None or now < self._asked_ns:  # the clock was set back
            self._asked_ns = now
        waited = now - self._asked_ns
        self.show_lines((), "asking …" if waited < SECOND else f"no answer for {short_span(waited)}")

    def narrow(self, words: str) -> None:
        self._words = words.strip()
        self._fill()

    def _fill(self) -> None:
        found = self._answer
        if isinstance(found, TenureError):
            hint = f" {found.hint}" if found.hint else ""
            self.show_lines((), f"no answer: {found.message}.{hint}")
        elif found is not None and self._words:
            looked = found[:FILTERED_MAX]
            lines = [looked[index] for index in matching([line.text.casefold() for line in looked], self._words)]
            lines = [line for line in lines if line.cells[0].tone is not Tone.STRONG]
            self.show_lines(lines, "nothing matches the filter")
        elif found is not None:
            self.show_lines(found, "nothing is known")
        else:
            self.show_lines((), "" if self.about is None else "asking …")

    def show_lines(self, lines: Sequence[DetailLine], nothing: str) -> None:
        self._lines = lines
        self.show_picks(len(lines), lambda index: (lines[index].cells,), nothing, lambda index: lines[index])

    @property
    def subject(self) -> Subject | None:
        return self._lines[self.cursor].subject if self._lines else None

    @property
    def text(self) -> str:
        return self._lines[self.cursor].text.strip() if self._lines else ""

    def line_of(self, index: int, room: int) -> list[Cell]:
        line = self._lines[index]
        if line.subject is None:
            return cut(line.cells, room)
        return [*cut(line.cells, room - len(LEADS)), Cell(LEADS, Tone.DIM)]
