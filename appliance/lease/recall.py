"""Recalls: holders are told that others ask for their leases (docs/protocol/lease.md, "Recall").

A request that a lease is in the way of makes the shard tell that lease's holder, over a call that it lets be held back
for that. It is advice, and nothing waits for it: the lease ends as every other, by its holder's word or by its expiry.
Each recall has a number; a holder says the highest that it has heard, so that a lost answer is given again and nothing
is told twice. Nothing here is stored: a shard that starts afresh has granted nothing that could be asked back.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from timeagent.units import SECOND, Instant, Span

from ..formats.lease import Holder, Mode, Phase, conflicts
from .decisions import named
from .domain import Command, Grant, LeaseRecord, State
from .wire import Attend, Denied, Encoded, Recalled, Reply, Unavailable, Upgrade, WantedLease

ATTEND_NS_MAX: Final = 60 * SECOND
"""How long one call is held back at most."""

TOLD_MAX: Final = 1024
"""How many leases one answer names: the next answer names the rest."""

ATTENDERS_MAX: Final = 16_384
"""How many holders one shard tells; who comes then is answered at once, and asks again later."""


def asked_back(state: State, command: Command) -> tuple[Holder, Mode, list[LeaseRecord]] | None:
    """Return who asks, for which mode, and the leases that have to go before a denied request can have it. Pure.

    A tentative one is not among them: its holder is about to make it held, or to give up, and an older request ends it.
    """
    own = None
    if isinstance(command, Grant):
        by, mode = command.request.holder, command.request.mode
    elif isinstance(command, Upgrade) and (own := named(state, command.correlation_id)) is not None:
        by, mode = own.holder, command.mode or own.mode
    else:
        return None
    held = (each for each in state.leases if each.phase is Phase.HELD and each is not own)
    return by, mode, [each for each in held if conflicts(each.mode, mode)]


@dataclass(slots=True, eq=False)
class _Recall:
    """One lease that is asked for."""

    number: int
    holder: Holder
    wanted: WantedLease
    told_ns: Instant = 0


@dataclass(slots=True, eq=False)
class _Theirs:
    """The leases of one holder that are asked for: there may be a hundred thousand."""

    of: dict[bytes, _Recall] = field(default_factory=dict)
    numbered: list[_Recall] = field(default_factory=list)
    """In the order of their numbers, with some that are over."""

    def add(self, name: bytes, recall: _Recall) -> None:
        """Take another, which has the highest number."""
        self.of[name] = recall
        self.numbered.append(recall)

    def end(self, name: bytes) -> None:
        del self.of[name]
        if len(self.numbered) > 2 * len(self.of) + TOLD_MAX:
            self.numbered = list(self.of.values())

    def after(self, number: int) -> list[_Recall]:
        """Return the next ones behind a number, as many as one answer names."""
        found: list[_Recall] = []
        position = bisect_right(self.numbered, number, key=lambda each: each.number)
        while len(found) < TOLD_MAX and position < len(self.numbered):
            each = self.numbered[position]
            if each.wanted.correlation_id in self.of:
                found.append(each)
            position += 1
        return found


@dataclass(slots=True, eq=False)
class _Listener:
    """The call of one holder whose answer is held back."""

    attend: Attend
    waiter: Waiter
    until_boot_ns: int


class Recalls:
    """The recalls of one incarnation of a shard, and the holders that listen."""

    def __init__(self, run: bytes, boot_ns: Callable[[], int]) -> None:
        """Know of none. ``run``: the shard's incarnation."""
        self._run = run
        self._boot_ns = boot_ns
        self.number = 0
        self.asked: dict[bytes, _Recall] = {}
        """The leases that are asked for, by their correlation ids."""
        self._by_holder: dict[Holder, _Theirs] = {}
        self._listeners: dict[Holder, _Listener] = {}
        self._by_waiter: dict[Waiter, Holder] = {}
        self._timers: list[tuple[int, int, Holder]] = []
        self._ready: dict[Holder, None] = {}
        self._stopping = False

    # -- what is asked for ---------------------------------------------------------------------------------------------

    def denied(self, denied: Denied, state: State, command: Command, now: Instant) -> Denied:
        """Ask for the leases that are in the way of a request; say in its denial since when their holder knows."""
        asked = asked_back(state, command)
        if asked is None:
            return denied
        by, mode, leases = asked
        told = [self._want(denied.domain, lease, mode, by, now) for lease in leases]
        first = next((when for lease, when in zip(leases, told, strict=True) if lease.holder == denied.holder), 0)
        return msgspec.structs.replace(denied, recalled_ns=first) if first else denied

    def _want(self, domain: str, lease: LeaseRecord, mode: Mode, by: Holder, now: Instant) -> Instant:
        known = self.asked.get(lease.correlation_id)
        if known is None:
            self.number += 1
            wanted = WantedLease(domain=domain, correlation_id=lease.correlation_id, mode=mode, by=by, since_ns=now)
            known = self.asked[lease.correlation_id] = _Recall(self.number, lease.holder, wanted)
            self._by_holder.setdefault(lease.holder, _Theirs()).add(lease.correlation_id, known)
        listener = self._listeners.get(lease.holder)
        if not known.told_ns and listener is not None and not listener.waiter.gone:
            known.told_ns = now
            self._ready[lease.holder] = None
        return known.told_ns

    def ended(self, correlation_id: bytes) -> None:
        """Forget a lease that is over."""
        recall = self.asked.pop(correlation_id, None)
        if recall is not None:
            theirs = self._by_holder[recall.holder]
            theirs.end(correlation_id)
            if not theirs.of:
                del self._by_holder[recall.holder]

    def stop(self) -> None:
        """Ask for all leases back: the shard stops in good order."""
        self._stopping = True
        self._ready.update(dict.fromkeys(self._listeners))

    # -- who listens ---------------------------------------------------------------------------------------------------

    def attend(self, attend: Attend, waiter: Waiter | None, now: Instant) -> Recalled | None:
        """Take a holder's call; None: its answer is held back. An earlier call of this holder is answered."""
        holder = attend.holder
        if holder in self._listeners:
            self._answer(holder)
        news = self._news(attend)
        at_once = news or self._stopping or waiter is None or not attend.wait_ns
        if at_once or len(self._listeners) >= ATTENDERS_MAX:
            for each in news:
                each.told_ns = each.told_ns or now
            return self._recalled(attend, news)
        assert waiter is not None
        until = self._boot_ns() + min(attend.wait_ns, ATTEND_NS_MAX)
        self._listeners[holder] = _Listener(attend, waiter, until)
        self._by_waiter[waiter] = holder
        heapq.heappush(self._timers, (until, id(waiter), holder))
        return None

    def _heard(self, attend: Attend) -> int:
        return attend.heard if attend.run == self._run else 0

    def _news(self, attend: Attend) -> list[_Recall]:
        theirs = self._by_holder.get(attend.holder)
        return [] if theirs is None else theirs.after(self._heard(attend))

    def _recalled(self, attend: Attend, news: list[_Recall]) -> Recalled:
        return Recalled(
            request_id=attend.request_id,
            run=self._run,
            heard=news[-1].number if news else self._heard(attend),
            wanted=tuple(each.wanted for each in news),
            stopping=self._stopping,
        )

    def _answer(self, holder: Holder) -> None:
        listener = self._listeners.pop(holder)
        del self._by_waiter[listener.waiter]
        self._ready.pop(holder, None)
        if not listener.waiter.gone:
            listener.waiter.answer(self._recalled(listener.attend, self._news(listener.attend)))

    def answer_ready(self) -> None:
        """Answer those whose leases are asked for, and those who have waited long enough."""
        for holder in list(self._ready):
            self._answer(holder)
        boot = self._boot_ns()
        while self._timers and self._timers[0][0] <= boot:
            until, _, holder = heapq.heappop(self._timers)
            listener = self._listeners.get(holder)
            if listener is not None and listener.until_boot_ns <= until:
                self._answer(holder)

    def due_in(self) -> Span | None:
        """Return how long until somebody has to be answered; None: nobody listens."""
        if self._ready:
            return 0
        while self._timers:
            until, _, holder = self._timers[0]
            listener = self._listeners.get(holder)
            if listener is not None and listener.until_boot_ns == until:
                return max(0, until - self._boot_ns())
            heapq.heappop(self._timers)
        return None

    def abandon(self, waiters: Iterable[Waiter]) -> None:
        """Forget listeners whose connection is closed."""
        for waiter in waiters:
            holder = self._by_waiter.pop(waiter, None)
            if holder is not None:
                del self._listeners[holder]
                self._ready.pop(holder, None)

    def dismiss(self, code: str, message: str) -> None:
        """Tell everybody who listens that it is in vain, and forget all leases."""
        for listener in self._listeners.values():
            listener.waiter.answer(Unavailable(request_id=listener.attend.request_id, code=code, message=message))
        for each in (self._listeners, self._by_waiter, self.asked, self._by_holder, self._ready):
            each.clear()
        self._timers.clear()


class Waiter(Protocol):
    """A call whose answer is held back."""

    @property
    def gone(self) -> bool:
        """Whether nobody hears the answer any more: the connection is closed."""
        ...

    def answer(self, reply: Reply | Encoded) -> None:
        """Take the answer. Called once at most; never blocks."""
        ...
