"""``Mutex`` and ``RWLock``; and what tools of sessions share: ``Tool``, which is taken, and ``Hold``, what one has.

```python
with Mutex(session, "deploy") as hold:              # waits up to 30 s; .acquire(timeout_s=5) says how long
    hold.check()                                    # before every act
    storage.write(data, fence=hold.fence)           # a receiver that compares fences refuses who comes too late

config = RWLock(session, "config")
with config.reading.acquire(timeout_s=5): ...
with config.writing: ...
```

A **session** is one holder, whichever of its threads asks: leases exclude sessions from each other. What a session asks
for and has already it is told at once, BadRequest, code ``held-here``: it would wait for itself. With ``reentrant``
it gets the same lease once more, with the same fence; the last use that ends gives it back. Threads that are to exclude
each other have a session each.

The domain of a mutex is its name: ``tenure run --lease deploy``, ``tenure lock deploy`` and
``session.acquire("deploy")`` are excluded too. What is promised is what ``Session.acquire`` promises.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from threading import local
from typing import TYPE_CHECKING, Final, Self

from appliance.formats.lease import Mode, covers
from appliance.formats.names import check_domain
from timeagent.errors import BadRequest, check_type

if TYPE_CHECKING:
    from collections.abc import Callable

    from appliance.lease.wire import Denied
    from appliance.session.held import Lease, Listener
    from appliance.session.session import Session
    from timeagent.units import Seconds

PATIENCE_S: Final = 30.0
"""How long is waited where nothing is said."""


def never() -> bool:
    """Give up by nothing but the time-out."""
    return False


def unseen(_: Denied) -> None:
    """Show nobody who is waited for."""


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
        self.check(margin_s=margin_s)
        return do()

    def on_lost(self, listener: Listener) -> None:
        """Have a function called, once, if it is lost. It must not block: it may be the thread that renews."""
        self.lease.on_lost(listener)

    def relinquish(self) -> None:
        """Give it back, unless another use of the session goes on. Idempotent; blocks as ``Session.relinquish``."""
        with self._session.standing.lock:
            last = not self._over and self.lease.uses == 1
            if not self._over:
                self.lease.uses -= 1
            self._over = True
        if last:
            self._session.relinquish([self.lease])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.relinquish()


class Tool[H: Hold](ABC):
    """Something that a session takes for a while. It has no state but what its ``with`` blocks have."""

    def __init__(self, session: Session) -> None:
        """Ask nobody yet."""
        self._session = session
        self._entered = local()

    @abstractmethod
    def acquire(
        self,
        *,
        timeout_s: Seconds = PATIENCE_S,
        given_up: Callable[[], bool] = never,
        waiting: Callable[[Denied], object] = unseen,
    ) -> H:
        """Take it. Blocks up to the time-out, then raises TryAgain; sooner where ``given_up``, asked meanwhile, is so.

        ``waiting``: called each time that a shard says who is waited for. Raises BadRequest, ShardUnavailable, BadTime:
        then nothing is taken.
        """

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

    def acquire(
        self,
        *,
        timeout_s: Seconds = PATIENCE_S,
        given_up: Callable[[], bool] = never,
        waiting: Callable[[Denied], object] = unseen,
    ) -> Hold:
        """Take it; see ``Tool.acquire``. What this session has already: ``held-here``, or the same lease once more."""
        return self._again() or Hold(
            self._session,
            self._session.acquire(
                self._domain, mode=self._mode, timeout_s=timeout_s, given_up=given_up, waiting=waiting
            )[0],
        )

    def _again(self) -> Hold | None:
        standing = self._session.standing
        with standing.lock:
            lease = standing.in_use(self._domain)
            if lease is None:
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
