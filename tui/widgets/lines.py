"""The lines around the tables: title, health, time."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from appliance.doctor.check import not_well

from ..cellwidth import cells_of, tail_of
from ..health import health, level_cell
from ..overview import badge_words, numbers_words, time_line, time_words
from ..subjects import Cell
from ..tones import MUTED, styled
from .words_line import WordsLine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.events import Click

    from ..screens.registry import Entry
    from ..state import ClusterState

PATH_WIDTH_MIN: Final = 12
"""A piece of a path that is shorter says nothing."""


WRITE: Final = "WRITE"
REASONS_SHOWN: Final = 5
"""``--once`` prints them all, and `status`, each with its way out."""


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
        left = f"tenure top{cluster}"
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
    """The screens by number and name, the one that is seen in brackets; at the right whether it is healthy, in a word.

    A click goes to a screen, as its number does.
    """

    def __init__(self, name: str, entries: Sequence[Entry], *, writable: bool) -> None:
        """Take the screens, and the name of the one that is seen."""
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
            tabs = [f"{pad}{entry.key} {entry.title}{pad}" for entry in self._entries]
            tabs = [
                f"[{tab.strip()}]" if entry.name == self._name else tab
                for entry, tab in zip(self._entries, tabs, strict=True)
            ]
            self._ends = list(accumulate(len(tab) + 1 for tab in tabs))
            if self._ends[-1] + len(head.text) + len(pad) + 1 + len(badge) <= room:
                break
        else:
            badge = "" if badge != WRITE else badge
        parts: list[str | tuple[str, str]] = []
        for entry, tab in zip(self._entries, tabs, strict=True):
            parts += [(tab, "bold $text-accent" if entry.name == self._name else MUTED), " "]
        right = f"{head.text}{pad} {badge}".rstrip()
        gap = " " * max(0, room - self._ends[-1] - len(right))
        style = "bold $text-warning" if badge == WRITE else MUTED
        self.say(*parts, gap, styled(head), *((f"{pad} ", (badge, style)) if badge else ()))

    async def on_click(self, event: Click) -> None:
        """Go to the screen whose tab is clicked."""
        place = bisect_right(self._ends, event.x - self.gutter.left)
        if place < len(self._entries):
            await self.app.run_action(f"go('{self._entries[place].name}')")


class HealthLine(WordsLine):
    """Is it healthy: symbol, word, numbers; then the reasons, and what to do about the worst."""

    def __init__(self) -> None:
        """Show nothing yet."""
        super().__init__(id="health")

    def show(self, state: ClusterState) -> None:
        """Show a state's health."""
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
        """Show nothing yet."""
        super().__init__(id="clock")
        self.show_title("Time")

    def show(self, state: ClusterState) -> None:
        """Show a state's clock."""
        self.say(*(styled(cell) for cell in time_line(state)))
