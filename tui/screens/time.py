"""The time: what every node's clock claims, on one axis; what this machine's sources have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..clock_agreement import agreement_words
from ..clocks import LEGEND, ClockRows, History, outside_words, source_lines
from ..overview import not_known
from ..subjects import ClockSubject, Tone
from ..tones import STYLES
from ..widgets.clock_table import ClockTable
from ..widgets.lines import ClockLine
from ..widgets.words_line import WordsLine
from .base import TopScreen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.widget import Widget

    from ..state import ClusterState


SIGNED_WORDS: Final = "each about its own middle: signed at different instants, they cannot be compared"


class TimeScreen(TopScreen):
    """Clocks; enter opens what one of them signed."""

    NAME = "time"
    FILTERS = True
    LEGENDS = (("Clocks", LEGEND),)
    AUTO_FOCUS = "#clocks"

    def __init__(self) -> None:
        """Know of no reading yet."""
        super().__init__()
        self._history = History()
        self._words = ""

    def parts(self) -> Iterable[Widget]:
        """The nodes and what they agree on, this machine's sources, the history of one clock."""
        return (
            ClockLine(),
            ClockTable(),
            WordsLine(id="agreed"),
            WordsLine(id="sources", cut=True),
            WordsLine(id="history"),
        )

    def draw(self, state: ClusterState) -> None:
        """Show a state."""
        self.query_one(ClockLine).show(state)
        rows = ClockRows(state, self._words)
        self._history.take(state.clocks, rows.agreed.common)
        table = self.query_one(ClockTable)
        count = str(len(state.clocks)) if state.cluster_id else "?"
        narrowed = f"   {rows.shown} shown, filter: {self._words}" if self._words else ""
        what = "each asked now; bars are widened by the round trip" if rows.asked else SIGNED_WORDS
        table.show_title(f"Clocks of nodes   {count}{narrowed}   {what}")
        table.show(rows, "nothing that a node signed was seen yet" if state.cluster_id else not_known(state))
        agreed = self.query_one("#agreed", WordsLine)
        agreed.display = bool(rows.agreed.compared)
        agreed.say((agreement_words(rows.agreed), STYLES[Tone.PLAIN if rows.agreed.good else Tone.BAD]))
        self._show_sources(state)
        self._show_history()

    def _show_sources(self, state: ClusterState) -> None:
        widget = self.query_one("#sources", WordsLine)
        who = "by its agent" if state.times is not None and state.times.agent else "asked for here; no agent runs"
        widget.show_title("This machine's sources" + ("" if state.times is None else f"   {who}"))
        lines = list(source_lines(state.times, max(20, widget.size.width - 2)))
        outside = outside_words(state)
        if outside[0]:
            lines.append(outside)
        widget.say_lines([((line, STYLES[tone]),) for line, tone in lines])

    def _show_history(self) -> None:
        subject = self.query_one(ClockTable).key
        lines = self._history.words(subject.node) if isinstance(subject, ClockSubject) else [""]
        self.query_one("#history", WordsLine).say_lines([(line,) for line in lines])

    def on_pick_table_moved(self) -> None:
        """Show the history of the clock under the cursor."""
        self._show_history()

    def filter_words(self, words: str) -> None:
        """Narrow the nodes."""
        self._words = words.strip()
        if self.state is not None:
            self.draw(self.state)
