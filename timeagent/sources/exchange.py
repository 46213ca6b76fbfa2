"""One question and its answer over a datagram socket: how sources ask who is not this process.

The port is a function, so that a simulated network can stand in for it.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Protocol

from timeagent.errors import BadTime
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from timeagent.units import Span

_REPLY_BYTES_MAX = 65536


class Exchange(Protocol):
    """Send one packet; return the first answer that is wanted."""

    def __call__(self, request: bytes, wanted: Callable[[bytes], bool], /) -> bytes:
        """Blocks at most for its time-out. Raises BadTime when nobody answers."""
        ...


class UdpExchange:
    """A question to one address, from a socket of its own: nobody else can answer without having seen it."""

    def __init__(self, host: str, port: int, *, timeout_ns: Span) -> None:
        """Take the address. Sends nothing yet."""
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
