"""What a daemon tells systemd: that it is ready, that it is alive, how it is (sd_notify(3)). Nothing where nobody asks.

``NOTIFY_SOCKET`` and ``WATCHDOG_USEC`` are set by systemd for units of ``Type=notify`` and with ``WatchdogSec=``.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Final

from .units import US, Span

SOCKET: Final = "NOTIFY_SOCKET"
WATCHDOG: Final = "WATCHDOG_USEC"
WATCHDOG_PID: Final = "WATCHDOG_PID"


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
        """Say that the daemon does its work from now on."""
        self._send("READY=1", status)

    def alive(self) -> None:
        """Say that the daemon is not stuck. To be called where its work is done, not from a thread of its own."""
        self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """Say how it is, for ``systemctl status``."""
        self._send("", text)

    def stopping(self) -> None:
        """Say that the daemon ends."""
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
