"""Stores for the log of a shard's turns: in memory, with replies that go missing, and behind HTTP as etcd's gateway."""

from __future__ import annotations

import contextlib
from base64 import b64decode, b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import msgspec

from appliance.lease.turn_log import Etcd
from timeagent.errors import ShardUnavailable
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from appliance.lease.turn_log import Pair

LOST, DONE, LATE = "lost", "done", "late"
"""What happens to a transaction: not done; done, and not answered; not answered, and done when told to be."""


class MemoryKeyValues:
    """A KeyValues in memory. ``script``: what happens to the next transactions; None: they are done and answered."""

    def __init__(self) -> None:
        self.pairs: dict[bytes, tuple[int, bytes]] = {}
        self.newest = 0
        self.script: list[str | None] = []
        self.late: list[tuple[bytes, int, list[Pair], list[Pair]]] = []
        self.commits = 0
        self.down = False

    def _up(self) -> None:
        if self.down:
            raise ShardUnavailable("planted", "the store is down")

    def commit(
        self, guard: bytes, revision: int, puts: Sequence[Pair], deletes: Sequence[Pair]
    ) -> tuple[bool, int, bytes]:
        self._up()
        self.commits += 1
        fault = self.script.pop(0) if self.script else None
        if fault == LATE:
            self.late.append((guard, revision, list(puts), list(deletes)))
        if fault in {LOST, LATE}:
            raise ShardUnavailable("planted", "not answered")
        done = self.do(guard, revision, puts, deletes)
        if fault == DONE:
            raise ShardUnavailable("planted", "done, and not answered")
        return done, *self.pairs.get(guard, (0, b""))

    def do(self, guard: bytes, revision: int, puts: Sequence[Pair], deletes: Sequence[Pair]) -> bool:
        if self.pairs.get(guard, (0, b""))[0] != revision:
            return False
        for first, end in deletes:
            for key in [each for each in self.pairs if first <= each < end]:
                del self.pairs[key]
        self.newest += 1
        assert len({key for key, _ in puts}) == len(puts), "etcd takes each key once"
        self.pairs.update({key: (self.newest, value) for key, value in puts})
        return True

    def read(self, first: bytes, end: bytes, limit: int) -> list[Pair]:
        self._up()
        return [(key, self.pairs[key][1]) for key in sorted(self.pairs) if first <= key < end][:limit]

    def revision(self, key: bytes) -> tuple[int, bytes]:
        self._up()
        return self.pairs.get(key, (0, b""))

    def close(self) -> None:
        pass


class Gateway:
    """A server that speaks as much of etcd's JSON gateway as is asked of it. ``script``: for the next questions.

    A number: that status, with nothing done; "slow": nothing is said; "cut": done, and the connection closed.
    """

    def __init__(self) -> None:
        self.store = MemoryKeyValues()
        self.script: list[int | str | None] = []
        self.asked: list[str] = []
        self.over = Event()
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                question = msgspec.json.decode(self.rfile.read(int(self.headers["Content-Length"])))
                gateway.asked.append(self.path)
                fault = gateway.script.pop(0) if gateway.script else None
                if fault == "slow":
                    gateway.over.wait(5)
                    self.close_connection = True
                    return
                if isinstance(fault, int):
                    self._say(fault, {"error": "etcdserver: request timed out", "code": 14})
                    return
                answer = gateway.answer(self.path, question)
                if fault == "cut":
                    self.close_connection = True
                    return
                self._say(200, answer)

            def _say(self, status: int, answer: dict[str, Any]) -> None:
                body = msgspec.json.encode(answer)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self.over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _range(self, question: dict[str, Any]) -> dict[str, Any]:
        first = b64decode(question["key"])
        end = b64decode(question["range_end"]) if "range_end" in question else first + b"\0"
        pairs = self.store.read(first, end, int(question.get("limit", 0)) or 10**9)
        if not pairs:
            return {"header": {}}
        kvs = [
            {"key": _text(key), "mod_revision": str(self.store.pairs[key][0]), "value": _text(value)}
            for key, value in pairs
        ]
        return {"header": {}, "kvs": kvs, "count": str(len(kvs))}

    def answer(self, path: str, question: dict[str, Any]) -> dict[str, Any]:
        if path == "/v3/kv/range":
            return self._range(question)
        if path == "/v3/maintenance/status":
            return {"version": "3.0.fake"}
        (compare,) = question["compare"]
        assert (compare["target"], compare["result"]) == ("MOD", "EQUAL")
        guard = b64decode(compare["key"])
        puts, deletes = [], []
        *changes, last = question["success"]
        for each in changes:
            if (put := each.get("requestPut")) is not None:
                puts.append((b64decode(put["key"]), b64decode(put["value"])))
            else:
                gone = each["requestDeleteRange"]
                deletes.append((b64decode(gone["key"]), b64decode(gone["range_end"])))
        done = self.store.do(guard, int(compare["mod_revision"]), puts, deletes)
        looks = [last] if done else question["failure"]
        found = [{"response_range": self._range(each["requestRange"])} for each in looks]
        head: list[dict[str, Any]] = [{"response_put": {}}] * len(changes) if done else []
        return {"header": {}, **({"succeeded": True} if done else {}), "responses": [*head, *found]}


def _text(data: bytes) -> str:
    return b64encode(data).decode()


@contextlib.contextmanager
def gateway() -> Iterator[Gateway]:
    each = Gateway()
    try:
        yield each
    finally:
        each.close()


@contextlib.contextmanager
def reached(*endpoints: str, timeout_ns: int = 5 * SECOND) -> Iterator[Etcd]:
    store = Etcd(endpoints, timeout_ns)
    try:
        yield store
    finally:
        store.close()
