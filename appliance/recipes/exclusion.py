"""``Mutex``, ``RWLock``, ``Semaphore``, and what they share: ``Tool``, which is taken, and ``Hold``, what one has then.

How they are used stands in docs/recipes/README.md. The domain of a mutex is its name: ``tenure run --lease deploy``,
``tenure lock deploy`` and ``session.acquire("deploy")`` are excluded too.

A **semaphore** is n slots, each a domain of its own, and one **turnstile**, all in one tree and so in one shard:

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
from abc import ABC, abstractmethod
from threading import local
from typing import TYPE_CHECKING, Final, Self

from appliance.formats.lease import Mode, covers
from appliance.formats.names import check_domain
from appliance.session.session import Session
from timeagent.errors import BadRequest, BadTime, LeaseLost, TryAgain, check_callable, check_type
from timeagent.units import MS, SECOND, span_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from appliance.lease.wire import Denied, LeaseView
    from appliance.session.held import Lease, Listener
    from timeagent.clock import NodeTime
    from timeagent.units import Seconds, Span

PATIENCE_S: Final = 30.0
"""How long is waited where nothing is said."""

LOOK_NS: Final = 250 * MS
"""How long the first of those who wait stays in one slot's queue before it looks again.

And for less than an attempt's time-out: older requests wait for its turn, and it is in no circle of waiters."""

SIZE_MAX: Final = 10_000


type GivenUp = Callable[[], bool]
type Waiting = Callable[[Denied], object]


class Patience:
    """How long somebody waits, and what is asked and told meanwhile."""

    def __init__(self, time: NodeTime, timeout_s: Seconds, given_up: GivenUp, waiting: Waiting) -> None:
        check_callable(given_up=given_up, waiting=waiting)
        self.timeout_s = timeout_s
        self.given_up = given_up
        self.waiting = waiting
        self._time = time
        self._until_boot_ns = time.boot_ns() + span_of(timeout_s, "timeout_s")

    def left_ns(self) -> Span:
        return max(0, self._until_boot_ns - self._time.boot_ns())

    def left_s(self) -> Seconds:
        return self.left_ns() / SECOND


class Hold:
    """What a tool has taken for a session: one lease. Given back at the end of a ``with`` block, or by hand."""

    def __init__(self, session: Session, lease: Lease) -> None:
        """Be one use of a lease that is held."""
        self._session = session
        self._over = False
        self.lease = lease

    @property
    def fence(self) -> int:
        """The fencing token: whoever has this later has a higher one."""
        return self.lease.fence

    def check(self, *, margin_s: Seconds = 0) -> None:
        """Raise LeaseLost unless it is surely held now, with this much to spare. Asks only the clock."""
        self.lease.check(margin_s=margin_s)

    def act[R](self, do: Callable[[], R], *, margin_s: Seconds = 0) -> R:
        """Check, then do it, and return what comes of it. Raises LeaseLost, and then nothing was done."""
        check_callable(do=do)
        self.check(margin_s=margin_s)
        return do()

    def on_lost(self, listener: Listener) -> None:
        """Have a function called, once, if it is lost. It must not block: it may be the thread that renews."""
        self.lease.on_lost(listener)

    def relinquish(self) -> None:
        """Give it back, unless another use of the session goes on. Idempotent; blocks as ``Session.relinquish``."""
        with self._session.keeper.lock:
            if not self._over:
                self.lease.uses -= 1
            self._over = True
        if not self.lease.uses:  # also again: it may have been cut off
            self._session.relinquish([self.lease])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.relinquish()


class Tool[H: Hold](ABC):
    """Something that a session takes for a while. It has no state but what its ``with`` blocks have."""

    def __init__(self, session: Session) -> None:
        """Ask nobody yet."""
        check_type(Session, session=session)
        self._session = session
        self._keeper = session.keeper
        self._entered = local()

    def acquire(
        self,
        *,
        timeout_s: Seconds = PATIENCE_S,
        given_up: GivenUp = lambda: False,
        waiting: Waiting = lambda _: None,
    ) -> H:
        """Take it. Blocks up to the time-out, then raises TryAgain; sooner where ``given_up``, asked meanwhile, is so.

        ``waiting``: called each time that a shard says who is waited for. Raises BadRequest, ShardUnavailable, BadTime:
        then nothing is taken. What this session has already: ``held-here``, or, where that was chosen, once more.
        """
        return self._taken(Patience(self._keeper.time, timeout_s, given_up, waiting))

    @abstractmethod
    def _taken(self, patience: Patience) -> H: ...

    def __enter__(self) -> H:
        """Take it for a block, of this thread."""
        hold = self.acquire()
        self._entered.holds = (*getattr(self._entered, "holds", ()), hold)
        return hold

    def __exit__(self, *problem: object) -> None:
        """Give back what this thread took last."""
        *self._entered.holds, last = self._entered.holds
        last.relinquish()


def held_here(lease: Lease, hint: str) -> BadRequest:
    """Return what is told to a session that asks for what it has."""
    return BadRequest(
        "held-here",
        f"this session has {lease.domain!r} already, in mode {lease.mode}: it would wait for itself",
        hint=hint,
    )


