"""What a key must not do anew: counted, never timed. What it costs is measured by ``make bench-tui``."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from textual.css.stylesheet import Stylesheet
from textual.pilot import Pilot
from textual.widget import Widget

import tui.screens.base
import tui.widgets.row_table
from tests.support.mutants import plant
from tests.support.screens import HandFeed, RecordedSource, busy_state, lease
from tui.app import TopApp
from tui.book import Leases
from tui.widgets.lease_list import LeaseList
from tui.widgets.row_table import RowTable

SIZE = (120, 36)


class Counted:
    """How often something was done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, place: type, name: str) -> None:
        self.calls = 0
        inner = getattr(place, name)

        def counting(*arguments: object, **named: object) -> object:
            self.calls += 1
            return inner(*arguments, **named)

        monkeypatch.setattr(place, name, counting)


def drive(course: Callable[[Pilot[None]], Awaitable[None]]) -> None:
    async def run() -> None:
        rows = Leases(lease(f"account/{number:03d}") for number in range(500))
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


def test_screens_that_are_styled_anew_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(
        monkeypatch,
        tui.screens.base,
        "TopScreen.on_screen_resume",
        "event.refresh_styles = self._theme != self.top.theme",
        "event.refresh_styles = True",
    )
    with pytest.raises(AssertionError):
        test_screen_that_was_seen_is_neither_built_nor_styled_anew(monkeypatch)


def test_screen_that_keeps_the_colours_of_another_theme_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(
        monkeypatch,
        tui.screens.base,
        "TopScreen.on_screen_resume",
        "event.refresh_styles = self._theme != self.top.theme",
        "event.refresh_styles = False",
    )
    with pytest.raises(AssertionError):
        test_theme_that_was_changed_elsewhere_is_that_of_every_screen()


def test_lines_that_are_drawn_again_and_again_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, tui.widgets.row_table, "RowTable.kept", "strip is None", "True")
    with pytest.raises(AssertionError):
        test_row_down_draws_one_row(monkeypatch)
