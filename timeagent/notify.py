"""What a daemon tells systemd and its log: that it is ready, alive, how it is; what repeats, now and then with a count.

``NOTIFY_SOCKET`` and ``WATCHDOG_USEC`` are set by systemd for units of ``Type=notify`` and with ``WatchdogSec=``.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import re
import socket
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Final

from .units import US, Span

SOCKET: Final = "NOTIFY_SOCKET"
WATCHDOG: Final = "WATCHDOG_USEC"
WATCHDOG_PID: Final = "WATCHDOG_PID"

SIGNS: Final = 3
"""How many signs of life go into the time that the supervisor waits for one."""


class Notifier:
    """Sends one datagram for each thing said. What cannot be sent is not said: the daemon goes on."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """Take the environment that systemd made: the process's own unless another is given."""
        given = os.environ if environment is None else environment
        address = given.get(SOCKET, "")
        # An abstract name is written with @ and begins with NUL; anything else must be a path.
        self._address = "\0" + address[1:] if address.startswith("@") else address if address.startswith("/") else ""
        usec, pid = given.get(WATCHDOG, ""), given.get(WATCHDOG_PID, "")
        for_us = not pid.isdecimal() or int(pid) == os.getpid()
        self.watchdog_ns: Span = int(usec) * US if usec.isdecimal() and for_us and self._address else 0
        """How often systemd wants to hear ``alive``, at least; 0: never."""

    def ready(self, status: str = "") -> None:
        self._send("READY=1", status)

    def alive(self) -> None:
        """Say that the daemon is not stuck. To be called where its work is done, not from a thread of its own."""
        self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """Say how it is, for ``systemctl status``."""
        self._send("", text)

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def _send(self, word: str, status: str = "") -> None:
        if not self._address:
            return
        lines = [word] if word else []
        if status:
            lines.append("STATUS=" + " ".join(status.split()))
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as door,
        ):
            door.sendto("\n".join(lines).encode(), socket.MSG_DONTWAIT, self._address)


EVERY_S: Final = 60.0
"""So long after a line others like it are only counted."""

KINDS_MAX: Final = 256
_NUMBER: Final = re.compile(r"\d+")


class Pulse:
    """Gathers the beats of some loops; thread-safe. The supervisor has a sign of life when all of them have gone round.

    A loop calls ``beat`` with its own name each time it goes round: one that stands still silences the whole, and a
    thread that only sleeps gives no sign.
    """

    def __init__(self, listener: Notifier, boot_ns: Callable[[], int]) -> None:
        """Expect nothing yet. ``boot_ns``: counts."""
        self._listener = listener
        self._boot_ns = boot_ns
        self._lock = Lock()
        self._beaten: dict[str, bool] = {}
        self._told_ns = 0

    def watch(self, name: str) -> None:
        """Expect beats of this name from now on."""
        with self._lock:
            self._beaten[name] = False

    def forget(self, name: str) -> None:
        """Expect no more of them: the loop has ended as it should."""
        with self._lock:
            self._beaten.pop(name, None)

    def beat(self, name: str) -> None:
        """Note that a loop went round; give a sign of life if all have, and it is time."""
        if not self._listener.watchdog_ns:
            return
        with self._lock:
            if name in self._beaten:
                self._beaten[name] = True
            now = self._boot_ns()
            if now - self._told_ns < self._listener.watchdog_ns // SIGNS or not all(self._beaten.values()):
                return
            self._told_ns = now
            self._beaten = dict.fromkeys(self._beaten, False)
        self._listener.alive()


class Repeats(logging.Filter):
    """A filter for a handler. Thread-safe.

    Two lines are alike that one place logs with the same values; in the last of them, which is a reason in words,
    numbers may differ: ages, sizes and offsets change from one to the next.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = Lock()
        self._seen: dict[tuple[str, ...], tuple[float, int]] = {}
        """When a line of a kind was let through, and how many have been held back since; the oldest first."""

    def filter(self, record: logging.LogRecord) -> bool | logging.LogRecord:
        """Return the line, or False for one to hold back."""
        given = record.args if isinstance(record.args, tuple) else ()
        *values, reason = map(str, given or ("",))
        kind = (record.name, str(record.msg), *values, _NUMBER.sub("0", reason))
        with self._lock:
            at, held = self._seen.get(kind, (None, 0))
            if at is not None and 0 <= record.created - at < EVERY_S:
                self._seen[kind] = at, held + 1
                return False
            self._seen.pop(kind, None)
            self._seen[kind] = record.created, 0
            while len(self._seen) > KINDS_MAX:
                del self._seen[next(iter(self._seen))]
        if not held:
            return True
        told = copy.copy(record)
        told.msg, told.args = f"{record.getMessage()} (held back since the last of this kind: {held})", None
        return told
