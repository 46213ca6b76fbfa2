"""Events in a database: in order of time, in blocks; and of all that they are about, lists of where they stand.

An event's *position* is its number in order of time, from 1 up. It is a row of numbers in a block, which tells it
together with what many share: the bytes of an entry and its batch, the data file and the clock of a frame that columns
judged, or, of any other, all of it as bytes. A list of positions is one value, in order; so it costs what is in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from appliance.formats.witness import Ended, Witness
from auditor.columns.layout import Numbering
from auditor.columns.layout import Rows as ColumnRows
from auditor.evidence.finding import Evidence
from timeagent.units import Instant

from ..columns.events import KINDS, ClockReading, Event, FrameFile, FrameWritten, StatedBatch
from ..columns.index import Database

type Numbers = NDArray[np.int64]

SCHEMA: Final = """
CREATE TABLE block (number INTEGER PRIMARY KEY, instant INTEGER, rows BLOB, leases BLOB);
CREATE INDEX block_at ON block (instant);
CREATE TABLE piece (id INTEGER PRIMARY KEY, value BLOB);
CREATE TABLE text (id INTEGER PRIMARY KEY, text TEXT);
CREATE TABLE posting (list INTEGER, key TEXT, part INTEGER, positions BLOB, more BLOB, PRIMARY KEY (list, key, part));
"""
BLOCK_EVENTS: Final = 128
"""So many events lie together."""
PIECE_BYTES: Final = 32 * 1024
"""So much of what entries and events say is read at once."""
BLOCKS_AT_HAND: Final = 64
PIECES_AT_HAND: Final = 256
NAMES_AT_HAND: Final = 4_096


class EventRow(NamedTuple):
    """How an event is kept: a row of numbers."""

    instant: Instant
    kind: int
    path: int
    offset: int
    length: int
    stated: int
    """Of an entry of a ledger the piece with its batch; of a frame that columns judged that with its data file."""
    clock: int
    """Of such a frame the piece with what its clock said."""
    place: int
    """Of an entry its place in the batch; of such a frame its sequence."""
    piece: int
    at: int
    size: int
    """Where the bytes of an entry are, or of an event that no column tells."""
    messages: int
    first: Instant
    """Of a frame its lowest timestamp; of what tells of a lease when that was first told of."""
    last: Instant
    """Of any frame the highest timestamp that readers were given; of what tells of a session lease its expiry; of what
    tells of a lease until when that lasted at most."""
    begins: bool


_SMALL: Final = dict.fromkeys(("path", "stated", "clock", "piece", "at", "size"), "I")
_CODES: Final = dict.fromkeys(EventRow._fields, "q") | {"kind": "B", "begins": "?"} | _SMALL
EVENT: Final = np.dtype([(name, f"<{code}") for name, code in _CODES.items()])
ORDER: Final = np.dtype([("maker", "<u4"), ("sequence", "<i8"), ("place", "<i8"), ("rank", "<i8")])
"""What orders events of one instant and kind: who said it, its own order, the rank."""
_LEASE: Final = np.dtype([("event", "<u4"), ("domain", "<u4"), ("cid", "<u8", (2,))])
"""A lease that an event is about: of what a block holds, its place in the block."""
_LEASE_READ: Final = np.dtype([("event", "<u4"), ("domain", "<u4"), ("cid", "V16")])
WHOLE: Final[tuple[msgspec.msgpack.Decoder[Event], ...]] = tuple(msgspec.msgpack.Decoder(kind) for kind in KINDS)
_entries: Final = msgspec.msgpack.Decoder(Witness | Ended)
_encoder: Final = msgspec.msgpack.Encoder()


class Posting(IntEnum):
    """The lists of positions, each by a text of its own, and some by a number beside it."""

    KIND = 0
    PATH = 1
    """By the path that its bytes are at."""
    NODE = 2
    """By the node whose clock it is by."""
    ABOUT = 3
    """By the domain that it is about: what is told of its leases, and frames written under them."""
    TOLD = 4
    """The same without frames."""
    BAG = 5
    """Frames, by the log and the beginning of their bag."""
    FILE = 6
    """Frames, by their data file."""
    LISTED = 7
    """Bags that were closed, by path."""
    CEILING = 8
    SESSION = 9
    SESSION_OVER = 10


MORE: Final = {
    Posting.PATH: ("offset",),
    Posting.BAG: ("last",),
    Posting.SESSION: ("last",),
    Posting.TOLD: ("first", "last"),
}
"""What a list holds of each of its events beside the position."""


def session_key(run: bytes, identifier: bytes) -> str:
    """Return by what a session lease is found."""
    return f"{run.hex()}/{identifier.hex()}"


class EventStore:
    """Puts events in order: blocks of rows, and for each thing that events are about a list of their positions."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._rows: list[ColumnRows] = []
        self._order: list[ColumnRows] = []
        self._count = 0
        self._leases: list[ColumnRows] = []
        """What frames that columns judged were written under."""
        self._told: list[ColumnRows] = []
        self._posted: list[Numbers] = []
        self._keys: Numbering[tuple[str, int]] = Numbering()
        self._kinds = np.array([self.key(kind.__name__) for kind in KINDS])
        self._makers: Numbering[tuple[str, bytes]] = Numbering()
        self._shared: dict[bytes, int] = {}
        self._piece = 0

    def key(self, text: str, part: int = 0) -> int:
        """Return the number of what events are about."""
        return self._keys.of((text, part))

    def keys(self, texts: Iterable[str]) -> Numbers:
        return np.array([self._keys.of((text, 0)) for text in texts], np.int64)

    def makers(self, makers: Iterable[tuple[str, bytes]]) -> Numbers:
        """Return the numbers of those who signed, and of their runs."""
        return self._makers.all_of(makers).astype(np.int64)

    def piece(self, value: bytes) -> int:
        """Write bytes; return their number, from 1 up."""
        self._piece += 1
        self._db.execute("INSERT INTO piece VALUES (?, ?)", (self._piece, value))
        return self._piece

    def shared(self, values: Iterable[msgspec.Struct]) -> Numbers:
        """Return the numbers of values that many events share; each is written once."""
        found = []
        for raw in map(_encoder.encode, values):
            if raw not in self._shared:
                self._shared[raw] = self.piece(raw)
            found.append(self._shared[raw])
        return np.array(found, np.int64)

    def cut(self, rows: ColumnRows, raw: bytes, at: Numbers) -> None:
        """Write bytes in pieces, and say in rows in which of them each entry is. ``at``: where it begins."""
        begins = np.sort(at)
        cuts = [0, *begins[beginnings(begins // PIECE_BYTES)][1:].tolist()]
        pieces = np.array([self.piece(raw[first:end]) for first, end in pairwise([*cuts, len(raw)])])
        which = np.searchsorted(cuts, at, "right") - 1
        rows["piece"], rows["at"] = pieces[which], at - np.array(cuts)[which]

    def add(self, rows: ColumnRows, order: ColumnRows, nodes: Numbers) -> Numbers:
        """Take events. ``nodes``: the key of whose clock each is by, -1 for none. Returns their numbers."""
        events = np.arange(self._count, self._count + len(rows))
        self._count += len(rows)
        self._rows.append(rows)
        self._order.append(order)
        self.post(Posting.KIND, self._kinds[rows["kind"]], events)
        self.post(Posting.PATH, rows["path"], events)
        self.post(Posting.NODE, nodes[nodes >= 0], events[nodes >= 0])
        return events

    def post(self, posting: Posting, keys: NDArray[Any], events: Numbers) -> None:
        """Take what events are about."""
        self._posted.append((np.int64(posting) << 58) | (keys.astype(np.int64) << 32) | events)

    def of_leases(self, events: Numbers, domains: Numbers, cids: NDArray[np.uint64], *, told: bool) -> None:
        """Take which leases events are about. ``told``: they say something of them; ``last``: until when they last."""
        self.post(Posting.ABOUT, domains, events)
        if told:
            self.post(Posting.TOLD, domains, events)
        leases = np.zeros(len(events), _LEASE)
        leases["event"], leases["domain"], leases["cid"] = events, domains, cids
        (self._told if told else self._leases).append(leases)

    def finish(self) -> None:
        """Write everything, in order."""
        self._db.executemany("INSERT INTO text VALUES (?, ?)", enumerate(text for text, _ in self._keys.values))
        if not self._count:
            return
        rows, order = np.concatenate(self._rows), np.concatenate(self._order)
        makers = self._makers.listed()
        ranks = np.empty(len(makers), np.int64)
        ranks[sorted(range(len(makers)), key=makers.__getitem__)] = np.arange(len(makers))
        by = (order["rank"], order["place"], order["sequence"], ranks[order["maker"]])
        chosen = np.lexsort((*by, rows["kind"], rows["instant"]))
        rows = rows[chosen]
        positions = np.empty(len(rows), np.int64)
        positions[chosen] = np.arange(1, len(rows) + 1)
        self._span(rows, positions)
        self._write_postings(rows, positions)
        self._write_blocks(rows, positions)

    def _write_blocks(self, rows: ColumnRows, positions: Numbers) -> None:
        leases = np.concatenate([*self._leases, np.zeros(0, _LEASE)])
        at = positions[leases["event"]] - 1
        order = np.argsort(at, kind="stable")
        leases, at = leases[order], at[order]
        leases["event"] = at % BLOCK_EVENTS
        for number, first in enumerate(range(0, len(rows), BLOCK_EVENTS)):
            end = first + BLOCK_EVENTS
            part, under = rows[first:end], leases[slice(*np.searchsorted(at, (first, end)))]
            values = (number, int(part["instant"][0]), part.tobytes(), under.tobytes())
            self._db.execute("INSERT INTO block VALUES (?, ?, ?, ?)", values)

    def _write_postings(self, rows: ColumnRows, positions: Numbers) -> None:
        posted = np.concatenate(self._posted)
        posted = np.sort((posted >> 32 << 32) | positions[posted & 0xFFFFFFFF])
        posted = posted[beginnings(posted)]
        found = (posted & 0xFFFFFFFF).astype("<u4")
        keys, cuts = self._keys.listed(), np.flatnonzero(beginnings(posted >> 32)).tolist()
        for first, end in pairwise([*cuts, len(posted)]):
            key, part = int(posted[first] >> 32), found[first:end]
            posting, (text, number) = Posting(key >> 26), keys[key & 0x3FFFFFF]
            if posting is Posting.FILE:
                rows["begins"][found[first] - 1] = True
            more = b"".join(rows[column][part - 1].tobytes() for column in MORE.get(posting, ()))
            values = (posting, text, number, part.tobytes(), more)
            self._db.execute("INSERT INTO posting VALUES (?, ?, ?, ?, ?)", values)

    def _span(self, rows: ColumnRows, positions: Numbers) -> None:
        """Say in all that tells of a lease since when and until when that lasted."""
        told = np.concatenate([*self._told, np.zeros(0, _LEASE)])
        names = told["domain"], told["cid"][:, 0], told["cid"][:, 1]
        at = positions[told["event"]] - 1
        order = np.lexsort((at, *names))
        at, begins = at[order], beginnings(*(each[order] for each in names))
        if len(at):
            lease, firsts = np.cumsum(begins) - 1, np.flatnonzero(begins)
            rows["last"][at] = np.maximum.reduceat(rows["last"][at], firsts)[lease]
            rows["first"][at] = rows["instant"][at[firsts]][lease]


def beginnings(*columns: NDArray[Any]) -> NDArray[np.bool_]:
    """Say of each of some sorted rows whether it differs from the one before it."""
    found = np.zeros(len(columns[0]), np.bool_)
    found[:1] = True
    for each in columns:
        found[1:] |= each[1:] != each[:-1]
    return found


class _Block:
    """Events that lie together, each read when it is asked for."""

    def __init__(self, rows: bytes, leases: bytes) -> None:
        self.rows: ColumnRows = np.frombuffer(rows, EVENT)
        self.leases: ColumnRows = np.frombuffer(leases, _LEASE_READ)
        self.events: list[Event | None] = [None] * len(self.rows)


def _kept[T](db: Database, size: int, sql: str, made: Callable[..., T]) -> Callable[[int], T]:
    """Return what reads a row by its number; those that were asked for last are in memory."""

    def asked(number: int) -> T:
        (row,) = db.execute(sql, (number,))
        return made(*row)

    return lru_cache(size)(asked)


class StoredEvents(Sequence[Event]):
    """All events in order of time; those that were asked for last are in memory."""

    def __init__(self, db: Database) -> None:
        self._count = self._size = 0
        for number, rows in db.execute("SELECT number, length(rows) FROM block ORDER BY number DESC LIMIT 1"):
            ((first,),) = db.execute("SELECT length(rows) FROM block WHERE number = 0")
            self._size = first // EVENT.itemsize
            self._count = number * self._size + rows // EVENT.itemsize
        self._db = db
        # Of the database, not of this: who lets go of a timeline lets go of the file.
        piece = "SELECT value FROM piece WHERE id = ?"
        self._block = _kept(db, BLOCKS_AT_HAND, "SELECT rows, leases FROM block WHERE number = ?", _Block)
        self._piece = _kept(db, PIECES_AT_HAND, piece, bytes)
        self._text = _kept(db, NAMES_AT_HAND, "SELECT text FROM text WHERE id = ?", str)
        self._batch = _kept(db, NAMES_AT_HAND, piece, msgspec.msgpack.Decoder(StatedBatch).decode)
        self._file = _kept(db, NAMES_AT_HAND, piece, msgspec.msgpack.Decoder(FrameFile).decode)
        self._clock = _kept(db, NAMES_AT_HAND, piece, msgspec.msgpack.Decoder(ClockReading).decode)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Event]:
        """Yield every event, each read when it is asked for."""
        return self.at(range(1, self._count + 1))

    def __getitem__(self, number: int) -> Event:  # type: ignore[override]
        """Return an event by its number in order of time, from 0 up."""
        if not 0 <= number < self._count:
            raise IndexError(number)
        block, place = self._block(number // self._size), number % self._size
        event = block.events[place]
        if event is None:
            event = block.events[place] = self._read(EventRow(*block.rows[place].item()), block, place)
        return event

    def _read(self, row: EventRow, block: _Block, place: int) -> Event:
        if row.clock:
            leases = block.leases[block.leases["event"] == place]
            file, clock, span = self._file(row.stated), self._clock(row.clock), (row.first, row.last)
            return FrameWritten(
                instant_ns=row.instant,
                place=(f"writer {file.writer}", file.incarnation, row.place, 0),
                clock=clock,
                where=Evidence(self._text(row.path), row.offset, row.length),
                log=file.log,
                bag_ns=file.bag_ns,
                file=file.file,
                writer=file.writer,
                incarnation=file.incarnation,
                sequence=row.place,
                messages=row.messages,
                first_ns=row.first,
                last_ns=row.last,
                accepted=(0, row.messages),
                accepted_ns=span,
                listed=True,
                void_because="",
                leases=tuple((self._text(domain), cid) for _, domain, cid in leases.tolist()),
                begins=row.begins,
            )
        raw = self._piece(row.piece)[row.at : row.at + row.size]
        if not row.stated:
            event = WHOLE[row.kind].decode(raw)
            return msgspec.structs.replace(event, begins=True) if row.begins else event
        where = Evidence(self._text(row.path), row.offset, row.length)
        return next(self._batch(row.stated).told(_entries.decode(raw), b"", row.place, where))[0]

    # Positions.

    def instant(self, position: int) -> Instant:
        """Return the instant of the event at a position; 0 for 0."""
        number = position - 1
        return int(self._block(number // self._size).rows["instant"][number % self._size]) if position else 0

    def until(self, instant: Instant, *, without: bool = False) -> int:
        """Return how many events lie at or before an instant; ``without``: only before it."""
        at = min(instant, 2**63 - 1)
        sql = f"SELECT number FROM block WHERE instant {'<' if without else '<='} ? ORDER BY instant DESC, number DESC"  # noqa: S608 - ours
        for (number,) in self._db.execute(f"{sql} LIMIT 1", (at,)):
            instants = self._block(number).rows["instant"]
            return int(number) * self._size + int(np.searchsorted(instants, at, "left" if without else "right"))
        return 0

    def at(self, positions: Iterable[int]) -> Iterator[Event]:
        """Yield the events at some positions, each read when it is asked for."""
        for position in positions:
            yield self[position - 1]

    def listed(self, posting: Posting, key: str, part: int = 0) -> NDArray[np.uint32]:
        """Return a list of positions, in order."""
        return self.listed_with(posting, key, part)[0]

    def listed_with(self, posting: Posting, key: str, part: int = 0) -> tuple[NDArray[np.uint32], Numbers]:
        """Return a list of positions, and the rows of what it holds beside them."""
        nothing = np.zeros(0, np.uint32), np.zeros((len(MORE.get(posting, ())), 0), np.int64)
        return next(self.lists(posting, key, part, part + 1), nothing)

    def lists(self, posting: Posting, key: str, first: int, end: int) -> Iterator[tuple[NDArray[np.uint32], Numbers]]:
        """Yield the lists of one key whose numbers lie within [first, end), the highest first."""
        sql = "SELECT positions, more FROM posting WHERE list = ? AND key = ? AND part >= ? AND part < ?"
        for positions, more in self._db.execute(f"{sql} ORDER BY part DESC", (posting, key, first, end)):
            found = np.frombuffer(positions, "<u4")
            yield found, np.frombuffer(more, "<i8").reshape(-1, len(found))

    def beginning_at(self, where: Evidence) -> list[int]:
        """Return the positions of the events whose bytes begin there."""
        positions, (offsets,) = self.listed_with(Posting.PATH, where.path)
        return [int(each) for each in positions[offsets == where.offset]]
