"""Leases that a session keeps between uses, until somebody asks for them or nobody has used them for long.

A lease on the shelf is held and renewed as every other, and nobody uses it: what its last user had in hand is over, and
no attempt under it is undecided. Whoever acquires its domain next gets it, with its fence, and no shard is asked.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from appliance.formats.lease import covers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from threading import RLock

    from appliance.formats.lease import Mode
    from appliance.formats.policy import PolicyNumbers
    from timeagent.clock import NodeTime

    from .held import Lease
    from .keeping import Keeping


class Shelf:
    """The leases of one session that are held and not in use. Shares the session's lock."""

    def __init__(self, time: NodeTime, policy: PolicyNumbers, keeping: Keeping, lock: RLock) -> None:
        """Have nothing."""
        self._time = time
        self._policy = policy
        self._keeping = keeping
        self._lock = lock
        self._since: dict[Lease, int] = {}
        """What is here, and since when, by the boot clock."""

    def __contains__(self, lease: Lease) -> bool:
        """Whether it is here."""
        return lease in self._since

    def put(self, lease: Lease) -> bool:
        """Keep a lease whose use is over, if it is one to be kept: it goes on as another object, its user's is over."""
        if lease.sticky_ns is None or lease.ended is not None or lease.recalled:
            return False
        with self._lock:
            kept = replace(lease, recall_listeners=())
            lease.ended = "relinquished"
            self._keeping.exchange(lease, kept)
            self._since[kept] = self._time.boot_ns()
        return True

    def take(self, wanted: Mapping[str, Mode]) -> tuple[list[Lease], list[Lease]]:
        """Return leases for all of these domains, or none; and those that have to be given back first.

        Whoever asks for a set that is here in part gives that part back first, so that all sets are taken in one order.
        Raises BadTime.
        """
        with self._lock:
            here = [lease for lease in self._since if lease.domain in wanted]
            if not here:
                return [], []
            now = self._time.now()
            found: dict[str, Lease] = {}
            for lease in here:
                usable = now.surely_before(lease.usable_until_ns(self._policy.holder_margin_ns))
                if usable and lease.ended is None and not lease.recalled and covers(lease.mode, wanted[lease.domain]):
                    found.setdefault(lease.domain, lease)
            self.drop(here)
            if len(found) < len(wanted):
                return [], here
            taken = [found[domain] for domain in sorted(found)]
            return taken, [lease for lease in here if lease not in taken]

    def idle(self) -> list[Lease]:
        """Return those that nobody has used for long, or that are lost; they are not here any more."""
        boot = self._time.boot_ns()
        with self._lock:
            over = [
                lease
                for lease, since in self._since.items()
                if lease.ended is not None or (lease.sticky_ns is not None and boot - since >= lease.sticky_ns)
            ]
            if over:
                self.drop(over)
        return over

    def drop(self, leases: Sequence[Lease]) -> None:
        """Have these here no longer: whoever calls this gives them back, or to a user."""
        with self._lock:
            for lease in leases:
                self._since.pop(lease, None)
