"""The incident of docs/operators.md is found and explained by exactly the keys that stand there, five at most."""

import asyncio
import re
from pathlib import Path

import pytest
from textual.pilot import Pilot

import tui.screens.findings
from tests.support.mutants import plant
from tests.support.shares import sampled
from timeagent.clock import SystemClock
from tui.app import TopApp
from tui.feed import Feed
from tui.sources.record import RecordSource

ROUNDS_MAX = 3_000
SEEN = (
    ("[1 Overview]", "✗ NOT HEALTHY", "1 violation"),
    ("[5 Findings]", "early-grant", "✗ the lease before was over: granted by"),
    ("Explanation of", "x: the evidence again"),
    ("every check with its value and its limit",),
    ("[6 Replay]", "REPLAY", "finding 1/1", "╬"),
)
"""What each step of the document promises, as it stands on the screen."""


def steps(repository: Path) -> list[tuple[str, list[str]]]:
    """The key of each step, none at first, and the words that the document quotes from the screen."""
    text = (repository / "docs/operators.md").read_text(encoding="utf-8")
    section = text.split("## An incident")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ", 1) for line in section.splitlines() if line.startswith("| ")][1:]
    found = []
    for key, words in rows:
        quoted = [re.split(r"\d\d:", each)[0].strip() for each in re.findall(r"`([^`]+)`", words)]
        found.append((key.strip("`") if key != "nothing" else "", quoted))
    return found


def lines(pilot: Pilot[None]) -> str:
    return "\n".join(strip.text for strip in pilot.app.screen._compositor.render_strips())


async def until(pilot: Pilot[None], words: tuple[str, ...]) -> None:
    for _ in range(ROUNDS_MAX):
        if all(word in lines(pilot) for word in words):
            return
        await pilot.pause(0.02)
    raise AssertionError(f"{words} were not seen in:\n{lines(pilot)}")


@pytest.mark.parametrize("size", sampled([(80, 24), (120, 36), (200, 60)], 3))
def test_incident_is_found_and_explained_by_the_keys_of_the_document(repository: Path, size: tuple[int, int]) -> None:
    played = steps(repository)
    assert len(played) == len(SEEN)
    assert 1 <= sum(bool(key) for key, _ in played) <= 5

    async def run() -> None:
        source = RecordSource(repository / "tests/golden/trees/early-grant/tree", SystemClock())
        app = TopApp(Feed(source, SystemClock()))
        async with app.run_test(size=size) as pilot:
            for (key, quoted), expected in zip(played, SEEN, strict=True):
                if key:
                    await pilot.press(key)
                await until(pilot, (*expected, *quoted))

    asyncio.run(run())


@pytest.mark.verify
def test_cursor_that_does_not_stand_on_what_fails_is_caught(monkeypatch: pytest.MonkeyPatch, repository: Path) -> None:
    monkeypatch.setitem(globals(), "ROUNDS_MAX", 400)
    plant(
        monkeypatch,
        tui.screens.findings,
        "ChainTable._lead_up",
        "self.scroll_to(y=max(0, self.cursor - lead), animate=False, immediate=True, force=True)",
        "self.cursor = 0",
    )
    with pytest.raises(AssertionError, match="the lease before was over"):
        test_incident_is_found_and_explained_by_the_keys_of_the_document(repository, (80, 24))
