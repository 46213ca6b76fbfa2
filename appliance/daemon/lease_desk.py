"""The node's daemon as cooperative leader: one lease from the shard serves one process of the machine after another.

What a sub-lease is, how long it is good and which fence it has: docs/protocol/lease.md, "Sub-leases".

The desk has a queue for each domain and mode, and a lease of that mode: between the two, as between nodes, the shard
decides. Who is first in a queue, when nobody has a sub-lease, is handed one of the lease that the desk has, and else
the desk takes one from the shard; of mode S others get one beside it.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import Condition
from typing import Final

from appliance.formats.lease import Mode
from appliance.formats.names import check_domain
from timeagent.clock import NodeTime
from timeagent.errors import BadTime, TenureError, TryAgain
from timeagent.units import MS, SECOND, Span, parse_span, rfc3339

from ..formats.policy import PolicyNumbers
from ..node import desk_wire as wire
from ..session.asking import waiting_text
from ..session.held import Lease
from ..session.renewal import grace_ns
from ..session.session import Session

LOOK_NS: Final = 50 * MS
"""How often who waits looks whether its process is there still."""

_ASKED_WORDS: Final = 6

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Place:
    domain: str
    mode: Mode
    queue: deque[object] = field(default_factory=deque)
    holding: set[object] = field(default_factory=set)
    """Who has a sub-lease."""
    busy: bool = False
    """Somebody takes the lease or gives it back, and nobody has a sub-lease."""
    session: Session | None = None
    lease: Lease | None = None
    handed: int = 0
    """How far above the lease's fence the last one is."""


