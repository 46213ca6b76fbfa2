"""What the screens look like, to the letter and the colour: pictures of a recorded state, compared byte by byte.

Size, state and clock are fixed, so they are the same on every machine. After a change that is meant, look at the new
pictures and keep them: ``python -m tests.tui.test_snapshots``.
"""

import asyncio
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

import tui.app
from auditor.columns.events import WhatIf
from tests.support.copies import indexed_here
from tests.support.screens import HandFeed, RecordedSource, busy_state
from tests.support.shares import sampled
from timeagent.clock import SystemClock
from tui.app import SCREENS, TopApp, TopScreen
from tui.feed import Feed
from tui.screens.findings import ChainTable, FindingsScreen
from tui.screens.replay import ReplayScreen, WhatIfScreen
from tui.sources.record import RecordSource
from tui.widgets.lines import KeysLine

KEPT = Path(__file__).with_name("snapshots")
PICTURES = {
    "overview-80x24": ((80, 24), ()),
    "overview-120x36": ((120, 36), ()),
    "overview-light-120x36": ((120, 36), ("d",)),
    "leases-120x36": ((120, 36), ("2", "j", "j")),
    "bags-80x24": ((80, 24), ("3", "left", "left")),
    "time-120x36": ((120, 36), ("4", "j")),
    "domain-80x24": ((80, 24), ("2", "enter")),
    "export-80x24": ((80, 24), ("2", "e")),
    "revoke-80x24": ((80, 24), ("2", "j", "R")),
    "what-if-80x24": ((80, 24), ("2",)),
}
DIALOGS = {"what-if": lambda: WhatIfScreen(WhatIf(), [f"node{number}" for number in range(1, 6)])}
"""What is opened on top, where that takes a copy."""


TREE = Path(__file__).parents[1] / "golden/trees/early-grant/tree"
RECORDED = {
    f"{screen}-{width}x{height}": ((width, height), keys)
    for screen, keys in (("findings", ("5",)), ("replay", ("5", "t")))
    for width, height in ((80, 24), (120, 36))
}
ROUNDS_MAX = 3_000
ROUNDS_STILL = 150


def recorded_picture(name: str, kept: str) -> str:
    """The screens that read evidence, on a golden tree: its instants are fixed too. ``kept``: what is waited for."""
    size, keys = RECORDED[name]
    source = RecordSource(TREE, SystemClock())
    source._path = "/srv/copy"  # not where this checkout is

    async def run() -> str:
        app = TopApp(Feed(source, SystemClock()))
        async with app.run_test(size=size) as pilot:
            for key in keys:
                await pilot.press(key)
                for _ in range(ROUNDS_MAX):
                    await pilot.pause(0.01)
                    if settled(app):
                        break
                else:
                    raise AssertionError(f"{name} never settled after {key}")
            app.screen.query_one(KeysLine).styles.visibility = "hidden"
            return await still(app, pilot, kept)

    with indexed_here():
        source.reading.put()
        return asyncio.run(run())


async def still(app: TopApp, pilot: Pilot[None], kept: str) -> str:
    """What is seen once it is what is kept, or nothing has moved for long: a slow machine reads evidence slowly."""
    last, same = "", 0
    for _ in range(ROUNDS_MAX):
        await pilot.pause(0.02)
        seen = app.export_screenshot()
        last, same = seen, same + 1 if seen == last else 0
        if seen == kept or same == ROUNDS_STILL:
            return seen
    raise AssertionError("the screen never stood still")


def settled(app: TopApp) -> bool:
    """Whether everything that was asked for has come."""
    screen = app.screen
    if isinstance(screen, ReplayScreen):
        return screen.idle
    return isinstance(screen, FindingsScreen) and screen.query_one(ChainTable).link is not None


def nobody(domain: str, correlation_id: str, typed: str, reason: str) -> str:
    """Revokes nothing: a picture of being asked."""
    raise AssertionError((domain, correlation_id, typed, reason))


def picture(name: str, kept: str = "") -> str:
    if name in RECORDED:
        return recorded_picture(name, kept)
    size, keys = PICTURES[name]

    async def run() -> str:
        app = TopApp(HandFeed(RecordedSource(busy_state())), revoke=nobody if name.startswith("revoke") else None)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            for key in keys:
                await pilot.press(key)
                await pilot.pause()
            # The line of keys follows from the bindings, which have their own tests.
            beneath = next(each for each in reversed(app.screen_stack) if isinstance(each, TopScreen))
            beneath.query_one(KeysLine).styles.visibility = "hidden"
            dialog = DIALOGS.get(name.rpartition("-")[0])
            if dialog is not None:
                app.push_screen(dialog())
            for field in app.screen.query(Input):
                field.cursor_blink = False
            await pilot.pause()
            return app.export_screenshot()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tui.app, "SCREENS", SCREENS[:4])  # a new tab is no other picture of these screens
        return asyncio.run(run())


@pytest.mark.parametrize("name", sampled([*PICTURES, *RECORDED], 2))
def test_screen_looks_as_it_did(name: str, tmp_path: Path) -> None:
    kept = (KEPT / f"{name}.svg").read_text(encoding="utf-8")
    now = picture(name, kept)
    if now != kept:
        (tmp_path / f"{name}.svg").write_text(now, encoding="utf-8")
    assert now == kept, f"{name} looks otherwise: compare {tmp_path}/{name}.svg with the one that is kept"


def test_picture_that_differs_in_one_letter_is_noticed() -> None:
    kept = (KEPT / "overview-80x24.svg").read_text(encoding="utf-8")
    assert picture("overview-80x24").replace("no&#160;answer&#160;3.2", "no&#160;answer&#160;0.0") != kept
    assert "no&#160;answer&#160;3.2" in kept


if __name__ == "__main__":
    KEPT.mkdir(exist_ok=True)
    for each in (*PICTURES, *RECORDED):
        (KEPT / f"{each}.svg").write_text(picture(each), encoding="utf-8")
