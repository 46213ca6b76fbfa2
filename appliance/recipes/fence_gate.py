"""``FenceGate``: a receiver that remembers the highest fence, and refuses whoever comes with a lower one.

A holder that stood still after its last look at the clock, in a swapped-out process, a paused machine, a network that
was slow, acts when its lease is long over. Nobody but the receiver can stop that: fences only grow, so the
receiver that has seen a later holder's refuses the earlier one's. A fence is remembered, on disk, before its holder
passes; and while it passes nobody else does, of whatever process that has the same file. Who keeps its state in a
database does the same there, in the transaction that writes: ``UPDATE .. WHERE fence <= :fence``.

What a gate does not do: before a later holder has come by, it knows of none, and lets the earlier one pass.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from threading import RLock
from typing import Final

from timeagent.errors import BadRequest, Damaged, Environment, LeaseLost, TryAgain, check_type
from timeagent.units import INSTANT_MAX, SECOND, Seconds, span_of

IN_MEMORY: Final = ":memory:"
PATIENCE_S_MAX: Final = 2_000_000
"""SQLite counts milliseconds in 32 bits: with more it would not wait at all."""

_SEEN: Final = "SELECT fence FROM highest WHERE name = ?"
_KEEP: Final = "INSERT INTO highest VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET fence = excluded.fence"


class FenceGate:
    """The highest fence of each name that ever passed. Safe to share between threads, and a file between processes."""

    def __init__(self, path: str | Path = IN_MEMORY, *, patience_s: Seconds = 30) -> None:
        """Open the file, or make it: on a local file system. ``patience_s``: how long one waits for another to pass.

        Raises Environment where that cannot be, Damaged where it is another file; TryAgain, ``busy``.
        """
        check_type(str | PathLike, path=path)
        self._patience_s = min(span_of(patience_s, "patience_s") / SECOND, PATIENCE_S_MAX)
        self._lock = RLock()
        self._path = path
        with self._told():
            self._database = sqlite3.connect(
                path, timeout=self._patience_s, isolation_level=None, check_same_thread=False
            )
        try:
            self._execute("PRAGMA synchronous = FULL")
            self._execute("CREATE TABLE IF NOT EXISTS highest (name TEXT PRIMARY KEY, fence INTEGER NOT NULL)")
        except BaseException:
            self._database.close()
            raise

    @contextlib.contextmanager
    def passing(self, fence: int, *, name: str = "") -> Iterator[None]:
        """Let who has this fence pass, for a block in which nobody else does; also the holder that passed last, again.

        ``name``: what the fence is of, where one gate is for several domains or elections. Raises LeaseLost, code
        ``fence-passed``, if a higher one has passed; TryAgain, ``busy``, where another passes for too long; BadRequest,
        ``passing``, within such a block of the same thread.
        """
        check_type(int, fence=fence)
        check_type(str, name=name)
        if not 0 < fence <= INSTANT_MAX:
            raise BadRequest("bad-fence", f"{fence} is no fence", hint="hand over lease.fence as it is")
        with self._in_turn():
            with self._told():
                nested = self._database.in_transaction
            if nested:
                what = "this thread lets somebody pass already, and nobody else does meanwhile"
                raise BadRequest("passing", what, hint="end that block first, or have a gate of another file")
            with self._alone():
                if self._refused(name, fence) is None:
                    self._execute(_KEEP, name, fence)
            with self._alone():
                highest = self._refused(name, fence)
                if highest is not None:
                    raise LeaseLost(
                        "fence-passed",
                        f"fence {fence} of {name!r} comes too late: {highest} has passed",
                        hint="another has had the lease since: acquire it again, and see what that one did",
                    )
                yield

    def highest(self, *, name: str = "") -> int:
        """Return the highest fence of a name that has passed: 0 before the first. Raises TryAgain, ``busy``."""
        check_type(str, name=name)
        with self._in_turn():
            rows = self._execute(_SEEN, name)
        return rows[0][0] if rows else 0

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._database.close()

    @contextlib.contextmanager
    def _in_turn(self) -> Iterator[None]:
        """Keep every other thread out. Raises TryAgain, code ``busy``."""
        if not self._lock.acquire(timeout=self._patience_s):
            raise TryAgain("busy", "another thread has been passing for long", hint="try again")
        try:
            yield
        finally:
            self._lock.release()

    def _refused(self, name: str, fence: int) -> int | None:
        highest = self.highest(name=name)
        return highest if highest > fence else None

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep every other process from passing. Raises TryAgain, code ``busy``."""
        try:
            self._execute("BEGIN IMMEDIATE")
            try:
                yield
            finally:
                self._execute("COMMIT")
        except BaseException:  # as where a reader is in the way for too long: it must not stay begun, and locked
            with contextlib.suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")
            raise

    def _execute(self, statement: str, *values: str | int) -> list[tuple[int]]:
        with self._told():
            return self._database.execute(statement, values).fetchall()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Say in this program's words what SQLite refuses."""
        try:
            yield
        except ValueError as problem:  # no UTF-8, or a path with a NUL
            raise BadRequest(
                "bad-name", f"no name that can be kept, or opened: {problem}", hint="name it in UTF-8"
            ) from None
        except sqlite3.ProgrammingError as problem:
            raise BadRequest("gate-closed", f"the gate {self._path}: {problem}", hint="open it again") from None
        except sqlite3.DatabaseError as problem:
            what, code = f"the gate {self._path}: {problem}", problem.sqlite_errorcode & 0xFF
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise TryAgain("busy", f"another has been passing for long: {problem}", hint="try again") from None
            if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
                raise Damaged("no-gate", what, hint="name one that a FenceGate has made, or a new one") from None
            raise Environment("gate-failed", what, hint="is the path right, and is there room?") from None
