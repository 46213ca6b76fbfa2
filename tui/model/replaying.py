"""A record as time goes by: scrubber and bars, steps, speed, what a moment shows, what would have been under *what if*.

What a bar is made of says the mode, what is inside it says who; nothing is said by colour alone. Pure but for the
frames that deliveries are read from.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from appliance.formats.lease import Mode, Phase
from auditor.columns.events import BagClosed, Event, FrameWritten, LeaseEnded, WhatIf, event_fields, leases_of
from auditor.evidence.finding import Finding, Verdict
from auditor.explain.context import LeaseTrace, Traces
from auditor.timeline.report import newest_delivered
from auditor.timeline.state import BagPhase, StateAt
from auditor.timeline.timeline_reader import Timeline
from timeagent.console import counted, printable
from timeagent.errors import TenureError
from timeagent.units import DAY, MINUTE, MS, SECOND, Instant, Span, parse_instant, rfc3339, span_text

from .state import Cell, Tone
from .tables import fitted, merged
from .words import DAMAGED, clock_text

if TYPE_CHECKING:
    from auditor.evidence.tree import Tree
    from auditor.explain.archive import Archive
    from auditor.timeline.what_if import Changes


# -- scrubber and bars -------------------------------------------------------------------------------------------------


type LeasesWithin = Callable[[str, Instant, Instant], Sequence[LeaseTrace]]

AXIS: Final = "━"
CURSOR: Final = "◆"
ON_FINDING: Final = "◈"
"""The cursor is where a finding is."""
SCRUBBER_MARKS: Final = {
    Verdict.VIOLATION: "▲",
    Verdict.INDETERMINATE: "△",
    Verdict.UNVERIFIABLE: "△",
    Verdict.OK: "▵",
}
MARK_TONES: Final = {"▲": Tone.BAD, "△": Tone.WARN, "▵": Tone.DIM}
HEIGHTS: Final = " ▁▂▃▄▅▆▇█"
SCRUBBER_LEGEND: Final = "▲ violation  △ indeterminate, unverifiable  ▵ to know  ◆ here  ◈ here, on a finding"
_WORST: Final = tuple(Verdict)


class Scrubber:
    """[first, last] of a record, in two lines of a width; what stays wherever one looks is counted once."""

    def __init__(self, timeline: Timeline, first: Instant, last: Instant, width: int) -> None:
        self._first_ns, self._last_ns = first, last
        self._left, self._right = (_label(instant, last - first) for instant in (first, last))
        self._room = room = max(1, width - len(self._left) - len(self._right) - 2)
        self._counts = timeline.density(first, last, room) if last > first else [len(timeline.events)]
        worst: dict[int, Verdict] = {}
        self._findings: Counter[int] = Counter()
        for instant, finding in timeline.findings:
            if first <= instant <= last:
                cell = cell_of(instant, first, last, room)
                self._findings[cell] += 1
                worst[cell] = min(worst.get(cell, finding.verdict), finding.verdict, key=_WORST.index)
        self._marks = {cell: SCRUBBER_MARKS[verdict] for cell, verdict in worst.items()}

    def drawn(self, cursor: Instant) -> tuple[list[Cell], list[Cell], int]:
        """Return the axis, how many events lie in each cell, and how many findings are where one looks."""
        here = cell_of(cursor, self._first_ns, self._last_ns, self._room)
        axis = []
        for cell in range(self._room):
            mark = self._marks.get(cell)
            if cell == here:
                axis.append((ON_FINDING if mark else CURSOR, Tone.STRONG))
            else:
                axis.append((mark, MARK_TONES[mark]) if mark else (AXIS, Tone.DIM))
        highest = max(self._counts, default=0)
        heights = "".join(HEIGHTS[_height(count, highest)] for count in self._counts).ljust(self._room)
        title = f"{'events':>{len(self._left)}}"[: len(self._left)]
        return (
            [Cell(f"{self._left} ", Tone.DIM), *merged(axis), Cell(f" {self._right}", Tone.DIM)],
            [Cell(f"{title} ", Tone.DIM), Cell(heights), Cell(" " * (len(self._right) + 1))],
            self._findings[here],
        )


def cell_of(instant: Instant, first: Instant, last: Instant, cells: int) -> int:
    """Return in which of so many equal parts of [first, last] an instant lies; what is outside in the nearest."""
    if last <= first:
        return 0
    return max(0, min(cells - 1, (instant - first) * cells // (last - first)))


def _height(count: int, highest: int) -> int:
    """Nothing is nothing, and one event among thousands is still to be seen."""
    return 0 if not count else 1 + (count - 1) * (len(HEIGHTS) - 2) // max(1, highest - 1)


def _label(instant: Instant, span: int) -> str:
    text = rfc3339(instant)
    if span >= 2 * DAY:
        return text[5:16].replace("T", " ")
    return text[11:19] if span >= 20 * SECOND else text[11:23]


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
GANTT_LEGEND: Final = (
    "█ X  ▓ SIX  ▒ S, IX  ░ IS  · tentative  ╌ broken, until its expiry  ╬ two at once  ▏ floor  ┊ settle_to  │ here"
)
LABEL_MOST: Final = 24


@dataclass(frozen=True, slots=True)
class BarWindow:
    first_ns: Instant
    last_ns: Instant
    cursor_ns: Instant


def gantt(
    rows: Sequence[str],
    leases: LeasesWithin,
    window: BarWindow,
    width: int,
    accused: AbstractSet[bytes] = frozenset(),
) -> list[list[Cell]]:
    """Draw a row for each domain, each exactly so many cells wide.

    ``leases``: of a domain, those that touch a stretch of time. ``accused``: those that the audit found standing
    while another did. Nothing else is drawn as a clash: bars that overlap by a few milliseconds do so because instants
    of two clocks, or of two tokens, are no more exact than that.
    """
    label, room = _columns(width)
    return [
        [
            Cell(f"{fitted(printable(domain), label)} "),
            *_row(leases(domain, window.first_ns, window.last_ns), window, room, accused),
        ]
        for domain in rows
    ]


def _columns(width: int) -> tuple[int, int]:
    """Return how wide the names of domains are, and the bars beside them."""
    label = min(LABEL_MOST, max(8, width // 4))
    return label, max(1, width - label - 1)


def axis(window: BarWindow, width: int, start: str, end: str) -> list[Cell]:
    """Draw the line above the rows: the ends of the stretch, and where one looks."""
    label, room = _columns(width)
    here = cell_of(window.cursor_ns, window.first_ns, window.last_ns, room)
    line = list(f"{start}{' ' * room}"[:room])
    if len(start) + len(end) < room and here < room - len(end):
        line[room - len(end) :] = list(end)
    if here < len(start):
        line[: len(start)] = " " * len(start)
    line[here] = "▼"
    return [Cell(" " * (label + 1)), Cell("".join(line), Tone.DIM)]


def _row(bars: Sequence[LeaseTrace], window: BarWindow, room: int, accused: AbstractSet[bytes]) -> list[Cell]:
    cells: list[tuple[str, Tone]] = [(EMPTY, Tone.PLAIN)] * room
    owners: list[LeaseTrace | None] = [None] * room
    first, span, last_cell = window.first_ns, max(1, window.last_ns - window.first_ns), room - 1

    def place(instant: Instant) -> int:
        """Return what ``cell_of`` does; what is the same for all bars is reckoned once."""
        cell = (instant - first) * room // span
        return 0 if cell < 0 else min(cell, last_cell)

    for bar in bars:
        start, end = place(bar.granted_ns), place(min(bar.end_ns, window.last_ns))
        if bar.end_ns >= window.first_ns:
            for cell in range(start, end + 1):
                cells[cell] = _filled(bar, owners[cell], accused)
                owners[cell] = owners[cell] if cells[cell][0] == CLASH else bar
            _name(cells, bar, start, end)
        if not bar.given_back and bar.expiry_ns > bar.end_ns:
            for cell in range(place(bar.end_ns), place(min(bar.expiry_ns, window.last_ns)) + 1):
                if cells[cell][0] == EMPTY:
                    cells[cell] = (OVER, Tone.WARN)
    for bar in bars:
        for instant, mark in ((bar.witness.settle_to_ns, SETTLE), (bar.witness.floor_ns, FLOOR)):
            if window.first_ns <= instant <= window.last_ns and cells[place(instant)][0] in (EMPTY, OVER):
                cells[place(instant)] = (mark, Tone.DIM)
    here = place(window.cursor_ns)
    if cells[here][0] == EMPTY:
        cells[here] = (HERE, Tone.DIM)
    return merged(cells)


def _filled(bar: LeaseTrace, other: LeaseTrace | None, accused: AbstractSet[bytes]) -> tuple[str, Tone]:
    """Return what a cell of a bar looks like. ``other``: the lease that has the cell already."""
    if other is not None and {other.witness.correlation_id, bar.witness.correlation_id} <= accused:
        return CLASH, Tone.BAD
    if bar.told[-1].witness.phase is Phase.TENTATIVE:
        return TENTATIVE, Tone.DIM
    return BARS[bar.mode], Tone.PLAIN if bar.given_back or bar.end is None else Tone.WARN


def _name(cells: list[tuple[str, Tone]], bar: LeaseTrace, start: int, end: int) -> None:
    """Write who has it into the bar, where there is room for at least the node's name."""
    name = f" {bar.witness.holder.node} "
    if end - start - 1 >= len(name) and all(cells[cell][0] != CLASH for cell in range(start, end + 1)):
        for offset, character in enumerate(name):
            cells[start + 1 + offset] = (character, Tone.STRONG)


