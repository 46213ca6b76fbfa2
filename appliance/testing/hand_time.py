"""A NodeTime that only moves when it is told to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from timeagent.interval import TimeInterval
from timeagent.keys import Signer
from timeagent.signedtime import ClockStatus, SignedTime, TimeFlags, sign_time
from timeagent.units import MS, Instant, Span


class HandTime:
    """Hand-driven time of one node: only sleeping, ``advance`` and setting the midpoint move it."""

    def __init__(self, signer: Signer, start_ns: Instant, radius_ns: Span = 5 * MS) -> None:
        """Begin at an instant, known to a radius. ``signer``: the node's time key."""
        self.signer = signer
        self.midpoint_ns = start_ns
        self.radius_ns = radius_ns
        self.staleness_ns = 250 * MS
        self.status = ClockStatus.SYNCHRONIZED
        self.clock_epoch = 1
        self._boot_ns = 1_000 * MS
        self._sequence = 0

    def now(self) -> TimeInterval:
        """Return the interval of now."""
        return TimeInterval.around(self.midpoint_ns, self.radius_ns)

    def boot_ns(self) -> int:
        """Return nanoseconds since boot."""
        return self._boot_ns

    def advance(self, span: Span) -> None:
        """Let time pass."""
        assert span >= 0, "set midpoint_ns to step back"
        self.midpoint_ns += span
        self._boot_ns += span

    @contextmanager
    def set_back(self, span: Span) -> Iterator[None]:
        """Show an earlier time for a while, as a clock does that was set wrongly and then right again."""
        self.midpoint_ns -= span
        yield
        self.midpoint_ns += span

    @contextmanager
    def known_to(self, radius: Span) -> Iterator[None]:
        """Know the time no better than this for a while, as a node does whose guard against that has failed."""
        before, self.radius_ns = self.radius_ns, radius
        yield
        self.radius_ns = before

    def sleep(self, span: Span) -> None:
        """Let time pass, as who waits does."""
        if span > 0:
            self.advance(span)

    def token(self) -> SignedTime:
        """Return a signed time of now."""
        return self._sign(None)

    def now_and_token(self) -> tuple[TimeInterval, SignedTime]:
        """Return both."""
        return self.now(), self.token()

    def token_over(self, digest: bytes) -> SignedTime:
        """Return a signed time of now, over a digest."""
        return self._sign(digest)

    def _sign(self, digest: bytes | None) -> SignedTime:
        self._sequence += 1
        return sign_time(
            self.signer,
            self.now(),
            status=self.status,
            flags=TimeFlags.NONE,
            staleness_ns=self.staleness_ns,
            sequence=self._sequence,
            clock_epoch=self.clock_epoch,
            digest=digest,
        )
