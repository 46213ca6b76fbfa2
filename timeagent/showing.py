"""What this machine knows of the time, for people and programs: by its agent, or asked for here.

```
               -12.1 ms                    0                    +12.1 ms
chrony     ·      ├━━━━━━━━━━━━━━━━━━┿━━━━━━━━━━━━━━━━━━┤      · 9.1 ms
```
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from .agent.bounded_clock import EmbeddedTime, Look
from .agent.discipline import Report, SourceReport
from .agent.page import AgentTime
from .clock import MachineClock
from .console import instant_fields
from .errors import BadTime
from .keys import NoKey
from .signedtime import ClockStatus
from .sources.local import NOTHING_ASSUMED, AssumedSource
from .sources.nonce import NonceClient
from .sources.port import Source
from .units import DAY, Span, TimeInterval, span_text

UNBOUNDED_RADIUS_NS: Final[Span] = DAY
"""What is shown where nothing is known: so wide that nobody mistakes it for a bound."""


@dataclass(frozen=True, slots=True)
class SourceView:
    source: str
    interval: TimeInterval | None
    """Where it says that true time is; None: it says nothing, and ``reason`` why."""
    status: str
    role: str
    """How it counts for the agent: shapes, agrees, dissents, disputed, spare, silent; ``asked`` without an agent."""
    reason: str | None
    assumed: bool = False

    def fields(self) -> dict[str, Any]:
        said = self.interval
        return {
            "source": self.source,
            "bounded": said is not None,
            **instant_fields("earliest", said.earliest if said else None),
            **instant_fields("latest", said.latest if said else None),
            "radius_ns": said.radius if said else None,
            "status": self.status,
            "assumed": self.assumed,
            "role": self.role,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Known:
    now: TimeInterval
    """A day around the machine's clock where there is no bound."""
    problem: BadTime | None
    status: str
    source: str
    agent: bool
    assumed: bool
    cluster_time: bool
    clock_epoch: int | None
    sources: tuple[SourceView, ...]
    together: TimeInterval | None = None
    """What the sources have in common, as of the instant that their intervals are of."""

    @property
    def disagreeing(self) -> list[str]:
        return [each.source for each in self.sources if each.role in {"dissents", "disputed"}]

    def fields(self) -> dict[str, Any]:
        return {
            **instant_fields("earliest", self.now.earliest),
            **instant_fields("latest", self.now.latest),
            "radius_ns": self.now.radius,
            "bounded": self.problem is None,
            "status": self.status,
            "source": self.source,
            "agent": self.agent,
            "assumed": self.assumed,
            "cluster_time": self.cluster_time,
            "clock_epoch": self.clock_epoch,
            "disagreeing": self.disagreeing,
            "refused": [
                {"source": each.source, "reason": each.reason} for each in self.sources if each.interval is None
            ],
        }


def known_by_agent(directory: Path, clock: MachineClock) -> Known:
    """Ask the agent whose page is in ``directory``. Raises BadTime if none answers there; its silence is no error."""
    try:
        report = msgspec.json.decode(NonceClient(directory).report(), type=Report)
    except (msgspec.DecodeError, UnicodeDecodeError):
        what = "the time agent's report cannot be read"
        raise BadTime("door-garbled", what, hint="run both from one version") from None
    now, problem = _anything(clock), None
    try:
        now = AgentTime(directory, clock, radius_ns_max=UNBOUNDED_RADIUS_NS, key_id=b"", is_own=lambda _: True).now()
    except BadTime as refused:
        problem = refused
    return Known(
        now,
        problem,
        report.status,
        "agent",
        agent=True,
        assumed=report.assumed,
        cluster_time=report.cluster_time,
        clock_epoch=report.clock_epoch,
        sources=tuple(_view(each, report.boot_ns) for each in report.sources),
        together=_carried(report.earliest_ahead_ns, report.latest_ahead_ns, report.boot_ns),
    )


def _carried(earliest_ahead: int | None, latest_ahead: int | None, boot_ns: int) -> TimeInterval | None:
    if earliest_ahead is None or latest_ahead is None:
        return None
    return TimeInterval(boot_ns + earliest_ahead, boot_ns + latest_ahead)


def _view(said: SourceReport, boot_ns: int) -> SourceView:
    interval, assumed = _carried(said.earliest_ahead_ns, said.latest_ahead_ns, boot_ns), said.weight == "assumed"
    status = "unknown" if interval is None else "free-running" if assumed else "synchronized"
    return SourceView(said.source, interval, status, said.role, said.reason, assumed=assumed)


def known_without_agent(machine: MachineClock, measuring: Sequence[Source], radius: Span) -> Known:
    """Ask the sources here: the first with a bound counts; an assumed one, of this radius, last. Blocks for them."""
    clock = _looked_at(machine, [*measuring, AssumedSource(machine, radius)] if radius else measuring)
    try:
        look, problem = clock.look(), None
    except BadTime as refused:
        unknown, problem = ClockStatus.UNKNOWN, refused
        look = Look(_anything(machine), "none", unknown, assumed=False, cluster_time=False, clock_epoch=0, boot_ns=0)
    return Known(
        look.now,
        problem,
        look.status.word,
        look.source,
        agent=False,
        assumed=look.assumed,
        cluster_time=look.cluster_time,
        clock_epoch=None,
        sources=tuple(_silent(source, reason) for source, reason in clock.refusals().items()),
    )


def _anything(machine: MachineClock) -> TimeInterval:
    return TimeInterval.around(machine.realtime_ns(), UNBOUNDED_RADIUS_NS)


def sources_without_agent(machine: MachineClock, measuring: Sequence[Source], radius: Span) -> list[SourceView]:
    """Ask every source here, each by itself. Blocks for them."""
    shown = [_asked(machine, source) for source in measuring]
    if radius:
        return [*shown, _asked(machine, AssumedSource(machine, radius))]
    return [*shown, _silent(AssumedSource.name, NOTHING_ASSUMED)]


def _asked(machine: MachineClock, source: Source) -> SourceView:
    clock = _looked_at(machine, [source])
    try:
        look = clock.look()
    except BadTime as problem:  # rather the source's own words, without those of the clock around it
        return _silent(source.name, clock.refusals().get(source.name, problem.message))
    return SourceView(source.name, look.now, look.status.word, "asked", None, assumed=look.assumed)


def _looked_at(machine: MachineClock, sources: Sequence[Source]) -> EmbeddedTime:
    return EmbeddedTime(machine, sources, NoKey(), radius_ns_max=UNBOUNDED_RADIUS_NS)


def _silent(name: str, reason: str) -> SourceView:
    return SourceView(name, None, ClockStatus.UNKNOWN.word, "silent", reason, assumed=name == "assumed")


LABEL: Final = 14
LABEL_MAX: Final = 24
MARGIN: Final = 28
WIDTH_MIN: Final = 24


@dataclass(frozen=True, slots=True)
class Style:
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
