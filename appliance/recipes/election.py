"""``Election``: one leader at a time, of all nodes, in epochs that only grow: over a lease (docs/recipes/election.md).

The leader is who has the lease on ``/election:billing/leader``; its **epoch** is the lease's fence, so it grows with
every leader, also over crashes and moves of the shard. Two of them never lead at one instant of true time, as long as
clocks keep their bounds: ``acquire`` returns only when no earlier holder can believe any more, and ``check`` asks the
clock. What a leader that stood still between check and act sends all the same, a ``FenceGate`` refuses by its epoch.

**Hand-over.** ``resign(to="api-3")`` takes a lease on ``/election:billing/nominee/api-3`` before it gives back the
first one. Whoever comes to the lead and finds somebody else nominated gives it back, stands in the queue of the
nomination until that is over, and campaigns again. The nomination ends when the nominee leads, when the one who resigns
stops waiting for that, or with its lease where that one dies; then anybody leads. Epochs that were given back so are
nobody's: they only make the next one higher.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import msgspec

from appliance.formats.lease import Mode
from appliance.formats.names import check_domain
from timeagent.errors import BadRequest, BadTime, TryAgain, check_callable, check_type
from timeagent.units import MS, SECOND, Instant, Seconds, span_of

from .exclusion import PATIENCE_S, Hold, Patience, Tool, held_here, tree_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from appliance.formats.lease import Holder
    from appliance.lease.wire import LeaseView
    from appliance.session.held import Lease
    from appliance.session.session import Session

LOOK_NS: Final = 100 * MS
"""How often who resigns looks whether the nominee leads."""
NOTICE_S: Final = 1.0
"""How long the nominee waits at most until who resigned has seen it: else it might lead, and resign, unnoticed."""


class Leader(msgspec.Struct, frozen=True):
    """Who leads, as is known here: for people, and to find the leader. It may have changed meanwhile."""

    candidate: str
    epoch: int
    """As its shard states it: once that has moved the leader's own is lower, but above that of every earlier leader."""
    node: str
    since_ns: Instant
    until_ns: Instant
    """When its lead ends, unless it is renewed."""


class Leadership(Hold):
    """The lead, for one epoch. Given back at the end of a ``with`` block."""

    def __init__(self, session: Session, lease: Lease, election: Election) -> None:
        """Lead. Made by ``Election.campaign``."""
        super().__init__(session, lease)
        self._election = election

    @property
    def epoch(self) -> int:
        """The number of this epoch: every later leader has a higher one. It is the lease's fence."""
        return self.fence

    def resign(self, *, to: str | None = None, timeout_s: Seconds = 10) -> bool:
        """Lead no more. ``to``: hand over to that candidate; return whether it led within the time-out. Blocks so long.

        While that is waited for nobody else leads. Raises TryAgain, ShardUnavailable where nobody can be nominated:
        then the lead is kept.
        """
        timeout_ns = span_of(timeout_s, "timeout_s")
        if to is None:
            self.relinquish()
            return True
        return self._election.hand_over(self, to, timeout_ns)


