"""A value that many read and few write, kept in memory for as long as a lease says that it is the newest.

The value is the payload of the newest message of a log that names a domain. Who reads takes the domain in mode S and
keeps it, with what it read, until somebody asks for the domain to write; who writes takes it in X and keeps it too.
What is in memory is used while its lease is surely held, which is asked of the clock alone: it is never older than
the last write that ended before the call began (docs/recipes/cached.md).

Where a name is written from all sides keeping it costs more than it brings: each use takes the lease back from
another. Who is asked for it three times running before it was used twice keeps it no more for the next ``UNKEPT_USES``.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import RLock
from typing import Final, Self

from timeagent.errors import LeaseLost, TenureError, TryAgain, UnknownOutcome, check_callable, check_type
from timeagent.units import Seconds, Span, span_of

from ..bag.writing import Committed, NotCommitted, Outcome, Unknown
from ..formats.framing import check_payloads
from ..formats.lease import Mode, covers
from ..formats.names import check_domain, check_log
from ..session.asking import spans_of
from ..session.endings import Recall
from ..session.held import Lease
from ..session.renewal import later
from ..session.session import Session

_log = logging.getLogger(__name__)

TRIES: Final = 5
"""How often a lease is taken again that somebody asked for before it was of use."""

EARLY_RECALLS: Final = 3
USES_WORTH_KEEPING: Final = 2
UNKEPT_USES: Final = 16
"""So many uses after that many early recalls the lease is not kept between them."""

FLUSH_S: Final = 1.0
"""How long ``put`` leaves a value in memory alone, where nothing else is said."""


@dataclass(slots=True)
class CacheCounts:
    """What came of the uses of a value so far. ``hits`` / (``hits`` + ``misses``) is the hit rate."""

    hits: int = 0
    misses: int = 0
    recalls: int = 0
    """How often another asked for the lease."""
    needless: int = 0
    """How often the value was the same when it was read again after that: false sharing, of the domain or the value."""
    writes: int = 0
    flushes: int = 0
    """How many of the writes wrote what ``put`` had left in memory."""


@dataclass(slots=True)
class _Kept:
    """A lease and the value that it keeps true."""

    lease: Lease
    value: bytes | None
    uses: int = 0
    dirty: bool = False
    """Whether the value is in memory alone."""


class CachedValue:
    """One value. Safe to share between threads; the session may have others, and other leases."""

    def __init__(
        self,
        session: Session,
        log: str,
        domain: str,
        *,
        flush_s: Seconds = FLUSH_S,
        timeout_s: Seconds = 30,
        hold_s_max: Seconds | None = None,
    ) -> None:
        """Read nothing yet. ``log``: where its values are written; ``domain``: what they are written about.

        ``flush_s``: how long ``put`` may leave a value in memory alone. ``timeout_s``: how long each call waits for a
        lease. ``hold_s_max``: the lease is renewed for so long; then the next use takes it anew. Without: as long as
        it is kept.
        """
        check_type(Session, session=session)
        self._session = session
        self._log_name = check_log(log)
        self._domain = check_domain(domain)
        self._flush_ns: Span = span_of(flush_s, "flush_s")
        span_of(timeout_s, "timeout_s")
        spans_of(hold_s_max=hold_s_max)
        self._timeout_s = timeout_s
        self._hold_s_max = hold_s_max
        self._lock = RLock()
        self._kept: _Kept | None = None
        self._before: bytes | None = None
        """What was in memory when another asked for it last."""
        self._was_recalled = False
        self._early = 0
        self._unkept_uses = 0
        self._unwritten: TenureError | None = None
        self._later: Callable[[Span, Callable[[], None]], None] = partial(later, session.keeper)
        self._flush_is_due = False
        self.counts = CacheCounts()

    def get(self) -> bytes | None:
        """Return the newest value; None: none was ever written. From memory it does not block, nor touch the mount.

        Else it blocks for the lease, and for what earlier holders wrote to be settled. Raises TryAgain, LeaseLost,
        ShardUnavailable, BadTime, and once what became of a value of ``put`` that could not be written.
        """
        kept = self._kept
        if kept is not None and self._unwritten is None and kept.lease.surely_held():
            kept.uses += 1
            self.counts.hits += 1
            return kept.value
        with self._lock:
            return self._using(Mode.S, lambda kept: kept.value)

    def set(self, value: bytes) -> Outcome:
        """Write a value, and return what became of it. Blocks for the lease, and until the mount has it.

        Unknown, which is said of what ``put`` had left in memory too, is resolved before anybody else gets the lease,
        as with ``Session.publish``. Raises as ``get``.
        """
        check_type(bytes, value=value)
        with self._lock:
            return self._using(Mode.X, lambda kept: self._write(kept, value))

    def update(self, change: Callable[[bytes | None], bytes]) -> Outcome:
        """Write what a function makes of the newest value, and nobody writes between. As ``set``.

        The function may be called more than once: it decides, and does nothing. What it raises is raised, at once.
        """
        check_callable(change=change)
        with self._lock:
            return self._using(Mode.X, lambda kept: self._write(kept, change(kept.value)))

    def put(self, value: bytes) -> None:
        """Have a value in memory, and write it later: the latest of many within ``flush_s`` is written, no other.

        It is written when somebody else asks for the domain, before the lease could be over, by ``flush`` and by
        ``close``. A process that dies has lost it, and nobody else ever saw it. What could not be written the next call
        of any verb raises. Blocks only where the lease has to be taken first. Raises as ``get``.
        """
        check_type(bytes, value=value)
        check_payloads([value])
        with self._lock:
            self._using(Mode.X, lambda kept: self._leave_in_memory(kept, value))

    def flush(self) -> Outcome:
        """Write what is in memory alone; Committed where there is nothing. Blocks. Raises LeaseLost, BadTime."""
        with self._lock:
            self._say_unwritten()
            kept = self._kept
            return Committed() if kept is None or not kept.dirty else self._write(kept, kept.value or b"", flush=True)

    def close(self) -> Outcome:
        """Write what is in memory alone and give the lease back; return what became of it. Idempotent."""
        with self._lock:
            try:
                return self.flush()
            finally:
                self._give_back()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        """Close it. Raises TryAgain where the last value was not written, UnknownOutcome where that cannot be told."""
        outcome = self.close()
        if isinstance(outcome, Unknown):
            raise UnknownOutcome("unknown-outcome", f"the last value of {self._domain!r}: {outcome}")
        if isinstance(outcome, NotCommitted):
            raise TryAgain(
                "value-unwritten",
                f"the last value of {self._domain!r} was not written: {outcome.reason}",
                hint="read it, and decide anew; what must not be lost is written by set",
            )

    # -- with the lock -------------------------------------------------------------------------------------------------

    def _using[R](self, mode: Mode, do: Callable[[_Kept], R]) -> R:
        """Do something under a lease of at least this mode and the value of now, and keep both if that is worth it."""
        for _ in range(TRIES):
            if not self._has(mode):
                self._give_back()
            self._say_unwritten()
            try:
                kept = self._kept or self._acquired(mode)
                kept.uses += 1
                found = do(kept)
            except LeaseLost:
                if self._kept is not None and self._kept.lease.surely_held():
                    raise  # an application's function has raised it, of another lease
                self._give_back()
                continue
            if self._unkept_uses > 0:
                self._unkept_uses -= 1
                self._flush_unasked()
                self._give_back()
            return found
        raise TryAgain(
            "value-contended",
            f"others asked for {self._domain!r} {TRIES} times running before it could be used",
            hint="try again",
        )

    def _has(self, mode: Mode) -> bool:
        kept = self._kept
        held = kept is not None and covers(kept.lease.mode, mode) and kept.lease.surely_held()
        self.counts.hits += held
        return held

    def _acquired(self, mode: Mode) -> _Kept:
        self.counts.misses += 1
        (lease,) = self._session.acquire(
            self._domain,
            mode=mode,
            timeout_s=self._timeout_s,
            record_only=True,
            recall=Recall.FLUSH,
            hold_s_max=self._hold_s_max,
        )
        try:
            messages = self._session.read_domains(self._log_name, under=[lease], last=1)
        except BaseException:
            self._session.relinquish([lease])
            raise
        self._kept = kept = _Kept(lease, messages[-1].payload if messages else None)
        if self._was_recalled:
            self.counts.needless += kept.value == self._before
            self._was_recalled = False
        lease.on_recall(self._recalled)
        return kept

    def _write(self, kept: _Kept, value: bytes, *, flush: bool = False) -> Outcome:
        try:
            outcome = self._session.publish(self._log_name, [value], under=[kept.lease])
        except TenureError:  # then nothing is written
            raise
        except BaseException:  # as Ctrl-C: then it may be
            kept.dirty = False
            self._give_back()
            raise
        if isinstance(outcome, Committed):
            kept.value, kept.dirty = value, False
            self.counts.writes += 1
            self.counts.flushes += flush
        elif isinstance(outcome, Unknown):
            kept.dirty = False
            self._give_back()  # which finds out; what is in memory may not be the newest
        return outcome

    def _leave_in_memory(self, kept: _Kept, value: bytes) -> None:
        asked_for = kept is not self._kept
        if asked_for or kept.lease.remaining_ns() <= self._flush_ns:  # or its shard is silent: there is no later moment
            outcome = self._write(kept, value, flush=True)
            self._note_unknown(outcome)
            if not isinstance(outcome, NotCommitted):
                return
            if asked_for:
                raise self._lost()
        if not self._flush_is_due:
            self._flush_later()
        kept.value, kept.dirty = value, True

    def _flush_later(self) -> None:
        self._later(self._flush_ns, self._flush_now)
        self._flush_is_due = True  # once it is: there may be no thread to be had

    def _flush_now(self) -> None:
        with self._lock:
            self._flush_is_due = False
            if isinstance(self._flush_unasked(), NotCommitted):
                self._flush_later()

    def _flush_unasked(self) -> Outcome | None:
        """Write what is in memory alone, where nobody waits for the outcome: what fails, the next call raises."""
        try:
            outcome = self.flush()
        except TenureError as problem:
            self._note_unwritten(problem)
            return None
        self._note_unknown(outcome)
        return outcome

    def _note_unknown(self, outcome: Outcome) -> None:
        """Have the next call say that it cannot be told what became of a value of ``put``, which returns no outcome."""
        if isinstance(outcome, Unknown):
            what = f"the last value put in {self._domain!r}: {outcome}"
            self._note_unwritten(UnknownOutcome("unknown-outcome", what))

    def _note_unwritten(self, problem: TenureError) -> None:
        _log.warning("flush-failed domain=%r code=%s reason=%s", self._domain, problem.code, problem.message)
        self._unwritten = problem

    def _say_unwritten(self) -> None:
        problem = self._unwritten
        if problem is not None:
            if self._kept is not None:
                self._kept.dirty = False
            self._give_back()
            self._unwritten = None
            raise problem

    def _recalled(self, lease: Lease) -> None:
        """Another asks for the lease, which goes back when this returns. In a thread of its own."""
        with self._lock:
            self.counts.recalls += 1
            kept = self._kept
            if kept is None or kept.lease is not lease:
                return
            self._early = 0 if kept.uses >= USES_WORTH_KEEPING else self._early + 1
            if self._early >= EARLY_RECALLS:
                self._early, self._unkept_uses = 0, UNKEPT_USES
            if kept.dirty and not isinstance(self._flush_unasked(), Committed):
                self._unwritten = self._unwritten or self._lost()
            self._was_recalled, self._before, self._kept = True, kept.value, None

    def _give_back(self) -> None:
        """Have nothing in memory any more. What is in memory alone is lost: its lease is."""
        kept = self._kept
        if kept is None:
            return
        if kept.dirty:
            self._unwritten = self._unwritten or self._lost()
        with contextlib.suppress(TenureError):
            self._session.relinquish([kept.lease])
        self._kept = None

    def _lost(self) -> LeaseLost:
        return LeaseLost(
            "value-unwritten",
            f"the lease on {self._domain!r} was over before the last value put in it could be written",
            hint="read it, and decide anew; what must not be lost is written by set",
        )
