"""The clocks of nodes: what they have in common, by intersection and never by an average, and as bars. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from timeagent.agent.discipline import hull, tolerated
from timeagent.showing import Axis, Row, plot
from timeagent.units import MS, SECOND, US, Span, TimeInterval, span_text

from .state import Cell, ClusterState, NodeClock, Reach, TimeSources, Tone, ViewKind
from .tables import Column, Field
from .words import matching, short_span


@dataclass(frozen=True, slots=True)
class Outside:
    """A clock that has no instant in common with what the others agree on."""

    node: str
    by_ns: Span
    """How far, at least: positive where it is ahead."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """What the clocks that were compared say together."""

    compared: tuple[str, ...]
    not_known: int
    """How many more nodes there are of which no interval is known."""
    common: TimeInterval | None
    """Of true time minus this machine's CLOCK_BOOTTIME. None: no majority has an instant in common."""
    outside: tuple[Outside, ...] = ()

    @property
    def good(self) -> bool:
        return not self.compared or (self.common is not None and not self.outside)


def agreement(clocks: Sequence[NodeClock]) -> Agreement:
    """Return what as many clocks as possible have in common, more than half of them at least (Marzullo)."""
    known = [(clock.node, clock.ahead) for clock in clocks if clock.ahead is not None]
    names = tuple(node for node, _ in known)
    missing = len(clocks) - len(known)
    for liars in range(tolerated(len(known), None) + 1 if known else 0):
        common = hull([ahead for _, ahead in known], liars)
        if common is not None:
            outside = [
                Outside(node, ahead.earliest - common.latest if ahead.earliest > common.latest else by)
                for node, ahead in known
                if ahead.earliest > common.latest or (by := ahead.latest - common.earliest) < 0
            ]
            return Agreement(names, missing, common, tuple(outside))
    return Agreement(names, missing, None)


def agreement_words(found: Agreement) -> str:
    count = len(found.compared)
    if not count:
        return ""
    rest = f"; of {found.not_known} more nothing is known" if found.not_known else ""
    if found.common is None:
        pair = f"{' and '.join(found.compared)} have no instant in common"
        said = pair if count == 2 else f"no majority of {count} clocks has an instant in common"  # noqa: PLR2004 - a pair
        return f"{said}: one clock at least is outside its bound{rest}"
    if count == 1:
        return f"only {found.compared[0]} says what time it is: nothing to compare it with{rest}"
    if not found.outside:
        return f"all {count} clocks have ±{span_text(found.common.radius)} in common{rest}"
    far = " and ".join(
        f"{each.node} is {span_text(abs(each.by_ns))} {'ahead of' if each.by_ns > 0 else 'behind'}"
        for each in found.outside
    )
    held = count - len(found.outside)
    return f"{far} all that {held} of {count} clocks have in common: its bound is broken, or theirs are{rest}"


STALE_NS: Final = 10_000_000_000
READINGS_KEPT: Final = 60
SPARKS: Final = "▁▂▃▄▅▆▇█"
AXIS_COLUMN: Final = 3
LIVE_COLUMNS: Final = (
    Column("", 1),
    Column("node", 9, most=16, name=True),
    Column("status", 12),
    Column("axis", 24, most=101),
    Column("offset", 10, right=True),
    Column("±", 9, right=True),
    Column("said", 6, right=True),
    Column("remark", 24, most=44, rank=2),
)
"""Of clocks that were asked: where each lies."""
SIGNED_COLUMNS: Final = (
    Column("", 1),
    Column("node", 9, most=22, name=True),
    Column("status", 12, most=14),
    Column("axis", 24, most=61),
    Column("±", 10, right=True),
    Column("signed", 8, right=True),
    Column("epochs", 6, rank=2, right=True),
    Column("widest", 10, rank=3, right=True),
    Column("remark", 22, most=44, rank=1),
)
"""Of clocks that signed something at some time: how well each knew it."""
COMMON: Final = "in common"
CLOCK_LEGEND: Final = (
    "● knows the time  ◐ to be looked at  ✗ wrong, or no answer  · not asked  … asked  "
    "├━━┤ the time is in here  ◂ ▸ goes on  █ what all have in common"
)


