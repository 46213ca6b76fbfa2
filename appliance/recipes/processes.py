"""A command and everything that descends from it: started, signalled, looked for and reaped. Linux only.

Whoever makes a ``ProcessTree`` is a child subreaper from then on: a process whose parent ends becomes its child and not
init's. So whatever the command left behind, as a daemon or in a session of its own, is found from here by following
parents, and when this process has no child any more, which the kernel says in one answer, nothing of it lives.

Numbers of processes are used again. The group is signalled by its number only until the command is reaped, which keeps
it; any other process by a pidfd, once its start time has been compared behind it.

A command is run under leases by ``Run``: it is started once they are held, and nothing of it outlives them. The
moments, reckoned from what a holder knows: ``left`` is how long the leases may still be used, were none renewed
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

import ctypes
import os
import select
import signal
import sys

from timeagent.errors import LeaseLost

TYPE_CHECKING = False  # as typing has it, which costs as much as the rest
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Final, Protocol, Self

    from timeagent.units import Span

    from ..lease.sockets import BootClock

MS: Final = 1_000_000
"""A millisecond as a span; ``timeagent.units`` is not loaded for it."""

NOT_FOUND: Final = 127
NOT_EXECUTABLE: Final = 126
SIGNALLED: Final = 128
"""The exit code of what a signal has ended is this and its number, as shells have it."""

ENDING: Final = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
"""What is sent to have a process end."""

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_ENDED: Final = frozenset("ZX")
_BY_JOB_CONTROL: Final = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGSTOP})
_WANTS_TERMINAL: Final = frozenset({signal.SIGTTIN, signal.SIGTTOU})
_IGNORED_BY_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)


class ProcessSeen:
    """A process at an instant. Number and start time together name it for as long as the machine runs."""

    __slots__ = ("group", "name", "parent", "pid", "started", "state", "threads")

    def __init__(self, pid: int, told: str) -> None:
        """Note what /proc says. ``started``: in ticks since boot."""
        before, _, after = told.rpartition(")")
        state, *numbers = after.split()
        self.pid, self.name, self.state = pid, before.partition("(")[2], state
        self.parent, self.group, self.threads, self.started = (int(numbers[place]) for place in (0, 1, 16, 18))

    @property
    def ended(self) -> bool:
        """Whether it only waits to be reaped. A first thread that has ended is no such thing while others run."""
        return self.state in _ENDED and self.threads <= 1


def process(pid: int) -> ProcessSeen | None:
    """Return what the kernel says of a process; None: there is none, or it may or can not be looked at now."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return ProcessSeen(pid, file.read().decode(errors="replace"))
    except OSError:
        return None


def ancestors(pid: int) -> Iterator[ProcessSeen]:
    """Return a process and those that it descends from, the nearest first."""
    while pid and (each := process(pid)) is not None:
        yield each
        pid = each.parent


def program_missing(word: str) -> int | None:
    """Return with which code a command ends that cannot be started; None: it can."""
    places = [word] if "/" in word else [os.path.join(each, word) for each in os.get_exec_path()]
    if any(os.access(each, os.X_OK) and not os.path.isdir(each) for each in places):
        return None
    return NOT_EXECUTABLE if "/" in word and os.path.exists(word) else NOT_FOUND


def purpose_of(what: str, name: str) -> str:
    """Return what others see as the reason, where nobody gives one: plain text of 128 bytes, whatever a file's name."""
    plain = "".join(each if each.isprintable() else "?" for each in f"{what} {name}")
    return plain.encode()[:128].decode(errors="ignore")


def note_at_once(text: str) -> None:
    """Tell a person on stderr, and never wait: where it takes nothing now, or nobody reads it, nothing is said.

    Whoever ends a command before its lease is over has no time for a terminal that was stopped, or a full pipe.
    """
    poll = select.poll()
    poll.register(2, select.POLLOUT)
    try:
        if poll.poll(0) == [(2, select.POLLOUT)]:  # then so much fits into a pipe
            os.write(2, f"{text}\n".encode(errors="backslashreplace")[: select.PIPE_BUF])
    except OSError:
        pass


def close_all_but(*kept: int) -> None:
    """Close what this process has inherited or opened, but its standard streams and these descriptors."""
    for each in map(int, os.listdir("/proc/self/fd")):
        if each > 2 and each not in kept:  # noqa: PLR2004 - the standard streams
            try:
                os.close(each)
            except OSError:
                pass  # that of the listing


