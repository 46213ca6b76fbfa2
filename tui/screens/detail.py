"""What is known of one subject, opened from any identifier; from its lines one goes on to what they name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.widgets import Static

from timeagent.errors import LeaseholdError
from timeagent.units import SECOND

from ..subjects import Details, Line
from ..widgets.detail_table import DetailTable
from ..words import Tone, matching, short_span
from .base import TopScreen

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from textual.widget import Widget

    from timeagent.units import Instant

    from ..state import ClusterState
    from ..subjects import Subject

FILTERED_MAX = 200_000


class DetailScreen(TopScreen):
    """Lines about a subject. They come from a thread: until then, and where none comes, it says since when."""

    FILTERS = True
    AUTO_FOCUS = "#details"

    def __init__(self, subject: Subject, trail: str) -> None:
        """Name the subject; it is asked about when the screen is seen. ``trail``: the way here."""
        super().__init__()
        self.about = subject
        self._trail = trail
        self._asked_ns: Instant | None = None
        self._found: Details | LeaseholdError | None = None
        self._words = ""

    def parts(self) -> Iterable[Widget]:
        """The way here, and the lines."""
        yield Static(id="trail")
        yield DetailTable(id="details")

    def on_mount(self) -> None:
        """Ask."""
        self.query_one("#trail", Static).update(self._trail)
        self.ask()

    def ask(self) -> None:
        """Ask what is known now, or as of the instant that is looked at."""
        self._asked_ns = None
        self.top.look_up(self.about, self._take)

    def _take(self, found: Details | LeaseholdError) -> None:
        self._found = found
        if self.is_mounted:
            self._fill()

    def draw(self, state: ClusterState) -> None:
        """Say how long there has been no answer."""
        if self._asked_ns is None:
            self._asked_ns = state.clock.now.midpoint
        if self._found is None:
            waited = state.clock.now.midpoint - self._asked_ns
            text = "asking …" if waited < SECOND else f"no answer for {short_span(waited)}"
            self.query_one(DetailTable).show_lines((), text)

    def _fill(self) -> None:
        found = self._found
        if isinstance(found, LeaseholdError):
            hint = f" {found.hint}" if found.hint else ""
            self.query_one(DetailTable).show_lines((), f"no answer: {found.message}.{hint}")
        elif found is not None:
            self.query_one(DetailTable).show_lines(_narrowed(found.lines, self._words), "nothing matches the filter")

    def filter_words(self, words: str) -> None:
        """Narrow the lines."""
        self._words = words.strip()
        self._fill()

    def subject(self) -> Subject | None:
        """Return what the line under the cursor leads to."""
        return self.query_one(DetailTable).subject

    def copied(self) -> str:
        """Return the identifier that the line leads to; else the line."""
        subject, line = self.subject(), self.query_one(DetailTable).line
        if subject is not None:
            return subject.identifier
        return "" if line is None else "".join(cell.text for cell in line.cells).strip()

    def action_refresh_now(self) -> None:
        """Ask again."""
        self.ask()


def _narrowed(lines: Sequence[Line], words: str) -> Sequence[Line]:
    """Return the lines that match, and what stands above them."""
    if not words:
        return lines
    looked = [lines[index] for index in range(min(len(lines), FILTERED_MAX))]
    found = matching(["".join(cell.text for cell in line.cells).casefold() for line in looked], words)
    return [looked[index] for index in found if looked[index].cells[0].tone is not Tone.STRONG]
