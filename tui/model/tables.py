"""Tables: cells of text in columns that fit a width, rows in an order, narrowed and in groups, rows as files.

The same tables on a screen, and as text. Text is measured in cells of a terminal: wide characters take two, combining
ones none. A hundred thousand rows are arranged in a part of a second; so a screen lets a thread do it where there are
many, and keeps what it has until then. An export never writes over a file that is there; all else is pure.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import blake2s
from itertools import groupby
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, Final

import msgspec

from appliance.formats.shardmap import shard_text
from timeagent.console import printable
from timeagent.errors import Environment
from timeagent.units import Instant, TimeInterval, rfc3339

from .state import Cell, LeaseRow, LeaseSubject, Subject, Tone
from .words import condition, lease_row, many_lease_row, matching

ELLIPSIS: Final = "…"
OPEN: Final = "▾"
"""Before what has more below it."""


_NARROW: Final = re.compile("[ -~¡-¬®-ʯ–—‖…←-⇿─-▟■-◼◿●◐✓✗⣀-⣿▸−×]*").fullmatch
"""Text of characters that take a cell each: letters of the west, and the symbols of the screens."""


def _len(text: str) -> int:
    from rich.cells import cell_len  # noqa: PLC0415 - a table of all characters, for those who need it

    return cell_len(text)


def cells_of(text: str) -> int:
    return len(text) if text.isascii() or _NARROW(text) else _len(text)


def head_of(text: str, width: int) -> str:
    """Return the beginning of a text in exactly so many cells; half of a wide character is a space."""
    if text.isascii() or _NARROW(text):
        return text[:width].ljust(width)
    from rich.cells import set_cell_size  # noqa: PLC0415 - see above

    return set_cell_size(text, width)


def tail_of(text: str, width: int) -> str:
    if text.isascii() or _NARROW(text):
        return text[max(0, len(text) - width) :]
    start, room = len(text), width
    while start and (room := room - _len(text[start - 1])) >= 0:
        start -= 1
    return text[start:]


def fitted(text: str, width: int) -> str:
    """Return text in exactly so many cells, one at least; what is cut off is shown by an ellipsis."""
    if cells_of(text) <= width:
        return head_of(text, width)
    return head_of(text, width - 1) + ELLIPSIS


def width_of(line: Iterable[Cell]) -> int:
    return sum(cells_of(cell.text) for cell in line)


def merged(cells: Sequence[tuple[str, Tone]]) -> list[Cell]:
    """Return characters with their tones as few pieces of text."""
    alike = groupby(cells, itemgetter(1))
    return [Cell("".join(text for text, _ in group), tone) for tone, group in alike]


GAP: Final = 1

type Field = Cell | tuple[Cell, ...]
"""What stands in one column: one piece of text, or several in a row."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column. Where a table is too narrow, the column with the highest rank goes first; rank 0 stays."""

    title: str
    width: int
    """At least this wide, in cells."""
    most: int = 0
    """At most this wide; 0: never wider than ``width``."""
    rank: int = 0
    right: bool = False
    """Aligned to the right, and cut at the left: the newest of a strip stays."""
    name: bool = False
    """It holds identifiers: cut when nothing else can give way, in the middle, and no two to the same."""


LEASE_COLUMNS: Final = (
    Column("", 1),
    Column("domain", 13, most=44, name=True),
    Column("mode", 4, rank=3),
    Column("phase", 9, rank=4),
    Column("holder", 13, most=26, name=True),
    Column("purpose", 12, most=28, rank=5),
    Column("left", 7, right=True),
    Column("fence", 8, rank=6),
    Column("state", 40, most=48),
)
MANY_LEASE_COLUMNS: Final = (
    Column("", 1),
    Column("domain", 13, most=40, name=True),
    Column("mode", 4, rank=3),
    Column("phase", 9, rank=6),
    Column("holder", 13, most=24, name=True),
    Column("purpose", 10, most=20, rank=9),
    Column("expiry", 10, rank=4, right=True),
    Column("left", 7, right=True),
    Column("watermark", 10, rank=7, right=True),
    Column("msgs", 6, rank=8, right=True),
    Column("wait", 4, rank=2, right=True),
    Column("renew", 5, rank=10, right=True),
    Column("state", 40, most=44),
)
NODE_COLUMNS: Final = (
    Column("node", 8, most=22, name=True),
    Column("shard", 5, most=16, right=True),
    Column("answers", 18),
    Column("leases", 6, right=True),
    Column("ceiling", 7, right=True),
    Column("ledger", 8, rank=1, right=True),
    Column("state", 29, most=60),
)
LOG_COLUMNS: Final = (
    Column("log", 8, most=20, name=True),
    Column("bags, newest right", 24, most=240, right=True),
    Column("closed up to", 33, most=44),
)