class ClockRows:
    """The rows of a state's clocks. Of clocks that are compared, the last row is what they have in common."""

    def __init__(self, state: ClusterState, words: str = "") -> None:
        """Take a state's clocks; words narrow what is shown, never what is compared."""
        self.asked = state.view is ViewKind.LIVE
        """Whether they are of a live cluster, all at one instant; else of what was signed at any."""
        self.agreed = agreement(state.clocks if self.asked else ())
        self._radius_ns_max = state.radius_ns_max
        found = matching([f"{each.node} {each.status}".casefold() for each in state.clocks], words)
        self._clocks = [state.clocks[index] for index in found]
        self.shown = len(self._clocks)
        known = [each for clock in state.clocks if (each := self._lies(clock)) is not None]
        middle = (self.agreed.common or known[0]).midpoint if known else 0
        self._axis = Axis.over(known, middle) if known else None

    def _lies(self, clock: NodeClock) -> TimeInterval | None:
        """Return what is drawn of a clock; of one that was not asked, how well it knew the time."""
        if self.asked or clock.radius_ns is None:
            return clock.ahead if self.asked else None
        return TimeInterval.around(0, clock.radius_ns)

    def __len__(self) -> int:
        return self.shown + bool(self.agreed.compared)

    def name(self, index: int) -> str:
        """Return whose row it is; COMMON for the last one."""
        return self._clocks[index].node if index < self.shown else COMMON

    def heading(self, width: int) -> str:
        return "what it claims" if self._axis is None else self._axis.heading(width)

    def row(self, index: int, width: int) -> tuple[Field, ...]:
        """Return a row, its bar in a width: in the order of LIVE_COLUMNS, or of SIGNED_COLUMNS."""
        if index >= self.shown:
            return self._shared_row(width)
        clock = self._clocks[index]
        symbol, tone, remark = self._standing(clock)
        plain = tone if tone is not Tone.GOOD else Tone.PLAIN
        interval, bar = self._lies(clock), ""
        if interval is not None and self._axis is not None:
            bar, half = self._axis.bar(interval, width), width // 2
            bar = f"{bar[:half]}│{bar[half + 1 :]}" if bar[half] == " " else bar
        known = interval is not None
        status = clock.status if known else clock.reach if self.asked else "unknown"
        radius = Cell(span_text(clock.radius_ns) if known and clock.radius_ns is not None else "?", plain)
        head = (
            Cell(symbol, tone),
            Cell(clock.node),
            Cell(status, Tone.PLAIN if status == "synchronized" else Tone.DIM if tone is Tone.DIM else Tone.WARN),
            Cell(bar, plain),
        )
        age = clock.age_ns
        said = Cell("?" if age is None else short_span(age), Tone.DIM if age is None or age <= STALE_NS else Tone.WARN)
        if self.asked:
            offset = "?"
            if clock.ahead is not None and self._axis is not None:
                offset = _signed(_rounded(clock.ahead.midpoint - self._axis.middle))
            return (*head, Cell(offset, plain), radius, said if known else Cell("-"), Cell(remark, tone))
        epochs = Cell("?" if clock.epochs is None else str(clock.epochs), Tone.DIM)
        if (clock.epochs or 0) > 1:
            epochs = Cell(f"{clock.epochs} !", Tone.WARN)
        widest = Cell("?" if clock.widest_ns is None else span_text(clock.widest_ns), Tone.DIM)
        return (*head, radius, said, epochs, widest, Cell(remark, tone))

    def _shared_row(self, width: int) -> tuple[Field, ...]:
        common = self.agreed.common
        blank = Cell("")
        if common is None or self._axis is None:
            return (Cell("✗", Tone.BAD), Cell(COMMON), Cell("nothing", Tone.BAD), *(blank,) * 5)
        bar = Cell(self._axis.block(common, width), Tone.STRONG)
        return (blank, Cell(COMMON), blank, bar, blank, Cell(span_text(common.radius)), blank, blank)

    def _standing(self, clock: NodeClock) -> tuple[str, Tone, str]:
        if clock.remark:
            return "✗", Tone.BAD, clock.remark
        if self.asked and clock.ahead is None:
            return _unheard(clock)
        if any(each.node == clock.node for each in self.agreed.outside):
            return "✗", Tone.BAD, "outside the others"
        if clock.status in ("disrupted", "unknown") or clock.radius_ns is None:
            return "✗", Tone.BAD, "does not know the time"
        if self._radius_ns_max is not None and clock.radius_ns > self._radius_ns_max:
            return "✗", Tone.BAD, "wider than the policy"
        if clock.age_ns is not None and clock.age_ns > STALE_NS:
            return "◐", Tone.WARN, "nothing newer signed"
        if clock.assumed:
            return "◐", Tone.WARN, "assumed, not measured"
        if clock.status != "synchronized":
            return "◐", Tone.WARN, clock.status
        return "●", Tone.GOOD, ""