class Signals:
    """The signals that come to this process, kept until they are asked for. For the main thread, within a block.

    After the block those that would end it are ignored, also while the interpreter ends: its exit code is settled then.
    """

    def __init__(self, numbers: Iterable[signal.Signals]) -> None:
        """Take note of these from ``__enter__`` on; what this process was started to ignore stays ignored."""
        self._numbers = [each for each in numbers if signal.getsignal(each) is not signal.SIG_IGN]
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def __enter__(self) -> Self:
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in self._numbers:
            signal.signal(number, lambda *_: None)
        return self

    def __exit__(self, *problem: object) -> None:
        """Listen no more."""
        for number in ENDING.intersection(self._numbers):
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        os.close(self._read)
        write, self._write = self._write, -1
        os.close(write)

    def wake(self) -> None:
        """End a wait early, from any thread."""
        try:
            os.write(self._write, b"\0")
        except OSError:
            pass  # full: it wakes all the same; closed: nobody waits any more

    def wait(self, span: Span, *descriptors: int) -> list[int]:
        """Return what has come, after at most that long; sooner where one of these descriptors can be read."""
        poll = select.poll()
        for each in (self._read, *descriptors):
            poll.register(each, select.POLLIN)
        poll.poll(max(0, -(-span // MS)))
        try:
            return [number for number in os.read(self._read, 4096) if number]
        except BlockingIOError:
            return []


class ProcessTree:
    """One command in a process group of its own. Made while this process has no second thread; close it."""

    def __init__(self, words: list[str]) -> None:
        """Fork what becomes the command once ``start`` is called, and ends with this process if that is killed.

        Threads come later, with the leases; a process that has them cannot run Python between fork and exec.
        """
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it was ignored, the kernel would forget the exit code
        gate, self._gate = os.pipe()
        parent = os.getpid()
        sys.stderr.flush()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            self.pid = os.fork()
        except OSError:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(gate)
            self._close_gate()
            raise
        if not self.pid:
            try:
                os.close(self._gate)
                _become(words, gate, parent, mask)
            finally:
                os._exit(NOT_EXECUTABLE)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(gate)
        try:
            os.setpgid(self.pid, self.pid)
        except OSError:
            pass  # the child does the same: whoever comes first
        self._reaped = False
        self._code: int | None = None
        self._terminal = _Terminal(self.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        """End at once what lives of it, and take the terminal back. Idempotent. Waits until nothing lives."""
        self._close_gate()
        while not self.over():
            self.kill()
        self._terminal.take()

    def _close_gate(self) -> None:
        gate, self._gate = self._gate, -1
        if gate >= 0:
            os.close(gate)

    def start(self, environment: Mapping[str, str]) -> None:
        """Let the command begin, with these variables beside those of this process."""
        told = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())
        self._terminal.give()
        try:
            os.write(self._gate, told)
        except BrokenPipeError:
            pass  # it was killed before: its status says so
        self._close_gate()

    def status(self) -> int | None:
        """Return the command's exit code, 128 and the signal's number where one ended it; None while it runs."""
        if not self._reaped:
            told = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if told is not None:
                self._code = (0 if told.si_code == os.CLD_EXITED else SIGNALLED) + told.si_status
        return self._code

    def send(self, number: int) -> None:
        """Send a signal to the command's group, as a terminal does: to whoever of it may be signalled."""
        if not self._reaped:
            try:
                os.killpg(self.pid, number)
            except (ProcessLookupError, PermissionError):
                pass  # the command has gone to another group, or is another user's by now, as `sudo` is

    def signal(self, number: int) -> None:
        """Send a signal to the group and to every descendant outside of it, once to each."""
        self.send(number)
        for each in self.living():
            if self._reaped or each.group != self.pid:  # what is left of the group has its number no more
                _send(each, number)

    def kill(self) -> None:
        """Send SIGKILL to the group and every descendant, until a look finds nobody who has not had it.

        A stopped process dies of it too; one in a system call that cannot be interrupted, when that returns.
        """
        had: dict[tuple[int, int], ProcessSeen] = {}
        while True:
            self.send(signal.SIGKILL)
            fresh = {(each.pid, each.started): each for each in self.living() if (each.pid, each.started) not in had}
            if not fresh:
                return
            for each in fresh.values():
                _send(each, signal.SIGKILL)
            had.update(fresh)

    def living(self) -> list[ProcessSeen]:
        """Return the descendants that a look finds alive; reap those of this process's children that have ended."""
        try:
            pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
        except OSError:
            return []  # whether nothing lives is the kernel's word, and who waits for it looks again
        children: dict[int, list[ProcessSeen]] = {}
        for each in filter(None, map(process, pids)):
            children.setdefault(each.parent, []).append(each)
        found, own = [], os.getpid()
        ahead = [own]
        while ahead:
            for each in children.get(ahead.pop(), ()):
                ahead.append(each.pid)
                if not each.ended:
                    found.append(each)
                elif each.parent == own and each.pid != self.pid:
                    _reap(each.pid)  # the command itself keeps its number until its code is known
        return found

    def over(self) -> bool:
        """Whether nothing of it lives any more, by the kernel's word: this process has no child."""
        if self.status() is None:
            return False
        if not self._reaped:
            _reap(self.pid)
            self._reaped = True
        return _childless() or (not self.living() and _childless())

    def stopped_at_terminal(self) -> bool:
        """Whether whoever sits at the terminal has just stopped the command: then this process is to stop too."""
        if self._reaped or not self._terminal.there:
            return False
        try:
            told = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG)
        except ChildProcessError:  # it has ended, and will not stop any more
            return False
        if told is None or told.si_status not in _BY_JOB_CONTROL:
            return False
        if told.si_status in _WANTS_TERMINAL and self._terminal.give():
            self.signal(signal.SIGCONT)  # it was in the background, and is not any more
            return False
        return True

    def suspend(self) -> None:
        """Stop everything, then this process, as the shell expects; return when the shell lets it go on."""
        self.signal(signal.SIGSTOP)
        self._terminal.take()
        os.kill(os.getpid(), signal.SIGSTOP)

    def resume(self) -> None:
        """Let everything go on that was stopped."""
        self._terminal.give()
        self.signal(signal.SIGCONT)


class _Terminal:
    """The terminal of this process, where it reads and writes there and is in front: then the command's group is."""

    def __init__(self, group: int) -> None:
        self._group = group
        self.there = os.isatty(0) and os.isatty(1)
        self._given = False

    def give(self) -> bool:
        """Put the command's group in front, if this process's is; return whether."""
        try:
            in_front = self.there and os.tcgetpgrp(0) == os.getpgrp()
        except OSError:  # the terminal is gone: nobody is in front of it
            in_front = False
        if in_front:
            self._put(self._group)
            self._given = True
        return in_front

    def take(self) -> None:
        """Put this process's group in front again, if it was before."""
        if self._given:
            self._put(os.getpgrp())
            self._given = False

    @staticmethod
    def _put(group: int) -> None:
        before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # else who is not in front is stopped for trying
        try:
            os.tcsetpgrp(0, group)
        except OSError:
            pass  # the terminal is gone
        signal.signal(signal.SIGTTOU, before)


def _become(words: list[str], gate: int, parent: int, mask: set[int]) -> None:
    """Be the command, in the child, once the gate says with which variables; nothing where it is only closed."""
    os.setpgid(0, 0)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return  # it ended before
    for number in _IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    for number in ENDING:  # what comes before exec ends it as it would behind that: not by an exception, in Python
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    told = b""
    while part := os.read(gate, 65536):
        told += part
    if not told.endswith(b"\0"):
        return
    variables = dict(each.split(b"=", 1) for each in told[:-1].split(b"\0"))
    try:
        os.execvpe(words[0], words, {**os.environb, **variables})  # noqa: S606 - what was asked for
    except OSError as problem:
        sys.stderr.write(f"tenure: {words[0]}: {problem.strerror}\n")
        sys.stderr.flush()
        os._exit(NOT_FOUND if isinstance(problem, FileNotFoundError) else NOT_EXECUTABLE)


def _send(to: ProcessSeen, number: int) -> None:
    """Signal this very process, if it still lives and this one may and can."""
    try:
        descriptor = os.pidfd_open(to.pid)
        try:
            now = process(to.pid)
            if now is not None and now.started == to.started:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)
    except OSError:
        pass


def _childless() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass


def _prctl(option: int, value: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


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
        behind is ended. A signal that comes before it is started is in the code, and nothing was begun.
        """
        while not self._may_go_on():  # a shard that was behind with its ceiling grants less at first, and more soon
            if self._held.lost() is not None:
                raise LeaseLost("lease-lost", "the leases were over before the command began", hint="run it again")
            if (ended_by := next(filter(ENDING.__contains__, self._wait(LOOK_NS)), None)) is not None:
                return SIGNALLED + ended_by
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
