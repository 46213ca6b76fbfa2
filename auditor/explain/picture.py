"""A finding as a picture: lease intervals, messages, bags and clock bounds on one time line, as SVG.

Meant for print: black, two greys and one red that also reads as dark grey; what is said by colour is said by shape or
word too. No script, no font of its own, no reference to anything outside the file.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Final
from xml.sax.saxutils import escape

from auditor.rules.finding import Finding, NamedInterval
from auditor.timeline.events import BagClosed, ClockReading, FrameWritten, RackSealed
from timeagent.console import printable
from timeagent.units import MS, SECOND, Instant, rfc3339, span_text

from .context import Context, LeaseTrace

WIDTH: Final = 1100
LEFT: Final = 190
RIGHT: Final = 30
ROW: Final = 26
_TEXT_COLUMNS: Final = 150
_TICKS_MAX: Final = 9
_FINE: Final = tuple(scale * unit for unit in (MS, 10 * MS, 100 * MS, SECOND, 10 * SECOND) for scale in (1, 2, 5))
_TICKS: Final = (*_FINE, 100 * SECOND, 300 * SECOND, 600 * SECOND, 3600 * SECOND)
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


class Picture:
    """One drawing, from the top down. Instants outside the window are drawn at its edge."""

    def __init__(self, finding: Finding, context: Context) -> None:
        self._finding = finding
        self._context = context
        self._y = 0
        self._parts: list[str] = []

    def svg(self) -> str:
        """Return the whole file. The same finding gives the same bytes."""
        self._heading()
        top = self._y
        self._axis_room()
        self._times()
        self._leases()
        self._messages()
        self._bags()
        self._clocks()
        bottom = self._y
        self._legend()
        grid = [*self._grid(top, bottom), *self._verticals(top, bottom)]
        size = f'width="{WIDTH}" height="{self._y + 10}" viewBox="0 0 {WIDTH} {self._y + 10}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
        title = f"<title>{_plain(f'{self._finding.code}: {self._finding.subject}')}</title>"
        paper = f'<rect width="{WIDTH}" height="{self._y + 10}" fill="#fff"/>'
        return "\n".join([head, title, f"<style>{_STYLE}</style>", paper, *grid, *self._parts, "</svg>"]) + "\n"

    # What stands where.

    def _x(self, instant: Instant) -> float:
        first, last = self._context.first_ns, self._context.last_ns
        inside = min(max(instant, first), last)
        return LEFT + (inside - first) * (WIDTH - LEFT - RIGHT) / (last - first)

    def _text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        words = f' class="{kind}"' if kind else ""
        where = f'x="{x:.1f}" y="{y:.1f}"' + ("" if anchor == "start" else f' text-anchor="{anchor}"')
        self._parts.append(f"<text {where}{words}>{_plain(text)}</text>")

    def _box(self, low: float, high: float, y: float, height: float, kind: str) -> None:
        size = f'x="{low:.1f}" y="{y:.1f}" width="{max(high - low, 1.5):.1f}" height="{height:.1f}"'
        self._parts.append(f'<rect {size} class="{kind}"/>')

    def _line(self, x: float, y: float, to_x: float, to_y: float, kind: str) -> None:
        self._parts.append(f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" class="{kind}"/>')

    def _section(self, name: str) -> None:
        self._y += 12
        self._text(12, self._y + 8, name, "head")
        self._y += 14

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

    def _axis_room(self) -> None:
        context = self._context
        self._y += 18
        for instant in self._ticks():
            self._text(
                self._x(instant), self._y, _short(instant, context.last_ns - context.first_ns), "small", "middle"
            )
        self._text(12, self._y, f"UTC, {rfc3339(context.first_ns)[:10]}", "small")
        self._y += 8

    def _ticks(self) -> list[Instant]:
        first, last = self._context.first_ns, self._context.last_ns
        step = next((each for each in _TICKS if (last - first) // each <= _TICKS_MAX), _TICKS[-1])
        begin = first - first % step + step
        return list(range(begin, last, step))[: _TICKS_MAX + 1]

    def _grid(self, top: int, bottom: int) -> Iterator[str]:
        for instant in self._ticks():
            x = self._x(instant)
            yield f'<line x1="{x:.1f}" y1="{top + 24}" x2="{x:.1f}" y2="{bottom}" class="axis"/>'
        for each in self._finding.times:
            low, high = self._x(each.earliest_ns), self._x(each.latest_ns)
            if self._inside(each) and high - low < (WIDTH - LEFT - RIGHT) / 4:
                size = f'x="{low:.1f}" y="{top + 24}" width="{max(high - low, 2):.1f}" height="{bottom - top - 24}"'
                yield f'<rect {size} class="band"/>'

    def _verticals(self, top: int, bottom: int) -> Iterator[str]:
        for each in self._context.restarts:
            x = self._x(each.instant_ns)
            yield f'<line x1="{x:.1f}" y1="{top + 24}" x2="{x:.1f}" y2="{bottom}" class="dash"/>'

    def _inside(self, each: NamedInterval) -> bool:
        return each.latest_ns >= self._context.first_ns and each.earliest_ns <= self._context.last_ns

    def _times(self) -> None:
        if not self._finding.times:
            return
        self._section("What decides it")
        for each in sorted(self._finding.times, key=lambda named: (named.earliest_ns, named.latest_ns)):
            middle = self._y + ROW / 2
            self._text(24, middle + 4, each.what)
            low, high = self._x(each.earliest_ns), self._x(each.latest_ns)
            point = each.earliest_ns == each.latest_ns
            if self._inside(each):
                self._span_mark(low, high, middle, "redline")
            words = f"{_clock(each.earliest_ns)}" + ("" if point else f" to {_clock(each.latest_ns)}")
            words += "" if self._inside(each) else "  (outside this picture)"
            self._beside(low, high, middle + 4, words)
            self._y += ROW
        self._closer()

    def _closer(self) -> None:
        """Draw what decides it once more on a scale of its own, where it is too close together to be told apart."""
        times = sorted(self._finding.times, key=lambda named: (named.earliest_ns, named.latest_ns))
        first, last = min(each.earliest_ns for each in times), max(each.latest_ns for each in times)
        whole = self._context.last_ns - self._context.first_ns
        if len(times) < 2 or not 0 < last - first < whole // 20:  # noqa: PLR2004 - one instant spans nothing
            return
        self._section(f"The same, {whole // (last - first)} times as large")
        low_x, high_x = LEFT + 40, WIDTH - RIGHT - 200
        self._box(LEFT, WIDTH - RIGHT, self._y, ROW * len(times) + 4, "bag")
        for each in times:
            middle = self._y + ROW / 2 + 2
            scale = (high_x - low_x) / (last - first)
            low, high = low_x + (each.earliest_ns - first) * scale, low_x + (each.latest_ns - first) * scale
            self._text(24, middle + 4, each.what)
            self._span_mark(low, high, middle, "redline")
            self._text(high + 9, middle + 4, _fine(each), "small")
            self._y += ROW
        self._y += 6

    def _span_mark(self, low: float, high: float, y: float, kind: str) -> None:
        """Draw an interval as |----|; one that is too narrow for that as a diamond."""
        if high - low < 3:  # noqa: PLR2004 - narrower than the marks at its ends
            x = (low + high) / 2
            filled = "red" if kind == "redline" else kind
            self._parts.append(f'<path d="M {x:.1f} {y - 6:.1f} l 5 6 l -5 6 l -5 -6 z" class="{filled}"/>')
            return
        self._line(low, y, high, y, kind)
        self._line(low, y - 6, low, y + 6, kind)
        self._line(high, y - 6, high, y + 6, kind)

    def _beside(self, low: float, high: float, y: float, words: str, inside: str | None = None) -> None:
        """Write beside what was drawn: to its right where there is room, else to its left, else above it.

        ``inside``: it is a bar, and words in this style can stand in it.
        """
        room = len(words) * 6.4 + 12
        if high + room < WIDTH - RIGHT:
            self._text(high + 9, y, words, "small")
        elif low - room > LEFT:
            self._text(low - 9, y, words, "small", "end")
        elif inside is not None:
            self._text((low + high) / 2, y, words, inside, "middle")
        else:
            self._text((low + high) / 2, y - 8, words, "small", "middle")

    def _leases(self) -> None:
        domain = None
        for lease in self._context.leases:
            if domain != lease.witness.domain:
                domain = lease.witness.domain
                self._section(f"Leases on {_cut(printable(domain), 60)}")
            self._lease(lease)

    def _lease(self, lease: LeaseTrace) -> None:
        witness, holder, end = lease.witness, lease.witness.holder, lease.end
        over_ns = lease.expiry_ns if end is None else min(end.ended_ns, lease.expiry_ns)
        low, over, high = self._x(lease.granted_ns), self._x(over_ns), self._x(lease.expiry_ns)
        concerned = witness.correlation_id in self._context.concerned
        self._text(24, self._y + ROW / 2 + 4, _cut(f"{holder.node}:{holder.process}  {lease.mode}", 24))
        self._box(low, high, self._y + 4, ROW - 10, "rest")
        self._box(low, max(over, low), self._y + 4, ROW - 10, "concerned" if concerned else "other")
        for instant in lease.renewed_ns[:40]:
            self._line(self._x(instant), self._y + 1, self._x(instant), self._y + 4, "line")
        if end is not None and end.watermark_ns is not None:
            x = self._x(end.watermark_ns)
            self._parts.append(f'<path d="M {x:.1f} {self._y + ROW - 6:.1f} l 4 7 l -8 0 z" class="line"/>')
        if self._context.first_ns <= witness.floor_ns <= self._context.last_ns:
            x = self._x(witness.floor_ns)
            self._line(x, self._y + 2, x, self._y + ROW - 4, "redline")
        ended = f"{end.outcome} {_clock(end.ended_ns)}" if end else "no end is known"
        style = "small light" if concerned and over - low > (high - low) / 2 else "small"
        self._beside(low, high, self._y + ROW / 2 + 3, f"{ended}; expiry {_clock(lease.expiry_ns)}", style)
        self._y += ROW

    def _messages(self) -> None:
        if not self._context.frames:
            return
        self._section("Messages")
        writers: dict[str, list[FrameWritten]] = {}
        for frame in self._context.frames:
            writers.setdefault(f"{frame.writer} in {frame.log}", []).append(frame)
        for name, frames in writers.items():
            middle = self._y + ROW / 2
            self._text(24, middle + 4, _cut(name, 26))
            for frame in frames:
                low, high = self._x(frame.first_ns), self._x(frame.last_ns)
                good = bool(frame.accepted_count) and frame.listed is not False
                x = (low + high) / 2
                if good:
                    self._box(low - 3, high + 3, middle - 4, 8, "concerned")
                else:
                    self._parts.append(f'<circle cx="{x:.1f}" cy="{middle:.1f}" r="4.5" class="hollow"/>')
                    self._line(x - 3, middle - 3, x + 3, middle + 3, "redline")
            accepted = sum(frame.accepted_count if frame.listed else 0 for frame in frames)
            written = sum(frame.messages for frame in frames)
            last = max(self._x(frame.last_ns) for frame in frames)
            first = min(self._x(frame.first_ns) for frame in frames)
            self._beside(first, last, middle + 4, f"readers accept {accepted} of {written}")
            self._y += ROW

    def _bags(self) -> None:
        if not self._context.closings:
            return
        self._section("Bags and racks")
        for event in self._context.closings[:8]:
            self._closing(event)

    def _closing(self, event: BagClosed | RackSealed) -> None:
        bag = isinstance(event, BagClosed)
        start = event.bag_ns if isinstance(event, BagClosed) else event.start_ns
        low, high, middle = self._x(start), self._x(event.end_ns), self._y + ROW / 2
        self._text(24, middle + 4, _cut(f"{'bag' if bag else 'rack'} {rfc3339(start)[11:23]}", 24))
        self._box(low, high, self._y + 4, ROW - 10, "bag")
        if isinstance(event, BagClosed):
            self._line(self._x(event.due_ns), self._y + 2, self._x(event.due_ns), self._y + ROW - 4, "dash")
        x = self._x(event.instant_ns)
        self._line(x, self._y + 1, x, self._y + ROW - 3, "line")
        self._line(high, middle, x, middle, "axis")
        who = f"closed by {event.closer}" if isinstance(event, BagClosed) else f"sealed by {event.sealer}"
        self._beside(min(low, x), max(high, x), middle + 4, f"{who} {_clock(event.instant_ns)}")
        self._y += ROW

    def _clocks(self) -> None:
        nodes: dict[str, list[ClockReading]] = {}
        for reading in self._context.readings:
            nodes.setdefault(reading.node, []).append(reading)
        if not nodes:
            return
        self._section("Clock bounds, as signed")
        for node in sorted(nodes):
            middle = self._y + ROW / 2
            widest = max(reading.radius_ns for reading in nodes[node])
            self._text(24, middle + 4, _cut(node, 24))
            self._text(LEFT - 8, middle + 4, f"± {span_text(widest)}", "small", "end")
            for reading in nodes[node]:
                low, high = self._x(reading.earliest_ns), self._x(reading.latest_ns)
                self._line(low, middle, high, middle, "line")
                self._line(low, middle - 4, low, middle + 4, "line")
                self._line(high, middle - 4, high, middle + 4, "line")
            self._y += ROW

    def _legend(self) -> None:
        context = self._context
        self._y += 22
        lines = [
            (
                "dark: leases that the finding rests on; outline: until the expiry; ticks: renewals; triangle: "
                "watermark; red line: floor; red band: what decides it"
            ),
            "box: frames that readers accept; circle: void or refused; bag: dashed line when due, line when closed",
        ]
        lines += [
            f"{_clock(each.instant_ns)} shard {each.shard} on {each.node} {each.how} (dashed)"
            for each in context.restarts[:6]
        ]
        lines += [f"{_clock(each.instant_ns)} clock of {each.node}: {each.what}" for each in context.clock_changes[:6]]
        for line in lines:
            self._text(12, self._y, line, "small")
            self._y += 15


def draw(finding: Finding, context: Context) -> str:
    """Return the finding's picture as an SVG file."""
    return Picture(finding, context).svg()


def _clock(instant: Instant) -> str:
    return rfc3339(instant)[11:23]


def _fine(each: NamedInterval) -> str:
    first, last = rfc3339(each.earliest_ns)[17:26], rfc3339(each.latest_ns)[17:26]
    return f"{first} s" if first == last else f"{first} to {last} s"


def _short(instant: Instant, window: int) -> str:
    return rfc3339(instant)[11:19] if window > 20 * SECOND else rfc3339(instant)[11:23]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _plain(text: str) -> str:
    return escape(printable(text))
