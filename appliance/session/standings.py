"""The session leases of one process: one with each shard from which it has leases that are kept together.

Leases under a session lease live as long as it is renewed. So a lease must not stay with the shard that nobody here
knows of: what was given back without an answer is given back again, and where the shard counts more leases than are
known here (a grant whose answer was lost, a late duplicate), those are looked up and given back.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from appliance.lease.client import Ended, Giving, Unavailable
from appliance.lease.sessionclient import Stands, SuspectSession
from appliance.lease.wire import Refused
from timeagent.errors import TenureError

from .losses import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from appliance.formats.policy import PolicyNumbers
    from appliance.formats.sessionlease import SessionWitness
    from appliance.formats.witness import Revoked, SignedWitness, Witness
    from appliance.lease.sessionclient import SessionClient, SessionResult
    from timeagent.clock import NodeTime
    from timeagent.units import Instant, Span

    from .held import Lease

_log = logging.getLogger(__name__)

DROP_FROM: Final = 16
"""How many leases are given back by dropping their session lease, if they are all there are: fewer, one by one.

One by one the shard hears where each of them was written under; of a dropped session it knows one watermark."""


@dataclass(slots=True, eq=False)
class Standing:
    """One session lease, as this process has it. Changed under the session's lock only."""

    shard: int
    session_id: bytes
    signed: SignedWitness
    """Its newest witness, which frames carry beside those of the leases, and the one that states ``expiry_ns``."""
    expiry_ns: Instant
    term_ns: Span
    leases: dict[bytes, Lease] = field(default_factory=dict)
    """Those that are held under it, by correlation id."""
    owed: dict[bytes, Giving] = field(default_factory=dict)
    """What was given back, and not acknowledged."""
    over: bool = False
    """Nothing is taken under it any more."""
    trouble: Reason | None = None
    """Why the last renewal failed, if it did."""

    def take(self, signed: SignedWitness, witness: SessionWitness, revoked: Sequence[Revoked] = ()) -> None:
        """Adopt a newer witness. The leases that it names as ended are lost first: it is not used with them."""
        told = {each.correlation_id: each for each in revoked}
        for name in witness.ended:
            lease = self.leases.pop(name, None)
            if lease is not None:
                lease.lose("revoked", Reason.REVOKED, told.get(name))
        if witness.expiry_ns >= self.expiry_ns:
            self.signed, self.expiry_ns = signed, witness.expiry_ns
        self.trouble = None

    def lose(self, ended: str, reason: Reason) -> None:
        """Be over, with all leases under it, against the holder's will."""
        self.over = True
        for lease in self.leases.values():
            lease.lose(ended, reason)
        self.leases.clear()


