"""The port of a time source: an interval at a boot-time instant; and datagram sockets, to ask one and to answer.

The port is a function, so that a simulated network can stand in for it.
"""

from __future__ import annotations

import contextlib
import logging
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..clock import SystemClock
from ..errors import BadTime, Environment
from ..units import SECOND, Instant, Span, TimeInterval


@dataclass(frozen=True, slots=True)
class Sample:
    """``true - CLOCK_REALTIME`` was inside ``offset`` (nanoseconds) when CLOCK_BOOTTIME was ``boot_ns``."""

    offset: TimeInterval
    boot_ns: int
    assumed: bool = False
    cluster_time: bool = False
    """Relative to a named reference of this cluster, not to UTC."""


class Source(Protocol):
    """One opinion about this machine's clock."""

    @property
    def name(self) -> str:
        """A short word: what ``time sources`` shows."""

    def sample(self) -> Sample:
        """Ask once. Raises BadTime with the reason when the source has no bound to give. Blocks at most briefly."""


def offset_between(said: TimeInterval, before: Instant, after: Instant) -> TimeInterval:
    """Return ``true - CLOCK_REALTIME`` by an answer that was true at some instant between two readings of that clock.

    A step in between is found out by who compares the clocks.
    """
    return TimeInterval(said.earliest - max(before, after), said.latest - min(before, after))


_REPLY_BYTES_MAX = 2**18
"""More than Linux lets anybody send at once: an agent's report of some hundred sources is the longest."""


type Exchange = Callable[[bytes, Callable[[bytes], bool]], bytes]
"""Sends one packet; returns the first answer that is wanted. Blocks at most for its time-out. Raises BadTime."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where somebody listens for datagrams."""

    host: str
    port: int


_ENDPOINT = re.compile(r"(?:\[([^][]+)\]|([^][:]+)):(\d{1,5})", re.ASCII)


def parse_endpoint(text: str) -> Endpoint | None:
    """Read ``host:port``; an IPv6 address stands in brackets. None for anything else, or a name that cannot be one."""
    match = _ENDPOINT.fullmatch(text)
    if match is None or not text.isprintable() or not 0 < int(match[3]) < 2**16:
        return None
    host = match[1] or match[2]
    try:
        host.encode("idna")  # as it will be looked up
    except UnicodeError:
        return None
    return Endpoint(host, int(match[3]))


class UdpExchange:
    """A question to one address, from a socket of its own: nobody else can answer without having seen it."""

    def __init__(self, endpoint: Endpoint, *, timeout_ns: Span) -> None:
        self._host, self._port = endpoint.host, endpoint.port
        self._timeout = timeout_ns / SECOND

    def __call__(self, request: bytes, wanted: Callable[[bytes], bool]) -> bytes:
        """Ask once. What is not wanted is passed over."""
        try:
            family, kind, _, _, address = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind) as door:
                door.settimeout(self._timeout)
                door.connect(address)
                door.send(request)
                return first_wanted(door, wanted)
        except OSError as problem:
            raise BadTime(
                "no-answer",
                f"{self._host} port {self._port} does not answer: {problem.strerror or problem}",
                hint="is it running, and may this machine reach it?",
            ) from None


def first_wanted(door: socket.socket, wanted: Callable[[bytes], bool]) -> bytes:
    """Return the first datagram that is wanted within the socket's time-out. Raises OSError, as that does."""
    ends = SystemClock.boot_ns() + int((door.gettimeout() or 0) * SECOND)
    while (left := ends - SystemClock.boot_ns()) > 0:
        door.settimeout(left / SECOND)
        answer = door.recv(_REPLY_BYTES_MAX)
        if wanted(answer):
            return answer
    raise TimeoutError("only answers to other questions came")


_log = logging.getLogger(__name__)


class DatagramDoor:
    """One bound socket that answers, served by whoever calls ``serve``."""

    def __init__(
        self,
        bound: socket.socket,
        answers: Callable[[Sequence[bytes]], Sequence[bytes | None]],
        *,
        bytes_max: int,
        batch_max: int = 1,
    ) -> None:
        """``answers``: one to each datagram, None for what is not answered; it gets at most ``batch_max`` at once.

        ``bytes_max``: of a question; of a longer one it gets one byte more.
        """
        bound.settimeout(None)  # it waits without waking: ``wake`` ends that
        self._socket = bound
        self._answers = answers
        self._read_max = bytes_max + 1
        self._batch_max = batch_max

    def serve(self, stopped: Callable[[], bool]) -> None:
        """Answer until ``wake`` is called while ``stopped`` says so. Blocks."""
        while not stopped():
            try:
                asked = [self._socket.recvfrom(self._read_max)]
            except OSError as problem:
                if stopped():
                    return
                _log.warning("door-receive-failed reason=%s", problem.strerror)
                continue
            with contextlib.suppress(OSError):  # nothing more is there
                while len(asked) < self._batch_max:
                    asked.append(self._socket.recvfrom(self._read_max, socket.MSG_DONTWAIT))
            answers = self._answers([data for data, _ in asked])
            for answer, (_, sender) in zip(answers, asked, strict=True):
                if answer is not None and sender:
                    with contextlib.suppress(OSError):  # who asked is gone, or does not read: it asks again
                        self._socket.sendto(answer, socket.MSG_DONTWAIT, sender)

    def wake(self) -> None:
        """End the wait of ``serve``: nothing is answered from now on."""
        with contextlib.suppress(OSError):  # one that nobody is connected to is shut down all the same, with ENOTCONN
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


def bind_udp(host: str, port: int) -> socket.socket:
    """Return a bound socket. Raises Environment."""

    def unbound(what: str, problem: OSError) -> Environment:
        return Environment("door-unbound", f"{what}: {problem.strerror or problem}", hint="check listen in time.toml")

    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE)[0]
        door = socket.socket(family, kind)
    except OSError as problem:
        raise unbound(f"no address {host}", problem) from None
    try:
        door.bind(address)
    except OSError as problem:
        door.close()
        raise unbound(f"cannot listen on {host} port {port}", problem) from None
    return door
