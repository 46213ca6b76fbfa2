"""The colours, and the lines of text: title, tabs, health, time, keys, the filter."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, ClassVar, Final

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Click
from textual.screen import Screen
from textual.theme import Theme
from textual.widget import Widget
from textual.widgets import Input, Static

from timeagent.console import printable

from ..model.overview import badge_words, health, level_cell, time_words
from ..model.state import Cell, ClusterState, Tone
from ..model.tables import cells_of, tail_of

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


class Titled(Widget):
    """A widget whose border may have a title."""

    _title = ""

    def show_title(self, title: str) -> None:
        """Show a title in the border, plain text; the same one again costs nothing."""
        if title != self._title:
            self._title = title
            self.border_title = printable(title).replace("[", "\\[")


type Words = str | Cell


class WordsLine(Static, Titled):
    """Lines of text. What is too wide goes on below; with ``cut`` it is cut."""

    DEFAULT_CSS = "WordsLine.cut { text-wrap: nowrap; text-overflow: ellipsis; }"
    ALLOW_SELECT = False

    def __init__(self, words: str = "", *, id: str, title: str = "", cut: bool = False) -> None:  # noqa: A002 - Textual's word
        super().__init__(Content(printable(words)), id=id, classes="cut" if cut else None)
        self.show_title(title)
        self._said: list[list[Words]] = [[words]]

    def say(self, *parts: Words) -> None:
        self.say_lines([parts])

    def say_lines(self, lines: Iterable[Iterable[Words]]) -> None:
        """Show lines. The same again costs nothing; laid out anew is only what needs more lines, or fewer."""
        said = [list(parts) for parts in lines]
        if said == self._said:
            return
        self._said = said
        content = Content.assemble(*(part for line in said for part in ("\n", *map(_styled, line))))[1:]
        self.update(content, layout=self.styles.is_auto_height and self._is_taller(content))

    def _is_taller(self, content: Content) -> bool:
        """Return whether other lines need more room, or less."""
        rules, width = self.styles.get_rules(), self.content_size.width
        return not width or self.visual.get_height(rules, width) != content.get_height(rules, width)

    @property
    def words(self) -> str:
        return str(self.content)


def _styled(words: Words) -> str | tuple[str, str]:
    return printable(words) if isinstance(words, str) else (printable(words.text), STYLES[words.tone])


PATH_WIDTH_MIN: Final = 12
"""A piece of a path that is shorter says nothing."""


WRITE: Final = "WRITE"


class TitleBar(WordsLine):
    def __init__(self) -> None:
        super().__init__(id="title")

    def show(self, state: ClusterState, *, paused: bool) -> None:
        """Show a state's title. The path gives way where there is no room."""
        badge, time = "PAUSED" if paused else badge_words(state), f"  {time_words(state)}"
        left = f"tenure top {state.cluster_id[:8]}".rstrip()
        free, path = self.size.width - 2 - sum(map(cells_of, (left, badge, time))), state.path
        room = max(0, free - 2)
        if cells_of(path) > room:
            path = "…" + tail_of(path, room - 1) if room >= PATH_WIDTH_MIN else ""
        gap = " " * max(1, free - cells_of(path))
        tone = Tone.GOOD if badge == "LIVE" else Tone.WARN
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
