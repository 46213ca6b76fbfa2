"""Object stores for tests: one in memory, and one that speaks S3 on a port of this machine; both can misbehave."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from email.utils import formatdate
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from appliance.bag.objects import ObjectStatus
from timeagent.errors import Environment

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest


class Mishap(Enum):
    """What becomes of a put."""

    REPLY_LOST = "it is done, repeated, and refused"
    BUSY = "it is refused, and nobody's object is there"
    FAILED = "it is not done, and fails"
    DONE_BUT_FAILED = "it is done, and fails"


class MemoryBucket:
    """A Bucket in memory. ``mishaps``: what becomes of the next puts, in order."""

    def __init__(self, *mishaps: Mishap) -> None:
        self.objects: dict[str, bytes] = {}
        self.mishaps = list(mishaps)
        self.requests: list[str] = []
        self._lock = threading.Lock()

    def put(self, key: str, data: bytes) -> bool:
        self.requests.append(f"put {key}")
        mishap = self.mishaps.pop(0) if self.mishaps else None
        if mishap is Mishap.FAILED:
            raise Environment("store-failed", f"put {key}: planted")
        if mishap is Mishap.BUSY:
            return False
        with self._lock:
            made = key not in self.objects
            self.objects.setdefault(key, data)
        if mishap is Mishap.DONE_BUT_FAILED:
            raise Environment("store-failed", f"put {key}: planted")
        return made and mishap is not Mishap.REPLY_LOST

    def get(self, key: str, offset: int = 0, limit: int | None = None) -> bytes | None:
        self.requests.append(f"get {key}")
        data = self.objects.get(key)
        return None if data is None else data[offset : None if limit is None else offset + limit]

    def status(self, key: str) -> ObjectStatus | None:
        self.requests.append(f"look for {key}")
        return ObjectStatus(len(self.objects[key]), 2**62) if key in self.objects else None

    def names(self, directory: str) -> list[str]:
        self.requests.append(f"list {directory}")
        inside = f"{directory}/" if directory else ""
        return list({key[len(inside) :].partition("/")[0] for key in self.objects if key.startswith(inside)})

    def delete(self, key: str) -> None:
        self.requests.append(f"delete {key}")
        self.objects.pop(key, None)


class S3Server:
    """An S3 store with one bucket, in this process. What ``answers`` holds is answered to the next puts, in order."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.answers: list[str] = []
        """``503``: not done; ``done, 500``; ``done, dropped``: the connection ends; ``409``: not done, a conflict."""
        self.conditional = True
        """Whether it minds If-None-Match."""
        self.pause_s = 0.0
        """How long a put waits between the look whether there is an object, and its own."""
        self.requests: list[str] = []
        self.lock = threading.Lock()


def _handler(server: S3Server) -> type[BaseHTTPRequestHandler]:  # noqa: C901 - one method a verb
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Say nothing."""

        @property
        def key(self) -> str:
            return unquote(urlsplit(self.path).path).removeprefix("/bucket").removeprefix("/")

        def answer(self, status: int, body: bytes = b"", size: int | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body) if size is None else size))
            self.send_header("ETag", '"tag"')
            self.send_header("Last-Modified", formatdate(time.time(), usegmt=True))
            self.end_headers()
            self.wfile.write(body)

        def do_PUT(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"] or 0))
            with server.lock:
                server.requests.append(f"PUT {self.key}")
                planned = server.answers.pop(0) if server.answers else ""
                there = self.key in server.objects
            if planned in ("503", "409"):
                self.answer(int(planned))
                return
            if server.pause_s:
                time.sleep(server.pause_s)
            with server.lock:
                if not server.pause_s:
                    there = self.key in server.objects
                refused = there and server.conditional and self.headers["If-None-Match"] == "*"
                if not refused:
                    server.objects[self.key] = data
            if planned == "done, dropped":
                self.close_connection = True
                return
            self.answer(500 if planned == "done, 500" else 412 if refused else 200)

        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            with server.lock:
                server.requests.append(f"{self.command} {self.key or 'list'}")
                objects = dict(server.objects)
            if "list-type" in query:
                self.answer(200, _listing(objects, query.get("prefix", [""])[0], delimited="delimiter" in query))
                return
            data = objects.get(self.key)
            if data is None:
                self.answer(404)
            elif self.command == "HEAD":
                self.answer(200, size=len(data))
            elif "Range" in self.headers:
                start, _, end = self.headers["Range"].removeprefix("bytes=").partition("-")
                part = data[int(start) : int(end) + 1]
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{int(start) + len(part) - 1}/{len(data)}")
                self.send_header("Content-Length", str(len(part)))
                self.send_header("ETag", '"tag"')
                self.send_header("Last-Modified", formatdate(time.time(), usegmt=True))
                self.end_headers()
                self.wfile.write(part)
            else:
                self.answer(200, data)

        do_HEAD = do_GET  # noqa: N815 - the library's name

        def do_DELETE(self) -> None:
            with server.lock:
                server.requests.append(f"DELETE {self.key}")
                server.objects.pop(self.key, None)
            self.answer(204)

    return Handler


def _listing(objects: dict[str, bytes], prefix: str, *, delimited: bool) -> bytes:
    shown, inner = [], set()
    for key, data in sorted(objects.items()):
        if not key.startswith(prefix):
            continue
        head, slash, _ = key[len(prefix) :].partition("/")
        if delimited and slash:
            inner.add(f"{prefix}{head}/")
        else:
            shown.append(
                f"<Contents><Key>{escape(key)}</Key><Size>{len(data)}</Size><ETag>tag</ETag>"
                "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            )
    common = "".join(f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in sorted(inner))
    return (
        '<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated>' + "".join(shown) + common
    ).encode() + b"</ListBucketResult>"


@contextmanager
def s3_server(environment: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """Serve ``s3://bucket``; ``environment``: a monkeypatch, which is told where it is."""
    server = S3Server()
    listening = ThreadingHTTPServer(("127.0.0.1", 0), _handler(server))
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    environment.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{listening.server_port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        environment.setenv(name, "none")
    environment.setenv("AWS_REGION", "us-east-1")
    try:
        yield server
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()
