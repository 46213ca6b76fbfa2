"""Taking, renewing and giving back leases over several shards: the session's side.

Several domains are taken all or none: first all tentatively, shard by shard in the order of their numbers and within a
shard all at once, then all upgraded. A set waits for a domain with what it has taken before. An older set breaks what a
younger one has tentatively, and passes it in a queue: that one gives back the rest and tries again with the age that it
had. So the oldest waits for nobody but those who hold, and no circle of sets waits for ever.

While a domain moves to another shard it is held from both: ``SessionLeases``.
"""

from __future__ import annotations

import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from appliance.formats.lease import Mode, Phase, covers
from appliance.formats.shardmap import ShardMap
from appliance.lease import wire
from appliance.lease.client import (
    PAUSE_NS_MAX,
    PAUSE_NS_MIN,
    AcquireDeadline,
    Ask,
    ClockLook,
    LeaseGranted,
    LeaseUnavailable,
    Result,
    may_ask_again,
)
from timeagent.errors import TenureError
from timeagent.units import Instant, Span

from ..formats.hints import NOTHING_WRITTEN
from ..formats.witness import Half
from .asking import Obstacle, given_up_for, raise_final
from .held import Keeper, Lease
from .session_leases import Renewal, SessionLeases, above_of, answer_text, is_as_by, is_due, joined, take_answer

_log = logging.getLogger(__name__)

_NO_SESSION: Final = frozenset({"no-session", "session-too-short"})
"""What a shard answers where another session lease has to be begun."""


@dataclass(slots=True)
class _AcquireAttempt:
    """One acquire: the questions that are still open keep their ids, the set keeps its age."""

    wanted: Mapping[str, Mode]
    term_ns: Span
    deadline: AcquireDeadline
    map: ShardMap
    """The map that it goes by."""
    together: bool = False
    """Under a session lease with each shard."""
    waiting: Callable[[wire.Denied], object] = lambda _: None
    """Told who has what."""
    age: wire.Age | None = None
    asks: dict[tuple[int, str], Ask] = field(default_factory=dict)
    """By shard and domain."""
    came: ClockLook | None = None
    """What the clock said when the last grant had come."""
    phase: Phase = Phase.HELD
    taken: list[Lease] = field(default_factory=list)
    tentative: list[Lease] = field(default_factory=list)
    """What of that is taken tentatively: that has to be made held. A request that is asked again, by a newer map, may
    have got what another phase was asked for the first time."""