# -- going through it --------------------------------------------------------------------------------------------------


SHIFTS: Final[tuple[Span, ...]] = (
    *(-n * SECOND for n in (60, 10, 5, 2, 1)),
    -250 * MS,
    -10 * MS,
    0,
    10 * MS,
    250 * MS,
    *(n * SECOND for n in (1, 2, 5, 10, 60)),
)
"""By how much more a node's clock is taken to have shown."""
GRACES: Final[tuple[Span | None, ...]] = (None, 0, 250 * MS, 500 * MS, *(n * SECOND for n in (1, 2, 4, 8, 30)))


def turned(lens: WhatIf, nodes: Sequence[str], row: int, steps: int) -> WhatIf:
    """Return what is taken to have been otherwise with one switch turned, by so many steps; at its end it stays."""
    if row == 0:
        return replace(lens, drop_late=not lens.drop_late)
    if row == 1:
        return replace(lens, grace_ns=further(GRACES, lens.grace_ns, steps))
    node = nodes[row - 2]
    shifts = {**lens.shifts, node: further(SHIFTS, lens.shifts.get(node, 0), steps)}
    return replace(lens, shifts={node: shift for node, shift in sorted(shifts.items()) if shift})


def further[T](values: Sequence[T], value: T, steps: int) -> T:
    """Return the value so many steps from one; at an end it stays."""
    return values[max(0, min(values.index(value) + steps, len(values) - 1))]


