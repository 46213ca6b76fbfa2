"""``Session``: the application's leases and messages. One writer incarnation.

The rules that an application could forget are kept here: a log is settled before its first use under a lease, a
timestamp lies above every floor, a lease that may be over is never written under, a lease is given back only when the
outcome of everything written under it is known.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from threading import RLock
from typing import TYPE_CHECKING, Final, Self

from appliance.bag.outcome import Committed, NotCommitted, Unknown
from appliance.formats.frame import LEASES_MAX
from appliance.formats.lease import Mode
from appliance.formats.names import check_domain, check_purpose
from appliance.lease.client import Granted
from timeagent.errors import BadRequest, Damaged, LeaseholdError
from timeagent.units import MS, SECOND

from .asking import Asking, chosen_term
from .given import ATTEMPT_ID_BYTES, checked_attempt, checked_batch, chosen_together, refuse_readers
from .keeping import Keeping
from .leases import Leases
from .leasing import Leasing, wanted_modes
from .losses import Reason
from .narrow import messages_of
from .outliving import outlive_earlier_holders
from .recall import chosen_recall
from .recalls import Recalls
from .renewal import Renewal
from .stamping import Ahead, Stamper, WriterState, check_near
from .sticky import Shelf

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from types import TracebackType

    from appliance.bag.context import BagContext
    from appliance.bag.outcome import Outcome
    from appliance.bag.reader import Message
    from appliance.formats.policy import PolicyNumbers
    from timeagent.units import Instant, Span

    from .held import Lease
    from .leasing import Routes
    from .losses import Listener
    from .openlog import LogBook, OpenLog
    from .recall import Recall
    from .stamping import Publication

_log = logging.getLogger(__name__)

ATTEMPTS: Final = 3
"""How often ``publish`` tries: again, in a later bag, after an attempt that certainly did not happen."""

_SLICE_NS: Final = 100 * MS
"""How long a wait goes on before the leases are looked after again."""


class Session:
    """Leases and messages under one writer incarnation. Safe to share between threads. Use in a ``with`` block."""

    def __init__(
        self,
        context: BagContext,
        logs: LogBook,
        routes: Routes,
        policy: PolicyNumbers,
        purpose: str,
        randomness: random.Random,
        *,
        background: bool = True,
        session_leases: bool = False,
    ) -> None:
        """Hold nothing yet. Made by ``Cluster.session``. ``background``: a thread renews; else only waiting does."""
        self._context = context
        self._logs = logs
        self._policy = policy
        self._random = randomness
        self._background = background
        self._together = session_leases
        self._process = os.getpid()
        self._lock = RLock()
        self._state = WriterState(context.records.cluster_id, context.node, randomness.randbytes(8))
        self._stamper = Stamper(context.time, policy, self._state, context.records.policy)
        time = context.time
        self._leasing = Leasing(
            time, policy, routes, context.node, self._state.incarnation, check_purpose(purpose), randomness, self._lock
        )
        self._asking = Asking(time, policy, self._lock)
        self._keeping = Keeping(context.time, policy, self._leasing, context.parallel, self._lock)
        self._pending: dict[bytes, Publication] = {}
        """Attempts under way, and those whose outcome is unknown, by attempt id."""
        self._renewal = Renewal(policy, self.renew_due)
        self._shelf = Shelf(context.time, policy, self._keeping, self._lock)
        self._recalls = Recalls(
            policy, self._leasing, self._keeping, self._shelf, self._lock, self._give_back, background=background
        )

    @property
    def incarnation(self) -> bytes:
        """The 8 random bytes that name this writer in witnesses and files."""
        return self._state.incarnation

    # -- leases --------------------------------------------------------------------------------------------------------

    def acquire(  # noqa: PLR0913 - what can be said about a lease, by name
        self,
        *domains: str,
        mode: Mode | Mapping[str, Mode] = Mode.X,
        timeout_ns: Span = 30 * SECOND,
        term_ns: Span | None = None,
        outside_record: bool = False,
        hold_ns_max: Span | None = None,
        progress_within_ns: Span | None = None,
        recall: Recall | str | None = None,
        sticky_ns: Span | None = None,
        session_lease: bool | None = None,
        given_up: Callable[[], bool] = lambda: False,
    ) -> Leases:
        """Take leases on one or several domains, all or none. ``mode``: one for all, or a mapping with each domain.

        X excludes everybody. S shares with other readers and may not write. SIX reads and writes, IX writes, IS does
        neither, where others work on parts of the domain under domains of their own.
        Blocks up to the time-out, then raises TryAgain, code ``busy``, naming who has what until when. Raises
        BadRequest for a bad name, ShardUnavailable when a shard does not answer, BadTime when it has no bounded clock.

        Reading and writing messages under the leases waits by itself for what earlier holders may still do. Whoever
        does anything else under them says ``outside_record``: then this returns only when no earlier holder can believe
        any more that it holds one of the domains, also after a restart of their shard. Code ``warming`` past the
        time-out.

        ``hold_ns_max``: so long in all, however often they are renewed. ``progress_within_ns``: they are renewed only
        while their holder gets on (``Lease.progress``, or a message Committed): who hangs loses them.

        ``recall``: what is done when another asks for them: ``ignore``, ``finish``, ``flush`` or ``relinquish``
        (``Recall``). ``sticky_ns``: when they are given back they stay with the session for the next ``acquire``, for
        so long or until another asks for them.

        ``session_lease``: take them under one expiry with others of this session, kept by one small renewal for each
        shard, however many they are; as the session was begun where left out. Not with a term or a cap of their own.

        ``given_up``: asked now and then, from this thread; once it is true, this ends as if the time-out had come,
        leaves no waiter behind, and takes at most about one attempt's time-out for it.
        """
        until = self._context.time.boot_ns() + timeout_ns
        self._check_open()
        if not domains:
            raise BadRequest("no-domain", "acquire needs at least one domain", hint="name what you want to write about")
        for domain in domains:
            check_domain(domain)
        term = chosen_term(self._policy, term_ns, hold_ns_max)
        answer = chosen_recall(recall, sticky_ns)
        wanted = wanted_modes(domains, mode)
        together = chosen_together(session_lease, self._together, (term_ns, hold_ns_max, progress_within_ns))
        with self._asking.under_way(given_up) as over:
            leases, misfits = self._shelf.take(wanted)
            if misfits:
                self._give_back(misfits)
            leases = leases or self._leasing.acquire(wanted, term, timeout_ns, over, together=together)
            try:
                with self._lock:
                    self._check_open()
                    for lease in leases:
                        lease.recall, lease.sticky_ns = answer, sticky_ns
                    self._keeping.adopt(leases, hold_ns_max, progress_within_ns)
                    if self._background:
                        self._renewal.start(self._keeping.period_ns(term))
            except LeaseholdError:
                self._keeping.forget(leases)
                self._leasing.relinquish(leases)
                raise
        self._recalls.attend(leases)
        if outside_record:
            outlive_earlier_holders(self, self._context.time, leases, until, given_up)
        return Leases(self, leases)

    def upgrade(self, lease: Lease, mode: Mode, *, timeout_ns: Span = 30 * SECOND) -> None:
        """Change a held lease to a stronger mode; its fence, floor and settle_to are stated anew.

        Waits for other holders only where nobody else waits for the domain, and at most up to the time-out: TryAgain,
        code ``busy``, leaves the lease as it was. Raises LeaseLost, BadRequest, ShardUnavailable, BadTime.
        """
        self._check_open()
        self._checked([lease])
        answer = self._leasing.strengthen(lease, wanted_modes([lease.domain], mode)[lease.domain], timeout_ns)
        with self._lock:
            if isinstance(answer, Granted):
                lease.take(answer.signed, answer.witness, answer.hints)
            else:
                lease.lose(str(answer.outcome), Reason.BROKEN)
        self._checked([lease])

    def check_held(self, leases: Sequence[Lease]) -> None:
        """Raise LeaseLost, by name, unless all of these are surely held now. Touches nothing."""
        self._checked(leases)

    def on_lost(self, listener: Listener) -> None:
        """Have a function called for every lease of this session that is lost from now on (``Lease.on_lost``)."""
        self._keeping.losses.listen(listener)

    def renew_due(self) -> None:
        """Renew every held lease that has used up the renewal period; give back what nobody uses. Raises BadTime.

        Never raises for a lease that is lost: that lease says so when it is used.
        """
        self._keeping.renew_due()
        if idle := self._shelf.idle():
            self._give_back(idle)
        self._recalls.poll()

    def relinquish(self, leases: Sequence[Lease]) -> None:
        """Give leases back. They are over for the session from here on; what is being written is waited for.

        An attempt of unknown outcome is resolved first; where that fails within about the time that its bag needs to
        be closed, its leases are abandoned: left to expire, so that their successors settle what this session could
        not tell. A lease that expired here is given back too, for its shard may not have broken it yet. Sticky ones
        stay with the session, for another use. Raises nothing for what was lost meanwhile; BadRequest for the leases
        of another session.
        """
        if self._process != os.getpid():
            return
        with self._lock:
            self._refuse_foreign(leases)
            undecided = {lease for publication in self._pending.values() for lease in publication.leases}
            over = [each for each in leases if self._asking.over or each in undecided or not self._shelf.put(each)]
        self._give_back(over)

    def _give_back(self, leases: Sequence[Lease]) -> None:
        with self._lock:
            mine = [lease for lease in leases if lease in self._keeping.held]
            for lease in mine:
                lease.ended = lease.ended or "relinquished"
        self._resolve_before_end(mine)
        with self._lock:
            doubtful = {lease for publication in self._pending.values() for lease in publication.leases}
            mine = [lease for lease in mine if lease in self._keeping.held]
            self._keeping.forget(mine)
            for lease in doubtful.intersection(mine):
                lease.ended = "abandoned"
        self._leasing.relinquish([lease for lease in mine if lease not in doubtful])
        self._leasing.abandon([lease for lease in mine if lease in doubtful])

    def take_no_more(self) -> None:
        """Take no lease any more: who waits for one gives up soon. Idempotent; does not wait. ``close`` begins so."""
        if self._process == os.getpid():
            self._asking.end()

    def close(self) -> None:
        """Give everything back and stop renewing. Idempotent. In a child after fork: nothing."""
        if self._process != os.getpid():
            return
        self.take_no_more()
        self._asking.wait()
        self._renewal.stop()
        self._recalls.stop()
        with self._lock:
            held = list(self._keeping.held)
        self.relinquish(held)
        self._leasing.standings.close()

    # -- messages ------------------------------------------------------------------------------------------------------

    def publish(
        self, log: str, payloads: Sequence[bytes], *, under: Sequence[Lease], attempt_id: bytes | None = None
    ) -> Outcome:
        """Write messages, in order, as one batch: all of them are in the record, or none.

        ``under``: the leases that cover them, at least one, held. ``attempt_id``: 16 bytes that name this try; called
        again with the id of a try whose outcome was Unknown, it first finds out what became of that. Returns
        ``Committed``, ``NotCommitted(reason)`` (it is certain that none will ever be in the record) or
        ``Unknown(reason)`` (call ``resolve``). Raises LeaseLost, BadRequest, BadTime, NotTrusted: then nothing is in
        the record. Touches the mount; may wait for the log to be settled.
        """
        batch = checked_batch(payloads)
        identity = self._random.randbytes(ATTEMPT_ID_BYTES) if attempt_id is None else checked_attempt(attempt_id)
        leases = self._checked(under)
        if len(leases) > LEASES_MAX:
            raise BadRequest(
                "too-many-leases",
                f"a batch under {len(leases)} leases exceeds the limit of {LEASES_MAX}",
                hint="publish under fewer leases at once, or take one lease that covers them",
            )
        refuse_readers(leases)
        book = self._logs.opened_or_made(log)
        self._settle_for(book, leases)
        earlier = self._pending.get(identity)
        outcome: Outcome = NotCommitted("not tried")
        if earlier is not None:
            outcome = self._decide(earlier, self._context.time.boot_ns())
            if not isinstance(outcome, NotCommitted):
                return outcome
        for _ in range(ATTEMPTS):
            outcome = self._attempt(book, batch, leases, identity)
            if not isinstance(outcome, NotCommitted):
                break
        if isinstance(outcome, Committed):
            for lease in leases:
                lease.progress()
        return outcome

    def resolve(self, log: str, leases: Sequence[Lease]) -> Outcome:
        """Decide what is Unknown under these leases, by closing the bags concerned; waits until they are due.

        Returns Committed if everything that was unknown is in the record, NotCommitted if something certainly is not,
        Unknown if something still cannot be told. Raises Damaged when nobody will ever be able to tell.
        """
        worst: Outcome = Committed()
        for publication in self._pending_under(leases):
            if publication.file.bag.log == log:
                outcome = self._decide(publication, None)
                if not isinstance(outcome, Committed) and not isinstance(worst, Unknown):
                    worst = outcome
        return worst

    def read(
        self, log: str, *, under: Sequence[Lease] = (), after_ns: Instant = 0, level: str | None = None
    ) -> list[Message]:
        """Return a log's messages with timestamps above ``after_ns``, in order.

        Under leases the level is *latest* by default: everything that earlier holders of these domains wrote is there.
        Without, it is *settled*: final, the same for everyone. Touches the mount; may wait for the log to be settled.

        Under leases a log that does not exist is made: then nobody, however late, can make it begin earlier.
        """
        chosen = level or ("latest" if under else "settled")
        if chosen not in ("latest", "settled"):
            raise BadRequest("bad-level", f"{chosen!r} is no level of reading", hint="settled or latest")
        leases = self._checked(under) if under else []
        book = self._logs.opened_or_made(log) if under else self._logs.opened(log)
        self._settle_for(book, leases)
        return self._read(list(book.reader.latest(after_ns) if chosen == "latest" else book.reader.settled(after_ns)))

    def read_domains(
        self, log: str, *, under: Sequence[Lease], after_ns: Instant = 0, last: int | None = None
    ) -> list[Message]:
        """Return those of a log's messages with timestamps above ``after_ns`` that name a domain held here, in order.

        The same as ``read(log, under=under, after_ns=after_ns)`` without the messages of other domains; but where the
        leases are in mode S, SIX or X only the files are read that earlier holders said they wrote to, as far back as
        that is known. ``last``: at most so many of the newest: usually the log need not be looked through then.
        Touches the mount; may wait for the log to be settled. Raises LeaseLost, BadRequest, BadTime, TryAgain.
        """
        leases = self._checked(under)
        book = self._logs.opened_or_made(log)
        self._settle_for(book, leases)
        doubtful = [each.file.bag.start_ns for each in self._pending_under(leases) if each.file.bag.log == log]
        return self._read(messages_of(book.reader, leases, doubtful, after_ns, last))

    def _read(self, messages: list[Message]) -> list[Message]:
        """Remember how far was read: what is written from now on has higher timestamps."""
        if messages:
            with self._lock:
                self._state.read_ns = max(self._state.read_ns, messages[-1].timestamp_ns)
        return messages

    def horizon(self, log: str) -> Instant:
        """Return the instant before which everything in a log is final, as of now. Touches the mount."""
        return self._logs.opened(log).horizon.refresh()

    def __enter__(self) -> Self:
        """Use it in a ``with`` block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    # -- one attempt ---------------------------------------------------------------------------------------------------

    def _attempt(self, book: OpenLog, batch: Sequence[bytes], leases: Sequence[Lease], identity: bytes) -> Outcome:
        publication = self._stamped(book, batch, leases, identity)
        outcome = book.writer.write(publication.file)
        alone = not isinstance(outcome, Unknown)
        if not alone:
            # The same attempt again is safe, and tells whether a lost reply was all that happened.
            outcome = book.writer.write(publication.file)
        self._account(publication, outcome, alone=alone)
        return outcome

    def _stamped(self, book: OpenLog, batch: Sequence[bytes], leases: Sequence[Lease], identity: bytes) -> Publication:
        """Make a publication, once its timestamp is not ahead of the clock. From here on it is pending."""
        numbers = self._context.records.newest()
        keyring = self._context.records.keyring(numbers.trust)
        self._context.records.policy(numbers.policy)  # once, before the lock is held
        while True:
            with self._lock:
                if identity in self._pending:
                    raise BadRequest(
                        "attempt-pending",
                        f"the attempt {identity.hex()} is under way already",
                        hint="wait for its outcome, or choose another attempt id",
                    )
                made = self._stamper.publication(book.grid, batch, leases, identity, numbers, keyring)
                if not isinstance(made, Ahead):
                    self._pending[identity] = made
                    for lease in leases:
                        lease.wrote(made.last_ns, made.time)
                    return made
            # Without the lock: the leases have to be renewed meanwhile.
            self._context.time.sleep(min(made.span_ns, _SLICE_NS))
            self._renew_meanwhile()

    def _account(self, publication: Publication, outcome: Outcome, *, alone: bool = False) -> None:
        """Take note of an outcome that is known, once, whoever found it out.

        ``alone``: the attempt was written once. After doubt its frame may stand in several files of the bag.
        """
        with self._lock:
            if isinstance(outcome, Unknown) or self._pending.get(publication.attempt_id) is not publication:
                return
            del self._pending[publication.attempt_id]
            if isinstance(outcome, NotCommitted):
                # Closed early, perhaps: this bag takes nothing more, the next attempt belongs into a later one.
                self._state.last_ns = max(self._state.last_ns, publication.file.bag.end_ns - 1)
            else:
                self._state.confirm(publication)
                place = publication.place(outcome.file_name if alone else None)
                for lease in publication.leases:
                    lease.committed(publication.messages, publication.digest, publication.sequence, place)

    def _decide(self, publication: Publication, deadline_boot_ns: int | None) -> Outcome:
        """Find out what became of an attempt. Raises Damaged."""
        outcome = self._logs.opened(publication.file.bag.log).writer.resolve(publication.file, deadline_boot_ns)
        self._account(publication, outcome)
        return outcome

    def _pending_under(self, leases: Sequence[Lease]) -> list[Publication]:
        with self._lock:
            return [each for each in self._pending.values() if not set(leases).isdisjoint(each.leases)]

    def _resolve_before_end(self, leases: Sequence[Lease]) -> None:
        pending = self._pending_under(leases)
        spans = [each.file.bag.due_ns - each.file.bag.start_ns for each in pending]
        longest = max(spans, default=0) + 2 * self._policy.radius_ns_max + self._policy.attempt_timeout_ns
        deadline = self._context.time.boot_ns() + longest
        for publication in pending:
            try:
                self._decide(publication, deadline)
            except Damaged as problem:
                _log.warning("outcome-undecidable bag=%s reason=%s", publication.file.bag.path, problem.message)

    # -- rules ---------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._process != os.getpid():
            raise BadRequest(
                "forked",
                f"this session belongs to process {self._process}, this is its child {os.getpid()}",
                hint="open the cluster in the child",
            )
        self._asking.check()

    def _refuse_foreign(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            if lease.ended is None and lease not in self._keeping.held:
                raise BadRequest(
                    "foreign-lease", f"the lease on {lease.domain!r} is another session's", hint="use its session"
                )

    def _checked(self, under: Sequence[Lease]) -> list[Lease]:
        """Return these leases, each once, if all of them are this session's and surely held."""
        if self._process != os.getpid():
            self._check_open()
        leases = list(dict.fromkeys(under))
        if not leases:
            raise BadRequest("no-lease", "messages are published under at least one lease", hint="acquire one first")
        now = self._context.time.now()
        try:
            with self._lock:
                self._refuse_foreign(leases)
                for lease in leases:
                    lease.check_held(now, self._policy.holder_margin_ns)
        finally:
            self._keeping.losses.tell()
        return leases

    def _settle_for(self, book: OpenLog, leases: Sequence[Lease]) -> None:
        """Make the log's horizon reach what these leases demand; they are renewed meanwhile. Before every use."""
        target = max((lease.settle_to_ns for lease in leases), default=0)
        if book.horizon.reached < target:
            check_near(target, self._context.time.now().latest, self._policy, "the log must be settled up to")
            book.horizon.settle(target, progress=lambda _: self._renew_meanwhile())
            self._checked(leases)

    def _renew_meanwhile(self) -> None:
        try:
            self.renew_due()
        except LeaseholdError as why:
            _log.warning("renewal-failed code=%s reason=%s", why.code, why.message)
