"""The screens of bags and of time, driven by the pilot."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from textual.pilot import Pilot

from tests.support.screens import (
    NOW_NS,
    HandFeed,
    RecordedSource,
    busy_state,
    later,
    log,
    node_clock,
    silent,
    state,
)
from tests.tui.piloting import drive, press, screen, seen, text_at
from timeagent.units import SECOND
from tui.app import DetailScreen
from tui.model.state import BagSubject, ClusterState, DetailLine, Subject
from tui.widgets.bag_grid import BagGrid
from tui.widgets.row_table import DetailTable

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


def about(text: str) -> list[str]:
    return [line.strip("▸→ ") for line in text.splitlines() if "about " in line]


def test_bag_of_another_log_or_instant_that_looks_the_same_is_asked_about_anew() -> None:
    asked: list[int | None] = []

    class Noting(RecordedSource):
        def details(self, subject: Subject, instant: int | None = None) -> Sequence[DetailLine]:
            asked.append(instant)
            return super().details(subject, instant)

    shown = state(logs=(log("bank"), log("index")))
    start = shown.logs[0].bags[-1].start_ns

    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        assert about(await press(pilot, "3")) == [f"about bank {start}"]
        assert about(await press(pilot, "n")) == [f"about index {start}"]
        screen(pilot).top.look_at(NOW_NS)
        await pilot.pause()
        assert asked == [None, None, NOW_NS]

    drive(course, source=Noting(shown, later(shown, SECOND)))


def test_newest_bag_of_another_log_is_in_sight_wherever_one_was_in_the_one_before() -> None:
    many = "c" * 3_000

    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        del feed
        await press(pilot, "3", "G")
        grid = screen(pilot).query_one(BagGrid)
        assert grid.scroll_offset.y > 0
        await press(pilot, "n")
        assert (grid.bag, grid.scroll_offset.y) == (log("index", many).bags[-1], 0)

    drive(course, state(logs=(log("bank", many), log("index", many))))


def test_nothing_is_said_of_a_log_that_is_gone() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        assert "log bank" in await press(pilot, "3")
        feed.source = RecordedSource(state(logs=()))
        feed.hand_over()
        text = await press(pilot)
        assert "there are no logs yet" in text
        assert "bank" not in text

    drive(course)


def test_log_with_the_longest_name_still_says_how_far_it_is_closed() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await pilot.resize_terminal(80, 24)
        text = await press(pilot, "3")
        line = next(line for line in text.splitlines() if line.startswith(" log "))
        assert "llll…" in line
        assert "bags of 1 s   horizon 22:10:05.4, 2.0 s ago" in line

    drive(course, state(logs=(log("l" * 100),)))


def test_coarser_zoom_keeps_what_most_wants_to_be_looked_at() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        text = await press(pilot, "3", "minus")
        assert "10 bags a cell" in text
        grid = screen(pilot).query_one(BagGrid)
        strip = "".join(text_at(grid, y)[10:] for y in range(grid.size.height))
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


@pytest.mark.parametrize(("keys", "followed"), [("3", True), ("3 minus", True), ("3 minus plus", True), ("3 h", False)])
def test_newest_bag_is_followed_until_the_cursor_is_moved(keys: str, followed: bool) -> None:  # noqa: FBT001
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await press(pilot, *keys.split())
        grid = screen(pilot).query_one(BagGrid)
        longer = log("bank", "ssscc.cooo")
        longer = replace(longer, bags=tuple(replace(bag, start_ns=bag.start_ns + SECOND) for bag in longer.bags))
        feed.source = RecordedSource(state(logs=(longer,)))
        feed.hand_over()
        await pilot.pause()
        assert (grid.bag == longer.bags[-1]) is followed

    drive(course, state())


def test_log_that_is_looked_at_stays_when_one_comes_before_it() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await press(pilot, "3", "left")
        bag = screen(pilot).query_one(BagGrid).bag
        feed.source = RecordedSource(state(logs=(log("audit"), log("bank"))))
        feed.hand_over()
        assert "log bank (2 of 2)" in await press(pilot)
        assert screen(pilot).query_one(BagGrid).bag == bag

    drive(course, state(logs=(log("bank"),)))


# The oldest are shown no more as new ones come.
def test_cursor_goes_to_the_nearest_where_its_bag_is_shown_no_more() -> None:
    bags = log("bank").bags

    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await press(pilot, "3", "G")
        feed.source = RecordedSource(state(logs=(replace(log("bank"), bags=bags[2:]),)))
        feed.hand_over()
        await pilot.pause()
        assert screen(pilot).query_one(BagGrid).bag == bags[2]

    drive(course, state(logs=(log("bank"),)))


def test_bags_are_written_to_a_file_with_their_states() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await press(pilot, "3")
        sheet = screen(pilot).exported()
        assert sheet is not None
        bags = damaged_state().logs[0].bags
        assert [row["path"] for row in sheet.rows] == [bag.path for bag in bags]
        assert [row["damage"] for row in sheet.rows if row["damage"]] == ["1 of 2 listed files missing or altered"]
        assert {row["state"] for row in sheet.rows} >= {"open", "closed"}

    drive(course, damaged_state())


# -- time --------------------------------------------------------------------------------------------------------------


def test_clocks_stand_on_one_axis_with_what_is_wrong_in_words() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        text = await press(pilot, "4")
        assert "● node1" in text
        assert "✗ node2" in text
        assert "no answer for 3.2 s" in text
        assert "◐ node3" in text
        assert "· node5" in text
        assert "in common" in text
        assert "all 3 clocks have" in text
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
            clock = node_clock("node1", 620_000 * step, read_ns=step)
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


def test_sources_that_were_asked_one_by_one_have_nothing_together_to_show() -> None:
    times = busy_state().times
    assert times is not None
    alone = replace(busy_state(), times=replace(times, together=None, agent=False))
    contradicted = replace(busy_state(), times=replace(times, together=None))

    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        text = await press(pilot, "4")
        assert "This machine's sources   asked for here; no agent runs" in text
        assert "together" not in text
        feed.source = RecordedSource(contradicted)
        feed.hand_over()
        await pilot.pause()
        assert "together" in seen(pilot)
        assert "nothing" in seen(pilot)

    drive(course, alone)
