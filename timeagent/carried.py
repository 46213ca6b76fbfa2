"""What was decided, carried from turn to turn: the short way of a turn in which there is nothing to decide.

Between two decisions, a second apart, a turn only reads the clocks, ages the bound, signs and publishes. That is done
twenty times a second and mostly with cold caches, where each function and each object costs many times what it costs in
a loop. So the decision makes ready what stays the same, and the rest is one function without calls of its own but to
clocks, key and page. It publishes the bytes that the whole turn would publish, or declines, and then the whole turn
decides: tests/property/test_carried.py holds one against the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .discipline import FreeRunning, Synchronized
from .movement import PAUSE_NS, ClockSample
from .signedtime import PAGE_BODY, PAGE_HEAD, PAGE_PREFIX
from .tokenfile import STALE_NS

if TYPE_CHECKING:
    from .clock import AgentClock
    from .discipline import Rules
    from .keys import Signer
    from .signedtime import SignedTime
    from .tokenfile import PageSink
    from .units import Span

_MILLION = 1_000_000


def unchanged_until_ns(state: Synchronized | FreeRunning, rules: Rules) -> int:
    """Return the CLOCK_BOOTTIME up to which this state stays what it is, whatever time does (discipline.decide)."""
    age_max = rules.void_after_ns
    if isinstance(state, Synchronized):
        age_max = min(age_max, rules.fresh_ns)
    return state.bound.at.boot_ns + age_max


class Carried:
    """One decision. Thread-compatible; the agent's lock is held around ``turn``."""

    __slots__ = ("_at", "_boot", "_clock", "_drift", "_fields", "_high", "_low", "_page", "_sign", "_slewed", "_until")

    def __init__(
        self,
        ports: tuple[AgentClock, Signer, PageSink],
        boot: bytes,
        state: Synchronized | FreeRunning,
        signed: SignedTime,
        rules: Rules,
        until_ns: int,
    ) -> None:
        """Take the decision, and the signed time that was made with it: status, flags, epoch and key are its own.

        ``until_ns``: of CLOCK_BOOTTIME; from then on there is something to decide, or there may be before.
        """
        self._clock, signer, self._page = ports
        self._sign = signer.sign_exactly
        self._boot = boot
        self._low, self._high = state.bound.ahead.earliest, state.bound.ahead.latest
        self._at = state.bound.at.boot_ns
        self._slewed = state.bound.at.slewed_ns
        self._drift = 0 if state.bound.assumed else rules.drift_ppm
        self._fields = (signed.status, signed.flags, signed.staleness_ns, signed.clock_epoch, signed.key_id)
        self._until = min(until_ns - 1, unchanged_until_ns(state, rules))

    def turn(
        self, last: ClockSample, slewed_ns: Span, drift_ppm: int, sequence: int
    ) -> tuple[ClockSample, Span] | None:
        """Publish; return the reading and all slews up to it. None, with nothing done: there is something to decide.

        ``last``, ``slewed_ns``: the reading before, and all slews up to it.
        """
        clock = self._clock
        boot = clock.boot_ns()
        real = clock.realtime_ns()
        mono = clock.monotonic_ns()
        raw = clock.raw_ns()
        after = clock.boot_ns()
        last_boot = last.boot_ns
        stopped = boot - mono - last_boot + last.monotonic_ns
        # Far below what is a step or a suspend: what is near is looked at with care, by the whole turn.
        if (
            after > self._until
            or after - boot > PAUSE_NS
            or not -PAUSE_NS <= real - boot - last.real_ns + last_boot <= PAUSE_NS
            or not -PAUSE_NS <= stopped <= PAUSE_NS
        ):
            return None
        # movement.movement and movement.excess_slew_ns.
        last_after, passed = last.boot_after_ns, raw - last.raw_ns
        elapsed = after - last_boot
        longest = stopped + after - boot
        shortest = stopped - last_after + last_boot
        slow = boot - last_after - passed - max(0, longest)
        fast = elapsed - passed - max(0, shortest)
        slew = max(abs(slow), abs(fast))
        if slew > -(-elapsed * drift_ppm // _MILLION):
            slewed_ns += slew - (-slew * drift_ppm // _MILLION)
        # discipline.Bound.aged.
        low, high, drift = self._low, self._high, self._drift
        if drift:
            grown = slewed_ns - self._slewed - (-(after - self._at) * drift // _MILLION)
            low -= grown
            high += grown
        earliest, latest = boot + low, after + high
        status, flags, staleness, epoch, key = self._fields
        # Midpoint and radius as TimeInterval has them.
        body = PAGE_BODY.pack(
            *PAGE_HEAD,
            status,
            flags,
            (earliest + latest) // 2,
            (latest - earliest + 1) // 2,
            staleness,
            sequence,
            epoch,
            key,
        )
        token = body + self._sign(PAGE_PREFIX + body)
        self._page.put((self._boot, boot, raw, low, high, drift, status, epoch, STALE_NS, 0, token))
        return ClockSample(boot, real, mono, raw, after), slewed_ns
