"""What is opened from an identifier, driven by the pilot: also where it fails, or does not come."""

import asyncio
from collections.abc import Sequence
from threading import Event

from textual.pilot import Pilot

from auditor.evidence.finding import Evidence
from tests.support.machine import HandMachine
from tests.support.screens import (
    HandFeed,
    RecordedSource,
    busy_state,
    later,
    state,
)
from tests.tui.piloting import drive, press, screen, seen
from timeagent.errors import Environment
from timeagent.units import HOUR, SECOND
from tui.app import TopApp
from tui.feed import Feed
from tui.model.state import Cell, ClockSubject, ClusterState, DetailLine, DomainSubject, NodeSubject, Subject
from tui.screens.cluster import LeasesScreen, OverviewScreen
from tui.widgets.row_table import DetailTable

# -- details that fail, or do not come ---------------------------------------------------------------------------------


class Failing(RecordedSource):
    def details(self, subject: Subject, instant: int | None = None) -> Sequence[DetailLine]:
        del subject, instant
        raise Environment("gone", "the mount is gone", hint="see whether its file server answers")


def test_path_that_nobody_should_obey_is_shown_and_copied_escaped() -> None:
    """What is on the way here goes to the terminal as it is, and what is copied too."""
    place = Evidence("logs/a/\x1b]0;title\x07\udcff", 8, 4)

    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        top = pilot.app
        assert isinstance(top, TopApp)
        top.open(place)
        await pilot.pause()
        text = seen(pilot)
        assert "\\x1b]0;title" in text
        assert text.replace("\n", "").isprintable()
        await press(pilot, "y")
        assert top.clipboard.isprintable()
        assert "\\x1b" in top.clipboard

    drive(course)


def test_details_that_cannot_be_had_say_why_and_how_out() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        text = await press(pilot, "enter")
        assert "no answer: the mount is gone. see whether its file server answers" in text
        await press(pilot, "escape")
        assert isinstance(screen(pilot), OverviewScreen)

    drive(course, source=Failing(busy_state()))


class Hanging(RecordedSource):
    """Its details hang until they are let go."""

    patience_s = 60.0

    def __init__(self, *states: ClusterState) -> None:
        super().__init__(*states)
        self.asked, self.let_go = Event(), Event()

    def details(self, subject: Subject, instant: int | None = None) -> Sequence[DetailLine]:
        self.asked.set()
        assert self.let_go.wait(self.patience_s)
        return super().details(subject, instant)


def test_hung_mount_leaves_details_waiting_in_words_and_the_keys_alive() -> None:
    source = Hanging(busy_state())

    async def run() -> None:
        app = TopApp(Feed(source, HandMachine()))
        async with app.run_test(size=(80, 24)) as pilot:
            for _ in range(500):
                await pilot.pause(0.01)
                if app.state is not None:
                    break
            await pilot.press("enter")
            assert source.asked.wait(60)
            assert "asking …" in seen(pilot)
            screen(pilot).show(later(busy_state(), 4 * SECOND), paused=False)
            assert "no answer for 4.0 s" in await press(pilot)
            await press(pilot, "question_mark", "escape", "escape", "2")
            assert isinstance(screen(pilot), LeasesScreen)
            await press(pilot, "1", "enter")
            source.let_go.set()
            for _ in range(500):
                await pilot.pause(0.01)
                if "about account/01" in seen(pilot):
                    break
            assert "about account/01" in seen(pilot)

    try:
        asyncio.run(run())
    finally:
        source.let_go.set()


# Of two that were asked for, the one that was asked last is shown, whichever comes first.
def test_answer_that_is_overtaken_is_not_shown() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await press(pilot, "3")
        pane = screen(pilot).query_one(DetailTable)
        takes = []
        pane.ask(NodeSubject("old"), lambda _subject, take: takes.append(take))
        pane.ask(NodeSubject("new"), lambda _subject, take: takes.append(take))
        source = RecordedSource(state())
        takes[1](source.details(NodeSubject("new")))
        takes[0](source.details(NodeSubject("old")))
        await pilot.pause()
        assert "about new" in seen(pilot)

    drive(course)


def test_subjects_of_the_screens_lead_where_they_say() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        assert screen(pilot).subject() == DomainSubject("account/01")
        await press(pilot, "4")
        assert screen(pilot).subject() == ClockSubject("node1")

    drive(course)


def test_cursor_stays_on_its_line_when_others_come_before_it() -> None:
    class Growing(RecordedSource):
        names = ("file2", "file4", "file6")

        def details(self, subject: Subject, instant: int | None = None) -> Sequence[DetailLine]:
            del subject, instant
            return [DetailLine((Cell(name),)) for name in self.names]

    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await press(pilot, "enter", "down")
        table = screen(pilot).query_one(DetailTable)
        assert table.text == "file4"
        feed.source.names = ("file1", "file2", "file4", "file6")  # type: ignore[attr-defined]
        await press(pilot, "r")
        assert table.text == "file4"

    drive(course, source=Growing(busy_state()))


def test_answer_that_does_not_come_is_said_also_where_the_clock_is_set_back() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        pilot.app.look_up = lambda *_: None  # type: ignore[attr-defined]
        await press(pilot, "enter")
        for span in (-HOUR, -HOUR + 30 * SECOND):
            feed.source = RecordedSource(later(busy_state(), span))
            feed.hand_over()
            await pilot.pause()
        assert "no answer for 30" in seen(pilot)

    drive(course)
