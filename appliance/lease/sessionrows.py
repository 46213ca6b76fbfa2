"""The rows of a shard's session leases, in the store's transactions: in memory, in no file, as they are few."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from .sessionstate import Session

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from timeagent.units import Instant

_PUT: Final = "INSERT OR REPLACE INTO session VALUES (?, ?, ?, ?, ?, ?, ?, ?)"

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Session)


class SessionRows:
    """The table ``session`` of schema.sql. Whoever writes here sees to the transaction."""

    def __init__(self, execute: Callable[..., Any]) -> None:
        """Take the connection's ``execute``."""
        self._execute = execute

    def find(self, session_id: bytes) -> Session | None:
        """Return a session lease."""
        row = self._execute("SELECT state FROM session WHERE session_id = ?", (session_id,)).fetchone()
        return _decoder.decode(row[0]) if row else None

    def begun_by(self, request_id: bytes) -> Session | None:
        """Return the session lease that a request got."""
        row = self._execute("SELECT state FROM session WHERE request_id = ?", (request_id,)).fetchone()
        return _decoder.decode(row[0]) if row else None

    def put(self, session: Session) -> bool:
        """Write a session lease as it is; False: it is over, without leases, and is forgotten."""
        if session.over is not None and not session.leases:
            self._execute("DELETE FROM session WHERE session_id = ?", (session.session_id,))
            return False
        numbers = session.expiry_ns, session.leases, session.over is not None, *session.brings
        self._execute(_PUT, (session.session_id, session.begun_by, *numbers, _encoder.encode(session)))
        return True

    def past(self, instant: Instant, limit: int) -> list[bytes]:
        """Return session leases that expire before an instant and are not over, the longest past first."""
        question = "SELECT session_id FROM session WHERE NOT over AND expiry_ns < ? ORDER BY expiry_ns LIMIT ?"
        return [row[0] for row in self._execute(question, (instant, limit))]

    def latest_expiry(self) -> Instant:
        """Return the latest expiry of those under which leases are out; 0 where there are none."""
        question = "SELECT coalesce(max(expiry_ns), 0) FROM session WHERE leases > 0 AND NOT over"
        latest: Instant = self._execute(question).fetchone()[0]
        return latest
