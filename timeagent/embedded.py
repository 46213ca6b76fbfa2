"""Time made in this process: one source, aged by the drift bound, signed with the node's time key.

The stand-in for a node's time agent where none runs. ``now`` and ``token`` keep the same rules as the agent's: a sample
ages by the drift bound, a token is signed at most once per period and handed out until the next, a step of the clock
starts a new clock epoch (timeagent/sampled.py). Thread-safe.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from threading import Lock
from typing import Final

from .clock import MachineClock, boot_id
from .errors import BadTime
from .interval import TimeInterval
from .keys import KeyInUse, Signer
from .sampled import Look, SampledClock
from .signedtime import SignedTime, TimeFlags, sign_time
from .sources.port import Sample, Source
from .units import MS, Span, span_text

TOKEN_PERIOD_NS: Final[Span] = 50 * MS
STALENESS_NS: Final[Span] = 250 * MS
"""How old a token of the page door may be when it is used; stated in the token."""

_SIGNINGS_MAX: Final = 3


class EmbeddedTime:
    """A NodeTime without an agent."""

    def __init__(
        self,
        machine: MachineClock,
        sources: Sequence[Source],
        signer: Signer | KeyInUse,
        *,
        radius_ns_max: Span,
        clock_epoch: int | None = None,
    ) -> None:
        """Take the sources in order of preference: the first that has a bound is used. Asks none of them yet.

        ``clock_epoch`` is the first epoch's name; without it, one that no other process of this node has.
        """
        self._machine = machine
        self._signer = signer
        self._lock = Lock()
        first = _epoch_of_process(machine) if clock_epoch is None else clock_epoch
        self._clock = SampledClock(machine, sources, radius_ns_max=radius_ns_max, clock_epoch=first)
        self._token: SignedTime | None = None
        self._token_boot_ns = 0
        self._sequence = 0

    def limit_radius(self, radius_ns_max: Span) -> None:
        """Refuse, from now on, time that is known less well than this."""
        with self._lock:
            self._clock.radius_ns_max = radius_ns_max

    @property
    def refusals(self) -> dict[str, str]:
        """Why each source that was asked last had nothing to give, by its name."""
        return self._clock.refusals

    def boot_ns(self) -> int:
        """Return CLOCK_BOOTTIME."""
        return self._machine.boot_ns()

    def sleep(self, span: Span) -> None:
        """Wait about that long."""
        self._machine.sleep(span)

    def sample(self) -> Sample:
        """Return the sample in use, fresh enough. Raises BadTime as ``now`` does."""
        with self._lock:
            return self._clock.look().sample

    def now(self) -> TimeInterval:
        """Return the interval that holds true time. Raises BadTime: no source, too wide for the policy, disrupted."""
        with self._lock:
            return self._clock.look().now

    def token(self) -> SignedTime:
        """Return the current signed time, at most one period old when it is looked up. Raises BadTime."""
        return self.now_and_token()[1]

    def now_and_token(self) -> tuple[TimeInterval, SignedTime]:
        """Return both, by one look at the clock. Raises BadTime."""
        with self._lock:
            for _ in range(_SIGNINGS_MAX):
                look = self._clock.look()
                token = self._token
                if (
                    token is None
                    or token.clock_epoch != look.clock_epoch
                    or look.boot_ns - self._token_boot_ns >= TOKEN_PERIOD_NS
                ):
                    token = self._token = self._sign(look, None)
                    self._token_boot_ns = look.boot_ns
                # A process can be stopped between any two lines, also while it signs.
                age = self._machine.boot_ns() - self._token_boot_ns
                if age <= STALENESS_NS:
                    return look.now, token
        raise BadTime(
            "stalled",
            f"a signed time was {span_text(age)} old when it was ready; {span_text(STALENESS_NS)} are allowed",
            hint="this machine is overloaded or was paused; try again",
        )

    def token_over(self, digest: bytes) -> SignedTime:
        """Return a signed time over 32 bytes, made now. Raises BadTime."""
        with self._lock:
            return self._sign(self._clock.look(), digest)

    def _sign(self, look: Look, digest: bytes | None) -> SignedTime:
        self._sequence += 1
        return sign_time(
            self._signer.signer_at(look.now.midpoint),
            look.now,
            status=look.sample.status,
            flags=TimeFlags.ASSUMED if look.sample.assumed else TimeFlags.NONE,
            staleness_ns=STALENESS_NS,
            sequence=self._sequence,
            clock_epoch=look.clock_epoch,
            digest=digest,
        )


def _epoch_of_process(machine: MachineClock) -> int:
    """Name the epoch for this boot, process and instant: sequence numbers begin anew in each."""
    names = f"{boot_id()} {os.getpid()} {machine.boot_ns()}"
    return int.from_bytes(hashlib.sha256(names.encode()).digest()[:7], "big")
