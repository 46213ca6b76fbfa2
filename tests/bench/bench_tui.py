"""What ``leasehold top`` costs: first paint, a key press, memory, a live screen. Processor time, ratios to an idle key.

    python -m tests.bench.bench_tui [--short]

Each size runs in a process of its own. A key that does nothing is the floor: what Textual itself takes.
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

KEYS = ("j", "pagedown", "G", "g", "S", "1", "2", "3", "4", "2", "f12")
FLOOR = "f12"
ROUNDS = 8
LIVE_LEASES = 10_000
LIVE_SECONDS = 20
WIDTH, HEIGHT = 120, 36


def measure(leases: int, messages: int) -> dict[str, object]:
    """Open the screens on so many leases and one frame of so many messages, press keys, and say what it took."""
    began = time.process_time()
    from tests.support.screens import HandFeed, RecordedSource, busy_state, lease
    from tui.app import TopApp
    from tui.book import Leases
    from tui.subjects import Details, Line, Subject
    from tui.widgets.detail_table import DetailTable
    from tui.widgets.lease_list import LeaseList
    from tui.words import Cell

    class Messages(Sequence[Line]):
        def __len__(self) -> int:
            return messages

        def __getitem__(self, index: int) -> Line:  # type: ignore[override]
            return Line((Cell(f"message {index}"),))

    class Source(RecordedSource):
        def details(self, subject: Subject, instant: int | None = None) -> Details:
            del instant
            return Details(subject.title, Messages())

    imported = time.process_time()
    rows = Leases(lease(f"account/{n:07d}", n % 10_000_000_000) for n in range(leases))
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
            while not app.screen.query_one(LeaseList).count:
                await pilot.pause(0.02)
            costs: dict[str, list[float]] = {}
            for _ in range(ROUNDS):
                for key in KEYS:
                    await pilot.pause()
                    before = time.process_time()
                    await pilot.press(key)
                    costs.setdefault(key, []).append(1e3 * (time.process_time() - before))
                    if key == "S":
                        await pilot.pause(0.3)  # the thread's part is not the key's
                        await pilot.press("g")  # the cursor went to the end with its lease: `j` has to lead somewhere
            await pilot.press("enter")
            while not app.screen.query_one(DetailTable).count:
                await pilot.pause(0.02)
            for _ in range(ROUNDS):
                for key in ("j", "pagedown", "G", "g"):
                    before = time.process_time()
                    await pilot.press(key)
                    costs.setdefault(f"messages {key}", []).append(1e3 * (time.process_time() - before))
            found["keys_ms"] = {key: statistics.median(each) for key, each in costs.items()}
            found["memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    asyncio.run(run())
    return found


def live(leases: int, seconds: int) -> dict[str, object]:
    """Watch a real shard that has so many leases out, for so long, and say which share of a core it takes."""
    from timeagent.clock import SystemClock
    from tui.app import TopApp
    from tui.feed import Feed
    from tui.live import LiveSource
    from tui.mount import Where

    with tempfile.TemporaryDirectory(prefix="leasehold-bench-") as directory:
        holder = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.bench_tui", "--hold", directory, str(leases)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline().strip() == "held"
            found: dict[str, object] = {}

            async def run() -> None:
                clock = SystemClock()
                app = TopApp(Feed(LiveSource(Where(Path(directory) / "place", allow_root=True), clock), clock))
                async with app.run_test(size=(WIDTH, HEIGHT)) as pilot:
                    while app.state is None or len(app.state.leases) < leases:
                        await pilot.pause(0.1)
                    await pilot.press("2")
                    await pilot.pause(2)
                    cpu, wall = time.process_time(), time.monotonic()
                    await pilot.pause(seconds)
                    found["share"] = (time.process_time() - cpu) / (time.monotonic() - wall)
                    found["leases"] = len(app.state.leases)
                    found["memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

            asyncio.run(run())
            return found
        finally:
            holder.communicate("\n", timeout=60)


def hold(directory: str, leases: int) -> None:
    """Hold leases until a line comes."""
    import random

    from appliance.cluster import Cluster
    from appliance.demo.place import set_up_place
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
            print("held", flush=True)
            sys.stdin.readline()
    finally:
        place.forget()


def child(*words: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.bench_tui", *words], check=True, stdout=subprocess.PIPE, text=True
    )
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def main() -> None:
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
        report(short=options.short)


def report(*, short: bool) -> None:
    sizes = ((1_000, 10_000),) if short else ((1_000, 10_000), (10_000, 100_000), (100_000, 1_000_000))
    found = [child("--measure", *map(str, size)) for size in sizes]
    names = list(found[0]["keys_ms"])  # type: ignore[call-overload]
    print(f"{'leases / messages':24}" + "".join(f"{each['leases']:>9} /{each['messages']:>9}" for each in found))
    print(f"{'import, ms of CPU':24}" + "".join(f"{each['import_ms']:20.0f}" for each in found))
    print(f"{'first paint, ms of CPU':24}" + "".join(f"{each['paint_ms']:20.0f}" for each in found))
    print(f"{'memory, MB':24}" + "".join(f"{each['memory_mb']:20.0f}" for each in found))
    for name in names:
        floor = " (the floor)" if name == FLOOR else ""
        print(f"{'key ' + name + floor:24}" + "".join(f"{each['keys_ms'][name]:20.1f}" for each in found))  # type: ignore[index]
    if not short:
        watched = child("--live", str(LIVE_LEASES), str(LIVE_SECONDS))
        share = watched["share"]
        assert isinstance(share, float)
        print(f"live, {watched['leases']} leases, 4 Hz: {share:.1%} of a core, {watched['memory_mb']:.0f} MB")


if __name__ == "__main__":
    main()
