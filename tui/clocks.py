"""Clocks in words and bars: what each node's clock claims, and what this machine's sources have in common. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from timeagent.plot import Row, plot
from timeagent.units import span_text

from .columns import Column
from .state import Reach
from .words import Cell, Tone, short_span

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from timeagent.interval import TimeInterval
    from timeagent.units import Span

    from .columns import Field
    from .state import ClusterState, NodeClock, TimeSources

BAR: Final = 31
STALE_NS: Final = 10_000_000_000
SPARKS: Final = "▁▂▃▄▅▆▇█"
CLOCK_COLUMNS: Final = (
    Column("", 1),
    Column("node", 10, most=22),
    Column("status", 12, most=16),
    Column("what it claims, on one axis", BAR),
    Column("±", 10, right=True),
    Column("said", 8, right=True),
    Column("epochs", 6, rank=2, right=True),
    Column("widest", 10, rank=3, right=True),
    Column("remark", 22, most=40, rank=1),
)


def clock_rows(clocks: Sequence[NodeClock], radius_ns_max: Span | None) -> list[tuple[Field, ...]]:
    """Return a row for each node's clock, in the order of CLOCK_COLUMNS."""
    scale = _scale(clocks)
    return [_row(clock, scale, radius_ns_max) for clock in clocks]


def _scale(clocks: Sequence[NodeClock]) -> Span:
    """Return the radius that fills half the axis: the widest, but at most twenty times the narrowest."""
    radii = sorted(max(1, clock.radius_ns) for clock in clocks)
    return min(radii[-1], 20 * radii[0]) if radii else 1


def axis_words(clocks: Sequence[NodeClock]) -> str:
    """Say how wide the axis is."""
    return f"axis ±{span_text(_scale(clocks))} about what each says" if clocks else ""


def _row(clock: NodeClock, scale: Span, radius_ns_max: Span | None) -> tuple[Field, ...]:
    symbol, tone, remark = _standing(clock, radius_ns_max)
    return (
        Cell(symbol, tone),
        Cell(clock.node),
        Cell(clock.status, Tone.PLAIN if clock.status == "synchronized" else Tone.WARN),
        Cell(interval_bar(clock.radius_ns, scale), tone if tone is not Tone.GOOD else Tone.PLAIN),
        Cell(span_text(clock.radius_ns), tone if tone is not Tone.GOOD else Tone.PLAIN),
        Cell(short_span(clock.age_ns), Tone.WARN if clock.age_ns > STALE_NS else Tone.DIM),
        _number(clock.epochs),
        Cell("?" if clock.widest_ns is None else span_text(clock.widest_ns), Tone.DIM),
        Cell(remark, tone),
    )


def _number(value: int | None) -> Cell:
    if value is None:
        return Cell("?", Tone.DIM)
    return Cell(f"{value} !" if value > 1 else str(value), Tone.WARN if value > 1 else Tone.DIM)


def _standing(clock: NodeClock, radius_ns_max: Span | None) -> tuple[str, Tone, str]:
    if clock.remark:
        return "✗", Tone.BAD, clock.remark
    if clock.status in ("disrupted", "unknown"):
        return "✗", Tone.BAD, "does not know the time"
    if radius_ns_max is not None and clock.radius_ns > radius_ns_max:
        return "✗", Tone.BAD, "wider than the policy"
    if clock.age_ns > STALE_NS:
        return "◐", Tone.WARN, "nothing newer signed"
    if clock.assumed:
        return "◐", Tone.WARN, "assumed, not measured"
    if clock.status != "synchronized":
        return "◐", Tone.WARN, clock.status
    return "●", Tone.GOOD, ""


def interval_bar(radius: Span, scale: Span, width: int = BAR) -> str:
    """Return an interval about the middle of an axis that reaches ``scale`` to both sides; arrows where it goes on."""
    half = width // 2
    reach = radius * half // scale if scale else 0
    if reach > half:
        return "◂" + "─" * (half - 1) + "●" + "─" * (half - 1) + "▸"
    if reach == 0:
        return " " * half + "●" + " " * half
    side = "─" * (reach - 1)
    return f"{' ' * (half - reach)}├{side}●{side}┤{' ' * (half - reach)}"


def source_lines(times: TimeSources | None, width: int) -> Iterator[tuple[str, Tone]]:
    """Yield what this machine's sources say: bars on one axis, and below them what they have in common."""
    if times is None:
        yield "a copy has none: what nodes signed is above, what was proven of it is in the findings", Tone.DIM
        return
    if times.freshness.reach is Reach.SILENT:
        since = f" for {short_span(times.freshness.silent_ns)}" if times.freshness.silent_ns else ""
        why = f": {times.freshness.problem}" if times.freshness.problem else ""
        yield f"no answer{since}{why}", Tone.BAD
    if times.freshness.reach is Reach.WAITING:
        yield "asking …", Tone.DIM
        return
    rows = [Row(each.source, each.interval, _note(each.interval, each.role, each.reason)) for each in times.sources]
    for line in plot(rows, times.together, width):
        yield line, Tone.PLAIN


def _note(interval: TimeInterval | None, role: str, reason: str | None) -> str:
    if interval is None:
        return f"silent: {reason}"
    return f"±{span_text(interval.radius)} {role}"


def outside_words(state: ClusterState) -> tuple[str, Tone]:
    """Say what outside witnesses there are: Roughtime servers among the sources."""
    times = state.times
    if times is None:
        return "", Tone.DIM
    outside = [each for each in times.sources if "roughtime" in each.source]
    if not outside:
        return "outside witnesses: none is configured", Tone.DIM
    said = ", ".join(f"{each.source} {each.role}" for each in outside)
    dissent = any(each.role in ("dissents", "disputed") for each in outside)
    return f"outside witnesses: {said}", Tone.BAD if dissent else Tone.PLAIN


class History:
    """The radius of each node's clock over the newest states, for a sparkline. One thread."""

    def __init__(self, kept: int = 60) -> None:
        """Know nothing yet."""
        self._kept = kept
        self._samples: dict[str, list[tuple[int, Span]]] = {}

    def take(self, clocks: Sequence[NodeClock]) -> None:
        """Take in what is new: a reading that was taken before is not taken again."""
        for clock in clocks:
            samples = self._samples.setdefault(clock.node, [])
            if not samples or samples[-1][0] != clock.midpoint_ns:
                samples.append((clock.midpoint_ns, clock.radius_ns))
                del samples[: -self._kept]

    def words(self, node: str) -> str:
        """Return the history of a node's radius as a line; its numbers are said beside it."""
        radii = [radius for _, radius in self._samples.get(node, [])]
        if not radii:
            return f"radius of {node}: nothing yet"
        if len(radii) == 1:
            return f"radius of {node}: ±{span_text(radii[0])}; enter opens all that it signed"
        low, high = min(radii), max(radii)
        reach = max(1, high - low)
        line = "".join(SPARKS[(radius - low) * (len(SPARKS) - 1) // reach] for radius in radii)
        return f"radius of {node}, last {len(radii)} readings  {line}  ±{span_text(low)} to ±{span_text(high)}"
