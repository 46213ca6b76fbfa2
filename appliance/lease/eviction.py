"""What holds for every domain that is not remembered: the shard floor, which evicting raises."""

from __future__ import annotations

from collections.abc import Sequence

from timeagent.units import Instant

from ..formats.hints import nothing_known
from ..formats.policy import PolicyNumbers
from .domain import Memory, Taken
from .store import LeaseStore


class Eviction:
    """The shard floor, and its settle_to: neither is ever lowered."""

    def __init__(self, store: LeaseStore, policy: PolicyNumbers, domains_max: int) -> None:
        self._store = store
        self._policy = policy
        self.domains_max = domains_max
        self.floor_ns: Instant = 0
        self.settle_to_ns: Instant = 0

    def begin(self, floor_ns: Instant, settle_to_ns: Instant) -> None:
        """Take the numbers that the chain states for a run that begins."""
        self.floor_ns, self.settle_to_ns = floor_ns, settle_to_ns
        self._store.rows.begin(floor_ns, settle_to_ns)

    def rise(self, floor_ns: Instant, settle_to_ns: Instant) -> None:
        self.floor_ns, self.settle_to_ns = max(self.floor_ns, floor_ns), max(self.settle_to_ns, settle_to_ns)

    def memory(self) -> Memory:
        """Return what a domain has that is not remembered."""
        hints = nothing_known(self.floor_ns)
        return Memory(fence=0, floor_ns=self.floor_ns, settle_to_ns=self.settle_to_ns, hints=hints)

    def long_past(self, earliest: Instant) -> Instant:
        """Return before which instant all numbers of a domain lie that may be evicted."""
        policy = self._policy
        return earliest - (policy.span_ns + policy.grace_ns + 4 * policy.radius_ns_max)

    def evict(self, domains: Sequence[str], earliest: Instant) -> list[str]:
        """Evict those of some domains that are free and long past; the shard floor covers them from now on.

        Return those with leases that are past: once these are broken, they can be evicted later.
        """
        old = self.long_past(earliest)
        past: list[str] = []
        self._store.look_up(domains)
        for domain in domains:
            state = self._store.read(domain)
            if isinstance(state, Taken):
                if any(each.session_id is None and each.expiry_ns < earliest for each in state.leases):
                    past.append(domain)
            elif state is not None:
                memory = state.memory
                newest = max(memory.floor_ns, memory.settle_to_ns, memory.fence)
                if newest < old:
                    self._store.put(domain, None)
                    self.floor_ns = max(self.floor_ns, newest)
                    self.settle_to_ns = max(self.settle_to_ns, memory.settle_to_ns)
        return past
