"""Where a shard keeps its domains: SQLite on tmpfs, empty at every start. Reads, compares and swaps; no policy.

The only module of the appliance that imports apsw. One writer, one thread. Nothing here has to survive anything: a
shard's past is its ceiling chain, so journal and synchronisation are as light as ROLLBACK allows.
"""

from __future__ import annotations

import contextlib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final

import apsw
import msgspec

from timeagent.errors import Environment

from ..formats.lease import Phase
from .domain import Free, Memory, State, Taken, hint_bytes
from .sessionstate import Session

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from timeagent.units import Instant

_FREE, _TENTATIVE, _HELD = range(3)
_PRAGMAS: Final = (
    "PRAGMA journal_mode = MEMORY",  # OFF would leave ROLLBACK undefined
    "PRAGMA synchronous = OFF",
    "PRAGMA locking_mode = EXCLUSIVE",
    "PRAGMA cache_size = -65536",
    "PRAGMA temp_store = MEMORY",
)
_SELECT: Final = "SELECT state, revision FROM entry WHERE domain = ?"
_INSERT: Final = "INSERT INTO entry VALUES (?, 1, ?, ?, ?, ?, ?, ?, ?, ?)"
_NEVER: Final = 2**63 - 1
_PUT_SESSION: Final = "INSERT OR REPLACE INTO session VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_SWAP: Final = (
    "UPDATE entry SET revision = revision + 1, kind = ?, expiry_ns = ?, latest_ns = ?, fence = ?, floor_ns = ?,"
    " settle_ns = ?, newest_ns = ?, state = ? WHERE domain = ? AND revision = ?"
)

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Free | Taken)
_sessions: Final = msgspec.msgpack.Decoder(Session)


@cache
def _schema() -> str:
    return files(__package__).joinpath("schema.sql").read_text(encoding="utf-8")


