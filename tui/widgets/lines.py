"""The lines around the tables: title, health, time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from textual.content import Content
from textual.widgets import Static

from ..health import LEVEL_CELLS, health
from ..overview import badge_words, numbers_words, time_words
from ..words import Cell, Tone, clock_words

if TYPE_CHECKING:
    from ..state import ClusterState

_STYLES: Final = {
    Tone.PLAIN: "",
    Tone.GOOD: "bold $text-success",
    Tone.WARN: "bold $text-warning",
    Tone.BAD: "bold $text-error",
    Tone.DIM: "$text-muted",
}


PATH_WIDTH_MIN: Final = 12
"""A piece of a path that is shorter says nothing."""


REASONS_SHOWN: Final = 5
"""``--once`` prints them all."""


def _styled(cell: Cell) -> tuple[str, str]:
    return cell.text, _STYLES[cell.tone]


class TitleBar(Static):
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
        room = max(0, self.size.width - len(left) - len(right) - len("  read-only  ") - 2)
        path = state.path
        if len(path) > room:
            path = "…" + path[len(path) - room + 1 :] if room >= PATH_WIDTH_MIN else ""
        gap = " " * max(1, self.size.width - len(left) - len(right) - len(path) - len("  read-only  "))
        self.update(
            Content.assemble(
                (left, "bold"),
                "  ",
                (path, "$text-muted"),
                gap,
                ("read-only  ", "$text-muted"),
                (badge, f"bold {style}"),
                right.removeprefix(badge),
            )
        )


class HealthLine(Static):
    """Is it healthy: symbol, word, numbers; then the reasons."""

    def __init__(self) -> None:
        """Show nothing yet."""
        super().__init__(id="health")

    def show(self, state: ClusterState) -> None:
        """Show a state's health."""
        judged = health(state)
        head = LEVEL_CELLS[judged.level]
        parts: list[str | tuple[str, str]] = [_styled(head), "  ", numbers_words(state)]
        if judged.reasons:
            parts += ["\n", _styled(Cell(judged.reasons[0], head.tone))]
            rest = list(judged.reasons[1:REASONS_SHOWN])
            if len(judged.reasons) > REASONS_SHOWN:
                rest.append(f"and {len(judged.reasons) - REASONS_SHOWN} more")
            parts += [f" · {reason}" for reason in rest]
        self.update(Content.assemble(*parts))


class ClockLine(Static):
    """This node's interval, its radius, source and status."""

    def __init__(self) -> None:
        """Show nothing yet."""
        super().__init__(id="clock")
        self.border_title = "Time"

    def show(self, state: ClusterState) -> None:
        """Show a state's clock."""
        self.update(Content.assemble(*(_styled(cell) for cell in clock_words(state.clock))))
