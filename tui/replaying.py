"""Going through a record: steps, speed, what a moment shows. Pure but for the frames that deliveries are read from."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from auditor.replay.events import BagClosed, FrameWritten, LeaseEnded, LeaseTold, event_fields
from auditor.replay.report import newest_delivered
from auditor.replay.state import BagPhase
from timeagent.console import printable
from timeagent.units import MINUTE, SECOND, parse_instant, rfc3339

from .gantt import LEGEND as LEASES_LEGEND
from .gantt import LeaseBars, Window, axis, gantt
from .scrubber import LEGEND as RECORD_LEGEND
from .subjects import Cell, Tone
from .words import clock_text

if TYPE_CHECKING:
    from auditor.evidence.tree import Tree
    from auditor.replay.events import Event
    from auditor.replay.state import LogsAt
    from auditor.replay.timeline import Timeline
    from timeagent.units import Instant, Span

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
DAMAGED: Final = "✗"
EVENT_MARKS: Final = {Tone.BAD: "✗ ", Tone.WARN: "! "}
REPLAY_LEGENDS: Final = (
    ("Record", RECORD_LEGEND),
    ("Leases", LEASES_LEGEND),
    ("Bags", f"{BAG_MARK_WORDS}  {DAMAGED} damaged"),
    ("Events", "✗ counts for nobody  ! a lease not given back, or a bag with a loss"),
)
OVERLAPS: Final = frozenset({"early-grant", "grant-overlap"})
_NAMES: Final = re.compile(r"\b[0-9a-f]{32}\b")


class Step(StrEnum):
    """By what one goes on."""

    EVENT = "event"
    BAG = "bag"
    FINDING = "finding"


@dataclass(frozen=True, slots=True)
class Place:
    """Where one is in a record: so many events have happened, and it is this instant."""

    position: int
    instant_ns: Instant


def at_instant(timeline: Timeline, instant: Instant) -> Place:
    """Return the place at an instant of the record; outside it, its nearest end."""
    instant = max(timeline.start_ns, min(instant, timeline.end_ns))
    return Place(timeline.position(instant), instant)


def at_position(timeline: Timeline, position: int) -> Place:
    """Return the place after so many events."""
    position = max(0, min(position, len(timeline.events)))
    return Place(position, timeline.events[position - 1].instant_ns if position else timeline.start_ns)


def stepped(timeline: Timeline, place: Place, step: Step, *, back: bool, follow: str | None = None) -> Place | None:
    """Return the next place, or None where there is none. ``follow``: of events, only those about this domain."""
    match step:
        case Step.EVENT:
            return _event(timeline, place, back=back, follow=follow)
        case Step.BAG:
            go = timeline.previous_closing if back else timeline.next_closing
            found = go(place.instant_ns)
            return None if found is None else at_instant(timeline, found)
        case Step.FINDING:
            look = timeline.previous_finding if back else timeline.next_finding
            known = look(place.instant_ns)
            return None if known is None else at_instant(timeline, known[0])


def _event(timeline: Timeline, place: Place, *, back: bool, follow: str | None) -> Place | None:
    """One event on, or the one before the newest: several may lie at one instant, so that positions are counted."""
    begin = place.position - 1 if back else place.position
    number: int | None = begin - 1 if back else begin
    if follow is not None:
        number = timeline.next_about(begin, follow, back=back)
    return None if number is None or not 0 <= number < len(timeline.events) else at_position(timeline, number + 1)


def domains_of(event: Event) -> tuple[str, ...]:
    """Return the domains that an event is about."""
    match event:
        case LeaseTold():
            return (event.witness.domain,)
        case LeaseEnded():
            return (event.domain,)
        case FrameWritten():
            return tuple(name for name, _ in event.leases)
        case _:
            return ()


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
                for name in domains_of(event):
                    if len(found) < most:
                        found[name] = None
        before, after, looked = before - 1, after + 1, looked + 1
    names = sorted(name for name in found if name != follow)
    return names if follow is None else [follow, *names]


def event_tone(event: Event) -> Tone:
    """Say how much an event asks to be looked at; its words say why."""
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


def speed_text(speed: float) -> str:
    """Return a speed as it is shown."""
    return f"{speed:g}×"


def status_words(timeline: Timeline, place: Place) -> str:
    """Say where one is: the instant, and of how many events and findings how many have been."""
    findings = timeline.findings_by(place.instant_ns)
    day, moment = rfc3339(place.instant_ns)[:10], clock_text(place.instant_ns, 6)
    return (
        f"{day} {moment} UTC  event {place.position:,}/{len(timeline.events):,}  "
        f"finding {findings:,}/{len(timeline.findings):,}"
    )


@dataclass(frozen=True, slots=True)
class Wish:
    """What a moment is to show, and in how much room."""

    place: Place
    span_ns: Span
    width: int
    rows: int
    follow: str | None = None
    deliveries: int = 4


@dataclass(frozen=True, slots=True)
class Moment:
    """What is drawn of one place in a record."""

    wish: Wish
    axis: list[Cell]
    bars: list[list[Cell]]
    domains: list[str]
    bags: list[list[Cell]]
    delivered: list[str] = field(default_factory=list)
    delivered_known: bool = True
    """Whether there are frames to read them from."""


def window_of(timeline: Timeline, place: Place, span: Span) -> Window:
    """Return the stretch of time around a place: two thirds before it, what comes after in the rest."""
    first = max(timeline.start_ns, min(place.instant_ns - span * 2 // 3, timeline.end_ns - span))
    return Window(first, min(timeline.end_ns, first + span) if timeline.end_ns > first else first + 1, place.instant_ns)


def moment_of(timeline: Timeline, leases: LeaseBars, tree: Tree | None, wish: Wish) -> Moment:
    """Draw bars, bags and what a reader had been given. Reads the frames of the newest deliveries from the tree."""
    place = wish.place
    state = timeline.logs_after(place.position, place.instant_ns)
    window = window_of(timeline, place, wish.span_ns)
    names = domains_near(timeline, place.instant_ns, window.first_ns, window.last_ns, wish.rows, wish.follow)
    digits = 3 if wish.span_ns <= MINUTE else 0
    ends = clock_text(window.first_ns, digits), clock_text(window.last_ns, digits)
    return Moment(
        wish,
        axis(window, wish.width, *ends),
        gantt(names, leases.within, window, wish.width, accused(timeline)),
        names,
        [_strip(state, log, wish.width) for log in sorted(state.logs)],
        _delivered(timeline, state, tree, wish),
        tree is not None,
    )


def events_shown(timeline: Timeline, wish: Wish) -> list[dict[str, Any]]:
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


def _strip(state: LogsAt, log: str, width: int) -> list[Cell]:
    """Draw the newest bags of a log, the newest at the right; what is damaged has a mark of its own."""
    known = state.logs[log]
    label = f"{log}: final up to {clock_text(known.horizon_ns, 1)}, {known.delivered:,} delivered  "[: width - 8]
    cells = []
    for bag in state.bags_of(log, newest=max(1, width - len(label) - 1)):
        damaged = bool(bag.missing)
        mark = DAMAGED if damaged else BAG_MARKS[state.bag_phase(bag)]
        cells.append(Cell(mark, Tone.BAD if damaged else Tone.PLAIN))
    return [Cell(label, Tone.DIM), *cells]


def _delivered(timeline: Timeline, state: LogsAt, tree: Tree | None, wish: Wish) -> list[str]:
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
