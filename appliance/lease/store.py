"""What a shard remembers of its domains and session leases: one dict of the newest states, and SQLite behind it.

The only module of the appliance that imports apsw. One writer, one thread; no policy. A turn reads and writes the dict.
The file, on tmpfs and empty at every start, takes the changes of some turns in one transaction, between two turns: a
lease that is taken and given back costs one row then, not two. What the file has too may leave the dict. Nothing here
has to survive anything (a shard's past is its ceiling chain), so journal and synchronisation are as light as ROLLBACK
allows.

A full tmpfs is in no turn's way: what cannot be written stays in the dict, and new domains have to wait (``full``)
until there is room, or some that were next to each other are forgotten (``neighbours``): only by that whole pages
become free.

``Eviction`` states what holds for every domain that is not remembered: the shard floor, which evicting raises.
"""

from __future__ import annotations

import contextlib
import struct
from itertools import islice
from typing import TYPE_CHECKING, Final

import apsw
import msgspec

from timeagent.errors import Environment

from ..formats.hints import nothing_known
from ..formats.lease import Mode, Phase
from .domain import (
    ExclusiveLease,
    Free,
    FreedDomain,
    Memory,
    Taken,
    defaults_of,
    expanded,
    hint_bytes,
    lone_lease,
)
from .wire import Age

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from timeagent.units import Instant

    from ..formats.lease import Holder
    from ..formats.policy import PolicyNumbers
    from .domain import Kept, State
    from .sessions import SessionRecord


UNWRITTEN_MAX: Final = 12_288
"""How many states may be missing in the file when a turn begins."""

WRITE_MIN: Final = 256
"""How many of them are written at once, or a few more: a millisecond. Where the tmpfs is full as many are tried."""

RECENT_MAX: Final = 4096
"""How many states that the file has are kept in the dict too, at least, where there are so many."""

NEIGHBOURS_MAX: Final = 1024
"""How many neighbours are looked at together where the tmpfs is full: some hundred pages, some milliseconds."""

