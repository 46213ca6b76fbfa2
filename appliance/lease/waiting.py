"""The queues of requests that wait for a domain (docs/protocol/lease.md, "Queues").

First come, first served, woken by the shard, never when they are gone. A *place* belongs to a request, by its id. Its
waiter is the call whose answer is held back; between two calls of the same request the place is kept for a while, so
that a call that was answered "not yet" can be followed by the next. Whoever is gone has no place: a lease is never
granted to somebody who does not hear of it. Nothing is stored: a shard that starts afresh has no queues.

A grant is made when its waiter is woken, with the fence and the expiry of then. Only the first of a queue is tried: who
comes later does not pass, not even where its mode would go with those that are out, so that a stream of readers cannot
keep a writer out. One exception: the oldest, where the first waits for a tentative lease (``decisions.decide``).
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile
from typing import Final

import msgspec

from timeagent.clock import NodeTime
from timeagent.units import MS, SECOND, Instant, Span, TimeInterval

from ..formats.lease import Holder
from .domain import Ahead
from .recall import Recalls, Waiter
from .turn import Draft, Later, PlainLater
from .wire import Acquire, Age, Attend, Denied, Reason, Recalled, Unavailable, Upgrade

WAITING_MAX: Final = 65_536
"""How many requests may wait at one shard; who comes then is denied at once, without a place."""

QUEUE_MAX: Final = 1_024
"""How many of them for one domain."""


type Waited = Callable[[str, Span, bool], None]
"""Told of each request that leaves a queue: its domain, how long it was there, and whether it was granted."""

type Decide = Callable[[Acquire | Upgrade], Draft | PlainLater]
"""Decides a request as it is now."""


class QueuedRequest(msgspec.Struct, eq=False):
    request: Acquire | Upgrade
    holder: Holder
    age: Age
    denied: Denied
    """Why it could not be had when it was last looked at."""
    waiter: Waiter | None
    """None: kept between two calls."""
    since_ns: Instant
    since_boot_ns: int
    until_boot_ns: int
    """By when the waiter is answered, or how long the place is kept without one."""


WAIT_NS_MAX: Final = 60 * SECOND
"""How long one answer is held back at most."""

KEEP_NS_MAX: Final = 2 * SECOND
"""How long a place is kept between two calls at most: as long may a domain stay free for somebody who has died."""

_RETRY_NS: Final = 100 * MS
"""When to look again without usable time, or where an instant that was named has come in vain."""


class WaitingRoom:
    """The queues of one shard, one for each domain that somebody waits for, with the clock of their waits."""

    def __init__(self, time: NodeTime, recalls: Recalls, waited: Waited) -> None:
        """Begin empty. ``recalls``: those who are in the way, whose calls are held back too."""
        self._time = time
        self._waited = waited
        self.recalls = recalls
        self.count = 0
        """How many requests wait."""
        self.domains: dict[str, dict[bytes, QueuedRequest]] = {}
        """The places of each domain for which somebody waits, in order, by their requests' ids. No queue is empty."""
        self._of: dict[Waiter, tuple[str, QueuedRequest]] = {}
        self._timers: dict[str, int] = {}
        """When to look at each queue: not after the first of its places has waited long enough."""
        self._heap: list[tuple[int, str]] = []
        self._woken: list[tuple[Waiter, bytes, Draft | PlainLater]] = []

    # -- places --------------------------------------------------------------------------------------------------------

    def waiting(self, domain: str) -> int:
        """Return how many requests wait for a domain."""
        return len(self.domains.get(domain, ()))

    def _number(self, domain: str, request_id: bytes) -> int:
        """Return which place a request has; of one that has none, which it would get."""
        places = self.domains.get(domain, {})
        return list(places).index(request_id) + 1 if request_id in places else len(places) + 1

    def _enter(self, domain: str, place: QueuedRequest) -> None:
        """Add a place at the end."""
        self.domains.setdefault(domain, {})[place.request.request_id] = place
        self.count += 1
        if place.waiter is not None:
            self._of[place.waiter] = domain, place
        self._look_at(domain, place.until_boot_ns)

    def _hand_on(self, domain: str, place: QueuedRequest, waiter: Waiter | None, until_boot_ns: int) -> None:
        """Give a place to another call of its request, or to none."""
        if place.waiter is not None:
            self._of.pop(place.waiter, None)
        place.waiter, place.until_boot_ns = waiter, until_boot_ns
        if waiter is not None:
            self._of[waiter] = domain, place
        self._look_at(domain, until_boot_ns)

    def _remove(self, domain: str, place: QueuedRequest, draft: Draft | PlainLater | None = None) -> None:
        """Take a place out; ``draft``: what its request is answered."""
        self._waited(domain, self._time.boot_ns() - place.since_boot_ns, isinstance(draft, Later | tuple))
        places = self.domains[domain]
        del places[place.request.request_id]
        self.count -= 1
        if place.waiter is not None:
            self._of.pop(place.waiter, None)
        if not places:
            del self.domains[domain]

    # -- when to look again --------------------------------------------------------------------------------------------

    def _look_at(self, domain: str, boot_ns: int) -> None:
        """Look at a domain's queue at that time, or before."""
        if boot_ns < self._timers.get(domain, 2**63):
            self._timers[domain] = boot_ns
            heapq.heappush(self._heap, (boot_ns, domain))

    def _next_look(self, boot_ns: int) -> Span | None:
        while self._heap and self._timers.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return max(0, self._heap[0][0] - boot_ns) if self._heap else None

    def _due(self, boot_ns: int) -> list[str]:
        """Return the domains whose queues have to be looked at now, each once."""
        found: list[str] = []
        while self._next_look(boot_ns) == 0:
            _, domain = heapq.heappop(self._heap)
            del self._timers[domain]
            found.append(domain)
        return found

    def due_in(self) -> Span | None:
        """Return how long until somebody's wait may be over; None: nobody waits."""
        listens = self.recalls.due_in()
        waits = self._next_look(self._time.boot_ns()) if self.count else None
        if listens is None or waits is None:
            return waits if listens is None else listens
        return min(listens, waits)

    # -- requests ------------------------------------------------------------------------------------------------------

    def ahead(self, domain: str, request_id: bytes) -> Ahead | None:
        """Return who waits before a request, or None."""
        places = self.domains.get(domain)
        if places is None or (first := next(iter(places.values()))).request.request_id == request_id:
            return None
        before = takewhile(lambda each: each.request.request_id != request_id, places.values())
        return Ahead(
            ages=(each.age for each in before),
            holder=first.holder,
            since_ns=first.since_ns,
            until_ns=first.denied.until_ns,
        )

    def receive(
        self,
        request: Acquire | Upgrade,
        draft: Draft,
        waiter: Waiter | None,
        asker: tuple[Holder, Age],
        now: TimeInterval,
    ) -> Draft | None:
        """Take a request that has been decided: None if its answer is held back until it can be had, or its time is up.

        A request that has a place keeps it when it is asked again; an earlier call of it is answered.
        """
        domain = request.domain
        place = self.domains.get(domain, {}).get(request.request_id)
        if place is not None and place.waiter is not None and place.waiter is not waiter:
            self._woken.append((place.waiter, request.request_id, draft))
        boot = self._time.boot_ns()
        if not isinstance(draft, Denied):
            if place is not None:
                self._remove(domain, place, draft)
                self._look_at(domain, boot)
            return draft
        number = self._number(domain, request.request_id)
        denied = msgspec.structs.replace(draft, place=number)
        wait = min(request.wait_ns, WAIT_NS_MAX) if waiter is not None else 0
        keep = min(request.keep_ns, KEEP_NS_MAX)
        waits = wait > 0 or keep > 0
        if place is None and (not waits or self._may_not_wait(request, number)):
            return denied
        until = boot + (wait or keep)
        held_back = waiter if wait else None
        if place is None:
            place = QueuedRequest(request, *asker, denied, held_back, now.midpoint, boot, until)
            self._enter(domain, place)
        elif not waits:
            self._remove(domain, place)
            self._look_at(domain, boot)
            return denied
        else:
            place.request, place.denied = request, denied
            self._hand_on(domain, place, held_back, until)
        if number == 1:
            self._look_when_possible(domain, denied, now, boot)
        return denied if held_back is None else None

    def _may_not_wait(self, request: Acquire | Upgrade, number: int) -> bool:
        """A lease that is held already waits only where no other does: two that wait for each other would for ever."""
        return (
            self.count >= WAITING_MAX
            or self.waiting(request.domain) >= QUEUE_MAX
            or (isinstance(request, Upgrade) and number > 1)
        )

    def call_in(self, changed: Iterable[str], first: Decide, again: Decide, now: TimeInterval) -> None:
        """Let those have their turn who can, and answer those who have waited long enough.

        ``changed``: domains on which something ended or was granted. ``first``: decides a request that nobody waits
        before, ``again`` any.
        """
        boot = self._time.boot_ns()
        waited_for = sorted(each for each in set(changed) if each in self.domains)
        rung = self._due(boot)
        for domain in dict.fromkeys([*waited_for, *rung]):
            self._call_in_firsts(domain, first, again, now, boot)
            while self._send_away(domain, again, boot):
                self._call_in_firsts(domain, first, again, now, boot)
        for domain in rung:
            if domain in self.domains:
                self._look_at(domain, min(place.until_boot_ns for place in self.domains[domain].values()))

    def _call_in_firsts(self, domain: str, first: Decide, again: Decide, now: TimeInterval, boot: int) -> None:
        while (places := self.domains.get(domain)) is not None:
            place = next(iter(places.values()))
            if place.waiter is None:
                return  # it is kept for its next call
            if place.waiter.gone:
                self._remove(domain, place)
                continue
            draft = first(place.request)
            if isinstance(draft, Denied):
                place.denied = msgspec.structs.replace(draft, place=1)
                self._look_when_possible(domain, draft, now, boot)
                if draft.reason is Reason.TENTATIVE:
                    self._call_in_oldest(domain, again)
                return
            self._woken.append((place.waiter, place.request.request_id, draft))
            self._remove(domain, place, draft)

    def _call_in_oldest(self, domain: str, again: Decide) -> None:
        """Let the oldest pass while the first waits for a set that may itself be waiting."""
        while (places := self.domains.get(domain)) is not None:
            place = min(places.values(), key=lambda each: each.age)
            if place is next(iter(places.values())) or place.waiter is None:
                return
            draft = None
            if not place.waiter.gone:
                draft = again(place.request)
                if isinstance(draft, Denied):
                    return
                self._woken.append((place.waiter, place.request.request_id, draft))
            self._remove(domain, place, draft)

    def _send_away(self, domain: str, again: Decide, boot: int) -> bool:
        """Answer those whose time is over, with what stands in their way now. True if the first of the queue has gone.

        Between two calls of its request a place is kept, and loses itself when the second does not come.
        """
        first_has_gone = False
        for place in list(self.domains.get(domain, {}).values()):
            if boot < place.until_boot_ns:
                continue
            number = self._number(domain, place.request.request_id)
            kept, draft = False, None
            if place.waiter is not None and not place.waiter.gone:
                draft = again(place.request)
                keep = min(place.request.keep_ns, KEEP_NS_MAX)
                if isinstance(draft, Denied):
                    draft = msgspec.structs.replace(draft, place=number)
                    kept = keep > 0
                self._woken.append((place.waiter, place.request.request_id, draft))
                if kept:
                    self._hand_on(domain, place, None, boot + keep)
            if not kept:
                self._remove(domain, place, draft)
                first_has_gone = first_has_gone or number == 1
        return first_has_gone

    def _look_when_possible(self, domain: str, denied: Denied, now: TimeInterval, boot: int) -> None:
        ahead = denied.earliest_ns - now.midpoint
        # A denial that names an instant that has come must not keep the loop looking for ever.
        self._look_at(domain, boot + (ahead if ahead > 0 else _RETRY_NS))

    def attend(self, request: Attend, waiter: Waiter | None, now: Instant) -> Recalled | None:
        """Take a holder's call; None: its answer is held back. Who is answered at once hears which waiter is oldest."""
        answer = self.recalls.attend(request, waiter, now)
        if answer is None or not self.count:
            return answer
        wanted = []
        for each in answer.wanted:
            places = self.domains.get(each.domain, {}).values()
            ages = (place.age for place in places if place.holder != request.holder)
            wanted.append(msgspec.structs.replace(each, oldest=min(ages, default=None)))
        return msgspec.structs.replace(answer, wanted=tuple(wanted))

    @contextlib.contextmanager
    def waking(self) -> Iterator[None]:
        """Do a turn: where it raises nobody has been woken. Who has lost a place by it asks again, and gets another."""
        try:
            yield
        except BaseException:
            self._woken.clear()
            raise

    def take_woken(self) -> list[tuple[Waiter, bytes, Draft | PlainLater]]:
        """Return who has been answered since, by which request, with what. Whoever is asked for a lease is told."""
        self.recalls.answer_ready()
        woken, self._woken = self._woken, []
        return woken

    def abandon(self, waiters: Iterable[Waiter]) -> None:
        """Forget waiters whose connection is closed; whoever is behind them is looked at next."""
        gone = list(waiters)
        for waiter in gone:
            if waiter in self._of:
                domain, place = self._of[waiter]
                self._remove(domain, place)
                self._look_at(domain, self._time.boot_ns())
        self.recalls.abandon(gone)

    def dismiss(self, code: str, message: str) -> None:
        """Tell everybody who waits that it is in vain; also those who were to be told something else."""
        for waiter, request_id, _ in self.take_woken():
            waiter.answer(Unavailable(request_id=request_id, code=code, message=message))
        for domain, place in [(domain, each) for domain, places in self.domains.items() for each in places.values()]:
            if place.waiter is not None:
                place.waiter.answer(Unavailable(request_id=place.request.request_id, code=code, message=message))
            self._remove(domain, place)

    def stop(self, code: str, message: str) -> None:
        """Send everybody away who waits, and ask for all leases back: the shard stops in good order."""
        self.dismiss(code, message)
        self.recalls.stop()
        self.recalls.answer_ready()

    def close(self, code: str, message: str) -> None:
        """Send everybody away: there are no leases any more."""
        self.dismiss(code, message)
        self.recalls.dismiss(code, message)

    def dismiss_due(self, code: str, message: str) -> None:
        """Answer those who have waited or listened long enough while nothing can be decided."""
        self.recalls.answer_ready()
        boot = self._time.boot_ns()
        for domain in self._due(boot):
            for place in list(self.domains.get(domain, {}).values()):
                if boot < place.until_boot_ns:
                    continue
                if place.waiter is not None:
                    place.waiter.answer(Unavailable(request_id=place.request.request_id, code=code, message=message))
                self._remove(domain, place)
            for place in self.domains.get(domain, {}).values():
                self._look_at(domain, min(boot + _RETRY_NS, place.until_boot_ns))
