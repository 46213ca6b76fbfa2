"""``Semaphore(n)``: at most n holders at a time, of all nodes: licences, GPU slots, connections.

```python
with Semaphore(session, "licence", 4) as hold: ...
```

n slots, each a domain of its own, and one **turnstile**, all in one tree and so in one shard:

    /semaphore:licence/turn             whoever has this chooses a slot, and nobody else does
    /semaphore:licence/4/0 .. 4/3       the slots

1. **Turn.** Whoever wants a slot takes the turnstile first: the shard's queue does the waiting, in order of coming.
2. **Look.** The one who has it asks the shard once which slots are taken.
3. **Slot.** It takes a free one; where there is none it waits in the queue of the one whose lease expires first, a
   moment at a time, and looks again: a slot of a holder that died is that one.
4. **Check.** The slot counts only if the turnstile is still surely held after it was granted. Else it goes back.

So an acquire costs four requests, whatever n is, and all who wait cost one who looks some times a second. Who waits for
its turn looks once, too: who has that may wait for slots of another n, and one of the two has to be told at once.

**Never n + 1.** A slot has one holder at a time (``acquire`` waits for those who may still believe to have it). **n is
part of the slots' names**, and who has the turn and finds a slot of another n taken is refused, ``semaphore-size``. So
slots of two sizes are never in use at once: each was taken within its taker's turn (4), turns exclude each other, and
what an earlier turn took a later look (2) shows, or, where the shard has forgotten it, the later turn began when all
of that was surely past. n changes when nobody has a slot of the old one.

Who dies with the turn keeps the others waiting for the rest of its lease, as a holder of any lease does.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from appliance.formats.names import check_domain
from timeagent.errors import BadRequest, BadTime, LeaseLost, TryAgain, check_type
from timeagent.units import MS, SECOND, span_of

from .exclusion import PATIENCE_S, Hold, Tool, never, unseen

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from appliance.lease.wire import Denied, LeaseView
    from appliance.session.held import Lease
    from appliance.session.session import Session
    from timeagent.units import Seconds

LOOK_NS: Final = 250 * MS
"""How long the first of those who wait stays in one slot's queue before it looks again.

And for less than an attempt's time-out: older requests wait for its turn, and it is in no circle (``Circle``)."""

SIZE_MAX: Final = 10_000


def tree_of(kind: str, name: str) -> str:
    """Return the tree of a tool: one shard has all of it. A slash in the name is part of the name."""
    return check_domain(f"/{kind}:" + name.replace("%", "%25").replace("/", "%2F"))


class Semaphore(Tool[Hold]):
    """One of ``n`` slots of a name."""

    def __init__(self, session: Session, name: str, n: int) -> None:
        """Ask nobody yet. Raises BadRequest for a bad name or number."""
        super().__init__(session)
        check_type(str, name=name)
        check_type(int, n=n)
        if not 1 <= n <= SIZE_MAX:
            raise BadRequest("bad-size", f"a semaphore of {n}", hint=f"1 to {SIZE_MAX}")
        self._tree = tree_of("semaphore", name)
        self._turn = check_domain(f"{self._tree}/turn")
        self._slots = [check_domain(f"{self._tree}/{n}/{slot}") for slot in range(n)]

    def acquire(
        self,
        *,
        timeout_s: Seconds = PATIENCE_S,
        given_up: Callable[[], bool] = never,
        waiting: Callable[[Denied], object] = unseen,
    ) -> Hold:
        """Take a slot; see ``Tool.acquire``. Waits in order of coming.

        Raises BadRequest, code ``semaphore-size``, while others have slots of another n; ``held-here`` where this
        session has all of them.
        """
        session, standing = self._session, self._session.standing
        time = standing.time
        until = time.boot_ns() + span_of(timeout_s, "timeout_s")
        if all(standing.in_use(slot) for slot in self._slots):
            raise BadRequest("held-here", f"this session has all of {self._tree!r}", hint="give one back first")
        misfits: list[str] | None = None

        def look(denied: Denied) -> None:
            nonlocal misfits
            if misfits is None:
                misfits = []
                with contextlib.suppress(TryAgain, BadTime):  # who has the turn looks too
                    now = time.now()
                    views = [each for each in standing.leases_below(self._tree) if not now.surely_past(each.expiry_ns)]
                    misfits += (each.domain for each in views if each.domain not in (*self._slots, self._turn))
            waiting(denied)

        while True:
            left = max(0, until - time.boot_ns()) / SECOND
            try:
                turns = session.acquire(
                    self._turn, timeout_s=left, given_up=lambda: bool(misfits) or given_up(), waiting=look
                )
            except TryAgain:
                if misfits:
                    raise self._misfit(misfits[0]) from None
                raise
            with turns as (turn,):
                try:
                    return self._chosen(turn, until, given_up, waiting)
                except LeaseLost:
                    if time.boot_ns() >= until or given_up():
                        raise TryAgain("busy", f"the turn at {self._tree!r} was lost", hint="try again") from None

    def _chosen(
        self,
        turn: Lease,
        until_boot_ns: int,
        given_up: Callable[[], bool],
        waiting: Callable[[Denied], object],
    ) -> Hold:
        """Return a slot that was taken within this turn. Raises LeaseLost, TryAgain, BadRequest, BadTime."""
        session, standing = self._session, self._session.standing
        look = min(LOOK_NS, standing.policy.attempt_timeout_ns // 2)
        while True:
            slot = self._next(standing.leases_below(self._tree))
            left = max(0, until_boot_ns - standing.time.boot_ns())
            try:
                (lease,) = session.acquire(slot, timeout_s=min(look, left) / SECOND, given_up=given_up, waiting=waiting)
            except TryAgain:
                if left <= look or given_up():
                    raise
                session.renew_due()
                turn.check()
                continue
            try:
                turn.check()
            except (LeaseLost, BadTime):
                session.relinquish([lease])
                raise
            return Hold(session, lease)

    def _is_over(self, domain: str) -> bool:
        """Whether nobody has a slot of another n any more, as its shard says: it may have been renewed meanwhile."""
        try:
            with self._session.acquire(domain, timeout_s=0):
                return True
        except TryAgain:
            return False

    def _misfit(self, domain: str) -> BadRequest:
        """Return what is told to who meets a slot of another n."""
        *_, size, slot = domain.split("/")
        return BadRequest(
            "semaphore-size",
            f"{self._tree!r} is a semaphore of {size} (slot {slot} is taken), and {len(self._slots)} were asked for",
            hint=f"ask for {size}, as the others do; another number counts once nobody has a slot of {size}",
        )

    def _next(self, views: Sequence[LeaseView]) -> str:
        """Return a slot that is free, or the one whose lease expires first. Raises BadRequest, ``semaphore-size``."""
        standing = self._session.standing
        now = standing.time.now()
        expiries = {each.domain: each.expiry_ns for each in views if each.domain != self._turn}
        for domain, expiry in expiries.items():
            if domain not in self._slots and not (now.surely_past(expiry) and self._is_over(domain)):
                raise self._misfit(domain)
        mine = {each.domain for each in views if each.holder == standing.holder}
        others = [slot for slot in self._slots if slot not in mine]
        return min(others or self._slots, key=lambda slot: expiries.get(slot, 0))
