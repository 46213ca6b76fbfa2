"""Time in a process without an agent: the same clock, asked and decided upon by whoever looks at it."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Final

import msgspec

from ..clock import ClockSample, MachineClock, read_clocks
from ..errors import BadTime
from ..interval import TimeInterval
from ..keys import KeyInUse, Signer
from ..signedtime import STALENESS_NS, ClockStatus, SignedTime
from ..sources.port import Source
from ..units import DAY, SECOND, Span, span_text
from .bounded_clock import PERIOD_NS, BoundedClock, Limits, ask
from .discipline import OWN_GROUP, Bound, Listed, Rules

SAMPLE_PERIOD_NS: Final[Span] = SECOND
"""How long what the sources said counts: then they are asked again."""

_RULES: Final = Rules(void_after_ns=SAMPLE_PERIOD_NS - 1, stall_ns=1000 * DAY, combine_ns=0)
"""Decided when a source was asked; who does not look for hours has not stalled."""
_ROUNDS_MAX: Final = 4
_SIGNINGS_MAX: Final = 3


class Look(msgspec.Struct, frozen=True, gc=False):
    """What a look at the clock says, and where it is from."""

    now: TimeInterval
    source: str
    status: ClockStatus
    assumed: bool
    cluster_time: bool
    clock_epoch: int
    boot_ns: int
    """CLOCK_BOOTTIME just before the clock was read: nothing in ``now`` is older than that."""


class EmbeddedTime(BoundedClock):
    """A NodeTime without an agent.

    The stand-in for a node's time agent where none runs. ``now`` and ``token`` keep the same rules as the agent's: what
    a source said ages by the drift bound, a token is signed at most once per period and handed out until the next, a
    step of the clock starts a new clock epoch. Thread-safe.
    """

    def __init__(
        self,
        machine: MachineClock,
        sources: Sequence[Source],
        signer: Signer | KeyInUse,
        *,
        radius_ns_max: Span,
        clock_epoch: int | None = None,
    ) -> None:
        """Take the sources in order of preference: the first that has a bound is used. Asks none of them yet."""
        listed = [Listed(source, group=OWN_GROUP) for source in sources]
        super().__init__(machine, signer, listed, Limits(radius_ns_max, rules=_RULES), clock_epoch)
        self._lock = Lock()
        self._ask_at = 0
        self._token: SignedTime | None = None
        self._token_boot_ns = 0

    def boot_ns(self) -> int:
        return self._clock.boot_ns()

    def sleep(self, span: Span) -> None:
        self._clock.sleep(span)

    def refusals(self) -> dict[str, str]:
        """Return why each source that was asked last has nothing to give, by its name."""
        return self._hearing.refusals()

    def look(self) -> Look:
        """Return the time and where it is from. Raises BadTime: no source, too wide for the policy, disrupted."""
        with self._lock:
            now, bound, reading = self._look()
            state = self._state
            return Look(
                now, bound.source, state.status, bound.assumed, bound.cluster_time, state.epoch, reading.boot_ns
            )

    def now(self) -> TimeInterval:
        """Return the interval that holds true time. Raises BadTime as ``look`` does."""
        with self._lock:
            return self._look()[0]

    def token(self) -> SignedTime:
        """Return the current signed time, at most one period old when it is looked up. Raises BadTime."""
        return self.now_and_token()[1]

    def now_and_token(self) -> tuple[TimeInterval, SignedTime]:
        """Return both, by one look at the clock. Raises BadTime."""
        with self._lock:
            for _ in range(_SIGNINGS_MAX):
                now, bound, reading = self._look()
                token = self._token
                if (
                    token is None
                    or token.clock_epoch != self._state.epoch
                    or reading.boot_ns - self._token_boot_ns >= PERIOD_NS
                ):
                    token = self._token = self._sign(now, bound, None)
                    self._token_boot_ns = reading.boot_ns
                # A process can be stopped between any two lines, also while it signs.
                age = self._clock.boot_ns() - self._token_boot_ns
                if age <= STALENESS_NS:
                    return now, token
        raise BadTime(
            "stalled",
            f"a signed time was {span_text(age)} old when it was ready; {span_text(STALENESS_NS)} are allowed",
            hint="this machine is overloaded or was paused; try again",
        )

    def token_over(self, digest: bytes) -> SignedTime:
        """Return a signed time over 32 bytes, made now. Raises BadTime."""
        with self._lock:
            now, bound, _ = self._look()
            return self._sign(now, bound, digest)

    def _look(self) -> tuple[TimeInterval, Bound, ClockSample]:
        reading = read_clocks(self._clock)
        if reading.boot_after_ns >= self._ask_at or self._moved(reading) is not None:
            reading = self._decide_anew()
        return *self._said(reading), reading

    def _decide_anew(self) -> ClockSample:
        """Ask the sources, in their order, until one has a bound; again, a few times, if the clocks moved meanwhile."""
        _, moved, _ = self._decide()
        for _ in range(_ROUNDS_MAX):
            self._hearing.forget()
            asked_ns = self._clock.boot_ns()
            unsteady = self._ask()
            reading, moved, _ = self._decide()
            if not (moved or unsteady):
                self._ask_at = asked_ns + SAMPLE_PERIOD_NS if self._state.bound or self._state.until_ns else 0
                if self._state.until_ns:
                    self._ask_at = min(self._ask_at, self._state.until_ns)
                return reading
        raise BadTime("clock-unsteady", f"the clock was set {_ROUNDS_MAX} times while it was read", hint="try again")

    def _ask(self) -> bool:
        """Return whether the clock was set while a source was asked."""
        for each in self._hearing.listed:
            said = self._note(each, self._asking(), ask(self._clock, each.source))
            if isinstance(said, Bound) or said.code == "clock-unsteady":
                return not isinstance(said, Bound)
        return False
