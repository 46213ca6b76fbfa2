"""A record as time goes by: scrubber, events, who had which lease, bags, what readers had been given, and what if."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final

from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Static

from auditor.timeline.events import NAME_THE_COPY, WhatIf
from timeagent.errors import TenureError
from timeagent.interval import TimeInterval
from timeagent.units import Instant, rfc3339

from ..model.columns import Column
from ..model.exporting import ExportSheet
from ..model.replaying import (
    REPLAY_LEGENDS,
    SPANS,
    SPEEDS,
    TICK_NS,
    MomentRequest,
    ReplayedCopy,
    ReplayMoment,
    ReplayPlace,
    Step,
    Switches,
    at_instant,
    at_position,
    events_shown,
    further,
    instant_near,
    moment_of,
    speed_text,
    status_words,
    stepped,
    switch_rows,
)
from ..model.subjects import Subject
from ..widgets.lines import TabLine, TitleBar, WordsLine
from ..widgets.replay import EventTable, InstantField, MomentParts, ScrubberLine
from ..widgets.row_table import PickTable
from .screen import EvidenceScreen

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from auditor.timeline.timeline_reader import Timeline
    from auditor.timeline.what_if import Changes


HELD: Final = 0.05
"""Seconds for which nothing is drawn while the thread works: mostly it is ready by then, and all is drawn at once."""


class BatchedRedraw:
    """Holds back what one screen draws; never longer than HELD."""

    def __init__(self, screen: Screen[None]) -> None:
        self._screen = screen
        self._held: ExitStack | None = None

    @property
    def on(self) -> bool:
        return self._held is not None

    def begin(self) -> None:
        """Draw nothing from now on, where the screen is the one that is seen."""
        if self._held is None and self._screen.is_current:
            self._held = ExitStack()
            self._held.enter_context(self._screen.app.batch_update())
            asyncio.get_running_loop().call_later(HELD, self.end, self._held)

    def end(self, held: ExitStack | None = None) -> None:
        """Draw what there is. ``held``: only if this is still held."""
        if self._held is not None and held in (None, self._held):
            self._held.close()
            self._held = None
            for screen in self._screen.app.screen_stack[-1:]:  # another one by now, or none while the program ends
                screen.check_idle()


SWITCH_COLUMNS = (Column("", 3), Column("switch", 20, most=40), Column("taken to have been", 20))


class SwitchTable(PickTable):
    """Enter is handled where the keys before it are: before them, it would not see how they turn the switches."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "screen.apply", "Read it so")]