def _unheard(clock: NodeClock) -> tuple[str, Tone, str]:
    """Say why nothing is known of a clock, and how old the newest is that it signed."""
    signed = f"; last signed {short_span(clock.age_ns)} ago" if clock.age_ns is not None else ""
    match clock.reach:
        case Reach.NOT_ASKED:
            return "·", Tone.DIM, f"{clock.problem or 'not asked'}{signed}"
        case Reach.WAITING:
            return "…", Tone.DIM, "asked, no answer yet"
        case Reach.ANSWERS:
            return "✗", Tone.BAD, f"no bound: {clock.problem or 'it says no more'}"
        case Reach.SILENT:
            since = f"for {short_span(clock.silent_ns)}" if clock.silent_ns else "yet"
            return "✗", Tone.BAD, f"no answer {since}{signed}"


def _rounded(span: Span) -> Span:
    """Return a span with as many digits as can be read: to the microsecond, above a second to the millisecond."""
    step = MS if abs(span) >= SECOND else US
    return (span + step // 2) // step * step


def source_lines(times: TimeSources | None, width: int) -> Iterator[Cell]:
    if times is None:
        yield Cell("a copy has none: what nodes signed is above, what was proven of it is in the findings", Tone.DIM)
        return
    if times.freshness.reach is Reach.SILENT:
        since = f" for {short_span(times.freshness.silent_ns)}" if times.freshness.silent_ns else ""
        why = f": {times.freshness.problem}" if times.freshness.problem else ""
        yield Cell(f"no answer{since}{why}", Tone.BAD)
    if times.freshness.reach is Reach.WAITING:
        yield Cell("asking …", Tone.DIM)
        return
    rows = []
    for each in times.sources:
        known = each.interval
        note = f"silent: {each.reason}" if known is None else f"±{span_text(known.radius)} {each.role}"
        rows.append(Row(each.source, known, note))
    lines = plot(rows, times.together, width)
    if times.together is None and not times.agent and any(row.interval is not None for row in rows):
        lines.pop()  # each was asked by itself: what they have in common nobody worked out
    yield from map(Cell, lines)


def outside_words(state: ClusterState) -> Cell:
    times = state.times
    if times is None:
        return Cell("", Tone.DIM)
    outside = [each for each in times.sources if "roughtime" in each.source]
    if not outside:
        return Cell("outside witnesses: none is configured", Tone.DIM)
    said = ", ".join(f"{each.source} {each.role}" for each in outside)
    dissent = any(each.role in ("dissents", "disputed") for each in outside)
    return Cell(f"outside witnesses: {said}", Tone.BAD if dissent else Tone.PLAIN)


class ClockHistory:
    """Radius and offset of each node's clock over its newest readings, for sparklines. One thread."""

    def __init__(self) -> None:
        self._samples: dict[str, list[tuple[int, Span, int | None]]] = {}
        """Which reading, its radius, how far its middle was ahead of the middle of what all had in common."""

    def take(self, clocks: Sequence[NodeClock], common: TimeInterval | None = None) -> None:
        """Take in what is new: a reading that was taken before is not taken again."""
        for clock in clocks:
            reading = clock.midpoint_ns if clock.read_ns is None else clock.read_ns
            if reading is None or clock.radius_ns is None:
                continue
            samples = self._samples.setdefault(clock.node, [])
            if not samples or samples[-1][0] != reading:
                ahead = None if clock.ahead is None or common is None else clock.ahead.midpoint - common.midpoint
                samples.append((reading, clock.radius_ns, ahead))
                del samples[:-READINGS_KEPT]

    def words(self, node: str) -> list[str]:
        """Return the history of a node's clock, a line for its offset, one for its radius, with numbers beside each."""
        samples = self._samples.get(node, [])
        if not samples:
            return [f"{node}: no reading yet"]
        if len(samples) == 1:
            return [f"{node}: ±{span_text(samples[0][1])}; enter opens what is known of it"]
        aheads = [_rounded(ahead) for _, _, ahead in samples if ahead is not None]
        radii = [radius for _, radius, _ in samples]
        told = (("offset", aheads, _signed), ("radius", radii, lambda radius: f"±{span_text(radius)}"))
        return [
            f"{what} of {node}, last {len(values)} readings  {sparks(values)}  "
            f"{text(min(values))} to {text(max(values))}"
            for what, values, text in told
            if len(values) > 1
        ]


def sparks(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return "".join(SPARKS[(value - low) * (len(SPARKS) - 1) // max(1, high - low)] for value in values)


def _signed(span: Span) -> str:
    return f"{'-' if span < 0 else '+'}{span_text(abs(span))}"