def switch_rows(lens: WhatIf, nodes: Sequence[str]) -> list[tuple[Cell, ...]]:
    grace = "as it was" if lens.grace_ns is None else span_text(lens.grace_ns)
    rows = [
        ("drop late messages", "yes" if lens.drop_late else "no", lens.drop_late),
        ("grace of every log", grace, lens.grace_ns is not None),
    ]
    for node in nodes:
        shift = lens.shifts.get(node, 0)
        rows.append((f"clock of {node}", _signed(shift) if shift else "as it was", bool(shift)))
    tones = {True: Tone.WARN, False: Tone.PLAIN}
    return [
        (Cell("[x]" if on else "[ ]", tones[on]), Cell(what, tones[on]), Cell(value, tones[on]))
        for what, value, on in rows
    ]


def _signed(span: Span) -> str:
    return f"{'+' if span > 0 else '−'}{span_text(abs(span))}"


def lens_words(lens: WhatIf, changes: Changes | None, problem: str = "") -> str:
    parts = ["late messages dropped"] if lens.drop_late else []
    if lens.grace_ns is not None:
        parts.append(f"grace {span_text(lens.grace_ns)}")
    parts += [f"clock of {node} {_signed(span)}" for node, span in lens.shifts.items()]
    words = f"WHAT IF {', '.join(parts)}"
    if problem:
        return f"{words}: not known: {problem}; all is shown as it was"
    if changes is None:
        return f"{words}: reading the copy so …"
    return f"{words}: {_told(changes.appear, 'more')}, {_told(changes.vanish, 'fewer')}"


