"""``Held``: what a holder of leases of its own knows of them, for a command that is run under them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from timeagent.errors import BadTime

from ..session.held import LossReason
from ..session.renewal import grace_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from appliance.formats.policy import PolicyNumbers
    from appliance.session.held import Lease
    from timeagent.clock import Clock
    from timeagent.units import Instant, Span


class Held:
    """Leases of one acquire as their holder reckons with them. Asks only the clock."""

    def __init__(self, leases: Sequence[Lease], clock: Clock, policy: PolicyNumbers) -> None:
        """Reckon from now on. Raises BadTime."""
        self._leases = leases
        self._clock = clock
        self._policy = policy
        self._counted = self._expiry_ns(), clock.now().latest, clock.boot_ns()

    def _expiry_ns(self) -> Instant:
        return min(lease.usable_until_ns(self._policy.holder_margin_ns) for lease in self._leases)

    def left_ns(self) -> Span:
        """Return how long they may still be used, were none renewed any more.

        Between two renewals time passes at least as fast as the boot clock says: a clock that is set back makes no
        lease longer, and one that has no bound just now, no lease endless.
        """
        expiry, (before, latest, boot) = self._expiry_ns(), self._counted
        counted = latest + self._clock.boot_ns() - boot
        try:
            now = self._clock.now().latest
        except BadTime:
            return expiry - counted
        if expiry == before:
            return expiry - max(now, counted)
        self._counted = expiry, now, self._clock.boot_ns()
        return expiry - now

    def grace_ns(self) -> Span:
        """Return how long before their end the command is told to end; SIGKILL comes at half of it."""
        term = min(*(lease.term_ns for lease in self._leases), self._policy.lease_term_max_ns)
        return grace_ns(term, self._policy)

    def lost(self) -> str | None:
        """Say which lease is over against its holder's will, and why."""
        lease = self._lost()
        if lease is None:
            return None
        return f"the lease on {lease.domain!r} is {lease.ended}" + (f" ({lease.loss})" if lease.loss else "")

    def _lost(self) -> Lease | None:
        return next((lease for lease in self._leases if lease.ended is not None), None)

    def in_doubt(self) -> bool:
        """Whether this clock and a shard's contradict each other: then nobody here knows when the expiry is."""
        loss = None if (lease := self._lost()) is None else lease.loss
        return loss is not None and loss.ended == "suspect" and loss.reason is LossReason.CLOCK_UNSAFE
