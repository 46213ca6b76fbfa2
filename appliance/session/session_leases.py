"""Session leases, each renewed for all leases that a session has from one shard; and the second halves of leases.

Leases under a session lease live as long as it is renewed. So a lease must not stay with the shard that nobody here
knows of: what was given back without an answer is given back again, and where the shard counts more leases than are
known here (a grant whose answer was lost, a late duplicate), those are looked up and given back.

While a domain moves to another shard it is held from both. The half from the shard that comes is a lease of its own
here, which nobody sees: it is renewed, told of messages and given back beside the other (``Lease.second``).
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from appliance.formats.policy import PolicyNumbers
from appliance.formats.shardmap import ShardMap
from appliance.lease.client import LeaseGranted, LeaseUnavailable, Result, SessionResult, Stands, Suspect, may_ask_again
from appliance.lease.wire import MAP_NOT_YET, NO_REQUEST, Above, Age, DropSession, Over, Refused, Relinquish
from timeagent.errors import TenureError
from timeagent.units import Instant, Span

from ..formats.lease import covers
from ..formats.witness import Half
from .endings import LossReason
from .held import Keeper, Lease, SessionLease, part_of

_log = logging.getLogger(__name__)


def answer_text(answer: Result | SessionResult) -> str:
    """Return an answer that renewed nothing, as a log tells it."""
    if isinstance(answer, LeaseUnavailable | Refused):
        return f"code={answer.code} reason={answer.message}"
    return f"code={type(answer).__name__}"


type Renewal = tuple[Lease, bytes, Result]
"""A lease, the correlation id by which it was asked for then, and the answer."""


def take_note(each: Lease | SessionLease, answer: Result | SessionResult, event: str) -> None:
    """Take note of an answer that renewed nothing: it is over, or runs towards its end. ``event``: for the log."""
    match answer:
        case Over():
            each.lose_to(answer)
        case Suspect():
            each.lose("suspect", LossReason.CLOCK_UNSAFE)
        case _:
            if each.trouble is None:
                _log.warning("%s %s", event, answer_text(answer))
            if isinstance(answer, LeaseUnavailable) and answer.code != "late":
                each.trouble = LossReason.SHARD_UNREACHABLE


def take_answer(keeper: Keeper, lease: Lease, answer: LeaseGranted) -> None:
    """Adopt a renewal or an upgrade; a lease whose second half is whole by it goes on with that. Under the lock."""
    lease.take(answer.signed, answer.witness, answer.hints)
    if lease.first is not None and _goes_on(lease.first):
        keeper.moved.append(lease.first)


def _goes_on(lease: Lease) -> bool:
    """Let a lease go on with its second half alone, where that is whole; whether it is. Under the lock."""
    whole = lease.second is not None and lease.second.part is Half.WHOLE
    if whole:
        lease.go_on_with_second()
    return whole


def period_ns(term_ns: Span, policy: PolicyNumbers) -> Span:
    """Return after how much of its term a lease is renewed."""
    return min(policy.renew_period_ns, term_ns // 3)


def is_due(each: Lease | SessionLease, latest: Instant, policy: PolicyNumbers) -> bool:
    """Whether it has used up the renewal period, of a term that may have been lowered meanwhile."""
    term = min(each.term_ns, policy.lease_term_max_ns)
    return each.expiry_ns - latest <= term - period_ns(term, policy)


DROP_FROM: Final = 16
"""How many leases are given back by dropping their session lease, if they are all there are: fewer, one by one.

