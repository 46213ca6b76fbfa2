"""Renewal of what a session has: which leases are renewed when, which are lost, and that whoever listens is told.

Each shard is asked for its leases at the same time as the others, so that one that does not answer costs no lease of
another. An attempt is never waited for beyond the end of a lease that it might have kept: the loss is told then.
``RenewalThread`` calls ``renew_due`` at the session's own pace.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from dataclasses import dataclass, field
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Final

from appliance.lease.client import LeaseGranted, LeaseOver, LeaseUnavailable, Suspect
from timeagent.errors import BadRequest, BadTime, LeaseLost, TenureError
from timeagent.units import MS, SECOND, span_text

from .held import Losses, LossReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from threading import RLock

    from appliance.formats.policy import PolicyNumbers
    from appliance.lease.client import Result
    from timeagent.clock import NodeTime
    from timeagent.units import Instant, Span

    from ..bag.context import Parallel
    from .held import Lease, SessionLease
    from .leasing import Leasing


_log = logging.getLogger(__name__)


PAUSE_NS_MIN: Final = 10 * MS


class RenewalThread:
    """Calls ``renew_due`` often enough that no lease is renewed much later than its period says."""

    def __init__(self, policy: PolicyNumbers, renew_due: Callable[[], None]) -> None:
        """Start nothing yet."""
        self._pause_ns = _pause_ns(policy.renew_period_ns)
        self._renew_due = renew_due
        self._stop = Event()
        self._lock = Lock()
        self._thread: Thread | None = None

    def start(self, period_ns: Span) -> None:
        """Start the thread, once; from now on keep pace with leases that are renewed with this period."""
        with self._lock:
            self._pause_ns = min(self._pause_ns, _pause_ns(period_ns))
            if self._thread is None and not self._stop.is_set():
                self._thread = Thread(target=self._run, name="tenure-renewal", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Stop it for good and wait until it has ended. Idempotent."""
        self._stop.set()
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._pause_ns / SECOND):
            try:
                self._renew_due()
            except TenureError as problem:
                # No renewal now: the leases run towards their expiry, and whoever uses one is told by name.
                _log.warning("renewal-failed code=%s reason=%s", problem.code, problem.message)


