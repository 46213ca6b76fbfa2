"""The lines around the tables: title, health, time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..cellwidth import cells_of, tail_of
from ..health import LEVEL_CELLS, health
from ..overview import badge_words, numbers_words, time_line, time_words
from ..tones import MUTED, styled
from ..words import Cell
from .words_line import WordsLine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..screens.registry import Entry
    from ..state import ClusterState

PATH_WIDTH_MIN: Final = 12
"""A piece of a path that is shorter says nothing."""


REASONS_SHOWN: Final = 5
"""``--once`` prints them all."""


class TitleBar(WordsLine):
    """Which cluster, where, live or not, what time."""

    def __init__(self) -> None:
        """Show nothing yet."""
        super().__init__(id="title")

    def show(self, state: ClusterState, *, paused: bool) -> None:
        """Show a state's title. The path gives way where there is no room."""
        badge = "PAUSED" if paused else badge_words(state)
        style = "$text-success" if badge == "LIVE" else "$text-warning"
        cluster = f" {state.cluster_id[:8]}" if state.cluster_id else ""
        left = f"leasehold top{cluster}"
        right = f"{badge}  {time_words(state)}"
        room = max(0, self.size.width - cells_of(left) - cells_of(right) - 4)
        path = state.path
        if cells_of(path) > room:
            path = "…" + tail_of(path, room - 1) if room >= PATH_WIDTH_MIN else ""
        gap = " " * max(1, self.size.width - cells_of(left) - cells_of(right) - cells_of(path) - 2)
        self.say(
            (left, "bold"),
            "  ",
            (path, MUTED),
            gap,
            (badge, f"bold {style}"),
            "  ",
            time_words(state),
        )


class TabLine(WordsLine):
    """The screens by their numbers, the one that is seen in brackets; at the right whether it is healthy, in a word."""

    def __init__(self, name: str, entries: Sequence[Entry], *, writable: bool) -> None:
        """Take the screens, and the name of the one that is seen."""
        super().__init__(id="tabs")
        self._name = name
        self._entries = entries
        self._badge = "WRITE" if writable else "read-only"

    def show(self, state: ClusterState) -> None:
        """Show a state's health beside the tabs. Titles give way where there is no room."""
        head = LEVEL_CELLS[health(state).level]
        right = f"{head.text}  {self._badge}"
        tabs = [self._tab(entry, entry.title) for entry in self._entries]
        if sum(map(len, tabs)) + len(tabs) + len(right) > self.size.width:
            tabs = [self._tab(entry, entry.title if entry.name == self._name else "") for entry in self._entries]
        parts: list[str | tuple[str, str]] = []
        for entry, tab in zip(self._entries, tabs, strict=True):
            parts += [(tab, "bold $text-accent" if entry.name == self._name else MUTED), " "]
        gap = " " * max(1, self.size.width - sum(map(len, tabs)) - len(tabs) - len(right))
        badge = "bold $text-warning" if self._badge == "WRITE" else MUTED
        self.say(*parts, gap, styled(head), "  ", (self._badge, badge))

    def _tab(self, entry: Entry, title: str) -> str:
        text = f"{entry.key} {title}".rstrip()
        return f"[{text}]" if entry.name == self._name else f" {text} "


class HealthLine(WordsLine):
    """Is it healthy: symbol, word, numbers; then the reasons."""

    def __init__(self) -> None:
        """Show nothing yet."""
        super().__init__(id="health")

    def show(self, state: ClusterState) -> None:
        """Show a state's health."""
        judged = health(state)
        head = LEVEL_CELLS[judged.level]
        lines: list[list[str | tuple[str, str]]] = [[styled(head), "  ", numbers_words(state)]]
        if judged.reasons:
            rest = list(judged.reasons[1:REASONS_SHOWN])
            if len(judged.reasons) > REASONS_SHOWN:
                rest.append(f"and {len(judged.reasons) - REASONS_SHOWN} more")
            more = (" ", f"· {' · '.join(rest)}") if rest else ()
            lines.append([styled(Cell(judged.reasons[0], head.tone)), *more])
        self.say_lines(lines)


class ClockLine(WordsLine):
    """This node's interval, its radius, source and status."""

    def __init__(self) -> None:
        """Show nothing yet."""
        super().__init__(id="clock")
        self.show_title("Time")

    def show(self, state: ClusterState) -> None:
        """Show a state's clock."""
        self.say(*(styled(cell) for cell in time_line(state)))
