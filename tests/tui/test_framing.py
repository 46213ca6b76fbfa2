"""Lines with what stands around them, drawn past the library: they look as it draws them, whatever happens."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from rich.segment import Segment
from textual.geometry import Region
from textual.pilot import Pilot
from textual.scrollbar import ScrollBar
from textual.widget import Widget

import tui.widgets.lines
from tests.fault_injection.fixtures import eventful_tree
from tests.support.copies import drive_copy, until
from tests.support.mutants import plant
from tests.support.screens import HandFeed, RecordedSource, busy_state, lease
from tui.app import TopApp
from tui.model.state import LeaseRows
from tui.screens.replay import ReplayScreen
from tui.widgets.lines import KeptLines, LineBar, WordsLine

WIDE, SMALL = (120, 36), (80, 24)


@pytest.fixture(scope="module")
def eventful(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return eventful_tree(tmp_path_factory.mktemp("eventful") / "tree").root


def lined(app: TopApp) -> Iterator[Widget]:
    """Yield the widgets that are seen and draw themselves."""
    for widget in app.screen._compositor.visible_widgets:
        if isinstance(widget, KeptLines | LineBar):
            yield widget


def by_the_library(widget: Widget) -> list[list[Segment]]:
    """Return how the library draws a widget, from nothing."""
    widget._styles_cache.clear()
    whole = Region(0, 0, *widget.outer_size)
    drawn = (
        ScrollBar.render_lines(widget, whole) if isinstance(widget, ScrollBar) else Widget.render_lines(widget, whole)
    )
    return [strip.simplify()._segments for strip in drawn]


def all_as_the_library(app: TopApp) -> int:
    """Return how many widgets draw themselves; each looks as the library draws it."""
    seen = list(lined(app))
    for widget in seen:
        lines = widget.render_lines(Region(0, 0, *widget.outer_size))
        assert [strip.simplify()._segments for strip in lines] == by_the_library(widget), widget
    return len(seen)


def test_lines_look_as_the_library_draws_them(eventful: Path) -> None:
    async def course(pilot: Pilot[None], app: TopApp) -> None:
        for keys in ("1", "2", "2 d", "2 j", "2 d G", "3", "4", "5", "5 tab", "6"):
            await pilot.press(*keys.split())
            await pilot.pause()
            assert all_as_the_library(app) >= 5
        screen = app.screen
        assert isinstance(screen, ReplayScreen)
        await until(pilot, lambda: screen.idle)
        for key in ("g", "pagedown", "pagedown", "d", "f", "G", "comma", "f"):
            await pilot.press(key)
            await until(pilot, lambda: screen.idle)
            await pilot.pause()
            assert all_as_the_library(app) >= 8
        await pilot.resize_terminal(*SMALL)
        await pilot.pause()
        await until(pilot, lambda: screen.idle)
        assert all_as_the_library(app) >= 8

    drive_copy(eventful, course, size=WIDE)


@pytest.mark.verify
@pytest.mark.parametrize(
    ("module", "place", "old", "new"),
    [
        (tui.widgets.lines, "KeptLines.notify_style_update", "self._width = -1", "None"),
        (tui.widgets.lines, "KeptLines.show_title", "self._edge = None", "None"),
        (tui.widgets.lines, "KeptLines._put_around", "[*left, *line, *right]", "[*right, *left, *line]"),
        (tui.widgets.lines, "KeptLines.render_lines", "crop.width != self._width", "self._width < 0"),
        (tui.widgets.lines, "LineBar.render_lines", "bar.position", "0"),
        (tui.widgets.lines, "LineBar.render_lines", "Strip([piece], self.thickness).apply_style(ground)",
         "Strip([piece], self.thickness)"),
    ],
)  # fmt: skip
def test_what_looks_otherwise_is_caught(
    module: ModuleType, place: str, old: str, new: str, eventful: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, module, place, old, new)
    with pytest.raises(AssertionError):
        test_lines_look_as_the_library_draws_them(eventful)


def test_without_colours_lines_look_as_the_library_draws_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def run() -> None:
        rows = LeaseRows(lease(f"account/{number:03d}") for number in range(500))
        app = TopApp(HandFeed(RecordedSource(replace(busy_state(), leases=rows))))
        async with app.run_test(size=WIDE) as pilot:
            await pilot.press("2")
            await pilot.pause()
            assert any(isinstance(each, LineBar) for each in lined(app))
            all_as_the_library(app)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("module", "place", "old", "new"),
    [
        (tui.widgets.lines, "KeptLines._put_around", "line.apply_filter(each, self._background)", "line"),
        (tui.widgets.lines, "LineBar.render_lines", "strip.apply_filter(each, background)", "strip"),
    ],
)
def test_colours_where_there_are_to_be_none_are_caught(
    module: ModuleType, place: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, module, place, old, new)
    with pytest.raises(AssertionError):
        test_without_colours_lines_look_as_the_library_draws_them(monkeypatch)


def test_line_that_stays_is_not_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Region, ...]] = []
    refresh = WordsLine.refresh

    def told(self: WordsLine, *regions: Region, repaint: bool = True, layout: bool = False) -> WordsLine:
        asked.append(regions)
        return refresh(self, *regions, repaint=repaint, layout=layout)

    async def run() -> None:
        app = TopApp(HandFeed(RecordedSource(busy_state())), first="time")
        async with app.run_test(size=WIDE) as pilot:
            await pilot.pause()
            line = app.screen.query_one("#history", WordsLine)
            line.say_lines([["as ever"], ["before"]])
            await pilot.pause()
            with monkeypatch.context() as patch:
                patch.setattr(WordsLine, "refresh", told)
                line.say_lines([["as ever"], ["after"]])
                assert asked == [(Region(0, 1, line.size.width, 1),)]

    asyncio.run(run())


def test_lines_that_stay_and_are_drawn_anew_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, tui.widgets.lines, "WordsLine.say_lines", "old != new", "True")
    with pytest.raises(AssertionError):
        test_line_that_stays_is_not_drawn_anew(monkeypatch)
