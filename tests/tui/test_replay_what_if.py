"""What if, on the screen: all that is drawn is of the record as it would have been, and what cannot be read is told."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from textual.events import Key

import tests.support.copies
import tui.model.replaying
import tui.screens.replay
from auditor.columns.events import LeaseTold
from tests.fault_injection.faults_leases import granted_while_held
from tests.support.copies import drive_copy, until
from tests.support.mutants import plant
from tests.tui.test_replay_screen import drawn, open_replay
from tui.model.replaying import at_instant
from tui.screens.findings import ChainTable, FindingsScreen, FindingTable
from tui.screens.replay import EventTable, ReplayScreen, ScrubberLine, WhatIfScreen
from tui.widgets.lines import WordsLine

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from textual.pilot import Pilot

    from tui.app import TopApp

FIRST_CLOCK_A_SECOND_ON = ("j", "j", *["right"] * 3)


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return granted_while_held(tmp_path_factory.mktemp("bad") / "tree").root


async def turn(pilot: Pilot[None], app: TopApp, *keys: str) -> None:
    await pilot.press("w")
    await until(pilot, lambda: isinstance(app.screen, WhatIfScreen))
    await pilot.press(*keys, "enter")


async def with_a_clock_turned(pilot: Pilot[None], app: TopApp) -> ReplayScreen:
    screen = await open_replay(pilot, app)
    as_it_was = screen.timeline
    await turn(pilot, app, *FIRST_CLOCK_A_SECOND_ON)
    await until(pilot, lambda: screen.timeline is not as_it_was)
    return screen


def bars(screen: ReplayScreen) -> str:
    return screen.query_one("#bars", WordsLine).words


def starts(screen: ReplayScreen) -> tuple[list[int], list[int]]:
    """When the leases of the only domain begin: by the bars, and by the events."""
    assert screen.timeline is not None
    assert screen._reading is not None
    told = [each for each in screen.timeline.kinds(LeaseTold) if each.witness.domain == "alice"]
    first = {each.witness.correlation_id: each.instant_ns for each in reversed(told)}
    span = screen.timeline.start_ns, screen.timeline.end_ns
    return sorted(each.granted_ns for each in screen._reading.leases.within("alice", *span)), sorted(first.values())


def test_bars_are_of_the_record_as_it_would_have_been_and_go_back(bad: Path) -> None:
    async def course(pilot: Pilot[None], app: TopApp) -> None:
        screen = await open_replay(pilot, app)
        before, (as_drawn, as_told) = bars(screen), starts(screen)
        assert as_drawn == as_told
        await with_a_clock_turned(pilot, app)
        await drawn(pilot, screen)
        otherwise, would_have_been = starts(screen)
        assert otherwise == would_have_been != as_told
        assert bars(screen) != before
        await turn(pilot, app, "0")
        await until(pilot, lambda: starts(screen)[0] == as_told)
        await drawn(pilot, screen)
        assert bars(screen) == before

    drive_copy(bad, course)


# A terminal hands over at once what was typed while nobody looked.
def test_keys_that_arrive_together_turn_the_switch_before_it_is_read(bad: Path) -> None:
    async def course(pilot: Pilot[None], app: TopApp) -> None:
        screen = await open_replay(pilot, app)
        await pilot.press("w")
        await until(pilot, lambda: isinstance(app.screen, WhatIfScreen))
        for key in (*FIRST_CLOCK_A_SECOND_ON, "enter"):
            app.post_message(Key(key, None))
        await until(pilot, lambda: "WHAT IF clock of n1 +1 s" in screen.query_one("#lens", WordsLine).words)

    drive_copy(bad, course)


def test_finding_is_gone_to_in_the_record_that_is_seen(bad: Path) -> None:
    """How many events have happened is counted in that one: another may have them in another order."""

    async def course(pilot: Pilot[None], app: TopApp) -> None:
        screen = await with_a_clock_turned(pilot, app)
        await pilot.press("5")
        await until(pilot, lambda: isinstance(app.screen, FindingsScreen) and app.archives.archive is not None)
        await until(pilot, lambda: app.screen.query_one(ChainTable).link is not None)
        await pilot.press("t")
        await until(pilot, lambda: app.screen is screen)
        await drawn(pilot, screen)
        assert screen.timeline is not None
        assert screen._reading is not None
        assert screen.place == at_instant(screen.timeline, screen.place.instant_ns)
        assert screen.place != at_instant(screen._reading.archive.timeline, screen.place.instant_ns)

    drive_copy(bad, course)


def test_copy_that_is_gone_is_told_and_what_was_read_stays(bad: Path, tmp_path: Path) -> None:
    async def course(pilot: Pilot[None], app: TopApp) -> None:
        screen = await open_replay(pilot, app)
        as_it_was = screen.timeline
        shutil.rmtree(tmp_path / "tree")
        await turn(pilot, app, *FIRST_CLOCK_A_SECOND_ON)
        lens = screen.query_one("#lens", WordsLine)
        await until(pilot, lambda: "nothing can be read from the copy any more" in lens.words)
        assert "all is shown as it was" in lens.words
        assert screen.timeline is as_it_was
        text = await drawn(pilot, screen)
        assert "tells of no event" not in text
        await pilot.press("a")
        await until(pilot, lambda: any("not audited again" in str(each.message) for each in app._notifications))
        await until(pilot, lambda: "◆" in screen.query_one(ScrubberLine).words)
        assert screen.query_one(EventTable).event is not None
        await pilot.press("5")
        await until(pilot, lambda: app.screen.query(FindingTable) and app.screen.query_one(FindingTable).findings)
        app._notifications.clear()
        await pilot.press("a")
        await until(pilot, lambda: any("not audited again" in str(each.message) for each in app._notifications))
        await until(pilot, lambda: app.screen.query_one(FindingTable).findings)

    drive_copy(shutil.copytree(bad, tmp_path / "tree", symlinks=True), course)


@pytest.mark.verify
@pytest.mark.parametrize(
    ("module", "place", "old", "new", "test"),
    [
        (
            tui.model.replaying,
            "ReplayedCopy.take",
            "Traces(self.timeline)",
            "self.leases",
            test_bars_are_of_the_record_as_it_would_have_been_and_go_back,
        ),
        (
            tui.screens.replay,
            "ReplayScreen.look",
            "at_instant(reading.timeline, instant)",
            "at_instant(archive.timeline, instant)",
            test_finding_is_gone_to_in_the_record_that_is_seen,
        ),
        (
            tui.model.replaying,
            "ReplayedCopy.take",
            "self.archive.timeline.events and (not found[0].events)",
            "False",
            test_copy_that_is_gone_is_told_and_what_was_read_stays,
        ),
    ],
)
def test_screen_of_two_records_is_caught(
    module: ModuleType,
    place: str,
    old: str,
    new: str,
    test: object,
    bad: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    plant(monkeypatch, module, place, old, new)
    monkeypatch.setattr(tests.support.copies, "LOOKS_MAX", 300)
    assert callable(test)
    more = (tmp_path,) if "tmp_path" in test.__code__.co_varnames else ()  # type: ignore[attr-defined]
    with pytest.raises(AssertionError):
        test(bad, *more)
