"""What a key must not do anew: counted, never timed. What it costs is measured by ``make bench-tui``."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from textual._compositor import Compositor
from textual.css.stylesheet import Stylesheet
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widget import Widget

import tests.support.copies
import tui.app
import tui.model.replaying
import tui.screens.cluster
import tui.screens.replay
import tui.sources.record
import tui.widgets.lines
import tui.widgets.row_table
from auditor.evidence.tree import Tree
from auditor.explain.context import Traces
from auditor.timeline.timeline_reader import Timeline
from tests.fault_injection.fixtures import eventful_tree
from tests.support.copies import drive_copy, until
from tests.support.mutants import plant
from tests.support.screens import HandFeed, RecordedSource, busy_state, lease
from tui.app import TopApp
from tui.model.replaying import MomentRequest, ReplayMoment, moment_of
from tui.model.state import LeaseRows
from tui.model.words import clock_text
from tui.screens.cluster import LeaseList
from tui.screens.replay import ReplayScreen
from tui.widgets.lines import TitleBar
from tui.widgets.row_table import RowTable

SIZE = (120, 36)


@pytest.fixture(scope="module")
def eventful(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return eventful_tree(tmp_path_factory.mktemp("eventful") / "tree").root


class Counted:
    """How often something was done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, place: type | ModuleType, name: str) -> None:
        self.calls = 0
        inner = getattr(place, name)

        def counting(*arguments: object, **named: object) -> object:
            self.calls += 1
            return inner(*arguments, **named)

        monkeypatch.setattr(place, name, counting)


def drive(course: Callable[[Pilot[None]], Awaitable[None]]) -> None:
    async def run() -> None:
        rows = LeaseRows(lease(f"account/{number:03d}") for number in range(500))
        app = TopApp(HandFeed(RecordedSource(replace(busy_state(), leases=rows))))
        async with app.run_test(size=SIZE) as pilot:
            await pilot.pause()
            await course(pilot)

    asyncio.run(run())


def test_screen_that_was_seen_is_neither_built_nor_styled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async def course(pilot: Pilot[None]) -> None:
        for key in "123456123456":
            await pilot.press(key)
            await pilot.pause()
        with monkeypatch.context() as patch:
            styled = Counted(patch, Stylesheet, "update_nodes")
            mounted = Counted(patch, Widget, "mount")
            drawn = Counted(patch, RowTable, "strip_of")
            for key in "123456":
                await pilot.press(key)
                await pilot.pause()
            assert (styled.calls, mounted.calls, drawn.calls) == (0, 0, 0)

    drive(course)


def test_row_down_draws_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    async def course(pilot: Pilot[None]) -> None:
        await pilot.press("2", "j")
        await pilot.pause()
        with monkeypatch.context() as patch:
            drawn = Counted(patch, RowTable, "strip_of")
            await pilot.press("j")
            await pilot.pause()
            assert pilot.app.screen.query_one(LeaseList).cursor == 2
            assert drawn.calls == 1, "the row that was left was drawn before"
            drawn.calls = 0
            await pilot.press("k")
            await pilot.pause()
            assert drawn.calls == 0, "both were drawn before"

    drive(course)


def test_theme_that_was_changed_elsewhere_is_that_of_every_screen() -> None:
    async def course(pilot: Pilot[None]) -> None:
        await pilot.press("2", "1", "d", "2")
        await pilot.pause()
        light = pilot.app.export_screenshot()
        await pilot.press("d")
        await pilot.pause()
        assert pilot.app.export_screenshot() != light
        await pilot.press("d")
        await pilot.pause()
        assert pilot.app.export_screenshot() == light

    drive(course)


@pytest.mark.verify
def test_screens_that_are_styled_anew_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(
        monkeypatch,
        tui.app,
        "TopScreen.on_screen_resume",
        "event.refresh_styles = self._theme != self.top.theme",
        "event.refresh_styles = True",
    )
    with pytest.raises(AssertionError):
        test_screen_that_was_seen_is_neither_built_nor_styled_anew(monkeypatch)


def test_screen_that_keeps_the_colours_of_another_theme_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(
        monkeypatch,
        tui.app,
        "TopScreen.on_screen_resume",
        "event.refresh_styles = self._theme != self.top.theme",
        "event.refresh_styles = False",
    )
    with pytest.raises(AssertionError):
        test_theme_that_was_changed_elsewhere_is_that_of_every_screen()


@pytest.mark.verify
def test_lines_that_are_drawn_again_and_again_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, tui.widgets.row_table, "RowTable.kept", "strip is None", "True")
    with pytest.raises(AssertionError):
        test_row_down_draws_one_row(monkeypatch)


def test_many_rows_in_their_order_are_turned_round_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tui.widgets.row_table, "INLINE_MAX", 5)

    async def course(pilot: Pilot[None]) -> None:
        await pilot.press("2", "j")
        await pilot.pause()
        table = pilot.app.screen.query_one(LeaseList)
        lease_before = table.row
        with monkeypatch.context() as patch:
            behind = Counted(patch, LeaseList, "_arrange_behind")
            await pilot.press("S")
            assert (table.cursor, table.row) == (498, lease_before)
            assert behind.calls == 0
            await pilot.press("s")
            assert behind.calls == 1, "by expiry is a sort"

    drive(course)


