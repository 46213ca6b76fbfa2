"""The screens behind the numbers, driven by the pilot: keys, filters, drill-down, what is empty, wrong or hung."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from threading import Event

import pytest
from textual.pilot import Pilot

from tests.support.machine import HandMachine
from tests.support.screens import (
    NOW_NS,
    HandFeed,
    RecordedSource,
    busy_state,
    later,
    lease,
    log,
    node_clock,
    silent,
    state,
)
from timeagent.errors import Environment
from timeagent.units import SECOND
from tui.app import TopApp
from tui.arranging import Group, Order
from tui.book import Leases
from tui.feed import Feed
from tui.screens.bags import BagsScreen
from tui.screens.base import TopScreen
from tui.screens.detail import DetailScreen
from tui.screens.leases import LeasesScreen
from tui.screens.overview import OverviewScreen
from tui.screens.registry import ENTRIES
from tui.state import ClusterState, Freshness, Reach, View
from tui.subjects import BagSubject, ClockSubject, Details, DomainSubject, LeaseSubject, NodeSubject, Subject
from tui.widgets.bag_grid import BagGrid
from tui.widgets.detail_table import DetailTable
from tui.widgets.filter_field import FilterField
from tui.widgets.lease_list import INLINE_MAX, LeaseList

SIZES = ((80, 24), (120, 36), (200, 60))

type Course = Callable[[Pilot[None], HandFeed], Awaitable[None]]


def drive(
    course: Course,
    shown: ClusterState | None = None,
    *,
    size: tuple[int, int] = (120, 36),
    source: RecordedSource | None = None,
) -> None:
    async def run() -> None:
        feed = HandFeed(source or RecordedSource(shown or busy_state()))
        async with TopApp(feed).run_test(size=size) as pilot:
            await pilot.pause()
            await course(pilot, feed)

    asyncio.run(run())


def screen(pilot: Pilot[None]) -> TopScreen:
    found = pilot.app.screen
    assert isinstance(found, TopScreen)
    return found


def seen(pilot: Pilot[None]) -> str:
    """What the terminal shows, as text."""
    strips = pilot.app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


async def press(pilot: Pilot[None], *keys: str) -> str:
    await pilot.press(*keys)
    await pilot.pause()
    return seen(pilot)


def rows(pilot: Pilot[None]) -> list[str]:
    table = screen(pilot).query_one(LeaseList)
    return [table.text_at(y + 1) for y in range(min(table.count, table.size.height - 1))]


# -- the shell ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_screen_opens_by_its_number_and_says_whether_it_is_healthy(entry: object, size: tuple[int, int]) -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        text = await press(pilot, entry.key)  # type: ignore[attr-defined]
        assert entry.name == screen(pilot).NAME  # type: ignore[attr-defined]
        assert f"[{entry.key} {entry.title}]" in text  # type: ignore[attr-defined]
        for words in ("✗ NOT HEALTHY", "read-only", "LIVE", "22:10:07.4 UTC", "Help", "Quit"):
            assert words in text, f"{words} is missing in:\n{text}"
        assert all(len(line) == size[0] for line in text.splitlines())

    drive(course, size=size)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_what_is_not_known_is_not_shown_as_nothing(entry: object) -> None:
    unknown = ClusterState("/srv/x", state().clock, silent(7 * SECOND, ""))

    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        text = await press(pilot, entry.key)  # type: ignore[attr-defined]
        assert "NO ANSWER" in text
        assert "not known" in text or "not audited" in text
        assert " 0 " not in text

    drive(course, unknown)


def test_states_reach_only_the_screen_that_is_seen_and_it_is_fresh_when_opened() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await press(pilot, "2", "1")
        feed.source = RecordedSource(later(busy_state(), 3 * SECOND))
        feed.hand_over()
        await pilot.pause()
        assert "22:10:10.4" in seen(pilot)
        assert "22:10:10.4" in await press(pilot, "2")

    drive(course)


def test_numbers_leave_what_was_opened_and_escape_goes_back_step_by_step() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await press(pilot, "2", "enter")
        assert isinstance(screen(pilot), DetailScreen)
        text = await press(pilot, "enter")
        assert "leases > lease" in text
        assert len(pilot.app.screen_stack) == 4
        await press(pilot, "escape")
        assert len(pilot.app.screen_stack) == 3
        await press(pilot, "escape", "escape", "escape")
        assert isinstance(screen(pilot), LeasesScreen)
        await press(pilot, "enter", "enter", "1")
        assert isinstance(screen(pilot), OverviewScreen)
        assert len(pilot.app.screen_stack) == 2

    drive(course)


def test_screen_keeps_its_place_while_another_is_seen() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await press(pilot, "2", "j", "j", "1", "2")
        assert screen(pilot).subject() == LeaseSubject("account/03", "5f" * 16)

    drive(course)


def test_palette_does_what_the_keys_do() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await press(pilot, "colon")
        await press(pilot, *"Bags")
        for _ in range(200):
            await pilot.pause(0.02)
            if "Bags  (3)" in seen(pilot):
                break
        await press(pilot, "enter")
        for _ in range(200):
            await pilot.pause(0.02)
            if isinstance(pilot.app.screen, BagsScreen):
                break
        assert isinstance(pilot.app.screen, BagsScreen)

    drive(course)


def test_copy_puts_the_identifier_into_the_clipboard() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await press(pilot, "y")
        assert pilot.app.clipboard == "account/01"
        await press(pilot, "2", "y")
        assert pilot.app.clipboard == "5f" * 16
        await press(pilot, "4", "j", "y")
        assert pilot.app.clipboard == "node2"

    drive(course)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_resize_loses_nothing(entry: object) -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        before = await press(pilot, entry.key)  # type: ignore[attr-defined]
        for size in SIZES[::-1]:
            await pilot.resize_terminal(*size)
            await pilot.pause()
        await pilot.resize_terminal(120, 36)
        await pilot.pause()
        await pilot.pause()
        assert seen(pilot) == before

    drive(course)


# -- leases ------------------------------------------------------------------------------------------------------------


def test_leases_are_sorted_turned_and_grouped_by_keys() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await press(pilot, "2")
        assert "account/02" in rows(pilot)[1]
        await press(pilot, "s")
        table = screen(pilot).query_one(LeaseList)
        assert table.wanted.order is Order.EXPIRY
        assert "account/05" in rows(pilot)[0]
        await press(pilot, "S")
        assert "index/compact" in rows(pilot)[0]
        text = await press(pilot, "b")
        assert table.wanted.group is Group.NODE
        assert "▾ node1  5" in text
        assert "sort: expiry ▼   by node" in text

    drive(course)


def test_cursor_stays_with_its_lease_through_sort_filter_and_refresh() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await press(pilot, "2", "j", "j", "s", "S")
        assert screen(pilot).subject() == LeaseSubject("account/03", "5f" * 16)
        more = Leases([lease("aaa"), *busy_state().leases])
        feed.source = RecordedSource(replace(busy_state(), leases=more))
        feed.hand_over()
        await pilot.pause()
        assert screen(pilot).subject() == LeaseSubject("account/03", "5f" * 16)
        await press(pilot, "slash", *"account", "enter")
        assert screen(pilot).subject() == LeaseSubject("account/03", "5f" * 16)

    drive(course)


def test_lease_under_the_cursor_is_told_whole() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        text = await press(pilot, "2", "j", "j")
        assert "fence 1795212604003000001" in text
        assert "waiting 0   the one before: expired" in text
        assert "0.7 s!" in text
        text = await press(pilot, "G")
        assert "waiting not known" in text

    drive(course)


def test_filter_that_matches_nothing_says_so() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        text = await press(pilot, "2", "slash", *"zzz")
        assert "none of 8 leases matches the filter" in text
        assert "filter: zzz" in text
        await press(pilot, "escape")
        assert not screen(pilot).query_one(FilterField).display
        assert screen(pilot).query_one(LeaseList).count == 8

    drive(course)


def test_many_leases_are_arranged_behind_the_screen() -> None:
    many = Leases(lease(f"account/{n:06d}", n * SECOND % (10 * SECOND)) for n in range(INLINE_MAX + 1))

    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await press(pilot, "2")
        table = screen(pilot).query_one(LeaseList)
        for _ in range(500):
            if table.count:
                break
            await pilot.pause(0.02)
        assert table.count == INLINE_MAX + 1
        await press(pilot, "slash", *"005000", "enter")
        for _ in range(500):
            if table.count == 1:
                break
            await pilot.pause(0.02)
        assert "account/005000" in table.text_at(1)

    drive(course, state(leases=many))


# -- bags --------------------------------------------------------------------------------------------------------------


def damaged_state() -> ClusterState:
    bags = list(log("bank", "sscccco").bags)
    bags[3] = replace(bags[3], damage="1 of 2 listed files missing or altered")
    return state(logs=(replace(log("bank"), bags=tuple(bags)), log("index", "cco")))


def test_bags_are_gone_through_by_keys() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        text = await press(pilot, "3")
        grid = screen(pilot).query_one(BagGrid)
        bags = damaged_state().logs[0].bags
        assert "✗ damaged or rejected" in text
        assert "log bank (1 of 2)" in text
        assert grid.bag == bags[-1]
        await press(pilot, "left", "h")
        assert grid.bag == bags[-3]
        text = await press(pilot, "f")
        assert grid.bag == bags[3]
        assert "✗ 1 of 2 listed files missing or altered" in text
        await press(pilot, "o")
        assert grid.bag == bags[-1]
        await press(pilot, "G")
        assert grid.bag == bags[0]
        await press(pilot, "left")
        assert grid.bag == bags[0]
        text = await press(pilot, "n")
        assert "log index (2 of 2)" in text

    drive(course, damaged_state())


def test_coarser_zoom_keeps_what_most_wants_to_be_looked_at() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        text = await press(pilot, "3", "minus")
        assert "10 bags a cell" in text
        grid = screen(pilot).query_one(BagGrid)
        strip = "".join(grid.text_at(y)[10:] for y in range(grid.size.height))
        assert "✗" in strip
        assert strip.strip(" ✗▯■▣·") == ""

    drive(course, damaged_state())


def test_bag_opens_with_enter_from_the_grid_and_its_lines_from_below() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await press(pilot, "3", "enter")
        assert isinstance(screen(pilot), DetailScreen)
        assert isinstance(screen(pilot).about, BagSubject)  # type: ignore[attr-defined]
        await press(pilot, "escape", "tab")
        assert isinstance(pilot.app.focused, DetailTable)
        assert "about bank" in await press(pilot, "enter")

    drive(course)


def test_newest_bag_is_followed_until_the_cursor_is_moved() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await press(pilot, "3")
        grid = screen(pilot).query_one(BagGrid)
        longer = state(logs=(log("bank", "ssscc.cooo"),))
        feed.source = RecordedSource(longer)
        feed.hand_over()
        await pilot.pause()
        assert grid.bag == longer.logs[0].bags[-1]

    drive(course, state())


# -- time --------------------------------------------------------------------------------------------------------------


def test_clocks_stand_on_one_axis_with_what_is_wrong_in_words() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        text = await press(pilot, "4")
        assert "● node1" in text
        assert "◐ node2" in text
        assert "nothing newer signed" in text
        assert "◐ node3" in text
        assert "◂" in text
        assert "chrony" in text
        assert "together" in text
        assert "peer node3" in text
        assert "silent: no answer within" in text
        assert "outside witnesses: roughtime.example agrees" in text

    drive(course)


def test_history_of_a_radius_grows_with_new_readings_only() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await press(pilot, "4")
        for step in range(1, 4):
            clock = node_clock("node1", 620_000 * step, midpoint_ns=NOW_NS + step)
            feed.source = RecordedSource(replace(busy_state(), clocks=(clock,)))
            feed.hand_over()
            feed.hand_over()
            await pilot.pause()
        assert "last 4 readings" in seen(pilot)
        assert "±620 us to ±1.86 ms" in seen(pilot)

    drive(course)


def test_silent_sources_of_time_are_named_with_since_when() -> None:
    shown = replace(busy_state(), times=replace(busy_state().times, freshness=silent(9 * SECOND, "the agent is gone")))  # type: ignore[type-var]

    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        assert "no answer for 9.0 s: the agent is gone" in await press(pilot, "4")

    drive(course, shown)


# -- details that fail, or do not come ---------------------------------------------------------------------------------


class Failing(RecordedSource):
    def details(self, subject: Subject, instant: int | None = None) -> Details:
        del subject, instant
        raise Environment("gone", "the mount is gone", hint="see whether its file server answers")


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

    def details(self, subject: Subject, instant: int | None = None) -> Details:
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


# -- a copy ------------------------------------------------------------------------------------------------------------


def test_copy_that_is_being_read_says_how_far_it_is() -> None:
    reading = ClusterState(
        "/copy", state().clock, Freshness(Reach.WAITING, problem="auditing the copy: 3 of 9 parts"), view=View.RECORD
    )

    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        assert "READING" in seen(pilot)
        assert "auditing the copy: 3 of 9 parts" in seen(pilot)
        assert "auditing the copy: 3 of 9 parts" in await press(pilot, "2")
        assert "HEALTHY" not in seen(pilot)

    drive(course, reading)
