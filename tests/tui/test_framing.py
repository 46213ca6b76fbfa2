"""Lines that are kept with what stands around them: they look as the library draws them, whatever happens."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.segment import Segment
from textual.geometry import Region
from textual.pilot import Pilot
from textual.scrollbar import ScrollBar
from textual.widget import Widget

import tui.widgets.row_table
from tests.fault_injection.fixtures import eventful_tree
from tests.support.copies import drive_copy, until
from tests.support.mutants import plant
from tui.app import TopApp
from tui.screens.replay import ReplayScreen
from tui.widgets.row_table import KeptBar, RowTable

WIDE, SMALL = (120, 36), (80, 24)


@pytest.fixture(scope="module")
def eventful(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return eventful_tree(tmp_path_factory.mktemp("eventful") / "tree").root


def lined(app: TopApp) -> Iterator[Widget]:
    """Yield the widgets that are seen and keep what stands around their lines."""
    for widget in app.screen._compositor.visible_widgets:
        if isinstance(widget, RowTable | KeptBar):
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
    """Return how many of them there are; each looks as the library draws it."""
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
            assert all_as_the_library(app) >= 1
        await pilot.press("2")
        for size in (SMALL, WIDE):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            assert all_as_the_library(app) >= 1
        await pilot.press("6")
        screen = app.screen
        assert isinstance(screen, ReplayScreen)
        await until(pilot, lambda: screen.idle)
        for key in ("g", "pagedown", "pagedown", "d", "f", "G", "comma", "f"):
            await pilot.press(key)
            await until(pilot, lambda: screen.idle)
            await pilot.pause()
            assert all_as_the_library(app) >= 1
        await pilot.resize_terminal(*SMALL)
        for theme in (app.theme, "textual-light"):
            app.theme = theme
            await pilot.pause()
            await until(pilot, lambda: screen.idle)
            assert all_as_the_library(app) >= 1

    drive_copy(eventful, course, size=WIDE)


@pytest.mark.verify
@pytest.mark.parametrize(
    ("place", "old"),
    [
        ("RowTable.kept", "width != self._drawn_width"),
        ("RowTable.render_lines", "crop.y < above"),
        ("KeptBar.notify_style_update", "self._drawn.clear()"),
    ],
)
def test_what_looks_otherwise_is_caught(place: str, old: str, eventful: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, tui.widgets.row_table, place, old, "False")
    with pytest.raises(AssertionError):
        test_lines_look_as_the_library_draws_them(eventful)