def _pause_ns(period_ns: Span) -> Span:
    return max(period_ns // 8, PAUSE_NS_MIN)


@dataclass(slots=True)
class _Due:
    """What is to be renewed with one shard."""

    leases: list[Lease] = field(default_factory=list)
    session_leases: list[SessionLease] = field(default_factory=list)


class LeaseRenewer:
    """The leases of one session that were taken and not given back. Shares the session's lock."""

    def __init__(
        self, time: NodeTime, policy: PolicyNumbers, leasing: Leasing, parallel: Parallel, lock: RLock
    ) -> None:
        """Have nothing yet."""
        self._time = time
        self._policy = policy
        self._leasing = leasing
        self._parallel = parallel
        self._lock = lock
        self._process = os.getpid()
        self._seen_boot_ns = 0
        self._seen_latest: Instant = 0
        self.held: dict[Lease, None] = {}
        """In the order in which they were taken."""
        self._alone: dict[Lease, None] = {}
        """Those of them that are under no session lease: each is renewed, and runs out, by itself."""
        self.losses = Losses()

    def adopt(self, leases: Iterable[Lease]) -> None:
        """Keep these from now on."""
        latest, boot = self._time.now().latest, self._time.boot_ns()
        with self._lock:
            self._seen_boot_ns, self._seen_latest = boot, latest
            for lease in leases:
                self._hold(lease)
                lease.keeper = self
                lease.until_ns = lease.progress_within_ns = None

    def bound(self, leases: Iterable[Lease], hold_ns_max: Span | None, progress_within_ns: Span | None) -> None:
        """Keep these so long from now on, ``hold_ns_max``, and as long as their holder gets on (``Lease.progress``)."""
        if hold_ns_max is None and progress_within_ns is None:
            return  # as they were adopted
        latest, boot = self._time.now().latest, self._time.boot_ns()
        with self._lock:
            for lease in leases:
                lease.until_ns = None if hold_ns_max is None else latest + hold_ns_max
                lease.progress_within_ns, lease.progress_boot_ns = progress_within_ns, boot

    def forget(self, leases: Sequence[Lease]) -> None:
        """Keep these no longer."""
        gone = set(leases)
        with self._lock:
            for lease in gone:
                self.held.pop(lease, None)
                self._alone.pop(lease, None)
        self.losses.forget(list(gone))

    def exchange(self, old: Lease, new: Lease) -> None:
        """Keep one object for a lease in the place of another."""
        with self._lock:
            for leases in (self.held, self._alone):
                leases.pop(old, None)
            self._hold(new)
            if new.session_lease is not None and new.session_lease.leases.get(new.correlation_id) is old:
                new.session_lease.leases[new.correlation_id] = new
        self.losses.forget([old])

    def _hold(self, lease: Lease) -> None:
        self.held[lease] = None
        if lease.session_lease is None:
            self._alone[lease] = None

    # -- what a lease asks ---------------------------------------------------------------------------------------------

    def remaining_ns(self, lease: Lease) -> Span:
        """Return how long a lease may still be used, were it not renewed. Raises BadTime."""
        self._refuse_child()
        left = lease.usable_until_ns(self._policy.holder_margin_ns) - self._time.now().latest
        return max(0, left) if lease.ended is None else 0

    def check(self, lease: Lease, margin_ns: Span) -> None:
        """Raise LeaseLost unless a lease is surely held, with this much to spare. Raises BadTime."""
        self._refuse_child()
        now = self._time.now()
        try:
            with self._lock:
                lease.check_held(now, self._policy.holder_margin_ns)
        finally:
            self.losses.tell()
        if not now.surely_before(lease.usable_until_ns(margin_ns)):
            raise LeaseLost(
                "lease-too-short",
                f"the lease on {lease.domain!r} (fence {lease.fence}) is held for less than the "
                f"{span_text(margin_ns)} that were asked for",
                hint="wait for its renewal, or do less under it at once",
            )

    def progress(self, lease: Lease) -> None:
        """Take note that the work under a lease gets on."""
        lease.progress_boot_ns = self._time.boot_ns()

    def listen_for_recall(self, lease: Lease, listener: Callable[[Lease], object]) -> None:
        """Have a function called when another asks for a lease: at once, if one has."""
        with self._lock:
            if not lease.recalled:
                lease.recall_listeners = (*lease.recall_listeners, listener)
                return
        listener(lease)

    def _refuse_child(self) -> None:
        if self._process != os.getpid():
            raise BadRequest(
                "forked",
                f"this lease belongs to process {self._process}, this is its child {os.getpid()}",
                hint="open the cluster in the child",
            )

    # -- renewing ------------------------------------------------------------------------------------------------------

    def renew_due(self) -> None:
        """Renew every lease that has used up the renewal period; end those that are over. Raises BadTime."""
        try:
            for answers in self._parallel.each(self._renew, self._due()):
                self._apply(answers)
            self._end_what_is_over()
        except BadTime:
            self._end_by_the_boot_clock()
            raise
        finally:
            self.losses.tell()

    def period_ns(self, term_ns: Span) -> Span:
        """Return after how much of its term a lease is renewed."""
        return min(self._policy.renew_period_ns, term_ns // 3)

    def _renew(self, due: _Due) -> list[tuple[Lease, Result]]:
        """Renew what is due with one shard. Raises BadTime."""
        for session_lease in due.session_leases:
            self._leasing.session_leases.renew(session_lease)
        return self._leasing.renew(due.leases)

    def _due(self) -> list[_Due]:
        """Return what is to be renewed, shard by shard."""
        latest, boot = self._time.now().latest, self._time.boot_ns()
        groups: defaultdict[int, _Due] = defaultdict(_Due)
        for session_lease in self._leasing.session_leases.due():
            groups[session_lease.shard].session_leases.append(session_lease)
        with self._lock:
            self._seen_boot_ns, self._seen_latest = boot, latest
            for lease in self._alone:
                if lease.ended is None and self._is_due(lease, latest, boot):
                    groups[lease.shard].leases.append(lease)
        return list(groups.values())

    def _is_due(self, lease: Lease, latest: Instant, boot_ns: int) -> bool:
        if lease.until_ns is not None and lease.expiry_ns >= lease.until_ns:
            return False
        if lease.progress_within_ns is not None and boot_ns - lease.progress_boot_ns > lease.progress_within_ns:
            lease.trouble = LossReason.NO_PROGRESS
            return False
        term = min(lease.term_ns, self._policy.lease_term_max_ns)  # lowered meanwhile: no more than that is granted
        return lease.expiry_ns - latest <= term - self.period_ns(term)

    def _apply(self, answers: Iterable[tuple[Lease, Result]]) -> None:
        with self._lock:
            for lease, answer in answers:
                match answer:
                    case LeaseGranted():
                        lease.take(answer.signed, answer.witness)
                        lease.trouble = None
                    case LeaseOver():
                        lease.lose_to(answer)
                    case Suspect():
                        lease.lose("suspect", LossReason.CLOCK_UNSAFE)
                    case _:
                        if isinstance(answer, LeaseUnavailable) and answer.code != "late":
                            lease.trouble = LossReason.SHARD_UNREACHABLE
                        _log.warning("renewal-unanswered domain=%s result=%s", lease.domain, answer)

    def _end_what_is_over(self) -> None:
        self._leasing.session_leases.end_what_is_over()
        now = self._time.now()
        with self._lock:
            for lease in self._alone:
                lease.end_if_over(now, self._policy.holder_margin_ns)

    def _end_by_the_boot_clock(self) -> None:
        """Without bounded time nobody can say that a lease is held; when it would be over by count, it is lost."""
        with self._lock:
            latest = self._seen_latest + self._time.boot_ns() - self._seen_boot_ns
            self._leasing.session_leases.end_by_count(latest)
            for lease in self._alone:
                if lease.ended is None:
                    lease.trouble = LossReason.CLOCK_UNSAFE
                    if latest >= lease.usable_until_ns(self._policy.holder_margin_ns):
                        lease.lose("expired", LossReason.CLOCK_UNSAFE)
