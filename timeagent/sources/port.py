"""The port of a time source: an interval at a boot-time instant; and how one is asked over a datagram socket.

The port is a function, so that a simulated network can stand in for it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from timeagent.errors import BadTime
from timeagent.interval import TimeInterval
from timeagent.units import SECOND, Span

from ..signedtime import ClockStatus


@dataclass(frozen=True, slots=True)
class Sample:
    """``true - CLOCK_REALTIME`` was inside ``offset`` (nanoseconds) when CLOCK_BOOTTIME was ``boot_ns``."""

    source: str
    offset: TimeInterval
    boot_ns: int
    status: ClockStatus
    assumed: bool = False
    cluster_time: bool = False
    """Relative to a named reference of this cluster, not to UTC."""


class Source(Protocol):
    """One opinion about this machine's clock."""

    @property
    def name(self) -> str:
        """A short word: what ``time sources`` shows."""
        ...

    def sample(self) -> Sample:
        """Ask once. Raises BadTime with the reason when the source has no bound to give. Blocks at most briefly."""
        ...


_REPLY_BYTES_MAX = 65536


class Exchange(Protocol):
    """Send one packet; return the first answer that is wanted."""

    def __call__(self, request: bytes, wanted: Callable[[bytes], bool], /) -> bytes:
        """Blocks at most for its time-out. Raises BadTime when nobody answers."""
        ...


class UdpExchange:
    """A question to one address, from a socket of its own: nobody else can answer without having seen it."""

    def __init__(self, host: str, port: int, *, timeout_ns: Span) -> None:
        self._host = host
        self._port = port
        self._timeout = timeout_ns / SECOND

    def __call__(self, request: bytes, wanted: Callable[[bytes], bool]) -> bytes:
        """Ask once. What is not wanted is left unread, a few times."""
        try:
            family, kind, _, _, address = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind) as door:
                door.settimeout(self._timeout)
                door.connect(address)
                door.send(request)
                return _first_wanted(door, wanted)
        except OSError as problem:
            raise BadTime(
                "no-answer",
                f"{self._host} port {self._port} does not answer: {problem.strerror or problem}",
                hint="is it running, and may this machine reach it?",
            ) from None


_ANSWERS_MAX = 8


def _first_wanted(door: socket.socket, wanted: Callable[[bytes], bool]) -> bytes:
    for _ in range(_ANSWERS_MAX):
        answer = door.recv(_REPLY_BYTES_MAX)
        if wanted(answer):
            return answer
    raise TimeoutError("only answers to other questions came")
