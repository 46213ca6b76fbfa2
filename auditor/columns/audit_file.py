"""The file of an audit, as SQLite: the parts that were read, so that the next audit reads again only what changed.

A timeline is in it too, where one is wanted. The only module of the auditor that imports apsw.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import apsw
import msgspec

from appliance.formats.paths import BIRTH, LOCK, LOGS, MARKER, SEAL, STORE
from timeagent.errors import BadRequest, Environment, TenureError

from ..evidence.tree import LedgerFile, Tree
from .parts import PARTS, Part, Unit

_APPLICATION: Final = 0x544E5552
"""Names a file as an index of ours."""
INDEX_FORMAT: Final = 18
"""What is in such a file. Another format is never read; the next audit into the file begins it anew."""
type Database = apsw.Connection
READ_CACHE_KIB: Final = 8 * 1024
"""What a file that is only read may take of memory."""
INDEX_ERRORS: Final = (apsw.Error, msgspec.DecodeError, UnicodeDecodeError, json.JSONDecodeError)
"""What a damaged index file, or a full disk, raises."""
_ALL_TABLES: Final = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
COMMIT_BYTES: Final = 32 * 1024 * 1024
"""So much may be lost when the audit is killed; an interrupt loses nothing."""
_SMALL_BYTES: Final = 64 * 1024 * 1024
_PACKAGES: Final = ("auditor", "appliance/formats", "timeagent")
CHECKSUM_BYTES: Final = 16


def _opened(path: Path, flags: int) -> Database:
    """Open a file by a URI, in which every byte is escaped: by its name apsw takes none that is no UTF-8."""
    return apsw.Connection(f"file:%{os.fsencode(path).hex('%')}", flags=flags | apsw.SQLITE_OPEN_URI)


def open_index(path: Path) -> Database:
    """Open the file of an audit to read, as it is now: who writes to it waits until this is closed.

    Raises BadRequest with the way out for what is none, is of another format, or is being written; Environment where it
    cannot be read.
    """
    again = "make it with: tenure audit PATH --db FILE"
    if not path.is_file():
        raise BadRequest("no-index", f"{path} is not there", hint=again)
    try:
        db = _opened(path, apsw.SQLITE_OPEN_READONLY)
        ((ours,),) = db.execute("PRAGMA application_id")
        ((stated,),) = db.execute("PRAGMA user_version")
        if ours != _APPLICATION:
            raise BadRequest("not-an-index", f"{path} is no index of an audit", hint=again)
        if stated != INDEX_FORMAT:
            what = f"{path} is an index of format {stated}; this version reads format {INDEX_FORMAT}"
            raise BadRequest("other-index-format", what, hint=again)
        db.execute(f"PRAGMA cache_size = -{READ_CACHE_KIB}")
        db.execute("BEGIN")
        db.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    except (apsw.NotADBError, apsw.CorruptError):
        raise BadRequest("not-an-index", f"{path} is no index of an audit", hint=again) from None
    except (apsw.BusyError, apsw.ReadOnlyError, apsw.CantOpenError) as problem:
        hint = "wait for the audit that writes it; where none does, one was killed: audit into it again"
        raise BadRequest("index-in-use", f"{path} cannot be read: {problem}", hint=hint) from None
    except apsw.Error as problem:
        raise index_problem(path, problem) from None
    return db


def write_index(path: Path) -> Database:
    """Open the file of an audit to write, in a transaction; make it where there is none.

    Raises BadRequest for a file that is no index, or that another audit has; Environment where nothing can be written.
    """
    try:
        db = _opened(path, apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
    except apsw.Error as problem:
        hint = "name a file in a directory that you may write to"
        raise Environment("index-failed", f"{path} cannot be made: {problem}", hint=hint) from None
    try:
        ((ours,),) = db.execute("PRAGMA application_id")
        ((stated,),) = db.execute("PRAGMA user_version")
        tables = db.execute(_ALL_TABLES).fetchall()
        if ours not in (0, _APPLICATION) or (ours == 0 and tables):
            raise BadRequest("not-an-index", f"{path} is no index of an audit", hint="name another file")
        for (table,) in tables if stated != INDEX_FORMAT else ():
            db.execute(f"DROP TABLE {table}")
        db.execute(f"PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {INDEX_FORMAT}").fetchall()
        db.execute("PRAGMA synchronous = OFF; PRAGMA cache_size = -65536; BEGIN IMMEDIATE").fetchall()
    except (apsw.NotADBError, apsw.CorruptError):
        raise BadRequest("not-an-index", f"{path} is no index of an audit", hint="name another file") from None
    except apsw.Error as problem:
        raise index_problem(path, problem) from None
    return db


def index_problem(path: Path | None, problem: Exception) -> TenureError:
    """Return what is to be said of an INDEX_ERROR. ``path``: None where the index is gone with the audit."""
    if path and isinstance(problem, apsw.BusyError | apsw.ReadOnlyError | apsw.CantOpenError):
        hint = "end the audit, replay or screen that has it open, or name another"
        return BadRequest("index-in-use", f"{path} cannot be written: {problem}", hint=hint)
    hint = "make room on the disk, or name another place (--db, or TMPDIR); remove the file if it was damaged"
    return Environment("index-failed", f"the index {path or 'of this audit'} failed: {problem}", hint=hint)


@contextmanager
def all_or_nothing(db: Database) -> Iterator[None]:
    """Have what a block writes written as a whole, or not at all. Raises what the block raises."""
    db.execute("SAVEPOINT whole")
    try:
        yield
    except BaseException:
        with suppress(apsw.Error):  # of a full disk everything is rolled back already
            db.execute("ROLLBACK TO whole; RELEASE whole")
        raise
    db.execute("RELEASE whole")


def keep_index(db: Database) -> None:
    """Make sure that all that was written is in the file. Raises an INDEX_ERROR, also where somebody reads it."""
    db.execute("COMMIT")


def close_index(db: Database) -> None:
    """Let go of a file. What cannot be written any more is lost, and nothing is said: it was, where it failed."""
    with suppress(apsw.Error):
        if db.in_transaction:
            db.execute("COMMIT")
    db.close()


def temporary_database() -> Database:
    """Open a database in memory, which spills over to a file without name, and is gone when it is closed."""
    db = apsw.Connection("")
    db.execute("PRAGMA synchronous = OFF; PRAGMA journal_mode = OFF; PRAGMA cache_size = -65536; BEGIN").fetchall()
    return db


class PartStore:
    """The parts in an index file.

    What a part was read from is named by what is below its directory: name, size, identity, times of change of each
    file, the names of directories, and the contents of lock files and seals. Copying a file, or writing to it, changes
    that; whoever can change a file's contents and hide it from the file system deceives a second run, so that
    ``--reread`` reads everything. All parts are forgotten when the cluster's records are others, or the judge itself.
    """

    def __init__(self, db: Database, environment: bytes, *, reread: bool = False) -> None:
        """Take the file of an audit. ``environment``: what every part depends on; ``reread``: believe no part."""
        self._db = db
        self._db.execute("CREATE TABLE IF NOT EXISTS part (unit TEXT PRIMARY KEY, state BLOB, part BLOB)")
        self._db.execute("CREATE TABLE IF NOT EXISTS environment (digest BLOB)")
        known = [row[0] for row in self._db.execute("SELECT digest FROM environment")]
        if reread or known != [environment]:
            self._db.execute("DELETE FROM part")
            self._db.execute("DELETE FROM environment")
            self._db.execute("INSERT INTO environment VALUES (?)", (environment,))
        self._states = dict(self._db.execute("SELECT unit, state FROM part"))
        self._waiting = 0
        self._environment = environment
        self._asked: dict[str, bytes] = {}
        self._chains = b""

    @staticmethod
    def state(tree: Tree, unit: Unit) -> bytes:
        """Return a digest of what the unit is read from."""
        paths = [unit.path] if isinstance(unit, LedgerFile) else sorted(tree.below(unit.path))
        state = hashlib.sha256()
        for path in paths:
            known = "" if path.endswith("/") else tree.identity(path)  # a directory is what is in it
            state.update(f"{path}\0{known}\0".encode())
            if path.endswith((f"/{LOCK}", f"/{SEAL}")):
                state.update(hashlib.sha256(tree.read(path, _SMALL_BYTES) or b"").digest())
        return state.digest()

    def has(self, name: str, state: bytes) -> bool:
        self._asked[name] = state
        return self._states.get(name) == state

    def see_chains(self, tree: Tree) -> None:
        """Take the ceiling chains as they are before they are read: what is linked later is not in the timeline."""
        state = hashlib.sha256()
        for file in tree.chains():
            state.update(f"{file.path}\0{tree.identity(file.path)}\0".encode())
        self._chains = state.digest()

    def digest(self) -> bytes:
        """Return a digest of all that was asked for, of what it depends on, and of the ceiling chains."""
        whole = hashlib.sha256(self._environment)
        for name, state in sorted(self._asked.items()):
            whole.update(f"{name}\0".encode() + state)
        return hashlib.sha256(whole.digest() + self._chains).digest()

    def get(self, name: str) -> Part:
        """Return a part that it has. Raises BadRequest where the file was damaged."""
        try:
            ((raw,),) = self._db.execute("SELECT part FROM part WHERE unit = ?", (name,))
            assert isinstance(raw, bytes)
            if _checksum(raw[CHECKSUM_BYTES:]) != raw[:CHECKSUM_BYTES]:
                raise ValueError("its checksum does not match")  # noqa: TRY301 - caught with all that is wrong with a part
            return PARTS.decode(raw[CHECKSUM_BYTES:])
        except (ValueError, msgspec.DecodeError) as problem:
            raise BadRequest(
                "not-an-index", f"the index holds no part {name}: {problem}", hint="remove it, and audit again"
            ) from None

    def keep(self, name: str, state: bytes, part: bytes) -> None:
        """Keep a part. Whatever is kept survives an interrupt."""
        self._db.execute("INSERT OR REPLACE INTO part VALUES (?, ?, ?)", (name, state, _checksum(part) + part))
        self._waiting += len(part)
        if self._waiting >= COMMIT_BYTES:
            self._db.execute("COMMIT")
            self._db.execute("BEGIN IMMEDIATE")
            self._waiting = 0

    def keep_only(self, names: Iterable[str]) -> None:
        for name in self._states.keys() - set(names):
            self._db.execute("DELETE FROM part WHERE unit = ?", (name,))


def _checksum(part: bytes) -> bytes:
    """Return what a part begins with in the file: bits of a database change, and it does not say so."""
    return hashlib.sha256(part).digest()[:CHECKSUM_BYTES]


def environment(tree: Tree, root_key: bytes | None, *, hashed: bool = True, timeline: bool = False) -> bytes:
    """Return a digest of what every part depends on: the cluster's records, the pinned root key, and the judge.

    ``hashed``: whether every byte was hashed; ``timeline``: whether parts hold events.
    """
    state = hashlib.sha256((root_key or b"none") + (b"" if hashed else b" unhashed"))
    state.update(b" timeline" if timeline else b"")
    place = Path(__file__).parents[2]
    for package in _PACKAGES:
        for file in sorted((place / package).rglob("*.py")):
            state.update(hashlib.sha256(file.read_bytes()).digest())
    for path in (MARKER, *sorted(path for each in ("policy", "trust", "map") for path in tree.files_below(each))):
        state.update(path.encode() + b"\0")
        state.update(hashlib.sha256(tree.read(path, _SMALL_BYTES) or b"").digest())
    for path in (f"{LOGS}/{log}/{name}" for log in tree.logs() for name in (BIRTH, STORE)):
        state.update(hashlib.sha256(tree.read(path, _SMALL_BYTES) or b"").digest())
    return state.digest()
