"""Keeping what a session has: which leases and session leases are renewed when, and which are lost.

Whatever runs out by itself, a session lease or a lease that is under none, is renewed when it has used up the renewal
period, and lost when it is no longer surely valid (docs/protocol/lease.md, "The holder"). An attempt is never waited
for beyond the end of a lease that it might have kept: the loss is told then.

Leases under a session lease live as long as it is renewed. So a lease must not stay with the shard that nobody here
knows of: what was given back without an answer is given back again, and where the shard counts more leases than are
known here (a grant whose answer was lost, a late duplicate), those are looked up and given back.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Final

from appliance.formats.policy import PolicyNumbers
from appliance.lease.client import (
    ClockLook,
    LeaseClient,
    LeaseGranted,
    LeaseUnavailable,
    Result,
    SessionResult,
    Stands,
    Suspect,
)
from appliance.lease.wire import MAP_NOT_YET, NO_REQUEST, Age, DropSession, Over, Refused, Relinquish
from timeagent.errors import BadTime, TenureError
from timeagent.units import MS, SECOND, Instant, Span

from ..formats.witness import Half
from .held import Keeper, Lease, LossReason, SessionLease, part_of

if TYPE_CHECKING:
    from ..bag.ports import Parallel  # its threads are for those who open a cluster

_log = logging.getLogger(__name__)


def answer_text(answer: Result | SessionResult) -> str:
    """Return an answer that renewed nothing, as a log tells it."""
    if isinstance(answer, LeaseUnavailable | Refused):
        return f"code={answer.code} reason={answer.message}"
    return f"code={type(answer).__name__}"


def period_ns(term_ns: Span, policy: PolicyNumbers) -> Span:
    """Return after how much of its term a lease is renewed."""
    return min(policy.renew_period_ns, term_ns // 3)


def grace_ns(term_ns: Span, policy: PolicyNumbers) -> Span:
    """Return how long before the end of its use a lease is given up by who works under it: two attempts have failed."""
    return term_ns - period_ns(term_ns, policy) - policy.holder_margin_ns - 2 * policy.attempt_timeout_ns


def is_due(each: Lease | SessionLease, latest: Instant, policy: PolicyNumbers) -> bool:
    """Whether it has used up the renewal period, of a term that may have been lowered meanwhile."""
    term = min(each.term_ns, policy.lease_term_max_ns)
    return each.expiry_ns - latest <= term - period_ns(term, policy)


DROP_FROM: Final = 16
"""How many leases are given back by dropping their session lease, if they are all there are: fewer, one by one.

