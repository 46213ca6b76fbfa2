"""Columns that fit a width: the same tables on a screen, in a terminal of 80 columns, and as text. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .cellwidth import ELLIPSIS, cells_of, head_of, tail_of, width_of
from .words import Cell, Tone

if TYPE_CHECKING:
    from collections.abc import Sequence

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


LEASE_COLUMNS: Final = (
    Column("", 1),
    Column("domain", 13, most=44),
    Column("mode", 4, rank=3),
    Column("phase", 9, rank=4),
    Column("holder", 13, most=26),
    Column("purpose", 12, most=28, rank=5),
    Column("left", 7, right=True),
    Column("fence", 8, rank=6),
    Column("state", 40, most=48),
)
MANY_LEASE_COLUMNS: Final = (
    Column("", 1),
    Column("domain", 13, most=40),
    Column("mode", 4, rank=3),
    Column("phase", 9, rank=6),
    Column("holder", 13, most=24),
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
    Column("node", 8, most=22),
    Column("shard", 5, right=True),
    Column("answers", 18),
    Column("leases", 6, right=True),
    Column("ceiling", 7, right=True),
    Column("ledger", 8, rank=1, right=True),
    Column("state", 29, most=60),
)
LOG_COLUMNS: Final = (
    Column("log", 8, most=20),
    Column("bags, newest right", 24, most=240, right=True),
    Column("closed up to", 33, most=44),
)


def fit(columns: Sequence[Column], width: int) -> list[int]:
    """Return the width of each column, 0 for those that are left out, so that the row is at most ``width`` wide.

    What is left over is shared by the columns that can grow, equally, up to what each may take.
    """
    widths = [column.width for column in columns]

    def taken() -> int:
        shown = [each for each in widths if each]
        return sum(shown) + GAP * (len(shown) - 1)

    for rank in sorted({column.rank for column in columns} - {0}, reverse=True):
        if taken() <= width:
            break
        widths = [0 if column.rank == rank else each for column, each in zip(columns, widths, strict=True)]
    over = taken() - width
    if over > 0:  # nothing more can go: the last column gives way
        widths[-1] = max(1, widths[-1] - over)
    _grow(columns, widths, width - taken())
    return widths


def _grow(columns: Sequence[Column], widths: list[int], spare: int) -> None:
    while spare > 0:
        growing = [i for i, column in enumerate(columns) if 0 < widths[i] < column.most]
        if not growing:
            return
        for i in growing[:spare]:
            widths[i] += 1
        spare -= min(spare, len(growing))


def _pieces(field: Field) -> tuple[Cell, ...]:
    return field if isinstance(field, tuple) else (field,)


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
    """Return pieces of text in at most a width; a cut is shown by an ellipsis."""
    return _cut(pieces, max(1, width), right=False)


def laid_out(columns: Sequence[Column], widths: Sequence[int], row: Sequence[Field]) -> list[Cell]:
    """Return a row as pieces of text that together fill the columns, gaps included; what follows a text is its tone's.

    No piece begins with a space and goes on with words: where a terminal is drawn as SVG, such spaces get lost.
    """
    line: list[Cell] = []
    last = max((number for number, width in enumerate(widths) if width), default=-1)
    for number, (column, width, field) in enumerate(zip(columns, widths, row, strict=True)):
        if not width:
            continue
        pieces = _cut(_pieces(field), width, right=column.right) or [Cell("")]
        spaces = " " * (width - width_of(pieces))
        gap = " " * GAP if number != last else ""
        if column.right and spaces:
            line.append(Cell(spaces))
        line += pieces[:-1]
        end = pieces[-1]
        line.append(Cell(end.text + (gap if column.right else spaces + gap), end.tone))
    return line


def heading(columns: Sequence[Column]) -> list[Field]:
    """Return the titles as a row."""
    return [Cell(column.title, Tone.DIM) for column in columns]


def text_of(line: Sequence[Cell]) -> str:
    """Return a line without its tones."""
    return "".join(piece.text for piece in line).rstrip()