def _told(findings: Sequence[Finding], more: str) -> str:
    codes = sorted({each.code for each in findings})
    shown = ", ".join(codes[:3]) + ("…" if len(codes) > 3 else "")  # noqa: PLR2004
    return f"{counted(len(findings), 'finding')} {more}" + (f" ({shown})" if codes else "")


SPEEDS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0, 600.0)
TICK_NS: Final[Span] = SECOND // 10
"""How much time of a playing replay passes at once, at the speed of 1."""
SPANS: Final[tuple[Span, ...]] = tuple(n * SECOND for n in (1, 2, 5, 10, 20, 60, 300, 1800, 7200, 86400))
"""How much of a record the bars show."""
EVENTS_NEAR: Final = 1_000
"""So many events on each side of the cursor decide which domains are shown."""
EVENTS_WRITTEN_MAX: Final = 100_000
BAG_MARKS: Final = {
    BagPhase.OPEN: "▯",
    BagPhase.DUE: "◫",
    BagPhase.CLOSING: "◧",
    BagPhase.CLOSED: "■",
    BagPhase.SEALED: "▣",
    BagPhase.PACKED: "▣",
}
BAG_MARK_WORDS: Final = "▯ open  ◫ due  ◧ closing  ■ closed  ▣ sealed"
EVENT_MARKS: Final = {Tone.BAD: "✗ ", Tone.WARN: "! "}
REPLAY_LEGENDS: Final = (
    ("Record", SCRUBBER_LEGEND),
    ("Leases", GANTT_LEGEND),
    ("Bags", f"{BAG_MARK_WORDS}  {DAMAGED} damaged"),
    ("Events", "✗ counts for nobody  ! a lease not given back, or a bag with a loss"),
)
OVERLAPS: Final = frozenset({"early-grant", "grant-overlap"})
_NAMES: Final = re.compile(r"\b[0-9a-f]{32}\b")


class Step(StrEnum):
    EVENT = "event"
    BAG = "bag"
    FINDING = "finding"


@dataclass(frozen=True, slots=True)
class ReplayPlace:
    """Where one is in a record: so many events have happened, and it is this instant."""

    position: int
    instant_ns: Instant


def at_instant(timeline: Timeline, instant: Instant) -> ReplayPlace:
    """Return the place at an instant of the record; outside it, its nearest end."""
    instant = max(timeline.start_ns, min(instant, timeline.end_ns))
    return ReplayPlace(timeline.position(instant), instant)


def at_position(timeline: Timeline, position: int) -> ReplayPlace:
    position = max(0, min(position, len(timeline.events)))
    return ReplayPlace(position, timeline.events[position - 1].instant_ns if position else timeline.start_ns)


def stepped(
    timeline: Timeline, place: ReplayPlace, step: Step, *, back: bool, follow: str | None = None
) -> ReplayPlace | None:
    """Return the next place, or None where there is none. ``follow``: of events, only those about this domain."""
    match step:
        case Step.EVENT:
            return _event(timeline, place, back=back, follow=follow)
        case Step.BAG:
            found = timeline.closing(place.instant_ns, back=back)
            return None if found is None else at_instant(timeline, found)
        case Step.FINDING:
            known = timeline.finding(place.instant_ns, back=back)
            return None if known is None else at_instant(timeline, known[0])


def _event(timeline: Timeline, place: ReplayPlace, *, back: bool, follow: str | None) -> ReplayPlace | None:
    """One event on, or the one before the newest: several may lie at one instant, so that positions are counted."""
    begin = place.position - 1 if back else place.position
    number: int | None = begin - 1 if back else begin
    if follow is not None:
        number = timeline.next_about(begin, follow, back=back)
    return None if number is None or not 0 <= number < len(timeline.events) else at_position(timeline, number + 1)