PROSE_LEAST: Final = 8
"""So narrow the last column may get before identifiers are cut; afterwards narrower still."""


@dataclass(frozen=True, slots=True)
class ColumnWidths:
    """How rows that are seen together are laid out in a width."""

    widths: Sequence[int]
    """Of each column; 0: it is left out."""
    short: Sequence[Mapping[str, str]]
    """Of each column, how its identifiers are written that are too long for it."""


def layout(columns: Sequence[Column], width: int, rows: Sequence[Sequence[Field]] = ()) -> ColumnWidths:
    """Return how rows fit a width; a row may have fewer fields than there are columns, and counts for those."""
    fields = [[pieces_of(row[place]) for row in rows if place < len(row)] for place in range(len(columns))]
    widths = fit(columns, width, [max(map(width_of, found), default=None) for found in fields])
    short = [
        shortened({"".join(cell.text for cell in pieces) for pieces in found}, wide) if column.name and wide else {}
        for column, wide, found in zip(columns, widths, fields, strict=True)
    ]
    return ColumnWidths(widths, short)


def fit(columns: Sequence[Column], width: int, needs: Sequence[int | None] = ()) -> list[int]:
    """Return the width of each column, 0 for those that are left out, so that the row is at most ``width`` wide.

    ``needs``: how wide what stands in each column is; None: that is not known. Where there is no room for all, columns
    with a rank go first, then the last one gives way, and identifiers when nothing else is left. What is left over is
    shared by the columns that can grow, equally, up to what each may take.
    """
    known = needs or [None] * len(columns)
    widths = []  # the least with which nothing is cut that is more than prose
    for column, need in zip(columns, known, strict=True):
        least = column.width if need is None else max(1, min(column.width, max(need, cells_of(column.title))))
        widths.append(max(least, need or 0) if column.name else least)

    def over() -> int:
        shown = [each for each in widths if each]
        return sum(shown) + GAP * (len(shown) - 1) - width

    for rank in sorted({column.rank for column in columns} - {0}, reverse=True):
        if over() <= 0:
            break
        widths = [0 if column.rank == rank else each for column, each in zip(columns, widths, strict=True)]
    names = [place for place, column in enumerate(columns) if column.name and column is not columns[-1]]
    for least, places in ((PROSE_LEAST, [-1]), (PROSE_LEAST, names), (1, [-1])):
        while over() > 0 and any(widths[place] > least for place in places):
            widths[max(places, key=lambda place: widths[place])] -= 1
    for most in ([column.width for column in columns], [column.most for column in columns]):
        _grow(widths, most, -over())
    return widths


def _grow(widths: list[int], most: Sequence[int], spare: int) -> None:
    while spare > 0:
        growing = [place for place, each in enumerate(widths) if 0 < each < most[place]]
        if not growing:
            return
        for place in growing[:spare]:
            widths[place] += 1
        spare -= min(spare, len(growing))


