"""Intervals as bars on one axis, for a terminal. Pure: text in, lines out.

```
               -12.1 ms                    0                    +12.1 ms
chrony     ·      ├━━━━━━━━━━━━━━━━━━┿━━━━━━━━━━━━━━━━━━┤      · 9.1 ms
```
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from .interval import TimeInterval
from .units import Span, span_text

LABEL: Final = 14
LABEL_MAX: Final = 24
MARGIN: Final = 28
WIDTH_MIN: Final = 24


@dataclass(frozen=True, slots=True)
class Style:
    """The characters of a plot."""

    low: str
    high: str
    bar: str
    zero: str
    beyond_low: str
    beyond_high: str
    shared: str


UNICODE: Final = Style("├", "┤", "━", "┿", "◂", "▸", "█")
ASCII: Final = Style("[", "]", "=", "|", "<", ">", "#")


@dataclass(frozen=True, slots=True)
class Row:
    """One source: its interval, or why it has none."""

    label: str
    interval: TimeInterval | None
    note: str


def plot(rows: Sequence[Row], shared: TimeInterval | None, columns: int, style: Style = UNICODE) -> list[str]:
    """Return the lines: an axis, one bar a row, and what they have in common. The middle of that is zero.

    The axis is as wide as the widest interval that is at most 20 times as wide as the narrowest; wider ones run beyond
    both ends, and say so with an arrow.
    """
    known = [row.interval for row in rows if row.interval is not None]
    label = max(LABEL, min(LABEL_MAX, max((len(row.label) for row in rows), default=0)))
    if not known:
        return [f"{row.label:{label}.{label}} {row.note}" for row in rows]
    width = max(WIDTH_MIN, columns - label - MARGIN) | 1
    axis = Axis.over(known, (shared or known[0]).midpoint)
    lines = [f"{'':{label}} {axis.heading(width)}"]
    for row in rows:
        bar = axis.bar(row.interval, width, style) if row.interval else " " * width
        lines.append(f"{row.label:{label}.{label}} {bar} {row.note}".rstrip())
    if shared is not None:
        lines.append(f"{'together':{label}} {axis.block(shared, width, style)} {span_text(shared.radius)}")
    else:
        lines.append(f"{'together':{label}} {'nothing':^{width}}".rstrip())
    return lines


_WIDE: Final = 20


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis about a middle, which is its zero, that reaches as far to both sides."""

    middle: int
    reach: Span

    @classmethod
    def over(cls, intervals: Sequence[TimeInterval], middle: int) -> Axis:
        """Return the axis for some intervals, at least one."""
        narrowest = min(max(1, each.radius) for each in intervals)
        reaches = [max(abs(each.earliest - middle), abs(each.latest - middle)) for each in intervals]
        shown = [reach for reach in reaches if reach <= _WIDE * narrowest] or [min(reaches)]
        return cls(middle, max(*shown, 1) * 21 // 20 + 1)

    def heading(self, width: int) -> str:
        """Return where the axis begins and ends, and its zero."""
        left, right = f"-{span_text(self.reach)}", f"+{span_text(self.reach)}"
        half = width // 2
        return f"{left}{'0':>{half + 1 - len(left)}}{right:>{width - half - 1}}"

    def block(self, interval: TimeInterval, width: int, style: Style = UNICODE) -> str:
        """Draw what several have in common."""
        filled = Style(*(style.shared,) * 4, style.beyond_low, style.beyond_high, "")
        return self.bar(interval, width, filled)

    def bar(self, interval: TimeInterval, width: int, style: Style = UNICODE) -> str:
        """Draw an interval in so many characters: where it goes on beyond an end stands an arrow."""

        def column(instant: int) -> int:
            return (instant - self.middle + self.reach) * (width - 1) // (2 * self.reach)

        low, high = column(interval.earliest), column(interval.latest)
        cells = [" "] * width
        for at in range(max(0, low), min(width - 1, high) + 1):
            cells[at] = style.bar
        if 0 <= low < width:
            cells[low] = style.low
        if 0 <= high < width:
            cells[high] = style.high
        if low < width // 2 < high:
            cells[width // 2] = style.zero
        if low < 0:
            cells[0] = style.beyond_low
        if high >= width:
            cells[-1] = style.beyond_high
        return "".join(cells)