class LeaseStore:
    """The states of a shard's domains. Blocks only for a local file on tmpfs; never touches the mount."""

    def __init__(self, path: Path) -> None:
        """Start empty: what an earlier run left under this path is deleted."""
        for left in (path, path.with_name(path.name + "-journal"), path.with_name(path.name + "-wal")):
            left.unlink(missing_ok=True)
        self._connection = self._opened(path)
        self._execute = self._connection.execute
        self.domains = 0
        """How many domains are remembered."""
        self.leases = 0
        """How many leases are out."""
        self.dead_leases = 0
        """How many are in states still, whose session lease is over."""
        self.sessions = 0
        """How many session leases are remembered."""
        self.hint_bytes = 0
        """About how much of the states are hints."""

    @staticmethod
    def _opened(path: Path) -> apsw.Connection:
        """Return a connection to an empty store in a new file."""
        connection = apsw.Connection(str(path))
        for pragma in _PRAGMAS:
            connection.execute(pragma)
        connection.execute(_schema())
        return connection

    def close(self) -> None:
        """Close the file. It is deleted by the next start, not now."""
        self._connection.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Do a turn in one transaction: all of it, or, when it raises, nothing.

        Raises Environment where the tmpfs is full.
        """
        numbers = self.domains, self.leases, self.hint_bytes, self.dead_leases, self.sessions
        self._execute("BEGIN IMMEDIATE")
        try:
            yield
            self._execute("COMMIT")
        except BaseException as problem:
            if self._connection.in_transaction:  # a full file has rolled back by itself already
                self._execute("ROLLBACK")
            self.domains, self.leases, self.hint_bytes, self.dead_leases, self.sessions = numbers
            if isinstance(problem, apsw.FullError):
                raise Environment(
                    "store-full",
                    f"{self._connection.filename} cannot grow: its tmpfs is full",
                    hint="give the tmpfs more room, or remove what else lies there",
                ) from None
            raise

    def read(self, domain: str) -> tuple[State, int] | None:
        """Return a domain's state and its revision, or None where nothing is remembered."""
        row = self._execute(_SELECT, (domain,)).fetchone()
        if row is None:
            return None
        return _decoder.decode(row[0]), row[1]

    def insert(self, domain: str, state: State) -> None:
        """Remember a domain that was not remembered."""
        self._execute(_INSERT, (domain, *_columns(state)))
        self.domains += 1
        self.leases += _leases_in(state)
        self.hint_bytes += hint_bytes(state)

    def swap(self, domain: str, revision: int, before: State, state: State) -> None:
        """Replace the state that was read under this revision. It must still be that one: there is one writer."""
        self._execute(_SWAP, (*_columns(state), domain, revision))
        assert self._connection.changes() == 1, f"{domain!r} changed under its only writer"
        self.leases += _leases_in(state) - _leases_in(before)
        self.hint_bytes += hint_bytes(state) - hint_bytes(before)

    def past(self, instant: Instant, limit: int) -> list[str]:
        """Return domains with a lease that expires before an instant, the longest over first."""
        question = "SELECT domain FROM entry WHERE kind <> 0 AND expiry_ns < ? ORDER BY expiry_ns LIMIT ?"
        return [row[0] for row in self._execute(question, (instant, limit))]

    def tentative(self, limit: int) -> list[str]:
        """Return domains with a tentative lease."""
        return [row[0] for row in self._execute("SELECT domain FROM entry WHERE kind = 1 LIMIT ?", (limit,))]

    def idle(self, instant: Instant, limit: int) -> list[tuple[str, Memory]]:
        """Return free domains all of whose numbers lie before an instant, the longest idle first."""
        question = "SELECT domain, state FROM entry WHERE kind = 0 AND newest_ns < ? ORDER BY newest_ns, domain LIMIT ?"
        return [(row[0], _decoder.decode(row[1]).memory) for row in self._execute(question, (instant, limit))]

    def forget(self, domain: str, memory: Memory) -> None:
        """Delete a free domain, of which this is the memory."""
        self._execute("DELETE FROM entry WHERE domain = ? AND kind = 0", (domain,))
        assert self._connection.changes() == 1, f"{domain!r} is not free"
        self.domains -= 1
        self.hint_bytes -= memory.hints.bytes

    def clear(self) -> None:
        """Forget everything."""
        self._execute("DELETE FROM entry")
        self._execute("DELETE FROM session")
        self.domains = self.leases = self.hint_bytes = self.dead_leases = self.sessions = 0

    def latest_expiry(self) -> Instant | None:
        """Return the latest expiry of all leases, or None where none is out."""
        row = self._execute(
            "SELECT max((SELECT coalesce(max(latest_ns), 0) FROM entry WHERE kind <> 0),"
            " (SELECT coalesce(max(expiry_ns), 0) FROM session WHERE leases > 0 AND NOT over))"
        ).fetchone()
        return (row[0] if row else None) or None

    def highest(self) -> tuple[int, Instant, Instant]:
        """Return the highest fence, floor and settle_to of all domains; 0 where there are none.

        What the end of session leases brings is in it, be it in the states of their leases already or not.
        """
        row = self._execute(
            "SELECT coalesce(max(fence), 0), coalesce(max(floor_ns), 0), coalesce(max(settle_ns), 0) FROM"
            " (SELECT fence, floor_ns, settle_ns FROM entry UNION ALL SELECT 0, floor_ns, settle_ns FROM session)"
        ).fetchone()
        assert row is not None
        return row[0], row[1], row[2]

    # -- session leases ------------------------------------------------------------------------------------------------

    def session(self, session_id: bytes) -> Session | None:
        """Return a session lease."""
        row = self._execute("SELECT state FROM session WHERE session_id = ?", (session_id,)).fetchone()
        return _sessions.decode(row[0]) if row else None

    def session_begun_by(self, request_id: bytes) -> Session | None:
        """Return the session lease that a request got."""
        row = self._execute("SELECT state FROM session WHERE request_id = ?", (request_id,)).fetchone()
        return _sessions.decode(row[0]) if row else None

    def put_session(self, before: Session | None, after: Session) -> None:
        """Write a session lease, as it was read (None: it is new) and as it is. Forget one that is over without leases.

        The leases of one that is over are not out any more, though they are in states still.
        """
        dead = after.leases if after.over is not None else 0
        more = dead - (before.leases if before is not None and before.over is not None else 0)
        self.leases -= more
        self.dead_leases += more
        self.sessions += before is None
        if after.over is not None and not after.leases:
            self._execute("DELETE FROM session WHERE session_id = ?", (after.session_id,))
            self.sessions -= 1
            return
        numbers = after.expiry_ns, after.leases, after.over is not None, *after.brings
        self._execute(_PUT_SESSION, (after.session_id, after.begun_by, *numbers, _encoder.encode(after)))

    def sessions_past(self, instant: Instant, limit: int) -> list[bytes]:
        """Return session leases that expire before an instant and are not over, the longest past first."""
        question = "SELECT session_id FROM session WHERE NOT over AND expiry_ns < ? ORDER BY expiry_ns LIMIT ?"
        return [row[0] for row in self._execute(question, (instant, limit))]

    def leased_after(self, domain: str, limit: int) -> list[str]:
        """Return the next leased domains behind one, in order."""
        question = "SELECT domain FROM entry WHERE kind <> 0 AND domain > ? ORDER BY domain LIMIT ?"
        return [row[0] for row in self._execute(question, (domain, limit))]

    # -- for people ----------------------------------------------------------------------------------------------------

    def page(self, after: str, leases_max: int, only: str | None = None) -> tuple[list[tuple[str, Taken]], bool]:
        """Return leased domains in their order, from behind one, until there are enough leases; and whether all.

        A domain comes with all of its leases. ``only``: this one, and no other.
        """
        if only is not None:
            there = self.read(only)
            return ([(only, there[0])] if there is not None and isinstance(there[0], Taken) else []), False
        question = "SELECT domain, state FROM entry WHERE kind <> 0 AND domain > ? ORDER BY domain LIMIT ?"
        found: list[tuple[str, Taken]] = []
        leases = 0
        for domain, raw in self._execute(question, (after, leases_max + 1)):
            if leases >= leases_max:
                return found, True
            state = _decoder.decode(raw)
            assert isinstance(state, Taken)
            found.append((domain, state))
            leases += len(state.leases)
        return found, False


def _leases_in(state: State) -> int:
    return 0 if isinstance(state, Free) else len(state.leases)


def _columns(state: State) -> tuple[int, Instant, Instant, int, Instant, Instant, int, bytes]:
    memory = state.memory
    newest = max(memory.fence, memory.floor_ns, memory.settle_to_ns)
    kind, expiry, latest = _FREE, 0, 0
    if isinstance(state, Taken):
        leases = state.leases
        kind = _HELD if all(each.phase is Phase.HELD for each in leases) else _TENTATIVE
        expiries = [each.expiry_ns for each in leases if each.session_id is None]
        expiry, latest = (min(expiries), max(expiries)) if expiries else (_NEVER, 0)
    numbers = memory.fence, memory.floor_ns, memory.settle_to_ns
    return kind, expiry, latest, *numbers, newest, _encoder.encode(state)
