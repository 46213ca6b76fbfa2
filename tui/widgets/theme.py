"""The two themes of the screens, and tones as their styles. What a widget is drawn in is reckoned once, not by cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.segment import Segment
from textual.style import Style
from textual.theme import Theme

from ..model.subjects import Tone

if TYPE_CHECKING:
    from rich.style import Style as Drawn
    from textual.widget import Widget

    from ..model.subjects import Cell


DARK: Final = Theme(
    name="tenure-dark",
    primary="#0178D4",
    secondary="#004578",
    warning="#FFA62B",
    error="#D5556F",
    success="#4EBF71",
    accent="#3FA9F5",
    foreground="#E0E0E0",
    background="#121212",
    surface="#1E1E1E",
    panel="#242F38",
    dark=True,
    variables={
        "text-success": "#8AD4A1",
        "text-warning": "#FFC473",
        "text-error": "#F28FA3",
        "text-accent": "#7CC7FF",
        "primary-muted": "#0C304C",
    },
)
LIGHT: Final = Theme(
    name="tenure-light",
    primary="#004578",
    secondary="#0178D4",
    warning="#8A5300",
    error="#A3142F",
    success="#1B6E37",
    accent="#0B63B0",
    foreground="#1A1A1A",
    background="#FAFAFA",
    surface="#F0F0F0",
    panel="#DCE4EB",
    dark=False,
    variables={
        "text-success": "#17632F",
        "text-warning": "#7D4A00",
        "text-error": "#9B1230",
        "text-accent": "#0B5594",
        "primary-muted": "#C9DDF0",
    },
)


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
