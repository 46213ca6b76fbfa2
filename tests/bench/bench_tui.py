"""What ``tenure top`` costs: first paint, a key press, memory, a live screen. Processor time, ratios to an idle key.

    python -m tests.bench.bench_tui [--short]

Each size runs in a process of its own. A key that does nothing is the floor: what Textual itself takes. Ends with 1
where a bar of tui_bars.py is missed, or a key changed nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.bench.tui_bars import MEMORY_MB_MAX, PAINT_MS_MAX, SHARE_MAX, keys_over, nowhere, over, told, until

KEYS = ("j", "pagedown", "G", "g", "S", "1", "2", "3", "4", "2", "f12")
FLOOR = "f12"
ROUNDS = 8
DRAWN = 0.05
"""Seconds after which a key's part is drawn: three frames."""
LIVE_LEASES = 10_000
LIVE_SECONDS = 20
WIDTH, HEIGHT = 120, 36


def measure(leases: int, messages: int) -> dict[str, object]:
    """Open the screens on so many leases and one frame of so many messages, press keys, and say what it took."""
    began = time.process_time()
    from tests.support.screens import HandFeed, RecordedSource, busy_state, lease
    from tui.app import TopApp
    from tui.model.state import Cell, DetailLine, LeaseRows, Subject
    from tui.screens.cluster import LeaseList
    from tui.widgets.row_table import DetailTable

    class Messages(Sequence[DetailLine]):
        def __len__(self) -> int:
            return messages

        def __getitem__(self, index: int) -> DetailLine:  # type: ignore[override]
            return DetailLine((Cell(f"message {index}"),))

    class Source(RecordedSource):
        def details(self, subject: Subject, instant: int | None = None) -> Sequence[DetailLine]:
            del subject, instant
            return Messages()

    imported = time.process_time()
    rows = LeaseRows(lease(f"account/{n:07d}", n % 10_000_000_000) for n in range(leases))
    source = Source(replace(busy_state(), leases=rows))
    made = time.process_time()
    found: dict[str, object] = {"leases": leases, "messages": messages, "import_ms": 1e3 * (imported - began)}

    async def run() -> None:
        app = TopApp(HandFeed(source))
        async with app.run_test(size=(WIDTH, HEIGHT)) as pilot:
            await pilot.pause()
            app.screen._compositor.render_strips()
            found["paint_ms"] = 1e3 * (time.process_time() - made)
            await pilot.press("2")
            await until(pilot, lambda: app.screen.query_one(LeaseList).count > 0, "a lease")
            costs: dict[str, list[float]] = {}
            moved: dict[str, tuple[int, int]] = {}

            def seen() -> list[str]:
                return ["".join(part.text for part in line) for line in app.screen._compositor.render_strips()]

            async def measured(name: str, key: str) -> None:
                await pilot.pause()
                shown, before = seen(), time.process_time()
                await pilot.press(key)
                await pilot.pause(DRAWN)
                costs.setdefault(name, []).append(1e3 * (time.process_time() - before))
                changed, pressed = moved.get(name, (0, 0))
                moved[name] = changed + (seen() != shown or key == FLOOR), pressed + 1

            for _ in range(ROUNDS):
                for key in KEYS:
                    await measured(key, key)
                    if key == "S":
                        await pilot.press("g")  # the cursor went to the end with its lease: `j` has to lead somewhere
            await pilot.press("enter")
            await until(pilot, lambda: app.screen.query_one(DetailTable).count > 0, "a message")
            for _ in range(ROUNDS):
                for key in ("j", "pagedown", "G", "g"):
                    await measured(f"messages {key}", key)
            found["moved"] = moved
            found["keys_ms"] = {key: statistics.median(each) for key, each in costs.items()}
            found["memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    asyncio.run(run())
    return found


def live(leases: int, seconds: int) -> dict[str, object]:
    """Watch a real shard that has so many leases out, for so long, and say which share of a core it takes."""
    from timeagent.clock import SystemClock
    from tui.app import TopApp
    from tui.feed import Feed
    from tui.sources.live import LiveSource
    from tui.sources.mount import MountLocation

    with tempfile.TemporaryDirectory(prefix="tenure-bench-") as directory:
        holder = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.bench_tui", "--hold", directory, str(leases)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert holder.stdout is not None
            root = Path(holder.stdout.readline().strip())
            found: dict[str, object] = {}

            async def run() -> None:
                clock = SystemClock()
                app = TopApp(Feed(LiveSource(MountLocation(root, allow_root=True), clock), clock))
                async with app.run_test(size=(WIDTH, HEIGHT)) as pilot:
                    await until(pilot, lambda: len(app.state.leases if app.state else ()) >= leases, "all leases")
                    await pilot.press("2")
                    await pilot.pause(2)
                    cpu, wall = time.process_time(), time.monotonic()
                    await pilot.pause(seconds)
                    found["share"] = (time.process_time() - cpu) / (time.monotonic() - wall)
                    found["leases"] = len(app.state.leases) if app.state else 0
                    found["memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

            asyncio.run(run())
            return found
        finally:
            holder.communicate("\n", timeout=60)


def hold(directory: str, leases: int) -> None:
    """Hold leases until a line comes; say the cluster's root once they are held."""
    import random

    from appliance.cluster import Cluster
    from appliance.demo.machines import set_up_place
    from timeagent.clock import SystemClock

    place = set_up_place(Path(directory) / "place", 1, SystemClock().realtime_ns(), random.Random(1))
    try:
        with (
            Cluster.open(place.root, node_dir=place.machines[0].directory, allow_root=True) as cluster,
            cluster.session("bench", session_leases=True) as session,
        ):
            step = 100
            for first in range(0, leases, step):
                session.acquire(*(f"account/{n:05d}" for n in range(first, min(leases, first + step))))
            print(place.root, flush=True)
            sys.stdin.readline()
    finally:
        place.forget()


def child(*words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.bench_tui", *words], check=True, stdout=subprocess.PIPE, text=True
    )
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def main() -> int:
    """Measure all, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--short", action="store_true", help="small sizes only, and no live cluster")
    parser.add_argument("--measure", nargs=2, type=int)
    parser.add_argument("--live", nargs=2, type=int)
    parser.add_argument("--hold", nargs=2)
    options = parser.parse_args()
    if options.hold:
        hold(options.hold[0], int(options.hold[1]))
    elif options.measure:
        print(json.dumps(measure(*options.measure)))
    elif options.live:
        print(json.dumps(live(*options.live)))
    else:
        return report(short=options.short)
    return 0


def report(*, short: bool) -> int:
    """Print what was found; return 1 where a bar is missed."""
    sizes = ((1_000, 10_000),) if short else ((1_000, 10_000), (10_000, 100_000), (100_000, 1_000_000))
    found = [child("--measure", *map(str, size)) for size in sizes]
    names = list(found[0]["keys_ms"])
    print(f"{'leases / messages':24}" + "".join(f"{each['leases']:>9} /{each['messages']:>9}" for each in found))
    print(f"{'import, ms of CPU':24}" + "".join(f"{each['import_ms']:20.0f}" for each in found))
    print(f"{'first paint, ms of CPU':24}" + "".join(f"{each['paint_ms']:20.0f}" for each in found))
    print(f"{'memory, MB':24}" + "".join(f"{each['memory_mb']:20.0f}" for each in found))
    for name in names:
        floor = " (the floor)" if name == FLOOR else ""
        print(f"{'key ' + name + floor:24}" + "".join(f"{each['keys_ms'][name]:20.1f}" for each in found))
    broken = [line for each in found for line in missed(each)]
    if not short:
        watched = child("--live", str(LIVE_LEASES), str(LIVE_SECONDS))
        share, memory = watched["share"], watched["memory_mb"]
        print(f"live, {watched['leases']} leases, 4 Hz: {share:.1%} of a core, {memory:.0f} MB")
        broken += missed_live(watched)
    return told(broken)


def missed(found: dict[str, Any]) -> list[str]:
    """Return which bars of keys and first paint are not kept, and which keys were not measured."""
    what = f"{found['leases']:,} leases"
    paint = over(what, [("first paint, ms", found["import_ms"] + found["paint_ms"], PAINT_MS_MAX)])
    return paint + keys_over(what, found["keys_ms"]) + nowhere(what, found["moved"])


def missed_live(found: dict[str, Any]) -> list[str]:
    """Return which bars of a live screen are not kept."""
    values = [("share of a core", found["share"], SHARE_MAX), ("memory, MB", found["memory_mb"], MEMORY_MB_MAX)]
    return over(f"live, {found['leases']:,} leases", values)


if __name__ == "__main__":
    sys.exit(main())
