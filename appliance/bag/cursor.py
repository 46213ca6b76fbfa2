"""Cursors: where a reading of a log stopped, as text that can be kept anywhere and given back at any time.

``c1.`` and the URL-safe base64, without padding, of a record. It names its log, so that it cannot be given to another
by mistake. What comes after it is read again exactly once: it holds a whole position, not only an instant.
"""

from __future__ import annotations

import base64
from typing import Annotated, Final

import msgspec

from timeagent.canonical import U64, Record, decode, encode
from timeagent.errors import BadRequest, Damaged

from .message import Position

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
