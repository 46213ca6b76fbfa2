"""Keeping what a session has: which leases and session leases are renewed when, and which are lost.

Whatever runs out by itself, a session lease or a lease that is under none, is renewed when it has used up the renewal
period, and lost when it is no longer surely valid (docs/protocol/lease.md, "The holder"). An attempt is never waited
for beyond the end of a lease that it might have kept: the loss is told then.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from threading import Event, RLock, Thread, Timer, current_thread
from typing import TYPE_CHECKING, Final

from appliance.formats.policy import PolicyNumbers
from appliance.lease.client import ClockLook, LeaseGranted
from timeagent.errors import BadTime, TenureError
from timeagent.units import MS, SECOND, Instant, Span

from .endings import LossReason
from .held import Keeper, Lease, SessionLease
from .session_leases import Renewal, SessionLeases, is_due, period_ns, take_answer, take_note

if TYPE_CHECKING:
    from ..bag.ports import Parallel  # its threads are for those who open a cluster

_log = logging.getLogger(__name__)


def grace_ns(term_ns: Span, policy: PolicyNumbers) -> Span:
    """Return how long before the end of its use a lease is given up by who works under it: two attempts have failed."""
    return term_ns - period_ns(term_ns, policy) - policy.holder_margin_ns - 2 * policy.attempt_timeout_ns


class LeaseRenewer:
    """The leases of one session that were taken and not given back."""

    def __init__(
        self,
        keeper: Keeper,
        renew: Callable[[list[Lease]], list[Renewal]],
        session_leases: SessionLeases,
        parallel: Parallel,
    ) -> None:
        """Have nothing yet. ``renew``: asks one shard for renewals of leases that are under no session lease."""
        self._keeper = keeper
        self._time, self._policy, self._losses = keeper.time, keeper.policy, keeper.losses
        self._ask = renew
        self._session_leases = session_leases
        self._parallel = parallel
        self._seen_boot_ns = 0
        self._seen_latest: Instant = 0

    def adopt(self, leases: Iterable[Lease], came: ClockLook) -> None:
        """Keep these from now on. ``came``: what the clock said when they had been granted."""
        with self._keeper.lock:
            self._seen_boot_ns, self._seen_latest = came.boot_ns, came.now.latest
            for lease in leases:
                self._keeper.hold(lease)
                lease.keeper = self._keeper
                lease.until_ns = lease.progress_within_ns = None

    def bound(
        self, leases: Iterable[Lease], latest: Instant, hold_ns_max: Span | None, progress_within_ns: Span | None
    ) -> None:
        """Keep these so long from now on, ``hold_ns_max``, and as long as their holder gets on (``Lease.progress``)."""
        with self._keeper.lock:
            for lease in leases:
                lease.until_ns = None if hold_ns_max is None else latest + hold_ns_max
                lease.progress_within_ns = progress_within_ns
                if progress_within_ns is not None:
                    lease.progress()

    def note_progress(self, leases: Iterable[Lease]) -> None:
        """Say of those whose holder has to get on that it does."""
        for lease in leases:
            if lease.progress_within_ns is not None:
                lease.progress()

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
            self._losses.tell()

    def _renew(self, due: list[Lease | SessionLease]) -> list[Renewal]:
        """Renew what is due with one shard. Raises BadTime."""
        for each in due:
            if isinstance(each, SessionLease):
                self._session_leases.renew(each)
        return self._ask([each for each in due if isinstance(each, Lease)])

    def _due(self) -> list[list[Lease | SessionLease]]:
        """Return what is to be renewed, shard by shard."""
        boot = self._time.boot_ns()  # before the other: counted on from here no instant is taken for an earlier one
        latest = self._time.now().latest
        groups: defaultdict[int, list[Lease | SessionLease]] = defaultdict(list)
        for session_lease in self._session_leases.due(latest):
            groups[session_lease.shard].append(session_lease)
        with self._keeper.lock:
            self._seen_boot_ns, self._seen_latest = boot, latest
            for lease in self._keeper.alone:
                if lease.ended is None and self._is_wanted(lease, boot):
                    for half in (lease, lease.second):
                        if half is not None and is_due(half, latest, self._policy):
                            groups[half.shard].append(half)
        return list(groups.values())

    def take_moved(self) -> list[Lease]:
        """Return the leases that have gone on with their second half since this was asked last."""
        with self._keeper.lock:
            moved, self._keeper.moved = self._keeper.moved, []
        return [lease for lease in moved if lease.ended is None]

    def _is_wanted(self, lease: Lease, boot_ns: int) -> bool:
        """Whether it is to be kept for longer: it is not capped before that, and its holder gets on."""
        if lease.until_ns is not None and lease.expiry_ns >= lease.until_ns:
            return False
        if lease.progress_within_ns is not None and boot_ns - lease.progress_boot_ns > lease.progress_within_ns:
            lease.trouble = LossReason.NO_PROGRESS
            return False
        return True

    def _apply(self, answers: Iterable[Renewal]) -> None:
        with self._keeper.lock:
            for asked, name, answer in answers:
                lease = asked.standing()
                if lease.correlation_id != name:
                    continue  # it has gone on with the other half meanwhile, and this is about the first
                if isinstance(answer, LeaseGranted):
                    take_answer(self._keeper, lease, answer)
                    lease.trouble = None
                else:
                    take_note(lease, answer, f"renewal-unanswered domain={lease.domain}")

    def _expiring(self) -> list[Lease | SessionLease]:
        """Return what runs out by itself unless it is renewed, and has not."""
        together = self._session_leases.all()
        lacking = [lease for each in together for lease in self._session_leases.lacking(each)]
        return [*together, *lacking, *(lease for lease in self._keeper.alone if lease.ended is None)]

    def _end_what_is_over(self) -> None:
        now = self._time.now()
        with self._keeper.lock:
            for each in self._expiring():
                each.end_if_over(now, self._policy.holder_margin_ns)

    def _end_by_the_boot_clock(self) -> None:
        """Without bounded time nobody can say that a lease is held; when it would be over by count, it is lost."""
        with self._keeper.lock:
            latest = self._seen_latest + self._time.boot_ns() - self._seen_boot_ns
            for each in self._expiring():
                each.trouble = LossReason.CLOCK_UNSAFE
                if latest >= each.usable_until_ns(self._policy.holder_margin_ns):
                    each.lose("expired", LossReason.CLOCK_UNSAFE)


PAUSE_NS_MIN: Final = 10 * MS


class RenewalThread:
    """Calls ``renew_due`` often enough that no lease is renewed much later than its period says."""

    def __init__(self, policy: PolicyNumbers, renew_due: Callable[[], None]) -> None:
        self._policy = policy
        self._period_ns = policy.renew_period_ns
        self._renew_due = renew_due
        self._stop = Event()
        self._lock = RLock()  # a signal may come while it is had, and whoever handles that may close the session
        self._thread: Thread | None = None

    def start(self, period_ns: Span) -> None:
        """Start the thread, once; from now on keep pace with leases that are renewed with this period."""
        with self._lock:
            self._period_ns = min(self._period_ns, period_ns)
            if self._thread is None and not self._stop.is_set():
                thread = Thread(target=self._run, name="tenure-renewal", daemon=True)
                thread.start()  # before it is kept: there may be none to be had
                self._thread = thread

    def stop(self) -> None:
        """Stop it for good and wait until it has ended, unless it is who stops it. Idempotent."""
        self._stop.set()
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None and thread is not current_thread():
            thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._pause_ns() / SECOND):
            try:
                self._renew_due()
            except TenureError as problem:
                # No renewal now: the leases run towards their expiry, and whoever uses one is told by name.
                _log.warning("renewal-failed code=%s reason=%s", problem.code, problem.message)
            except Exception:  # noqa: BLE001 - no threads or descriptors left, or a bug: one renewal, not every lease
                _log.exception("renewal-failed")

    def _pause_ns(self) -> Span:
        """Return how long to wait by now: leases that are held go by the newest policy too."""
        return max(min(self._period_ns, self._policy.renew_period_ns) // 8, PAUSE_NS_MIN)


def later(keeper: Keeper, span: Span, do: Callable[[], None]) -> None:
    """Call a function once so much time has passed: in a thread that does not outlive the process, if there may be any.

    A session without threads calls it when it renews, as time passes.
    """
    if not keeper.background:
        keeper.put_off.append((keeper.time.boot_ns() + span, do))
        return
    timer = Timer(span / SECOND, do)
    timer.daemon = True
    timer.start()


def do_due(keeper: Keeper) -> None:
    """Call what was put off until now, in a session without threads."""
    boot = keeper.time.boot_ns()
    due = [each for each in keeper.put_off if each[0] <= boot]
    keeper.put_off = [each for each in keeper.put_off if each[0] > boot]
    for _, do in due:
        do()
