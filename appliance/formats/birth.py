"""A log's birth record: what is fixed about it for ever. Immutable, stamped by the node that made it.

It stands at the cluster's root. The bags stand there too, or in the store that it names.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from timeagent.canonical import U64, Bytes16, Record, decode
from timeagent.errors import BadConfiguration, BadRequest, Damaged
from timeagent.units import DAY, MS, SECOND, span_text

from .framing import Kind
from .stamped import Stamped, open_stamped


class BagKind(StrEnum):
    """How messages get into a log's bags."""

    MAILDIR = "maildir"
    """Each file is complete before it appears."""
    LOG = "log"
    """Files grow by whole frames; each has one process that appends to it."""

    def __init__(self, word: str) -> None:
        self.suffix = "msg" if word == "maildir" else "log"
        """How the names of the data files of such a log end. Others are foreign to it."""


class LogBirth(Record, frozen=True):
    """Kind, and the grid on which the log's bags and racks lie. Another grid is another log."""

    cluster_id: Bytes16
    log: str
    kind: BagKind
    created_ns: U64
    """The start of the first bag, a multiple of the span: nothing of this log is older."""
    span_ns: U64
    grace_ns: U64
    rack_ns: U64
    created_by: str


class PlacedBirth(LogBirth, frozen=True):
    """The birth of a log whose bags are not at the root."""

    store: str
    """Where they are: an absolute path, the same on all nodes, or an address in an object store."""


STORE_CHARACTERS_MAX: Final = 1024
_PLACED: Final = b"\x99"
"""What an array of nine items begins with."""


def check_store(named: str) -> str:
    """Return the name of a store. Raises BadRequest for what can be none."""
    if not (len(named) <= STORE_CHARACTERS_MAX and named.isprintable() and (named.startswith("/") or "://" in named)):
        raise BadRequest(
            "bad-store",
            f"{named[:80]!r} is no store",
            hint=f"an absolute path or an address, of at most {STORE_CHARACTERS_MAX} characters that can be printed",
        )
    return named


def store_of(birth: LogBirth) -> str:
    """Return the store that a log's bags are in; nothing where that is the root."""
    return birth.store if isinstance(birth, PlacedBirth) else ""


def open_birth(data: bytes, where: str) -> tuple[LogBirth, Stamped]:
    """Read a birth record, of whichever log. Raises Damaged."""
    stamped = open_stamped(Kind.BIRTH, data, where)
    birth = decode(PlacedBirth if stamped.body.startswith(_PLACED) else LogBirth, stamped.body, where)
    if isinstance(birth, PlacedBirth):
        try:
            check_store(birth.store)
        except BadRequest as problem:
            raise Damaged("birth-damaged", f"{where}: {problem.message}") from None
    return birth, stamped


SPAN_NS_MIN: Final = 10 * MS


def check_grid(span_ns: int, grace_ns: int, rack_ns: int) -> None:
    """Raise BadConfiguration unless the names of bags and racks can say these numbers exactly.

    Spans are whole milliseconds and divide the rack; racks are whole seconds and divide the day.
    """
    if span_ns < SPAN_NS_MIN or span_ns % MS or grace_ns < 0 or grace_ns % MS or rack_ns % span_ns:
        raise BadConfiguration(
            "bad-grid",
            f"a span of {span_text(span_ns)} with a grace of {span_text(grace_ns)} "
            f"does not fit a rack of {span_text(rack_ns)}",
            hint=f"spans and graces are whole milliseconds, spans at least {span_text(SPAN_NS_MIN)}; "
            "a rack holds whole spans",
        )
    if rack_ns < SECOND or rack_ns % SECOND or DAY % rack_ns:
        raise BadConfiguration(
            "bad-grid", f"a rack of {span_text(rack_ns)} does not divide the day", hint="use 10 s, 1 min, 10 min or 1 h"
        )
