"""Where a shard keeps its domains: SQLite on tmpfs, empty at every start. Reads, compares and swaps; no policy.

The only module of the appliance that imports apsw. One writer, one thread. Nothing here has to survive anything: a
shard's past is its ceiling chain, so journal and synchronisation are as light as ROLLBACK allows. For the same reason
a state need not be in the file to count: the newest are kept beside it, and written together once there are many, or a
question about many rows is asked: a lease that is taken and given back costs one row then, not two. A full tmpfs is
therefore in no turn's way: what cannot be written stays beside the file, and new domains have to wait (``full``) until
there is room, or some that were next to each other are forgotten (``crowded``): whole pages become free by that only.

``Eviction`` states what holds for every domain that is not remembered: the shard floor, which evicting raises.
"""

from __future__ import annotations

import contextlib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final

import apsw

from timeagent.errors import Environment

from ..formats.hints import NOTHING_WRITTEN, nothing_known
from .domain import Free, Memory, State, Taken, hint_bytes
from .rows import SessionRows, StateRows, expanded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from timeagent.units import Instant

    from ..formats.policy import PolicyNumbers
    from .rows import Plain
    from .session_state import SessionRecord


UNWRITTEN_MAX: Final = 12_288
"""How many states may be missing in the file when a turn begins. With more, all that are missing then are written, over
the next turns, in the order of the domains: neighbours share pages, and no turn takes long."""

SWEEP_MIN: Final = 256
"""How many of them a turn writes at least: half a millisecond, or a little more. Of a full tmpfs as many are tried."""

RECENT_MAX: Final = 4096
"""How many states are kept at least beside the file, of those that were read from it or written to it last."""

_PRAGMAS: Final = (
    "PRAGMA journal_mode = MEMORY",  # OFF would leave ROLLBACK undefined
    "PRAGMA synchronous = OFF",
    "PRAGMA locking_mode = EXCLUSIVE",
    "PRAGMA cache_size = -24576",  # the file is in memory already
    "PRAGMA temp_store = MEMORY",
)
_SELECT: Final = "SELECT domain, revision, state, expiry_ns, fence FROM entry WHERE domain = ?"
_PUT: Final = (
    "INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (domain) DO UPDATE SET"
    " revision = excluded.revision, kind = excluded.kind, expiry_ns = excluded.expiry_ns,"
    " latest_ns = excluded.latest_ns, fence = excluded.fence, floor_ns = excluded.floor_ns,"
    " settle_ns = excluded.settle_ns, state = excluded.state WHERE revision < excluded.revision"
)

type _Kept = tuple[State | Plain, int] | None
"""A state and its revision; None: nothing is remembered of the domain."""

_ROOM: Final = "give the tmpfs more room, or remove what else lies there"

