"""A record as time goes by: scrubber, events, who had which lease, bags, what readers had been given, and what if."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input, Static

from auditor.columns.events import NAME_THE_COPY, Event, WhatIf, about_domain, event_words, leases_of
from timeagent.errors import TenureError
from timeagent.units import Instant, TimeInterval, rfc3339, span_text

from ..app import EvidenceScreen
from ..model import replaying
from ..model.replaying import SPANS, MomentRequest, ReplayedCopy, ReplayMoment, ReplayPlace, Scrubber, at_instant
from ..model.state import Cell, DomainSubject, Subject, Tone
from ..model.tables import Column, ExportSheet, cut
from ..model.words import clock_text
from ..widgets.lines import TabLine, TitleBar, Words, WordsLine
from ..widgets.row_table import PickTable

if TYPE_CHECKING:
    from auditor.timeline.timeline_reader import Timeline
    from auditor.timeline.what_if import Changes


class ScrubberLine(WordsLine):
    def __init__(self) -> None:
        super().__init__(id="scrubber")
        self._counted = lru_cache(1)(Scrubber)

    def show(self, timeline: Timeline, instant: Instant) -> int:
        """Show a record and an instant in it. Returns how many findings are where the cursor is."""
        scrubber = self._counted(timeline, timeline.start_ns, timeline.end_ns, self.content_size.width)
        axis, density, findings_here = scrubber.drawn(instant)
        self.say_lines([axis, density])
        return findings_here


class InstantField(Input):
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
        bars.say_lines(_filled([found.axis, *found.bars], found.wish.rows + 1))
        follow = "" if found.wish.follow is None else f", {found.wish.follow} first"
        bars.show_title(f"Leases, {span_text(found.wish.span_ns)}{follow}")
        strips = _filled(found.bags, logs)
        if self.content_size.height >= LOW:
            strips.append([Cell(replaying.BAG_MARK_WORDS, Tone.DIM)])
        bags = self.query_one("#bag-lines", WordsLine)
        bags.say_lines(strips)
        bags.show_title("Bags")
        delivered = self.query_one("#delivered", WordsLine)
        lines = [[text] for text in found.delivered or ["no message"]]
        delivered.say_lines(_filled(lines, found.wish.deliveries if found.delivered_known else 1))
        under = "" if found.wish.follow is None else f" under {found.wish.follow}"
        delivered.show_title(f"Delivered so far{under}, the newest last")


def _filled(lines: Sequence[Sequence[Words]], count: int) -> list[Sequence[Words]]:
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
            self._events, self._follow, self._key = events, follow, None
            self.show_title("Events" if follow is None else f"Events; about {follow} in plain")
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
        return index, index > self.cursor

    def line_of(self, index: int, room: int) -> list[Cell]:
        event = self._events[index]
        aside = self._follow is not None and not about_domain(event, self._follow)
        tone = Tone.DIM if aside or index > self.cursor else replaying.event_tone(event)
        mark = replaying.EVENT_MARKS.get(replaying.event_tone(event), "  ")
        return cut((Cell(f"{clock_text(event.instant_ns, 6)} {mark}", Tone.DIM), Cell(event_words(event), tone)), room)

    @property
    def event(self) -> Event | None:
        return self._events[self.cursor] if self._events else None

    @property
    def domain(self) -> str | None:
        return None if self.event is None else next((name for name, _ in leases_of(self.event)), None)

    @property
    def subject(self) -> Subject | None:
        if self.event is not None and self.event.where.path:
            return self.event.where
        return None if self.domain is None else DomainSubject(self.domain)


SWITCH_COLUMNS = (Column("", 3), Column("switch", 20, most=40), Column("taken to have been", 20))


class SwitchTable(PickTable):
    """Enter is handled where the keys before it are: before them, it would not see how they turn the switches."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "screen.apply", "Read it so")]


