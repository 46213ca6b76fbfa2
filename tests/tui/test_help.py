"""The help of each screen says what every mark means that may be drawn on it."""

from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Static

from tests.support.screens import HandFeed
from tests.support.shares import sampled
from tests.tui.piloting import drive, seen
from timeagent.showing import UNICODE
from tui.app import TopScreen
from tui.model import findings, replaying
from tui.model.state import Cell
from tui.model.words import BAG_CELLS, CONDITION_CELLS, DAMAGED


def symbols(*tables: dict[Any, Cell]) -> tuple[str, ...]:
    return tuple(cell.text for table in tables for cell in table.values())


MARKS: dict[str, tuple[str, ...]] = {
    "1": symbols(CONDITION_CELLS, BAG_CELLS),
    "2": symbols(CONDITION_CELLS),
    "3": (*symbols(BAG_CELLS), DAMAGED),
    "4": ("●", "◐", "✗", "·", "…", "├━━┤", UNICODE.beyond_low, UNICODE.beyond_high, UNICODE.shared),
    "5": tuple(mark for mark, _ in (*findings.FINDING_MARKS.values(), *findings.CHECKED.values())),
    "6": (
        *(
            *replaying.BARS.values(),
            replaying.TENTATIVE,
            replaying.OVER,
            replaying.CLASH,
            replaying.FLOOR,
            replaying.SETTLE,
        ),
        *(*replaying.SCRUBBER_MARKS.values(), replaying.CURSOR, replaying.ON_FINDING),
        *(*replaying.BAG_MARKS.values(), DAMAGED, *map(str.strip, replaying.EVENT_MARKS.values())),
    ),
}


@pytest.mark.parametrize("key", MARKS)
@pytest.mark.parametrize("size", sampled([(80, 24), (120, 36)], 2))
def test_each_mark_of_the_screen_is_explained(key: str, size: tuple[int, int]) -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await pilot.press(key, "question_mark")
        text = str(pilot.app.screen.query_one("#symbols", Static).content)
        assert [mark for mark in MARKS[key] if mark not in text] == []
        shown = seen(pilot)
        await pilot.press("end")
        await pilot.pause()
        shown += seen(pilot)
        beneath = next(each for each in reversed(pilot.app.screen_stack) if isinstance(each, TopScreen))
        entries = [entry for _, legend in beneath.LEGENDS for entry in legend.split("  ")]
        assert [entry for entry in entries if entry not in shown] == [], "a symbol stands apart from its meaning"

    drive(course, size=size)


def test_mark_that_is_not_explained_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MARKS, "6", (*MARKS["6"], "♦"))
    with pytest.raises(AssertionError):
        test_each_mark_of_the_screen_is_explained("6", (120, 36))