class Locked(Tool[Hold]):
    """One domain, in one mode."""

    def __init__(self, session: Session, domain: str, mode: Mode, *, reentrant: bool = False) -> None:
        """Ask nobody yet. Raises BadRequest for a bad name."""
        super().__init__(session)
        check_type(bool, reentrant=reentrant)
        self._domain = check_domain(domain)
        self._mode = mode
        self._reentrant = reentrant

    def _taken(self, patience: Patience) -> Hold:
        session, time = self._session, self._keeper.time
        if (again := self._again()) is None:
            (lease,) = session.acquire(
                self._domain,
                mode=self._mode,
                timeout_s=patience.timeout_s,
                given_up=patience.given_up,
                waiting=patience.waiting,
            )
            return Hold(session, lease)
        try:  # who took it may be waiting for earlier holders yet, in another thread, or only write messages
            until = time.boot_ns() + patience.left_ns()
            session._wait_for_earlier(time.now(), [again.lease], until, patience.given_up)  # noqa: SLF001 - a tool of it
        except BaseException:
            again.relinquish()
            raise
        return again

    def _again(self) -> Hold | None:
        with self._keeper.lock:
            lease = self._keeper.in_use(self._domain)
            if lease is None or not lease.uses:  # another thread gives it back just now
                return None
            if self._reentrant and covers(lease.mode, self._mode):
                lease.uses += 1
                return Hold(self._session, lease)
        hint = "give it back first" if self._reentrant else "reentrant=True, or a session for each thread"
        raise held_here(lease, hint)


class Mutex(Locked):
    """One session at a time, of all nodes."""

    def __init__(self, session: Session, name: str, *, reentrant: bool = False) -> None:
        """Ask nobody yet. ``name``: a domain."""
        super().__init__(session, name, Mode.X, reentrant=reentrant)


class RWLock:
    """Many readers at a time, or one writer. First come, first served: readers who come later wait behind a writer."""

    def __init__(self, session: Session, name: str, *, reentrant: bool = False) -> None:
        """Ask nobody yet. ``reentrant``: who writes may read, and who reads may not write."""
        self.reading = Locked(session, name, Mode.S, reentrant=reentrant)
        self.writing = Locked(session, name, Mode.X, reentrant=reentrant)


def tree_of(kind: str, name: str) -> str:
    """Return the tree of a tool: one shard has all of it. A slash in the name is part of the name."""
    return check_domain(f"/{kind}:" + name.replace("%", "%25").replace("/", "%2F"))


class Semaphore(Tool[Hold]):
    """One of ``n`` slots of a name. Who wants one waits in order of coming.

    ``acquire`` raises BadRequest, code ``semaphore-size``, while others have slots of another n; ``held-here`` where
    this session has all of them.
    """

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

    def _taken(self, patience: Patience) -> Hold:
        session, keeper, time = self._session, self._keeper, self._keeper.time
        if all(keeper.in_use(slot) for slot in self._slots):
            raise BadRequest("held-here", f"this session has all of {self._tree!r}", hint="give one back first")
        misfits: list[str] | None = None

        def look(denied: Denied) -> None:
            nonlocal misfits
            if misfits is None:
                misfits = []
                with contextlib.suppress(TryAgain, BadTime):  # who has the turn looks too
                    now = time.now()
                    views = [each for each in keeper.leases_below(self._tree) if not now.surely_past(each.expiry_ns)]
                    misfits += (each.domain for each in views if each.domain not in (*self._slots, self._turn))
            patience.waiting(denied)

        while True:
            try:
                turns = session.acquire(
                    self._turn,
                    timeout_s=patience.left_s(),
                    given_up=lambda: bool(misfits) or patience.given_up(),
                    waiting=look,
                )
            except TryAgain:
                if misfits:
                    raise self._misfit(misfits[0]) from None
                raise
            try:
                with contextlib.ExitStack() as kept:  # until the turn is given back, too: that may be interrupted
                    with turns as (turn,):
                        hold = kept.enter_context(self._chosen(turn, patience))
                    kept.pop_all()
                    return hold
            except LeaseLost:
                if not patience.left_ns() or patience.given_up():
                    raise TryAgain("busy", f"the turn at {self._tree!r} was lost", hint="try again") from None

    def _chosen(self, turn: Lease, patience: Patience) -> Hold:
        """Return a slot that was taken within this turn. Raises LeaseLost, TryAgain, BadRequest, BadTime."""
        session, keeper, given_up = self._session, self._keeper, patience.given_up
        look = min(LOOK_NS, keeper.policy.attempt_timeout_ns // 2)
        while True:
            slot = self._next(keeper.leases_below(self._tree))
            left = patience.left_ns()
            timeout_s = min(look, left) / SECOND
            try:
                (lease,) = session.acquire(slot, timeout_s=timeout_s, given_up=given_up, waiting=patience.waiting)
            except TryAgain:
                if left <= look or given_up():
                    raise
                session.renew_due()
                turn.check()
                continue
            try:
                turn.check()
            except BaseException:
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
        now = self._keeper.time.now()
        expiries = {each.domain: each.expiry_ns for each in views if each.domain != self._turn}
        for domain, expiry in expiries.items():
            if domain not in self._slots and not (now.surely_past(expiry) and self._is_over(domain)):
                raise self._misfit(domain)
        mine = {each.domain for each in views if each.holder == self._keeper.holder}
        others = [slot for slot in self._slots if slot not in mine]
        return min(others or self._slots, key=lambda slot: expiries.get(slot, 0))
