"""The time agent: asks sources, decides what may be said, publishes it every period, signs nonces; and its process.

The agent has no threads. Whoever runs it (``Daemon``, a test, a simulation) calls ``turn`` every period and ``poll``
for each source at that source's pace; ``poll`` may block, ``turn`` never waits for a source. One turn:

1. read all clocks; a step, a suspend or a stall drops every sample and begins a new clock epoch;
2. once a second, or as soon as every source has answered after a drop, combine what the sources say and decide; in
   between, unless the clocks moved or a bound became old, what was decided is carried on (``Carried``);
3. publish what may be said, aged to the reading of 1, with a token signed now.

It never sets a clock. What it knows is true time minus CLOCK_BOOTTIME, so nobody else's setting of CLOCK_REALTIME
changes what it says; a step still ends the epoch, because it means that somebody believes otherwise.
"""

from __future__ import annotations

import contextlib
import logging
import queue
from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Condition, Lock, Thread
from typing import Any, Final

from ..canonical import digest
from ..clock import PAUSE_NS, ClockSample, MachineClock, boot_id, read_clocks
from ..console import json_bytes
from ..errors import BadTime
from ..keys import KeyInUse, Signer
from ..notify import Notifier, Pulse
from ..signedtime import PAGE_BODY, PAGE_HEAD, PAGE_PREFIX, STALENESS_NS, ClockStatus, SignedTime
from ..sources.nonce import Exchanged, PeerSource
from ..sources.port import DatagramDoor
from ..units import SECOND, Span, TimeInterval
from .bounded_clock import PERIOD_NS, BoundedClock, ask
from .discipline import FRESH_NS, OWN_GROUP, Agreed, Bound, ClockMoment, Listed, Report, Rules, SourcesContradict, Voice
from .evidence import AFTER_CONTEXT, BEFORE_CONTEXT, EvidenceSink, evidence_record
from .page import PageSink

_MILLION: Final = 1_000_000


