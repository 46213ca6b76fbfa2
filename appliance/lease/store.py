"""Where a shard keeps its domains: SQLite on tmpfs, empty at every start. Reads, compares and swaps; no policy.

The only module of the appliance that imports apsw. One writer, one thread. Nothing here has to survive anything: a
shard's past is its ceiling chain, so journal and synchronisation are as light as ROLLBACK allows.
"""

from __future__ import annotations

import contextlib
from importlib.resources import files
from typing import TYPE_CHECKING, Final

import apsw
import msgspec

from timeagent.errors import Environment

from ..formats.lease import Phase
from .domain import Free, Memory, State, Taken, hint_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from timeagent.units import Instant

    from .domain import Lease

_FREE, _TENTATIVE, _HELD = range(3)
_PRAGMAS: Final = (
    "PRAGMA journal_mode = MEMORY",  # OFF would leave ROLLBACK undefined
    "PRAGMA synchronous = OFF",
    "PRAGMA locking_mode = EXCLUSIVE",
    "PRAGMA cache_size = -65536",
    "PRAGMA temp_store = MEMORY",
)
_SELECT: Final = "SELECT state, revision FROM entry WHERE domain = ?"
_INSERT: Final = "INSERT INTO entry VALUES (?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_SWAP: Final = (
    "UPDATE entry SET revision = revision + 1, kind = ?, expiry_ns = ?, latest_ns = ?, fence = ?, floor_ns = ?,"
    " settle_ns = ?, newest_ns = ?, state = ?, answer = ? WHERE domain = ? AND revision = ?"
)

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Free | Taken)


class LeaseStore:
    """The states of a shard's domains. Blocks only for a local file on tmpfs; never touches the mount."""

    def __init__(self, path: Path) -> None:
        """Start empty: what an earlier run left under this path is deleted."""
        for left in (path, path.with_name(path.name + "-journal"), path.with_name(path.name + "-wal")):
            left.unlink(missing_ok=True)
        self._connection = apsw.Connection(str(path))
        for pragma in _PRAGMAS:
            self._connection.execute(pragma)
        self._connection.execute(files(__package__).joinpath("schema.sql").read_text(encoding="utf-8"))
        self._execute = self._connection.execute
        self.domains = 0
        """How many domains are remembered."""
        self.leases = 0
        """How many leases are out."""
        self.hint_bytes = 0
        """About how much of the states are hints."""

    def close(self) -> None:
        """Close the file. It is deleted by the next start, not now."""
        self._connection.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Do a turn in one transaction: all of it, or, when it raises, nothing.

        Raises Environment where the tmpfs is full.
        """
        numbers = self.domains, self.leases, self.hint_bytes
        self._execute("BEGIN IMMEDIATE")
        try:
            yield
            self._execute("COMMIT")
        except BaseException as problem:
            if self._connection.in_transaction:  # a full file has rolled back by itself already
                self._execute("ROLLBACK")
            self.domains, self.leases, self.hint_bytes = numbers
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

    def answer(self, domain: str, correlation_id: bytes) -> bytes | None:
        """Return the newest signed witness of a lease that is out."""
        found = self._execute("SELECT signed FROM answer WHERE correlation_id = ?", (correlation_id,)).fetchone()
        if found is None:
            question = "SELECT substr(answer, 17) FROM entry WHERE domain = ? AND substr(answer, 1, 16) = ?"
            found = self._execute(question, (domain, correlation_id)).fetchone()
        return found[0] if found else None

    def insert(self, domain: str, state: State, answers: Mapping[bytes, bytes]) -> None:
        """Remember a domain that was not remembered. ``answers``: new signed witnesses, by correlation id."""
        self._execute(_INSERT, (domain, *_columns(state), self._kept(domain, (), state, answers)))
        self.domains += 1
        self.leases += 0 if isinstance(state, Free) else len(state.leases)
        self.hint_bytes += hint_bytes(state)

    def swap(self, domain: str, revision: int, before: State, state: State, answers: Mapping[bytes, bytes]) -> None:
        """Replace the state that was read under this revision. It must still be that one: there is one writer."""
        were = () if isinstance(before, Free) else before.leases
        answer = self._kept(domain, were, state, answers)
        self._execute(_SWAP, (*_columns(state), answer, domain, revision))
        assert self._connection.changes() == 1, f"{domain!r} changed under its only writer"
        self.leases += (0 if isinstance(state, Free) else len(state.leases)) - len(were)
        self.hint_bytes += hint_bytes(state) - hint_bytes(before)

    def _kept(
        self, domain: str, before: tuple[Lease, ...], state: State, answers: Mapping[bytes, bytes]
    ) -> bytes | None:
        """Keep new answers: that of an only lease is the column's value, those of several are rows of their own."""
        leases = () if isinstance(state, Free) else state.leases
        if len(before) <= 1 and len(leases) <= 1:
            if not leases:
                return None
            only = leases[0].correlation_id
            return only + answers[only]
        ids = [each.correlation_id for each in leases]
        moved = before[:1] if len(before) == 1 else leases if len(leases) == 1 else ()
        old = {each.correlation_id: self.answer(domain, each.correlation_id) for each in moved}
        kept = {name: signed for name, signed in {**old, **answers}.items() if name in ids and signed is not None}
        stay = ids if len(ids) > 1 else []
        for each in before:
            if each.correlation_id not in stay:
                self._execute("DELETE FROM answer WHERE correlation_id = ?", (each.correlation_id,))
        if len(ids) == 1:
            return ids[0] + kept[ids[0]]
        for name, signed in kept.items():
            self._execute("INSERT OR REPLACE INTO answer VALUES (?, ?)", (name, signed))
        return None

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
        self._execute("DELETE FROM answer")
        self.domains = self.leases = self.hint_bytes = 0

    def latest_expiry(self) -> Instant | None:
        """Return the latest expiry of all leases, or None where none is out."""
        row = self._execute("SELECT max(latest_ns) FROM entry WHERE kind <> 0").fetchone()
        return row[0] if row else None

    def highest(self) -> tuple[int, Instant, Instant]:
        """Return the highest fence, floor and settle_to of all domains; 0 where there are none."""
        row = self._execute(
            "SELECT coalesce(max(fence), 0), coalesce(max(floor_ns), 0), coalesce(max(settle_ns), 0) FROM entry"
        ).fetchone()
        assert row is not None
        return row[0], row[1], row[2]

    def page(self, after: str, leases_max: int) -> tuple[list[tuple[str, Taken]], bool]:
        """Return leased domains in their order, from behind one, until there are enough leases; and whether all.

        A domain comes with all of its leases.
        """
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


def _columns(state: State) -> tuple[int, Instant, Instant, int, Instant, Instant, int, bytes]:
    memory = state.memory
    newest = max(memory.fence, memory.floor_ns, memory.settle_to_ns)
    kind, expiry, latest = _FREE, 0, 0
    if isinstance(state, Taken):
        leases = state.leases
        if len(leases) == 1:
            expiry = latest = leases[0].expiry_ns
            kind = _HELD if leases[0].phase is Phase.HELD else _TENTATIVE
        else:
            expiries = [each.expiry_ns for each in leases]
            expiry, latest = min(expiries), max(expiries)
            kind = _HELD if all(each.phase is Phase.HELD for each in leases) else _TENTATIVE
    numbers = memory.fence, memory.floor_ns, memory.settle_to_ns
    return kind, expiry, latest, *numbers, newest, _encoder.encode(state)
