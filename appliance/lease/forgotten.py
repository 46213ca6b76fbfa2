"""What a shard states about every domain that it does not remember: the shard floor, and how evicting raises it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..formats.hints import nothing_known
from .domain import Memory

if TYPE_CHECKING:
    from timeagent.units import Instant

    from ..formats.policy import PolicyNumbers
    from .store import LeaseStore


class Forgotten:
    """The shard floor, and its settle_to: neither is ever lowered."""

    __slots__ = ("_policy", "_store", "domains_max", "floor_ns", "settle_to_ns")

    def __init__(self, store: LeaseStore, policy: PolicyNumbers, domains_max: int) -> None:
        """Remember up to ``domains_max`` domains in ``store``."""
        self._store = store
        self._policy = policy
        self.domains_max = domains_max
        self.floor_ns: Instant = 0
        self.settle_to_ns: Instant = 0

    def begin(self, floor_ns: Instant, settle_to_ns: Instant) -> None:
        """Take the numbers that the chain states for a run that begins."""
        self.floor_ns, self.settle_to_ns = floor_ns, settle_to_ns
        self._store.begin(floor_ns, settle_to_ns)

    def memory(self) -> Memory:
        """Return what a domain has that is not remembered."""
        hints = nothing_known(self.floor_ns)
        return Memory(fence=0, floor_ns=self.floor_ns, settle_to_ns=self.settle_to_ns, hints=hints)

    def evict(self, count: int, earliest: Instant, *, crowded: bool = False) -> None:
        """Evict so many domains, or as many as are free and long past; the shard floor covers them from now on.

        ``earliest``: the least that the time may be. ``crowded``: of those for which the store had no room last, and of
        all between them.
        """
        policy = self._policy
        old = earliest - (policy.span_ns + policy.grace_ns + 4 * policy.radius_ns_max)
        for domain, memory in self._store.idle(old, count, crowded=crowded):
            self._store.forget(domain, memory)
            self.floor_ns = max(self.floor_ns, memory.floor_ns, memory.settle_to_ns, memory.fence)
            self.settle_to_ns = max(self.settle_to_ns, memory.settle_to_ns)
