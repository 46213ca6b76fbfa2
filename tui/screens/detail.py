"""What is known of one subject, opened from any identifier; from its lines one goes on to what they name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..widgets.detail_table import DetailTable
from ..widgets.words_line import WordsLine
from .base import TopScreen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.widget import Widget

    from ..state import ClusterState
    from ..subjects import Subject


class DetailScreen(TopScreen):
    """Lines about a subject."""

    FILTERS = True
    AUTO_FOCUS = "#details"

    def __init__(self, subject: Subject, trail: str) -> None:
        """Name the subject; it is asked about when the screen is seen. ``trail``: the way here."""
        super().__init__()
        self.about = subject
        self._trail = trail

    def parts(self) -> Iterable[Widget]:
        """The way here, and the lines."""
        yield WordsLine(self._trail, id="trail", cut=True)
        yield DetailTable(id="details")

    def on_mount(self) -> None:
        """Ask."""
        self.ask()

    def ask(self) -> None:
        """Ask what is known now, or as of the instant that is looked at."""
        self.query_one(DetailTable).ask(self.about, self.top.look_up)

    def draw(self, state: ClusterState) -> None:
        """Say how long there has been no answer."""
        self.query_one(DetailTable).tick(state)

    def filter_words(self, words: str) -> None:
        """Narrow the lines."""
        self.query_one(DetailTable).narrow(words)

    def subject(self) -> Subject | None:
        """Return what the line under the cursor leads to."""
        return self.query_one(DetailTable).subject

    def copied(self) -> str:
        """Return the identifier that the line leads to; else the line."""
        subject, line = self.subject(), self.query_one(DetailTable).line
        if subject is not None:
            return subject.identifier
        return "" if line is None else "".join(cell.text for cell in line.cells).strip()