_NOT_HERE: Final[_Kept] = (Free(memory=Memory(fence=0, floor_ns=0, settle_to_ns=0, hints=NOTHING_WRITTEN)), -1)


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
        self._rows = StateRows()
        self.session_rows = SessionRows(self._execute)
        self._recent: dict[str, _Kept] = {}
        self._older: dict[str, _Kept] = {}
        self._unwritten: dict[str, tuple[State | Plain, int]] = {}
        self._turn: dict[str, _Kept] = {}
        """What the transaction that is under way has changed."""
        self._in_turn = self._forgotten = self._emptied = False
        """Whether a transaction is under way; whether it has forgotten any domain, or all that were there before."""
        self._sweep: list[str] = []
        """What has still to be written of what was missing when there was too much, the first last."""
        self._no_room = False
        """Whether there was no room when something was to be written last."""
        self._crowd: tuple[str, str] = "", ""
        """The first and the last of the neighbours for which there was no room last."""
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
        """Return a connection to an empty store in a new file. Raises Environment where the tmpfs is full."""
        connection = apsw.Connection(str(path))
        try:
            for pragma in _PRAGMAS:
                connection.execute(pragma)
            connection.execute(_schema())
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

    def begin(self, floor_ns: Instant, settle_to_ns: Instant) -> None:
        """Say what a domain has of which nothing is known: it need not be written with each. While it is empty."""
        assert not self.domains
        self._rows.begin(floor_ns, settle_to_ns)

    def close(self) -> None:
        """Close the file. It is deleted by the next start, not now."""
        self._connection.close()

    @contextlib.contextmanager
    def transaction(self, *, sweep: bool = True) -> Iterator[None]:
        """Do a turn in one transaction: all of it, or, when it raises, nothing.

        What is missing in the file is written before, by itself: a turn does not fail where there is no room for that.
        Without ``sweep`` it is not, and it is crowded where it was.
        Raises Environment where there is no room to delete rows: that is possible, and no more.
        """
        assert not self._in_turn
        if sweep and (self._sweep or len(self._unwritten) > UNWRITTEN_MAX):
            self._sweep_on()
        numbers = self.domains, self.leases, self.hint_bytes, self.dead_leases, self.sessions
        self._in_turn = True
        try:
            yield
            if self._connection.in_transaction:
                self._execute("COMMIT")
            self._adopt()
        except BaseException as problem:
            self._roll_back()
            self._turn.clear()
            self.domains, self.leases, self.hint_bytes, self.dead_leases, self.sessions = numbers
            if isinstance(problem, apsw.FullError):
                why = f"{self._connection.filename} cannot change: its tmpfs is full"
                raise Environment("store-full", why, hint=_ROOM) from None
            raise
        finally:
            self._in_turn = self._forgotten = self._emptied = False

    def _roll_back(self) -> None:
        if self._connection.in_transaction:  # a full file has rolled back by itself already
            self._execute("ROLLBACK")

    def _adopt(self) -> None:
        """Let count what has been changed."""
        unwritten, turn = self._unwritten, self._turn
        if self._emptied:
            unwritten.clear()
            self._emptied = False
        if self._forgotten:
            self._rotate()
            for domain, kept in turn.items():
                if kept is None:
                    self._recent[domain] = None
                    unwritten.pop(domain, None)
            self._forgotten = False
            turn = {domain: kept for domain, kept in turn.items() if kept is not None}
        unwritten.update(turn)  # type: ignore[arg-type]
        self._turn.clear()

    def _rotate(self) -> None:
        """Make room among the recent ones."""
        if len(self._recent) >= RECENT_MAX:
            self._older, self._recent = self._recent, {}

    def _write(self) -> None:
        """Begin to write to the file, in the transaction that is under way."""
        if self._in_turn and not self._connection.in_transaction:
            self._execute("BEGIN IMMEDIATE")

    def _sweep_on(self) -> None:
        """Write some of those that are missing in the file, or all; the rest in later turns."""
        unwritten = self._unwritten
        count = SWEEP_MIN if self._no_room else max(SWEEP_MIN, len(unwritten) - UNWRITTEN_MAX)
        some: list[str] = []
        while len(some) < count and len(some) < len(unwritten):
            if not self._sweep:
                if some and self._no_room:
                    break  # neighbours only
                self._sweep = sorted(unwritten.keys() - some, reverse=True)
            domain = self._sweep.pop()
            if domain in unwritten:
                some.append(domain)
        if not self._put(some):  # the next turn tries the next ones: among these there may be nobody to forget
            self._crowd = some[0], max(some)

    def _put(self, domains: list[str]) -> bool:
        """Write what is missing of these in the file, by itself. False: there is no room, and it is missing still."""
        row, unwritten = self._rows.row, self._unwritten
        changes = self._connection.total_changes()
        rows = [(domain, (kept := unwritten[domain])[1], *row(kept[0])) for domain in domains]
        try:
            self._execute("BEGIN IMMEDIATE")
            self._connection.executemany(_PUT, rows)
            assert self._connection.total_changes() - changes == len(rows), "a row changed under its only writer"
            self._execute("COMMIT")
        except BaseException as problem:
            self._roll_back()
            self._no_room = isinstance(problem, apsw.FullError)
            if not self._no_room:
                raise
            return False
        self._no_room = False
        self._rotate()
        for domain in domains:
            self._recent[domain] = unwritten.pop(domain)
        return True

    def _all(self) -> str:
        """Return where all states are that count: the file, once what was missing is written; or, as it is full, both.

        What the transaction under way has changed is in neither.
        """
        missing = sorted(self._unwritten)
        step = SWEEP_MIN if self._no_room else len(missing)
        while missing and not self._connection.in_transaction and self._put(missing[:step]):
            missing = missing[step:]
            step = len(missing)
        if not missing:
            return "entry"
        self._copy(missing)
        return "entry_or_missing"

    def _crowded(self) -> str:
        """Return where the states of those are for which there was no room last, and of all between them."""
        first, last = self._crowd
        self._execute("DELETE FROM crowd")
        self._execute("INSERT INTO crowd VALUES (?, ?)", (first, last))
        self._copy(sorted(each for each in self._unwritten if first <= each <= last))
        return "crowded"

    def _copy(self, missing: list[str]) -> None:
        """Have a question find these, which are missing in the file."""
        row = self._rows.row
        rows = [(domain, (kept := self._unwritten[domain])[1], *row(kept[0])) for domain in missing]
        self._execute("DELETE FROM missing")
        self._connection.executemany("INSERT INTO missing VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)

    # -- domains -------------------------------------------------------------------------------------------------------

    def look_up(self, domains: Iterable[str]) -> None:
        """Read together what will be asked for one by one."""
        recent, older, unwritten = self._recent, self._older, self._unwritten
        missing = {each for each in domains if each not in unwritten and each not in recent and each not in older}
        missing.difference_update(self._turn)  # what this turn has forgotten is there again if the turn fails
        if not missing:
            return
        self._rotate()
        recent = self._recent
        recent.update(dict.fromkeys(missing))
        state = self._rows.state
        found = self._connection.executemany(_SELECT, [(each,) for each in missing])
        for domain, revision, raw, expiry, fence in found:
            recent[domain] = state(raw, expiry, fence), revision

    @property
    def changed(self) -> dict[str, _Kept]:
        """What the transaction under way has changed: with a revision more than it had. For plain states too.

        Who writes here counts domains and leases himself.
        """
        return self._turn

    def newest(self, domain: str) -> _Kept:
        """As ``read``, with a plain state as it is kept."""
        found = self._turn.get(domain, _NOT_HERE)
        if found is _NOT_HERE:
            found = self._unwritten.get(domain) or self._recent.get(domain) or self._kept(domain)
        return found

    def read(self, domain: str) -> tuple[State, int] | None:
        """Return a domain's state and its revision, or None where nothing is remembered."""
        kept = self._kept(domain)
        return kept and (expanded(kept[0]), kept[1])

    def _kept(self, domain: str) -> _Kept:
        for place in (self._turn, self._unwritten, self._recent, self._older):
            kept = place.get(domain, _NOT_HERE)
            if kept is not _NOT_HERE:
                return kept
        self.look_up((domain,))
        return self._recent[domain]

    def write(self, domain: str, revision: int, before: State | None, state: State) -> None:
        """Replace the state that was read under this revision. It must still be that one: there is one writer.

        Without a state before, and with revision 0: a domain that was not remembered.
        """
        kept = self._kept(domain)
        assert revision == (0 if kept is None else kept[1]), f"{domain!r} changed under its only writer"
        self._turn[domain] = state, revision + 1
        if before is None:
            self.domains += 1
            self.leases += _leases_in(state)
            self.hint_bytes += hint_bytes(state)
        else:
            self.leases += _leases_in(state) - _leases_in(before)
            self.hint_bytes += hint_bytes(state) - hint_bytes(before)
        if not self._in_turn:
            self._adopt()

    def _ask(self, question: str, values: tuple[int | str, ...] = (), *, crowded: bool = False) -> apsw.Cursor:
        """Ask about all states, or where it is crowded: ``states`` in the question stands for where they are."""
        where = self._crowded() if crowded else self._all()
        return self._execute(question.replace("FROM states", f"FROM {where}"), values)

    def past(self, instant: Instant, limit: int, *, crowded: bool = False) -> list[str]:
        """Return domains with a lease that expires before an instant, the longest over first.

        ``crowded``: of those for which there was no room last, and of all between them.
        """
        question = "SELECT domain FROM states WHERE kind <> 0 AND expiry_ns < ? ORDER BY expiry_ns LIMIT ?"
        return [row[0] for row in self._ask(question, (instant, limit), crowded=crowded)]

    def tentative(self, limit: int) -> list[str]:
        """Return domains with a tentative lease."""
        question = "SELECT domain FROM states WHERE kind = 1 LIMIT ?"
        return [row[0] for row in self._ask(question, (limit,))]

    def idle(self, instant: Instant, limit: int, *, crowded: bool = False) -> list[tuple[str, Memory]]:
        """Return free domains all of whose numbers lie before an instant, the longest idle first.

        ``crowded``: as for ``past``.
        """
        question = (
            "SELECT domain, state, fence, max(fence, coalesce(floor_ns, ?), coalesce(settle_ns, ?)) AS newest"
            " FROM states WHERE kind = 0 AND newest < ? ORDER BY newest, domain LIMIT ?"
        )
        values = self._rows.floor_ns, self._rows.settle_to_ns, instant, limit
        rows = self._ask(question, values, crowded=crowded)
        return [(domain, expanded(self._rows.state(raw, 0, fence)).memory) for domain, raw, fence, _ in rows]

    def forget(self, domain: str, memory: Memory) -> None:
        """Delete a domain that was free before this turn, of which this is the memory."""
        missing = self._unwritten.get(domain)
        self._write()
        self._execute("DELETE FROM entry WHERE domain = ? AND (kind = 0 OR ?)", (domain, missing is not None))
        free = self._connection.changes() == 1 if missing is None else isinstance(expanded(missing[0]), Free)
        assert free, f"{domain!r} is not free"
        self._turn[domain] = None
        self._forgotten = True
        self.domains -= 1
        self.hint_bytes -= memory.hints.bytes
        if not self._in_turn:
            self._adopt()

    def clear(self) -> None:
        """Forget everything."""
        self._write()
        self._execute("DELETE FROM entry")
        self._execute("DELETE FROM session")
        for each in (self._recent, self._older, self._turn, self._sweep):
            each.clear()
        self._emptied = True
        if not self._in_turn:
            self._adopt()
        self.domains = self.leases = self.hint_bytes = self.dead_leases = self.sessions = 0

    def latest_expiry(self) -> Instant | None:
        """Return the latest expiry of all leases, or None where none is out."""
        row = self._ask(
            "SELECT coalesce(max(coalesce(latest_ns, expiry_ns)), 0) FROM states WHERE kind <> 0"
        ).fetchone()
        assert row is not None
        return max(row[0], self.session_rows.latest_expiry()) or None

    def highest(self) -> tuple[int, Instant, Instant]:
        """Return the highest fence, floor and settle_to of all domains; 0 where there are none.

        What the end of session leases brings is in it, be it in the states of their leases already or not.
        """
        row = self._ask(
            "SELECT coalesce(max(fence), 0), coalesce(max(floor_ns), 0), coalesce(max(settle_ns), 0) FROM"
            " (SELECT fence, coalesce(floor_ns, ?) AS floor_ns, coalesce(settle_ns, ?) AS settle_ns FROM states"
            " UNION ALL SELECT 0, floor_ns, settle_ns FROM session)",
            (self._rows.floor_ns, self._rows.settle_to_ns),
        ).fetchone()
        assert row is not None
        return row[0], row[1], row[2]

    # -- session leases ------------------------------------------------------------------------------------------------

    def put_session(self, before: SessionRecord | None, after: SessionRecord) -> None:
        """Write a session lease, as it was read (None: it is new) and as it is. Forget one that is over without leases.

        The leases of one that is over are not out any more, though they are in states still.
        """
        dead = after.leases if after.over is not None else 0
        more = dead - (before.leases if before is not None and before.over is not None else 0)
        self.leases -= more
        self.dead_leases += more
        self._write()
        self.sessions += self.session_rows.put(after) - (before is not None)

    def leased_after(self, domain: str, limit: int) -> list[str]:
        """Return the next leased domains behind one, in order."""
        question = "SELECT domain FROM states WHERE kind <> 0 AND domain > ? ORDER BY domain LIMIT ?"
        return [row[0] for row in self._ask(question, (domain, limit))]

    # -- for people ----------------------------------------------------------------------------------------------------

    def page(self, after: str, leases_max: int, only: str | None = None) -> tuple[list[tuple[str, Taken]], bool]:
        """Return leased domains in their order, from behind one, until there are enough leases; and whether all.

        A domain comes with all of its leases. ``only``: this one, and no other.
        """
        if only is not None:
            there = self.read(only)
            return ([(only, there[0])] if there is not None and isinstance(there[0], Taken) else []), False
        question = (
            "SELECT domain, state, expiry_ns, fence FROM states WHERE kind <> 0 AND domain > ? ORDER BY domain LIMIT ?"
        )
        found: list[tuple[str, Taken]] = []
        leases = 0
        for domain, raw, expiry, fence in self._ask(question, (after, leases_max + 1)):
            if leases >= leases_max:
                return found, True
            state = expanded(self._rows.state(raw, expiry, fence))
            assert isinstance(state, Taken)
            found.append((domain, state))
            leases += len(state.leases)
        return found, False


def _leases_in(state: State) -> int:
    return 0 if isinstance(state, Free) else len(state.leases)


class Eviction:
    """The shard floor, and its settle_to: neither is ever lowered."""

    __slots__ = ("_policy", "_store", "domains_max", "floor_ns", "settle_to_ns")

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
        self._store.begin(floor_ns, settle_to_ns)

    def memory(self) -> Memory:
        """Return what a domain has that is not remembered."""
        hints = nothing_known(self.floor_ns)
        return Memory(fence=0, floor_ns=self.floor_ns, settle_to_ns=self.settle_to_ns, hints=hints)

    def evict(self, count: int, earliest: Instant, *, crowded: bool = False) -> None:
        """Evict so many domains, or as many as are free and long past; the shard floor covers them from now on.

        ``earliest``: the least that the time may be. ``crowded``: of those for which the store had no room last, and of
        all between them.
        """
        policy = self._policy
        old = earliest - (policy.span_ns + policy.grace_ns + 4 * policy.radius_ns_max)
        for domain, memory in self._store.idle(old, count, crowded=crowded):
            self._store.forget(domain, memory)
            self.floor_ns = max(self.floor_ns, memory.floor_ns, memory.settle_to_ns, memory.fence)
            self.settle_to_ns = max(self.settle_to_ns, memory.settle_to_ns)
