"""Text in cells of a terminal: wide characters take two, combining ones none. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size

from .words import Cell

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .words import Tone

ELLIPSIS = "…"


def fitted(text: str, width: int) -> str:
    """Return text in exactly so many cells; what is cut off is shown by an ellipsis."""
    if width <= 0:
        return ""
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(text, width - 1) + ELLIPSIS


def width_of(line: Iterable[Cell]) -> int:
    """Return how many cells a line takes."""
    return sum(cell_len(cell.text) for cell in line)


def merged(cells: Sequence[tuple[str, Tone]]) -> list[Cell]:
    """Return characters with their tones as few pieces of text."""
    line: list[Cell] = []
    for text, tone in cells:
        if line and line[-1].tone is tone:
            line[-1] = Cell(line[-1].text + text, tone)
        else:
            line.append(Cell(text, tone))
    return line
