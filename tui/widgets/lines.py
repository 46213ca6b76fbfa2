"""Lines of widgets, kept as long as they look the same; the lines of text: title, tabs, health, time, keys, the filter.

Text is drawn anew only where it says something else, laid out anew only where it needs other lines.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, ClassVar, Final

from rich.segment import Segment
from rich.style import Style as Drawn
from textual.binding import Binding, BindingType
from textual.events import Click
from textual.geometry import Region, Size
from textual.screen import Screen
from textual.scrollbar import ScrollBar
from textual.strip import Strip
from textual.style import Style
from textual.theme import Theme
from textual.widget import Widget
from textual.widgets import Input

from ..model.overview import badge_words, health, level_cell, time_words
from ..model.state import Cell, ClusterState, Tone
from ..model.tables import ELLIPSIS, cells_of, head_of, tail_of, width_of, wrapped_ranges

_COLOURS: Final = {
    "primary": ("#0178D4", "#004578"),
    "secondary": ("#004578", "#0178D4"),
    "warning": ("#FFA62B", "#8A5300"),
    "error": ("#D5556F", "#A3142F"),
    "success": ("#4EBF71", "#1B6E37"),
    "accent": ("#3FA9F5", "#0B63B0"),
    "foreground": ("#E0E0E0", "#1A1A1A"),
    "background": ("#121212", "#FAFAFA"),
    "surface": ("#1E1E1E", "#F0F0F0"),
    "panel": ("#242F38", "#DCE4EB"),
}
_TEXT_COLOURS: Final = {
    "text-success": ("#8AD4A1", "#17632F"),
    "text-warning": ("#FFC473", "#7D4A00"),
    "text-error": ("#F28FA3", "#9B1230"),
    "text-accent": ("#7CC7FF", "#0B5594"),
    "primary-muted": ("#0C304C", "#C9DDF0"),
}


def _theme(name: str, which: int) -> Theme:
    colours: dict[str, Any] = {of: pair[which] for of, pair in _COLOURS.items()}
    return Theme(name, dark=not which, variables={of: pair[which] for of, pair in _TEXT_COLOURS.items()}, **colours)


DARK, LIGHT = _theme("tenure-dark", 0), _theme("tenure-light", 1)


STYLES: Final = {
    Tone.PLAIN: "",
    Tone.GOOD: "bold $text-success",
    Tone.WARN: "bold $text-warning",
    Tone.BAD: "bold $text-error",
    Tone.DIM: "$foreground 70%",  # the theme's own $text-muted, as a style of text, is drawn in full white or black
    Tone.STRONG: "bold",
    Tone.ACCENT: "bold $text-accent",
}
LINES_KEPT_MAX: Final = 1_024
"""So many lines of a widget are kept: most keys show again what was seen before."""


def _segments(text: str, style: Drawn) -> list[Segment]:
    """Return text as it is drawn, spaces that lead by themselves: drawn as SVG, some readers would leave them out."""
    words = text.lstrip(" ")
    if not words or len(words) == len(text):
        return [Segment(text, style)]
    return [Segment(" " * (len(text) - len(words)), style), Segment(words, style)]


class KeptLines(Widget):
    """A widget of lines; one that looks as it did is not drawn again."""

    TONES: ClassVar[Mapping[Tone, str]] = STYLES

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._title = ""
        self._styles_kept: dict[str, Drawn] = {}
        self._drawn: dict[object, Strip] = {}
        self._drawn_width = -1
        self._framed: dict[int, tuple[Strip, Strip]] = {}
        """By the identity of a line, which another theme, focus or width makes anew: the line, and all of it."""

    def show_title(self, title: str) -> None:
        """Show a title in the border, plain text; the same one again costs nothing."""
        if title != self._title:
            self._title = title
            self.border_title = title.replace("[", "\\[")

    def notify_style_update(self) -> None:
        """Forget what was drawn in another theme, or with another focus."""
        super().notify_style_update()
        self._styles_kept.clear()
        self._drawn.clear()

    def style_of(self, tone: Tone) -> Drawn:
        known = self._styles_kept.get(tone)
        if known is None:
            whole, style = self.visual_style, self.TONES[tone]
            known = self._styles_kept[tone] = ((whole + Style.parse(style)) if style else whole).rich_style
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
        drawn_as = [each for piece in line if piece.text for each in _segments(piece.text, self.style_of(piece.tone))]
        size = width_of(line)
        if size < width:
            drawn_as.append(Segment(" " * (width - size), self.style_of(Tone.PLAIN)))
            size = width
        strip = Strip(drawn_as, size)
        return strip if size == width else strip.crop(0, width)


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
        looks = (
            crop,
            self.size,
            self.window_virtual_size,
            self.window_size,
            self.position,
            self.mouse_over,
            self.grabbed,
        )
        if looks not in self._drawn:
            self._drawn[looks] = super().render_lines(crop)
        return self._drawn[looks]


type Words = str | Cell


class WordsLine(KeptLines):
    """Lines of text. What is too wide goes on below; with ``cut`` it is cut."""

    DEFAULT_CSS = "WordsLine { height: auto; }"

    def __init__(self, words: str = "", *, id: str, title: str = "", cut: bool = False) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self.show_title(title)
        self._said: Sequence[tuple[Cell, ...]] = [(Cell(words),)]
        self._cut = cut
        self._laid: tuple[int, list[tuple[Cell, ...]]] = (-1, [])

    def say(self, *parts: Words) -> None:
        self.say_lines([parts])

    def say_lines(self, lines: Iterable[Iterable[Words]]) -> None:
        """Show lines. The same again costs nothing; laid out anew is only what needs more lines, or fewer."""
        said = [tuple(Cell(part) if isinstance(part, str) else part for part in parts) for parts in lines]
        if said == self._said:
            return
        width, before = self._laid
        self._said, self._laid = said, (-1, [])
        other = width < 0 or len(self._lines_in(width)) != len(before)
        self.refresh(layout=other and self.styles.is_auto_height)

    @property
    def content(self) -> str:
        return "\n".join("".join(cell.text for cell in line) for line in self._said)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        del container, viewport
        return len(self._lines_in(width))

    def render_line(self, y: int) -> Strip:
        width = self.content_size.width
        lines = self._lines_in(width)
        line = lines[y] if y < len(lines) else ()
        return self.kept(line, width, lambda: self.strip_of(line, width))

    def _lines_in(self, width: int) -> list[tuple[Cell, ...]]:
        if self._laid[0] != width:
            self._laid = width, [piece for line in self._said for piece in self._in_width(line, max(1, width))]
        return self._laid[1]

    def _in_width(self, line: tuple[Cell, ...], width: int) -> Iterator[tuple[Cell, ...]]:
        text = "".join(cell.text for cell in line)
        if cells_of(text) <= width:
            yield line
        elif self._cut:
            kept = head_of(text, width - 1).rstrip()
            yield (*_slice(line, 0, len(kept)), Cell(ELLIPSIS, line[-1].tone))
        else:
            for first, end in wrapped_ranges(text, width):
                yield tuple(_slice(line, first, end))


def _slice(line: Sequence[Cell], first: int, end: int) -> Iterator[Cell]:
    at = 0
    for cell in line:
        piece = cell.text[max(0, first - at) : max(0, end - at)]
        if piece:
            yield Cell(piece, cell.tone)
        at += len(cell.text)


PATH_WIDTH_MIN: Final = 12
"""A piece of a path that is shorter says nothing."""


WRITE: Final = "WRITE"


class TitleBar(WordsLine):
    def __init__(self) -> None:
        super().__init__(id="title")

    def show(self, state: ClusterState, *, paused: bool) -> None:
        """Show a state's title. The path gives way where there is no room."""
        badge = "PAUSED" if paused else badge_words(state)
        cluster = f" {state.cluster_id[:8]}" if state.cluster_id else ""
        left = f"tenure top{cluster}"
        right = f"{badge}  {time_words(state)}"
        room = max(0, self.size.width - cells_of(left) - cells_of(right) - 4)
        path = state.path
        if cells_of(path) > room:
            path = "…" + tail_of(path, room - 1) if room >= PATH_WIDTH_MIN else ""
        gap = " " * max(1, self.size.width - cells_of(left) - cells_of(right) - cells_of(path) - 2)
        tone = Tone.GOOD if badge == "LIVE" else Tone.WARN
        time = f"  {time_words(state)}"
        self.say(Cell(left, Tone.STRONG), "  ", Cell(path, Tone.DIM), gap, Cell(badge, tone), time)


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
        parts: list[Words] = []
        for (_, name, _, _), tab in zip(self._entries, tabs, strict=True):
            parts += [Cell(tab, Tone.ACCENT if name == self._name else Tone.DIM), " "]
        right = f"{head.text}{pad} {badge}".rstrip()
        gap = " " * max(0, room - self._ends[-1] - len(right))
        tone = Tone.WARN if badge == WRITE else Tone.DIM
        self.say(*parts, gap, head, *((f"{pad} ", Cell(badge, tone)) if badge else ()))

    async def on_click(self, event: Click) -> None:
        place = bisect_right(self._ends, event.x - self.gutter.left)
        if place < len(self._entries):
            await self.app.run_action(f"go('{self._entries[place][1]}')")


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
        parts: list[Words] = [" "]
        self._places = []
        at = 1
        for binding in sorted(found.values(), key=lambda binding: binding.action not in FIRST):
            shown, what = self.app.get_key_display(binding), binding.description
            size = cells_of(shown) + 1 + cells_of(what)
            if at + size <= self.size.width:
                self._places.append((at, at + size, binding.key))
                parts += [Cell(f"{shown} ", Tone.ACCENT), what + " " * GAP]
                at += size + GAP
        self.say(*parts)

    def on_click(self, event: Click) -> None:
        for first, end, key in self._places:
            if first <= event.x < end:
                self.app.simulate_key(key)


class FilterField(Input):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "Keep the filter"),
        Binding("escape", "screen.unfilter", "No filter"),
    ]

    def __init__(self) -> None:
        super().__init__(placeholder="words in domain, holder, purpose; !word: not this one", id="filter")