def domains_near(
    timeline: Timeline, cursor: Instant, first: Instant, last: Instant, most: int, follow: str | None = None
) -> list[str]:
    """Return the domains that events nearest to an instant are about, at most so many, by name; the followed first."""
    found: dict[str, None] = {} if follow is None else {follow: None}
    place = timeline.position(cursor)
    before, after = place - 1, place
    looked, count = 0, len(timeline.events)
    while len(found) < most and looked < EVENTS_NEAR and (before >= 0 or after < count):
        for event in [timeline.events[position] for position in (before, after) if 0 <= position < count]:
            if first <= event.instant_ns <= last:
                for name, _ in leases_of(event):
                    if len(found) < most:
                        found[name] = None
        before, after, looked = before - 1, after + 1, looked + 1
    names = sorted(name for name in found if name != follow)
    return names if follow is None else [follow, *names]


def event_tone(event: Event) -> Tone:
    match event:
        case FrameWritten() if event.void_because:
            return Tone.BAD
        case LeaseEnded() if event.ending.outcome in ("expired", "revoked", "unknown"):
            return Tone.WARN
        case BagClosed() if event.missing or event.rejected or event.void_files:
            return Tone.WARN
        case _:
            return Tone.PLAIN


def instant_near(text: str, near: Instant) -> Instant:
    """Read an instant; a time of day is of the day that is looked at. Raises BadRequest."""
    if "T" in text or ":" not in text:
        return parse_instant(text)
    hours, _, rest = text.rstrip("Z").partition(":")
    seconds = rest if ":" in rest else f"{rest}:00"
    return parse_instant(f"{rfc3339(near)[:10]}T{hours:0>2}:{seconds}Z")


def status_words(timeline: Timeline, place: ReplayPlace) -> str:
    findings = timeline.findings_by(place.instant_ns)
    day, moment = rfc3339(place.instant_ns)[:10], clock_text(place.instant_ns, 6)
    return (
        f"{day} {moment} UTC  event {place.position:,}/{len(timeline.events):,}  "
        f"finding {findings:,}/{len(timeline.findings):,}"
    )


@dataclass(frozen=True, slots=True)
class MomentRequest:
    place: ReplayPlace
    span_ns: Span
    width: int
    rows: int
    follow: str | None = None
    deliveries: int = 4


@dataclass(frozen=True, slots=True)
class ReplayMoment:
    wish: MomentRequest
    axis: list[Cell]
    bars: list[list[Cell]]
    bags: list[list[Cell]]
    delivered: list[str] = field(default_factory=list)
    delivered_known: bool = True
    """Whether there are frames to read them from."""