class Leasing:
    """One session's dealings with all shards."""

    def __init__(self, keeper: Keeper) -> None:
        """Call nothing yet."""
        self._keeper = keeper
        self._time, self._policy, self._random = keeper.time, keeper.policy, keeper.randomness
        self.session_leases = SessionLeases(keeper)

    def acquire(
        self,
        wanted: Mapping[str, Mode],
        term_ns: Span,
        timeout_ns: Span,
        given_up: Callable[[], bool] = lambda: False,
        stuck: Callable[[wire.Age | None], bool] = lambda _: False,
        *,
        together: bool = False,
        waiting: Callable[[wire.Denied], object] = lambda _: None,
    ) -> tuple[list[Lease], ClockLook]:
        """Take all domains, each in its mode, or none. Blocks up to the time-out, or until it is given up.

        ``together``: under session leases. ``stuck``: gives it up too, asked with its age. ``waiting``: told who has
        what. Returns too what the clock said when the last answer had come. Raises TryAgain, BadRequest, BadTime.
        """
        deadline = AcquireDeadline(self._time, self._policy, timeout_ns, lambda: given_up() or stuck(attempt.age))
        in_order = dict(sorted(wanted.items()))
        attempt = _AcquireAttempt(in_order, term_ns, deadline, self._keeper.routes.map, together, waiting)
        pause = PAUSE_NS_MIN
        while True:
            obstacle = self._take_all(attempt)
            if obstacle is None:
                assert attempt.came is not None, "nothing was granted"
                with self._keeper.lock:
                    return joined(attempt.taken), attempt.came
            raise_final(obstacle)
            left = attempt.deadline.left_ns()
            if left <= 0:
                raise given_up_for(obstacle, timeout_ns)
            self._time.sleep(min(self._random.randint(pause // 2, pause), left))
            pause = min(2 * pause, PAUSE_NS_MAX)

    def _take_all(self, attempt: _AcquireAttempt) -> Obstacle | None:
        """Take all domains once, or none: whatever goes wrong, what was taken is given back.

        Shard after shard: everybody in this order, so that few sets get into each other's way. Shards that come have
        the highest numbers: a domain that moves is taken from the other one first.
        """
        attempt.map, attempt.taken, attempt.tentative = self._keeper.routes.map, [], []
        groups: dict[int, list[str]] = {}
        for domain in attempt.wanted:
            for shard in attempt.map.shards_of(domain):
                groups.setdefault(shard, []).append(domain)
        attempt.phase = Phase.TENTATIVE if sum(map(len, groups.values())) > 1 else Phase.HELD
        complete = False
        try:
            for shard, group in sorted(groups.items()):
                if (obstacle := self._take_group(shard, group, attempt)) is not None:
                    return obstacle
            obstacle = self._upgrade(attempt) if attempt.tentative else None
            complete = obstacle is None
            return obstacle
        finally:
            if not complete:
                self.relinquish(attempt.taken)

    def _take_group(self, shard: int, missing: list[str], attempt: _AcquireAttempt) -> Obstacle | None:
        """Take domains of one shard, waiting for those that others have, and keeping meanwhile what is taken.

        Whatever ends that, an application's function that raises or Ctrl-C, leaves no waiter behind.
        """
        deadline = attempt.deadline
        try:
            while True:
                results = self._take(shard, missing, attempt, *deadline.next_call())
                for domain, result in zip(missing, results, strict=True):
                    if not may_ask_again(result):
                        attempt.asks.pop((shard, domain), None)  # there is none where no session lease could be had
                denied = {
                    domain: each for domain, each in zip(missing, results, strict=True) if isinstance(each, wire.Denied)
                }
                missing = list(denied)
                for each in denied.values():
                    attempt.waiting(each)
                final = next((each for each in results if not isinstance(each, LeaseGranted | wire.Denied)), None)
                if final is not None or not denied:
                    return final
                if deadline.over() and not deadline.keeps_a_place:
                    return denied[missing[0]]
                deadline.pause(self._random, max(each.earliest_ns for each in denied.values()))
                newest = self._keeper.routes.map
                if newest is not attempt.map and any(
                    newest.shards_of(each) != attempt.map.shards_of(each) for each in attempt.wanted
                ):
                    why = f"map {newest.number} came while this request waited"
                    return LeaseUnavailable("", wire.NEWER_MAP, why)  # all begins anew
                if (lost := self._keep(attempt)) is not None:
                    return lost
        except BaseException:
            if deadline.keeps_a_place and missing:
                with contextlib.suppress(TenureError):
                    self._take(shard, missing, attempt, 0, 0)
            raise

    def _take(
        self, shard: int, domains: Sequence[str], attempt: _AcquireAttempt, wait_ns: Span, keep_ns: Span
    ) -> list[Result]:
        """Ask a shard once for each domain. What is granted is taken."""
        with self.session_leases.asking(shard):
            going_by = attempt.map.number
            session_lease = self.session_leases.ready(shard, going_by) if attempt.together else None
            if isinstance(session_lease, LeaseUnavailable):
                return [msgspec.structs.replace(session_lease, domain=domain) for domain in domains]
            sent = ClockLook.of(self._time)
            above = above_of(shard, attempt.taken)
            results = self._keeper.client(shard).acquire(
                [self._ask(shard, domain, attempt, sent) for domain in domains],
                phase=attempt.phase,
                term_ns=attempt.term_ns,
                wait_ns=wait_ns,
                keep_ns=keep_ns,
                hints_wanted=attempt.phase is Phase.HELD,
                session_id=None if session_lease is None else session_lease.session_id,
                sent=sent,
                map_number=going_by,
                above=above,
            )
            if above:
                results = self._without_stale(shard, results, above)
            for each in results:
                if isinstance(each, LeaseGranted):
                    attempt.came = each.came
                    lease = self.session_leases.taken(shard, each, attempt.term_ns, attempt.age)
                    attempt.taken.append(lease)
                    if each.witness.phase is Phase.TENTATIVE:
                        attempt.tentative.append(lease)
            if session_lease is not None and any(
                isinstance(each, LeaseUnavailable) and each.code in _NO_SESSION for each in results
            ):
                self.session_leases.retire(session_lease)
            return results

    def _without_stale(self, shard: int, results: Sequence[Result], above: Mapping[str, wire.Above]) -> list[Result]:
        """Give back second halves that were granted beside an earlier first half, whose answer was lost then."""
        found: list[Result] = []
        stale: list[wire.Relinquish] = []
        for each in results:
            first = above.get(each.witness.domain) if isinstance(each, LeaseGranted) else None
            if isinstance(each, LeaseGranted) and first is not None and each.witness.fence < first.fence:
                stale.append(wire.Relinquish(wire.NO_REQUEST, each.witness.domain, each.witness.correlation_id))
                why = "its second half was granted beside an earlier first half"
                found.append(LeaseUnavailable(each.witness.domain, "stale-half", why))
            else:
                found.append(each)
        if stale:
            self._keeper.client(shard).relinquish(stale)
        return found

    def _keep(self, attempt: _AcquireAttempt) -> Obstacle | None:
        """Renew what was taken long ago. An older request may have broken it: then the set begins anew."""
        latest = self._time.now().latest
        for session_lease in self.session_leases.due(latest):
            self.session_leases.renew(session_lease)
        alone = [lease for lease in attempt.taken if lease.session_lease is None]
        due = [lease for lease in alone if is_due(lease, latest, self._policy)]
        for lease, _, result in self._renewed(due, attempt.map.number):
            if isinstance(result, LeaseGranted):
                lease.take(result.signed, result.witness)
            elif not isinstance(result, LeaseUnavailable):
                return result
        return None

    def _upgrade(self, attempt: _AcquireAttempt) -> Obstacle | None:
        obstacle: Obstacle | None = None
        leases = attempt.tentative
        for shard, group in self._grouped(leases):
            results = self._keeper.client(shard).upgrade(
                group,
                term_ns=attempt.term_ns,
                hints_wanted=True,
                map_number=attempt.map.number,
                above=above_of(shard, leases),
            )
            for lease, result in zip(group, results, strict=True):
                if isinstance(result, LeaseGranted):
                    attempt.came = result.came
                    lease.take(result.signed, result.witness, result.hints)
                else:
                    obstacle = obstacle or result
            if obstacle is not None:
                return obstacle
        return None

    def strengthen(
        self, lease: Lease, mode: Mode, timeout_ns: Span, stuck: Callable[[wire.Age | None], bool]
    ) -> wire.Over | None:
        """Give a held lease a stronger mode, or return how it has ended. Blocks up to the time-out.

        While its domain moves both halves are asked for it, the one that leaves first, and the lease has it when both
        have. It waits for other holders only if nobody waits before it: two holders that wait for each other would for
        ever. Raises TryAgain, BadRequest, BadTime: its mode is what it was then.
        """
        deadline = AcquireDeadline(self._time, self._policy, timeout_ns, lambda: stuck(lease.age))
        request_ids: defaultdict[bytes, bytes] = defaultdict(lambda: self._random.randbytes(16))
        while True:
            newest = self._keeper.routes.map
            if newest.half_of(lease.shard) is Half.LEAVING:
                self.session_leases.take_halves([lease], newest)
            with self._keeper.lock:
                both = (lease,) if lease.second is None else (lease, lease.second)
                halves = [each for each in both if newest.half_of(each.shard) is not None]
                half = next((each for each in halves if not covers(each.own_mode, mode)), lease)
                name = half.correlation_id
            wait, keep = deadline.next_call()
            result: Result = LeaseUnavailable(lease.domain, wire.NEWER_MAP, "its other half is not to be had yet")
            if is_as_by(half, newest):
                (result,) = self._keeper.client(half.shard).upgrade(
                    [half],
                    mode=mode,
                    request_id=request_ids[name],
                    term_ns=lease.term_ns,
                    wait_ns=wait,
                    keep_ns=keep,
                    hints_wanted=True,
                    caps=_caps([half]),
                    map_number=newest.number,
                    above=above_of(half.shard, [lease]),
                )
            if isinstance(result, LeaseGranted | wire.Over):
                with self._keeper.lock:
                    standing = half.standing()
                    if standing.correlation_id != name:
                        pass  # the lease has gone on with its other half meanwhile
                    elif isinstance(result, wire.Over):
                        return result
                    else:
                        take_answer(self._keeper, standing, result)
                        if covers(lease.mode, mode):
                            return None
                        if covers(standing.own_mode, mode):
                            continue
                result = LeaseUnavailable(lease.domain, wire.NEWER_MAP, "its halves have not that mode yet")
            raise_final(result)
            assert isinstance(result, LeaseUnavailable | wire.Denied), result
            others_wait = isinstance(result, wire.Denied) and result.place > 1
            if deadline.over() or others_wait:
                raise given_up_for(result, timeout_ns)
            deadline.pause(self._random)

    def renew(self, leases: Sequence[Lease]) -> list[Renewal]:
        """Ask for renewals, and say where was written; the caller applies what comes back. Raises BadTime.

        A lease whose domain moves is taken from the shard that comes first. What is not held as the newest map says,
        and what a shard has that does not go by it yet, is renewed by the map before. Of a lease whose own shard has
        gone the second half is asked for, until it is granted whole.
        """
        newest = self._keeper.routes.map
        self.session_leases.catch_up(leases, newest)
        halves = [(each, each.second) for each in leases]  # once: another thread may let it go on with that meanwhile
        leases = [
            second if second is not None and newest.half_of(each.shard) is None else each for each, second in halves
        ]
        leases = list(dict.fromkeys(leases))
        self.session_leases.take_halves([each for each in leases if newest.half_of(each.shard) is Half.LEAVING], newest)
        ready = [each for each in leases if is_as_by(each, newest)]
        answers = self._renewed(ready, newest.number)
        late = {
            lease
            for lease, _, result in answers
            if isinstance(result, LeaseUnavailable) and result.code == wire.MAP_NOT_YET
        }
        again = [each for each in leases if each in late or (each not in ready and newest.before is not None)]
        return [each for each in answers if each[0] not in late] + self._renewed(again, newest.number - 1)

    def _renewed(self, leases: Sequence[Lease], map_number: int) -> list[Renewal]:
        answers: list[Renewal] = []
        for term_ns in sorted({lease.term_ns for lease in leases}):
            for shard, group in self._grouped(lease for lease in leases if lease.term_ns == term_ns):
                news = {lease.correlation_id: own for lease in group if (own := lease.unsaid()) is not None}
                names = [lease.correlation_id for lease in group]
                results = self._keeper.client(shard).renew(
                    group,
                    term_ns=term_ns,
                    hints=news,
                    caps=_caps(group),
                    give_up_ns=self._first_end(group),
                    map_number=map_number,
                )
                for lease, name, result in zip(group, names, results, strict=True):
                    if isinstance(result, LeaseGranted) and lease.correlation_id in news:
                        lease.told = news[lease.correlation_id]
                    answers.append((lease, name, result))
        return answers

    def _first_end(self, leases: Iterable[Lease]) -> Instant | None:
        """Return when the first of these that can still be kept is over."""
        latest = self._time.now().latest
        ends = (lease.usable_until_ns(self._policy.holder_margin_ns) for lease in leases)
        return min((end for end in ends if end > latest), default=None)

    def relinquish(
        self, leases: Sequence[Lease], until_boot_ns: int | None = None, doubtful: Container[Lease] = ()
    ) -> None:
        """Give leases back; they are over for the session. What cannot be given back expires. Raises nothing.

        Each lease says whether it was delivered. ``until_boot_ns``: each shard has its share of the time until then.
        ``doubtful``: it is not known what was written under these. They expire, and nobody is told; but those under a
        session lease, which is renewed, have to be ended by name.
        """
        halves = [half for lease in leases for half in (lease, lease.second) if half is not None]
        groups = self._grouped(
            half for half in halves if half.session_lease is not None or (half.first or half) not in doubtful
        )
        words = {
            half: _giving(half, abandoned=(half.first or half) in doubtful) for _, group in groups for half in group
        }
        left = self.session_leases.leave(words)  # all, before a shard is asked: whatever ends that, they are owed
        for place, (shard, group) in enumerate(reversed(groups)):
            if self._keeper.routes.map.owner_of(shard) is None:  # it has gone, and what it had is the other half's
                for half in group:
                    half.delivered = half.second is not None
                continue
            givings = {half: words[half] for half in group}
            try:
                give_up = None
                if until_boot_ns is not None:
                    share = (until_boot_ns - self._time.boot_ns()) // (len(groups) - place)
                    give_up = self._time.now().latest + share
                for session_lease in (each for each in left if each.shard == shard):
                    mine = [lease for lease in givings if lease.session_lease is session_lease]
                    answer = self.session_leases.drop(session_lease, mine, give_up)
                    if answer is not None:
                        for lease in mine:
                            lease.delivered = isinstance(answer, wire.Over)
                            del givings[lease]
                results = self._keeper.client(shard).relinquish(list(givings.values()), give_up)
            except TenureError as problem:
                _log.warning("relinquish-failed shard=%d code=%s reason=%s", shard, problem.code, problem.message)
                continue
            for lease, result in zip(givings, results, strict=True):
                if lease.session_lease is not None:
                    self.session_leases.acknowledge(lease.session_lease, [givings[lease]], [result])
                lease.delivered = isinstance(result, wire.Over)
                if not lease.delivered:
                    _log.warning("relinquish-unanswered domain=%s %s", lease.domain, answer_text(result))

        for lease in leases:
            if lease.second is not None:
                lease.delivered = lease.delivered and lease.second.delivered

    def _ask(self, shard: int, domain: str, attempt: _AcquireAttempt, sent: ClockLook) -> Ask:
        ask = attempt.asks.get((shard, domain))
        if ask is None:
            ask = self._keeper.client(shard).ask(domain, attempt.age, attempt.wanted[domain], sent)
            attempt.age = ask.age
            attempt.asks[shard, domain] = ask
        return ask

    @staticmethod
    def _grouped(leases: Iterable[Lease]) -> list[tuple[int, list[Lease]]]:
        groups: dict[int, list[Lease]] = {}
        for lease in leases:
            groups.setdefault(lease.shard, []).append(lease)
        return sorted(groups.items())


def _caps(leases: Iterable[Lease]) -> dict[bytes, Instant]:
    """Return until when those may be kept at all of which that was said, each as half of a lease. Raises BadTime."""
    caps = {half.correlation_id: (half.first or half).cap_ns() for half in leases}
    return {name: cap for name, cap in caps.items() if cap is not None}


def _giving(lease: Lease, *, abandoned: bool) -> wire.Relinquish:
    if abandoned:
        return wire.Relinquish(wire.NO_REQUEST, lease.domain, lease.correlation_id, abandoned=True)
    return wire.Relinquish(
        wire.NO_REQUEST,
        lease.domain,
        lease.correlation_id,
        lease.watermark_ns,
        lease.watermark_time,
        lease.messages,
        lease.chain_head,
        lease.unsaid() or NOTHING_WRITTEN,
    )
