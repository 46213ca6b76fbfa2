"""A finding as a picture: lease intervals, messages, bags and clock bounds on one time line, as SVG.

Meant for print: black, two greys and one red that also reads as dark grey; what is said by colour is said by shape or
word too. No script, no font of its own, no reference to anything outside the file.
"""

from __future__ import annotations

import itertools
import textwrap
from typing import Final
from xml.sax.saxutils import escape

from auditor.columns.events import BagClosed, ClockReading, FrameWritten
from auditor.evidence.finding import Finding, NamedInterval
from timeagent.console import printable
from timeagent.units import DAY, HOUR, MS, SECOND, Instant, rfc3339, span_text

from .context import Context, LeaseTrace

WIDTH: Final = 1100
LEFT: Final = 190
RIGHT: Final = 30
ROW: Final = 26
_TEXT_COLUMNS: Final = 150
_TICKS_MAX: Final = 9
_FINE: Final = tuple(scale * unit for unit in (MS, 10 * MS, 100 * MS, SECOND, 10 * SECOND) for scale in (1, 2, 5))
_COARSE: Final = (HOUR, 4 * HOUR, 12 * HOUR, DAY, 7 * DAY, 30 * DAY, 90 * DAY, 365 * DAY)
_TICKS: Final = (*_FINE, 100 * SECOND, 300 * SECOND, 600 * SECOND, *_COARSE)
_STYLE: Final = """
text { font-family: "DejaVu Sans", Helvetica, Arial, sans-serif; font-size: 12px; fill: #111 }
.title { font-size: 16px; font-weight: bold } .small { font-size: 10.5px }
.mono { font-family: "DejaVu Sans Mono", monospace }
.head { font-weight: bold } .light { fill: #fff } .axis { stroke: #999; stroke-width: 0.6 } .line { stroke: #111 }
.concerned { fill: #333; stroke: #111 } .other { fill: #e4e4e4; stroke: #777 } .rest { fill: none; stroke: #777 }
.red { stroke: #b00000; fill: #b00000 } .redline { stroke: #b00000; fill: none; stroke-width: 1.4 }
.band { fill: #b00000; fill-opacity: 0.10; stroke: none } .bag { fill: #f4f4f4; stroke: #777 }
.dash { stroke: #555; stroke-dasharray: 4 3 } .hollow { fill: #fff; stroke: #b00000; stroke-width: 1.4 }
"""
_LEGEND: Final = (
    (
        "dark: leases that the finding rests on; outline: until the expiry; ticks: renewals; triangle: watermark; red "
        "line: floor; red band: what decides it"
    ),
    "box: frames that readers accept; circle: void or refused; bag: dashed line when due, line when closed",
)