def shortened(texts: Iterable[str], width: int) -> dict[str, str]:
    """Return those of some texts that are wider than a width, each cut in its middle to something of its own.

    Where they differ only in what would be cut out, the end is a few digits of the text's digest.
    """
    every = set(texts)
    long = sorted(text for text in every if cells_of(text) > width)
    found: dict[str, str] = {}
    taken = every.difference(long)
    for tail in sorted(range(width), key=lambda tail: abs(width // 2 - tail)):
        cuts = {text: _middle(text, width, tail_of(text, tail)) for text in long}
        counts = Counter(cuts.values())
        for text in long:
            if text not in found and counts[cuts[text]] == 1 and cuts[text] not in taken:
                found[text] = cuts[text]
                taken.add(cuts[text])
        if len(found) == len(long):
            return found
    for text in long:
        digits = blake2s(text.encode(errors="surrogatepass")).hexdigest()
        marked = (_middle(text, width, digits[:count]) for count in range(min(3, width - 1), width))
        if text not in found:
            found[text] = next((each for each in marked if each not in taken), digits[:width])
            taken.add(found[text])
    return found


def _middle(text: str, width: int, end: str) -> str:
    return head_of(text, width - 1 - cells_of(end)) + ELLIPSIS + end


def pieces_of(field: Field) -> tuple[Cell, ...]:
    """Return the pieces of a field, as they can be shown: what peers and files say may hold what a terminal obeys."""
    pieces = field if isinstance(field, tuple) else (field,)
    if all(cell.text.isprintable() for cell in pieces):
        return pieces
    return tuple(Cell(printable(cell.text), cell.tone) for cell in pieces)


def _cut(pieces: tuple[Cell, ...], width: int, *, right: bool) -> list[Cell]:
    """Cut pieces to a width; a cut is shown, in text, by an ellipsis."""
    if width_of(pieces) <= width:
        return list(pieces)
    kept: list[Cell] = []
    room = width if right else width - 1
    for piece in reversed(pieces) if right else pieces:
        size = cells_of(piece.text)
        part = piece.text if size <= room else tail_of(piece.text, room) if right else head_of(piece.text, room)
        kept.append(Cell(part, piece.tone))
        room -= size
        if room <= 0:
            break
    if right:
        return kept[::-1]
    return [*kept, Cell(ELLIPSIS, pieces[-1].tone)]


def cut(pieces: tuple[Cell, ...], width: int) -> list[Cell]:
    return _cut(pieces_of(pieces), max(1, width), right=False)


def laid_out(columns: Sequence[Column], as_laid: ColumnWidths, row: Sequence[Field]) -> list[Cell]:
    """Return a row as pieces of text that together fill the columns, gaps included; what follows a text is its tone's.

    No piece begins with a space and goes on with words: where a terminal is drawn as SVG, such spaces get lost.
    """
    line: list[Cell] = []
    widths = as_laid.widths
    last = max((number for number, width in enumerate(widths) if width), default=-1)
    for number, (column, width, field) in enumerate(zip(columns, widths, row, strict=True)):
        if not width:
            continue
        whole = pieces_of(field)
        if len(whole) == 1 and (short := as_laid.short[number].get(whole[0].text)):
            whole = (Cell(short, whole[0].tone),)
        pieces = _cut(whole, width, right=column.right) or [Cell("")]
        spaces = " " * (width - width_of(pieces))
        gap = " " * GAP if number != last else ""
        if column.right and spaces:
            line.append(Cell(spaces))
        line += pieces[:-1]
        end = pieces[-1]
        line.append(Cell(end.text + (gap if column.right else spaces + gap), end.tone))
    return line


def heading(columns: Sequence[Column]) -> list[Field]:
    return [Cell(column.title, Tone.DIM) for column in columns]


def text_of(line: Sequence[Cell]) -> str:
    return "".join(piece.text for piece in line).rstrip()


@dataclass(frozen=True, slots=True)
class ListOptions:
    """How the rows of a list should be arranged: in which order and groups, narrowed by which words."""

    order: str
    group: str = "none"
    words: str = ""
    backwards: bool = False


@dataclass(frozen=True, slots=True)
class Listing[R, C]:
    """A list: how a row is shown, and by what rows can be arranged; what depends on more than the row is given that.

    Orders and groups are by name: their keys of a row; None: as rows come.
    """

    columns: Sequence[Column]
    cells: Callable[[R, C], tuple[Cell, ...]]
    subject: Callable[[R], Subject]
    orders: Mapping[str, Callable[[R, C], Any] | None]
    groups: Mapping[str, Callable[[R, C], str] | None]
    texts: Callable[[Any], Sequence[str]]
    """What a filter looks at, of each row, in small letters."""
    by_name: bool = True
    """Whether groups stand in order of their names; else of their first rows."""


@dataclass(frozen=True, slots=True)
class GroupHeading:
    name: str
    count: int


@dataclass(frozen=True, slots=True)
class Arrangement[R]:
    """Rows by their numbers, with headings between them."""

    wanted: ListOptions
    rows: Sequence[R]
    places: Sequence[int]
    """Numbers of rows; -1 - h: heading h."""
    headings: Sequence[GroupHeading] = ()

    @property
    def shown(self) -> int:
        return len(self.places) - len(self.headings)

    def at(self, index: int) -> R | GroupHeading:
        place = self.places[index]
        return self.rows[place] if place >= 0 else self.headings[-1 - place]


def arrange[R, C](listing: Listing[R, C], rows: Sequence[R], wanted: ListOptions, context: C) -> Arrangement[R]:
    """Arrange rows. Costs a pass or a sort over all of them."""
    found: Sequence[int] = range(len(rows))
    if wanted.words.split():
        found = matching(listing.texts(rows), wanted.words)
    key, name_of = listing.orders[wanted.order], listing.groups[wanted.group]
    if key is not None:
        found = sorted(found, key=lambda place: key(rows[place], context))
    if wanted.backwards:
        found = found[::-1]
    if name_of is None:
        return Arrangement(wanted, rows, found)
    groups: dict[str, list[int]] = {}
    for place in found:
        groups.setdefault(name_of(rows[place], context), []).append(place)
    names = sorted(groups) if listing.by_name else list(groups)
    places = [place for number, name in enumerate(names) for place in (-1 - number, *groups[name])]
    return Arrangement(wanted, rows, places, [GroupHeading(name, len(groups[name])) for name in names])


def _known(value: int | None) -> int:
    return -1 if value is None else value


LEASES: Final = Listing[LeaseRow, TimeInterval](
    LEASE_COLUMNS,
    lease_row,
    lambda row: LeaseSubject(row.domain, row.correlation_id),
    {
        "domain": None,
        "expiry": lambda row, _: row.expiry_ns,
        "holder": lambda row, _: (row.node, row.process),
        "waiting": lambda row, _: _known(row.waiting),
        "messages": lambda row, _: _known(row.messages),
        "fence": lambda row, _: row.fence,
    },
    {
        "none": None,
        "node": lambda row, _: row.node,
        "holder": lambda row, _: f"{row.node}/{row.process}",
        "shard": lambda row, _: f"shard {shard_text(row.shard)}",
        "state": condition,
        "purpose": lambda row, _: row.purpose or "-",
    },
    attrgetter("texts"),
)
"""In order of domain as they come. What cannot be told (None) sorts as the least."""
MANY_LEASES: Final = replace(
    LEASES,
    columns=MANY_LEASE_COLUMNS,
    cells=many_lease_row,
)
LEASE_OPTIONS: Final = ListOptions("domain")


EXPORT_DIRECTORY: Final = Path()
"""The directory that this was started in."""


class ExportForm(StrEnum):
    JSONL = "jsonl"
    CSV = "csv"
    SVG = "svg"


@dataclass(frozen=True, slots=True)
class ExportSheet:
    name: str
    rows: Sequence[dict[str, Any]]


def sheet_text(sheet: ExportSheet, form: ExportForm) -> str:
    """Return a sheet as text. In CSV what is no plain value is JSON in its field."""
    if form is ExportForm.JSONL:
        return "".join(msgspec.json.encode(row).decode() + "\n" for row in sheet.rows)
    names = list(dict.fromkeys(name for row in sheet.rows for name in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    for row in sheet.rows:
        values = [row.get(name) for name in names]
        plain = [each if isinstance(each, str | None) else msgspec.json.encode(each).decode() for each in values]
        writer.writerow(plain)
    return out.getvalue()


def write_export(directory: Path, name: str, instant: Instant, form: ExportForm, text: str) -> Path:
    """Write a file with a name of its own and return it. Blocks; raises Environment where that cannot be."""
    stem = f"tenure-{name}-{rfc3339(instant)[:19].replace(':', '')}"
    for number in range(1, 100):
        path = directory / (f"{stem}.{form}" if number == 1 else f"{stem}-{number}.{form}")
        try:
            with ExitStack() as unfinished:
                with path.open("x", encoding="utf-8") as file:
                    unfinished.callback(path.unlink)  # half an export is not taken for a whole one
                    file.write(text)
                unfinished.pop_all()
        except FileExistsError:
            continue
        except OSError as problem:
            hint = "start it in a directory that you may write to"
            raise Environment("not-exported", f"cannot write {path}: {problem.strerror}", hint=hint) from None
        return path
    raise Environment("not-exported", f"{directory} has 99 files {stem}*.{form}", hint="remove some")
