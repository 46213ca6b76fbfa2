"""What the screens cost on the index of an audit, the tree gone: first paint, memory, keys of the replay.

    python -m tests.bench.bench_tui_record [--short]

Each size is opened in a process of its own. Ends with 1 where a bar of tui_bars.py is missed, or a key led nowhere. Of
a key is told what the screen's own thread takes until everything is drawn, and in brackets what all threads take.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.corpus.build import build
from tests.bench.tui_bars import MEMORY_MB_MAX, PAINT_MS_MAX, WAIT_SECONDS, keys_over, nowhere, over, told, until

if TYPE_CHECKING:
    from textual.pilot import Pilot

    from auditor.timeline.timeline_reader import Timeline
    from tui.screens.replay import ReplayScreen

SIZES = (10_000, 100_000, 1_000_000)
WIDTH, HEIGHT = 120, 36
ROUNDS = 12
DRAWN = 0.05
"""Seconds after which what is known is drawn: three frames."""
IDLE = "nothing bound"
KEYS = {
    IDLE: "f12",
    "event on": ".",
    "event back": ",",
    "bag on": ">",
    "bag back": "<",
    "a little on": "right",
    "a little back": "left",
    "events: a page up": "pageup",
    "events: first": "g",
    "events: last": "G",
}


class Costs:
    """What keys took that changed the place in the record: the screen's thread alone, and all threads."""

    def __init__(self) -> None:
        self._own: dict[str, list[float]] = {name: [] for name in KEYS}
        self._all: dict[str, list[float]] = {name: [] for name in KEYS}

    async def take(self, pilot: Pilot[None], screen: ReplayScreen, name: str, key: str) -> None:
        """Press a key, and wait until everything that it brings is drawn."""
        place, before, own = screen.place, time.process_time(), time.thread_time()
        await pilot.press(key)
        for _ in range(WAIT_SECONDS * 100):
            if screen.idle:
                break
            await asyncio.sleep(0.01)  # costs less than to ask whether everything stands still
        await asyncio.sleep(DRAWN)
        spent, all_spent = time.thread_time() - own, time.process_time() - before
        if name == IDLE or screen.place != place:
            self._own[name].append(1e3 * spent)
            self._all[name].append(1e3 * all_spent)

    def told(self) -> dict[str, object]:
        """Return medians, and how often each key led somewhere."""
        return {
            "moved": {name: (len(each), ROUNDS) for name, each in self._own.items()},
            "keys_ms": {name: statistics.median(each or [0.0]) for name, each in self._own.items()},
            "drawn_ms": {name: statistics.median(each or [0.0]) for name, each in self._all.items()},
        }


def measure(index: Path) -> dict[str, object]:
    """Open the screens on an index, go through the record, and say what it took."""
    from tests.support.machine import HandMachine
    from tui.app import TopApp
    from tui.feed import Feed
    from tui.screens.replay import ReplayScreen
    from tui.sources.record import RecordSource

    found: dict[str, object] = {}

    async def run() -> None:
        machine = HandMachine()
        source = RecordSource(None, machine, index)
        app = TopApp(Feed(source, machine))
        async with app.run_test(size=(WIDTH, HEIGHT)) as pilot:
            await until(pilot, lambda: app.state is not None and bool(app.state.cluster_id), "a state of the copy")
            await pilot.pause()
            app.screen._compositor.render_strips()
            found["paint_ms"] = 1e3 * time.process_time()
            await pilot.press("6")

            async def drawn() -> None:
                await until(
                    pilot, lambda: isinstance(app.screen, ReplayScreen) and app.screen.idle, "the replay to rest"
                )

            await drawn()
            record = source.record
            assert record is not None
            found["events"] = len(record.timeline.events)
            costs = Costs()
            screen = app.screen
            assert isinstance(screen, ReplayScreen)
            for number in range(ROUNDS):
                begins = beginnings(record.timeline, number * 7 % ROUNDS)
                for name, key in KEYS.items():
                    if name in begins:
                        screen.begin_at(begins[name], None)
                        await drawn()
                    await pilot.pause(DRAWN)
                    await costs.take(pilot, screen, name, key)
            found.update(costs.told())
            for key in "1234512":
                await pilot.press(key)
                await pilot.pause(0.2)
            found["memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    asyncio.run(run())
    return found


def beginnings(timeline: Timeline, part: int) -> dict[str, int]:
    """Return from which instant on keys are pressed. ``part``: which of ROUNDS.

    All bags of the corpus are closed at one instant: steps by them lead there.
    """
    start, end = timeline.start_ns, timeline.end_ns
    closing = timeline.closing(start, back=False) or end
    anywhere = start + (end - start) * part // ROUNDS
    return {
        IDLE: anywhere,
        "bag on": start + (closing - start) * part // ROUNDS,
        "bag back": closing + (end - closing) * (part + 1) // (ROUNDS + 1),
        "a little on": anywhere,
    }


def prepared(place: Path, messages: int) -> Path:
    """Make a tree, audit it into a file, and remove it."""
    tree, index = place / "tree", place / f"{messages}.db"
    build(tree, messages)
    subprocess.run(
        [sys.executable, "-m", "tenure", "audit", str(tree), "--db", str(index)],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    shutil.rmtree(tree)
    return index


def child(index: Path) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.bench_tui_record", "--measure", str(index)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def missed(messages: int, found: dict[str, Any]) -> list[str]:
    """Return which bars are not kept, and what was not measured."""
    what = f"{messages:,} messages"
    bars = [("first paint, ms", found["paint_ms"], PAINT_MS_MAX), ("memory, MB", found["memory_mb"], MEMORY_MB_MAX)]
    return over(what, bars) + keys_over(what, found["keys_ms"]) + nowhere(what, found["moved"])


def report(sizes: tuple[int, ...]) -> int:
    found: dict[int, dict[str, object]] = {}
    with tempfile.TemporaryDirectory(prefix="tenure-bench-") as directory:
        for size in sizes:
            index = prepared(Path(directory), size)
            found[size] = child(index)
            index.unlink()
    print(f"{'messages of the record':34}" + "".join(f"{size:>16,}" for size in sizes))
    print(f"{'events':34}" + "".join(f"{each['events']:>16,}" for each in found.values()))
    print(f"{'start to first paint, ms of CPU':34}" + "".join(f"{each['paint_ms']:>16.0f}" for each in found.values()))
    print(f"{'memory, MB':34}" + "".join(f"{each['memory_mb']:>16.0f}" for each in found.values()))
    for name in KEYS:
        cells = [f"{each['keys_ms'][name]:.1f} ({each['drawn_ms'][name]:.0f})" for each in found.values()]  # type: ignore[index]
        print(f"{f'key {name}: handled (drawn)':34}" + "".join(f"{cell:>16}" for cell in cells))
    return told(line for size, each in found.items() for line in missed(size, each))


def main() -> int:
    """Measure all, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--short", action="store_true", help="small sizes only")
    parser.add_argument("--measure", type=Path)
    options, _ = parser.parse_known_args()
    if options.measure is not None:
        print(json.dumps(measure(options.measure)))
        return 0
    return report(SIZES[:2] if options.short else SIZES)


if __name__ == "__main__":
    sys.exit(main())
