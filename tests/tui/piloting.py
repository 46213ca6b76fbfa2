"""Driving the screens on recorded states: what the tests of the screens share."""

import asyncio
from collections.abc import Awaitable, Callable

from textual.pilot import Pilot

from tests.support.screens import (
    HandFeed,
    RecordedSource,
    busy_state,
)
from tui.app import TopApp, TopScreen
from tui.model.state import ClusterState
from tui.screens.cluster import LeaseList
from tui.widgets.row_table import RowTable

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


def text_at(table: RowTable, y: int) -> str:
    """What stands in a line of a table, without style."""
    return table.render_line(y).text.rstrip()


def rows(pilot: Pilot[None]) -> list[str]:
    table = screen(pilot).query_one(LeaseList)
    return [text_at(table, y + 1) for y in range(min(table.count, table.size.height - 1))]
