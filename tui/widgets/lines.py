"""Lines of widgets, kept with what stands around them; the lines of text: title, tabs, health, time, keys, the filter.

The library asks a dozen styles for each line that it draws anew. Where lines are kept, that takes longer than all the
rest: here it is asked once for all lines, until a style, the width or the theme is another. Text is drawn anew only
where it says something else, laid out anew only where it needs other lines.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import accumulate, chain, starmap
from typing import ClassVar, Final

from rich.segment import Segment
from rich.style import Style as Drawn
from textual.binding import Binding, BindingType
from textual.color import Color
from textual.events import Click
from textual.filter import LineFilter
from textual.geometry import Region, Size
from textual.screen import Screen
from textual.scrollbar import ScrollBar, ScrollBarRender
from textual.strip import Strip
from textual.style import Style
from textual.widget import Widget
from textual.widgets import Input

from appliance.doctor.check import not_well

from ..model.overview import badge_words, health, level_cell, numbers_words, time_line, time_words
from ..model.state import Cell, ClusterState, Tone
from ..model.tables import ELLIPSIS, cells_of, head_of, tail_of, wrapped_ranges

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


type TextPart = str | tuple[str, str]
"""Text, plain or with a style of the theme."""
type TextLine = tuple[TextPart, ...]


class WordsLine(KeptLines):
    """Lines of parts. What is too wide goes on below; with ``cut`` it is cut."""

    DEFAULT_CSS = "WordsLine { height: auto; }"

    def __init__(self, words: str = "", *, id: str, cut: bool = False) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._said: tuple[TextLine, ...] = ((words,),)
        self._cut = cut
        self._laid: tuple[int, list[TextLine]] = (-1, [])

    def say(self, *parts: TextPart) -> None:
        self.say_lines([parts])

    def say_cells(self, lines: Sequence[Sequence[Cell]]) -> None:
        self.say_lines([[styled(cell) for cell in line] for line in lines])

    def say_lines(self, lines: Sequence[Sequence[TextPart]]) -> None:
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

    @property
    def content(self) -> str:
        return "\n".join("".join(map(_text, parts)) for parts in self._said)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        del container, viewport
        return len(self._lines_in(width))

    def line_in(self, y: int, width: int) -> Strip:
        lines = self._lines_in(width)
        parts = lines[y] if y < len(lines) else ()

        def line() -> Strip:
            styled_parts = ((_text(part), style("" if isinstance(part, str) else part[1])) for part in parts)
            return Strip(chain.from_iterable(starmap(segments, styled_parts))).adjust_cell_length(width, style())

        style = self.style_in
        return self.kept(parts, width, line)

    def _lines_in(self, width: int) -> list[TextLine]:
        if self._laid[0] != width:
            self._laid = width, [line for parts in self._said for line in self._in_width(parts, max(1, width))]
        return self._laid[1]

    def _in_width(self, parts: TextLine, width: int) -> Iterator[TextLine]:
        text = "".join(map(_text, parts))
        if cells_of(text) <= width:
            yield parts
        elif self._cut:
            kept = head_of(text, width - 1).rstrip()
            yield (*_slice(parts, 0, len(kept)), (ELLIPSIS, "" if isinstance(parts[-1], str) else parts[-1][1]))
        else:
            for first, end in wrapped_ranges(text, width):
                yield tuple(_slice(parts, first, end))


def _text(part: TextPart) -> str:
    return part if isinstance(part, str) else part[0]


def _slice(parts: Sequence[TextPart], first: int, end: int) -> list[TextPart]:
    found: list[TextPart] = []
    at = 0
    for part in parts:
        text = _text(part)
        piece = text[max(0, first - at) : max(0, end - at)]
        if piece:
            found.append(piece if isinstance(part, str) else (piece, part[1]))
        at += len(text)
    return found


PATH_WIDTH_MIN: Final = 12
"""A piece of a path that is shorter says nothing."""


WRITE: Final = "WRITE"
REASONS_SHOWN: Final = 5
"""``--once`` prints them all, and `status`, each with its way out."""


class TitleBar(WordsLine):
    """Which cluster, where, live or not, what time."""

    def __init__(self) -> None:
        super().__init__(id="title")

    def show(self, state: ClusterState, *, paused: bool) -> None:
        """Show a state's title. The path gives way where there is no room."""
        badge = "PAUSED" if paused else badge_words(state)
        style = "$text-success" if badge == "LIVE" else "$text-warning"
        cluster = f" {state.cluster_id[:8]}" if state.cluster_id else ""
        left = f"tenure top{cluster}"
        right = f"{badge}  {time_words(state)}"
        room = max(0, self.size.width - cells_of(left) - cells_of(right) - 4)
        path = state.path
        if cells_of(path) > room:
            path = "…" + tail_of(path, room - 1) if room >= PATH_WIDTH_MIN else ""
        gap = " " * max(1, self.size.width - cells_of(left) - cells_of(right) - cells_of(path) - 2)
        self.say((left, "bold"), "  ", (path, MUTED), gap, (badge, f"bold {style}"), "  ", time_words(state))


