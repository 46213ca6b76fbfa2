"""What the screens cost on the index of an audit, the tree gone: first paint, memory, keys of the replay.

    python -m tests.bench.bench_tui_record [--short]

Each size is opened in a process of its own. Ends with 1 where it takes more than 150 MB, or more than a second of
processor time from its start to the first paint with the record in it. Of a key is told what the screen's own thread
takes, and in brackets what all threads take until everything is drawn.
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

from tests.bench.corpus.build import build

SIZES = (10_000, 100_000, 1_000_000)
PAINT_MS_MAX, MEMORY_MB_MAX = 1_000.0, 150.0
WIDTH, HEIGHT = 120, 36
ROUNDS = 12
WAIT_SECONDS = 60
KEYS = {
    "nothing bound": "f12",
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


def measure(index: Path) -> dict[str, object]:
    """Open the screens on an index, go through the record, and say what it took."""
    from tests.support.machine import HandMachine
    from tui.app import TopApp
    from tui.feed import Feed
    from tui.record import RecordSource
    from tui.screens.replay import ReplayScreen

    found: dict[str, object] = {}

    async def run() -> None:
        machine = HandMachine()
        source = RecordSource(None, machine, index)
        app = TopApp(Feed(source, machine))
        async with app.run_test(size=(WIDTH, HEIGHT)) as pilot:
            while app.state is None or not app.state.cluster_id:
                await pilot.pause(0.005)
            await pilot.pause()
            app.screen._compositor.render_strips()
            found["paint_ms"] = 1e3 * time.process_time()
            await pilot.press("6")

            async def drawn() -> None:
                end = time.monotonic() + WAIT_SECONDS
                while time.monotonic() < end:
                    screen = app.screen
                    if isinstance(screen, ReplayScreen) and screen.idle:
                        return
                    await pilot.pause(0.005)
                raise TimeoutError

            await drawn()
            record = source.record
            assert record is not None
            found["events"] = len(record.timeline.events)
            costs: dict[str, list[float]] = {name: [] for name in KEYS}
            whole: dict[str, list[float]] = {name: [] for name in KEYS}
            span = record.timeline.end_ns - record.timeline.start_ns
            screen = app.screen
            assert isinstance(screen, ReplayScreen)
            for number in range(ROUNDS):
                screen.begin_at(record.timeline.start_ns + span * (number * 7 % ROUNDS) // ROUNDS, None)
                await drawn()
                for name, key in KEYS.items():
                    await pilot.pause(0.05)
                    before, own = time.process_time(), time.thread_time()
                    await pilot.press(key)
                    costs[name].append(1e3 * (time.thread_time() - own))
                    await drawn()
                    whole[name].append(1e3 * (time.process_time() - before))
            found["keys_ms"] = {name: statistics.median(each) for name, each in costs.items()}
            found["drawn_ms"] = {name: statistics.median(each) for name, each in whole.items()}
            for key in "1234512":
                await pilot.press(key)
                await pilot.pause(0.2)
            found["memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    asyncio.run(run())
    return found


def prepared(place: Path, messages: int) -> Path:
    """Make a tree, audit it into a file, and remove it."""
    tree, index = place / "tree", place / f"{messages}.db"
    build(tree, messages)
    subprocess.run(
        [sys.executable, "-m", "leasehold", "audit", str(tree), "--db", str(index)],
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


def over(messages: int, found: dict[str, object]) -> list[str]:
    """Return which bars are not kept."""
    bars = [("first paint, ms", found["paint_ms"], PAINT_MS_MAX), ("memory, MB", found["memory_mb"], MEMORY_MB_MAX)]
    return [f"{messages:,} messages: {what} {value:.1f}, at most {bar:.0f}" for what, value, bar in bars if value > bar]  # type: ignore[operator]


def report(sizes: tuple[int, ...]) -> int:
    found: dict[int, dict[str, object]] = {}
    with tempfile.TemporaryDirectory(prefix="leasehold-bench-") as directory:
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
    broken = [line for size, each in found.items() for line in over(size, each)]
    for line in broken:
        print(f"over: {line}", file=sys.stderr)
    return 1 if broken else 0


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
