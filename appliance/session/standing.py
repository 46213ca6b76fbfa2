"""How a session stands: who it is for its shards, which leases it has in use, and which others there are."""

from __future__ import annotations

from threading import RLock

from appliance.formats.lease import Holder
from appliance.formats.policy import PolicyNumbers
from appliance.lease.wire import LeaseView
from timeagent.clock import NodeTime

from .held import Lease
from .leasing import Leasing
from .recalls import LeaseCache
from .renewal import LeaseRenewer


class SessionStanding:
    """One session's, for the tools that are made of sessions. Safe to share between threads."""

    def __init__(
        self, time: NodeTime, policy: PolicyNumbers, leasing: Leasing, renewer: LeaseRenewer, cache: LeaseCache
    ) -> None:
        self.time = time
        self.policy = policy
        self._leasing = leasing
        self._renewer = renewer
        self._cache = cache

    @property
    def holder(self) -> Holder:
        """How its leases name the session."""
        return self._leasing.holder

    @property
    def lock(self) -> RLock:
        """The session's."""
        return self._renewer.keeper.lock

    def in_use(self, domain: str) -> Lease | None:
        """Return a lease on a domain that the session has in use, or None. Asks nobody."""
        with self.lock:
            mine = [each for each in self._renewer.held if each.domain == domain and each not in self._cache]
        return next((each for each in mine if each.ended is None), None)

    def leases_below(self, domain: str) -> list[LeaseView]:
        """Return the leases on all domains below one of a tree, in their order, unsigned, as their shard knows them.

        Raises ShardUnavailable. Blocks for the shard.
        """
        return self._leasing.leases_below(domain)
