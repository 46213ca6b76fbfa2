"""The session leases of one process: one with each shard from which it has leases that are kept together.

Leases under a session lease live as long as it is renewed. So a lease must not stay with the shard that nobody here
knows of: what was given back without an answer is given back again, and where the shard counts more leases than are
known here (a grant whose answer was lost, a late duplicate), those are looked up and given back.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from appliance.lease.client import Giving, LeaseOver, LeaseUnavailable
from appliance.lease.session_client import Stands, SuspectSession
from appliance.lease.wire import Refused
from timeagent.errors import TenureError

from .held import LossReason, SessionLease

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from appliance.formats.policy import PolicyNumbers
    from appliance.formats.witness import Witness
    from appliance.lease.session_client import SessionClient, SessionResult
    from timeagent.clock import NodeTime
    from timeagent.units import Instant

    from .held import Lease


_log = logging.getLogger(__name__)

DROP_FROM: Final = 16
"""How many leases are given back by dropping their session lease, if they are all there are: fewer, one by one.

One by one the shard hears where each of them was written under; of a dropped session it knows one watermark."""


class SessionLeases:
    """The session leases of one session with all shards."""

    def __init__(
        self,
        time: NodeTime,
        policy: PolicyNumbers,
        client: Callable[[int], SessionClient],
        lock: AbstractContextManager[object],
    ) -> None:
        """Have none. ``client``: the way to a shard. ``lock``: the session's, never held while a shard is asked."""
        self._time = time
        self._policy = policy
        self._client = client
        self._lock = lock
        self._of: dict[int, SessionLease] = {}
        self._older: list[SessionLease] = []
        """Those under which nothing more is taken, as long as they have leases."""
        self._asking: dict[int, int] = {}
        """How many calls are out that may bring leases, by shard."""
        self._asked: dict[int, int] = {}
        """How many such calls there have been."""
        self.drop_from = DROP_FROM

    def all(self) -> list[SessionLease]:
        """Return those that are not over and have leases, or may get some."""
        with self._lock:
            if self._older:
                self._older = [each for each in self._older if each.leases and not each.over]
            return [each for each in self._of.values() if not each.over] + self._older

    def named(self, shard: int, session_id: bytes | None) -> SessionLease | None:
        """Return the one with that id."""
        return next((each for each in self.all() if (each.shard, each.session_id) == (shard, session_id)), None)

    # -- taking leases under one ---------------------------------------------------------------------------------------

    def ready(self, shard: int) -> SessionLease | LeaseUnavailable:
        """Return one that is good for longer than a renewal period; begin or renew it where it has to be.

        Raises BadTime.
        """
        session_lease = self._of.get(shard)
        if session_lease is not None and not session_lease.over and self._is_due(session_lease):
            self.renew(session_lease)
        now = self._time.now()
        if (
            session_lease is not None
            and not session_lease.over
            and now.surely_before(session_lease.expiry_ns - self._policy.holder_margin_ns)
        ):
            return session_lease
        term = self._policy.lease_term_max_ns
        result = self._client(shard).begin_session(term)
        if not isinstance(result, Stands):
            return _unavailable(result)
        with self._lock:
            if session_lease is not None and self._of.get(shard) is session_lease and not session_lease.over:
                self._older.append(session_lease)
            beside = self._of.get(shard)
            if beside is None or beside is session_lease or beside.over:
                witness = result.witness
                beside = SessionLease(shard, witness.session_id, result.signed, witness.expiry_ns, term)
                self._of[shard] = beside
                return beside
        self._client(shard).drop_session(result.witness.session_id)  # another thread was faster
        return beside

    def taken(self, lease: Lease, witness: Witness) -> Lease:
        """Put a lease that was granted under its session lease; return it.

        Where that is over here meanwhile the lease is lost already.
        """
        if witness.session_id is None:
            return lease
        with self._lock:
            session_lease = self.named(lease.shard, witness.session_id)
            if session_lease is None:
                lease.lose("expired", LossReason.EXPIRED)
                return lease
            lease.session_lease = session_lease
            session_lease.leases[lease.correlation_id] = lease
        return lease

    def retire(self, session_lease: SessionLease) -> None:
        """Take nothing more under it: its shard does not know it, or renews it no more."""
        with self._lock:
            if self._of.get(session_lease.shard) is session_lease:
                del self._of[session_lease.shard]
                self._older.append(session_lease)

    def asking(self, shard: int) -> None:
        """Take note that a call is made which may bring leases."""
        with self._lock:
            self._asking[shard] = self._asking.get(shard, 0) + 1
            self._asked[shard] = self._asked.get(shard, 0) + 1

    def told(self, shard: int) -> None:
        """Take note that what that call has brought is known."""
        with self._lock:
            self._asking[shard] -= 1

    # -- keeping -------------------------------------------------------------------------------------------------------

    def due(self) -> list[SessionLease]:
        """Return those that have leases and have used up the renewal period."""
        return [each for each in self.all() if (each.leases or each.owed) and self._is_due(each)]

    def _is_due(self, session_lease: SessionLease) -> bool:
        term = min(session_lease.term_ns, self._policy.lease_term_max_ns)
        period = min(self._policy.renew_period_ns, term // 3)
        return session_lease.expiry_ns - self._time.now().latest <= term - period

    def renew(self, session_lease: SessionLease) -> None:
        """Renew one, whatever the number of its leases, and do as its shard says. Raises BadTime."""
        quiet = self._quiet(session_lease.shard)
        latest = self._time.now().latest
        end = session_lease.expiry_ns - self._policy.holder_margin_ns
        result = self._client(session_lease.shard).renew_session(
            session_lease.session_id, session_lease.term_ns, end if end > latest else None
        )
        with self._lock:
            match result:
                case Stands():
                    if not session_lease.over:  # else its leases were lost while this was on its way, and stay lost
                        session_lease.take(result.signed, result.witness, result.revoked)
                case LeaseOver():
                    session_lease.lose(str(result.outcome), LossReason.BROKEN)
                case SuspectSession():
                    session_lease.lose("suspect", LossReason.CLOCK_UNSAFE)
                case _:
                    if isinstance(result, LeaseUnavailable) and result.code != "late":
                        session_lease.trouble = LossReason.SHARD_UNREACHABLE
                    elif isinstance(result, Refused):
                        self.retire(session_lease)  # renewed no more: its leases run towards its expiry
                    _log.warning("session-renewal-unanswered shard=%d result=%s", session_lease.shard, result)
            known = len(session_lease.leases)
        if session_lease.owed:
            self.give_again(session_lease)
        elif isinstance(result, Stands) and result.leases > known and quiet is not None:
            self._give_back_unknown(session_lease, quiet)

    def end_what_is_over(self) -> None:
        """Lose those that are no longer surely valid. Raises BadTime."""
        now = self._time.now()
        with self._lock:
            for session_lease in self.all():
                if not now.surely_before(session_lease.expiry_ns - self._policy.holder_margin_ns):
                    session_lease.lose("expired", session_lease.trouble or LossReason.EXPIRED)

    def end_by_count(self, latest: Instant) -> None:
        """Lose those that would be over by the boot clock's count, while there is no bounded time."""
        with self._lock:
            for session_lease in self.all():
                session_lease.trouble = LossReason.CLOCK_UNSAFE
                if latest >= session_lease.expiry_ns - self._policy.holder_margin_ns:
                    session_lease.lose("expired", LossReason.CLOCK_UNSAFE)

    # -- giving back ---------------------------------------------------------------------------------------------------

    def leave(self, givings: Mapping[Lease, Giving]) -> list[SessionLease]:
        """Take leases out of what is held, owing that they are given back; return what can be dropped instead.

        That is a session lease under which nothing is left, and nothing owed but many of these.
        """
        gone: dict[SessionLease, int] = {}
        with self._lock:
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
        with self._lock:
            if quiet is None or session_lease.leases or session_lease.over or len(session_lease.owed) > len(leases):
                return None
            session_lease.over = True
            session_lease.owed.clear()
        wrote = [lease for lease in leases if lease.watermark_ns is not None]
        last = max(wrote, key=lambda lease: lease.watermark_ns or 0, default=None)
        result = self._client(session_lease.shard).drop_session(
            session_lease.session_id,
            None if last is None else last.watermark_ns,
            None if last is None else last.watermark_time,
            sum(lease.messages for lease in leases),
            None if last is None else last.chain_head,
            give_up_ns,
        )
        if not isinstance(result, LeaseOver):
            _log.warning("session-drop-unanswered shard=%d result=%s", session_lease.shard, result)
        return result

    def give_again(self, session_lease: SessionLease) -> None:
        """Give back what was given back without an answer. Raises BadTime."""
        with self._lock:
            givings = list(session_lease.owed.values())
        self.acknowledge(session_lease, givings, self._client(session_lease.shard).relinquish(givings))

    def acknowledge(self, session_lease: SessionLease, givings: Sequence[Giving], results: Sequence[object]) -> None:
        """Take note of what became of givings. What the shard refuses is given back without a word about it."""
        with self._lock:
            for giving, result in zip(givings, results, strict=True):
                if isinstance(result, LeaseOver):
                    session_lease.owed.pop(giving.correlation_id, None)
                elif isinstance(result, LeaseUnavailable):
                    session_lease.owed[giving.correlation_id] = giving
                else:
                    session_lease.owed[giving.correlation_id] = Giving(
                        giving.domain, giving.correlation_id, abandoned=True
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
        with self._lock:
            return None if self._asking.get(shard, 0) else self._asked.get(shard, 0)

    def _give_back_unknown(self, session_lease: SessionLease, quiet: int) -> None:
        """Give back leases that the shard has under this session and nobody knows here. Nothing was written under them.

        Only while no call is out that may have brought them: then the next renewal looks again. Where the session lease
        was over here before its renewal was answered, they are those that were lost with it, and may have been written
        under: they are given back without a word about that.
        """
        after: str | None = ""
        while after is not None:
            page = self._client(session_lease.shard).leases_under(session_lease.session_id, after)
            if page is None:
                return
            views, after = page
            with self._lock:
                if self._quiet(session_lease.shard) != quiet:
                    return
                known = session_lease.leases.keys() | session_lease.owed.keys()
                givings = [
                    Giving(each.domain, each.correlation_id, abandoned=session_lease.over)
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
        case SuspectSession():
            return LeaseUnavailable("", "suspect-session", result.reason)
        case LeaseOver():
            return LeaseUnavailable("", "no-session", f"the session lease has ended: {result.outcome}")
        case _:
            return LeaseUnavailable("", getattr(result, "code", "no-session"), getattr(result, "message", str(result)))
