"""How far an audit is: a bar, messages per second, and the time that is left. Only on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from timeagent.clock import SystemClock
from timeagent.console import Progress
from timeagent.units import SECOND

if TYPE_CHECKING:
    from timeagent.clock import AgentClock

_WIDTH: Final = 20


class AuditProgress:
    """Shows the progress of one audit. Time left is reckoned from the parts that are done."""

    def __init__(self, clock: AgentClock | None = None) -> None:
        """Begin now."""
        self._clock = clock or SystemClock()
        self._begun_ns = self._clock.monotonic_ns()
        self._line = Progress("audit")

    def show(self, done: int, total: int, messages: int, part: str) -> None:
        """Say how far it is."""
        spent_ns = max(1, self._clock.monotonic_ns() - self._begun_ns)
        self._line.show(done, progress_text(done, total, messages, spent_ns, part))

    def done(self) -> None:
        """Clear the line."""
        self._line.done()


def progress_text(done: int, total: int, messages: int, spent_ns: int, part: str) -> str:
    """Return what follows the number of parts that are done."""
    filled = _WIDTH * done // max(1, total)
    left = spent_ns * (total - done) // max(1, done) // SECOND
    minutes, seconds = divmod(left, 60)
    bar = "#" * filled + "." * (_WIDTH - filled)
    rate = messages * SECOND // spent_ns
    return f"of {total} parts [{bar}] {messages:,} messages, {rate:,}/s, {minutes}:{seconds:02d} left, {part}"
