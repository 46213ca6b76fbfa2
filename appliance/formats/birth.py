"""What is fixed for ever about a cluster, by the file TENURE at its root, and about a log, by its birth record.

The marker is plain text, so that people can read it too. A birth record is stamped by the node that made the log, and
stands at the cluster's root. The bags stand there too, or in the store that it names.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from timeagent.canonical import U64, Bytes16, Record, decode
from timeagent.errors import BadConfiguration, BadRequest, Damaged
from timeagent.keys import fingerprint, parse_public_line, public_line
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


def checked_kind(kind: str) -> BagKind:
    """Return the kind of that name. Raises BadRequest."""
    if kind not in BagKind:
        raise BadRequest("bad-kind", f"{kind!r} is no kind of log", hint=f"name {' or '.join(BagKind)}")
    return BagKind(kind)


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


ROOT_VARIABLE: Final = "TENURE_ROOT"
"""The environment variable that names the root where a command is not told it."""

FORMAT: Final = 1
FORMAT_DIGITS_MAX: Final = 6


@dataclass(frozen=True, slots=True)
class Marker:
    """Which cluster a root belongs to, and the public half of its root key."""

    cluster_id: bytes
    root_key: bytes

    def encode(self) -> bytes:
        return (
            f"tenure root, format {FORMAT}\ncluster {self.cluster_id.hex()}\n"
            f"{public_line(self.root_key, 'tenure-root')}\n"
        ).encode("ascii")

    @property
    def fingerprint(self) -> str:
        """What to compare by eye: the root key's fingerprint."""
        return fingerprint(self.root_key)


def format_of(data: bytes) -> int | None:
    """Return the format that a marker states; None where it states none."""
    words = data.split(b"\n", 1)[0].removeprefix(b"tenure root, format ")
    return int(words) if words.isdigit() and len(words) <= FORMAT_DIGITS_MAX else None


def decode_marker(data: bytes, where: str) -> Marker:
    """Read the file. Raises Damaged, naming ``where``, also for a format that this version does not know."""
    lines = data.decode("ascii", "replace").splitlines()
    head = f"tenure root, format {FORMAT}"
    if len(lines) != 3 or lines[0] != head or not lines[1].startswith("cluster "):  # noqa: PLR2004 - head, cluster, root key
        raise Damaged("bad-marker", f"{where} is not the marker of a tenure root: it must begin with {head!r}")
    try:
        marker = Marker(bytes.fromhex(lines[1].removeprefix("cluster ")), parse_public_line(lines[2], where))
    except ValueError:
        raise Damaged("bad-marker", f"{where} names no cluster: {lines[1]!r}") from None
    except BadConfiguration as problem:
        raise Damaged("bad-marker", problem.message) from None
    if len(marker.cluster_id) != 16 or marker.encode() != data:  # noqa: PLR2004 - bytes of an id
        raise Damaged("bad-marker", f"{where} is not written as this version writes it")
    return marker
