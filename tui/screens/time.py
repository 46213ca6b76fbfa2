"""The time: what every node's clock claims, on one axis; what this machine's sources have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..clocks import CLOCK_COLUMNS, History, axis_words, clock_rows, outside_words, source_lines
from ..overview import not_known
from ..subjects import ClockSubject
from ..tones import STYLES
from ..widgets.lines import ClockLine
from ..widgets.pick_table import PickTable
from ..widgets.words_line import WordsLine
from .base import TopScreen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.widget import Widget

    from ..state import ClusterState, NodeClock


class TimeScreen(TopScreen):
    """Clocks; enter opens what one of them signed."""

    NAME = "time"
    FILTERS = True
    AUTO_FOCUS = "#clocks"

    def __init__(self) -> None:
        """Know of no reading yet."""
        super().__init__()
        self._history = History()
        self._words = ""

    def parts(self) -> Iterable[Widget]:
        """The nodes, this machine's sources, the history of one clock."""
        return (
            ClockLine(),
            PickTable(CLOCK_COLUMNS, "Clocks", id="clocks"),
            WordsLine(id="sources", cut=True),
            WordsLine(id="history"),
        )

    def draw(self, state: ClusterState) -> None:
        """Show a state."""
        self._history.take(state.clocks)
        self.query_one(ClockLine).show(state)
        clocks = self._narrowed(state)
        rows = clock_rows(clocks, state.spans.radius_ns_max if state.spans else None)
        table = self.query_one("#clocks", PickTable)
        count = str(len(state.clocks)) if state.cluster_id else "?"
        narrowed = f"   {len(clocks)} shown, filter: {self._words}" if self._words else ""
        table.show_title(f"Clocks of nodes   {count}{narrowed}   {axis_words(clocks)}")
        nothing = "nothing that a node signed was seen yet" if state.cluster_id else not_known(state)
        table.show_picks(len(rows), rows.__getitem__, nothing, lambda index: ClockSubject(clocks[index].node))
        self._show_sources(state)
        self._show_history()

    def _narrowed(self, state: ClusterState) -> list[NodeClock]:
        return [
            each
            for each in state.clocks
            if all(word in f"{each.node} {each.status}" for word in self._words.casefold().split())
        ]

    def _show_sources(self, state: ClusterState) -> None:
        widget = self.query_one("#sources", WordsLine)
        who = "its agent" if state.times is not None and state.times.agent else "asked for here; no agent runs"
        widget.show_title("This machine's sources" + ("" if state.times is None else f"   by {who}"))
        lines = list(source_lines(state.times, max(20, widget.size.width - 2)))
        outside = outside_words(state)
        if outside[0]:
            lines.append(outside)
        widget.say_lines([((line, STYLES[tone]),) for line, tone in lines])

    def _show_history(self) -> None:
        subject = self.query_one("#clocks", PickTable).key
        words = self._history.words(subject.node) if isinstance(subject, ClockSubject) else ""
        self.query_one("#history", WordsLine).say(words)

    def on_pick_table_moved(self) -> None:
        """Show the history of the clock under the cursor."""
        self._show_history()

    def filter_words(self, words: str) -> None:
        """Narrow the nodes."""
        self._words = words.strip()
        if self.state is not None:
            self.draw(self.state)
