"""What a shard remembers of its domains and session leases: one dict of the newest states, and SQLite behind it.

The only module of the appliance that imports apsw. One writer, one thread; no policy. A turn reads and writes the dict.
The file, on tmpfs and empty at every start, takes the changes of some turns in one transaction, between two turns: a
lease that is taken and given back costs one row then, not two. Within a second everything is there, and anybody who may
open the file can read it meanwhile. What the file has too may leave the dict. Nothing here has to survive anything (a
shard's past is its ceiling chain), so journal and synchronisation are as light as ROLLBACK allows.

A full tmpfs is in no turn's way: what cannot be written stays in the dict, and new domains have to wait (``full``)
until there is room, or some that were next to each other are forgotten (``neighbours``): only by that whole pages
become free.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, Self

import apsw
import msgspec

from timeagent.canonical import encode
from timeagent.errors import Environment
from timeagent.units import Instant

from ..formats.lease import Holder
from .domain import Free, Kept, SessionRecord, State, Taken, expanded, hint_bytes
from .state_rows import StateRows

_log = logging.getLogger(__name__)

UNWRITTEN_MAX: Final = 12_288
"""How many states may be missing in the file when a turn begins."""

WRITE_MIN: Final = 256
"""How many of them are written at once, or a few more: a millisecond. Where the tmpfs is full as many are tried."""

SHARES: Final = 4
"""In how many writes all is in the file that was missing when the first of them began."""

RECENT_MAX: Final = 4096
"""How many states that the file has are kept in the dict too, at least, where there are so many."""

NEIGHBOURS_MAX: Final = 1024
"""How many neighbours are looked at together where the tmpfs is full: some hundred pages, some milliseconds."""

_PRAGMAS: Final = (
    "PRAGMA journal_mode = MEMORY",  # OFF would leave ROLLBACK undefined
    "PRAGMA synchronous = OFF",
    "PRAGMA cache_size = -24576",  # the file is in memory already
    "PRAGMA temp_store = MEMORY",
)
_SCHEMA: Final = """
-- One row for each domain. All but state repeat what is in it, for the few questions about many rows; expiry_ns and
-- fence are part of a state that is written in short.
CREATE TABLE entry (
    domain    TEXT PRIMARY KEY,
    kind      INTEGER NOT NULL,   -- 0 free, 1 some lease is tentative, 2 all are held; -1 forgotten
    expiry_ns INTEGER NOT NULL,   -- of the lease that expires first, of those with an expiry of their own; 0 or never
    latest_ns INTEGER,            -- of the lease that expires last, of the same; 0 without, null: the same one
    fence     INTEGER NOT NULL,
    floor_ns  INTEGER,            -- null: that of a domain of which nothing is known
    settle_ns INTEGER,            -- null: likewise
    state     BLOB NOT NULL
) WITHOUT ROWID, STRICT;

-- Who has leases under a number: a state in short names its holder so.
CREATE TABLE holder (
    number  INTEGER PRIMARY KEY,
    node    TEXT NOT NULL,
    process INTEGER NOT NULL,
    purpose TEXT NOT NULL,
    record  BLOB NOT NULL
) STRICT;

-- At most one row: what a run left that stopped for a restart (whole_shard.py), and whether somebody took it over.
CREATE TABLE stopped (
    said        BLOB NOT NULL,
    domains     INTEGER NOT NULL,
    leases      INTEGER NOT NULL,
    dead_leases INTEGER NOT NULL,
    hint_bytes  INTEGER NOT NULL,
    digest      BLOB NOT NULL,     -- of all rows of the other tables
    file        TEXT NOT NULL,     -- device and number of this file: a copy has another
    taken       INTEGER NOT NULL
) STRICT;

-- Session leases: how many leases are under each, and when they expire.
CREATE TABLE session (
    session_id BLOB PRIMARY KEY,
    expiry_ns  INTEGER NOT NULL,
    leases     INTEGER NOT NULL,
    record     BLOB NOT NULL
) WITHOUT ROWID, STRICT;
"""
_BESIDE: Final = """
-- What is missing in the file when a question about many rows is asked and the tmpfs is full. In the process's memory.
CREATE TEMP TABLE IF NOT EXISTS missing AS SELECT * FROM entry;
CREATE TEMP VIEW IF NOT EXISTS entry_or_missing AS
    SELECT * FROM missing UNION ALL SELECT * FROM entry WHERE domain NOT IN (SELECT domain FROM missing);
