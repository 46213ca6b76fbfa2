"""Text in cells of a terminal: wide characters take two, combining ones none. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from .subjects import Cell

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .subjects import Tone

ELLIPSIS: Final = "…"


_NARROW: Final = re.compile("[ -~¡-¬®-ʯ–—‖…←-⇿─-▟■-◼◿●◐✓✗⣀-⣿▸−×]*").fullmatch
"""Text of characters that take a cell each: letters of the west, and the symbols of the screens."""


def _len(text: str) -> int:
    from rich.cells import cell_len  # noqa: PLC0415 - a table of all characters, for those who need it

    return cell_len(text)


def cells_of(text: str) -> int:
    """Return how many cells a text takes, as the screen's library reckons them."""
    return len(text) if text.isascii() or _NARROW(text) else _len(text)


def head_of(text: str, width: int) -> str:
    """Return the beginning of a text in exactly so many cells; half of a wide character is a space."""
    if text.isascii() or _NARROW(text):
        return text[:width].ljust(width)
    from rich.cells import set_cell_size  # noqa: PLC0415 - see above

    return set_cell_size(text, width)


def tail_of(text: str, width: int) -> str:
    """Return the end of a text in at most so many cells."""
    if text.isascii() or _NARROW(text):
        return text[max(0, len(text) - width) :]
    start, room = len(text), width
    while start and (room := room - _len(text[start - 1])) >= 0:
        start -= 1
    return text[start:]


def fitted(text: str, width: int) -> str:
    """Return text in exactly so many cells; what is cut off is shown by an ellipsis."""
    if width <= 0:
        return ""
    if cells_of(text) <= width:
        return head_of(text, width)
    return head_of(text, width - 1) + ELLIPSIS


def wrapped_ranges(text: str, width: int) -> list[tuple[int, int]]:
    """Return where each line of a text begins and ends, broken between words; a word that is too long, in itself."""
    ranges, start = [], 0
    while cells_of(text[start:]) > width:
        room, end = width, start
        while (room := room - cells_of(text[end])) >= 0:
            end += 1
        end = max(end, start + 1)  # a character that is wider than all the room
        space = end if text[end] == " " else text.rfind(" ", start, end)
        end = space if space > start else end
        ranges.append((start, end))
        start = end
        while start < len(text) and text[start] == " ":
            start += 1
    return [*ranges, (start, len(text))]


def width_of(line: Iterable[Cell]) -> int:
    """Return how many cells a line takes."""
    return sum(cells_of(cell.text) for cell in line)


def merged(cells: Sequence[tuple[str, Tone]]) -> list[Cell]:
    """Return characters with their tones as few pieces of text."""
    line: list[Cell] = []
    for text, tone in cells:
        if line and line[-1].tone is tone:
            line[-1] = Cell(line[-1].text + text, tone)
        else:
            line.append(Cell(text, tone))
    return line