class Standings:
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
        self._of: dict[int, Standing] = {}
        self._older: list[Standing] = []
        """Those under which nothing more is taken, as long as they have leases."""
        self._asking: dict[int, int] = {}
        """How many calls are out that may bring leases, by shard."""
        self._asked: dict[int, int] = {}
        """How many such calls there have been."""
        self.drop_from = DROP_FROM

    def all(self) -> list[Standing]:
        """Return those that are not over and have leases, or may get some."""
        with self._lock:
            if self._older:
                self._older = [each for each in self._older if each.leases and not each.over]
            return [each for each in self._of.values() if not each.over] + self._older

    def named(self, shard: int, session_id: bytes | None) -> Standing | None:
        """Return the one with that id."""
        return next((each for each in self.all() if (each.shard, each.session_id) == (shard, session_id)), None)

    # -- taking leases under one ---------------------------------------------------------------------------------------

    def ready(self, shard: int) -> Standing | Unavailable:
        """Return one that is good for longer than a renewal period; begin or renew it where it has to be.

        Raises BadTime.
        """
        standing = self._of.get(shard)
        if standing is not None and not standing.over and self._is_due(standing):
            self.renew(standing)
        now = self._time.now()
        if (
            standing is not None
            and not standing.over
            and now.surely_before(standing.expiry_ns - self._policy.holder_margin_ns)
        ):
            return standing
        term = self._policy.lease_term_max_ns
        result = self._client(shard).begin_session(term)
        if not isinstance(result, Stands):
            return _unavailable(result)
        with self._lock:
            if standing is not None and self._of.get(shard) is standing and not standing.over:
                self._older.append(standing)
            beside = self._of.get(shard)
            if beside is None or beside is standing or beside.over:
                witness = result.witness
                beside = Standing(shard, witness.session_id, result.signed, witness.expiry_ns, term)
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
            standing = self.named(lease.shard, witness.session_id)
            if standing is None:
                lease.lose("expired", Reason.EXPIRED)
                return lease
            lease.standing = standing
            standing.leases[lease.correlation_id] = lease
        return lease

    def retire(self, standing: Standing) -> None:
        """Take nothing more under it: its shard does not know it, or renews it no more."""
        with self._lock:
            if self._of.get(standing.shard) is standing:
                del self._of[standing.shard]
                self._older.append(standing)

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

    def due(self) -> list[Standing]:
        """Return those that have leases and have used up the renewal period."""
        return [each for each in self.all() if (each.leases or each.owed) and self._is_due(each)]

    def _is_due(self, standing: Standing) -> bool:
        term = min(standing.term_ns, self._policy.lease_term_max_ns)
        period = min(self._policy.renew_period_ns, term // 3)
        return standing.expiry_ns - self._time.now().latest <= term - period

    def renew(self, standing: Standing) -> None:
        """Renew one, whatever the number of its leases, and do as its shard says. Raises BadTime."""
        quiet = self._quiet(standing.shard)
        latest = self._time.now().latest
        end = standing.expiry_ns - self._policy.holder_margin_ns
        result = self._client(standing.shard).renew_session(
            standing.session_id, standing.term_ns, end if end > latest else None
        )
        with self._lock:
            match result:
                case Stands():
                    if not standing.over:  # else its leases were lost while this was on its way, and stay lost
                        standing.take(result.signed, result.witness, result.revoked)
                case Ended():
                    standing.lose(str(result.outcome), Reason.BROKEN)
                case SuspectSession():
                    standing.lose("suspect", Reason.CLOCK_UNSAFE)
                case _:
                    if isinstance(result, Unavailable) and result.code != "late":
                        standing.trouble = Reason.SHARD_UNREACHABLE
                    elif isinstance(result, Refused):
                        self.retire(standing)  # renewed no more: its leases run towards its expiry
                    _log.warning("session-renewal-unanswered shard=%d result=%s", standing.shard, result)
            known = len(standing.leases)
        if standing.owed:
            self.give_again(standing)
        elif isinstance(result, Stands) and result.leases > known and quiet is not None:
            self._give_back_unknown(standing, quiet)

    def end_what_is_over(self) -> None:
        """Lose those that are no longer surely valid. Raises BadTime."""
        now = self._time.now()
        with self._lock:
            for standing in self.all():
                if not now.surely_before(standing.expiry_ns - self._policy.holder_margin_ns):
                    standing.lose("expired", standing.trouble or Reason.EXPIRED)

    def end_by_count(self, latest: Instant) -> None:
        """Lose those that would be over by the boot clock's count, while there is no bounded time."""
        with self._lock:
            for standing in self.all():
                standing.trouble = Reason.CLOCK_UNSAFE
                if latest >= standing.expiry_ns - self._policy.holder_margin_ns:
                    standing.lose("expired", Reason.CLOCK_UNSAFE)

    # -- giving back ---------------------------------------------------------------------------------------------------

    def leave(self, givings: Mapping[Lease, Giving]) -> list[Standing]:
        """Take leases out of what is held, owing that they are given back; return what can be dropped instead.

        That is a session lease under which nothing is left, and nothing owed but many of these.
        """
        gone: dict[Standing, int] = {}
        with self._lock:
            for lease, giving in givings.items():
                standing = lease.standing
                if standing is not None and standing.leases.pop(lease.correlation_id, None) is not None:
                    standing.owed[lease.correlation_id] = giving
                    gone[standing] = gone.get(standing, 0) + (not giving.abandoned)
            return [
                each
                for each, count in gone.items()
                if not (each.leases or each.over) and len(each.owed) == count >= self.drop_from
            ]

    def drop(
        self, standing: Standing, leases: Sequence[Lease], give_up_ns: Instant | None = None
    ) -> SessionResult | None:
        """Give a session lease back with all leases that were under it; None: these have to be given back one by one.

        Raises BadTime.
        """
        quiet = self._quiet(standing.shard)
        with self._lock:
            if quiet is None or standing.leases or standing.over or len(standing.owed) > len(leases):
                return None
            standing.over = True
            standing.owed.clear()
        wrote = [lease for lease in leases if lease.watermark_ns is not None]
        last = max(wrote, key=lambda lease: lease.watermark_ns or 0, default=None)
        result = self._client(standing.shard).drop_session(
            standing.session_id,
            None if last is None else last.watermark_ns,
            None if last is None else last.watermark_time,
            sum(lease.messages for lease in leases),
            None if last is None else last.chain_head,
            give_up_ns,
        )
        if not isinstance(result, Ended):
            _log.warning("session-drop-unanswered shard=%d result=%s", standing.shard, result)
        return result

    def give_again(self, standing: Standing) -> None:
        """Give back what was given back without an answer. Raises BadTime."""
        with self._lock:
            givings = list(standing.owed.values())
        self.acknowledge(standing, givings, self._client(standing.shard).relinquish(givings))

    def acknowledge(self, standing: Standing, givings: Sequence[Giving], results: Sequence[object]) -> None:
        """Take note of what became of givings. What the shard refuses is given back without a word about it."""
        with self._lock:
            for giving, result in zip(givings, results, strict=True):
                if isinstance(result, Ended):
                    standing.owed.pop(giving.correlation_id, None)
                elif isinstance(result, Unavailable):
                    standing.owed[giving.correlation_id] = giving
                else:
                    standing.owed[giving.correlation_id] = Giving(giving.domain, giving.correlation_id, abandoned=True)

    def close(self) -> None:
        """Give back session leases without leases. Raises nothing."""
        for standing in self.all():
            if standing.leases or standing.owed:
                continue
            try:
                self.drop(standing, [])
            except TenureError as problem:
                _log.warning("session-drop-failed shard=%d code=%s", standing.shard, problem.code)

    def _quiet(self, shard: int) -> int | None:
        """Return how many calls that bring leases there have been, if none is out; None: one is."""
        with self._lock:
            return None if self._asking.get(shard, 0) else self._asked.get(shard, 0)

    def _give_back_unknown(self, standing: Standing, quiet: int) -> None:
        """Give back leases that the shard has under this session and nobody knows here. Nothing was written under them.

        Only while no call is out that may have brought them: then the next renewal looks again. Where the session lease
        was over here before its renewal was answered, they are those that were lost with it, and may have been written
        under: they are given back without a word about that.
        """
        after: str | None = ""
        while after is not None:
            page = self._client(standing.shard).leases_under(standing.session_id, after)
            if page is None:
                return
            views, after = page
            with self._lock:
                if self._quiet(standing.shard) != quiet:
                    return
                known = standing.leases.keys() | standing.owed.keys()
                givings = [
                    Giving(each.domain, each.correlation_id, abandoned=standing.over)
                    for each in views
                    if each.correlation_id not in known
                ]
            if givings:
                _log.warning("unknown-leases-given-back shard=%d leases=%d", standing.shard, len(givings))
                self.acknowledge(standing, givings, self._client(standing.shard).relinquish(givings))


def _unavailable(result: SessionResult) -> Unavailable:
    """Say why there is no session lease."""
    match result:
        case Unavailable():
            return result
        case SuspectSession():
            return Unavailable("", "suspect-session", result.reason)
        case Ended():
            return Unavailable("", "no-session", f"the session lease has ended: {result.outcome}")
        case _:
            return Unavailable("", getattr(result, "code", "no-session"), getattr(result, "message", str(result)))
