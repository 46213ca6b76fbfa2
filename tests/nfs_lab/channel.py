"""Commands for one machine, and what it answers: the host's end of image/agent.py."""

from __future__ import annotations

import itertools
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

SLACK_S = 120.0
"""How much longer than a command may take its answer may take: the host may be busy."""


NUMBERS: Final = itertools.count(1)
"""Of requests. One of a connection that is over is never one of the next."""


class MachineError(RuntimeError):
    """A machine is gone, does not answer in time, or its command failed."""


def reach(directory: Path, name: str, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """Connect to a Unix socket by a short name: a path of one may have 107 bytes, and work directories are deep."""
    found = socket.socket(socket.AF_UNIX, kind)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        found.connect(f"/proc/self/fd/{fd}/{name}")
    except OSError:
        found.close()
        raise
    finally:
        os.close(fd)
    return found


class Channel:
    """One connection; when the machine is switched off it is over, and another is made."""

    def __init__(self, name: str, connection: socket.socket) -> None:
        """Read in the background from now on."""
        self._name = name
        self._connection = connection
        self._first = next(NUMBERS)
        self._answers: dict[int, dict[str, Any]] = {}
        self._listeners: dict[int, Callable[[str], None]] = {}
        self._news = threading.Condition()
        self._over = False
        self._sending = threading.Lock()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            for line in self._connection.makefile("rb"):
                try:
                    said = json.loads(line)
                except ValueError:
                    continue  # the end of a line that began before this connection
                if "line" in said:
                    self._listeners[said["id"]](said["line"])
                    continue
                with self._news:
                    self._answers[said["id"]] = said
                    self._news.notify_all()
        except OSError:
            pass
        with self._news:
            self._over = True
            self._news.notify_all()

    def awake(self, seconds: float) -> bool:
        """Whether the agent has said hello by then."""
        with self._news:
            return self._news.wait_for(lambda: 0 in self._answers or self._over, seconds) and 0 in self._answers

    def ask(self, listener: Callable[[str], None] | None = None, **request: object) -> int:
        """Send a request; return its number."""
        number = next(NUMBERS)
        if listener is not None:
            self._listeners[number] = listener
        try:
            with self._sending:
                self._connection.sendall(json.dumps({"id": number, **request}).encode() + b"\n")
        except OSError as problem:
            raise MachineError(f"{self._name} is switched off: {problem}") from None
        return number

    def answer(self, number: int, seconds: float) -> dict[str, Any]:
        """Wait for an answer. Raises MachineError."""
        until = time.monotonic() + seconds + SLACK_S
        with self._news:
            while number not in self._answers:
                if self._over:
                    raise MachineError(f"{self._name} was switched off")
                if not self._news.wait(max(0.0, until - time.monotonic())) and time.monotonic() >= until:
                    raise MachineError(f"{self._name} gave no answer in {seconds + SLACK_S:.0f} s")
            return self._answers.pop(number)

    def answered(self, number: int) -> bool:
        """Whether an answer is there, or never will be, as of what an earlier connection asked."""
        with self._news:
            return self._over or number < self._first or number in self._answers

    def close(self) -> None:
        """End it."""
        self._connection.close()