class LeaseDesk:
    """All sub-leases of one daemon. Each is served by a thread of its own."""

    def __init__(self, session: Callable[[str], Session], time: NodeTime, policy: PolicyNumbers) -> None:
        """Hold nothing yet. ``session`` begins one, for a purpose.

        Each lease has its own: two processes that wait for each other's nodes are not one that waits for itself.
        """
        self._session = session
        self._time = time
        self._policy = policy
        self._places: dict[tuple[str, Mode], _Place] = {}
        self._changed = Condition()
        self._stopping = False
        self.handed_out = 0
        """How many sub-leases there were."""
        self.leases = 0
        """How many leases they took."""

    def serve(self, line: DeskConnection, asked: list[str]) -> None:
        """Serve one process to its end: it asked for a sub-lease. Blocks. Raises OSError, Damaged, BadRequest."""
        known = len(asked) == _ASKED_WORDS and asked[1] == wire.VERSION and asked[3] in (Mode.X, Mode.S)
        if not known or self._stopping:
            line.say(wire.NOT_HERE)
            return
        _, _, domain, mode, wait, purpose = asked
        try:
            until = self._time.boot_ns() + parse_span(wait)
            with self._queued(check_domain(domain), Mode(mode)) as (place, ticket):
                lease, fence = self._handed(place, ticket, purpose, line, until)
                given_back = self._kept(line, lease, fence)
            if given_back:
                line.say(wire.DONE)
        except TenureError as problem:
            if self._stopping:
                line.say(wire.NOT_HERE)
            else:
                line.say(wire.REFUSED, type(problem).__name__, problem.code, problem.message, problem.hint)

    def stop(self) -> None:
        """Hand out nothing more, extend nothing, and wait until every sub-lease is over. Idempotent."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            while self._places:
                self._changed.wait(LOOK_NS / SECOND)

    # -- the queue -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _queued(self, domain: str, mode: Mode) -> Iterator[tuple[_Place, object]]:
        """Stand in a domain's queue, and then have its place, for a block; pass it on behind that."""
        ticket = object()
        with self._changed:
            place = self._places.setdefault((domain, mode), _Place(domain, mode))
            place.queue.append(ticket)
        try:
            yield place, ticket
        finally:
            with self._changed:
                mine = ticket not in place.queue  # it was taken out when it got the place
                if not mine:
                    place.queue.remove(ticket)
                place.holding.discard(ticket)
                left = not place.holding and (mine or not (place.busy or place.queue))
                place.busy = place.busy or left
            if left:
                self._pass_on(place)

    def _pass_on(self, place: _Place) -> None:
        """Leave the lease to who waits here, or give it back. The place is busy."""
        if not (place.queue and self._goes_on(place)):
            self._give_back(place)
        with self._changed:
            place.busy = False
            if not place.queue and place.lease is None:
                self._places.pop((place.domain, place.mode), None)
            elif not place.queue:  # who waited has given up meanwhile
                place.busy = True
            self._changed.notify_all()
            again = place.busy
        if again:
            self._pass_on(place)

    def _goes_on(self, place: _Place) -> bool:
        lease = place.lease
        if lease is None or lease.recalled or lease.ended is not None or self._stopping:
            return False
        try:
            return lease.surely_held()
        except BadTime:
            return False

    def _give_back(self, place: _Place) -> None:
        session, place.session, place.lease = place.session, None, None
        if session is not None:
            try:
                session.close()
            except Exception:  # noqa: BLE001 - it expires then; who waits here must not wait for ever
                _log.exception("sub-lease-not-given-back")

    def _handed(
        self, place: _Place, ticket: object, purpose: str, line: DeskConnection, until_boot_ns: int
    ) -> tuple[Lease, int]:
        """Wait for the place; return its lease, from here or from the shard, and the fence. Raises as ``acquire``."""
        with self._changed:
            while not self._has_turn(place, ticket):
                if self._stopping or line.gone() or self._time.boot_ns() >= until_boot_ns:
                    raise TryAgain(
                        "busy", f"another process of this machine has {place.domain!r}", hint="allow more time: --wait"
                    )
                line.show(place.queue.index(ticket) + 1, f"for {place.domain}: a process of this machine has it")
                self._changed.wait(LOOK_NS / SECOND)
            place.queue.popleft()
            if place.holding and place.lease is not None:
                return self._counted(place, ticket, place.lease)
            place.busy = True
            others = len(place.queue)
        if place.lease is not None and not (
            self._goes_on(place)
            and (place.mode is Mode.S or self._past(place.lease.fence + place.handed + 1, wait=others > 0))
        ):
            self._give_back(place)
        if place.lease is None:
            place.lease = self._acquired(place, purpose, line, until_boot_ns)
            place.handed = -1
            self.leases += 1
        with self._changed:
            return self._counted(place, ticket, place.lease)

    def _has_turn(self, place: _Place, ticket: object) -> bool:
        if place.busy or place.queue[0] is not ticket:
            return False
        return not place.holding or (place.mode is Mode.S and self._goes_on(place))

    def _counted(self, place: _Place, ticket: object, lease: Lease) -> tuple[Lease, int]:
        place.holding.add(ticket)
        place.busy = False
        place.handed += place.mode is Mode.X or place.handed < 0
        self.handed_out += 1
        self._changed.notify_all()
        return lease, lease.fence + place.handed

    def _past(self, fence: int, *, wait: bool) -> bool:
        """Whether every trusted clock is past a fence from now on: a shard's next fence is above it then.

        ``wait``: until it is, which takes about two radii after a grant: worth it where others wait behind.
        """
        try:
            while (ahead := fence + self._policy.radius_ns_max - self._time.now().earliest) > 0:
                if not wait or self._stopping or ahead > 4 * self._policy.radius_ns_max:
                    return False
                self._time.sleep(min(ahead, LOOK_NS))
        except BadTime:
            return False
        return True

    def _acquired(self, place: _Place, purpose: str, line: DeskConnection, until_boot_ns: int) -> Lease:
        place.session = self._session(purpose)
        left_ns = max(0, until_boot_ns - self._time.boot_ns())
        (lease,) = place.session.acquire(
            place.domain,
            mode=place.mode,
            timeout_s=left_ns / SECOND,
            recall="finish",
            given_up=lambda: self._stopping or line.gone(),
            waiting=lambda denied: line.show(denied.place, waiting_text(denied)),
        )
        return lease

    # -- one sub-lease -------------------------------------------------------------------------------------------------

    def _kept(self, line: DeskConnection, lease: Lease, fence: int) -> bool:
        """Tell the process how long its sub-lease is good, as often as it asks; return, once it is over, if given back.

        A process that was told nothing yet believes nothing.
        """
        told = 0
        grace = grace_ns(min(lease.term_ns, self._policy.lease_term_max_ns), self._policy)
        try:
            line.say(wire.HELD, str(fence), rfc3339(lease.expiry_ns), str(grace))
            patience = self._policy.attempt_timeout_ns
            while (said := line.hear(patience)) == wire.KEEP and patience > 0:
                good, answer = self._good(lease)
                told = max(told, self._time.boot_ns() + good)
                line.say(*answer)
                patience = told - self._time.boot_ns()
            if said == wire.BACK:
                told = 0
                return True
        except OSError:
            _log.info("sub-lease-connection-lost domain=%s fence=%d", lease.domain, fence)
        finally:
            while (left := told - self._time.boot_ns()) > 0:
                self._time.sleep(left)
        return False

    def _good(self, lease: Lease) -> tuple[Span, tuple[str, ...]]:
        """Return for how long a lease is good from now on, and what the process is told."""
        if self._stopping:
            return 0, (wire.OVER, "the node's daemon stops", "")
        if (over := lease.over_text()) is None:
            good = 0
            with contextlib.suppress(BadTime):
                good = lease.outlook().good_ns
            return good, (wire.GOOD, str(good))
        return 0, (wire.OVER, over, wire.DOUBT if lease.loss is not None and lease.loss.in_doubt else "")


class DeskConnection(wire.Line):
    """The daemon's end of the connection to one process. Raises OSError for a word that it cannot take any more."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self._shown = ""
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def show(self, place: int, detail: str) -> None:
        """Say, once, in which place it waits for whom."""
        line = f"{place} {detail}"
        if line != self._shown:
            self._shown = line
            with contextlib.suppress(OSError):  # it is gone: that is seen by looking
                self.say(wire.WAITS, str(place), detail)

    def gone(self) -> bool:
        """Whether the process has hung up: who waits says nothing."""
        return bool(self._poll.poll(0))

    def hear(self, span: Span) -> str | None:
        """Return the next word; None at the end of the connection, or where nothing came for so long."""
        with contextlib.suppress(ConnectionError, ValueError):
            words = self.received()
            if words is None and self._poll.poll(max(0, -(-span // MS))):
                words = self.received()  # a word is sent at once: half of one is none
            return None if words is None else words[0]
        return None
