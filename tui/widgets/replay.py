"""What the replay is made of: the scrubber, the field for an instant, what a moment shows, the events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input

from auditor.timeline.events import Event, about_domain, event_words, leases_of
from timeagent.console import printable
from timeagent.units import Instant, span_text

from ..model.columns import cut
from ..model.gantt import ScrubberGround, ground_of
from ..model.replaying import BAG_MARK_WORDS, EVENT_MARKS, ReplayMoment, event_tone
from ..model.subjects import Cell, DomainSubject, PlaceSubject, Subject, Tone
from ..model.words import clock_text
from .lines import TextPart, WordsLine
from .row_table import PickTable

if TYPE_CHECKING:
    from auditor.timeline.timeline_reader import Timeline


class ScrubberLine(WordsLine):
    """What lies under the cursor is counted once for a record and a width."""

    def __init__(self) -> None:
        super().__init__(id="scrubber")
        self._counted: tuple[Timeline, int, ScrubberGround] | None = None

    def show(self, timeline: Timeline, instant: Instant) -> int:
        """Show a record and an instant in it. Returns how many findings are where the cursor is."""
        width = self.content_size.width
        if self._counted is None or self._counted[0] is not timeline or self._counted[1] != width:
            self._counted = timeline, width, ground_of(timeline, timeline.start_ns, timeline.end_ns, width)
        drawn = self._counted[2].with_cursor(instant)
        self.say_cells([drawn.axis, drawn.density])
        return drawn.findings_here


class InstantField(Input):
    """Seen only while it is typed in."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "Go there"),
        Binding("escape", "screen.back", "Leave it"),
    ]

    def __init__(self) -> None:
        super().__init__(placeholder="an instant: 2026-11-20T22:00:01.5Z, or a time of that day", id="instant")


LOW: Final = 14
"""With fewer lines than this, what explains the marks gives way to bars."""


class MomentParts(Vertical):
    """Bars, bags and deliveries of a moment, each with as many lines as there is room for."""

    def __init__(self) -> None:
        super().__init__(id="moment")

    def compose(self) -> ComposeResult:
        yield WordsLine(id="bars", cut=True)
        yield WordsLine(id="bag-lines", cut=True)
        yield WordsLine(id="delivered", cut=True)

    def room(self, logs: int) -> tuple[int, int, int]:
        """Return how wide it is, and how many bars and deliveries there is room for beside so many logs."""
        size = self.content_size
        low = size.height < LOW
        deliveries = 1 if low else size.height // 6
        return max(20, size.width), max(1, size.height - deliveries - logs - (4 if low else 5)), deliveries

    def show(self, found: ReplayMoment, logs: int) -> None:
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
        lines: list[list[TextPart]] = [[text] for text in found.delivered or ["no message"]]
        delivered.say_lines(_filled(lines, found.wish.deliveries if found.delivered_known else 1))
        under = "" if found.wish.follow is None else f" under {printable(found.wish.follow)}"
        delivered.show_title(f"Delivered so far{under}, the newest last")


def _filled[T](lines: Sequence[list[T]], count: int) -> list[list[T]]:
    """Return at least so many lines: what needs as many as before is not laid out anew."""
    return [*lines, *([] for _ in range(count - len(lines)))]


class EventTable(PickTable):
    """Only what is in sight is put into words, however many there are."""

    headed = False

    def __init__(self, moved: Callable[[int], None]) -> None:
        """Show nothing yet. ``moved``: told at once how many events have happened where the cursor is now.

        What follows from that is drawn with it, where a message would come after the next drawing.
        """
        super().__init__((), "Events", id="events")
        self._moved = moved
        self._events: Sequence[Event] = ()
        self._follow: str | None = None

    def show(self, events: Sequence[Event], position: int, follow: str | None, nothing: str) -> None:
        """Show events, the cursor on the last of so many that have happened. What is not followed steps back."""
        if self._events is not events or not events or self._follow != follow:
            if self._events is not events:
                self._events, self._key = events, None
            self._follow = follow
            self.show_title("Events" if follow is None else f"Events; about {printable(follow)} in plain")
            self.show_picks(len(events), lambda _place: (), nothing, lambda place: place)
        if events and self.cursor != max(0, position - 1):
            self.cursor = max(0, position - 1)

    def watch_cursor(self, before: int, after: int) -> None:
        """Draw what lies between anew: it has happened, or has not any more. Where it scrolls, all is drawn."""
        top = self.scroll_offset.y
        super().watch_cursor(before, after)
        if self.scroll_offset.y == top:
            first, last = max(top, min(before, after)), min(top + self.size.height - 1, max(before, after))
            self.refresh_lines(first, max(0, last - first + 1))
        self._moved(after + 1)

    def name_of(self, index: int) -> object:
        """What has not happened yet looks otherwise."""
        return index, index > self.cursor

    def line_of(self, index: int, room: int) -> list[Cell]:
        event = self._events[index]
        aside = self._follow is not None and not about_domain(event, self._follow)
        tone = Tone.DIM if aside or index > self.cursor else event_tone(event)
        mark = EVENT_MARKS.get(event_tone(event), "  ")
        return cut((Cell(f"{clock_text(event.instant_ns, 6)} {mark}", Tone.DIM), Cell(event_words(event), tone)), room)

    @property
    def event(self) -> Event | None:
        return self._events[self.cursor] if self._events else None

    @property
    def domain(self) -> str | None:
        event = self.event
        return next((name for name, _ in leases_of(event)), None) if event is not None else None

    @property
    def subject(self) -> Subject | None:
        event = self.event
        if event is None:
            return None
        if not event.where.path:
            return None if self.domain is None else DomainSubject(printable(self.domain))
        return PlaceSubject(event.where.path, event.where.offset, event.where.length)
