"""The read-only door for people and Prometheus: a small HTTP/1.1 server for GET and HEAD, one answer a connection.

It can be asked by anybody who reaches its address, so everything that a visitor costs is bounded: the number of
visitors, the bytes of a request, the time from accept to end. One thread hears what all of them ask; a page that takes
time to make or to read has a thread of its own, and there are few of those. What is asked to see whether this process
works is answered by the first thread, so that visitors cannot make it look ill. The door changes nothing and reads no
body. It is on loopback or a Unix socket unless the settings say otherwise; there is no encryption and no password.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import socket
from collections import Counter
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from threading import BoundedSemaphore, Thread
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from timeagent.errors import BadRequest, TenureError
from timeagent.units import SECOND, Span

from ..formats.names import Address
from ..lease.listeners import BoundedListener, Visitor
from ..lease.sockets import BootClock, Listener
from ..node.runtime import begin

_log = logging.getLogger(__name__)

PAGES_MAX: Final = 16
"""How many pages are being made and read at once. How many may ask meanwhile, and for how long: ``BoundedListener``."""

REQUEST_BYTES_MAX: Final = 8 * 1024
HEADERS_MAX: Final = 64
VISIT_NS: Final[Span] = 5 * SECOND
"""How long a page may take to be made and read, together."""

TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    body: bytes
    type: str = TEXT


class _Bad(Exception):
    """A request that is refused."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(status)
        self.answer = HttpAnswer(status, f"{why}\n".encode())


