"""Time made in this process: one source, aged by the drift bound, signed with the node's time key.

The stand-in for a node's time agent where none runs. ``now`` and ``token`` keep the same rules as the agent's: a sample
ages by the drift bound, a token is signed at most once per period and handed out until the next, a step of the clock
starts a new clock epoch. Thread-safe.
"""

from __future__ import annotations

import hashlib
from threading import Lock
from typing import TYPE_CHECKING, Final

from .clock import boot_id
from .errors import BadTime
from .interval import TimeInterval
from .signedtime import TimeFlags, sign_time
from .units import MS, SECOND, span_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .clock import MachineClock
    from .keys import Signer
    from .signedtime import SignedTime
    from .sources.port import Sample, Source
    from .units import Span

DRIFT_PPM: Final = 200
"""How fast a machine's clock may run away between samples, in parts per million. Measured slews reach 145."""

SAMPLE_PERIOD_NS: Final[Span] = SECOND
TOKEN_PERIOD_NS: Final[Span] = 50 * MS
STALENESS_NS: Final[Span] = 250 * MS
"""How old a token of the page door may be when it is used; stated in the token."""

STEP_NS: Final[Span] = 50 * MS
"""CLOCK_REALTIME moving against CLOCK_BOOTTIME by more than this between two looks is a step, not a slew."""


class EmbeddedTime:
    """A NodeTime without an agent."""

    def __init__(
        self, machine: MachineClock, sources: Sequence[Source], signer: Signer, *, radius_ns_max: Span
    ) -> None:
        """Take the sources in order of preference: the first that has a bound is used. Asks none of them yet."""
        self._machine = machine
        self._sources = sources
        self._signer = signer
        self._radius_ns_max = radius_ns_max
        self._lock = Lock()
        self._sample: Sample | None = None
        self._token: SignedTime | None = None
        self._token_boot_ns = 0
        self._sequence = 0
        self._epoch = int.from_bytes(hashlib.sha256(boot_id().encode()).digest()[:7], "big")
        self._difference: int | None = None
        self.refusals: dict[str, str] = {}
        """Why each source that was asked last had nothing to give, by its name."""

    def boot_ns(self) -> int:
        """Return CLOCK_BOOTTIME."""
        return self._machine.boot_ns()

    def sleep(self, span: Span) -> None:
        """Wait about that long."""
        self._machine.sleep(span)

    def sample(self) -> Sample:
        """Return the sample in use, fresh enough. Raises BadTime when no source has a bound."""
        with self._lock:
            return self._fresh_sample()

    def now(self) -> TimeInterval:
        """Return the interval that holds true time. Raises BadTime: no source, or wider than the policy allows."""
        with self._lock:
            return self._now()

    def token(self) -> SignedTime:
        """Return the current signed time, at most one period old. Raises BadTime."""
        with self._lock:
            now = self._now()
            boot = self._machine.boot_ns()
            epoch = self._token.clock_epoch if self._token else None
            if self._token is None or epoch != self._epoch or boot - self._token_boot_ns >= TOKEN_PERIOD_NS:
                self._token = self._sign(now, None)
                self._token_boot_ns = boot
            return self._token

    def token_over(self, digest: bytes) -> SignedTime:
        """Return a signed time over 32 bytes, made now. Raises BadTime."""
        with self._lock:
            return self._sign(self._now(), digest)

    def _sign(self, now: TimeInterval, digest: bytes | None) -> SignedTime:
        sample = self._fresh_sample()
        self._sequence += 1
        return sign_time(
            self._signer,
            now,
            status=sample.status,
            flags=TimeFlags.ASSUMED if sample.assumed else TimeFlags.NONE,
            staleness_ns=STALENESS_NS,
            sequence=self._sequence,
            clock_epoch=self._epoch,
            digest=digest,
        )

    def _now(self) -> TimeInterval:
        boot, real = self._machine.boot_ns(), self._machine.realtime_ns()
        difference = real - boot
        if self._difference is not None and abs(difference - self._difference) > STEP_NS:
            self._epoch += 1
            self._sample = None
        self._difference = difference
        sample = self._fresh_sample()
        aged = sample.offset.widened(max(0, boot - sample.boot_ns) * DRIFT_PPM // 1_000_000)
        now = aged.shifted(real)
        if now.radius > self._radius_ns_max:
            raise BadTime(
                "radius-too-wide",
                f"the clock is known to {span_text(now.radius)} (source {sample.source}); "
                f"the policy allows {span_text(self._radius_ns_max)}",
                hint="wait for the clock to settle, or mend its time service",
            )
        return now

    def _fresh_sample(self) -> Sample:
        if self._sample is not None and self._machine.boot_ns() - self._sample.boot_ns < SAMPLE_PERIOD_NS:
            return self._sample
        self.refusals = {}
        for source in self._sources:
            try:
                self._sample = source.sample()
            except BadTime as problem:
                self.refusals[source.name] = str(problem)
            else:
                return self._sample
        self._sample = None
        reasons = "; ".join(f"{name}: {reason}" for name, reason in self.refusals.items())
        raise BadTime(
            "no-time",
            f"no time source has a bound ({reasons})",
            hint="run chrony, or state assumed_radius_ns in the policy",
        )
