"""Tones as styles of the theme. No selector is matched for a cell: what a widget is drawn in is reckoned once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from textual.style import Style

from .words import Tone

if TYPE_CHECKING:
    from rich.style import Style as Drawn
    from textual.widget import Widget

    from .words import Cell

STYLES: Final = {
    Tone.PLAIN: "",
    Tone.GOOD: "bold $text-success",
    Tone.WARN: "bold $text-warning",
    Tone.BAD: "bold $text-error",
    Tone.DIM: "$text-muted",
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


def partial(style: str) -> Drawn:
    """Return a style of the theme by itself, to be laid over others."""
    return Style.parse(style).rich_style