class Picture:
    """One drawing, from the top down. Instants outside the window are drawn at its edge."""

    def __init__(self, finding: Finding, context: Context) -> None:
        self._finding, self._context = finding, context
        self._times = sorted(finding.times, key=lambda named: (named.earliest_ns, named.latest_ns))
        self._y = 0
        self._parts: list[str] = []

    def svg(self) -> str:
        """Return the whole file. The same finding gives the same bytes."""
        self._heading()
        top = self._y + 24
        self._ticks()
        for section in (self._decisive, self._closer, self._leases, self._messages, self._bags, self._clocks):
            section()
        above, self._parts = self._parts, []
        self._grid(top, self._y)
        grid, self._parts = self._parts, above
        self._legend()
        size = f'width="{WIDTH}" height="{self._y + 10}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {WIDTH} {self._y + 10}" role="img">'
        title = f"<title>{_plain(f'{self._finding.code}: {self._finding.subject}')}</title>"
        paper = f'<rect {size} fill="#fff"/>'
        return "\n".join([head, title, f"<style>{_STYLE}</style>", paper, *grid, *self._parts, "</svg>"]) + "\n"

    # What stands where.

    def _x(self, instant: Instant) -> float:
        first, last = self._context.first_ns, self._context.last_ns
        return LEFT + (min(max(instant, first), last) - first) * (WIDTH - LEFT - RIGHT) / (last - first)

    def _text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        words = f' class="{kind}"' if kind else ""
        where = f'x="{x:.1f}" y="{y:.1f}"' + ("" if anchor == "start" else f' text-anchor="{anchor}"')
        self._parts.append(f"<text {where}{words}>{_plain(text)}</text>")

    def _box(self, low: float, high: float, y: float, height: float, kind: str) -> None:
        size = f'x="{low:.1f}" y="{y:.1f}" width="{max(high - low, 1.5):.1f}" height="{height:.1f}"'
        self._parts.append(f'<rect {size} class="{kind}"/>')

    def _line(self, x: float, y: float, to_x: float, to_y: float, kind: str) -> None:
        self._parts.append(f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" class="{kind}"/>')

    def _path(self, x: float, y: float, steps: str, kind: str) -> None:
        self._parts.append(f'<path d="M {x:.1f} {y:.1f} {steps} z" class="{kind}"/>')

    def _span(self, low: float, high: float, y: float, end: float, kind: str) -> None:
        """Draw an interval as |----|."""
        self._line(low, y, high, y, kind)
        self._line(low, y - end, low, y + end, kind)
        self._line(high, y - end, high, y + end, kind)

    def _beside(self, low: float, high: float, y: float, words: str, inside: str | None = None) -> None:
        """Write beside what was drawn: to its right where there is room, else to its left, else above it.

        ``inside``: it is a bar, and words in this style can stand in it.
        """
        room = len(words) * 6.4 + 12
        if high + room < WIDTH - RIGHT:
            self._text(high + 9, y, words, "small")
        elif low - room > LEFT:
            self._text(low - 9, y, words, "small", "end")
        else:
            self._text((low + high) / 2, y - 8 * (inside is None), words, inside or "small", "middle")

    def _section(self, name: str) -> None:
        self._text(12, self._y + 20, name, "head")
        self._y += 26

    def _row(self, label: str, width: int = 24) -> int:
        """Begin a row: write what it is about. Returns where it begins."""
        self._text(24, self._y + ROW / 2 + 4, _cut(label, width))
        self._y += ROW
        return self._y - ROW

    # From the top down.

    def _heading(self) -> None:
        finding = self._finding
        self._text(12, 26, f"{finding.code}: {finding.title}", "title")
        self._text(12, 44, f"{finding.verdict.value.upper()}   finding {finding.id}", "small mono")
        self._y = 60
        for line in textwrap.wrap(printable(finding.explanation), _TEXT_COLUMNS):
            self._text(12, self._y, line)
            self._y += 16
        self._y += 4

    def _at_ticks(self) -> range:
        first, last = self._context.first_ns, self._context.last_ns
        step = next((each for each in _TICKS if (last - first) // each <= _TICKS_MAX), _TICKS[-1])
        return range(first - first % step + step, last, step)[: _TICKS_MAX + 1]

    def _ticks(self) -> None:
        first, last = self._context.first_ns, self._context.last_ns
        ticks = self._at_ticks()
        shown = slice(10) if ticks.step >= DAY else slice(11, 19 if last - first > 20 * SECOND else 23)
        self._y += 18
        for instant in ticks:
            self._text(self._x(instant), self._y, rfc3339(instant)[shown], "small", "middle")
        self._text(12, self._y, f"UTC, {rfc3339(first)[:10]}", "small")
        self._y += 8

    def _grid(self, top: int, bottom: int) -> None:
        for instant in self._at_ticks():
            self._line(self._x(instant), top, self._x(instant), bottom, "axis")
        for each in self._finding.times:
            low, high = self._x(each.earliest_ns), self._x(each.latest_ns)
            if self._is_inside(each) and high - low < (WIDTH - LEFT - RIGHT) / 4:
                self._box(low, max(high, low + 2), top, bottom - top, "band")
        for restart in self._context.restarts:
            self._line(self._x(restart.instant_ns), top, self._x(restart.instant_ns), bottom, "dash")

    def _is_inside(self, each: NamedInterval) -> bool:
        return each.latest_ns >= self._context.first_ns and each.earliest_ns <= self._context.last_ns

    def _decisive(self) -> None:
        if self._times:
            self._section("What decides it")
        for each in self._times:
            middle = self._row(each.what, _TEXT_COLUMNS) + ROW / 2
            low, high = self._x(each.earliest_ns), self._x(each.latest_ns)
            if self._is_inside(each):
                self._mark(low, high, middle)
            words = " to ".join(dict.fromkeys([_clock(each.earliest_ns), _clock(each.latest_ns)]))
            words += "" if self._is_inside(each) else "  (outside this picture)"
            self._beside(low, high, middle + 4, words)

    def _closer(self) -> None:
        """Draw what decides it once more on a scale of its own, where it is too close together to be told apart."""
        times, whole = self._times, self._context.last_ns - self._context.first_ns
        first = min((each.earliest_ns for each in times), default=0)
        span = max((each.latest_ns for each in times), default=0) - first
        if len(times) < 2 or not 0 < span < whole // 20:  # noqa: PLR2004 - one instant spans nothing
            return
        self._section(f"The same, {whole // span} times as large")
        left, scale = LEFT + 40, (WIDTH - RIGHT - 200 - LEFT - 40) / span
        self._box(LEFT, WIDTH - RIGHT, self._y, ROW * len(times) + 4, "bag")
        self._y += 2
        for each in times:
            middle = self._row(each.what, _TEXT_COLUMNS) + ROW / 2
            low, high = left + (each.earliest_ns - first) * scale, left + (each.latest_ns - first) * scale
            self._mark(low, high, middle)
            seconds = dict.fromkeys(rfc3339(end)[17:26] for end in (each.earliest_ns, each.latest_ns))
            self._text(high + 9, middle + 4, f"{' to '.join(seconds)} s", "small")
        self._y += 4

    def _mark(self, low: float, high: float, y: float) -> None:
        """Draw an interval; one that is narrower than the marks at its ends as a diamond."""
        if high - low < 3:  # noqa: PLR2004 - as it says
            self._path((low + high) / 2, y - 6, "l 5 6 l -5 6 l -5 -6", "red")
        else:
            self._span(low, high, y, 6, "redline")

    def _leases(self) -> None:
        for domain, leases in itertools.groupby(self._context.leases, lambda each: each.witness.domain):
            self._section(f"Leases on {_cut(printable(domain), 60)}")
            for lease in leases:
                self._lease(lease)

    def _lease(self, lease: LeaseTrace) -> None:
        witness, holder, end = lease.witness, lease.witness.holder, lease.end
        over_ns = lease.expiry_ns if end is None else min(end.ended_ns, lease.expiry_ns)
        low, over, high = self._x(lease.granted_ns), self._x(over_ns), self._x(lease.expiry_ns)
        concerned = witness.correlation_id in self._context.concerned
        y = self._row(f"{holder.node}:{holder.process}  {lease.mode}")
        self._box(low, high, y + 4, ROW - 10, "rest")
        self._box(low, max(over, low), y + 4, ROW - 10, "concerned" if concerned else "other")
        for instant in lease.renewed_ns[:40]:
            self._line(self._x(instant), y + 1, self._x(instant), y + 4, "line")
        if end is not None and end.watermark_ns is not None:
            self._path(self._x(end.watermark_ns), y + ROW - 6, "l 4 7 l -8 0", "line")
        if self._context.first_ns <= witness.floor_ns <= self._context.last_ns:
            x = self._x(witness.floor_ns)
            self._line(x, y + 2, x, y + ROW - 4, "redline")
        ended = f"{end.outcome} {_clock(end.ended_ns)}" if end else "no end is known"
        style = "small light" if concerned and over - low > (high - low) / 2 else "small"
        self._beside(low, high, y + ROW / 2 + 3, f"{ended}; expiry {_clock(lease.expiry_ns)}", style)

    def _messages(self) -> None:
        writers: dict[str, list[FrameWritten]] = {}
        for frame in self._context.frames:
            writers.setdefault(f"{frame.writer} in {frame.log}", []).append(frame)
        if writers:
            self._section("Messages")
        for name, frames in writers.items():
            middle = self._row(name, 26) + ROW / 2
            for frame in frames:
                low, high = self._x(frame.first_ns), self._x(frame.last_ns)
                if frame.accepted_count and frame.listed is not False:
                    self._box(low - 3, high + 3, middle - 4, 8, "concerned")
                else:
                    x = (low + high) / 2
                    self._parts.append(f'<circle cx="{x:.1f}" cy="{middle:.1f}" r="4.5" class="hollow"/>')
                    self._line(x - 3, middle - 3, x + 3, middle + 3, "redline")
            accepted = sum(frame.accepted_count if frame.listed else 0 for frame in frames)
            written = sum(frame.messages for frame in frames)
            last = max(self._x(frame.last_ns) for frame in frames)
            first = min(self._x(frame.first_ns) for frame in frames)
            self._beside(first, last, middle + 4, f"readers accept {accepted} of {written}")

    def _bags(self) -> None:
        if self._context.closings:
            self._section("Bags and racks")
        for event in self._context.closings[:8]:
            if isinstance(event, BagClosed):
                start, what, who = event.bag_ns, "bag", f"closed by {event.closer}"
            else:
                start, what, who = event.start_ns, "rack", f"sealed by {event.sealer}"
            low, high, x = self._x(start), self._x(event.end_ns), self._x(event.instant_ns)
            y = self._row(f"{what} {_clock(start)}")
            self._box(low, high, y + 4, ROW - 10, "bag")
            if isinstance(event, BagClosed):
                self._line(self._x(event.due_ns), y + 2, self._x(event.due_ns), y + ROW - 4, "dash")
            self._line(x, y + 1, x, y + ROW - 3, "line")
            self._line(high, y + ROW / 2, x, y + ROW / 2, "axis")
            self._beside(min(low, x), max(high, x), y + ROW / 2 + 4, f"{who} {_clock(event.instant_ns)}")

    def _clocks(self) -> None:
        nodes: dict[str, list[ClockReading]] = {}
        for reading in self._context.readings:
            nodes.setdefault(reading.node, []).append(reading)
        if nodes:
            self._section("Clock bounds, as signed")
        for node, readings in sorted(nodes.items()):
            middle = self._row(node) + ROW / 2
            widest = max(reading.radius_ns for reading in readings)
            self._text(LEFT - 8, middle + 4, f"± {span_text(widest)}", "small", "end")
            for reading in readings:
                self._span(self._x(reading.earliest_ns), self._x(reading.latest_ns), middle, 4, "line")

    def _legend(self) -> None:
        self._y += 22
        restarts, clocks = self._context.restarts[:6], self._context.clock_changes[:6]
        changes = [f"{_clock(each.instant_ns)} {each.words} (dashed)" for each in restarts]
        changes += [f"{_clock(each.instant_ns)} {each.words}" for each in clocks]
        for line in (*_LEGEND, *changes):
            self._text(12, self._y, line, "small")
            self._y += 15


def draw(finding: Finding, context: Context) -> str:
    return Picture(finding, context).svg()


def _clock(instant: Instant) -> str:
    return rfc3339(instant)[11:23]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _plain(text: str) -> str:
    return escape(printable(text))
