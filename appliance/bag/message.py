"""A message of the record, its place in the order of its log, and cursors: where a reading stopped, as text.

The order is (timestamp, writer, incarnation, sequence, index). A writer that broke its own rules may have put several
frames under one sequence into a bag: their *twin* numbers, by digest, stand between sequence and index.

``c1.`` and the URL-safe base64, without padding, of a record. It names its log, so that it cannot be given to another
by mistake. What comes after it is read again exactly once: it holds a whole position, not only an instant.
"""

from __future__ import annotations

import base64
import bisect
import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Final, NamedTuple

import msgspec

from appliance.formats.framing import Frame
from timeagent.canonical import U64, Record, decode, encode
from timeagent.errors import BadRequest, Damaged
from timeagent.units import Instant  # here, not for type checkers only: `help` looks at the types of a struct

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
        """Return the id of the attempt that a message of the frame belongs to."""
        return self.frame.head.attempts[bisect.bisect_right(self._attempt_ends, index)].id


class Message(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One message of the record. Equal to every other reading of the same message."""

    timestamp_ns: Instant
    index: int
    """Its place in its frame."""
    payload: bytes
    origin: FrameOrigin

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
        """Where it stands in the order of its log."""
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
    """A position in a log. ``writer`` and ``incarnation`` are empty between two instants."""

    log: str
    timestamp_ns: U64
    writer: str
    incarnation: Annotated[bytes, msgspec.Meta(max_length=8)]
    sequence: U64
    twin: U64
    place: U64


def cursor_text(log: str, position: Position) -> str:
    """Return the position as text: printable ASCII without spaces, some hundred characters."""
    raw = encode(
        _Cursor(
            log=log,
            timestamp_ns=position.timestamp_ns,
            writer=position.writer,
            incarnation=position.incarnation,
            sequence=position.sequence,
            twin=position.twin,
            place=position.place,
        )
    )
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
    return Position(cursor.timestamp_ns, cursor.writer, cursor.incarnation, cursor.sequence, cursor.twin, cursor.place)