One by one the shard hears where each of them was written under; of a dropped session it knows one watermark."""


class SessionLeases:
    """The session leases of one session, and the second halves of its leases."""

    def __init__(self, keeper: Keeper) -> None:
        """Have none."""
        self._keeper = keeper
        self._time, self._policy = keeper.time, keeper.policy
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

    def ready(self, shard: int, map_number: int, give_up_ns: Instant | None = None) -> SessionLease | LeaseUnavailable:
        """Return one that is good for longer than a renewal period; begin it by a map, or renew it, where it has to be.

        ``give_up_ns``: no answer to that is waited for beyond it. Raises BadTime.
        """
        session_lease = self._of.get(shard)
        if session_lease is not None and not session_lease.over:
            if is_due(session_lease, self._time.now().latest, self._policy):
                self.renew(session_lease)
            end = session_lease.usable_until_ns(self._policy.holder_margin_ns)
            if not session_lease.over and self._time.now().surely_before(end):
                return session_lease
        term = self._policy.lease_term_max_ns
        result = self._keeper.client(shard).begin_session(term, map_number, give_up_ns)
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
        self._keeper.client(shard).drop_session(
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
            stated_fence=witness.fence,
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
        """Return those that have used up the renewal period, themselves or leases that run out before them."""
        return [
            each
            for each in self.all()
            if (each.leases or each.owed)
            and (
                is_due(each, latest, self._policy)
                or any(is_due(one, latest, self._policy) for one in self.lacking(each))
            )
        ]

    def lacking(self, session_lease: SessionLease) -> list[Lease]:
        """Return the leases under it that lack their second half: they may run out before it."""
        if part_of(session_lease.signed)[1] is Half.WHOLE:
            return []
        return [each for each in self._under(session_lease) if each.alone_until_ns is not None and each.ended is None]

    def renew(self, session_lease: SessionLease) -> None:
        """Renew one, whatever the number of its leases, and do as its shard says. Raises BadTime."""
        numbers = self.maps_to_name(session_lease)
        if not numbers:  # its shard has gone: its leases go on with their second halves, or run out
            seconds = [each.second.session_lease for each in self._under(session_lease) if each.second is not None]
            for other in dict.fromkeys(each for each in seconds if each is not None):
                self.renew(other)
            return
        self._let_go_of_lost(session_lease)
        quiet = self._quiet(session_lease.shard)
        latest = self._time.now().latest
        end = session_lease.usable_until_ns(self._policy.holder_margin_ns)
        for number in numbers:
            result = self._keeper.client(session_lease.shard).renew_session(
                session_lease.session_id, session_lease.term_ns, end if end > latest else None, number
            )
            if not (isinstance(result, LeaseUnavailable) and result.code == MAP_NOT_YET):
                break
        with self._keeper.lock:
            if not isinstance(result, Stands):
                take_note(session_lease, result, f"session-renewal-unanswered shard={session_lease.shard}")
                if isinstance(result, Refused):
                    self.retire(session_lease)  # renewed no more: its leases run towards its expiry
            elif not session_lease.over:  # else its leases were lost while this was on its way, and stay lost
                self._keeper.moved += session_lease.take(result.signed, result.witness, result.revoked)
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
        with self._keeper.lock:
            quiet = self._quiet(session_lease.shard)
            # Exactly these: another thread may have taken leases under it since, or given these back one by one.
            theirs = session_lease.owed.keys() == {lease.correlation_id for lease in leases}
            if quiet is None or session_lease.leases or session_lease.over or not theirs:
                return None
            session_lease.over = True
            session_lease.owed.clear()
        wrote = [lease for lease in leases if lease.watermark_ns is not None]
        last = max(wrote, key=lambda lease: lease.watermark_ns or 0, default=None)
        messages = sum(lease.messages for lease in leases)
        said = () if last is None else (last.watermark_ns, last.watermark_time, messages, last.chain_head)
        dropping = DropSession(NO_REQUEST, session_lease.session_id, *said)
        result = self._keeper.client(session_lease.shard).drop_session(dropping, give_up_ns)
        if not isinstance(result, Over):
            _log.warning("session-drop-unanswered shard=%d %s", session_lease.shard, answer_text(result))
        return result

    def give_again(self, session_lease: SessionLease) -> None:
        """Give back what was given back without an answer. Raises BadTime."""
        with self._keeper.lock:
            givings = list(session_lease.owed.values())
        self.acknowledge(session_lease, givings, self._keeper.client(session_lease.shard).relinquish(givings))

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

    def _let_go_of_lost(self, session_lease: SessionLease) -> None:
        """Give leases, and halves, back that are lost: renewed, they are kept from everybody. Raises BadTime."""
        with self._keeper.lock:
            lost = [
                half
                for half in session_lease.leases.values()
                if (loss := (half.first or half).loss) is not None
                and loss.reason is not LossReason.RECALLED  # that is given back already, with a word
            ]
            for half in lost:  # without a word: what was written under it may be under way yet
                name = half.correlation_id
                del session_lease.leases[name]
                session_lease.owed[name] = Relinquish(NO_REQUEST, half.domain, name, abandoned=True)
        if lost:
            self.give_again(session_lease)

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
        for views in self._keeper.client(session_lease.shard).leases_under(session_lease.session_id):
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
                self.acknowledge(session_lease, givings, self._keeper.client(session_lease.shard).relinquish(givings))

    # -- second halves -------------------------------------------------------------------------------------------------

    def maps_to_name(self, session_lease: SessionLease) -> list[int]:
        """Return the maps to be named in a renewal, one after the other while its shard does not go by them yet."""
        newest = self._keeper.routes.map
        half, number = newest.half_of(session_lease.shard), newest.number
        if half is not Half.WHOLE:
            self.catch_up(self._under(session_lease), newest)
        if half is Half.LEAVING:
            leases = self._under(session_lease)
            self.take_halves([each for each in leases if each.keeper is not None], newest)
            if any(each.ended is None and each.second is None and each.counts_alone for each in leases):
                return [number - 1]
        return [] if half is None else [number, number - 1]

    def _under(self, session_lease: SessionLease) -> list[Lease]:
        with self._keeper.lock:
            return list(session_lease.leases.values())

    def catch_up(self, leases: Sequence[Lease], by: ShardMap) -> None:
        """Let leases go on with their second half where a second move has begun before they heard of the first's end.

        Nothing is written under them until they have another second half, and both are renewed.
        """
        with self._keeper.lock:
            for lease in [each.first or each for each in leases]:
                gone = lease.second is not None and by.half_of(lease.shard) is None
                if gone and lease.second is not None and by.half_of(lease.second.shard) is Half.LEAVING:
                    lease.go_on_with_second()
                    lease.alone_until_ns = lease.expiry_ns
                    self._keeper.moved.append(lease)

    def take_halves(self, leases: Sequence[Lease], by: ShardMap) -> None:
        """Take leases from the shards that come, where they are not held from these yet. What fails is tried again."""
        groups: dict[tuple[int, Span, bool], list[Lease]] = {}
        for lease in leases:
            if lease.second is None and lease.first is None and lease.ended is None:
                key = by.shards_of(lease.domain)[-1], lease.term_ns, lease.session_lease is not None
                groups.setdefault(key, []).append(lease)
        end = min((lease.expiry_ns for group in groups.values() for lease in group), default=0)
        for place, (shard, term_ns, together) in enumerate(sorted(groups)):
            latest = self._time.now().latest
            share = (end - latest) // (len(groups) - place + 1)  # for each, and for who renews then
            give_up = latest + (share if share > 0 else self._policy.attempt_timeout_ns)
            self._take_some(shard, groups[shard, term_ns, together], term_ns, by, give_up, together=together)

    def _take_some(
        self,
        shard: int,
        leases: Sequence[Lease],
        term_ns: Span,
        by: ShardMap,
        give_up_ns: Instant,
        *,
        together: bool,
    ) -> None:
        try:
            with self.asking(shard):
                session_lease = self.ready(shard, by.number, give_up_ns) if together else None
                if isinstance(session_lease, LeaseUnavailable):
                    return
                client = self._keeper.client(shard)
                asks = [lease.asking or client.ask(lease.domain, lease.age, lease.mode) for lease in leases]
                for lease, ask in zip(leases, asks, strict=True):
                    lease.asking = ask
                results = client.acquire(
                    asks,
                    term_ns=term_ns,
                    session_id=None if session_lease is None else session_lease.session_id,
                    map_number=by.number,
                    above=above_of(shard, leases),
                    caps={lease.domain: cap for lease in leases if (cap := lease.cap_ns()) is not None},
                    give_up_ns=give_up_ns,
                )
                useless: list[Relinquish] = []
                for lease, result in zip(leases, results, strict=True):
                    if isinstance(result, LeaseGranted):
                        name = result.witness.correlation_id
                        with self._keeper.lock:
                            known = None if lease.second is None else lease.second.correlation_id
                            weaker = not covers(result.witness.mode, lease.own_mode)  # it was asked for before that
                            if weaker:
                                lease.asking = None
                            if known is None and lease.ended is None and not weaker:
                                half = self.taken(shard, result, lease.term_ns, lease.age)
                                if half.ended is None:
                                    lease.join(half)
                                    known = name
                            if known != name:  # another thread was faster, or it is over
                                useless.append(Relinquish(NO_REQUEST, lease.domain, name))
                    elif not may_ask_again(result):
                        lease.asking = None
                if useless:
                    client.relinquish(useless)
        except TenureError as problem:
            _log.warning("second-half-failed shard=%d code=%s reason=%s", shard, problem.code, problem.message)


def joined(taken: Sequence[Lease]) -> list[Lease]:
    """Return the leases of a set, each with its second half where its domain moves: that was taken later."""
    found: dict[str, Lease] = {}
    for half in taken:
        lease = found.setdefault(half.domain, half)
        if lease is not half:
            lease.join(half)
            if half.loss is not None:
                lease.lose(half.loss.ended, half.loss.reason)
            _goes_on(lease)
    return list(found.values())


def above_of(shard: int, leases: Iterable[Lease]) -> dict[str, Above]:
    """Return what the halves from other shards say, by domain: who comes gives no less."""
    return {
        lease.domain: Above(
            fence=max(lease.fence, lease.stated_fence), floor_ns=lease.floor_ns, settle_to_ns=lease.settle_to_ns
        )
        for lease in leases
        if lease.shard < shard
    }


def is_as_by(lease: Lease, by: ShardMap) -> bool:
    """Whether a lease, or a half, is held as it is to be by a map: from both shards, or from one that is left."""
    half = by.half_of(lease.shard)
    return half is not None and (half is not Half.LEAVING or lease.second is not None)


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
