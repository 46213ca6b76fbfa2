"""Run straight-line synchronous code as interleaved actors in virtual time, deterministically, from one seed.

An actor is a plain function in a greenlet; it knows nothing of the scheduler. The simulated ports call ``step`` before
every operation: it takes some virtual time, others run meanwhile, and the operation takes effect when ``step`` returns.
True time moves with operations and sleeps only, never with the wall clock. A crash happens inside ``step`` or nowhere:
before the operation, which is after the one before. A pause is a step that takes long: up to hours.

Every actor and every kind of fault has a ``random.Random`` of its own, so that a new fault moves no other choice.
"""

from __future__ import annotations

import hashlib
import random
import traceback
from dataclasses import dataclass, field
from functools import cached_property, partial
from heapq import heappop, heappush, heappushpop
from typing import TYPE_CHECKING, Any

from greenlet import GreenletExit, getcurrent, greenlet

from tests.simulation.trace import Trace
from tests.support.woken import WokenLogs
from timeagent.errors import Damaged, TenureError
from timeagent.units import HOUR, MINUTE, MS, SECOND, US, rfc3339

if TYPE_CHECKING:
    from collections.abc import Callable

    from timeagent.units import Instant, Span

NEVER: int = 2**62
QUIET_MAX = 2**29
"""More steps than any run has, and counted in one machine word."""


def _delays(scale: Span) -> tuple[Span, ...]:
    """256 delays with a long tail: most are short, a few are a hundred times as long."""
    return tuple(int(scale * (0.2 + n / 128 if n < 230 else 4 + (n - 230) ** 2 / 6)) for n in range(256))


TEMPI: tuple[tuple[Span, ...], ...] = tuple(_delays(scale) for scale in (50 * US, 400 * US, 2 * MS, 10 * MS))
"""How fast an actor is, in this run: one of these, chosen for each actor."""

