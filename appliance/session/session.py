"""``Session``: the application's leases and messages. One writer incarnation.

The rules that an application could forget are kept here: a log is settled before its first use under a lease, a
timestamp lies above every floor, a lease that may be over is never written under, a lease is given back only when the
outcome of everything written under it is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import RLock
from typing import TYPE_CHECKING, Self

from appliance.bag.outcome import Committed, NotCommitted, Unknown
from appliance.formats.names import check_purpose
from timeagent.errors import BadRequest
from timeagent.units import SECOND

from .leasing import Leasing
from .renewal import Renewal
from .stamping import Stamper, WriterState

if TYPE_CHECKING:
    import random
    from types import TracebackType

    from appliance.bag.context import BagContext
    from appliance.bag.outcome import Outcome
    from appliance.bag.reader import Message
    from appliance.formats.policy import Policy
    from appliance.shards import ShardRoutes
    from timeagent.units import Instant, Span

    from .held import Lease
    from .openlog import LogBook, OpenLog
    from .stamping import Publication

LATE_RETRIES = 3
"""How often ``publish`` begins a new attempt after one that certainly did not happen."""


class Leases(Sequence["Lease"]):
    """The leases of one ``acquire``, in order of domain. Relinquished at the end of a ``with`` block."""

    def __init__(self, session: Session, leases: Sequence[Lease]) -> None:
        """Belong to a session."""
        self._session = session
        self._leases = tuple(leases)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN204 - Sequence's overloads
        return self._leases[index]

    def __len__(self) -> int:
        """Return how many."""
        return len(self._leases)

    def __enter__(self) -> Self:
        """Hold them for a block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give them back, with the right watermark."""
        self._session.relinquish(self)


class Session:
    """Leases and messages under one writer incarnation. Safe to share between threads. Use in a ``with`` block."""

    def __init__(
        self,
        context: BagContext,
        logs: LogBook,
        routes: ShardRoutes,
        policy: Policy,
        purpose: str,
        randomness: random.Random,
    ) -> None:
        """Hold nothing yet. Made by ``Cluster.session``."""
        self._context = context
        self._logs = logs
        self._policy = policy
        self._random = randomness
        self._lock = RLock()
        self._state = WriterState(context.records.cluster_id, context.node, randomness.randbytes(8))
        self._stamper = Stamper(context.time, policy, self._state)
        self._leasing = Leasing(
            context.time, policy, routes, context.node, self._state.incarnation, check_purpose(purpose), randomness
        )
        self._held: list[Lease] = []
        self._renewal = Renewal(context.time, policy, self.renew_due)

    @property
    def incarnation(self) -> bytes:
        """The 8 random bytes that name this writer in witnesses and files."""
        return self._state.incarnation

    def acquire(self, *domains: str, timeout_ns: Span = 30 * SECOND, term_ns: Span | None = None) -> Leases:
        """Take exclusive leases on one or several domains, all or none.

        Blocks up to the time-out, then raises TryAgain, code ``busy``, naming who has what until when. Raises
        BadRequest for a bad name, ShardUnavailable when a shard does not answer, BadTime when it has no bounded clock.
        """
        if not domains:
            raise BadRequest("no-domain", "acquire needs at least one domain", hint="name what you want to write about")
        term = self._policy.lease_term_max_ns if term_ns is None else min(term_ns, self._policy.lease_term_max_ns)
        leases = self._leasing.acquire(sorted(set(domains)), term, timeout_ns)
        with self._lock:
            self._held.extend(leases)
        self._renewal.start()
        return Leases(self, leases)

    def publish(
        self, log: str, payloads: Sequence[bytes], *, under: Sequence[Lease], attempt_id: bytes | None = None
    ) -> Outcome:
        """Write messages, in order, as one batch: all of them are in the record, or none.

        ``under``: the leases that cover them, at least one, held. Returns ``Committed``, ``NotCommitted(reason)`` (it
        is certain that none will ever be in the record) or ``Unknown(reason)`` (call ``resolve``). Raises LeaseLost,
        BadRequest, BadTime, before anything is written. Touches the mount; may wait for the log to be settled.
        """
        leases = self._checked(under)
        book = self._logs.opened_or_made(log)
        self._settle_for(book, leases)
        identity = attempt_id or self._random.randbytes(16)
        outcome: Outcome = NotCommitted("not tried")
        for _ in range(LATE_RETRIES):
            outcome = self._attempt(book, payloads, leases, identity)
            if not isinstance(outcome, NotCommitted):
                break
        return outcome

    def _attempt(self, book: OpenLog, payloads: Sequence[bytes], leases: Sequence[Lease], identity: bytes) -> Outcome:
        numbers = self._context.records.newest()
        with self._lock:
            publication = self._stamper.publication(book.grid, payloads, leases, identity, numbers)
            for lease in leases:
                lease.wrote(publication.last_ns, publication.time)
        outcome = book.writer.write(publication.file)
        if isinstance(outcome, Unknown):
            # The same attempt again is safe, and tells whether a lost reply was all that happened.
            outcome = book.writer.write(publication.file)
        self._account(publication, leases, outcome)
        return outcome

    def _account(self, publication: Publication, leases: Sequence[Lease], outcome: Outcome) -> None:
        with self._lock:
            if isinstance(outcome, Committed):
                self._state.confirm(publication)
            for lease in leases:
                if publication in lease.unresolved:
                    lease.unresolved.remove(publication)
                if isinstance(outcome, Committed):
                    lease.committed(publication.messages, publication.digest)
                elif isinstance(outcome, Unknown):
                    lease.unresolved.append(publication)

    def resolve(self, log: str, leases: Sequence[Lease]) -> Outcome:
        """Decide what is Unknown under these leases, by closing the bags concerned; waits until they are due.

        Returns Committed if everything that was unknown is in the record, NotCommitted if something certainly is not,
        Unknown if something still cannot be told.
        """
        book = self._logs.opened(log)
        worst: Outcome = Committed()
        for lease in leases:
            for publication in list(lease.unresolved):
                if publication.file.bag.log != log:
                    continue
                outcome = book.writer.resolve(publication.file)
                self._account(publication, [each for each in leases if publication in each.unresolved], outcome)
                if not isinstance(outcome, Committed) and not isinstance(worst, Unknown):
                    worst = outcome
        return worst

    def read(
        self, log: str, *, under: Sequence[Lease] = (), after_ns: Instant = 0, level: str | None = None
    ) -> list[Message]:
        """Return a log's messages with timestamps above ``after_ns``, in order.

        Under leases the level is *latest* by default: everything that earlier holders of these domains wrote is there.
        Without, it is *settled*: final, the same for everyone. Touches the mount; may wait for the log to be settled.
        """
        chosen = level or ("latest" if under else "settled")
        if chosen not in ("latest", "settled"):
            raise BadRequest("bad-level", f"{chosen!r} is no level of reading", hint="settled or latest")
        leases = self._checked(under) if under else ()
        book = self._logs.opened_or_made(log) if under else self._logs.opened(log)
        self._settle_for(book, leases)
        found = book.reader.latest(after_ns) if chosen == "latest" else book.reader.settled(after_ns)
        messages = list(found)
        if messages:
            with self._lock:
                self._state.read_ns = max(self._state.read_ns, messages[-1].timestamp_ns)
        return messages

    def horizon(self, log: str) -> Instant:
        """Return the instant before which everything in a log is final, as of now. Touches the mount."""
        return self._logs.opened(log).horizon.refresh()

    def renew_due(self) -> None:
        """Renew every held lease that has used up the renewal period. The session's thread calls it.

        Never raises for a lease that is lost: that lease says so when it is used.
        """
        now = self._context.time.now()
        with self._lock:
            due = [lease for lease in self._held if lease.ended is None and self._is_due(lease, now.latest)]
        if due:
            self._leasing.renew(due)

    def _is_due(self, lease: Lease, latest: Instant) -> bool:
        period = min(self._policy.renew_period_ns, lease.term_ns // 3)
        return lease.expiry_ns - latest <= lease.term_ns - period

    def relinquish(self, leases: Sequence[Lease]) -> None:
        """Give leases back. They are over for the session from here on.

        A lease with an attempt of unknown outcome is resolved first; where that fails it is left to expire, so that its
        successor settles what this session could not tell. Raises nothing for a lease that was lost meanwhile.
        """
        for lease in leases:
            for publication in list(lease.unresolved):
                deadline = self._context.time.boot_ns() + 2 * self._policy.attempt_timeout_ns
                outcome = self._logs.opened(publication.file.bag.log).writer.resolve(publication.file, deadline)
                self._account(publication, [each for each in leases if publication in each.unresolved], outcome)
        with self._lock:
            given_back = [lease for lease in leases if lease.ended is None and not lease.unresolved]
            for lease in leases:
                if lease.ended is None:
                    lease.ended = "relinquished" if lease in given_back else "abandoned"
            self._held = [lease for lease in self._held if lease.ended is None]
        self._leasing.relinquish(given_back)

    def close(self) -> None:
        """Give everything back and stop renewing. Idempotent."""
        self._renewal.stop()
        with self._lock:
            held = list(self._held)
        if held:
            self.relinquish(held)

    def __enter__(self) -> Self:
        """Use it in a ``with`` block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def _checked(self, under: Sequence[Lease]) -> Sequence[Lease]:
        if not under:
            raise BadRequest("no-lease", "messages are published under at least one lease", hint="acquire one first")
        now = self._context.time.now()
        with self._lock:
            for lease in under:
                if lease.ended is None and not any(lease is held for held in self._held):
                    raise BadRequest(
                        "foreign-lease", f"the lease on {lease.domain!r} is another session's", hint="use its session"
                    )
                lease.check_held(now, self._policy.holder_margin_ns)
        return under

    def _settle_for(self, book: OpenLog, leases: Sequence[Lease]) -> None:
        """Make the log's horizon reach what these leases demand; renewals go on meanwhile."""
        target = max((lease.settle_to_ns for lease in leases), default=0)
        if book.horizon.reached < target:
            book.horizon.settle(target)
            now = self._context.time.now()
            for lease in leases:
                lease.check_held(now, self._policy.holder_margin_ns)