def window_of(timeline: Timeline, place: ReplayPlace, span: Span) -> BarWindow:
    """Return the stretch of time around a place: two thirds before it, what comes after in the rest."""
    first = max(timeline.start_ns, min(place.instant_ns - span * 2 // 3, timeline.end_ns - span))
    return BarWindow(
        first, min(timeline.end_ns, first + span) if timeline.end_ns > first else first + 1, place.instant_ns
    )


def moment_of(timeline: Timeline, leases: Traces, tree: Tree | None, wish: MomentRequest) -> ReplayMoment:
    """Draw bars, bags and what a reader had been given. Reads the frames of the newest deliveries from the tree."""
    place = wish.place
    state = timeline.state_after(place.position, place.instant_ns)
    window = window_of(timeline, place, wish.span_ns)
    names = domains_near(timeline, place.instant_ns, window.first_ns, window.last_ns, wish.rows, wish.follow)
    digits = 3 if wish.span_ns <= MINUTE else 0
    ends = clock_text(window.first_ns, digits), clock_text(window.last_ns, digits)
    return ReplayMoment(
        wish,
        axis(window, wish.width, *ends),
        gantt(names, leases.within, window, wish.width, accused(timeline)),
        [_strip(state, log, wish.width) for log in sorted(state.logs)],
        _delivered(timeline, state, tree, wish),
        tree is not None,
    )


def events_shown(timeline: Timeline, wish: MomentRequest) -> list[dict[str, Any]]:
    """Return the events of the stretch that the bars show as they are written to a file, at most EVENTS_WRITTEN_MAX."""
    window = window_of(timeline, wish.place, wish.span_ns)
    events = timeline.between(window.first_ns, window.last_ns, domain=wish.follow)
    return [event_fields(event) for _, event in islice(events, EVENTS_WRITTEN_MAX)]


def accused(timeline: Timeline) -> frozenset[bytes]:
    """Return the leases that the audit found to stand beside another that they conflict with."""
    found = set()
    for _, finding in timeline.findings:
        if finding.code in OVERLAPS:
            found |= {bytes.fromhex(name) for name in _NAMES.findall(f"{finding.subject} {finding.explanation}")}
    return frozenset(found)


def _strip(state: StateAt, log: str, width: int) -> list[Cell]:
    known = state.logs[log]
    label = f"{log}: final up to {clock_text(known.horizon_ns, 1)}, {known.delivered:,} delivered  "[: width - 8]
    cells = []
    for bag in state.bags.bags_of(log, newest=max(1, width - len(label) - 1)):
        damaged = bag.closed is not None and bag.closed.missing > 0
        mark = DAMAGED if damaged else BAG_MARKS[state.bag_phase(bag)]
        cells.append(Cell(mark, Tone.BAD if damaged else Tone.PLAIN))
    return [Cell(label, Tone.DIM), *cells]


def _delivered(timeline: Timeline, state: StateAt, tree: Tree | None, wish: MomentRequest) -> list[str]:
    """Return the newest messages that a reader had been given, in the order in which it is given them, all logs."""
    if tree is None:
        return ["which messages: their frames are in the copy, and only its index is here"]
    found = []
    for log in sorted(state.logs):
        for each in newest_delivered(timeline, state, tree, log, newest=wish.deliveries, domain=wish.follow):
            under = ", ".join(map(printable, each.domains)) or "no lease"
            size = f"{each.length} B"
            found.append((each, f"{clock_text(each.timestamp_ns, 6)} {log} {each.writer} {size:>6} under {under}"))
    expected = any(known.delivered for known in state.logs.values())
    if not found and expected and (wish.follow is None or not tree.root.exists()):
        return ["which messages: their bytes cannot be read from the copy any more"]
    return [text for _, text in sorted(found, key=lambda pair: pair[0])[-wish.deliveries :]]


GONE: Final = "nothing can be read from the copy any more"


class ReplayedCopy:
    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self.lens = WhatIf()
        self._changes: Changes | None = None
        self._problem = ""
        self._show_as_it_was()

    def _show_as_it_was(self) -> None:
        self.timeline: Timeline = self.archive.timeline
        self.leases = self.archive.leases

    def turn(self, lens: WhatIf) -> None:
        """Look at it so from now on; where anything is otherwise, once it is taken what reading it so came to."""
        self.lens, self._changes, self._problem = lens, None, ""
        if not lens.any:
            self._show_as_it_was()

    def take(self, lens: WhatIf, found: tuple[Timeline, Changes] | TenureError) -> bool:
        """Take what reading it through a lens came to. Returns whether that is still wanted."""
        if lens is not self.lens:
            return False
        if isinstance(found, TenureError):
            self._problem = found.message
        elif self.archive.timeline.events and not found[0].events:
            self._problem = GONE
        else:
            self.timeline, self._changes = found
            self.leases = Traces(self.timeline)
            return True
        self._show_as_it_was()
        return True

    @property
    def words(self) -> str:
        return lens_words(self.lens, self._changes, self._problem) if self.lens.any else ""

    def findings_by(self, instant: Instant) -> tuple[Finding, ...]:
        """Return the findings of the audit whose evidence was complete at an instant; at the end all there are."""
        archive = self.archive
        at_end = instant >= archive.timeline.end_ns
        return archive.audit.findings if at_end else archive.timeline.findings_until(instant)