One by one the shard hears where each of them was written under; of a dropped session it knows one watermark."""


class SessionLeases:
    def __init__(self, keeper: Keeper, client: Callable[[int], LeaseClient]) -> None:
        """Have none. ``client``: the way to a shard."""
        self._keeper = keeper
        self._time, self._policy = keeper.time, keeper.policy
        self._client = client
        self.prepared: Callable[[SessionLease], Sequence[int]]
        """The maps to be named in a renewal, the next where the shard does not go by the one before yet."""
        self._of: dict[int, SessionLease] = {}
        self._older: list[SessionLease] = []
        """Those under which nothing more is taken, as long as they have leases."""
        self._asking: Counter[int] = Counter()
        """How many calls are out that may bring leases, by shard."""
        self._asked: Counter[int] = Counter()
        """How many such calls there have been."""
        self.drop_from = DROP_FROM

    def all(self) -> list[SessionLease]:
        """Return those that are not over and have leases, or may get some."""
        with self._keeper.lock:
            if self._older:
                self._older = [each for each in self._older if each.leases and not each.over]
            return [each for each in self._of.values() if not each.over] + self._older

    def named(self, shard: int, session_id: bytes | None) -> SessionLease | None:
        return next((each for each in self.all() if (each.shard, each.session_id) == (shard, session_id)), None)

    # -- taking leases under one ---------------------------------------------------------------------------------------

    def ready(self, shard: int, map_number: int) -> SessionLease | LeaseUnavailable:
        """Return one that is good for longer than a renewal period; begin it by a map, or renew it, where it has to be.

        Raises BadTime.
        """
        session_lease = self._of.get(shard)
        if session_lease is not None and not session_lease.over:
            if is_due(session_lease, self._time.now().latest, self._policy):
                self.renew(session_lease)
            end = session_lease.usable_until_ns(self._policy.holder_margin_ns)
            if not session_lease.over and self._time.now().surely_before(end):
                return session_lease
        term = self._policy.lease_term_max_ns
        result = self._client(shard).begin_session(term, map_number)
        if not isinstance(result, Stands):
            return _unavailable(result)
        with self._keeper.lock:
            if session_lease is not None and self._of.get(shard) is session_lease and not session_lease.over:
                self._older.append(session_lease)
            beside = self._of.get(shard)
            if beside is None or beside is session_lease or beside.over:
                witness = result.witness
                beside = SessionLease(shard, witness.session_id, result.signed, witness.expiry_ns, term)
                self._of[shard] = beside
                return beside
        self._client(shard).drop_session(
            DropSession(NO_REQUEST, result.witness.session_id)
        )  # another thread was faster
        return beside

    def taken(self, shard: int, granted: LeaseGranted, term_ns: Span, age: Age | None) -> Lease:
        """Return the lease, or the half of one, that a shard has granted: under its session lease, if it has one.

        Where that is over here meanwhile the lease is lost already.
        """
        witness = granted.witness
        lease = Lease(
            domain=witness.domain,
            shard=shard,
            own_mode=witness.mode,
            correlation_id=witness.correlation_id,
            fence=witness.fence,
            own_expiry_ns=witness.expiry_ns,
            floor_ns=witness.floor_ns,
            settle_to_ns=witness.settle_to_ns,
            signed=granted.signed,
            term_ns=term_ns,
            age=age,
            hints=granted.hints,
        )
        if witness.session_id is None:
            return lease
        with self._keeper.lock:
            session_lease = self.named(shard, witness.session_id)
            if session_lease is None:
                lease.lose("expired", LossReason.EXPIRED)
                return lease
            lease.session_lease = session_lease
            session_lease.leases[lease.correlation_id] = lease
            if part_of(session_lease.signed)[1] is Half.LEAVING and lease.counts_alone:
                lease.alone_until_ns = lease.own_expiry_ns
        return lease

    def retire(self, session_lease: SessionLease) -> None:
        """Take nothing more under it: its shard does not know it, or renews it no more."""
        with self._keeper.lock:
            if self._of.get(session_lease.shard) is session_lease:
                del self._of[session_lease.shard]
                self._older.append(session_lease)

    @contextlib.contextmanager
    def asking(self, shard: int) -> Iterator[None]:
        """Make a call which may bring leases: at the end of the block it is known which."""
        with self._keeper.lock:
            self._asking[shard] += 1
            self._asked[shard] += 1
        try:
            yield
        finally:
            with self._keeper.lock:
                self._asking[shard] -= 1

    # -- keeping -------------------------------------------------------------------------------------------------------

    def due(self, latest: Instant) -> list[SessionLease]:
        """Return those that have leases and have used up the renewal period."""
        return [each for each in self.all() if (each.leases or each.owed) and is_due(each, latest, self._policy)]

    def renew(self, session_lease: SessionLease) -> None:
        """Renew one, whatever the number of its leases, and do as its shard says. Raises BadTime."""
        numbers = self.prepared(session_lease)
        if not numbers:  # its shard has gone: its leases go on with their second halves, or run out
            with self._keeper.lock:
                seconds = [
                    each.second.session_lease for each in session_lease.leases.values() if each.second is not None
                ]
            for other in dict.fromkeys(each for each in seconds if each is not None):
                self.renew(other)
            return
        quiet = self._quiet(session_lease.shard)
        latest = self._time.now().latest
        end = session_lease.usable_until_ns(self._policy.holder_margin_ns)
        for number in numbers:
            result = self._client(session_lease.shard).renew_session(
                session_lease.session_id, session_lease.term_ns, end if end > latest else None, number
            )
            if not (isinstance(result, LeaseUnavailable) and result.code == MAP_NOT_YET):
                break
        with self._keeper.lock:
            match result:
                case Stands():
                    if not session_lease.over:  # else its leases were lost while this was on its way, and stay lost
                        self._keeper.moved += session_lease.take(result.signed, result.witness, result.revoked)
                case Over():
                    session_lease.lose(str(result.outcome), LossReason.BROKEN)
                case Suspect():
                    session_lease.lose("suspect", LossReason.CLOCK_UNSAFE)
                case _:
                    if session_lease.trouble is None:
                        _log.warning("session-renewal-unanswered shard=%d %s", session_lease.shard, answer_text(result))
                    if isinstance(result, LeaseUnavailable) and result.code != "late":
                        session_lease.trouble = LossReason.SHARD_UNREACHABLE
                    elif isinstance(result, Refused):
                        self.retire(session_lease)  # renewed no more: its leases run towards its expiry
            known = len(session_lease.leases)
        if session_lease.owed:
            self.give_again(session_lease)
        elif isinstance(result, Stands) and result.leases > known and quiet is not None:
            self._give_back_unknown(session_lease, quiet)

    # -- giving back ---------------------------------------------------------------------------------------------------

    def leave(self, givings: Mapping[Lease, Relinquish]) -> list[SessionLease]:
        """Take leases out of what is held, owing that they are given back; return what can be dropped instead.

        That is a session lease under which nothing is left, and nothing owed but many of these.
        """
        gone: dict[SessionLease, int] = {}
        with self._keeper.lock:
            for lease, giving in givings.items():
                session_lease = lease.session_lease
                if session_lease is not None and session_lease.leases.pop(lease.correlation_id, None) is not None:
                    session_lease.owed[lease.correlation_id] = giving
                    gone[session_lease] = gone.get(session_lease, 0) + (not giving.abandoned)
            return [
                each
                for each, count in gone.items()
                if not (each.leases or each.over) and len(each.owed) == count >= self.drop_from
            ]

    def drop(
        self, session_lease: SessionLease, leases: Sequence[Lease], give_up_ns: Instant | None = None
    ) -> SessionResult | None:
        """Give a session lease back with all leases that were under it; None: these have to be given back one by one.

        Raises BadTime.
        """
        quiet = self._quiet(session_lease.shard)
        with self._keeper.lock:
            if quiet is None or session_lease.leases or session_lease.over or len(session_lease.owed) > len(leases):
                return None
            session_lease.over = True
            session_lease.owed.clear()
        wrote = [lease for lease in leases if lease.watermark_ns is not None]
        last = max(wrote, key=lambda lease: lease.watermark_ns or 0, default=None)
        messages = sum(lease.messages for lease in leases)
        said = () if last is None else (last.watermark_ns, last.watermark_time, messages, last.chain_head)
        dropping = DropSession(NO_REQUEST, session_lease.session_id, *said)
        result = self._client(session_lease.shard).drop_session(dropping, give_up_ns)
        if not isinstance(result, Over):
            _log.warning("session-drop-unanswered shard=%d %s", session_lease.shard, answer_text(result))
        return result

    def give_again(self, session_lease: SessionLease) -> None:
        """Give back what was given back without an answer. Raises BadTime."""
        with self._keeper.lock:
            givings = list(session_lease.owed.values())
        self.acknowledge(session_lease, givings, self._client(session_lease.shard).relinquish(givings))

    def acknowledge(
        self, session_lease: SessionLease, givings: Sequence[Relinquish], results: Sequence[object]
    ) -> None:
        """Take note of what became of givings. What the shard refuses is given back without a word about it."""
        with self._keeper.lock:
            for giving, result in zip(givings, results, strict=True):
                if isinstance(result, Over):
                    session_lease.owed.pop(giving.correlation_id, None)
                elif isinstance(result, LeaseUnavailable):
                    session_lease.owed[giving.correlation_id] = giving
                else:
                    session_lease.owed[giving.correlation_id] = Relinquish(
                        NO_REQUEST, giving.domain, giving.correlation_id, abandoned=True
                    )

    def close(self) -> None:
        """Give back session leases without leases. Raises nothing."""
        for session_lease in self.all():
            if session_lease.leases or session_lease.owed:
                continue
            try:
                self.drop(session_lease, [])
            except TenureError as problem:
                _log.warning("session-drop-failed shard=%d code=%s", session_lease.shard, problem.code)

    def _quiet(self, shard: int) -> int | None:
        """Return how many calls that bring leases there have been, if none is out; None: one is."""
        with self._keeper.lock:
            return None if self._asking.get(shard, 0) else self._asked.get(shard, 0)

    def _give_back_unknown(self, session_lease: SessionLease, quiet: int) -> None:
        """Give back leases that the shard has under this session and nobody knows here. Nothing was written under them.

        Only while no call is out that may have brought them: then the next renewal looks again. Where the session lease
        was over here before its renewal was answered, they are those that were lost with it, and may have been written
        under: they are given back without a word about that.
        """
        for views in self._client(session_lease.shard).leases_under(session_lease.session_id):
            with self._keeper.lock:
                if self._quiet(session_lease.shard) != quiet:
                    return
                known = session_lease.leases.keys() | session_lease.owed.keys()
                givings = [
                    Relinquish(NO_REQUEST, each.domain, each.correlation_id, abandoned=session_lease.over)
                    for each in views
                    if each.correlation_id not in known
                ]
            if givings:
                _log.warning("unknown-leases-given-back shard=%d leases=%d", session_lease.shard, len(givings))
                self.acknowledge(session_lease, givings, self._client(session_lease.shard).relinquish(givings))


def _unavailable(result: SessionResult) -> LeaseUnavailable:
    """Say why there is no session lease."""
    match result:
        case LeaseUnavailable():
            return result
        case Suspect():
            return LeaseUnavailable("", "suspect-session", result.reason)
        case Over():
            return LeaseUnavailable("", "no-session", f"the session lease has ended: {result.outcome}")
        case _:
            return LeaseUnavailable("", getattr(result, "code", "no-session"), getattr(result, "message", str(result)))


class LeaseRenewer:
    """The leases of one session that were taken and not given back."""

    def __init__(
        self,
        keeper: Keeper,
        renew: Callable[[list[Lease]], list[tuple[Lease, Result]]],
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
        self._alone: dict[Lease, None] = {}
        """Those of the held ones that are under no session lease: each is renewed, and runs out, by itself."""

    def adopt(self, leases: Iterable[Lease], came: ClockLook) -> None:
        """Keep these from now on. ``came``: what the clock said when they had been granted."""
        with self._keeper.lock:
            self._seen_boot_ns, self._seen_latest = came.boot_ns, came.now.latest
            for lease in leases:
                self._hold(lease)
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

    def forget(self, leases: Sequence[Lease]) -> None:
        """Keep these no longer."""
        with self._keeper.lock:
            for lease in leases:
                self._keeper.held.pop(lease, None)
                self._alone.pop(lease, None)

    def exchange(self, old: Lease, new: Lease) -> None:
        """Keep one object for a lease in the place of another."""
        with self._keeper.lock:
            for leases in (self._keeper.held, self._alone):
                leases.pop(old, None)
            self._hold(new)
            if new.second is not None:
                new.second.first = new
            if new.session_lease is not None and new.session_lease.leases.get(new.correlation_id) is old:
                new.session_lease.leases[new.correlation_id] = new

    def _hold(self, lease: Lease) -> None:
        self._keeper.held[lease] = None
        if lease.session_lease is None:
            self._alone[lease] = None

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

    def _renew(self, due: list[Lease | SessionLease]) -> list[tuple[Lease, Result]]:
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
            for lease in self._alone:
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

    def _apply(self, answers: Iterable[tuple[Lease, Result]]) -> None:
        with self._keeper.lock:
            for asked, answer in answers:
                lease = asked.standing()
                match answer:
                    case LeaseGranted() if answer.witness.correlation_id == lease.correlation_id:
                        lease.take(answer.signed, answer.witness)
                        lease.trouble = None
                        first = lease.first
                        if first is not None and first.second is lease and part_of(lease.signed)[1] is Half.WHOLE:
                            first.go_on_with_second()
                            self._keeper.moved.append(first)
                    case LeaseGranted():
                        pass  # its lease has gone on with the other half meanwhile
                    case Over():
                        lease.lose_to(answer)
                    case Suspect():
                        lease.lose("suspect", LossReason.CLOCK_UNSAFE)
                    case _:
                        if lease.trouble is None:
                            _log.warning("renewal-unanswered domain=%s %s", lease.domain, answer_text(answer))
                        if isinstance(answer, LeaseUnavailable) and answer.code != "late":
                            lease.trouble = LossReason.SHARD_UNREACHABLE

    def _expiring(self) -> list[Lease | SessionLease]:
        """Return what runs out by itself unless it is renewed, and has not."""
        return [*self._session_leases.all(), *(lease for lease in self._alone if lease.ended is None)]

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
        self._lock = Lock()
        self._thread: Thread | None = None

    def start(self, period_ns: Span) -> None:
        """Start the thread, once; from now on keep pace with leases that are renewed with this period."""
        with self._lock:
            self._period_ns = min(self._period_ns, period_ns)
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
        while not self._stop.wait(self._pause_ns() / SECOND):
            try:
                self._renew_due()
            except TenureError as problem:
                # No renewal now: the leases run towards their expiry, and whoever uses one is told by name.
                _log.warning("renewal-failed code=%s reason=%s", problem.code, problem.message)

    def _pause_ns(self) -> Span:
        """Return how long to wait by now: leases that are held go by the newest policy too."""
        return max(min(self._period_ns, self._policy.renew_period_ns) // 8, PAUSE_NS_MIN)