def test_thread_for_what_takes_no_time_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    old = "rows <= INLINE_MAX or (found and (not wanted.words.split()))"
    plant(monkeypatch, tui.widgets.row_table, "ListTable._at_once", old, "rows <= INLINE_MAX")
    with pytest.raises(AssertionError):
        test_many_rows_in_their_order_are_turned_round_at_once(monkeypatch)


DRAWN = 0.05
"""Seconds after which another drawing would have been made."""
REPLAY_KEYS = (
    "g",
    "j",
    "full_stop",
    "right",
    "G",
    "comma",
    "less_than_sign",
    "less_than_sign",
    "greater_than_sign",
    "pageup",
)


def test_key_of_the_replay_makes_no_state_lays_out_nothing_and_is_drawn_once(
    eventful: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tui.screens.replay, "WAITED", 3_600.0)

    async def course(pilot: Pilot[None], app: TopApp) -> None:
        await pilot.press("6")
        screen = app.screen
        assert isinstance(screen, ReplayScreen)
        await until(pilot, lambda: screen.idle)
        for key in REPLAY_KEYS:  # whatever is seen for the first time
            await pilot.press(key)
            await until(pilot, lambda: screen.idle)
        await pilot.pause()
        with monkeypatch.context() as patch:
            reflows = Counted(patch, Compositor, "reflow")
            painted = Counted(patch, ReplayScreen, "_paint")
            states = Counted(patch, tui.sources.record, "_state")
            drawings = Counted(patch, Screen, "_compositor_refresh")
            drawn = []
            for key in REPLAY_KEYS:
                before = screen.place
                await pilot.press(key)
                await until(pilot, lambda: screen.idle and painted.calls and drawings.calls)
                await pilot.pause(DRAWN)
                assert screen.place != before, f"{key} leads nowhere"
                assert (reflows.calls, painted.calls, states.calls) == (0, 1, 0), key
                drawn.append(drawings.calls)
                painted.calls = drawings.calls = 0
            # The library may draw once more by itself where the machine stood still: for one key, not for each.
            assert sorted(drawn)[:-1] == [1] * (len(REPLAY_KEYS) - 1)
            assert max(drawn) <= 2
            assert "REPLAY" in screen.query_one(TitleBar).words
            assert clock_text(screen.place.instant_ns, 3) in screen.query_one(TitleBar).words
            await pilot.press("2")
            await until(
                pilot, lambda: app.state is not None and app.state.clock.now.midpoint == screen.place.instant_ns
            )
            assert states.calls == 1, "the leases are those of the instant that was gone to"

    drive_copy(eventful, course)


@pytest.mark.verify
@pytest.mark.parametrize(
    ("module", "place", "old", "new"),
    [
        (tui.app, "TopApp.look_at", "not any((screen.READS_STATE for screen in self._seen()))", "False"),
        (tui.app, "TopApp.show_now", "self.feed.look_at(self.instant)", "None"),
        (tui.screens.replay, "_filled", "[*lines, *([] for _ in range(count - len(lines)))]", "lines"),
        (tui.widgets.lines, "WordsLine.say_lines", "self.styles.is_auto_height and self._is_taller(content)", "True"),
        (tui.screens.replay, "ReplayScreen._moved", "position != self.place.position", "True"),
        (tui.screens.replay, "ReplayScreen._paint", "self._title(reading)", "None"),
        (tui.screens.replay, "ReplayScreen._ask", "WAITED", "None"),
    ],
)
def test_replay_that_does_too_much_is_caught(
    module: ModuleType, place: str, old: str, new: str, eventful: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, module, place, old, new)
    monkeypatch.setattr(tests.support.copies, "LOOKS_MAX", 300)

    def slow(*asked: Any) -> ReplayMoment:  # noqa: ANN401 - as it
        time.sleep(DRAWN)  # else who does not wait for it may find it there all the same
        return moment_of(*asked)

    monkeypatch.setattr(tui.model.replaying, "moment_of", slow)
    with pytest.raises(AssertionError):
        test_key_of_the_replay_makes_no_state_lays_out_nothing_and_is_drawn_once(eventful, monkeypatch)


def test_drawing_does_not_wait_for_a_moment_that_takes_long(eventful: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def slow(timeline: Timeline, leases: Traces, tree: Tree | None, wish: MomentRequest) -> ReplayMoment:
        go_on.wait()
        return moment_of(timeline, leases, tree, wish)

    async def course(pilot: Pilot[None], app: TopApp) -> None:
        await pilot.press("6")
        screen = app.screen
        assert isinstance(screen, ReplayScreen)
        await until(pilot, lambda: screen.idle)
        with monkeypatch.context() as patch:
            patch.setattr(tui.model.replaying, "moment_of", slow)
            drawings = Counted(patch, Screen, "_compositor_refresh")
            try:
                await pilot.press("g")
                await until(pilot, lambda: drawings.calls)
                assert not screen.idle
            finally:
                go_on.set()
            await until(pilot, lambda: not screen._busy)

    drive_copy(eventful, course)
