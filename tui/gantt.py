"""Who had which lease when, as bars: a row a domain, a bar a lease, in a stretch of time and a width. Pure.

What a bar is made of says the mode; what is inside it says who; nothing is said by colour alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from appliance.formats.lease import LeaseOutcome, Mode, Phase
from timeagent.console import printable

from .cellwidth import fitted, merged
from .scrubber import cell_of
from .subjects import Cell, Tone

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from auditor.explain.traces import LeaseTrace
    from timeagent.units import Instant

    type LeasesWithin = Callable[[str, Instant, Instant], Iterable[LeaseTrace]]

BARS: Final = {Mode.X: "█", Mode.SIX: "▓", Mode.S: "▒", Mode.IX: "▒", Mode.IS: "░"}
TENTATIVE: Final = "·"
OVER: Final = "╌"
"""Past its end as far as the holder knows, and its expiry not yet reached: nobody else may have it."""
CLASH: Final = "╬"
"""Two leases that conflict, both standing."""
FLOOR: Final = "▏"
SETTLE: Final = "┊"
HERE: Final = "│"
EMPTY: Final = " "
LEGEND: Final = (
    "█ X  ▓ SIX  ▒ S, IX  ░ IS  · tentative  ╌ broken, until its expiry  ╬ two at once  ▏ floor  ┊ settle_to  │ here"
)
LABEL_MOST: Final = 24
STRETCHES_AT_HAND: Final = 128
"""Of so many domains and stretches the bars are kept."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One lease as a stretch of time."""

    domain: str
    correlation_id: bytes
    start_ns: Instant
    end_ns: Instant
    """When it was ended, or its expiry where nothing tells of an end."""
    expiry_ns: Instant
    mode: Mode
    tentative: bool
    node: str
    process: int
    outcome: LeaseOutcome | None
    floor_ns: Instant
    settle_to_ns: Instant

    @property
    def given_back(self) -> bool:
        """Whether nobody has to wait for its expiry."""
        return self.outcome in (LeaseOutcome.RELINQUISHED, LeaseOutcome.DROPPED, LeaseOutcome.WITHDRAWN)


def bar_of(domain: str, trace: LeaseTrace) -> Bar:
    """Return a lease as a bar."""
    first, last = trace.told[0], trace.told[-1]
    over = trace.session.over if trace.session is not None else None
    said = trace.ended or over
    ended = said.instant_ns if said else None
    outcome = said.ending.outcome if said else None
    return Bar(
        domain,
        first.witness.correlation_id,
        first.instant_ns,
        max(trace.expiry_ns if ended is None else ended, first.instant_ns),
        trace.expiry_ns,
        last.witness.mode,
        last.witness.phase is Phase.TENTATIVE,
        first.witness.holder.node,
        first.witness.holder.process,
        outcome,
        first.witness.floor_ns,
        first.witness.settle_to_ns,
    )


def bars_within(domain: str, traces: Iterable[LeaseTrace], first: Instant, last: Instant) -> list[Bar]:
    """Return the leases of a domain that touch a stretch of time, in the order of their grants."""
    return _touching(_reaching(domain, traces), first, last)


def _reaching(domain: str, traces: Iterable[LeaseTrace]) -> list[tuple[Instant, Bar]]:
    """Return leases in the order of their grants, each with the instant up to which it may have been held."""
    found = [(max(trace.expiry_ns, _end(trace)), bar_of(domain, trace)) for trace in traces if trace.told]
    return sorted(found, key=lambda each: (each[1].start_ns, each[1].correlation_id))


def _touching(bars: Iterable[tuple[Instant, Bar]], first: Instant, last: Instant) -> list[Bar]:
    return [bar for reach, bar in bars if bar.start_ns <= last and reach >= first]


def _end(trace: LeaseTrace) -> Instant:
    return trace.ended.instant_ns if trace.ended is not None else 0


