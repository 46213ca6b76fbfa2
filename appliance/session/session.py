"""``Session``: the application's leases and messages. One writer incarnation.

The rules that an application could forget are kept here: a log is settled before its first use under a lease, a
timestamp lies above every floor, a lease that may be over is never written under, a lease is given back only when the
outcome of everything written under it is known, and nothing but messages is begun under a lease before no earlier
holder can believe any more that it has the domain.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Self

from appliance.bag.reader import Message
from appliance.bag.writing import Committed, NotCommitted, Outcome, Unknown
from appliance.formats.lease import Holder, Mode
from appliance.formats.names import check_purpose
from appliance.formats.policy import PolicyNumbers
from appliance.lease.wire import Denied
from timeagent.clock import boot_id
from timeagent.errors import BadRequest, Damaged, NotTrusted, TenureError, check_callable, check_type
from timeagent.units import MS, Instant, Seconds, Span, TimeInterval, span_of

from ..bag.ports import BagContext
from . import asking, recalls
from .endings import Recall
from .held import Keeper, Lease, Listener, Routes
from .leasing import Leasing
from .open_logs import LogBook, OpenLog, hinted_reads
from .renewal import LeaseRenewer, RenewalThread, do_due
from .session_leases import period_ns
from .stamping import AheadOfClock, FrameStamper, Publication, WriterState, check_covering, check_near, checked_batch

_log = logging.getLogger(__name__)

SLICE_NS: Final[Span] = 100 * MS
"""How long a wait goes on before the leases are looked after again."""

ATTEMPTS: Final = 3
"""How often ``publish`` tries: again, in a later bag, after an attempt that certainly did not happen."""


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
        self._together = session_leases
        self._time = context.time
        self._state = WriterState(context.records.cluster_id, context.node, randomness.randbytes(8))
        self._stamper = FrameStamper(context.time, policy, self._state, context.records)
        holder = Holder(
            node=context.node,
            process=os.getpid(),
            boot=boot_id(),
            incarnation=self._state.incarnation,
            purpose=check_purpose(purpose),
        )
        keeper = self.keeper = Keeper(context.time, policy, routes, holder, randomness, background)
        self._losses = keeper.losses
        leasing = self._leasing = Leasing(keeper)
        self._acquires = asking.PendingAcquires(keeper)
        self._renewer = LeaseRenewer(keeper, leasing.renew, leasing.session_leases, context.parallel)
        self._pending: dict[bytes, Publication] = {}
        """Attempts under way, and those whose outcome is unknown, by attempt id."""
        self._renewal_thread = RenewalThread(policy, self.renew_due)
        self._recalls = recalls.RecallListener(keeper, self._give_back)

    @property
    def incarnation(self) -> bytes:
        """The 8 random bytes that name this writer in witnesses and files."""
        return self._state.incarnation

    # -- leases --------------------------------------------------------------------------------------------------------

    def acquire(  # noqa: PLR0913 - what can be said about a lease, by name
        self,
        *domains: str,
        mode: Mode | str | Mapping[str, Mode | str] = Mode.X,
        timeout_s: Seconds = 30,
        term_s: Seconds | None = None,
        record_only: bool = False,
        hold_s_max: Seconds | None = None,
        progress_within_s: Seconds | None = None,
        recall: Recall | str | None = None,
        sticky_s: Seconds | None = None,
        session_lease: bool | None = None,
        given_up: Callable[[], bool] = lambda: False,
        waiting: Callable[[Denied], object] = lambda _: None,
    ) -> asking.Leases:
        """Take leases on one or several domains, all or none. ``mode``: one for all, or a mapping with each domain.

        X excludes everybody. S shares with other readers and may not write. SIX reads and writes, IX writes, IS does
        neither, where others work on parts of the domain under domains of their own.
        Spans are seconds or ``timedelta``. ``term_s``: at most the longest of the policy; ``Lease.term_ns`` says which.
        Blocks up to the time-out, then raises TryAgain, code ``busy``, naming who has what until when; sooner, code
        ``deadlock``, where an older request waits for what this session holds. Raises BadRequest for a bad name,
        ShardUnavailable when a shard does not answer, BadTime when it has no bounded clock.

        This returns only when no earlier holder can believe any more that it holds one of the domains, also where one
        died, or its shard did; code ``warming`` past the time-out. ``record_only``: nothing is done under the leases
        but reading and writing messages, which waits for earlier holders by itself: this does not wait for them then.

        ``hold_s_max``: so long from then, however often they are renewed. ``progress_within_s``: they are renewed
        only while their holder gets on (``Lease.progress``, or a message Committed): who hangs loses them.

        ``recall``: what is done when another asks for them: ``ignore``, ``finish``, ``flush`` or ``relinquish``
        (``Recall``). ``sticky_s``: when they are given back they stay with the session for the next ``acquire``, for
        so long or until another asks for them.

        ``session_lease``: take them under one expiry with others of this session, kept by one small renewal for each
        shard, however many they are; as the session was begun where left out. Not with a term or a cap of their own.

        ``given_up``: asked now and then, from this thread; once it is true, this ends as if the time-out had come,
        leaves no waiter behind, and takes at most about one attempt's time-out for it.

        ``waiting``: called, from this thread, each time that a shard says who has one of the domains: to show it.
        """
        timeout_ns = span_of(timeout_s, "timeout_s")
        term_ns, hold_ns_max, progress_ns, sticky_ns = asking.spans_of(
            term_s=term_s, hold_s_max=hold_s_max, progress_within_s=progress_within_s, sticky_s=sticky_s
        )
        check_type(bool, record_only=record_only)
        check_callable(given_up=given_up, waiting=waiting)
        until = self._time.boot_ns() + timeout_ns
        self._check_open()
        term = asking.chosen_term(self._policy, term_ns, hold_ns_max)
        answer = asking.chosen_recall(recall, sticky_ns)
        wanted = asking.wanted_modes(domains, mode)
        together = asking.chosen_together(session_lease, self._together, (term_ns, hold_ns_max, progress_ns))
        with self._acquires.under_way(given_up) as over:
            leases, misfits, came = recalls.use_again(self.keeper, wanted, together=together)
            if misfits:
                self._give_back(misfits)
            if came is None:
                with self._recalls.in_no_circle() as stuck:
                    leases, came = self._leasing.acquire(
                        wanted, term, timeout_ns, over, stuck, together=together, waiting=waiting
                    )
            now = came.now
            try:
                with self.keeper.lock:
                    self._check_open()
                    for lease in leases:
                        lease.recall, lease.sticky_ns = answer, sticky_ns
                    self._renewer.adopt(leases, came)
                    if self.keeper.background:
                        self._renewal_thread.start(period_ns(term, self._policy))
                self._recalls.attend(leases)
            except BaseException:
                self.keeper.forget(leases)
                self._leasing.relinquish(leases)
                raise
            if not record_only:
                now = self._wait_out(now, leases, until, over)
            if hold_ns_max is not None or progress_ns is not None:
                self._renewer.bound(leases, now.latest, hold_ns_max, progress_ns)
        taken = asking.Leases(leases)
        taken.give_back = self.relinquish
        return taken

    def upgrade(self, lease: Lease, mode: Mode | str, *, timeout_s: Seconds = 30, record_only: bool = False) -> None:
        """Change a held lease to a stronger mode; its fence, floor and settle_to are stated anew.

        Waits for other holders only where nobody else waits for the domain, and at most up to the time-out: TryAgain,
        code ``busy``, leaves the lease as it was. Then, unless it is ``record_only``, for those who may still believe
        that they hold the domain beside it: where the time-out ends that, code ``warming``, the lease is given back.
        Raises LeaseLost, BadRequest, ShardUnavailable, BadTime.
        """
        timeout_ns = span_of(timeout_s, "timeout_s")
        check_type(bool, record_only=record_only)
        until = self._time.boot_ns() + timeout_ns
        self._check_open()
        self._checked([lease])
        wanted = asking.wanted_modes([lease.domain], mode)[lease.domain]
        with self._recalls.in_no_circle() as stuck:
            ending = self._leasing.strengthen(lease, wanted, timeout_ns, stuck)
        if ending is not None:
            with self.keeper.lock:
                lease.lose_to(ending)
        self._checked([lease])
        if not record_only:
            try:
                self._wait_for_earlier(self._time.now(), [lease], until, lambda: self._acquires.over)
            except BaseException:
                self.relinquish([lease])
                raise

    def _wait_out(
        self, now: TimeInterval, leases: Sequence[Lease], until_boot_ns: int, given_up: Callable[[], bool]
    ) -> TimeInterval:
        """As ``_wait_for_earlier``; where that raises leases are given back that no other thread has begun to use."""
        try:
            return self._wait_for_earlier(now, leases, until_boot_ns, given_up)
        except BaseException:
            with self.keeper.lock:
                shared = {lease for lease in leases if lease.uses > 1}
                for lease in shared:
                    lease.uses -= 1
            leases = [lease for lease in leases if lease not in shared]
            self.relinquish(leases)
            raise

    def _wait_for_earlier(
        self, now: TimeInterval, leases: Sequence[Lease], until_boot_ns: int, given_up: Callable[[], bool]
    ) -> TimeInterval:
        """Wait until every lease that ended without being relinquished is surely past, renewing; return now.

        Raises TryAgain, code ``warming``, LeaseLost, BadTime.
        """
        last = max(leases, key=lambda lease: lease.settle_to_ns)
        while not now.surely_past(last.settle_to_ns):
            asking.check_in_time(self._time, last.domain, last.settle_to_ns, 0 if given_up() else until_boot_ns)
            self.check_held(leases)
            self._renewer.note_progress(leases)
            self.renew_due()
            self._time.sleep(max(MS, min(SLICE_NS, last.settle_to_ns - now.earliest)))
            now = self._time.now()
        return now

    def check_held(self, leases: Sequence[Lease]) -> None:
        """Raise LeaseLost, by name, unless all of these are surely held now. Touches nothing."""
        self._checked(leases)

    def on_lost(self, listener: Listener) -> None:
        """Have a function called for every lease of this session that is lost from now on (``Lease.on_lost``)."""
        check_callable(listener=listener)
        self._losses.listen(listener)

    def renew_due(self) -> None:
        """Renew every held lease that has used up the renewal period; give back what nobody uses. Raises BadTime.

        Never raises for a lease that is lost: that lease says so when it is used.
        """
        self._renewer.renew_due()
        if moved := self._renewer.take_moved():
            self._recalls.attend(moved)
        if idle := recalls.unused_for_long(self.keeper):
            self._give_back(idle)
        self._recalls.poll()
        do_due(self.keeper)

    def relinquish(self, leases: Sequence[Lease], *, timeout_s: Seconds | None = None) -> bool:
        """Give leases back. They are over for the session from here on; what is being written is waited for.

        Returns whether every shard has said that it has its leases back (``Lease.delivered``); else they expire there.
        ``timeout_s``: in all, except for a mount that hangs; without it, three attempts at each shard.
        An attempt of unknown outcome is resolved first; where that fails within about the time that its bag needs to
        be closed, its leases are abandoned: left to expire, so that their successors settle what this session could
        not tell. A lease that expired here is given back too, for its shard may not have broken it yet. Sticky ones
        stay with the session, for another use. Raises nothing for what was lost meanwhile; BadRequest for the leases
        of another session.
        """
        if self.keeper.process != os.getpid():
            return False
        until = None if timeout_s is None else self._time.boot_ns() + span_of(timeout_s, "timeout_s")
        leases = asking.checked_leases(leases)
        with self.keeper.lock:
            self._refuse_foreign(leases)
            undecided = {lease for publication in self._pending.values() for lease in publication.leases}
            over = [
                each
                for each in leases
                if self._acquires.over or each in undecided or not recalls.keep_unused(self.keeper, each)
            ]
        self._give_back(over, until)
        return all(lease.delivered for lease in over)

    def _give_back(self, leases: Sequence[Lease], until_boot_ns: int | None = None) -> None:
        with self.keeper.lock:
            mine = [lease for lease in leases if lease in self.keeper.held]
            for lease in mine:
                lease.ended = lease.ended or "relinquished"
        self._resolve_before_end(mine, until_boot_ns)
        with self.keeper.lock:
            doubtful = {lease for publication in self._pending.values() for lease in publication.leases}
            mine = [lease for lease in mine if lease in self.keeper.held]
            self.keeper.forget(mine)
            for lease in doubtful.intersection(mine):
                lease.ended = "abandoned"
        self._leasing.relinquish(mine, until_boot_ns, doubtful)

    def take_no_more(self) -> None:
        """Take no lease any more: who waits for one gives up soon. Idempotent; does not wait. ``close`` begins so."""
        if self.keeper.process == os.getpid():
            self._acquires.end()

    def close(self) -> None:
        """Give everything back and stop renewing. Idempotent; listeners may do it. In a child after fork: nothing."""
        if self.keeper.process != os.getpid():
            return
        self.take_no_more()
        self._acquires.wait()
        self._renewal_thread.stop()
        self._recalls.stop()
        with self.keeper.lock:
            held = list(self.keeper.held)
        self.relinquish(held)
        self._leasing.session_leases.close()

    # -- messages ------------------------------------------------------------------------------------------------------

    def publish(self, log: str, payloads: Sequence[bytes], *, under: Sequence[Lease]) -> Outcome:
        """Write messages, in order, as one batch: all of them are in the record, or none.

        ``under``: the leases that cover them, at least one, held. Returns ``Committed``, ``NotCommitted(reason)`` (it
        is certain that none will ever be in the record) or ``Unknown(reason)`` (call ``resolve``). Called again it
        writes again: docs/guarantees.md says how to write something once. Raises LeaseLost, BadRequest, BadTime,
        NotTrusted: then nothing is in the record. Touches the mount; may wait for the log to be settled.
        """
        batch = checked_batch(payloads)
        identity = self._random.randbytes(16)
        leases = self._own(under)
        check_covering(leases)
        book = self._logs.by_name.get(log) if isinstance(log, str) else None
        if book is None:
            self._checked(leases)
            book = self._logs.opened_or_made(log)
        outcome: Outcome = NotCommitted("not tried")
        for _ in range(ATTEMPTS):
            outcome = self._attempt(book, batch, leases, identity)
            if not isinstance(outcome, NotCommitted):
                break
        if isinstance(outcome, Committed):
            self._renewer.note_progress(leases)
        return outcome

    def resolve(self, log: str, leases: Sequence[Lease]) -> Outcome:
        """Decide what is Unknown under these leases, by closing the bags concerned; waits until they are due.

        Returns Committed if everything that was unknown is in the record, NotCommitted if something certainly is not,
        Unknown if something still cannot be told. It says nothing of what was decided before, by giving back.
        Raises Damaged when nobody will ever be able to tell.
        """
        check_type(str, log=log)
        worst: Outcome = Committed()
        for publication in self._pending_under(asking.checked_leases(leases)):
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
        Without, it is *settled*: final, the same for everyone; where no daemon runs call ``Cluster.settle`` first. An
        instant is nanoseconds since 1970, as ``time.time_ns()`` returns. Touches the mount; may wait for the log to
        be settled, under leases.

        Under leases a log that does not exist is made: then nobody, however late, can make it begin earlier.
        """
        leases = self._checked(under) if (under := asking.checked_leases(under)) else []
        chosen = ("latest" if leases else "settled") if level is None else level
        if chosen not in ("latest", "settled"):
            raise BadRequest("bad-level", f"{chosen!r} is no level of reading", hint="settled or latest")
        check_type(int, after_ns=after_ns)
        book = self._logs.opened_or_made(log) if leases else self._logs.opened(log)
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
        check_type(int, after_ns=after_ns)
        check_type(int | None, last=last)
        leases = self._checked(under)
        book = self._logs.opened_or_made(log)
        self._settle_for(book, leases)
        doubtful = [each.file.bag.start_ns for each in self._pending_under(leases) if each.file.bag.log == log]
        return self._read(hinted_reads(book.reader, leases, doubtful, after_ns, last))

    def _read(self, messages: list[Message]) -> list[Message]:
        """Remember how far was read: what is written from now on has higher timestamps."""
        if messages:
            with self.keeper.lock:
                self._state.read_ns = max(self._state.read_ns, messages[-1].timestamp_ns)
        return messages

    def horizon(self, log: str) -> Instant:
        """Return the instant before which everything in a log is final, as of now. Touches the mount."""
        return self._logs.opened(log).horizon.refresh()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
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
        """Make a publication, once the log is settled and its timestamp not ahead of the clock. It is pending then.

        By the records that this process knows; where these refuse it, by the newest: a key may have come meanwhile.
        """
        records, numbers = self._context.records, None
        while True:
            asked = [lease.settle_to_ns for lease in leases]
            self._settle_for(book, leases)
            numbers = numbers or records.known or records.newest()
            in_force = self._stamper.in_force(numbers)
            try:
                with self.keeper.lock:
                    if asked != [lease.settle_to_ns for lease in leases]:
                        continue  # a change of mode, or a second half, was answered meanwhile: it may ask for more
                    made = self._stamper.publication(book.grid, batch, leases, identity, in_force)
                    if not isinstance(made, AheadOfClock):
                        self._pending[identity] = made
                        for half, _ in made.proven:
                            half.wrote(made.last_ns, made.time)
                        return made
            except NotTrusted:
                newest = records.newest()
                if newest == numbers:
                    raise
                numbers = newest
                continue
            finally:
                self._losses.tell()
            # Without the lock: the leases have to be renewed meanwhile.
            self._time.sleep(min(made.span_ns, SLICE_NS))
            self._renew_meanwhile(leases)

    def _account(self, publication: Publication, outcome: Outcome, *, alone: bool = False) -> None:
        """Take note of an outcome that is known, once, whoever found it out.

        ``alone``: the attempt was written once. After doubt its frame may stand in several files of the bag.
        """
        with self.keeper.lock:
            if isinstance(outcome, Unknown) or self._pending.get(publication.attempt_id) is not publication:
                return
            del self._pending[publication.attempt_id]
            if isinstance(outcome, NotCommitted):
                # Closed early, perhaps: this bag takes nothing more, the next attempt belongs into a later one.
                self._state.last_ns = max(self._state.last_ns, publication.file.bag.end_ns - 1)
            else:
                self._state.confirm(publication)
                place = publication.place(outcome.file_name if alone else None)
                for half, name in publication.proven:
                    lease = half.standing()  # and the first half is nothing any more where that is another
                    if lease.correlation_id == name:
                        lease.committed(publication.messages, publication.digest, publication.sequence, place)

    def _decide(self, publication: Publication, deadline_boot_ns: int | None) -> Outcome:
        """Find out what became of an attempt. Raises Damaged."""
        outcome = self._logs.opened(publication.file.bag.log).writer.resolve(publication.file, deadline_boot_ns)
        self._account(publication, outcome)
        return outcome

    def _pending_under(self, leases: Sequence[Lease]) -> list[Publication]:
        with self.keeper.lock:
            return [each for each in self._pending.values() if not set(leases).isdisjoint(each.leases)]

    def _resolve_before_end(self, leases: Sequence[Lease], until_boot_ns: int | None) -> None:
        pending = self._pending_under(leases)
        spans = [each.file.bag.due_ns - each.file.bag.start_ns for each in pending]
        longest = max(spans, default=0) + 2 * self._policy.radius_ns_max + self._policy.attempt_timeout_ns
        deadline = min(self._time.boot_ns() + longest, until_boot_ns or 2**63)
        for publication in pending:
            try:
                self._decide(publication, deadline)
            except Damaged as problem:
                _log.warning("outcome-undecidable bag=%s reason=%s", publication.file.bag.path, problem.message)

    # -- rules ---------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        self.keeper.refuse_child("session")
        self._acquires.check()

    def _refuse_foreign(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            if lease.ended is None and lease not in self.keeper.held:
                raise BadRequest(
                    "foreign-lease", f"the lease on {lease.domain!r} is another session's", hint="use its session"
                )

    def _own(self, under: Sequence[Lease]) -> list[Lease]:
        """Return these leases, each once, if all of them are this session's."""
        self.keeper.refuse_child("session")
        leases = asking.checked_leases(under)
        if not leases:
            raise BadRequest("no-lease", "messages are published under at least one lease", hint="acquire one first")
        with self.keeper.lock:
            self._refuse_foreign(leases)
        return leases

    def _checked(self, under: Sequence[Lease]) -> list[Lease]:
        """Return these leases, each once, if all of them are this session's and surely held."""
        leases = self._own(under)
        now = self._time.now()
        try:
            with self.keeper.lock:
                for lease in leases:
                    lease.check_held(now, self._policy.holder_margin_ns)
        finally:
            self._losses.tell()
        return leases

    def _settle_for(self, book: OpenLog, leases: Sequence[Lease]) -> None:
        """Make the log's horizon reach what these leases demand; they are renewed meanwhile. Before every use."""
        target = max((lease.settle_to_ns for lease in leases), default=0)
        if book.horizon.reached < target:
            self._checked(leases)
            check_near(target, self._time.now().latest, self._policy, "the log must be settled up to")
            book.horizon.settle(target, progress=lambda _: self._renew_meanwhile(leases))
            self._checked(leases)

    def _renew_meanwhile(self, leases: Sequence[Lease]) -> None:
        """Renew, while something is waited for that has to come before the leases are used: their holder gets on."""
        self._renewer.note_progress(leases)
        try:
            self.renew_due()
        except TenureError as why:
            _log.warning("renewal-failed code=%s reason=%s", why.code, why.message)
