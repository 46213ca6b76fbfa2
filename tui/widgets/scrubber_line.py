"""The line of a whole record, with where one looks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..scrubber import Ground, ground_of
from .words_line import WordsLine

if TYPE_CHECKING:
    from auditor.replay.timeline import Timeline
    from timeagent.units import Instant


class ScrubberLine(WordsLine):
    """What lies under the cursor is counted once for a record and a width."""

    def __init__(self) -> None:
        """Show nothing yet."""
        super().__init__(id="scrubber")
        self._ground: tuple[Timeline, int, Ground] | None = None

    def show(self, timeline: Timeline, instant: Instant) -> int:
        """Show a record and an instant in it. Returns how many findings are where the cursor is."""
        width = self.content_size.width
        if self._ground is None or self._ground[0] is not timeline or self._ground[1] != width:
            self._ground = timeline, width, ground_of(timeline, timeline.start_ns, timeline.end_ns, width)
        drawn = self._ground[2].with_cursor(instant)
        self.say_cells([drawn.axis, drawn.density])
        return drawn.findings_here