class LeaseBars:
    """The bars of domains, made for a longer stretch than is drawn: one that moves a little has them already.

    Safe to use from several threads.
    """

    def __init__(self, leases: LeasesWithin) -> None:
        """Make none yet. ``leases``: of a domain, those that somebody had in a stretch of time."""
        self._leases = leases
        self._made = lru_cache(STRETCHES_AT_HAND)(self._make)

    def within(self, domain: str, first: Instant, last: Instant) -> list[Bar]:
        """Return the leases of a domain that touch [first, last], in the order of their grants."""
        step = 1 << max(0, (last - first) // 4).bit_length()
        return _touching(self._made(domain, first - first % step, last - last % step + step), first, last)

    def _make(self, domain: str, first: Instant, last: Instant) -> list[tuple[Instant, Bar]]:
        return _reaching(domain, self._leases(domain, first, last))


@dataclass(frozen=True, slots=True)
class Window:
    """The stretch of time that is drawn, and where one looks."""

    first_ns: Instant
    last_ns: Instant
    cursor_ns: Instant


def gantt(
    rows: Sequence[str],
    bars_of: Callable[[str, Instant, Instant], list[Bar]],
    window: Window,
    width: int,
    accused: Collection[bytes] = (),
) -> list[list[Cell]]:
    """Draw a row for each domain, each exactly so many cells wide.

    ``bars_of``: of a domain, the leases that touch a stretch of time. ``accused``: leases that the audit found standing
    while another did. Nothing else is drawn as a clash: bars that overlap by a few milliseconds do so because instants
    of two clocks, or of two tokens, are no more exact than that.
    """
    label = min(LABEL_MOST, max(8, width // 4))
    room = max(1, width - label - 1)
    lines = []
    for domain in rows:
        bars = bars_of(domain, window.first_ns, window.last_ns)
        lines.append([Cell(f"{fitted(printable(domain), label)} ", Tone.PLAIN), *_row(bars, window, room, accused)])
    return lines


def axis(window: Window, width: int, start: str, end: str) -> list[Cell]:
    """Draw the line above the rows: the ends of the stretch, and where one looks."""
    label = min(LABEL_MOST, max(8, width // 4))
    room = max(1, width - label - 1)
    here = cell_of(window.cursor_ns, window.first_ns, window.last_ns, room)
    line = list(f"{start}{' ' * room}"[:room])
    if len(start) + len(end) < room and here < room - len(end):
        line[room - len(end) :] = list(end)
    if here < len(start):
        line[: len(start)] = " " * len(start)
    line[here] = "▼"
    return [Cell(" " * (label + 1)), Cell("".join(line), Tone.DIM)]


def _row(bars: Sequence[Bar], window: Window, room: int, accused: Collection[bytes]) -> list[Cell]:
    cells: list[tuple[str, Tone]] = [(EMPTY, Tone.PLAIN)] * room
    owners: list[Bar | None] = [None] * room

    first, span, last_cell = window.first_ns, max(1, window.last_ns - window.first_ns), room - 1

    def place(instant: Instant) -> int:
        """As ``cell_of``, of what is the same for all bars reckoned once."""
        cell = (instant - first) * room // span
        return 0 if cell < 0 else min(cell, last_cell)

    for bar in bars:
        start, end = place(bar.start_ns), place(min(bar.end_ns, window.last_ns))
        if bar.end_ns >= window.first_ns:
            for cell in range(start, end + 1):
                cells[cell] = _filled(bar, owners[cell], accused)
                owners[cell] = owners[cell] if cells[cell][0] == CLASH else bar
            _name(cells, bar, start, end)
        if not bar.given_back and bar.expiry_ns > bar.end_ns:
            for cell in range(max(place(bar.end_ns), 0), place(min(bar.expiry_ns, window.last_ns)) + 1):
                if cells[cell][0] == EMPTY:
                    cells[cell] = (OVER, Tone.WARN)
    for bar in bars:
        for instant, mark in ((bar.settle_to_ns, SETTLE), (bar.floor_ns, FLOOR)):
            if window.first_ns <= instant <= window.last_ns and cells[place(instant)][0] in (EMPTY, OVER):
                cells[place(instant)] = (mark, Tone.DIM)
    here = place(window.cursor_ns)
    if cells[here][0] == EMPTY:
        cells[here] = (HERE, Tone.DIM)
    return merged(cells)


def _filled(bar: Bar, other: Bar | None, accused: Collection[bytes]) -> tuple[str, Tone]:
    """Return what a cell of a bar looks like. ``other``: the lease that has the cell already."""
    if other is not None and other.correlation_id in accused and bar.correlation_id in accused:
        return CLASH, Tone.BAD
    if bar.tentative:
        return TENTATIVE, Tone.DIM
    return BARS[bar.mode], Tone.PLAIN if bar.given_back or bar.outcome is None else Tone.WARN


def _name(cells: list[tuple[str, Tone]], bar: Bar, start: int, end: int) -> None:
    """Write who has it into the bar, where there is room for at least the node's name."""
    name = f" {bar.node} "
    if end - start - 1 >= len(name) and all(cells[cell][0] != CLASH for cell in range(start, end + 1)):
        for offset, character in enumerate(name):
            cells[start + 1 + offset] = (character, Tone.STRONG)
