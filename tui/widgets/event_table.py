"""Every event of a record in order of time; the cursor is the newest that has happened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from auditor.replay.events import event_words
from auditor.replay.timeline import about_domain
from timeagent.console import printable

from ..columns import cut
from ..replaying import EVENT_MARKS, domains_of, event_tone
from ..subjects import DomainSubject, PlaceSubject
from ..words import Cell, Tone, clock_text
from .pick_table import PickTable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from auditor.replay.events import Event

    from ..subjects import Subject


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
        """Return an event in a width."""
        event = self._events[index]
        aside = self._follow is not None and not about_domain(event, self._follow)
        tone = Tone.DIM if aside or index > self.cursor else event_tone(event)
        mark = EVENT_MARKS.get(event_tone(event), "  ")
        return cut((Cell(f"{clock_text(event.instant_ns, 6)} {mark}", Tone.DIM), Cell(event_words(event), tone)), room)

    @property
    def event(self) -> Event | None:
        """The one under the cursor."""
        return self._events[self.cursor] if self._events else None

    @property
    def domain(self) -> str | None:
        """What it is about."""
        event = self.event
        return next(iter(domains_of(event)), None) if event is not None else None

    @property
    def subject(self) -> Subject | None:
        """What it leads to: its bytes."""
        event = self.event
        if event is None:
            return None
        if not event.where.path:
            return None if self.domain is None else DomainSubject(printable(self.domain))
        return PlaceSubject(event.where.path, event.where.offset, event.where.length)
