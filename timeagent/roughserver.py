"""The Roughtime server of a node: one UDP socket, answers signed in batches, silent whenever it does not know the time.

The radius is the agent's own bound, rounded up to whole seconds so that the answer's interval holds the agent's. A
datagram that is no request is not answered, and no answer is longer than its request, so nobody can be flooded by it.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final

from .delegation import Delegations
from .errors import BadTime
from .interval import TimeInterval
from .noncedoor import end_reading
from .roughwire import PACKET_BYTES_MAX, answer_batch
from .units import SECOND

RADIUS_S_MIN: Final = 1
"""RFC 10049: never 0. It suggests 3 where nobody tells of leap seconds; the sources of an agent do, or it is silent."""
RADIUS_S_MAX: Final = 2**32 - 1
BATCH_MAX: Final = 64
PORT: Final = 5319
"""Assigned by IANA."""

_log = logging.getLogger(__name__)


def whole_seconds(now: TimeInterval) -> tuple[int, int]:
    """Return the midpoint and the least radius, in whole seconds, whose interval holds ``now``."""
    midpoint_s = (now.midpoint + SECOND // 2) // SECOND
    reach = max(now.latest - midpoint_s * SECOND, midpoint_s * SECOND - now.earliest)
    return midpoint_s, max(RADIUS_S_MIN, -(-reach // SECOND))


class RoughServer:
    """Answers requests. Thread-compatible; never raises for what a stranger sends."""

    def __init__(self, now: Callable[[], TimeInterval], delegations: Delegations) -> None:
        """Take what says the time (raising BadTime where it cannot), and the keys."""
        self._now = now
        self._delegations = delegations
        self._silent = ""

    def answers(self, requests: Sequence[bytes]) -> list[bytes | None]:
        """Return an answer to each request, or None for what is not answered."""
        try:
            now = self._now()
        except BadTime as problem:
            return self._say_nothing(requests, problem.code)
        online = self._delegations.at(now)
        if online is None:
            return self._say_nothing(requests, "no-delegation")
        midpoint_s, radius_s = whole_seconds(now)
        if midpoint_s < 0 or radius_s > RADIUS_S_MAX:
            return self._say_nothing(requests, "radius-too-wide")
        self._note("")
        return answer_batch(online, requests, midpoint_s, radius_s)

    def _say_nothing(self, requests: Sequence[bytes], reason: str) -> list[bytes | None]:
        self._note(reason)
        return [None] * len(requests)

    def _note(self, silent: str) -> None:
        """Log when the server falls silent, and when it speaks again: not once a datagram."""
        if silent != self._silent:
            _log.warning("roughtime-silent reason=%s", silent) if silent else _log.info("roughtime-speaks")
        self._silent = silent


class RoughDoor:
    """One UDP socket, served by whoever calls ``serve``."""

    def __init__(self, bound: socket.socket, server: RoughServer) -> None:
        """Take a bound socket."""
        bound.settimeout(None)  # it waits without waking: ``wake`` ends that
        self._socket = bound
        self._server = server

    def serve(self, stopped: Callable[[], bool]) -> None:
        """Answer until ``wake`` is called while ``stopped`` says so. Blocks. What waits is answered as one batch."""
        while not stopped():
            try:
                asked = [self._socket.recvfrom(PACKET_BYTES_MAX + 1)]
            except OSError as problem:
                if stopped():
                    return
                _log.warning("roughtime-receive-failed reason=%s", problem.strerror)
                continue
            asked += self._waiting()
            answers = self._server.answers([data for data, _ in asked])
            for answer, (_, sender) in zip(answers, asked, strict=True):
                if answer is not None and sender:
                    with contextlib.suppress(OSError):  # who asked is gone, or cannot be reached: it asks again
                        self._socket.sendto(answer, socket.MSG_DONTWAIT, sender)

    def _waiting(self) -> list[tuple[bytes, Any]]:
        found: list[tuple[bytes, Any]] = []
        with contextlib.suppress(OSError):  # nothing more is there
            while len(found) < BATCH_MAX - 1:
                found.append(self._socket.recvfrom(PACKET_BYTES_MAX + 1, socket.MSG_DONTWAIT))
        return found

    def wake(self) -> None:
        """End the wait of ``serve``: nothing is answered from now on."""
        end_reading(self._socket)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