class Carried:
    """One decision, carried on. Thread-compatible; the agent's lock is held around ``turn``.

    Between two decisions, a second apart, a turn only reads the clocks, ages the bound, signs and publishes, twenty
    times a second and mostly with cold caches, where each call and each object is dear. So the decision makes ready
    what stays the same, and the rest is one function that calls only clocks, key and page. It publishes the bytes that
    the whole turn would publish, or declines, and the whole turn decides: tests/property/test_carried.py compares them.
    """

    __slots__ = ("_at", "_boot", "_clock", "_drift", "_fields", "_high", "_low", "_page", "_sign", "_slewed", "_until")

    def __init__(
        self,
        ports: tuple[MachineClock, Signer, PageSink],
        boot: bytes,
        bound: Bound,
        signed: SignedTime,
        rules: Rules,
        until_ns: int,
    ) -> None:
        """Take the decision, and the signed time that was made with it: status, flags, epoch and key are its own.

        ``until_ns``: of CLOCK_BOOTTIME; from then on there is something to decide, or there may be before.
        """
        self._clock, signer, self._page = ports
        self._sign = signer.sign_exactly
        self._boot = boot
        self._low, self._high = bound.ahead.earliest, bound.ahead.latest
        self._at = bound.at.boot_ns
        self._slewed = bound.at.slewed_ns
        self._drift = 0 if bound.assumed else rules.drift_ppm
        self._fields = (signed.status, signed.flags, signed.staleness_ns, signed.clock_epoch, signed.key_id)
        # Up to there this state stays what it is, whatever time does (discipline.decide).
        lasts = rules.void_after_ns
        if signed.status is ClockStatus.SYNCHRONIZED:
            lasts = min(lasts, FRESH_NS)
        self._until = min(until_ns - 1, self._at + lasts)

    def turn(
        self, last: ClockSample, slewed_ns: Span, drift_ppm: int, sequence: int
    ) -> tuple[ClockSample, Span] | None:
        """Publish; return the reading and all slews up to it. None, with nothing done: there is something to decide.

        ``last``, ``slewed_ns``: the reading before, and all slews up to it.
        """
        clock = self._clock
        boot = clock.boot_ns()
        real = clock.realtime_ns()
        mono = clock.monotonic_ns()
        raw = clock.raw_ns()
        after = clock.boot_ns()
        last_boot = last.boot_ns
        stopped = boot - mono - last_boot + last.monotonic_ns
        # Far below what is a step or a suspend: what is near is looked at with care, by the whole turn.
        if (
            after > self._until
            or after - boot > PAUSE_NS
            or not -PAUSE_NS <= real - boot - last.real_ns + last_boot <= PAUSE_NS
            or not -PAUSE_NS <= stopped <= PAUSE_NS
        ):
            return None
        # movement.movement and movement.excess_slew_ns.
        last_after, passed = last.boot_after_ns, raw - last.raw_ns
        elapsed = after - last_boot
        longest = stopped + after - boot
        shortest = stopped - last_after + last_boot
        slow = boot - last_after - passed - max(0, longest)
        fast = elapsed - passed - max(0, shortest)
        slew = max(abs(slow), abs(fast))
        if slew > -(-elapsed * drift_ppm // _MILLION):
            slewed_ns += slew - (-slew * drift_ppm // _MILLION)
        # discipline.Bound.aged.
        low, high, drift = self._low, self._high, self._drift
        if drift:
            grown = slewed_ns - self._slewed - (-(after - self._at) * drift // _MILLION)
            low -= grown
            high += grown
        earliest, latest = boot + low, after + high
        if not drift:  # a statement for any instant: no reading makes it wider
            latest = boot + high
        status, flags, staleness, epoch, key = self._fields
        # Midpoint and radius as TimeInterval has them.
        body = PAGE_BODY.pack(
            *PAGE_HEAD,
            status,
            flags,
            (earliest + latest) // 2,
            (latest - earliest + 1) // 2,
            staleness,
            sequence,
            epoch,
            key,
        )
        token = body + self._sign(PAGE_PREFIX + body)
        self._page.put((self._boot, boot, raw, low, high, drift, status, epoch, STALENESS_NS, 0, token))
        return ClockSample(boot, real, after, mono, raw), slewed_ns


_log = logging.getLogger(__name__)


class Agent(BoundedClock):
    """One node's time. Thread-safe: ``turn``, ``poll`` and the doors may run in threads of their own."""

    def __init__(
        self,
        clock: MachineClock,
        signer: Signer | KeyInUse,
        listed: Sequence[Listed],
        page: PageSink,
        evidence: EvidenceSink,
        rules: Rules,
        clock_epoch: int | None = None,
    ) -> None:
        super().__init__(clock, signer, listed, rules, clock_epoch)
        self._page = page
        self._evidence = evidence
        self._boot = boot_id()
        self._lock = Lock()
        self.on_moved: Callable[[], None] = lambda: None
        """Called when every source should be asked again at once."""
        # The rest, and what the clock keeps, is under the lock.
        self._carried: Carried | None = None
        self._exchanged: dict[str, Exchanged] = {}

    def poll(self, listed: Listed) -> None:
        """Ask one source, and keep its answer or its reason. Blocks as long as the source does."""
        with self._lock:
            asking = self._moves, self._slewed_ns
        answer = ask(self._clock, listed.source)
        with self._lock:
            bound = self._note(listed, asking, answer)
            if isinstance(bound, Bound) and isinstance(listed.source, PeerSource) and listed.source.asked is not None:
                self._exchanged[listed.name] = self._contradicted(listed.source.asked, bound)

    def _contradicted(self, asked: Exchanged, bound: Bound) -> Exchanged:
        """Where a peer and the own sources cannot both be right: sign what the own ones say, over the peer's answer."""
        reading = read_clocks(self._clock)  # slewed since the last decision and the answer, perhaps
        moved, now = self._since(reading)
        own = self._own_voice(now) if moved is None else None
        theirs = bound.aged(now, self._rules.drift_ppm)
        if own is not None and own.ahead.intersection(theirs) is None:
            with contextlib.suppress(BadTime):  # the key has ended: less evidence
                over = digest(AFTER_CONTEXT, asked.answer)
                return replace(asked, after=self._sign_own(own, reading, now, over).encode())
        return asked

    def turn(self) -> None:
        """Look at the clocks, decide, publish. Never waits for a source."""
        with self._lock:
            if self._carry_on():
                return
            status, verdict = self._state.status, self._verdict
            reading, moved, told = self._decide()
            now = ClockMoment(reading.boot_after_ns, self._slewed_ns)
            heard, before = self._verdict, verdict.dissenting if isinstance(verdict, Agreed) else ()
            if isinstance(heard, Agreed) and heard.dissenting and heard.dissenting != before:
                _log.warning("source-dissents sources=%s", ",".join(heard.dissenting))
                self._keep(heard, now)
            if moved is not None:
                told_of = (moved.cause, moved.size_ns, self._state.epoch)
                _log.warning("clock-moved cause=%s size_ns=%d clock_epoch=%d", *told_of)
            if told is not None:
                _log.error("clock-disrupted clock_epoch=%d", told.epoch)
                self._keep(told, now)
            if status is not self._state.status:
                _log.warning("status-changed from=%s to=%s", status.word, self._state.status.word)
            self._publish(reading, now)
        if moved is not None:
            self.on_moved()

    def _carry_on(self) -> bool:
        """Take the short way, if there is nothing to decide."""
        if self._carried is None or self._last is None:
            return False
        taken = self._carried.turn(self._last, self._slewed_ns, self._rules.drift_ppm, self._sequence + 1)
        if taken is None:
            return False
        self._last, self._slewed_ns = taken
        self._sequence += 1
        return True

    def _keep(self, found: SourcesContradict | Agreed, now: ClockMoment) -> None:
        voices, signer = self._hearing.voices(now), self._signer.in_use
        self._evidence.keep(evidence_record(found, voices, now.boot_ns, self._exchanged, signer))

    def _publish(self, reading: ClockSample, now: ClockMoment) -> None:
        state, bound = self._state, self._state.bound
        ahead, drift_ppm, token = TimeInterval(0, 0), 0, b""
        self._carried = None
        if bound is not None:
            ahead = bound.aged(now, self._rules.drift_ppm)
            drift_ppm = 0 if bound.assumed else self._rules.drift_ppm
            interval = self._interval(bound, reading, now)
            with contextlib.suppress(BadTime):  # the key has ended: nothing is said until there is the next one
                signer = self._signer.signer_at(interval.midpoint)
                signed = self._sign(interval, bound, None, signer=signer)
                token = signed.encode()
                ports = (self._clock, signer, self._page)
                until_ns = self._combine_at
                if self._signer.end_ns is not None:
                    until_ns = min(until_ns, self._signer.end_ns - bound.ahead.midpoint - 1)
                self._carried = Carried(ports, self._boot, bound, signed, self._rules, until_ns)
        self._page.put(
            (
                self._boot,
                reading.boot_ns,
                reading.raw_ns,
                ahead.earliest,
                ahead.latest,
                drift_ppm,
                state.status,
                state.epoch,
                STALENESS_NS,
                state.until_ns,
                token,
            )
        )

    # ---- the doors ----

    def own_word(self, chance: bytes) -> bytes:
        """Return what this node's own sources say, signed over 32 bytes for evidence, encoded; or nothing."""
        try:
            return self.sign_for_peer(digest(BEFORE_CONTEXT, chance)).encode()
        except BadTime:
            return b""

    def now(self) -> TimeInterval:
        """Return an interval that holds true time. Raises BadTime: nothing may be said, or it is too wide."""
        with self._lock:
            return self._said(*self._steady_reading())[0]

    def sign_over(self, covered: bytes) -> SignedTime:
        """Return a signed time over 32 bytes, made now. Raises BadTime: nothing may be said, or it is too wide."""
        with self._lock:
            interval, bound = self._said(*self._steady_reading())
            return self._sign(interval, bound, covered)

    def sign_for_peer(self, covered: bytes) -> SignedTime:
        """Return a signed time over 32 bytes of what this node's own sources say. Raises BadTime: they say nothing.

        Whatever this node concluded with its peers: each node is one voice, also to those who outvote it.
        """
        with self._lock:
            reading, now = self._steady_reading()
            own = self._own_voice(now)
            if own is None:
                raise BadTime(
                    "no-own-measure", "no source of this machine's own measures its clock now", hint="run chrony here"
                )
            return self._sign_own(own, reading, now, covered)

    def _own_voice(self, now: ClockMoment) -> Voice | None:
        voices = self._hearing.voices(now, own=True)
        return voices[0] if voices else None

    def _sign_own(self, own: Voice, reading: ClockSample, now: ClockMoment, covered: bytes) -> SignedTime:
        interval = TimeInterval(reading.boot_ns + own.ahead.earliest, reading.boot_after_ns + own.ahead.latest)
        bound = Bound(own.ahead, now, cluster_time=own.cluster_time)
        return self._sign(interval, bound, covered, ClockStatus.SYNCHRONIZED)

    def _steady_reading(self) -> tuple[ClockSample, ClockMoment]:
        """Read the clocks. Raises BadTime if they moved since the last turn: the next turn says what that means."""
        reading = read_clocks(self._clock)
        if self._last is None:
            raise self._silence(reading)
        moved, now = self._since(reading)
        if moved is not None:
            raise BadTime("clock-unsteady", "the clock moved just now", hint="try again")
        return reading, now

    def report(self) -> bytes:
        with self._lock:
            reading = read_clocks(self._clock)
            _, now = self._since(reading)
            bound = self._state.bound
            ahead = bound.aged(now, self._rules.drift_ppm) if bound else None
            report = Report(
                status=self._state.status.word,
                clock_epoch=self._state.epoch,
                boot_ns=reading.boot_ns,
                earliest_ahead_ns=ahead.earliest if ahead else None,
                latest_ahead_ns=ahead.latest if ahead else None,
                assumed=bool(bound and bound.assumed),
                cluster_time=bool(bound and bound.cluster_time),
                drift_ppm=self._rules.drift_ppm,
                silent_until_ns=self._state.until_ns or None,
                sources=self._hearing.report(now, self._role),
            )
        return json_bytes(report)

    def _role(self, source: str) -> str:
        verdict = self._verdict
        if not isinstance(verdict, Agreed):
            return "heard" if verdict is None else "disputed"
        if source in verdict.dissenting:
            return "dissents"
        return "shapes" if source in verdict.voices else "agrees"


_EVIDENCE_WAITING_MAX: Final = 64
_JOIN_NS: Final[Span] = 2 * SECOND
"""For all threads together: the unit gives it 10 s to stop."""


class QueuedEvidence:
    """Evidence on its way to a disk: handing it over never waits. What does not fit is dropped."""

    def __init__(self, sink: EvidenceSink) -> None:
        """Take the real sink, which may block."""
        self._sink = sink
        self._waiting: queue.Queue[dict[str, Any] | None] = queue.Queue(_EVIDENCE_WAITING_MAX)

    def keep(self, record: dict[str, Any]) -> None:
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(record)

    def drain(self, *, wait: bool = False) -> None:
        """Write what waits; with ``wait`` for the first as long as it takes, or until ``wake``. Blocks."""
        try:
            record = self._waiting.get(block=wait)
            while True:
                if record is not None:
                    self._sink.keep(record)
                record = self._waiting.get_nowait()
        except queue.Empty:
            return

    def wake(self) -> None:
        """End the wait of ``drain``. Where the queue is full it does not wait."""
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)


class Daemon:
    """The agent as a process: one thread publishes, one for each source asks, one for each door answers.

    The publishing thread waits for nobody: a source that hangs only falls silent, a disk that hangs only delays
    evidence. It is late when the machine gives it no processor; readers refuse what is stale anyway, and the unit gives
    it a real-time priority (docs/operators.md). Ends when told to, or when a thread meets what it does not expect: then
    it says so, and whoever supervises it starts the next run.
    """

    def __init__(
        self,
        agent: Agent,
        clock: MachineClock,
        listed: Sequence[Listed],
        doors: Sequence[DatagramDoor],
        evidence: QueuedEvidence,
        notifier: Notifier,
    ) -> None:
        self._agent = agent
        self._clock = clock
        self._listed = listed
        self._doors = doors
        self._evidence = evidence
        self._notifier = notifier
        self._pace = Condition()
        self._moves = 0
        self._ended = False
        self._failed: BaseException | None = None
        agent.on_moved = self._ask_again

    def run(self, stop: Callable[[], bool]) -> None:
        """Publish until told to stop. Blocks. Raises what a thread did not expect."""
        threads = [self._thread(f"source {each.name}", self._ask, each) for each in self._listed]
        threads += [self._thread("door", door.serve, lambda: self._ended) for door in self._doors]
        threads.append(self._thread("evidence", self._write))
        self._agent.turn()
        for each in self._listed:
            if each.group == OWN_GROUP:  # first: what is asked of peers covers what they say
                self._agent.poll(each)
        for thread in threads:
            thread.start()
        self._notifier.ready("publishing")
        try:
            self._publish(stop)
        finally:
            self._ended = True
            with self._pace:
                self._pace.notify_all()
            for door in self._doors:
                door.wake()
            self._evidence.wake()
            self._notifier.stopping()
            joined = self._clock.boot_ns() + _JOIN_NS
            for thread in threads:  # one that waits for a mount may stay: it is a daemon thread
                thread.join(max(0, joined - self._clock.boot_ns()) / SECOND)
            self._evidence.drain()
        if self._failed is not None:
            raise self._failed

    def _publish(self, stop: Callable[[], bool]) -> None:
        pulse = Pulse(self._notifier, self._clock.boot_ns)
        pulse.watch("publishing")
        due = self._clock.boot_ns()
        while not stop() and self._failed is None:
            due += PERIOD_NS
            now = self._clock.boot_ns()
            if due > now:
                self._clock.sleep(due - now)
            else:
                due = now  # late: no burst to catch up
            self._agent.turn()
            pulse.beat("publishing")

    def _thread(self, name: str, work: Callable[..., None], *given: Any) -> Thread:  # noqa: ANN401 - of the work
        def guarded() -> None:
            try:
                work(*given)
            except BaseException as problem:  # noqa: BLE001 - the publishing thread raises it
                _log.exception("thread-failed thread=%s", name)
                self._failed = problem

        return Thread(target=guarded, name=name, daemon=True)

    def _ask(self, listed: Listed) -> None:
        """Ask a source at its pace, and when the clocks have moved."""
        while not self._ended:
            moves = self._moves
            due = self._clock.boot_ns() + listed.period_ns
            self._agent.poll(listed)
            left = max(0, due - self._clock.boot_ns()) / SECOND
            with self._pace:
                self._pace.wait_for(lambda: self._ended or self._moves != moves, timeout=left)  # noqa: B023 - now

    def _ask_again(self) -> None:
        with self._pace:
            self._moves += 1
            self._pace.notify_all()

    def _write(self) -> None:
        while not self._ended:
            self._evidence.drain(wait=True)
