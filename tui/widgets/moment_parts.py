"""What was at one place of a record: who had which lease, where the bags stood, what readers had been given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from textual.containers import Vertical

from timeagent.console import printable
from timeagent.units import span_text

from ..replaying import BAG_MARK_WORDS
from ..words import Cell, Tone
from .words_line import WordsLine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult

    from ..replaying import Moment
    from .words_line import Part

LOW: Final = 14
"""With fewer lines than this, what explains the marks gives way to bars."""


class MomentParts(Vertical):
    """Bars, bags and deliveries of a moment, each with as many lines as there is room for."""

    def __init__(self) -> None:
        """Show nothing yet."""
        super().__init__(id="moment")

    def compose(self) -> ComposeResult:
        """Put the parts under each other."""
        yield WordsLine(id="bars", cut=True)
        yield WordsLine(id="bag-lines", cut=True)
        yield WordsLine(id="delivered", cut=True)

    def room(self, logs: int) -> tuple[int, int, int]:
        """Return how wide it is, and how many bars and deliveries there is room for beside so many logs."""
        size = self.content_size
        low = size.height < LOW
        deliveries = 1 if low else size.height // 6
        return max(20, size.width), max(1, size.height - deliveries - logs - (4 if low else 5)), deliveries

    def show(self, found: Moment, logs: int) -> None:
        """Show a moment of so many logs."""
        bars = self.query_one("#bars", WordsLine)
        bars.say_cells(_filled([found.axis, *found.bars], found.wish.rows + 1))
        follow = "" if found.wish.follow is None else f", {printable(found.wish.follow)} first"
        bars.show_title(f"Leases, {span_text(found.wish.span_ns)}{follow}")
        strips = _filled(found.bags, logs)
        if self.content_size.height >= LOW:
            strips.append([Cell(BAG_MARK_WORDS, Tone.DIM)])
        bags = self.query_one("#bag-lines", WordsLine)
        bags.say_cells(strips)
        bags.show_title("Bags")
        delivered = self.query_one("#delivered", WordsLine)
        lines: list[list[Part]] = [[text] for text in found.delivered or ["no message"]]
        delivered.say_lines(_filled(lines, found.wish.deliveries if found.delivered_known else 1))
        under = "" if found.wish.follow is None else f" under {printable(found.wish.follow)}"
        delivered.show_title(f"Delivered so far{under}, the newest last")


def _filled[T](lines: Sequence[list[T]], count: int) -> list[list[T]]:
    """Return at least so many lines: what needs as many as before is not laid out anew."""
    return [*lines, *([] for _ in range(count - len(lines)))]
