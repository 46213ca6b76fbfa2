"""The replay of a copy, driven by keys: steps, speed, following, what if, an instant that is typed; every size."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.fault_injection.faults_leases import granted_while_held
from tests.fault_injection.fixtures import eventful_tree
from tests.support.copies import SIZES, SMALL, WIDE, drive_copy, seen, until
from tests.support.screens import NOW_NS
from tests.support.shares import sampled
from timeagent.errors import BadRequest
from timeagent.units import DAY, MINUTE, MS, SECOND
from tui.app import TopApp
from tui.model.replaying import instant_near, window_of
from tui.model.state import title_of
from tui.screens.replay import EventTable, ReplayScreen, WhatIfScreen

if TYPE_CHECKING:
    from pathlib import Path

    from textual.pilot import Pilot


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return eventful_tree(tmp_path_factory.mktemp("good") / "tree").root


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return granted_while_held(tmp_path_factory.mktemp("bad") / "tree").root


async def open_replay(pilot: Pilot[None], app: TopApp) -> ReplayScreen:
    await pilot.press("6")
    await until(pilot, lambda: isinstance(app.screen, ReplayScreen) and app.screen.timeline is not None)
    screen = app.screen
    assert isinstance(screen, ReplayScreen)
    await until(pilot, lambda: screen.idle)
    await pilot.pause()
    return screen


async def drawn(pilot: Pilot[None], screen: ReplayScreen) -> str:
    """Everything on the screen, once what comes from a thread is there."""
    await until(pilot, lambda: screen.idle)
    await pilot.pause()
    assert isinstance(pilot.app, TopApp)
    return "\n".join(seen(pilot.app))


@pytest.mark.parametrize("size", sampled(SIZES, 3))
def test_replay_shows_scrubber_bars_bags_deliveries_and_events(good: Path, size: tuple[int, int]) -> None:
    async def course(pilot: Pilot[None], app: TopApp) -> None:
        screen = await open_replay(pilot, app)
        text = await drawn(pilot, screen)
        for part in (
            "◆",
            "events ",
            "Leases, 20 s",
            "Bags",
            "Delivered so far",
            "Events",
            "‖ 1×",
            "orders: final up to",
        ):
            assert part in text, part
        assert len(text.splitlines()) == size[1]
        assert screen.timeline is not None
        assert screen.place.position == len(screen.timeline.events)

    drive_copy(good, course, size=size)


def test_events_bags_and_findings_are_stepped_through(bad: Path, good: Path) -> None:
    async def over_bags(pilot: Pilot[None], app: TopApp) -> None:
        screen = await open_replay(pilot, app)
        timeline = screen.timeline
        assert timeline is not None
        await pilot.press("comma")
        assert screen.place.position == len(timeline.events) - 1
        assert app.screen.query_one(EventTable).cursor == screen.place.position - 1
        await pilot.press("full_stop")
        assert screen.place.position == len(timeline.events)
        await pilot.press("less_than_sign")
        assert screen.place.instant_ns == timeline.closing(timeline.end_ns, back=True)
        await until(pilot, lambda: app.instant == screen.place.instant_ns)

    async def over_findings(pilot: Pilot[None], app: TopApp) -> None:
        screen = await open_replay(pilot, app)
        timeline = screen.timeline
        assert timeline is not None
        await pilot.press("left_square_bracket")
        assert screen.place.instant_ns == timeline.findings[0][0]
        assert "◈" in await drawn(pilot, screen)
        await pilot.press("left_square_bracket")
        assert screen.place.instant_ns == timeline.findings[0][0]

    drive_copy(good, over_bags)
    drive_copy(bad, over_findings)


def test_record_is_counted_once_for_all_keys_and_what_was_drawn_of_events_is_kept(good: Path) -> None:
    async def body(pilot: Pilot[None], app: TopApp) -> None:
        screen = await open_replay(pilot, app)
        await drawn(pilot, screen)
        timeline, table = screen.timeline, app.screen.query_one(EventTable)
        assert timeline is not None
        kept = dict(table._drawn)
        assert kept
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(timeline, "density", lambda *_: pytest.fail("counted again"))
            for key in ("comma", "comma", "full_stop"):
                await pilot.press(key)
                await drawn(pilot, screen)
        assert all(table._drawn.get(name) is strip for name, strip in kept.items())

    drive_copy(good, body)


def test_cursor_in_the_events_is_the_place_in_time(good: Path) -> None:
    async def course(pilot: Pilot[None], app: TopApp) -> None:
        screen = await open_replay(pilot, app)
        await pilot.press("g")
        await until(pilot, lambda: screen.place.position == 1)
        await pilot.press("j", "j")
        await until(pilot, lambda: screen.place.position == 3)

    drive_copy(good, course)


def test_time_passes_at_its_speed_and_stops_at_the_end(good: Path) -> None:
    async def course(pilot: Pilot[None], app: TopApp) -> None:
        screen = await open_replay(pilot, app)
        timeline = screen.timeline
        assert timeline is not None
        await pilot.press("minus", "minus", "minus", "minus")
        assert screen.speed == 0.05
        await pilot.press("space")
        assert screen.playing
        assert screen.place.instant_ns < timeline.start_ns + 10 * SECOND
        await pilot.press("space")
        assert not screen.playing
        before = screen.place.instant_ns
        await pilot.press(*["plus"] * 9)
        assert screen.speed == 600
        screen.pass_time()
        assert screen.place.instant_ns == min(before + 60 * SECOND, timeline.end_ns)
        screen.playing = True
        screen.pass_time()
        screen.pass_time()
        assert (screen.place.instant_ns, screen.playing) == (timeline.end_ns, False)

    drive_copy(good, course)


def test_other_screens_show_what_playing_came_to(good: Path) -> None:
    async def course(pilot: Pilot[None], app: TopApp) -> None:
        screen = await open_replay(pilot, app)
        timeline = screen.timeline
        assert timeline is not None
        await pilot.press("space")  # from the beginning
        screen.pass_time()
        assert app.instant == screen.place.instant_ns > timeline.start_ns
        screen.speed = 1e9
        screen.pass_time()
        assert (app.instant, screen.playing) == (timeline.end_ns, False)
        await pilot.press("1")
        await until(pilot, lambda: app.state and app.state.clock.now.midpoint == timeline.end_ns)

    drive_copy(good, course)


def test_what_two_parts_call_alike_is_twice_in_help_and_palette(good: Path) -> None:
    """To move is another thing in the table than on the screen."""

    async def course(pilot: Pilot[None], app: TopApp) -> None:
        screen = await open_replay(pilot, app)
        keys = {what: key for key, what in list(app.keys())}
        assert keys.keys() >= {"Up", "Down", "A little on", "A little back"}
        assert not set(keys["Up"].split()) & set(keys["A little back"].split())
        timeline = screen.timeline
        assert timeline is not None
        await pilot.press("colon")
        await pilot.pause()
        await pilot.press(*"little back")
        await until(pilot, lambda: "A little back" in "\n".join(seen(app)))
        await pilot.press("enter")
        await until(pilot, lambda: app.screen is screen)
        await until(pilot, lambda: screen.place.instant_ns == timeline.end_ns - SECOND)

    drive_copy(good, course)


def test_followed_domain_is_first_and_is_stepped_through_alone(good: Path) -> None:
    async def course(pilot: Pilot[None], app: TopApp) -> None:
        screen = await open_replay(pilot, app)
        while app.screen.query_one(EventTable).domain is None:
            await pilot.press("comma")
        await pilot.press("f")
        domain = app.screen.query_one(EventTable).domain
        assert screen.follow == domain
        assert f"{domain} first" in await drawn(pilot, screen)
        await pilot.press("comma")
        assert app.screen.query_one(EventTable).domain == domain
        await pilot.press("escape")
        assert screen.follow is None

    drive_copy(good, course)


def test_instant_is_typed_and_a_wrong_one_is_refused_by_name(good: Path) -> None:
    async def course(pilot: Pilot[None], app: TopApp) -> None:
        screen = await open_replay(pilot, app)
        timeline = screen.timeline
        assert timeline is not None
        await pilot.press("i", *"22:00:05", "enter")
        assert screen.place.instant_ns == timeline.start_ns + 5 * SECOND
        await pilot.press("i", *"teatime", "enter")
        await until(pilot, lambda: any("teatime" in str(each.message) for each in app._notifications))
        await pilot.press("escape")
        assert isinstance(app.focused, EventTable)

    drive_copy(good, course)


@pytest.mark.parametrize("text", ["22:00:inf", "22:00:1e999", "25:00:00", "22:99", ":", "-1:00:00", "22:00:00:00"])
def test_time_of_day_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        instant_near(text, NOW_NS)


def test_time_of_day_is_of_the_day_that_is_looked_at() -> None:
    day = NOW_NS - NOW_NS % DAY
    assert instant_near("9:05", NOW_NS) == day + (9 * 60 + 5) * MINUTE
    assert instant_near("22:00:01.5Z", NOW_NS) == day + 22 * 60 * MINUTE + 1_500 * MS
    assert instant_near("2026-11-20T22:00:01.5Z", 0) == instant_near("22:00:01.5", NOW_NS)


def test_instant_outside_the_record_goes_to_its_end_and_says_so(good: Path) -> None:
    async def course(pilot: Pilot[None], app: TopApp) -> None:
        screen = await open_replay(pilot, app)
        timeline = screen.timeline
        assert timeline is not None
        await pilot.press("i", *"3:00", "enter")
        assert screen.place.instant_ns == timeline.start_ns
        await until(pilot, lambda: any("the record goes from" in str(each.message) for each in app._notifications))

    drive_copy(good, course)


def test_what_if_reads_the_copy_anew_and_says_what_changes_and_goes_back(bad: Path) -> None:
    async def course(pilot: Pilot[None], app: TopApp) -> None:
        screen = await open_replay(pilot, app)
        as_it_was = screen.timeline
        await pilot.press("w")
        await until(pilot, lambda: isinstance(app.screen, WhatIfScreen))
        await pilot.press("j", "j", *["right"] * 7, "enter")
        await until(pilot, lambda: screen.timeline is not as_it_was)
        text = await drawn(pilot, screen)
        assert "WHAT IF clock of n1 +1 min: 1 finding more (grant-overlap), 1 finding fewer (early-grant)" in text
        await pilot.press("w")
        await until(pilot, lambda: isinstance(app.screen, WhatIfScreen))
        await pilot.press("0", "enter")
        await until(pilot, lambda: screen.timeline is as_it_was)
        assert "WHAT IF" not in await drawn(pilot, screen)
        await pilot.press("w")
        await until(pilot, lambda: isinstance(app.screen, WhatIfScreen))
        await pilot.press("space", "escape")
        await until(pilot, lambda: app.screen is screen)
        assert screen.timeline is as_it_was

    drive_copy(bad, course)


def has_size(app: TopApp, size: tuple[int, int]) -> bool:
    return tuple(app.size) == size


def test_screen_can_be_made_small_and_large_again(bad: Path) -> None:
    async def course(pilot: Pilot[None], app: TopApp) -> None:
        screen = await open_replay(pilot, app)
        await pilot.press("left_square_bracket")
        for size in (SMALL, (200, 60), (60, 15), WIDE):
            await pilot.resize_terminal(*size)
            await until(pilot, partial(has_size, app, size))
            await drawn(pilot, screen)
            assert len(seen(app)) == size[1]
        assert "╬" in await drawn(pilot, screen)

    drive_copy(bad, course)


def test_what_was_is_exported_and_drilled_into(good: Path, tmp_path: Path) -> None:
    async def course(pilot: Pilot[None], app: TopApp) -> None:
        app.export_to = tmp_path
        screen = await open_replay(pilot, app)
        sheet = screen.exported()
        assert sheet.rows
        assert {"instant_ns", "event", "what", "path"} <= sheet.rows[0].keys()
        await pilot.press("g", *["z"] * 2, *["right"] * 9)
        assert screen.timeline is not None
        window = window_of(screen.timeline, screen.place, 5 * SECOND)
        assert window.first_ns < screen.place.instant_ns < window.last_ns
        seen_events = [event for _, event in screen.timeline.between(window.first_ns, window.last_ns)]
        assert [row["instant_ns"] for row in screen.exported().rows] == [each.instant_ns for each in seen_events]
        await pilot.press("e", "j")
        await until(pilot, partial(has_files, tmp_path))
        subject = screen.subject()
        assert subject is not None
        await pilot.press("enter")
        await until(pilot, lambda: title_of(subject)[:20] in "\n".join(seen(app)))

    drive_copy(good, course)


def has_files(directory: Path) -> bool:
    return any(directory.glob("tenure-events-*.jsonl"))
