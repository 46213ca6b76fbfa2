"""etcd as the key-value store of a shard's log (``turn_log.KeyValues``), by its JSON gateway: HTTP, and no library.

All instances of one etcd answer alike; the next one is asked when one does not answer. Whatever is not an answer leaves
open what was done: nothing is repeated here.
"""

from __future__ import annotations

import contextlib
import ssl
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from timeagent.errors import BadConfiguration, ShardUnavailable
from timeagent.units import SECOND, Span

from .turn_log import Pair

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
_OK: Final = 200
_SAID_MAX: Final = 200


class Etcd:
    """One etcd. One call at a time; each blocks for as long as is given, at most."""

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
            *({"requestDeleteRange": {"key": _text(first), "range_end": _text(end)}} for first, end in deletes),
            *({"requestPut": {"key": _text(key), "value": _text(value)}} for key, value in puts),
        ]
        answer = self._call(
            "/v3/kv/txn",
            {
                "compare": [{"key": _text(guard), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}],
                "success": [*done, {"requestRange": {"key": _text(guard)}}],
                "failure": [{"requestRange": {"key": _text(guard)}}],
            },
        )
        try:
            return bool(answer.get("succeeded")), *_first(answer["responses"][-1]["response_range"])
        except (KeyError, IndexError, TypeError, ValueError) as problem:
            raise self._unanswered("/v3/kv/txn", f"its answer lacks {problem}") from None

    def read(self, first: bytes, end: bytes, limit: int) -> list[Pair]:
        """Read a range. See ``KeyValues``."""
        answer = self._call("/v3/kv/range", {"key": _text(first), "range_end": _text(end), "limit": str(limit)})
        return [(b64decode(each["key"]), b64decode(each.get("value", ""))) for each in answer.get("kvs", ())]

    def revision(self, key: bytes) -> tuple[int, bytes]:
        """Read a key. See ``KeyValues``."""
        return _first(self._call("/v3/kv/range", {"key": _text(key)}))

    def version(self) -> str:
        """Return which release answers. Raises ShardUnavailable where none does, or it takes no more writes."""
        said = self._call("/v3/maintenance/status", {})
        if said.get("errors"):
            raise self._unanswered("/v3/maintenance/status", f"it says {', '.join(said['errors'])}")
        return str(said.get("version", "?"))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _call(self, path: str, question: Mapping[str, object]) -> dict[str, Any]:
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
            return msgspec.json.decode(body, type=dict[str, Any])
        except (OSError, HTTPException, msgspec.DecodeError) as problem:
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


def _text(data: bytes) -> str:
    return b64encode(data).decode()


def _first(answer: Mapping[str, Any]) -> tuple[int, bytes]:
    """Return revision and value of the one key that was asked for; 0 and nothing where it is not there."""
    found = answer.get("kvs", ())
    return (int(found[0]["mod_revision"]), b64decode(found[0].get("value", ""))) if found else (0, b"")
