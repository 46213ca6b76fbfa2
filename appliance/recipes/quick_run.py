"""``tenure run --quick``: a command by a sub-lease of the node's daemon, asked for before anything else is loaded.

An interpreter that loads what a lease of its own needs takes twenty times as long to start as one that runs ``true``.
Here nothing is loaded but a few modules of the standard library, and what ends the command before its sub-lease is over
is the same as everywhere (``processes.py``). What is not understood, refused for want of a daemon, or not
at hand is left to the whole command: nothing has happened then.
"""

from __future__ import annotations

import _socket as socket  # what `socket` adds takes as long to load as all of this
import os
import signal
import stat
import struct
import sys
import time

from timeagent.errors import LeaseLost

from ..node import desk_wire as wire
from .processes import HEARD, MS, SIGNALLED, ProcessTree, Run, Signals, note_at_once, program_missing, purpose_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Final

    from timeagent.errors import TenureError
    from timeagent.units import Span

WAIT: Final = "30s"
"""How long is waited for a lease where nothing is said."""

KEEP_EVERY_NS: Final = 250 * MS
"""How often the daemon is asked how long the sub-lease is good."""
PATIENCE_S: Final = 2
"""How long a daemon that stands still is waited for: at the beginning, and to have it back."""

_SERVICE: Final = "/run/tenure"
_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - the tmpfs that every Linux has
_WITH_VALUE: Final = ("--root", "--node-dir", "--lease", "--mode", "--wait")
_FLAGS: Final = ("--allow-root", "--quick")


class SubLease:
    """A sub-lease as its process knows it (Holding): good for as long as it was told last, from when it asked."""

    def __init__(self, line: wire.Line, grace_ns: Span) -> None:
        """Ask for the first time; the answer is waited for. Raises OSError."""
        self._line = line
        self._grace_ns = grace_ns
        self._over: str | None = None
        self._doubt = False
        self._until = 0
        self._asked: int | None = None
        self._next = 0
        self._ask()
        self._take(line.receive())

    @staticmethod
    def boot_ns() -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def left_ns(self) -> Span:
        return self._until - self.boot_ns()

    def grace_ns(self) -> Span:
        return self._grace_ns

    def lost(self) -> str | None:
        return self._over

    def in_doubt(self) -> bool:
        return self._doubt

    def exchange(self) -> None:
        """Hear what the daemon says, and ask again when it is time. Never waits."""
        try:
            while (words := self._line.received()) is not None:
                self._take(words)
            if self._asked is None and self._over is None and self.boot_ns() >= self._next:
                self._ask()
        except (OSError, ValueError) as problem:
            self._over = self._over or f"the node's daemon has ended ({problem})"

    def _ask(self) -> None:
        self._asked = self.boot_ns()
        self._next = self._asked + KEEP_EVERY_NS
        self._line.say(wire.KEEP)

    def _take(self, words: list[str]) -> None:
        if words[0] == wire.GOOD and self._asked is not None:
            self._until = self._asked + int(words[1])
            self._asked = None
        elif words[0] == wire.OVER:
            self._over, self._doubt = words[1], words[2] == wire.DOUBT


def quick_run(arguments: Sequence[str]) -> int | None:
    """Run a command as ``tenure run`` does, by a sub-lease; return its exit code. None: that is left to the whole."""
    asked = _understood(arguments)
    if asked is None or sys.stdout is None or sys.stderr is None:
        return None
    options, words = asked
    if (
        "--quick" not in options
        or not options.get("--root")
        or not options.get("--lease")
        or program_missing(words[0]) is not None
    ):
        return None
    if not os.geteuid() and "--allow-root" not in options:
        return None
    try:
        connection = _connected(options["--root"], options.get("--node-dir"))
    except OSError:
        return None
    if connection is None:
        return None
    with wire.Line(connection) as line:
        purpose = purpose_of("run", os.path.basename(words[0]))
        try:
            line.say(wire.LEASE, wire.VERSION, options["--lease"], options["--mode"], options["--wait"], purpose)
            answer = _awaited(line)
        except (OSError, ValueError):
            return None
        except KeyboardInterrupt:
            note_at_once("tenure: interrupted")
            return SIGNALLED + signal.SIGINT
        if answer[0] == wire.REFUSED:
            from timeagent import errors

            _, kind, code, message, hint = answer
            return _reported(getattr(errors, kind)(code, message, hint=hint))
        return _run(line, options["--lease"], words, answer) if answer[0] == wire.HELD else None


def _understood(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]] | None:
    """Return the options, and the words of the command; None for whatever is not said in the plainest way."""
    options = {"--mode": "X", "--wait": WAIT}
    if root := os.environ.get("TENURE_ROOT"):
        options["--root"] = root
    said: set[str] = set()
    ahead = iter(arguments)
    for each in ahead:
        if each == "--":
            words = list(ahead)
            return (options, words) if words else None
        value = "" if each in _FLAGS else next(ahead, "") if each in _WITH_VALUE else None
        if value is None or each in said or value.startswith("-"):
            return None
        said.add(each)
        options[each] = value
    return None


def _connected(root: str, node_directory: str | None) -> socket.socket | None:
    """Return a connection to this user's daemon for a root, if it is there."""
    for users in (_SERVICE, f"{_SHARED_MEMORY}/tenure-{os.getuid()}"):
        place = wire.door(users, root, node_directory)
        if place is None or not (_ours(users) and _ours(os.path.dirname(place))):
            continue
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", PATIENCE_S, 0))
        try:
            connection.connect(os.readlink(place))
        except OSError:
            connection.close()
            continue
        _, user, _ = struct.unpack("i2I", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if user == os.geteuid():
            return connection
        connection.close()
    return None


def _ours(path: str) -> bool:
    """Whether a directory can be changed by this user alone."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return status.st_uid == os.geteuid() and stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o022


def _awaited(line: wire.Line) -> list[str]:
    """Return the answer; on a terminal it is shown meanwhile who has it. Raises OSError, ValueError."""
    shown = False
    line.be_patient(0)
    try:
        while (words := line.receive())[0] == wire.WAITS:
            if sys.stderr.isatty():
                sys.stderr.write(f"\r\x1b[K{f'waiting, place: {words[1]} {words[2]}'[:118]}")
                sys.stderr.flush()
                shown = True
    finally:
        if shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
    line.be_patient(PATIENCE_S)
    return words


def _run(line: wire.Line, name: str, words: list[str], answer: list[str]) -> int | None:
    _, fence, expiry, grace = answer
    try:
        listening, tree = Signals(HEARD), ProcessTree(words)
    except OSError:
        return None  # nothing was forked
    try:
        with tree:
            try:
                held = SubLease(line, int(grace))
            except (OSError, ValueError):
                return None  # nothing has begun
            with listening as signals:

                def wait(span: Span) -> list[int]:
                    came = signals.wait(span, line.fileno()) if held.lost() is None else signals.wait(span)
                    held.exchange()
                    return came

                told = {"TENURE_LEASE": name, "TENURE_FENCE": fence, "TENURE_EXPIRY": expiry}
                code = Run(held, held, tree, wait, note_at_once).to_its_end(told)
        _give_back(line)
    except LeaseLost as problem:
        _give_back(line)
        return _reported(problem)
    return code


def _give_back(line: wire.Line) -> None:
    """Say that nothing is done any more, and wait until others can have it. It would be over by itself."""
    try:
        line.say(wire.BACK)
        while line.receive()[0] != wire.DONE:
            continue
    except (OSError, ValueError):
        return


def _reported(problem: TenureError) -> int:
    from timeagent.console import report_error

    return report_error(problem)
