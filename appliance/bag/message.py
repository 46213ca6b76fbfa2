"""Messages of the record, one by one and in bulk, their places in the order of a log, and cursors.

The order is (timestamp, writer, incarnation, sequence, index). A writer that broke its own rules may have put several
frames under one sequence into a bag: their *twin* numbers, by digest, stand between sequence and index.

A cursor says as text where a reading stopped: ``c1.`` and the URL-safe base64, without padding, of a record. It names
its log, so that it cannot be given to another by mistake. What comes after it is read again exactly once: it holds a
whole position, not only an instant.

In bulk, the accepted messages of one bag are columns, in order, and ``Message`` objects only when asked for. A batch is
made of *parts*: of each frame a stretch of messages, since every rule of acceptance and every bound of a reading allows
one interval of timestamps, and those of a frame increase. So nothing is copied until somebody asks, and small bags,
which are most, never pay for arrays.
"""

from __future__ import annotations

import base64
import bisect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Final, NamedTuple

import msgspec

from appliance.formats.framing import Frame
from timeagent.canonical import U64, Record, decode, encode
from timeagent.core import NDArray, np
from timeagent.errors import BadRequest, Damaged, check_type
from timeagent.units import Instant, rfc3339  # here, not for type checkers only: `help` looks at the types of a struct

type Rank = tuple[str, bytes, int, int]
"""What orders messages of one timestamp before their index: writer, incarnation, sequence, twin."""


class Position(NamedTuple):
    """A place in the order of a log, compared as a tuple. No message stands at the positions that ``before`` makes."""

    timestamp_ns: Instant
    writer: str
    incarnation: bytes
    sequence: int
    twin: int
    place: int
    """The message's index in its frame."""

    @property
    def rank(self) -> Rank:
        """All but timestamp and place."""
        return self.writer, self.incarnation, self.sequence, self.twin


def before(instant: Instant) -> Position:
    """Return the position below every message with this timestamp or a higher one, above all others."""
    return Position(instant, "", b"", 0, 0, 0)


START: Final = before(0)
_SHOWN: Final = 64
"""So many bytes of a payload are shown to people."""


@dataclass(frozen=True, eq=False)
class FrameOrigin:
    """A frame that a reader accepts, with where it stands."""

    frame: Frame
    bag_path: str
    file_name: str
    domains: tuple[str, ...]
    """What its writer had leases on."""
    twin: int = 0

    @cached_property
    def rank(self) -> Rank:
        """Where the frame stands among those of its bag."""
        head = self.frame.head
        return head.writer, head.incarnation, head.sequence, self.twin

    @cached_property
    def _attempt_ends(self) -> list[int]:
        return list(itertools.accumulate(attempt.messages for attempt in self.frame.head.attempts))

    def attempt_id(self, index: int) -> bytes:
        return self.frame.head.attempts[bisect.bisect_right(self._attempt_ends, index)].id


