"""How a session stands: who it is for its shards, which leases it has in use, and which others there are."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock, Timer

from appliance.formats.lease import Holder
from appliance.formats.policy import PolicyNumbers
from appliance.lease.wire import LeaseView
from timeagent.clock import NodeTime
from timeagent.units import SECOND, Span

from .held import Lease
from .leasing import Leasing
from .recalls import LeaseCache
from .renewal import LeaseRenewer


class SessionStanding:
    """One session's, for the tools that are made of sessions. Safe to share between threads."""

    def __init__(
        self,
        time: NodeTime,
        policy: PolicyNumbers,
        leasing: Leasing,
        renewer: LeaseRenewer,
        cache: LeaseCache,
        *,
        background: bool,
    ) -> None:
        self.time = time
        self.policy = policy
        self._leasing = leasing
        self._renewer = renewer
        self._cache = cache
        self._background = background
        self._due: list[tuple[int, Callable[[], None]]] = []
        """What a session without threads has to do yet, and from when on, by the boot clock."""

    @property
    def holder(self) -> Holder:
        """How its leases name the session."""
        return self._leasing.holder

    @property
    def lock(self) -> RLock:
        """The session's."""
        return self._renewer.keeper.lock

    def later(self, span: Span, do: Callable[[], None]) -> None:
        """Call a function once so much time has passed: in a thread that does not outlive the process, if it has any.

        A session without threads calls it when it renews, as time passes.
        """
        if not self._background:
            self._due.append((self.time.boot_ns() + span, do))
            return
        timer = Timer(span / SECOND, do)
        timer.daemon = True
        timer.start()

    def do_due(self) -> None:
        """Call what was put off until now, in a session without threads."""
        boot = self.time.boot_ns()
        due = [each for each in self._due if each[0] <= boot]
        self._due = [each for each in self._due if each[0] > boot]
        for _, do in due:
            do()

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