class TabLine(WordsLine):
    """The screens by number and name, the one that is seen in brackets; at the right whether it is healthy, in a word.

    A click goes to a screen, as its number does.
    """

    def __init__(self, name: str, entries: Sequence[tuple[str, str, str, str]], *, writable: bool) -> None:
        """``entries``: key, name, title and place of each screen; ``name``: of the one that is seen."""
        super().__init__(id="tabs")
        self._name = name
        self._entries = entries
        self._badge = WRITE if writable else "read-only"
        self._ends: list[int] = []
        """At which column each tab ends, with the space behind it."""

    def show(self, state: ClusterState) -> None:
        """Show a state's health beside the tabs. Without room, spaces go, then that nothing can be changed."""
        head = level_cell(health(state))
        room, badge = self.size.width, self._badge
        for pad in (" ", ""):
            tabs = [
                f"[{key} {title}]" if name == self._name else f"{pad}{key} {title}{pad}"
                for key, name, title, _ in self._entries
            ]
            self._ends = list(accumulate(len(tab) + 1 for tab in tabs))
            if self._ends[-1] + len(head.text) + len(pad) + 1 + len(badge) <= room:
                break
        else:
            badge = "" if badge != WRITE else badge
        parts: list[str | tuple[str, str]] = []
        for (_, name, _, _), tab in zip(self._entries, tabs, strict=True):
            parts += [(tab, "bold $text-accent" if name == self._name else MUTED), " "]
        right = f"{head.text}{pad} {badge}".rstrip()
        gap = " " * max(0, room - self._ends[-1] - len(right))
        style = "bold $text-warning" if badge == WRITE else MUTED
        self.say(*parts, gap, styled(head), *((f"{pad} ", (badge, style)) if badge else ()))

    async def on_click(self, event: Click) -> None:
        place = bisect_right(self._ends, event.x - self.gutter.left)
        if place < len(self._entries):
            await self.app.run_action(f"go('{self._entries[place][1]}')")


class HealthLine(WordsLine):
    """Is it healthy: symbol, word, numbers; then the reasons, and what to do about the worst."""

    def __init__(self) -> None:
        super().__init__(id="health")

    def show(self, state: ClusterState) -> None:
        checks = health(state)
        head = level_cell(checks)
        lines: list[list[str | tuple[str, str]]] = [[styled(head), "  ", numbers_words(state)]]
        wrong = not_well(checks)
        if wrong:
            first, *rest = [check.words for check in wrong[:REASONS_SHOWN]]
            if len(wrong) > REASONS_SHOWN:
                rest.append(f"and {len(wrong) - REASONS_SHOWN} more")
            lines += [[styled(Cell(first, head.tone))], [f"→ {wrong[0].way_out}"]]  # before what may find no room
            lines += [[" · ".join(rest)]] if rest else []
        self.say_lines(lines)


class ClockLine(WordsLine):
    """This node's interval, its radius, source and status."""

    def __init__(self) -> None:
        super().__init__(id="clock")
        self.show_title("Time")

    def show(self, state: ClusterState) -> None:
        self.say(*(styled(cell) for cell in time_line(state)))


FIRST: Final = ("help", "quit")
"""What stays where there is no room for all; the rest is in the help."""
GAP: Final = 2


class KeysLine(WordsLine):
    """Key and meaning, as many as there is room for. A click is as the key."""

    def __init__(self) -> None:
        super().__init__(id="keys-line", cut=True)
        self._places: list[tuple[int, int, str]] = []

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._changed)

    def on_resize(self) -> None:
        self._changed(self.screen)

    def _changed(self, screen: Screen[object]) -> None:
        """Say each action that is to be shown once; those that stay without room first."""
        if not self.is_attached or screen is not self.screen:
            return
        found: dict[str, Binding] = {}
        for each in screen.active_bindings.values():
            if each.binding.show:
                found.setdefault(each.binding.action, each.binding)
        parts: list[TextPart] = [" "]
        self._places = []
        at = 1
        for binding in sorted(found.values(), key=lambda binding: binding.action not in FIRST):
            shown, what = self.app.get_key_display(binding), binding.description
            size = cells_of(shown) + 1 + cells_of(what)
            if at + size <= self.size.width:
                self._places.append((at, at + size, binding.key))
                parts += [(f"{shown} ", "bold $text-accent"), what + " " * GAP]
                at += size + GAP
        self.say(*parts)

    def on_click(self, event: Click) -> None:
        for first, end, key in self._places:
            if first <= event.x < end:
                self.app.simulate_key(key)


class FilterField(Input):
    """Filters while it is typed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "Keep the filter"),
        Binding("escape", "screen.unfilter", "No filter"),
    ]

    def __init__(self) -> None:
        super().__init__(placeholder="words in domain, holder, purpose; !word: not this one", id="filter")
