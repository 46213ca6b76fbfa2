"""Tones as styles of the theme. No selector is matched for a cell: what a widget is drawn in is reckoned once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.segment import Segment
from textual.style import Style

from .subjects import Tone

if TYPE_CHECKING:
    from rich.style import Style as Drawn
    from textual.widget import Widget

    from .subjects import Cell

MUTED: Final = "$foreground 70%"
"""The theme's own $text-muted, as a style of text, is drawn in full white or black."""
STYLES: Final = {
    Tone.PLAIN: "",
    Tone.GOOD: "bold $text-success",
    Tone.WARN: "bold $text-warning",
    Tone.BAD: "bold $text-error",
    Tone.DIM: MUTED,
    Tone.STRONG: "bold",
}
CELL_STYLES: Final = STYLES | {Tone.GOOD: "$text-success"}
"""In tables, where much is good."""
CURSOR: Final = "on $primary-muted"


def styled(cell: Cell) -> tuple[str, str]:
    """Return a piece of text with its style in the theme."""
    return cell.text, STYLES[cell.tone]


def drawn(widget: Widget, style: str = "") -> Drawn:
    """Return a style of the theme on a widget's own."""
    return (widget.visual_style + Style.parse(style)).rich_style if style else widget.visual_style.rich_style


def segments(text: str, style: Drawn) -> list[Segment]:
    """Return text as it is drawn, spaces that lead by themselves: drawn as SVG, some readers would leave them out."""
    words = text.lstrip(" ")
    if not words or len(words) == len(text):
        return [Segment(text, style)]
    return [Segment(" " * (len(text) - len(words)), style), Segment(words, style)]


def partial(style: str) -> Drawn:
    """Return a style of the theme by itself, to be laid over others."""
    return Style.parse(style).rich_style