"""
_SELECT: Final = "SELECT domain, state, expiry_ns, fence FROM entry WHERE domain = ?"
_PUT: Final = "INSERT OR REPLACE INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_DELETE: Final = "DELETE FROM entry WHERE domain = ?"
_PUT_HOLDER: Final = "INSERT OR REPLACE INTO holder VALUES (?, ?, ?, ?, ?)"
_PUT_SESSION: Final = "INSERT OR REPLACE INTO session VALUES (?, ?, ?, ?)"
_DELETE_SESSION: Final = "DELETE FROM session WHERE session_id = ?"
_PUT_STOPPED: Final = "INSERT INTO stopped VALUES (?, ?, ?, ?, ?, ?, ?, 0)"
_FIND_STOPPED: Final = (
    "SELECT said, domains, leases, dead_leases, hint_bytes, digest, file FROM stopped WHERE taken = 0"
)
FORM: Final = 1
"""Of the file: another release takes over what has the same."""

READER_MS: Final = 2_000
"""How long whoever reads the file is waited for when a run stops, and when the next one takes over."""
type SQLiteValue = str | int | bytes | None

_ROOM: Final = "give the tmpfs more room, or remove what else lies there"
_MEANS: Final = "see whether this user may write there, has descriptors left (LimitNOFILE), and the tmpfs inodes"


class LeaseStore:
    """The states of a shard's domains. Blocks only for a local file on tmpfs; never touches the mount."""

    def __init__(self, path: Path, left: apsw.Connection | None = None) -> None:
        """Start empty: what an earlier run left under this path is deleted. Raises Environment: the tmpfs is full.

        ``left``: the same file, as an earlier run left it, which is gone on with (``taken_over``).
        """
        if left is None:
            for each in (path, path.with_name(path.name + "-journal"), path.with_name(path.name + "-wal")):
                each.unlink(missing_ok=True)
            left = self._opened(path)
        self._connection = left
        self.rows = StateRows()
        self.states: dict[str, Kept | None] = {}
        """The newest states, and some that the file has as well; None: nothing is remembered of the domain.

        Whoever writes here instead of calling ``put`` notes in ``changed`` what was there, and counts himself.
        """
        self.changed: dict[str, Kept | None] = {}
        """What the transaction under way has changed, as it was before."""
        self._unwritten: dict[str, None] = {}
        """What the file does not have yet, the longest missing first. Nothing of the transaction under way."""
        self._forgotten: dict[str, None] = {}
        """What the file may have still, and is not remembered. Of the same."""
        self._no_room = False
        """Whether there was no room when something was to be written last."""
        self._obstacle = ""
        """Why nothing could be written, when that was so last."""
        self._expanded: tuple[Kept | None, State | None] = None, None
        """What was read last: one request reads its domain two or three times."""
        self._share = self._session_share = self._shares_left = 0
        self._looked_to = ""
        self._neighbours: set[str] = set()
        self.sessions: dict[bytes, SessionRecord] = {}
        """The session leases. There are few: all of them stay here."""
        self.sessions_changed: dict[bytes, SessionRecord | None] = {}
        self._sessions_unwritten: dict[bytes, None] = {}
        """Those that the file does not have as they are, or has still, the longest missing first."""
        self._begun: dict[bytes, bytes] = {}
        self.noted: dict[str | bytes, None] | None = None
        """The domains and session leases that have changed, for whoever takes note of it (``turn_log.py``)."""
        self.domains = 0
        """How many domains are remembered."""
        self.leases = 0
        """How many leases are out."""
        self.dead_leases = 0
        """How many are in states still, whose session lease is over."""
        self.hint_bytes = 0
        """About how much of the states are hints."""

    @classmethod
    def taken_over(cls, path: Path) -> tuple[Self, bytes] | None:
        """Open what a run left that stopped for a restart, with what it said, and mark it as taken: it is found once.

        None: nothing is left, or not what was: begin with an empty one.
        """
        try:
            connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        except apsw.Error:
            return None
        return cls._resumed(path, connection, _identity_of(path))

    @classmethod
    def _resumed(cls, path: Path, connection: apsw.Connection, file: str) -> tuple[Self, bytes] | None:
        try:
            store = cls(path, connection)
            said = store._take(file)
        except apsw.BusyError:
            _log.warning("shard-file-busy path=%s: somebody reads it for longer than %d ms", path, READER_MS)
            said = None
        except (apsw.Error, msgspec.DecodeError) as problem:
            _log.warning("shard-file-damaged path=%s reason=%s", path, problem)
            said = None
        if said is None:
            connection.close()
            return None
        return store, said

    def _take(self, file: str) -> bytes | None:
        """Mark what was left as taken, and read it. None: there is nothing, or it is not what was left.

        Raises BusyError where somebody reads the file for too long: what was left cannot be marked then.
        """
        self._connection.set_busy_timeout(READER_MS)
        for pragma in _PRAGMAS:
            self._connection.execute(pragma)
        if self._connection.pragma("user_version") != FORM:
            return None
        self._connection.execute("BEGIN IMMEDIATE")
        rows = self._connection.execute(_FIND_STOPPED).fetchall()
        self._connection.execute("UPDATE stopped SET taken = 1")
        self._connection.execute("COMMIT")
        self._connection.set_busy_timeout(0)  # a turn waits for nobody
        if not rows:
            return None
        row: Any = rows[0]
        said, self.domains, self.leases, self.dead_leases, self.hint_bytes, digest, left = row
        if (digest, left) != (self._digest(), file):
            _log.warning("shard-file-differs path=%s", self._connection.filename)
            return None
        self._connection.execute(_BESIDE)
        for (raw,) in self._connection.execute("SELECT record FROM holder ORDER BY number"):
            self.rows.name(msgspec.msgpack.decode(raw, type=Holder))
        self.rows.named = len(self.rows.holders)
        for (raw,) in self._connection.execute("SELECT record FROM session"):
            session = msgspec.msgpack.decode(raw, type=SessionRecord)
            self.sessions[session.session_id] = session
            self._begun[session.begun_by] = session.session_id
        return said  # type: ignore[no-any-return]  # its column's type

    def leave(self, said: bytes) -> bool:
        """Write all that is missing in the file, and what is said about it: ``taken_over`` finds it once. For the end.

        False: the tmpfs is full or fails, somebody reads the file for too long, or removed it; nothing is left then.
        """
        self._connection.set_busy_timeout(READER_MS)
        numbers = self.domains, self.leases, self.dead_leases, self.hint_bytes
        try:
            written = (
                self._write(len(self._unwritten))
                and self._write_holders()
                and self._write_sessions(len(self._sessions_unwritten))
            )
            if written:
                with self._connection:
                    self._connection.execute("DELETE FROM stopped")
                    self._connection.execute(_PUT_STOPPED, (said, *numbers, self._digest(), self._file()))
        except (apsw.Error, OSError):
            return False
        return written

    def _file(self) -> str:
        return _identity_of(Path(self._connection.filename))

    def _digest(self) -> bytes:
        """Return the digest of all that is in the file but what is said of it."""
        found = hashlib.sha256()
        for table in ("entry", "holder", "session"):
            for row in self._connection.execute(f"SELECT * FROM {table} ORDER BY 1"):  # noqa: S608 - a table's name
                found.update(msgspec.msgpack.encode(row))
        return found.digest()

    @staticmethod
    def _opened(path: Path) -> apsw.Connection:
        with contextlib.ExitStack() as undo:
            try:
                connection = apsw.Connection(str(path))
                undo.callback(connection.close)
                for pragma in _PRAGMAS:
                    connection.execute(pragma)
                connection.execute(_SCHEMA)
                connection.execute(_BESIDE)
                connection.execute(f"PRAGMA user_version = {FORM}")
                if path.exists():
                    path.chmod(0o600)
            except apsw.FullError:
                raise Environment("store-full", f"{path} cannot grow: its tmpfs is full", hint=_ROOM) from None
            except apsw.Error as problem:
                raise Environment("store-failed", f"{path} cannot be made: {problem}", hint=_MEANS) from None
            undo.pop_all()
        return connection

    @property
    def full(self) -> bool:
        """Whether nothing may be remembered that is not yet: the file takes nothing, and too much is missing in it."""
        return self._no_room and len(self._unwritten) > UNWRITTEN_MAX

    def why_full(self) -> str:
        """Return what is to be said while it is full."""
        return (
            f"{self._connection.filename} {self._obstacle}, and {len(self._unwritten)} domains are to be written to it "
            f"({UNWRITTEN_MAX} may be missing there): no others are remembered; {_ROOM}"
        )

    def close(self) -> None:
        """Close the file. It is deleted by the next start, not now."""
        self._connection.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Do a turn: all of it counts or, when it raises, nothing. Writes before what has been missing for too long."""
        if (more := len(self._unwritten) - UNWRITTEN_MAX) > 0:
            self._write(WRITE_MIN if self._no_room else max(WRITE_MIN, more))
        self._trim()
        numbers = self.domains, self.leases, self.hint_bytes, self.dead_leases
        try:
            yield
        except BaseException:
            self.states.update(self.changed)
            for session_id, before in self.sessions_changed.items():
                self._restore_session(session_id, before)
            self.domains, self.leases, self.hint_bytes, self.dead_leases = numbers
            raise
        else:
            self._unwritten.update(dict.fromkeys(self.changed))
            for domain in [each for each in self.changed if self.states[each] is None]:
                del self._unwritten[domain]
                self._forgotten[domain] = None
            self._sessions_unwritten.update(dict.fromkeys(self.sessions_changed))
            if self.noted is not None:
                self.noted.update(dict.fromkeys((*self.changed, *self.sessions_changed)))
            for session_id in self.sessions_changed:
                if (session := self.sessions[session_id]).over is not None and not session.leases:
                    self._restore_session(session_id, None)
        finally:
            self.changed.clear()
            self.sessions_changed.clear()

    def _trim(self) -> None:
        """Drop from the dict what the file has, but for what came last."""
        if len(self.states) - len(self._unwritten) - len(self._forgotten) > 2 * RECENT_MAX:
            there = [each for each in self.states if each not in self._unwritten and each not in self._forgotten]
            for domain in there[:-RECENT_MAX]:
                del self.states[domain]

    # -- the file ------------------------------------------------------------------------------------------------------

    def write_some(self) -> None:
        """Write a share of what is missing in the file: called ten times a second, all is there within one."""
        if not self._shares_left:
            self._shares_left = SHARES
            self._share, self._session_share = (
                max(WRITE_MIN, -(-len(each) // SHARES)) for each in (self._unwritten, self._sessions_unwritten)
            )
        self._shares_left -= 1
        self._write(self._share)
        self._write_sessions(self._session_share)

    def _write(self, count: int) -> bool:
        """Delete what is forgotten; write so many of what has been missing for longest. False: there is no room."""
        self._no_room = not self._changed_file(_DELETE, [(each,) for each in self._forgotten])
        if self._no_room:
            return False
        self._forgotten.clear()
        some = sorted(islice(self._unwritten, count))  # neighbours share pages
        rows = [self._row(each) for each in some]
        self._write_holders()
        self._no_room = not self._changed_file(_PUT, rows)
        for domain, row in zip(some, rows, strict=True):
            del self._unwritten[domain]
            if self._no_room and not self._changed_file(_PUT, [row]):
                self._unwritten[domain] = None  # others are tried first the next time
        return not self._no_room

    def _write_holders(self) -> bool:
        """Write who has got a number. False: not now."""
        first, holders = self.rows.named, self.rows.holders[self.rows.named :]
        rows = [(n, each.node, each.process, each.purpose, encode(each)) for n, each in enumerate(holders, first)]
        if not self._changed_file(_PUT_HOLDER, rows):
            return False
        self.rows.named += len(rows)
        return True

    def _write_sessions(self, count: int) -> bool:
        """Write so many of the session leases that have been missing for longest, or delete them. False: not now."""
        some = list(islice(self._sessions_unwritten, count))
        there = [each for name in some if (each := self.sessions.get(name)) is not None]
        rows = [(each.session_id, each.expiry_ns, each.leases, encode(each)) for each in there]
        gone = [(each,) for each in some if each not in self.sessions]
        if not (self._changed_file(_PUT_SESSION, rows) and self._changed_file(_DELETE_SESSION, gone)):
            return False
        for name in some:
            del self._sessions_unwritten[name]
        return True

    def _changed_file(self, statement: str, rows: Sequence[tuple[SQLiteValue, ...]]) -> bool:
        """Change the file in one transaction. False: its tmpfs is full, or it is being read; nothing has changed."""
        if not rows:
            return True
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany(statement, rows)
            self._connection.execute("COMMIT")
        except (apsw.FullError, apsw.BusyError) as problem:
            full = isinstance(problem, apsw.FullError)
            self._obstacle = "cannot grow: its tmpfs is full" if full else "is being read by another process"
            if self._connection.in_transaction:  # it may have rolled back by itself already
                self._connection.execute("ROLLBACK")
            return False
        return True

    def _row(self, domain: str) -> tuple[SQLiteValue, ...]:
        """Return the row of what is missing in the file, without what the transaction under way has changed."""
        kept = self.changed[domain] if domain in self.changed else self.states[domain]
        assert kept is not None
        return domain, *self.rows.row(kept)

    def _ask(self, question: str, values: tuple[int | str, ...] = ()) -> apsw.Cursor:
        """Ask about all states as they were before the transaction under way: ``states`` stands for where they are."""
        where, missing = "entry", self._unwritten
        while missing or self._forgotten:
            if not self._write(WRITE_MIN if self._no_room else len(missing)):
                where = "entry_or_missing"
                rows = [*map(self._row, missing), *((each, -1, 0, 0, 0, 0, 0, b"") for each in self._forgotten)]
                self._connection.execute("DELETE FROM missing")
                self._connection.executemany("INSERT INTO missing VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
                break
        return self._connection.execute(question.replace("FROM states", f"FROM {where}"), values)

    # -- domains -------------------------------------------------------------------------------------------------------

    def look_up(self, domains: Iterable[str]) -> None:
        """Have these in the dict: read together what will be asked for one by one."""
        missing = {each for each in domains if each not in self.states}
        if missing:
            self.states.update(dict.fromkeys(missing))
            with self._connection:  # so that the file is locked once, and not for each of them
                found = self._connection.executemany(_SELECT, [(each,) for each in missing])
                for domain, raw, expiry, fence in found:
                    self.states[domain] = self.rows.state(raw, expiry, fence)

    def knows(self, domain: str) -> bool:
        self.look_up((domain,))
        return self.states[domain] is not None

    def read(self, domain: str) -> State | None:
        """Return a domain's state, or None where nothing is remembered."""
        self.look_up((domain,))
        kept = self.states[domain]
        if kept is not self._expanded[0]:
            self._expanded = kept, None if kept is None else expanded(kept)
        return self._expanded[1]

    def put(self, domain: str, state: State | None) -> None:
        """Remember a state, or forget a domain that is free. In a transaction."""
        before = self.read(domain)
        assert state is not None or isinstance(before, Free), f"{domain!r} is not free"
        self.changed.setdefault(domain, self.states[domain])
        self.states[domain] = state
        for each, sign in ((before, -1), (state, 1)):
            if each is not None:
                self.domains += sign
                self.leases += sign * (len(each.leases) if isinstance(each, Taken) else 0)
                self.hint_bytes += sign * hint_bytes(each)

    def past(self, instant: Instant, limit: int) -> list[str]:
        """Return domains with a lease that expires before an instant, the longest over first."""
        question = "SELECT domain FROM states WHERE kind > 0 AND expiry_ns < ? ORDER BY expiry_ns LIMIT ?"
        return [row[0] for row in self._ask(question, (instant, limit))]

    def tentative(self) -> list[str]:
        return [row[0] for row in self._ask("SELECT domain FROM states WHERE kind = 1")]

    def idle(self, instant: Instant, limit: int) -> list[str]:
        """Return free domains all of whose numbers lie before an instant, the longest idle first."""
        question = (
            "SELECT domain, max(fence, coalesce(floor_ns, ?), coalesce(settle_ns, ?)) AS newest"
            " FROM states WHERE kind = 0 AND newest < ? ORDER BY newest, domain LIMIT ?"
        )
        known = self.rows.defaults.memory
        return [row[0] for row in self._ask(question, (known.floor_ns, known.settle_to_ns, instant, limit))]

    def neighbours(self) -> list[str]:
        """Return the next domains in order, behind those of the call before, and these; after the last, the first."""
        question, behind = "SELECT domain FROM entry WHERE domain > ? ORDER BY domain LIMIT ?", self._looked_to
        found = {row[0] for row in self._connection.execute(question, (behind, NEIGHBOURS_MAX))}
        self._looked_to = until = max(found) if len(found) == NEIGHBOURS_MAX else ""
        found.update(each for each in self._unwritten if behind < each and (each <= until or not until))
        before, self._neighbours = self._neighbours, found
        return sorted(before | found)

    def remembered(self) -> list[str]:
        return [row[0] for row in self._ask("SELECT domain FROM states WHERE kind >= 0")]

    def leased_after(self, domain: str, limit: int) -> list[str]:
        """Return the next leased domains behind one, in order."""
        question = "SELECT domain FROM states WHERE kind > 0 AND domain > ? ORDER BY domain LIMIT ?"
        return [row[0] for row in self._ask(question, (domain, limit))]

    def latest_expiry(self) -> Instant | None:
        """Return the latest expiry of all leases, or None where none is out."""
        question = "SELECT coalesce(max(coalesce(latest_ns, expiry_ns)), 0) FROM states WHERE kind > 0"
        own = self._ask(question).fetchone()
        assert own is not None
        under = (each.expiry_ns for each in self.sessions.values() if each.leases and each.over is None)
        return max(own[0], *under, 0) or None

    def highest(self) -> tuple[int, Instant, Instant]:
        """Return the highest fence, floor and settle_to of all domains; 0 where there are none.

        What the end of session leases brings is in it, be it in the states of their leases already or not.
        """
        known = self.rows.defaults.memory
        question = (
            "SELECT coalesce(max(fence), 0), coalesce(max(coalesce(floor_ns, ?)), 0), "
            "coalesce(max(coalesce(settle_ns, ?)), 0) FROM states"
        )
        row = self._ask(question, (known.floor_ns, known.settle_to_ns)).fetchone()
        assert row is not None
        brought = [each.brings for each in self.sessions.values()]
        return row[0], max(row[1], *(each[0] for each in brought), 0), max(row[2], *(each[1] for each in brought), 0)

    def page(self, after: str, leases_max: int, only: str | None = None) -> tuple[list[tuple[str, Taken]], bool]:
        """Return leased domains in their order, from behind one, until there are enough leases; and whether all.

        A domain comes with all of its leases. ``only``: this one, and no other.
        """
        if only is not None:
            there = self.read(only)
            return ([(only, there)] if isinstance(there, Taken) else []), False
        found: list[tuple[str, Taken]] = []
        leases = 0
        question = (
            "SELECT domain, state, expiry_ns, fence FROM states WHERE kind > 0 AND domain > ? ORDER BY domain LIMIT ?"
        )
        for domain, raw, expiry, fence in self._ask(question, (after, leases_max + 1)):
            if leases >= leases_max:
                return found, True
            state = expanded(self.rows.state(raw, expiry, fence))
            assert isinstance(state, Taken)
            found.append((domain, state))
            leases += len(state.leases)
        return found, False

    def clear(self) -> None:
        """Forget everything. Between transactions."""
        self._connection.execute("DELETE FROM entry; DELETE FROM holder; DELETE FROM session; DELETE FROM stopped")
        for each in (
            self.states,
            self._unwritten,
            self._forgotten,
            self.sessions,
            self._begun,
            self._sessions_unwritten,
        ):
            each.clear()
        self.rows = StateRows()
        self.domains = self.leases = self.hint_bytes = self.dead_leases = 0

    # -- session leases ------------------------------------------------------------------------------------------------

    def session_begun_by(self, request_id: bytes) -> SessionRecord | None:
        session_id = self._begun.get(request_id)
        return None if session_id is None else self.sessions[session_id]

    def put_session(self, session: SessionRecord) -> None:
        """Remember a session lease as it is now. In a transaction, which forgets one that is over without leases.

        The leases of one that is over are not out any more, though they are in states still.
        """
        before = self.sessions.get(session.session_id)
        self.sessions_changed.setdefault(session.session_id, before)
        self.sessions[session.session_id] = session
        self._begun[session.begun_by] = session.session_id
        for each, sign in ((before, -1), (session, 1)):
            if each is not None and each.over is not None:
                self.leases -= sign * each.leases
                self.dead_leases += sign * each.leases

    def _restore_session(self, session_id: bytes, before: SessionRecord | None) -> None:
        if before is not None:
            self.sessions[session_id] = before
        else:
            del self._begun[self.sessions.pop(session_id).begun_by]


def _identity_of(path: Path) -> str:
    """Return what tells a file from a copy of it."""
    status = path.stat()
    return f"{status.st_dev}:{status.st_ino}"