class WhatIfScreen(ModalScreen[Switches | None]):
    """Returns the switches; None: nothing is to change."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "turn(-1)", "Less"),
        Binding("right,l,space", "turn(1)", "More, or on and off"),
        Binding("0", "clear", "All as it was"),
        Binding("escape,w", "leave", "Leave it"),
    ]
    AUTO_FOCUS = "#switches"

    def __init__(self, switches: Switches, nodes: Sequence[str]) -> None:
        super().__init__()
        self._switches = switches
        self._clocks = list(nodes)

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog") as box:
            box.border_title = "What if"
            yield SwitchTable(SWITCH_COLUMNS, "", id="switches")
            yield Static("← → turn   enter reads it so   0 as it was   esc leaves it", id="dialog-keys")

    def on_mount(self) -> None:
        self._fill()

    def _fill(self) -> None:
        rows = switch_rows(self._switches, self._clocks)
        self.query_one(PickTable).show_picks(len(rows), rows.__getitem__, "", lambda place: place)

    def action_turn(self, steps: int) -> None:
        self._switches = self._switches.turned(self._clocks, self.query_one(PickTable).cursor, steps)
        self._fill()

    def action_clear(self) -> None:
        self._switches = Switches()
        self._fill()

    def action_apply(self) -> None:
        self.dismiss(self._switches)

    def action_leave(self) -> None:
        self.dismiss(None)


TICK: Final = 0.1
"""Seconds; as long as replaying.TICK_NS, so that the speed of 1 is that of the record."""
SPAN_AT_FIRST, SPAN_AT_FINDING = 4, 2
"""Which of replaying.SPANS the bars show."""
PARTS: Final = ("scrubber", "where", "bars", "bag-lines", "delivered", "events", "lens", "instant")


class ReplayScreen(EvidenceScreen):
    """One place in a record, and everything as it was then."""

    NAME = "replay"
    READS_STATE = False
    LEGENDS = REPLAY_LEGENDS
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
        self._holding = BatchedRedraw(self)
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

    @property
    def _whole(self) -> bool:
        """Whether its parts are there: answers also come while the program ends."""
        return self.is_mounted and all(self.query_one_optional(f"#{part}") is not None for part in PARTS)

    # What there is.

    @property
    def timeline(self) -> Timeline | None:
        """The events of the record, as it was or as a what-if has it; None: nothing was read yet."""
        return None if self._reading is None else self._reading.timeline

    def look(self) -> None:
        archive = self.top.archives.archive
        self._waiting = archive is None or self.top.archives.busy
        if archive is None or self._waiting:
            self.query_one(ScrubberLine).say(self.top.archives.words(self.state))
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
        """Go to an instant, following a domain, as soon as there is something."""
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

    def _paint(self) -> None:
        """Draw what costs little at once; the rest comes from a thread."""
        reading = self._reading
        if reading is None or not self._whole:
            return
        timeline, line = reading.timeline, self.query_one(ScrubberLine)
        if not timeline.events:
            line.say("the copy tells of no event")
            return
        findings = line.show(timeline, self.place.instant_ns)
        mark = f"▶ {speed_text(self.speed)}" if self.playing else f"‖ {speed_text(self.speed)}"
        here = f"  ◈ {findings} here" if findings else ""
        self.query_one("#where", WordsLine).say(f"{mark}   {status_words(timeline, self.place)}{here}")
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
        return 1 if self._reading is None else len(self._reading.archive.births)

    def _wish(self) -> MomentRequest:
        width, rows, deliveries = self.query_one(MomentParts).room(self._logs)
        return MomentRequest(self.place, SPANS[self._span], width, rows, self.follow, deliveries)

    def _ask(self) -> None:
        reading, wish = self._reading, self._wish()
        if self._busy or reading is None or (self._moment and self._moment.wish == wish):
            return
        timeline, leases, copy = reading.timeline, reading.leases, reading.archive.copy
        self._busy = True
        self._holding.begin()
        self.top.work(lambda: moment_of(timeline, leases, copy, wish), lambda found: self._take(timeline, found))

    def _take(self, timeline: Timeline, found: ReplayMoment | TenureError) -> None:
        self._busy = False
        if self._whole and not isinstance(found, TenureError):
            if timeline is self.timeline:
                self._moment = found
                self.query_one(MomentParts).show(found, self._logs)
            self._ask()
        if not self._busy:
            self._holding.end()

    def on_screen_suspend(self) -> None:
        self._holding.end()

    @property
    def idle(self) -> bool:
        """Whether everything that was asked for is drawn."""
        return (
            not self._busy and not self._holding.on and self._moment is not None and self._moment.wish == self._wish()
        )

    # Keys.

    def _tick(self) -> None:
        if not self.is_current or not self._whole:
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
        self.place = at_instant(timeline, self.place.instant_ns + int(TICK_NS * self.speed))
        self.playing = self.place.instant_ns < timeline.end_ns
        self._paint()

    def action_play(self) -> None:
        """Let time pass, or stop it; at the end begin anew."""
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
            self._go(stepped(self.timeline, self.place, Step(step), back=back, follow=self.follow))
            self._tell()

    def action_move(self, steps: int) -> None:
        if self.timeline is not None:
            self.playing = False
            self._go(at_instant(self.timeline, self.place.instant_ns + steps * SPANS[self._span] // 20))
            self._tell()

    def action_faster(self, steps: int) -> None:
        self.speed = further(SPEEDS, self.speed, steps)
        self._paint()

    def action_widen(self, steps: int) -> None:
        self._span = max(0, min(self._span + steps, len(SPANS) - 1))
        self._paint()

    def action_follow(self) -> None:
        """Follow the domain of the event under the cursor; nothing where it is followed already."""
        domain = self.query_one(EventTable).domain
        self.follow = None if domain == self.follow else domain
        self._paint()

    def _tell(self) -> None:
        """Let the other screens look at this instant too, where they show the same copy."""
        if self.top.of_record and not self.playing:
            self.top.look_at(self.place.instant_ns)

    def _moved(self, position: int) -> None:
        timeline = self.timeline
        if timeline is None or not timeline.events or self.playing:
            return
        if position != self.place.position and self.query_one(EventTable).has_focus:
            self._go(at_position(timeline, position))
            self._tell()

    def subject(self) -> Subject | None:
        return self.query_one(EventTable).subject

    # What if.

    def action_what_if(self) -> None:
        reading = self._reading
        if reading is not None and reading.archive.copy is None:
            self.notify(f"what if reads the copy again: {NAME_THE_COPY}")
        elif reading is not None:
            nodes = sorted(reading.archive.timeline.state_at().clocks)
            self.app.push_screen(WhatIfScreen(reading.switches, nodes), self._read_so)

    def _read_so(self, switches: Switches | None) -> None:
        reading = self._reading
        if switches is None or reading is None:
            return
        lens = reading.turn(switches)
        if lens is None:
            self._show_reading(reading)
            return
        self._paint()
        self.top.work(lambda: reading.archive.changed(lens), lambda found: self._otherwise(reading, lens, found))

    def _otherwise(self, reading: ReplayedCopy, lens: WhatIf, found: tuple[Timeline, Changes] | TenureError) -> None:
        if reading is self._reading and reading.take(lens, found) and self._whole:
            self._show_reading(reading)

    def _show_reading(self, reading: ReplayedCopy) -> None:
        """Look at the same instant of what is another record now."""
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
            instant = instant_near(text, self.place.instant_ns) if text else None
        except TenureError as problem:
            self.notify(problem.message, severity="warning", markup=False)
            return
        self._leave_instant()
        timeline = self.timeline
        if timeline is not None and instant is not None:
            self._go(at_instant(timeline, instant))
            self._tell()
            if self.place.instant_ns != instant:
                self.notify(f"the record goes from {rfc3339(timeline.start_ns)} to {rfc3339(timeline.end_ns)}")

    def action_back(self) -> None:
        """Leave the field; else what is followed; else go back."""
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
        return ExportSheet("events", [] if self.timeline is None else events_shown(self.timeline, self._wish()))