class Election(Tool[Leadership]):
    """One election, as one candidate takes part in it."""

    def __init__(self, session: Session, name: str) -> None:
        """Ask nobody yet. The candidate is called as its session's purpose, or else as its node."""
        super().__init__(session)
        check_type(str, name=name)
        self._tree = tree_of("election", name)
        self._lead = check_domain(f"{self._tree}/leader")
        self.candidate = _name(self._keeper.holder)
        self._own = self._nomination(self.candidate)

    def _taken(self, patience: Patience) -> Leadership:
        session, given_up = self._session, patience.given_up
        if (held := self._keeper.in_use(self._lead)) is not None:
            raise held_here(held, "a session for each candidate")
        while True:
            (lease,) = session.acquire(
                self._lead, timeout_s=patience.left_s(), given_up=given_up, waiting=patience.waiting
            )
            try:
                nominations = self._nominations(self._out())
                if self._own in nominations:
                    with contextlib.suppress(TryAgain):  # who resigned has seen it then, or is not there any more
                        self._stand_back(self._own, NOTICE_S, given_up)
            except BaseException:
                session.relinquish([lease])
                raise
            if not nominations or self._own in nominations:
                return Leadership(session, lease, self)
            session.relinquish([lease])
            self._stand_back(nominations[0], patience.left_s(), given_up)

    def _stand_back(self, nomination: str, timeout_s: Seconds, given_up: Callable[[], bool]) -> None:
        """Wait until a nomination is over: in its queue. Raises as ``acquire``."""
        session = self._session
        session.relinquish(
            session.acquire(nomination, mode=Mode.S, timeout_s=timeout_s, record_only=True, given_up=given_up)
        )

    def campaign(self, *, timeout_s: Seconds = PATIENCE_S, given_up: Callable[[], bool] = lambda: False) -> Leadership:
        """Return when this candidate leads. Blocks up to the time-out: see ``Tool.acquire``."""
        return self.acquire(timeout_s=timeout_s, given_up=given_up)

    def run[R](self, do: Callable[[Leadership], R], *, timeout_s: Seconds = PATIENCE_S) -> R:
        """Campaign, do something as the leader, resign, and return what came of it. For one epoch."""
        check_callable(do=do)
        with self.campaign(timeout_s=timeout_s) as leadership:
            return do(leadership)

    def leader(self) -> Leader | None:
        """Return who leads, as far as the shard knows. Raises ShardUnavailable, BadTime. Blocks for the shard."""
        views = self._out()
        nominations = self._nominations(views)
        for each in views:
            if each.domain == self._lead:
                name, holder = _name(each.holder), each.holder
                if not nominations or self._nomination(name) in nominations:
                    return Leader(name, each.fence, holder.node, each.granted_ns, each.expiry_ns)
        return None

    def observe(self, *, every_s: Seconds = 1) -> Iterator[Leader | None]:
        """Yield who leads, and again whenever the epoch is another one; look so often.

        Raises as ``leader``; BadRequest once the session is closed.
        """
        pause = max(MS, span_of(every_s, "every_s"))
        seen: int | None = None
        first = True
        while True:
            self._session._check_open()  # noqa: SLF001 - its shard may answer for ever
            leader = self.leader()
            epoch = None if leader is None else leader.epoch
            if first or epoch != seen:
                yield leader
            seen, first = epoch, False
            self._keeper.time.sleep(pause)

    def hand_over(self, leadership: Leadership, to: str, timeout_ns: int) -> bool:
        """Give the lead back so that one candidate has it next; see ``Leadership.resign``."""
        check_type(str, to=to)
        if to == self.candidate:
            raise BadRequest("own-candidate", f"{to!r} leads already", hint="name another candidate, or none")
        time = self._keeper.time
        until = time.boot_ns() + timeout_ns
        leadership.check()
        with self._session.acquire(self._nomination(to), timeout_s=timeout_ns / SECOND, record_only=True):
            leadership.relinquish()
            while time.boot_ns() < until:
                with contextlib.suppress(TryAgain, BadTime):  # the lead is over: who cannot look now looks again
                    self._session.renew_due()
                    leader = self.leader()
                    if leader is not None and leader.candidate == to:
                        return True
                time.sleep(LOOK_NS)
        return False

    def _nomination(self, candidate: str) -> str:
        return check_domain(f"{self._tree}/nominee/{candidate}")

    def _out(self) -> list[LeaseView]:
        now = self._keeper.time.now()
        return [each for each in self._keeper.leases_below(self._tree) if not now.surely_past(each.expiry_ns)]

    def _nominations(self, views: list[LeaseView]) -> list[str]:
        return [each.domain for each in views if each.domain != self._lead and each.mode is Mode.X]


def _name(holder: Holder) -> str:
    return holder.purpose or holder.node
