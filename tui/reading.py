"""Which record is replayed: a copy as it was, or as it would have been if something had been otherwise.

What is drawn of it belongs together: the events, and the bars of the leases that those tell of. While a copy is read
otherwise, what was shown stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from timeagent.errors import TenureError

from .gantt import LeaseBars
from .lensing import Switches, lens_words

if TYPE_CHECKING:
    from auditor.explain.archive import Archive
    from auditor.replay.gathering import WhatIf
    from auditor.replay.judging import Changes
    from auditor.replay.timeline import Timeline
    from auditor.rules.finding import Finding
    from timeagent.units import Instant

GONE: Final = "nothing can be read from the copy any more"


class Reading:
    """One copy, and how it is looked at."""

    def __init__(self, archive: Archive) -> None:
        """Look at it as it was."""
        self.archive = archive
        self.switches = Switches()
        self._lens: WhatIf | None = None
        self._changes: Changes | None = None
        self._problem = ""
        self._judged: tuple[int, tuple[Finding, ...]] | None = None
        """Up to which finding, and those: -1 at the end of the copy, where there may be more of no instant."""
        self._show_as_it_was()

    def _show_as_it_was(self) -> None:
        self.timeline: Timeline = self.archive.timeline
        self.bars = LeaseBars(self.archive.leases.within)

    def turn(self, switches: Switches) -> WhatIf | None:
        """Look at it as switches say. Returns what it has to be read through for that; None: it is as it was."""
        self.switches, self._changes, self._problem = switches, None, ""
        lens = switches.lens()
        self._lens = lens if lens.any else None
        if self._lens is None:
            self._show_as_it_was()
        return self._lens

    def take(self, lens: WhatIf, found: tuple[Timeline, Changes] | TenureError) -> bool:
        """Take what reading it through a lens came to. Returns whether that is still wanted."""
        from auditor.explain.traces import Traces  # noqa: PLC0415 - the auditor is loaded by who asks for it

        if lens is not self._lens:
            return False
        if isinstance(found, TenureError):
            self._problem = found.message
        elif self.archive.timeline.events and not found[0].events:
            self._problem = GONE
        else:
            self.timeline, self._changes = found
            self.bars = LeaseBars(Traces(self.timeline).within)
            return True
        self._show_as_it_was()
        return True

    @property
    def words(self) -> str:
        """Say what is otherwise, and what that changes; empty where it is as it was."""
        if self._lens is None:
            return ""
        return lens_words(self._lens, self._changes, self._problem)

    def findings_by(self, instant: Instant) -> tuple[Finding, ...]:
        """Return the findings of the audit whose evidence was complete at an instant; at the end all there are."""
        timeline = self.archive.timeline
        at_end = instant >= timeline.end_ns
        count = -1 if at_end else timeline.findings_by(instant)
        if self._judged is None or self._judged[0] != count:
            found = self.archive.audit.findings if at_end else timeline.findings_until(instant)
            self._judged = count, tuple(found)
        return self._judged[1]
