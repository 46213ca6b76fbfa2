"""Run a command under leases: it is started once they are held, and nothing of it outlives them.

The moments, reckoned from what a holder knows. ``left`` is how long the leases may still be used, were none renewed
any more: the earliest expiry, minus the policy's ``holder_margin``, minus the latest that it may be now.

- A lease of term T is renewed every R; while that works, ``left`` is not below T - R - margin for longer than one
  attempt, of at most ``attempt_timeout``, takes. The policy demands that three of them fit in there.
- ``grace`` = T - R - margin - 2 x attempt_timeout. At ``left`` <= grace two attempts had their time and nothing came of
  them: SIGTERM, and SIGCONT for what is stopped.
- At ``left`` <= grace / 2: SIGKILL, to whatever lives. It has that and the margin to take effect before the expiry.

With the usual policy (10 s, renewed every 3.3 s) that is SIGTERM 3.7 s and SIGKILL 2.1 s before the expiry. A lease
that its shard, or an operator, has ended is treated so too, but that SIGTERM comes at once: nobody is granted the
domain as long as an earlier holder may believe in it, so the command has until then.
"""

from __future__ import annotations

import signal

from timeagent.errors import LeaseLost

from .processes import ENDING, MS

TYPE_CHECKING = False  # as typing has it, which costs as much as the rest
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Final, Protocol

    from timeagent.units import Span

    from ..lease.transport import BootClock
    from .processes import ProcessTree

BEAT_NS: Final = 100 * MS
"""How long at most the leases are not looked at: so late it is noticed that the machine was suspended."""
LOOK_NS: Final = 20 * MS
"""How often it is looked whether something that is to end has ended."""

PASSED_ON: Final = (*ENDING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)
HEARD: Final = (*PASSED_ON, signal.SIGTSTP, signal.SIGCONT, signal.SIGCHLD)


if TYPE_CHECKING:

    class Holding(Protocol):
        """Leases of one acquire, as their holder reckons with them."""

        def left_ns(self) -> Span:
            """Return how long they may still be used, were none renewed any more."""

        def grace_ns(self) -> Span:
            """Return how long before their end the command is told to end; SIGKILL comes at half of it."""

        def lost(self) -> str | None:
            """Say what is over against its holder's will."""

        def in_doubt(self) -> bool:
            """Whether nobody here knows any more when their end is."""


class Run:
    """One command under its leases."""

    def __init__(
        self,
        held: Holding,
        clock: BootClock,
        command: ProcessTree,
        wait: Callable[[Span], Sequence[int]],
        note: Callable[[str], None],
    ) -> None:
        """Start nothing yet. ``wait`` returns the signals that came within a span; ``note`` tells a person."""
        self._held = held
        self._clock = clock
        self._command = command
        self._wait = wait
        self._note = note

    def to_its_end(self, environment: Mapping[str, str]) -> int:
        """Start the command and return its exit code, once nothing of it lives. Raises LeaseLost, after that, too.

        A command that ends while the leases are held keeps its code, whatever becomes of them while what it left
        behind is ended.
        """
        while not self._may_go_on():  # a shard that was behind with its ceiling grants less at first, and more soon
            if self._held.lost() is not None or not ENDING.isdisjoint(self._wait(LOOK_NS)):
                raise LeaseLost("lease-lost", "the leases were over before the command began", hint="run it again")
        self._command.start(environment)
        resume = False
        while (code := self._command.status()) is None and self._may_go_on():
            if resume:
                self._command.resume()
            resume = self._listen()
        if code is None or self._held.lost() is not None or self._held.left_ns() <= 0:
            raise self._lost()
        if not self._command.over():
            self._end(self._clock.boot_ns() + self._held.grace_ns() // 2)
        return code

    def _may_go_on(self) -> bool:
        return self._held.lost() is None and self._held.left_ns() > self._held.grace_ns()

    def _listen(self) -> bool:
        """Pass on what comes within a beat; return whether what was stopped is to go on, if the leases are held."""
        resume = False
        for number in self._wait(max(0, min(BEAT_NS, self._held.left_ns() - self._held.grace_ns()))):
            if number == signal.SIGTSTP:
                self._command.suspend()
                resume = True
            elif number == signal.SIGCONT:
                resume = True
            elif number in PASSED_ON:
                self._command.send(number)
        if self._command.stopped_at_terminal():
            self._command.suspend()
            resume = True
        return resume

    def _lost(self) -> LeaseLost:
        """End everything before the expiry; return what is to be said."""
        why = self._held.lost() or "it could not be renewed"
        self._note(f"tenure: {why}: ending the command")
        self._end()
        code = self._command.status()
        return LeaseLost(
            "lease-lost",
            f"{why}; the command ended with {code}, and nothing of it lives",
            hint="see what it had done, then run it again",
        )

    def _end(self, hurry_boot_ns: int | None = None) -> None:
        """Ask all to end, then kill them: half a grace before the end of the leases, or at an instant before."""
        killing = self._kill_now(hurry_boot_ns)
        if not killing:
            self._command.signal(signal.SIGTERM)
            self._command.signal(signal.SIGCONT)
        said = False
        while not self._command.over():
            if killing:
                self._command.kill()
            if not said and self._held.left_ns() <= 0:
                self._note("tenure: some of it outlives the lease: see ps; what receives must compare fences")
                said = True
            came = self._wait(LOOK_NS)
            killing = killing or not ENDING.isdisjoint(came) or self._kill_now(hurry_boot_ns)

    def _kill_now(self, hurry_boot_ns: int | None) -> bool:
        hurry = hurry_boot_ns is not None and self._clock.boot_ns() >= hurry_boot_ns
        return hurry or self._held.in_doubt() or self._held.left_ns() <= self._held.grace_ns() // 2