PAUSES: tuple[Span, ...] = (
    20 * MS, 50 * MS, 100 * MS, 200 * MS, 400 * MS, 800 * MS, SECOND, 2 * SECOND, 3 * SECOND, 5 * SECOND, 8 * SECOND,
    15 * SECOND, 40 * SECOND, 3 * MINUTE, HOUR, 5 * HOUR,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mishaps:
    """How often things go wrong: once in about so many steps of one actor; 0: never."""

    crash: int = 0
    pause: int = 0
    pauses: tuple[Span, ...] = PAUSES


class Machine:
    """One computer: it can stand still as a whole."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.paused_until: Instant = 0
        self.processes: list[Process] = []
        self.woken = WokenLogs()

    def forget(self) -> None:
        """Let go of all processes, after the run."""
        for process in self.processes:
            process.on_death.clear()
            process.actors.clear()
        self.processes.clear()


@dataclass(eq=False, slots=True)
class Process:
    """What dies together: one or several actors."""

    machine: Machine
    name: str
    dead: bool = False
    on_death: list[Callable[[], None]] = field(default_factory=list)
    actors: list[Actor] = field(default_factory=list)
    clock: Any = None


class Ended(GreenletExit):
    """Raised in an actor that goes no further: its process is dead, or everything has ended."""


class Thread(greenlet):
    """Where actors live, one after another, in this run and later ones: to make one takes as long as many a step."""

    life: Callable[[], bool] | None
    """What it is switched to for next: one actor's life; False: there is no other after it."""

    def run(self) -> None:
        while self.life is not None and self.life():
            self.life = None
            _idle.append(self)
            assert self.parent is not None
            self.parent.switch()


_idle: list[Thread] = []
"""Threads in which nobody lives."""


class Actor:
    """One life in a thread, with its own choices."""

    __slots__ = (
        "bits",
        "body",
        "crash_in",
        "delays",
        "machine",
        "name",
        "number",
        "pause_in",
        "process",
        "quiet",
        "switch",
        "thread",
        "ticket",
        "waiting",
    )

    bits: Callable[[int], int]
    crash_in: int
    delays: tuple[Span, ...]
    pause_in: int
    quiet: int
    """In how many steps the next crash or pause comes; ``crash_in`` and ``pause_in`` count from the one before.

    0 or less: it is dead, or everything has ended.
    """
    switch: Callable[[], object]
    """Let it go on, or begin."""
    thread: Thread | None
    """Where it lives: None before it has begun, and when it has ended."""

    def __init__(self, number: int, name: str, process: Process, body: Callable[[], object]) -> None:
        self.number = number
        self.name = name
        self.process = process
        self.machine = process.machine
        self.body = body
        self.thread = None
        self.ticket = 0
        self.waiting = False


class Scheduler:
    """One run: virtual true time, who runs next, and what happened."""

    def __init__(
        self, seed: object, *, start_ns: Instant, end_ns: Instant, steps_max: int, traced: bool = False
    ) -> None:
        self.seed = seed
        self.now = start_ns
        self.start_ns = start_ns
        self.end_ns = end_ns
        self.steps_max = steps_max
        self.steps = 0
        self.operations = 0
        """How many calls of port verbs actors have made. A verb is one, also where it takes several steps, or none."""
        self.mark = 0
        """A digest of who went on when: of integers only, so that it is the same in every process."""
        self.trace: Trace | None = Trace() if traced else None
        self.crashes = 0
        self.pauses = 0
        self.interrupted: set[Process] = set()
        """The processes whose threads share what they use: they are interrupted between calls of ports, too."""
        self.interruptions = 0
        self.bugs: list[str] = []
        self.refusals = 0
        self.damage: list[str] = []
        """What actors were told of damage, whatever they made of it."""
        self.mishaps = Mishaps()
        self.tempi: tuple[int, ...] = (0, 1, 1, 1, 1, 2, 2, 3)
        """How fast actors are, by TEMPI: one is drawn for each."""
        self.stopping = False
        self._order = self.stream("order")
        self._main = getcurrent()
        self._heap: list[tuple[Instant, int, Any, int]] = []
        self._count = 0
        self._actors: list[Actor] = []
        self.current: Actor | None = None

    def stream(self, name: str) -> random.Random:
        """Return the choices of one actor or one kind of fault."""
        return random.Random(f"{self.seed}/{name}")

    @cached_property
    def _crash(self) -> random.Random:
        """Seeding takes longer than many an operation, and not every run has crashes."""
        return self.stream("crash")

    @cached_property
    def _pause(self) -> random.Random:
        return self.stream("pause")

    # -- life ----------------------------------------------------------------------------------------------------------

    def spawn(self, name: str, process: Process, body: Callable[[], object], *, after: Span = 0) -> Actor:
        """Begin an actor, now or a little later."""
        actor = Actor(len(self._actors), name, process, body)
        order = self._order
        actor.bits = order.getrandbits
        actor.delays = TEMPI[order.choice(self.tempi)]
        actor.crash_in = self._until_next_crash()
        actor.pause_in = self._until_next_pause()
        actor.quiet = min(actor.crash_in, actor.pause_in, QUIET_MAX)
        actor.switch = partial(self._begin, actor)
        self._actors.append(actor)
        process.actors.append(actor)
        self._push(self.now + after, actor, 0)
        return actor

    def _until_next_crash(self) -> int:
        once_in = self.mishaps.crash
        return 1 + int(self._crash.expovariate(1 / once_in)) if once_in else NEVER

    def _until_next_pause(self) -> int:
        once_in = self.mishaps.pause
        return 1 + int(self._pause.expovariate(1 / once_in)) if once_in else NEVER

    def _begin(self, actor: Actor) -> None:
        """Switch to an actor for the first time."""
        thread = _idle.pop() if _idle else Thread()
        if thread.parent is not self._main:
            thread.parent = self._main
        thread.life = partial(self._live, actor)
        actor.thread = thread
        actor.switch = thread.switch
        thread.switch()

    def _live(self, actor: Actor) -> bool:
        """Return whether others may live where it did."""
        try:
            if not actor.process.dead and not self.stopping:
                actor.body()
        except TenureError as problem:
            self.refusals += 1
            self.refused("gives up", problem)
        except Ended:
            pass
        except GreenletExit:
            return False  # the run was given up, and its threads are collected
        except Exception:  # noqa: BLE001 - whatever it is: the code under test must not do that
            self.bugs.append(f"{actor.name}: {traceback.format_exc()}")
        finally:
            actor.ticket += 1  # nothing that waits for it counts any more
            actor.thread = None
            actor.switch = self._main.switch  # who was waiting may still be woken, and others live in its thread
        return True

    def call_at(self, instant: Instant, what: Callable[[], object]) -> None:
        """Let something happen of itself: a delivery, the end of a partition. It must not take steps."""
        self._push(instant, what, 0)

    def crash(self, process: Process) -> None:
        """Kill a process: each of its actors ends where it stands."""
        if process.dead:
            return
        process.dead = True
        for actor in process.actors:
            actor.quiet = 0
        self.crashes += 1
        self.note("CRASHES", process.name)
        for react in process.on_death:
            react()

    def run(self) -> None:
        """Step until nothing is left to do, or the end of time, or of steps."""
        self.operations = 0  # what was built before the run is not its own
        heappush(self._heap, (self.end_ns + 1, 0, None, 0))  # the end of time: something is always due
        while not self.stopping:
            instant, _, target, ticket = heappop(self._heap)
            if instant > self.end_ns:
                break
            self.now = max(self.now, instant)
            if type(target) is not Actor:
                target()
            elif ticket == target.ticket and self._may_run(target, ticket):
                self.current = target
                target.switch()
                self.current = None
        self.stopping = True
        for actor in self._actors:
            actor.quiet = 0
        for actor in self._actors:
            if actor.thread is not None:
                self.current = actor
                actor.thread.throw(Ended)
        self.current = None

    def forget(self) -> None:
        """Let go of all actors, after the run."""
        self._actors.clear()
        self._heap.clear()

    # -- steps ---------------------------------------------------------------------------------------------------------

    def step(self, verb: str, detail: str = "", extra: Span = 0) -> None:
        """Take some virtual time, let others run, and return when the operation takes effect. May not return."""
        actor = self.current
        if actor is None:
            return  # the judge after the run, and the builder before it
        actor.quiet = quiet = actor.quiet - 1
        if quiet <= 0:
            extra += self._mishap(actor)
        self.steps = steps = self.steps + 1
        until = self.now + actor.delays[actor.bits(8)] + extra
        # The machine of who runs does not stand still, and the end of time is always due.
        if until < self._heap[0][0] and steps < self.steps_max:
            self.now = until  # nobody else is to run before: no need to stand in the queue
        else:
            following = self._park(actor, until)
            if following is not None:
                following.switch()
            # Somebody let us go on, and has said so in ``current``.
            if actor.process.dead or self.stopping:
                raise Ended
            self.mark = hash((self.mark, self.now, actor.number))
        if self.trace is not None:
            self.note(verb, detail)

    def _mishap(self, actor: Actor) -> Span:
        """Let happen to an actor what is due at this step: a crash, or a pause, whose length is returned.

        Who is dead, or alive when everything has ended, goes no further.
        """
        if self.stopping or actor.process.dead:
            raise Ended
        passed = min(actor.crash_in, actor.pause_in)
        actor.crash_in -= passed
        actor.pause_in -= passed
        pause = 0
        if actor.crash_in <= 0:
            self.steps += 1
            actor.bits(8)
            actor.crash_in = self._until_next_crash()
            self.crash(actor.process)
            raise Ended
        if actor.pause_in <= 0:
            pause = self._stand_still(actor)
        actor.quiet = min(actor.crash_in, actor.pause_in, QUIET_MAX)
        return pause

    def _stand_still(self, actor: Actor) -> Span:
        actor.pause_in = self._until_next_pause()
        pauses = self.mishaps.pauses
        pause = int(self._pause.choice(pauses) * (0.5 + self._pause.random()))
        self.pauses += 1
        if self.trace is not None:
            self.note("is paused for", f"{pause / SECOND:.3f} s")
        machine = actor.process.machine
        if self._pause.random() < 0.25:
            machine.paused_until = max(machine.paused_until, self.now + pause)
        return pause

    def sleep(self, span: Span) -> None:
        """Let so much true time pass."""
        self.step("sleep", f"{span / MS:.1f} ms" if self.trace is not None else "", max(0, span))

    def wait(self, until: Instant, verb: str = "wait") -> None:
        """Park until ``wake`` or an instant of true time."""
        actor = self.current
        assert actor is not None
        if self.stopping or actor.process.dead:
            raise Ended
        self.steps += 1
        actor.waiting = True
        following = self._park(actor, max(until, self.now))
        if following is not None:
            following.switch()
        if actor.process.dead or self.stopping:
            raise Ended
        self.mark = hash((self.mark, self.now, actor.number))
        actor.waiting = False
        if self.trace is not None:
            self.note("wakes from", verb)

    def wake(self, actor: Actor | None) -> None:
        """Let an actor go on now, if it waits."""
        if actor is not None and actor.waiting:
            self._push(self.now, actor, actor.ticket)

    def _push(self, instant: Instant, target: object, ticket: int) -> None:
        self._count += 1
        heappush(self._heap, (instant, self._count, target, ticket))

    def _park(self, me: Actor, until: Instant) -> Actor | greenlet | None:
        """Stand in the queue until an instant. Returns who is to be switched to: None: it is my turn again.

        Who calls this switches, and then looks whether it may go on: greenlets take longer the deeper they are left.
        """
        if self.steps >= self.steps_max:
            self.stopping = True
        self._count = count = self._count + 1
        me.ticket = ticket = me.ticket + 1
        heap, end = self._heap, self.end_ns
        instant, _, target, ticket = heappushpop(heap, (until, count, me, ticket))
        while True:
            if instant > end or self.stopping:
                self.stopping = True
                return self._main
            self.now = max(self.now, instant)
            if type(target) is not Actor:
                target()
            elif ticket == target.ticket:
                if target.machine.paused_until > self.now and not target.process.dead:
                    self._push(target.machine.paused_until, target, ticket)
                elif target is me:
                    return None
                else:
                    self.current = target
                    return target
            instant, _, target, ticket = heappop(heap)

    def _may_run(self, actor: Actor, ticket: int) -> bool:
        process = actor.process
        paused = process.machine.paused_until
        if paused > self.now and not process.dead:
            self._push(paused, actor, ticket)
            return False
        return True

    # -- what happened -------------------------------------------------------------------------------------------------

    def note(self, verb: str, detail: str = "") -> None:
        """Write one line of the trace: true time, believed time, who, what."""
        if self.trace is None:
            return
        actor = self.current
        clock = actor.process.clock if actor is not None else None
        believed = "" if clock is None else f"{(clock.believed_ns() - self.now) / SECOND:+12.3f}"
        who = actor.name if actor is not None else "-"
        self.trace.append(f"{rfc3339(self.now)[11:-4]} {believed:>12} {who:22} {verb} {detail}")

    def refused(self, verb: str, problem: TenureError) -> None:
        """Take note of what an actor was told in the place of an answer: who goes on may have been told of damage."""
        self.note(verb, str(problem))
        if isinstance(problem, Damaged):
            assert self.current is not None
            self.damage.append(f"{self.current.name}: {problem}")

    def fingerprint(self) -> tuple[str, float]:
        """Return a digest of the run and the next random number: equal for equal seeds."""
        text = "\n".join(self.trace) if self.trace is not None else f"{self.mark} {self.steps} {self.now}"
        return hashlib.sha256(text.encode()).hexdigest(), self._order.random()