class WhatIfScreen(ModalScreen[WhatIf | None]):
    """Returns what is taken to have been otherwise; None: nothing is to change."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "turn(-1)", "Less"),
        Binding("right,l,space", "turn(1)", "More, or on and off"),
        Binding("0", "clear", "All as it was"),
        Binding("escape,w", "dismiss", "Leave it"),
    ]
    AUTO_FOCUS = "#switches"

    def __init__(self, lens: WhatIf, nodes: Sequence[str]) -> None:
        super().__init__()
        self._lens = lens
        self._clocks = list(nodes)

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog") as box:
            box.border_title = "What if"
            yield SwitchTable(SWITCH_COLUMNS, "", id="switches")
            yield Static("← → turn   enter reads it so   0 as it was   esc leaves it", id="dialog-keys")

    def on_mount(self) -> None:
        self._fill()

    def _fill(self) -> None:
        rows = replaying.switch_rows(self._lens, self._clocks)
        self.query_one(PickTable).show_picks(len(rows), rows.__getitem__, "", lambda place: place)

    def action_turn(self, steps: int) -> None:
        self._lens = replaying.turned(self._lens, self._clocks, self.query_one(PickTable).cursor, steps)
        self._fill()

    def action_clear(self) -> None:
        self._lens = WhatIf()
        self._fill()

    def action_apply(self) -> None:
        self.dismiss(self._lens)


TICK: Final = 0.1
"""Seconds; as long as replaying.TICK_NS, so that the speed of 1 is that of the record."""
WAITED: Final = 0.05
"""Seconds for which bars are waited for: mostly they are there by then, and all is drawn at once."""
SPAN_AT_FIRST, SPAN_AT_FINDING = SPANS[4], SPANS[2]
"""How much the bars show."""


class ReplayScreen(EvidenceScreen):
    NAME = "replay"
    READS_STATE = False
    PARTS = ("scrubber", "where", "bars", "bag-lines", "delivered", "events", "lens", "instant")
    LEGENDS = replaying.REPLAY_LEGENDS
    AUTO_FOCUS = "#events"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "play", "Play", key_display="space"),
        Binding("full_stop", "step('event', False)", "Event", key_display=", ."),
        Binding("comma", "step('event', True)", "Event before", show=False),
        Binding("greater_than_sign", "step('bag', False)", "Bag", key_display="< >"),
        Binding("less_than_sign", "step('bag', True)", "Bag before", show=False),
        Binding("right_square_bracket", "step('finding', False)", "Finding", key_display="[ ]"),
        Binding("left_square_bracket", "step('finding', True)", "Finding before", show=False),
        Binding("plus,equals_sign", "faster(1)", "Faster", show=False),
        Binding("minus", "faster(-1)", "Slower", show=False),
        Binding("right,l", "move(1)", "A little on", show=False),
        Binding("left,h", "move(-1)", "A little back", show=False),
        Binding("z", "widen(-1)", "Closer", show=False),
        Binding("Z", "widen(1)", "Wider", show=False),
        Binding("f", "follow", "Follow the domain", show=False),
        Binding("w", "what_if", "What if"),
        Binding("i", "go_to", "Instant", show=False),
        Binding("a", "audit", "Audit now", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._reading: ReplayedCopy | None = None
        self._waiting = True
        """Whether what is seen is how far a reading is: what was read before comes back where that fails."""
        self.place = ReplayPlace(0, 0)
        self.playing = False
        self.speed = 1.0
        self.follow: str | None = None
        self._span = SPAN_AT_FIRST
        self._moment: ReplayMoment | None = None
        self._busy = False
        self._wanted: tuple[Instant | None, str | None] | None = None

    def parts(self) -> Iterable[Widget]:
        yield ScrubberLine()
        yield WordsLine(id="where")
        with Container(id="replay-parts"):
            yield MomentParts()
            yield EventTable(self._moved)
        yield WordsLine(id="lens")
        yield InstantField()

    def on_mount(self) -> None:
        self.set_interval(TICK, self._tick)

    # What there is.

    @property
    def timeline(self) -> Timeline | None:
        """The events of the record, as it was or as a what-if has it; None: nothing was read yet."""
        return None if self._reading is None else self._reading.timeline

    def look(self) -> None:
        if not self.whole:
            return
        archives = self.top.archives
        archive = archives.archive
        self._waiting = archive is None or archives.busy
        if archive is None or self._waiting:
            self.query_one(ScrubberLine).say(archives.words(self.state))
            self.query_one(EventTable).show((), 0, None, "")
            return
        reading = self._reading
        if reading is None or archive is not reading.archive:
            reading = self._reading = ReplayedCopy(archive)
            self._moment = None
            self.place = at_instant(archive.timeline, archive.timeline.end_ns)
        if self._wanted is not None:
            instant, self.follow = self._wanted
            self._wanted, self._span = None, SPAN_AT_FINDING
            if instant is not None:
                self.place = at_instant(reading.timeline, instant)
            self._tell()
        self._paint()

    def begin_at(self, instant: Instant | None, follow: str | None) -> None:
        self.playing = False
        self._wanted = instant, follow
        if self.is_mounted:
            self.look()

    # Drawing.

    def _go(self, place: ReplayPlace | None) -> None:
        if place is None:
            self.notify("there is no other that way", timeout=2)
            return
        self.place = place
        self._paint()
        self._tell()

    def _paint(self) -> None:
        """Draw what costs little at once; the rest comes from a thread."""
        reading = self._reading
        if reading is None or not self.whole:
            return
        timeline, line = reading.timeline, self.query_one(ScrubberLine)
        if not timeline.events:
            line.say("the copy tells of no event")
            return
        findings = line.show(timeline, self.place.instant_ns)
        here = f"  ◈ {findings} here" if findings else ""
        mark = f"{'▶' if self.playing else '‖'} {self.speed:g}×"
        self.query_one("#where", WordsLine).say(f"{mark}   {replaying.status_words(timeline, self.place)}{here}")
        self.query_one(EventTable).show(timeline.events, self.place.position, self.follow, "")
        lens = self.query_one("#lens", WordsLine)
        lens.display = bool(reading.words)
        lens.say(reading.words)
        self._title(reading)
        self._ask()

    def _title(self, reading: ReplayedCopy) -> None:
        """Say in the title which instant of a copy is seen, and whether it looks healthy up to there."""
        if self.state is None or not self.top.of_record:
            return
        instant = self.place.instant_ns
        clock = replace(self.state.clock, now=TimeInterval.around(instant, 0))
        seen = replace(self.state, clock=clock, findings=reading.findings_by(instant))
        self.query_one(TitleBar).show(seen, paused=self.top.paused)
        self.query_one(TabLine).show(seen)

    @property
    def _logs(self) -> int:
        return 1 if self._reading is None else len(self._reading.archive.timeline.births)

    def _wish(self) -> MomentRequest:
        width, rows, deliveries = self.query_one(MomentParts).room(self._logs)
        return MomentRequest(self.place, self._span, width, rows, self.follow, deliveries)

    def _ask(self) -> None:
        reading, wish = self._reading, self._wish()
        if self._busy or reading is None or (self._moment and self._moment.wish == wish):
            return
        timeline, leases, copy = reading.timeline, reading.leases, reading.archive.copy
        self._busy = True
        asked = partial(replaying.moment_of, timeline, leases, copy, wish)
        self.top.work(asked, lambda found: self._take(timeline, found), WAITED)

    def _take(self, timeline: Timeline, found: ReplayMoment | TenureError) -> None:
        self._busy = False
        if self.whole and not isinstance(found, TenureError):
            if timeline is self.timeline:
                self._moment = found
                self.query_one(MomentParts).show(found, self._logs)
            self._ask()

    @property
    def idle(self) -> bool:
        return not self._busy and self._moment is not None and self._moment.wish == self._wish()

    # Keys.

    def _tick(self) -> None:
        if not self.is_current or not self.whole:
            return
        archives = self.top.archives
        if self._waiting or archives.busy or self._reading is None or archives.archive is not self._reading.archive:
            self.look()
        else:
            if self.playing:
                self.pass_time()
            self._ask()  # the room for it may have changed after it was asked for

    def pass_time(self) -> None:
        """Let one tick of the record pass, at the speed there is. At its end it stops."""
        timeline = self.timeline
        if timeline is None:
            return
        self.place = at_instant(timeline, self.place.instant_ns + int(replaying.TICK_NS * self.speed))
        self.playing = self.place.instant_ns < timeline.end_ns
        self._paint()
        self._tell()

    def action_play(self) -> None:
        if self.timeline is None:
            return
        if not self.playing and self.place.instant_ns >= self.timeline.end_ns:
            self.place = at_instant(self.timeline, self.timeline.start_ns)
        self.playing = not self.playing
        self._tell()
        self._paint()

    def action_step(self, step: str, back: bool) -> None:  # noqa: FBT001 - as bindings call it
        if self.timeline is not None:
            self.playing = False
            self._go(replaying.stepped(self.timeline, self.place, replaying.Step(step), back=back, follow=self.follow))

    def action_move(self, steps: int) -> None:
        if self.timeline is not None:
            self.playing = False
            self._go(at_instant(self.timeline, self.place.instant_ns + steps * self._span // 20))

    def action_faster(self, steps: int) -> None:
        self.speed = replaying.further(replaying.SPEEDS, self.speed, steps)
        self._paint()

    def action_widen(self, steps: int) -> None:
        self._span = replaying.further(SPANS, self._span, steps)
        self._paint()

    def action_follow(self) -> None:
        domain = self.query_one(EventTable).domain
        self.follow = None if domain == self.follow else domain
        self._paint()

    def _tell(self) -> None:
        """Let the other screens look at this instant too, where they show the same copy."""
        if self.top.of_record:
            self.top.look_at(self.place.instant_ns)

    def _moved(self, position: int) -> None:
        timeline = self.timeline
        if timeline is None or not timeline.events or self.playing:
            return
        if position != self.place.position and self.query_one(EventTable).has_focus:
            self._go(replaying.at_position(timeline, position))

    def subject(self) -> Subject | None:
        return self.query_one(EventTable).subject

    # What if.

    def action_what_if(self) -> None:
        reading = self._reading
        if reading is not None and reading.archive.copy is None:
            self.notify(f"what if reads the copy again: {NAME_THE_COPY}")
        elif reading is not None:
            nodes = sorted(reading.archive.timeline.state_at().clocks)
            self.app.push_screen(WhatIfScreen(reading.lens, nodes), self._read_so)

    def _read_so(self, lens: WhatIf | None) -> None:
        reading = self._reading
        if lens is None or reading is None:
            return
        reading.turn(lens)
        if not lens.any:
            self._show_reading(reading)
            return
        self._paint()

        def take(found: tuple[Timeline, Changes] | TenureError) -> None:
            if reading is self._reading and reading.take(lens, found) and self.whole:
                self._show_reading(reading)

        self.top.work(lambda: reading.archive.changed(lens), take)

    def _show_reading(self, reading: ReplayedCopy) -> None:
        self._moment = None
        self._go(at_instant(reading.timeline, self.place.instant_ns))

    # An instant that is typed.

    def action_go_to(self) -> None:
        field = self.query_one(InstantField)
        field.display = True
        self.set_focus(field)

    def on_input_submitted(self, event: InstantField.Submitted) -> None:
        """Go to the instant. What is none is refused by name, and stays to be mended."""
        text = event.value.strip()
        try:
            instant = replaying.instant_near(text, self.place.instant_ns) if text else None
        except TenureError as problem:
            self.notify(problem.message, severity="warning", markup=False)
            return
        self._leave_instant()
        timeline = self.timeline
        if timeline is not None and instant is not None:
            self._go(at_instant(timeline, instant))
            if self.place.instant_ns != instant:
                self.notify(f"the record goes from {rfc3339(timeline.start_ns)} to {rfc3339(timeline.end_ns)}")

    def action_back(self) -> None:
        if self.query_one(InstantField).display:
            self._leave_instant()
        elif self.follow is not None:
            self.follow = None
            self._paint()
        else:
            super().action_back()

    def _leave_instant(self) -> None:
        field = self.query_one(InstantField)
        field.value, field.display = "", False
        self.set_focus(self.query_one(EventTable))

    def exported(self) -> ExportSheet:
        return ExportSheet(
            "events", [] if self.timeline is None else replaying.events_shown(self.timeline, self._wish())
        )
