"""Simulated time of one node: offset, drift, steps, standing still, and bounds that lie.

``believed`` is a function of true time. An honest clock's interval holds true time; a lying one's does not, and nothing
in P1 to P3 may depend on it. Signed times come as from an agent: one a period by the page door, used until the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timeagent.errors import BadTime
from timeagent.signedtime import ClockStatus, SignedTime, TimeFlags, sign_time
from timeagent.units import MS, TimeInterval

if TYPE_CHECKING:
    from tests.simulation.scheduler import Scheduler
    from timeagent.keys import Signer
    from timeagent.units import Instant, Span

TOKEN_PERIOD_NS = 50 * MS
STALENESS_NS = 250 * MS


class SimulatedTime:
    """A NodeTime of one machine. Several processes of that machine share it."""

    def __init__(
        self,
        scheduler: Scheduler,
        signer: Signer,
        *,
        offset_ns: Span = 0,
        drift_ppm: int = 0,
        radius_ns: Span = 5 * MS,
    ) -> None:
        self._scheduler = scheduler
        self._signer = signer
        self.radius_ns = radius_ns
        self.drift_ppm = drift_ppm
        self._anchor_true = scheduler.now
        self._anchor_believed = scheduler.now + offset_ns
        self._boot = scheduler.now - 10**12
        self._frozen_at: Instant | None = None
        self._frozen_boot = 0
        self.silent = False
        """No bound can be given: now() raises BadTime."""
        self.epoch = 1
        self._sequence = 0
        self._token: SignedTime | None = None
        self._token_boot = 0

    # -- what it is made to do -----------------------------------------------------------------------------------------

    def believed_ns(self) -> Instant:
        """Return the midpoint, without taking a step."""
        if self._frozen_at is not None:
            return self._frozen_at
        passed = self._scheduler.now - self._anchor_true
        return self._anchor_believed + passed + passed * self.drift_ppm // 1_000_000

    def _boot_now(self) -> int:
        return self._scheduler.now - self._boot if self._frozen_at is None else self._frozen_boot

    def set_forward(self, span: Span) -> None:
        """Step: forward, or back when negative. Whether its bounds now lie is up to who calls this."""
        believed = self.believed_ns() + span
        self._anchor_true, self._anchor_believed = self._scheduler.now, believed
        if self._frozen_at is not None:
            self._frozen_at = believed
        self.epoch += 1
        self._token = None

    def rekey(self, signer: Signer) -> None:
        """Sign with another key from now on."""
        self._signer = signer
        self._token = None

    def freeze(self) -> None:
        """Stand still: a virtual machine that is paused may find all its clocks stopped."""
        self._frozen_boot = self._boot_now()
        self._frozen_at = self.believed_ns()

    def thaw(self, *, right: bool) -> None:
        """Go on from where it stopped, or, ``right``, set to what it would show. Boot time never catches up."""
        if self._frozen_at is None:
            return
        self._boot = self._scheduler.now - self._frozen_boot
        self._anchor_true, self._anchor_believed, self._frozen_at = self._scheduler.now, self._frozen_at, None
        if right:
            self.set_forward(self._scheduler.now - self._anchor_believed)

    def of_process(self) -> SimulatedTime:
        """Return the time as one process has it: by the page of its node's agent, the same for all."""
        return self

    def honest(self) -> bool:
        """Whether the interval holds true time now."""
        return abs(self.believed_ns() - self._scheduler.now) <= self.radius_ns

    # -- the port ------------------------------------------------------------------------------------------------------

    def now(self) -> TimeInterval:
        self._scheduler.operations += 1
        self._scheduler.step("now")
        if self._frozen_at is not None or self.silent:
            return self._interval()
        # As _interval() does, without the calls: most steps of most actors begin with a look at the clock.
        passed = self._scheduler.now - self._anchor_true
        believed = self._anchor_believed + passed + passed * self.drift_ppm // 1_000_000
        return TimeInterval(believed - self.radius_ns, believed + self.radius_ns)

    def _interval(self) -> TimeInterval:
        if self.silent:
            raise BadTime("no-time", "no time source has a bound", hint="wait")
        believed = self.believed_ns()
        return TimeInterval(believed - self.radius_ns, believed + self.radius_ns)

    def boot_ns(self) -> int:
        """Boot time stands still with the rest of a frozen machine's clocks; it never steps."""
        self._scheduler.operations += 1
        return self._scheduler.now - self._boot if self._frozen_at is None else self._frozen_boot

    def sleep(self, span: Span) -> None:
        self._scheduler.operations += 1
        if span > 0:
            self._scheduler.sleep(span)

    def token(self) -> SignedTime:
        self._scheduler.operations += 1
        self._scheduler.step("token")
        return self.page()

    def now_and_token(self) -> tuple[TimeInterval, SignedTime]:
        return self.now(), self.page()

    def page(self) -> SignedTime:
        """Return what the page of the node's agent shows, without taking a step."""
        boot = self._boot_now()
        if self._token is None or boot - self._token_boot >= TOKEN_PERIOD_NS or self.silent:
            self._token = self._sign(None)
            self._token_boot = boot
        return self._token

    def token_over(self, digest: bytes) -> SignedTime:
        self._scheduler.operations += 1
        self._scheduler.step("sign")
        return self._sign(digest)

    def _sign(self, digest: bytes | None) -> SignedTime:
        self._sequence += 1
        return sign_time(
            self._signer,
            self._interval(),
            status=ClockStatus.SYNCHRONIZED,
            flags=TimeFlags.NONE,
            staleness_ns=STALENESS_NS,
            sequence=self._sequence,
            clock_epoch=self.epoch,
            digest=digest,
        )
