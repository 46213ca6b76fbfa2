"""The lines about a subject; those that lead somewhere are marked, and opened with enter.

They come from a thread. Until they have come, and where none come, it says since when.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from timeagent.errors import TenureError
from timeagent.units import SECOND

from ..model.columns import Column, cut
from ..model.subjects import Cell, Tone
from ..model.words import matching, short_span
from .row_table import PickTable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from timeagent.units import Instant

    from ..model.columns import Field
    from ..model.state import ClusterState
    from ..model.subjects import DetailLine, Subject

    type LookUp = Callable[[Subject, Callable[[Sequence[DetailLine] | TenureError], None]], None]
    """Asks, and calls back on the screen's thread."""


LEADS: Final = " →"
FILTERED_MAX: Final = 200_000


class DetailTable(PickTable):
    """Lines, any number; the cursor may stand on each."""

    headed = False

    def __init__(self, **settings: str) -> None:
        super().__init__((Column("line", 1),), "", **settings)
        self.about: Subject | None = None
        self._lines: Sequence[DetailLine] = ()
        self._asked_ns: Instant | None = None
        self._answer: Sequence[DetailLine] | TenureError | None = None
        self._words = ""
        self._asked = 0

    def ask(self, subject: Subject | None, look_up: LookUp) -> None:
        """Ask what is known of a subject. What is shown of the same subject stays until the answer has come."""
        if subject != self.about:
            self._answer = None
            self.cursor = 0
        self.about, self._asked_ns = subject, None
        self._asked += 1
        number = self._asked

        def take(found: Sequence[DetailLine] | TenureError) -> None:
            if number == self._asked and self.is_mounted:  # of several that were asked, the last counts
                self._answer = found
                self._asked_ns = None
                self._fill()

        if subject is not None:
            look_up(subject, take)
        self._fill()

    def tick(self, state: ClusterState) -> None:
        if self._answer is not None or self.about is None:
            return
        now = state.clock.now.midpoint
        if self._asked_ns is None:
            self._asked_ns = now
        waited = now - self._asked_ns
        self.show_lines((), "asking …" if waited < SECOND else f"no answer for {short_span(waited)}")

    def narrow(self, words: str) -> None:
        """Show only the lines that match."""
        self._words = words.strip()
        self._fill()

    def _fill(self) -> None:
        found = self._answer
        if isinstance(found, TenureError):
            hint = f" {found.hint}" if found.hint else ""
            self.show_lines((), f"no answer: {found.message}.{hint}")
        elif found is not None:
            nothing = "nothing matches the filter" if self._words else "nothing is known"
            self.show_lines(_narrowed(found, self._words), nothing)
        else:
            self.show_lines((), "" if self.about is None else "asking …")

    def show_lines(self, lines: Sequence[DetailLine], nothing: str) -> None:
        """Show lines. ``nothing``: why there are none."""
        self._lines = lines
        self.show_picks(len(lines), lambda _index: (), nothing, lambda index: index)

    @property
    def subject(self) -> Subject | None:
        return self._lines[self.cursor].subject if self._lines else None

    @property
    def line(self) -> DetailLine | None:
        return self._lines[self.cursor] if self._lines else None

    @property
    def lines(self) -> Sequence[DetailLine]:
        """All lines that are shown, also those out of sight."""
        return self._lines

    def fields_at(self, row: int) -> Sequence[Field]:
        return (tuple(self._lines[row].cells),)

    def line_of(self, index: int, room: int) -> list[Cell]:
        """Return a line, cut where it does not fit."""
        line = self._lines[index]
        if line.subject is None:
            return cut(line.cells, room)
        return [*cut(line.cells, room - len(LEADS)), Cell(LEADS, Tone.DIM)]


def _narrowed(lines: Sequence[DetailLine], words: str) -> Sequence[DetailLine]:
    """Return the lines that match, without headings."""
    if not words:
        return lines
    looked = [lines[index] for index in range(min(len(lines), FILTERED_MAX))]
    found = matching(["".join(cell.text for cell in line.cells).casefold() for line in looked], words)
    return [looked[index] for index in found if looked[index].cells[0].tone is not Tone.STRONG]
