"""Who waits for a domain, in the order in which they came (docs/protocol/lease.md, "Queues").

A *place* belongs to a request, by its id. Its waiter is the call whose answer is held back; between two calls of the
same request the place is kept for a while, so that a call that was answered "not yet" can be followed by the next.
Whoever is gone has no place: a lease is never granted to somebody who does not hear of it. Nothing here decides who may
have what, and nothing is stored: a shard that starts afresh has no queues.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from timeagent.units import Instant, Span

    from ..formats.lease import Holder
    from .wire import Acquire, Age, Denied, Reply, Upgrade

WAITING_MAX: Final = 65_536
"""How many requests may wait at one shard; who comes then is denied at once, without a place."""

QUEUE_MAX: Final = 1_024
"""How many of them for one domain."""


class Waiter(Protocol):
    """A call whose answer is held back."""

    @property
    def gone(self) -> bool:
        """Whether nobody hears the answer any more: the connection is closed."""
        ...

    def answer(self, reply: Reply) -> None:
        """Take the answer. Called once at most; never blocks."""
        ...


class Place(msgspec.Struct, eq=False):
    """One request that waits."""

    request: Acquire | Upgrade
    holder: Holder
    age: Age
    denied: Denied
    """Why it could not be had when it was last looked at."""
    waiter: Waiter | None
    """None: kept between two calls."""
    since_ns: Instant
    until_boot_ns: int
    """By when the waiter is answered, or how long the place is kept without one."""


class Queues:
    """The queues of one shard, one for each domain that somebody waits for."""

    def __init__(self) -> None:
        """Begin without any."""
        self.count = 0
        """How many places there are."""
        self._places: dict[str, list[Place]] = {}
        self._of: dict[Waiter, tuple[str, Place]] = {}
        self._timers: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def full(self, domain: str) -> bool:
        """Whether nobody more can wait for a domain."""
        return self.count >= WAITING_MAX or self.waiting(domain) >= QUEUE_MAX

    def all(self) -> list[tuple[str, Place]]:
        """Return every place, with its domain."""
        return [(domain, place) for domain, places in self._places.items() for place in places]

    @property
    def domains(self) -> Container[str]:
        """The domains for which somebody waits, as they are whenever it is looked at."""
        return self._places

    def waits_for(self, domain: str) -> bool:
        """Whether somebody waits for it."""
        return domain in self._places

    def waiting(self, domain: str) -> int:
        """Return how many wait for a domain."""
        return len(self._places.get(domain, ()))

    def before(self, domain: str, request_id: bytes) -> list[Place]:
        """Return the places before that of a request: all of them where it has none."""
        places = self._places.get(domain, [])
        for index, place in enumerate(places):
            if place.request.request_id == request_id:
                return places[:index]
        return places[:]

    def first(self, domain: str) -> Place | None:
        """Return the first place of a domain's queue."""
        places = self._places.get(domain)
        return places[0] if places else None

    def oldest(self, domain: str) -> Place | None:
        """Return the place of a domain's oldest request."""
        return min(self._places.get(domain, ()), key=lambda each: each.age, default=None)

    def places(self, domain: str) -> list[Place]:
        """Return a domain's places in order, as they are now."""
        return list(self._places.get(domain, ()))

    def place_of(self, domain: str, request_id: bytes) -> Place | None:
        """Return the place of a request."""
        places = self._places.get(domain, ())
        return next((each for each in places if each.request.request_id == request_id), None)

    def enter(self, domain: str, place: Place) -> None:
        """Add a place at the end."""
        self._places.setdefault(domain, []).append(place)
        self.count += 1
        if place.waiter is not None:
            self._of[place.waiter] = domain, place
        self.look_at(domain, place.until_boot_ns)

    def hand_on(self, domain: str, place: Place, waiter: Waiter | None, until_boot_ns: int) -> None:
        """Give a place to another call of its request, or to none."""
        if place.waiter is not None:
            self._of.pop(place.waiter, None)
        place.waiter, place.until_boot_ns = waiter, until_boot_ns
        if waiter is not None:
            self._of[waiter] = domain, place
        self.look_at(domain, until_boot_ns)

    def remove(self, domain: str, place: Place) -> None:
        """Take a place out."""
        places = self._places[domain]
        places.remove(place)
        self.count -= 1
        if place.waiter is not None:
            self._of.pop(place.waiter, None)
        if not places:
            del self._places[domain]

    def abandon(self, waiters: Iterable[Waiter], boot_ns: int) -> None:
        """Take out the places of those who are gone; whoever is behind them is looked at next."""
        for waiter in waiters:
            found = self._of.get(waiter)
            if found is not None:
                self.remove(*found)
                self.look_at(found[0], boot_ns)

    # -- when to look again --------------------------------------------------------------------------------------------

    def look_at(self, domain: str, boot_ns: int) -> None:
        """Look at a domain's queue at that time, or before."""
        if boot_ns < self._timers.get(domain, 2**63):
            self._timers[domain] = boot_ns
            heapq.heappush(self._heap, (boot_ns, domain))

    def due_in(self, boot_ns: int) -> Span | None:
        """Return how long until a queue has to be looked at; None: nobody waits."""
        while self._heap and self._timers.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return max(0, self._heap[0][0] - boot_ns) if self._heap else None

    def due(self, boot_ns: int) -> list[str]:
        """Return the domains whose queues have to be looked at now, each once."""
        found: list[str] = []
        while self.due_in(boot_ns) == 0:
            _, domain = heapq.heappop(self._heap)
            del self._timers[domain]
            found.append(domain)
        return found