class HttpServer(BoundedListener):
    def __init__(
        self,
        place: Address | Path,
        answer: Callable[[str, Mapping[str, str]], HttpAnswer | None],
        clock: BootClock,
        group: int | None = None,
        at_once: Container[str] = (),
    ) -> None:
        """Listen; nobody is answered before start(). ``answer``: for a path and its query; None: there is no such path.

        ``group``: who may use the Unix socket beside this user. ``at_once``: the paths whose answers never block.
        Raises Environment.
        """
        self._answer = answer
        self._at_once = at_once
        self._room = BoundedSemaphore(PAGES_MAX)
        self.answered: Counter[int] = Counter()
        """How many answers were given, by status."""
        self._allowed: frozenset[str] | None = None
        if isinstance(place, Address) and _is_loopback(place.host):
            # A page in this machine's browser must not read it under a name that it made point here.
            self._allowed = frozenset({"localhost", "127.0.0.1", "[::1]", place.host, f"[{place.host}]"})
        super().__init__(Listener(place, group, code="no-http", hint="see `http` in node.toml"), clock)
        self.thread = Thread(target=self.run, name="tenure-http", daemon=True)

    @property
    def place(self) -> Address | Path:
        """Where it answers; with port 0, the port that was free."""
        return self._listener.place

    def start(self) -> None:
        """Begin to answer. Raises Environment."""
        begin(self.thread)

    def close(self) -> None:
        """Answer nobody any more; whose page is being made has until its time is over. Idempotent."""
        self.stop()
        if self.thread.is_alive():
            self.thread.join()
        self.close_all()

    def _go_on(self, visitor: Visitor) -> None:
        """Hear what is asked; once it is all there, answer, or have a thread do it."""
        try:
            part = visitor.socket.recv(REQUEST_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            self._drop(visitor)
            return
        visitor.received += part
        try:
            asked = self._parsed(visitor.received, ended=not part)
        except _Bad as bad:
            self._leave(visitor, bad.answer)
            return
        if asked is None:
            return
        method, path, query = asked
        if path in self._at_once:
            self._leave(visitor, self._made(path, query), body=method == "GET")
        elif self._room.acquire(blocking=False):
            self._forget(visitor)
            self._begin(visitor.socket, method, path, query)
        else:
            self._leave(visitor, _Bad(503, "too many visitors").answer)

    def _send_away(self, visitor: Visitor) -> None:
        self._leave(visitor, _Bad(408, "the request took too long").answer)

    def _leave(self, visitor: Visitor, answer: HttpAnswer, *, body: bool = True) -> None:
        self._tell(visitor.socket, answer, body=body)
        self._drop(visitor)

    def _begin(self, visitor: socket.socket, method: str, path: str, query: Mapping[str, str]) -> None:
        """Have a page made and read by a thread of its own."""

        def visit() -> None:
            until = self._clock.boot_ns() + VISIT_NS
            try:
                with visitor:
                    answer = self._made(path, query)
                    visitor.settimeout(max(1, until - self._clock.boot_ns()) / SECOND)
                    self._tell(visitor, answer, body=method == "GET")
            finally:
                self._room.release()

        try:
            Thread(target=visit, name="tenure-visitor", daemon=True).start()
        except RuntimeError:  # this process may have no more threads
            self._room.release()
            visitor.close()

    def _made(self, path: str, query: Mapping[str, str]) -> HttpAnswer:
        try:
            return self._answer(path, query) or HttpAnswer(404, b"there is no such page\n")
        except BadRequest as problem:
            return HttpAnswer(400, f"{problem}\n".encode())
        except TenureError as problem:
            return HttpAnswer(503, f"{problem}\n".encode())
        except Exception:  # noqa: BLE001 - a page that cannot be made must not cost the thread's place
            _log.exception("page-failed path=%s", path)
            return HttpAnswer(500, b"this page could not be made: the log says why\n")

    def _parsed(self, received: bytes, *, ended: bool) -> tuple[str, str, dict[str, str]] | None:
        """Return method, path and query, once they are here. ``ended``: nothing more comes. Raises _Bad."""
        head, end, body = received.partition(b"\r\n\r\n")
        if len(head) > REQUEST_BYTES_MAX:
            raise _Bad(431, "the request is too long")
        if ended:
            raise _Bad(400, "the request ends in its middle")
        if not end:
            return None
        if body:
            raise _Bad(400, "a request has no body here, and there is one a connection")
        try:
            first, *rest = head.decode("ascii").split("\r\n")
            method, target, version = first.split(" ")
            headers = [line.split(":", 1) for line in rest]
            named = {name.lower(): value.strip() for name, value in headers}
            address = urlsplit(target)
            query = dict(parse_qsl(address.query, keep_blank_values=True, strict_parsing=bool(address.query)))
        except ValueError:
            raise _Bad(400, "this is no HTTP request") from None
        if version not in ("HTTP/1.0", "HTTP/1.1") or not target.startswith("/"):
            raise _Bad(400, "this is no HTTP request")
        if len(headers) > HEADERS_MAX or len(named) != len(headers):
            raise _Bad(431, "too many headers, or one of them twice")
        if method not in ("GET", "HEAD"):
            raise _Bad(405, "GET and HEAD only: nothing can be changed here")
        if named.get("content-length", "0") != "0" or "transfer-encoding" in named:
            raise _Bad(400, "a request has no body here")
        host = named.get("host", "localhost")
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        if self._allowed is not None and name.lower() not in self._allowed:
            raise _Bad(421, "this door is for this machine: ask localhost")
        return method, address.path, query

    def _tell(self, visitor: socket.socket, answer: HttpAnswer, *, body: bool = True) -> None:
        """Send an answer within the time-out of the socket: who does not read it has none."""
        self.answered[answer.status] += 1
        head = (
            f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}\r\n"
            f"Content-Type: {answer.type}\r\n"
            f"Content-Length: {len(answer.body)}\r\n"
            + ("Allow: GET, HEAD\r\n" if answer.status == 405 else "")  # noqa: PLR2004 - a status
            + "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
        )
        with contextlib.suppress(OSError):
            visitor.sendall(head.encode("ascii") + (answer.body if body else b""))
            visitor.shutdown(socket.SHUT_WR)


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