_PRAGMAS: Final = (
    "PRAGMA journal_mode = MEMORY",  # OFF would leave ROLLBACK undefined
    "PRAGMA synchronous = OFF",
    "PRAGMA locking_mode = EXCLUSIVE",
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

-- What is missing in the file when a question about many rows is asked and the tmpfs is full. In the process's memory.
CREATE TEMP TABLE missing AS SELECT * FROM entry;
CREATE TEMP VIEW entry_or_missing AS
    SELECT * FROM missing UNION ALL SELECT * FROM entry WHERE domain NOT IN (SELECT domain FROM missing);
"""
_SELECT: Final = "SELECT domain, state, expiry_ns, fence FROM entry WHERE domain = ?"
_PUT: Final = "INSERT OR REPLACE INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
type SQLiteValue = str | int | bytes | None

_ROOM: Final = "give the tmpfs more room, or remove what else lies there"


class LeaseStore:
    """The states of a shard's domains. Blocks only for a local file on tmpfs; never touches the mount."""

    def __init__(self, path: Path) -> None:
        """Start empty: what an earlier run left under this path is deleted. Raises Environment: the tmpfs is full."""
        for left in (path, path.with_name(path.name + "-journal"), path.with_name(path.name + "-wal")):
            left.unlink(missing_ok=True)
        self._connection = self._opened(path)
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
        self._looked_to = ""
        self._neighbours: set[str] = set()
        self.sessions: dict[bytes, SessionRecord] = {}
        """The session leases. There are few; they are not in the file."""
        self.sessions_changed: dict[bytes, SessionRecord | None] = {}
        self._begun: dict[bytes, bytes] = {}
        self.domains = 0
        """How many domains are remembered."""
        self.leases = 0
        """How many leases are out."""
        self.dead_leases = 0
        """How many are in states still, whose session lease is over."""
        self.hint_bytes = 0
        """About how much of the states are hints."""

    @staticmethod
    def _opened(path: Path) -> apsw.Connection:
        connection = apsw.Connection(str(path))
        try:
            for pragma in _PRAGMAS:
                connection.execute(pragma)
            connection.execute(_SCHEMA)
        except BaseException as problem:
            connection.close()
            if isinstance(problem, apsw.FullError):
                raise Environment("store-full", f"{path} cannot grow: its tmpfs is full", hint=_ROOM) from None
            raise
        return connection

    @property
    def full(self) -> bool:
        """Whether nothing may be remembered that is not yet: the tmpfs is full, and too much is missing in the file."""
        return self._no_room and len(self._unwritten) > UNWRITTEN_MAX

    def why_full(self) -> str:
        """Return what is to be said while it is full."""
        return (
            f"{self._connection.filename} cannot grow: its tmpfs is full, and {len(self._unwritten)} domains are to be "
            f"written to it ({UNWRITTEN_MAX} may be missing there): no others are remembered; {_ROOM}"
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
        """Write an eighth of what is missing in the file: called ten times a second, all is there within one."""
        self._write(max(WRITE_MIN, len(self._unwritten) // 8))

    def _write(self, count: int) -> bool:
        """Delete what is forgotten; write so many of what has been missing for longest. False: there is no room."""
        self._no_room = not self._changed_file(
            "DELETE FROM entry WHERE domain = ?", [(each,) for each in self._forgotten]
        )
        if self._no_room:
            return False
        self._forgotten.clear()
        some = sorted(islice(self._unwritten, count))  # neighbours share pages
        rows = [self._row(each) for each in some]
        self._no_room = not self._changed_file(_PUT, rows)
        for domain, row in zip(some, rows, strict=True):
            del self._unwritten[domain]
            if self._no_room and not self._changed_file(_PUT, [row]):
                self._unwritten[domain] = None  # others are tried first the next time
        return not self._no_room

    def _changed_file(self, statement: str, rows: Sequence[tuple[SQLiteValue, ...]]) -> bool:
        """Change the file in one transaction. False: its tmpfs is full, and nothing has changed."""
        if not rows:
            return True
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany(statement, rows)
            self._connection.execute("COMMIT")
        except apsw.FullError:
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
            found = self._connection.executemany(_SELECT, [(each,) for each in missing])
            for domain, raw, expiry, fence in found:
                self.states[domain] = self.rows.state(raw, expiry, fence)

    def read(self, domain: str) -> State | None:
        """Return a domain's state, or None where nothing is remembered."""
        self.look_up((domain,))
        kept = self.states[domain]
        return None if kept is None else expanded(kept)

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
        """Return domains with a tentative lease."""
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
        self._connection.execute("DELETE FROM entry")
        for each in (self.states, self._unwritten, self._forgotten, self.sessions, self._begun):
            each.clear()
        self.domains = self.leases = self.hint_bytes = self.dead_leases = 0

    # -- session leases ------------------------------------------------------------------------------------------------

    def session_begun_by(self, request_id: bytes) -> SessionRecord | None:
        """Return the session lease that a request got."""
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


FREE, TENTATIVE, HELD = range(3)
NEVER: Final = 2**63 - 1
HOLDERS_MAX: Final = 65_536
"""How many holders have a number; leases of others are written whole."""

_FREED: Final = struct.Struct(">B8sQ16s")
_LONE: Final = struct.Struct(">BH8sQQ16s")
_UNDER_SESSION: Final = struct.Struct(">16sQ")
_MODES: Final = tuple(Mode)
_MODE_BITS, _IS_HELD, _HAS_ANSWERED, _IN_SESSION, _HAS_BEFORE = 0x07, 0x08, 0x10, 0x20, 0x40
_IS_FREED: Final = _MODE_BITS
_SHORT_MAX: Final = 0x7F
"""What is written whole begins with an array's head, which is above."""

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Free | Taken)


class StateRows:
    """Writes states as rows and reads them, for one incarnation of a shard.

    Most domains have the shard's own floor and settle_to, and one lease, with nothing before it but one that was given
    back plainly. Of these only what is their own is written, some forty bytes, and whoever has them is named by a
    number. All else is written as it is.
    """

    def __init__(self) -> None:
        """Know of no holders; a domain of which nothing is known has zeros for floor and settle_to."""
        self._numbers: dict[Holder, int] = {}
        self._holders: list[Holder] = []
        self.begin(0, 0)

    def begin(self, floor_ns: Instant, settle_to_ns: Instant) -> None:
        """Say what a domain has of which nothing is known: rows with the same leave it out. While there are none."""
        hints = nothing_known(floor_ns)
        self._unknown = Memory(fence=0, floor_ns=floor_ns, settle_to_ns=settle_to_ns, hints=hints)
        self.defaults = defaults_of(self._unknown)

    def row(self, kept: Kept) -> tuple[int, Instant, Instant | None, int, Instant | None, Instant | None, bytes]:
        """Return a state's columns, but for the domain."""
        if isinstance(kept, FreedDomain):
            if kept.defaults is self.defaults or kept.defaults == self.defaults:
                return FREE, 0, 0, int.from_bytes(kept.correlation_id[:8], "big"), None, None, _freed(kept)
        elif isinstance(kept, ExclusiveLease) and (short := self._plain(kept)) is not None:
            fence = int.from_bytes(kept.correlation_id[:8], "big")
            return HELD, kept.expiry_ns, None, fence, None, None, short
        state = expanded(kept)
        memory, known = state.memory, self.defaults.memory
        floor = None if memory.floor_ns == known.floor_ns else memory.floor_ns
        settle_to = None if memory.settle_to_ns == known.settle_to_ns else memory.settle_to_ns
        raw = self._short(state) or _encoder.encode(state)
        if isinstance(state, Free):
            return FREE, 0, 0, memory.fence, floor, settle_to, raw
        kind = HELD if all(each.phase is Phase.HELD for each in state.leases) else TENTATIVE
        own = [each.expiry_ns for each in state.leases if each.session_id is None]
        expiry, latest = (min(own), max(own)) if own else (NEVER, 0)
        return kind, expiry, None if latest == expiry else latest, memory.fence, floor, settle_to, raw

    def _short(self, state: State) -> bytes | None:
        """Return a state in short; None: it says more than that."""
        freed = self._freed_before(state.memory)
        if isinstance(state, Free):
            return _freed(freed) if freed is not None and expanded(freed) == state else None
        lease = state.leases[0]
        plain = ExclusiveLease(
            self.defaults,
            freed or self._unknown,
            lease.holder,
            lease.correlation_id,
            lease.granted_ns,
            lease.expiry_ns,
            lease.age,
            lease.granted_by,
        )
        if lone_lease(plain, lease.mode, lease.phase, lease.answered, lease.session_id) != state:
            return None
        bits, more = _MODES.index(lease.mode) | (_IS_HELD if lease.phase is Phase.HELD else 0), b""
        if lease.answered != lease.granted_by:
            bits, more = bits | _HAS_ANSWERED, lease.answered
        if lease.session_id is not None:
            bits, more = bits | _IN_SESSION, more + _UNDER_SESSION.pack(lease.session_id, lease.expiry_ns)
        return self._plain(plain, bits, more)

    def _plain(
        self, plain: ExclusiveLease, bits: int = _MODES.index(Mode.X) | _IS_HELD, more: bytes = b""
    ) -> bytes | None:
        """Return a lone lease in short; None: it says more than that, or its holder has no number."""
        before = plain.before
        if (
            plain.age.request_id != plain.request_id
            or plain.defaults != self.defaults
            or (number := self._number(plain.holder)) is None
        ):
            return None
        if isinstance(before, FreedDomain):
            bits, more = bits | _HAS_BEFORE, more + _freed(before) + before.correlation_id[:8]
        elif before != self._unknown:
            return None
        name = plain.correlation_id[8:]
        return _LONE.pack(bits, number, name, plain.granted_ns, plain.age.first_try_ns, plain.request_id) + more

    def _freed_before(self, memory: Memory) -> FreedDomain | None:
        """Return how the last lease was given back, if the domain has had one."""
        last, request_id = memory.last_ended, memory.ended_request
        if last is None or request_id is None:
            return None
        return FreedDomain(self.defaults, last.correlation_id, last.ended_ns, request_id)

    def state(self, raw: bytes, expiry_ns: Instant, fence: int) -> Kept:
        """Return the state of a row, from three of its columns."""
        bits, stamp = raw[0], fence.to_bytes(8, "big")
        if bits > _SHORT_MAX:
            whole: State = _decoder.decode(raw)
            return whole
        if bits == _IS_FREED:
            return self._read_freed(raw, stamp)
        _, number, name, granted, first_try, request_id = _LONE.unpack_from(raw)
        at, answered, session_id = _LONE.size, None, None
        if bits & _HAS_ANSWERED:
            answered, at = raw[at : at + 16], at + 16
        if bits & _IN_SESSION:
            session_id, expiry_ns = _UNDER_SESSION.unpack_from(raw, at)
            at += _UNDER_SESSION.size
        plain = ExclusiveLease(
            self.defaults,
            self._read_freed(raw[at : at + _FREED.size], raw[-8:]) if bits & _HAS_BEFORE else self._unknown,
            self._holders[number],
            stamp + name,
            granted,
            expiry_ns,
            Age(first_try_ns=first_try, request_id=request_id),
            request_id,
        )
        mode, phase = _MODES[bits & _MODE_BITS], Phase.HELD if bits & _IS_HELD else Phase.TENTATIVE
        if mode is Mode.X and phase is Phase.HELD and answered is None and session_id is None:
            return plain
        return lone_lease(plain, mode, phase, answered, session_id)

    def _read_freed(self, raw: bytes, stamp: bytes) -> FreedDomain:
        _, name, ended, request_id = _FREED.unpack(raw)
        return FreedDomain(self.defaults, stamp + name, ended, request_id)

    def _number(self, holder: Holder) -> int | None:
        """Return a holder's number; None: there is none left."""
        number = self._numbers.get(holder)
        if number is None and len(self._holders) < HOLDERS_MAX:
            number = self._numbers[holder] = len(self._holders)
            self._holders.append(holder)
        return number


def _freed(freed: FreedDomain) -> bytes:
    return _FREED.pack(_IS_FREED, freed.correlation_id[8:], freed.ended_ns, freed.request_id)


class Eviction:
    """The shard floor, and its settle_to: neither is ever lowered."""

    def __init__(self, store: LeaseStore, policy: PolicyNumbers, domains_max: int) -> None:
        """Remember up to ``domains_max`` domains in ``store``."""
        self._store = store
        self._policy = policy
        self.domains_max = domains_max
        self.floor_ns: Instant = 0
        self.settle_to_ns: Instant = 0

    def begin(self, floor_ns: Instant, settle_to_ns: Instant) -> None:
        """Take the numbers that the chain states for a run that begins."""
        self.floor_ns, self.settle_to_ns = floor_ns, settle_to_ns
        self._store.rows.begin(floor_ns, settle_to_ns)

    def memory(self) -> Memory:
        """Return what a domain has that is not remembered."""
        hints = nothing_known(self.floor_ns)
        return Memory(fence=0, floor_ns=self.floor_ns, settle_to_ns=self.settle_to_ns, hints=hints)

    def long_past(self, earliest: Instant) -> Instant:
        """Return before which instant all numbers of a domain lie that may be evicted."""
        policy = self._policy
        return earliest - (policy.span_ns + policy.grace_ns + 4 * policy.radius_ns_max)

    def evict(self, domains: Sequence[str], earliest: Instant) -> list[str]:
        """Evict those of some domains that are free and long past; the shard floor covers them from now on.

        Return those with leases that are past: once these are broken, they can be evicted later.
        """
        old = self.long_past(earliest)
        past: list[str] = []
        self._store.look_up(domains)
        for domain in domains:
            state = self._store.read(domain)
            if isinstance(state, Taken):
                if any(each.session_id is None and each.expiry_ns < earliest for each in state.leases):
                    past.append(domain)
            elif state is not None:
                memory = state.memory
                newest = max(memory.floor_ns, memory.settle_to_ns, memory.fence)
                if newest < old:
                    self._store.put(domain, None)
                    self.floor_ns = max(self.floor_ns, newest)
                    self.settle_to_ns = max(self.settle_to_ns, memory.settle_to_ns)
        return past
