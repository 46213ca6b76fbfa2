"""etcd as the key-value store of a shard's log (``turn_log.KeyValues``), by its JSON gateway: HTTP, and no library.

All instances of one etcd answer alike; the next one is asked when one does not answer. Whatever is not an answer leaves
open what was done: only questions are repeated here. What etcd says in base64 and in texts, msgspec reads and writes.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final
from urllib.parse import urlsplit

import msgspec

from timeagent.errors import BadConfiguration, ShardUnavailable
from timeagent.units import SECOND, Span

from .turn_log import Pair

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
_OK: Final = 200
_TXN, _RANGE, _STATUS = "/v3/kv/txn", "/v3/kv/range", "/v3/maintenance/status"
_SAID_MAX: Final = 200


class _Value(msgspec.Struct):
    key: bytes
    mod_revision: int
    value: bytes = b""


class _Range(msgspec.Struct):
    kvs: list[_Value] = []

    def first(self) -> tuple[int, bytes]:
        """Return revision and value of the one key that was asked for; 0 and nothing where it is not there."""
        return (self.kvs[0].mod_revision, self.kvs[0].value) if self.kvs else (0, b"")


class _Step(msgspec.Struct):
    response_range: _Range = msgspec.field(default_factory=_Range)


class _Done(msgspec.Struct):
    succeeded: bool = False
    responses: list[_Step] = []


class _Status(msgspec.Struct):
    version: str = "?"
    errors: list[str] = []


class Etcd:
    """One etcd. One call at a time; each waits so long for each part of an answer, a question once an instance."""

    def __init__(
        self, endpoints: Sequence[str], timeout_ns: Span, *, ca: str = "", cert: str = "", key: str = ""
    ) -> None:
        """Touch no network. ``endpoints``: as ``http://10.0.0.1:2379``; ``ca``, ``cert``, ``key``: files of https.

        Raises BadConfiguration.
        """
        self._endpoints = list(endpoints)
        self._timeout_s = timeout_ns / SECOND
        self._context: ssl.SSLContext | None = None
        if any(each.startswith("https:") for each in endpoints):
            try:
                self._context = ssl.create_default_context(cafile=ca or None)
                if cert:
                    self._context.load_cert_chain(cert, key or None)
            except (OSError, ssl.SSLError) as problem:
                why = f"etcd: {ca or cert or key} cannot be used: {problem}"
                raise BadConfiguration("bad-settings", why, hint="ca, cert and key of [etcd] are PEM files") from None
        self._connection: HTTPConnection | None = None

    def commit(
        self, guard: bytes, revision: int, puts: Sequence[Pair], deletes: Sequence[Pair]
    ) -> tuple[bool, int, bytes]:
        """Do a transaction. See ``KeyValues``."""
        done = [
            *({"requestDeleteRange": {"key": first, "range_end": end}} for first, end in deletes),
            *({"requestPut": {"key": key, "value": value}} for key, value in puts),
        ]
        answer = self._call(
            _TXN,
            {
                "compare": [{"key": guard, "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}],
                "success": [*done, {"requestRange": {"key": guard}}],
                "failure": [{"requestRange": {"key": guard}}],
            },
            _Done,
        )
        if not answer.responses:
            raise self._unanswered(_TXN, "its answer lacks responses")
        return answer.succeeded, *answer.responses[-1].response_range.first()

    def read(self, first: bytes, end: bytes, limit: int) -> list[Pair]:
        """Read a range. See ``KeyValues``."""
        found = self._found({"key": first, "range_end": end, "limit": str(limit)})
        return [(each.key, each.value) for each in found.kvs]

    def revision(self, key: bytes) -> tuple[int, bytes]:
        """Read a key. See ``KeyValues``."""
        return self._found({"key": key}).first()

    def version(self) -> str:
        """Return which release answers. Raises ShardUnavailable where none does, or it takes no more writes."""
        said = self._call(_STATUS, {}, _Status)
        if said.errors:
            raise self._unanswered(_STATUS, f"it says {', '.join(said.errors)}")
        return said.version

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _found(self, question: Mapping[str, object]) -> _Range:
        """Ask one instance after the other, each once: who only reads changes nothing by asking again."""
        for _ in self._endpoints[1:]:
            with contextlib.suppress(ShardUnavailable):
                return self._call(_RANGE, question, _Range)
        return self._call(_RANGE, question, _Range)

    def _call[T](self, path: str, question: Mapping[str, object], kind: type[T]) -> T:
        """Ask the instance that answered last. Raises ShardUnavailable: it may have been done, or may be yet."""
        try:
            if self._connection is None:
                self._connection = self._connect()
            headers = {"Content-Type": "application/json"}
            self._connection.request("POST", path, msgspec.json.encode(question), headers)
            response = self._connection.getresponse()
            body = response.read(ANSWER_BYTES_MAX)
            if response.status != _OK:
                raise self._unanswered(path, f"{response.status} {body[:_SAID_MAX].decode(errors='replace')}")
            return msgspec.json.decode(body, type=kind, strict=False)  # its integers of 64 bits are texts
        except (OSError, HTTPException, UnicodeError, msgspec.DecodeError) as problem:
            raise self._unanswered(path, f"{type(problem).__name__} {problem}".strip()) from None

    def _connect(self) -> HTTPConnection:
        where = urlsplit(self._endpoints[0])
        host, port = where.hostname or "", where.port or 2379
        if where.scheme == "https":
            return HTTPSConnection(host, port, timeout=self._timeout_s, context=self._context)
        return HTTPConnection(host, port, timeout=self._timeout_s)

    def _unanswered(self, path: str, why: str) -> ShardUnavailable:
        """Leave the connection, and turn to the next instance."""
        endpoint = self._endpoints.pop(0)
        self._endpoints.append(endpoint)
        with contextlib.suppress(OSError):
            self.close()
        return ShardUnavailable(
            "etcd-unanswered",
            f"etcd at {endpoint}{path}: {why}",
            hint="is it up, does it have a leader and room? etcdctl endpoint status; endpoints stand in node.toml",
        )