class Message(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One message of the record. Equal to every other reading of the same message."""

    timestamp_ns: Instant
    index: int
    """Its place in its frame."""
    payload: bytes
    origin: FrameOrigin

    def __repr__(self) -> str:
        more = f" of {len(self.payload)} bytes" if len(self.payload) > _SHOWN else ""
        said = f"{self.payload[:_SHOWN]!r}{more}"
        return f"<Message {rfc3339(self.timestamp_ns)} {said} of {self.writer} in {self.log}>"

    @property
    def writer(self) -> str:
        return self.origin.frame.head.writer

    @property
    def incarnation(self) -> bytes:
        return self.origin.frame.head.incarnation

    @property
    def sequence(self) -> int:
        return self.origin.frame.head.sequence

    @property
    def attempt_id(self) -> bytes:
        return self.origin.attempt_id(self.index)

    @property
    def domains(self) -> tuple[str, ...]:
        return self.origin.domains

    @property
    def log(self) -> str:
        return self.origin.frame.head.log

    @property
    def bag_path(self) -> str:
        """The bag that it is in, also when the bag is part of a pack by now."""
        return self.origin.bag_path

    @property
    def file_name(self) -> str:
        return self.origin.file_name

    @property
    def position(self) -> Position:
        return Position(self.timestamp_ns, *self.origin.rank, self.index)

    def __eq__(self, other: object) -> bool:
        """Whether it is the same message with the same content."""
        if not isinstance(other, Message):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash((self.position, self.payload))

    def _identity(self) -> tuple[object, ...]:
        return self.position, self.payload, self.log, self.attempt_id, self.domains, self.bag_path, self.file_name


PREFIX: Final = "c1."
_HINT: Final = "give it back as it was printed, or name an instant"


class _Cursor(Record, frozen=True):
    """A ``Position`` in a log. ``writer`` and ``incarnation`` are empty between two instants."""

    log: str
    timestamp_ns: U64
    writer: str
    incarnation: Annotated[bytes, msgspec.Meta(max_length=8)]
    sequence: U64
    twin: U64
    place: U64


def cursor_text(log: str, position: Position) -> str:
    """Return the position as text: printable ASCII without spaces, some hundred characters."""
    raw = encode(_Cursor(log=log, **position._asdict()))
    return PREFIX + base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")


def is_cursor(text: str) -> bool:
    """Whether the text is meant as a cursor: no instant begins like that."""
    return text.startswith(PREFIX)


def parse_cursor(text: str, log: str) -> Position:
    """Read a cursor of this log. Raises BadRequest that names the text, or the other log."""
    bad = BadRequest("bad-cursor", f"{text!r} is no cursor", hint=_HINT)
    if not is_cursor(text):
        raise bad
    body = text.removeprefix(PREFIX)
    try:
        cursor = decode(_Cursor, base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True))
    except (ValueError, Damaged):
        raise bad from None
    if cursor.log != log:
        raise BadRequest("bad-cursor", f"{text!r} is a cursor of the log {cursor.log!r}, not of {log!r}", hint=_HINT)
    return Position(*msgspec.structs.astuple(cursor)[1:])


_SMALL: Final = 48
"""Up to so many messages, sorting tuples is cheaper than making arrays."""


class BatchPart(NamedTuple):
    """Messages ``first`` up to and without ``end`` of a frame; at least one."""

    origin: FrameOrigin
    first: int
    end: int

    @property
    def first_ns(self) -> Instant:
        return int(self.origin.frame.timestamps[self.first])

    @property
    def last_ns(self) -> Instant:
        return int(self.origin.frame.timestamps[self.end - 1])

    @property
    def timestamps(self) -> NDArray[np.int64]:
        return self.origin.frame.timestamps[self.first : self.end]

    def payloads(self) -> list[bytes]:
        return self.origin.frame.payloads(self.first, self.end)

    def above(self, position: Position) -> BatchPart | None:
        """Return what stands above a position, or None."""
        if self.first_ns > position.timestamp_ns:
            return self
        rank, stamps = self.origin.rank, self.origin.frame.timestamps
        equal_are_below = rank < position.rank
        found = stamps.searchsorted(position.timestamp_ns, "right" if equal_are_below else "left")
        first = max(self.first, int(found))
        if rank == position.rank and first < self.end and stamps[first] == position.timestamp_ns:
            first += first <= position.place
        return BatchPart(self.origin, first, self.end) if first < self.end else None

    def up_to(self, until_ns: Instant) -> BatchPart | None:
        """Return what has a timestamp of at most ``until_ns``, or None."""
        if self.last_ns <= until_ns:
            return self
        end = min(self.end, int(self.origin.frame.timestamps.searchsorted(until_ns, "right")))
        return BatchPart(self.origin, self.first, end) if self.first < end else None


class MessageBatch:
    """Accepted messages of one bag in order; or of several logs' bags, merged. Immutable.

    Columns (``timestamps``, ``parts_of``, ``indices``, ``payloads()``) are in the order of the messages and of equal
    length. They are made when first asked for.
    """

    def __init__(self, parts: Sequence[BatchPart], *, settled: bool = True, complete_ns: Instant = 0) -> None:
        """Take parts in order of rank.

        ``settled``: whether the messages are final and nothing can be missing among them. ``complete_ns``: every
        message with a lower timestamp, of what is being read, stands in this batch or one before it.
        """
        self.parts: tuple[BatchPart, ...] = tuple(parts)
        self.settled = settled
        self.complete_ns = complete_ns

    @cached_property
    def _length(self) -> int:
        return sum(part.end - part.first for part in self.parts)

    def __len__(self) -> int:
        return self._length

    @cached_property
    def _runs(self) -> tuple[BatchPart, ...] | None:
        return _runs(self.parts)

    @cached_property
    def _order(self) -> NDArray[np.intp] | None:
        """How to sort what the parts hold end to end; None if the runs are in order already."""
        if self._runs is not None:
            return None
        stamps = np.concatenate([part.timestamps for part in self.parts])
        # A stable sort keeps equal timestamps in the order of the parts, which is that of their ranks.
        return np.argsort(stamps, kind="stable")

    @property
    def _sequence(self) -> tuple[BatchPart, ...]:
        return self.parts if self._runs is None else self._runs

    def _ordered[T: np.generic](self, column: NDArray[T]) -> NDArray[T]:
        return column if self._order is None else column[self._order]

    @cached_property
    def timestamps(self) -> NDArray[np.int64]:
        """Timestamps, nanoseconds, in order: they never fall."""
        stamps = [part.timestamps for part in self._sequence]
        return self._ordered(np.concatenate(stamps) if stamps else np.empty(0, np.int64))

    @cached_property
    def parts_of(self) -> NDArray[np.int64]:
        """For each message the number of its part in ``parts``: writer, incarnation, sequence and domains are there."""
        numbers = {id(part): number for number, part in enumerate(self.parts)}
        which = [numbers[id(part)] for part in self._sequence]
        return self._ordered(np.repeat(np.array(which, np.int64), [part.end - part.first for part in self._sequence]))

    @cached_property
    def indices(self) -> NDArray[np.int64]:
        """For each message its place in its frame."""
        ranges = [np.arange(part.first, part.end) for part in self._sequence]
        return self._ordered(np.concatenate(ranges) if ranges else np.empty(0, np.int64))

    def payloads(self) -> list[bytes]:
        chunks = [part.payloads() for part in self._sequence]
        together = chunks[0] if len(chunks) == 1 else list(itertools.chain.from_iterable(chunks))
        return together if self._order is None else list(map(together.__getitem__, self._order.tolist()))

    def __iter__(self) -> Iterator[Message]:
        if self._runs is not None:
            for part in self._runs:
                columns = zip(part.timestamps.tolist(), range(part.first, part.end), part.payloads(), strict=True)
                for timestamp, index, payload in columns:
                    yield Message(timestamp, index, payload, part.origin)
        elif len(self) <= _SMALL:
            yield from self._few()
        else:
            origins = [part.origin for part in self.parts]
            rows = zip(
                self.timestamps.tolist(), self.indices.tolist(), self.payloads(), self.parts_of.tolist(), strict=True
            )
            for timestamp, index, payload, number in rows:
                yield Message(timestamp, index, payload, origins[number])

    def _few(self) -> Iterator[Message]:
        rows = [
            (timestamp, number, part.first + place, payload)
            for number, part in enumerate(self.parts)
            for place, (timestamp, payload) in enumerate(zip(part.timestamps.tolist(), part.payloads(), strict=True))
        ]
        rows.sort()
        for timestamp, number, index, payload in rows:
            yield Message(timestamp, index, payload, self.parts[number].origin)

    @property
    def last(self) -> Position:
        """The position of the last message. The batch is not empty."""
        if self._runs is not None:
            part = self._runs[-1]
        else:
            # Of several at the highest timestamp, the last part by rank.
            part = max(self.parts, key=lambda each: (each.last_ns, each.origin.rank))
        return Position(part.last_ns, *part.origin.rank, part.end - 1)

    def above(self, position: Position) -> MessageBatch:
        parts = [cut for part in self.parts if (cut := part.above(position)) is not None]
        return MessageBatch(parts, settled=self.settled, complete_ns=self.complete_ns)

    def head(self, count: int) -> MessageBatch:
        """Return the first ``count`` messages: of every part a beginning. Raises BadRequest for less than none."""
        check_type(int, count=count)
        if count < 0:
            raise BadRequest("bad-count", f"the first {count} messages", hint="ask for 0 or more")
        if count >= len(self):
            return self
        counts = np.bincount(self.parts_of[:count], minlength=len(self.parts)).tolist()
        parts = [
            BatchPart(part.origin, part.first, part.first + n) for part, n in zip(self.parts, counts, strict=True) if n
        ]
        return MessageBatch(parts, settled=self.settled, complete_ns=0)

    def split(self, instant: Instant) -> tuple[MessageBatch, MessageBatch]:
        """Return the messages below an instant, and the others."""
        lower = [cut for part in self.parts if (cut := part.up_to(instant - 1)) is not None]
        return MessageBatch(lower, settled=self.settled, complete_ns=instant), self.above(before(instant))


def _runs(parts: tuple[BatchPart, ...]) -> tuple[BatchPart, ...] | None:
    """Return the parts in such an order that their messages follow each other; None if they interleave."""
    if len(parts) < 2:  # noqa: PLR2004 - one part cannot interleave
        return parts
    bounds = sorted((part.first_ns, number, part.last_ns) for number, part in enumerate(parts))
    for (_, one, last), (first, other, _) in itertools.pairwise(bounds):
        if last > first or (last == first and one > other):
            return None
    return tuple(parts[number] for _, number, _ in bounds)


def merged(batches: Sequence[MessageBatch]) -> MessageBatch:
    """Return the messages of several logs as one batch, in order; equal positions in the order of the logs' names."""
    parts = sorted(
        itertools.chain.from_iterable(batch.parts for batch in batches),
        key=lambda part: (part.origin.rank, part.origin.frame.head.log),
    )
    return MessageBatch(
        parts,
        settled=all(batch.settled for batch in batches),
        complete_ns=min((batch.complete_ns for batch in batches), default=0),
    )
