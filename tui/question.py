"""One question that is asked again and again: its newest answer, and how long there has been none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from timeagent.errors import TenureError
from timeagent.units import SECOND

from .state import Freshness, Reach

if TYPE_CHECKING:
    from collections.abc import Callable

    from timeagent.clock import MachineClock
    from timeagent.units import Instant, Span

SILENT_NS: Final[Span] = SECOND
"""An answer that is due for longer than this is none."""


class AskedQuestion[T]:
    """A question with its newest answer. One thread asks; any thread may look."""

    def __init__(self, name: str, period_ns: Span, clock: MachineClock, ask: Callable[[], T]) -> None:
        """Ask nothing yet. ``ask`` raises TenureError where there is no answer."""
        self.name = name
        self.period_ns = period_ns
        self.answer: T | None = None
        self.error: TenureError | None = None
        """Why the question had no answer when it was last asked to the end."""
        self._clock = clock
        self._ask = ask
        self._asked_ns: Instant | None = None
        self._answered_ns: Instant | None = None
        self._since_ns = clock.boot_ns()

    def put(self) -> None:
        """Ask once. Blocks as long as the answer takes."""
        self._asked_ns = self._clock.boot_ns()
        try:
            answer = self._ask()
        except TenureError as problem:
            self.error = problem
        else:
            self.answer = answer
            self._answered_ns = self._since_ns = self._clock.boot_ns()
            self.error = None
        self._asked_ns = None

    def freshness(self) -> Freshness:
        """Say how fresh the newest answer is. Never blocks."""
        now = self._clock.boot_ns()
        asked, answered, error = self._asked_ns, self._answered_ns, self.error
        age = None if answered is None else now - answered
        if error is not None:
            return Freshness(Reach.SILENT, age, now - self._since_ns, error.message, error.hint)
        if asked is not None and now - asked > SILENT_NS:
            return Freshness(Reach.SILENT, age, now - asked)
        if age is None:
            return Freshness(Reach.WAITING)
        return Freshness(Reach.ANSWERS, age)
