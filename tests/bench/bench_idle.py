"""What idle logs cost: what the daemons of a cluster ask of the mount, by how many logs and nodes there are.

    python tests/bench/bench_idle.py [--json]     SHORT=1: without the largest rows, and before racks are packed

Two parts. First the daemons' pace over a directory on tmpfs, every verb counted, at a clock that is moved beat by beat:
from the middle of a rack to the middle of the one after the next, after every node has taken up every log. Nobody
writes, and nobody asks. What 30 nodes ask for 3 000 logs is computed from what they ask for 300. A row of logs that are
a day old shows what their old racks cost, which are looked at again.

Then a whole daemon in a process of its own, with its shard, doors and watchers, at the machine's own clock, over 300
logs whose racks last a minute, so that within one all comes by that an idle log ever asks for: ten times as often as
with racks of ten minutes. Shown are directories opened a second, and the share of a core that the process takes.
Exits 1 above what is promised for 300 logs with racks of ten minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from threading import Event, Timer
from typing import Any, Final

import msgspec

ROOT: Final = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from appliance.bag.posix import PosixStorage  # noqa: E402 - a script finds the repository first
from appliance.daemon.daemon import Node  # noqa: E402
from tests.support.cluster import Site  # noqa: E402
from tests.support.paced import DAILY, CountingStorage, PacedWorld  # noqa: E402
from tests.support.run_stage import slow_policy  # noqa: E402
from timeagent.units import DAY, MINUTE, SECOND, Span  # noqa: E402

SHORT: Final = bool(os.environ.get("SHORT"))
RACKS: Final = 2
SIZES: Final = [(logs, nodes) for logs in (0, 10, 300, 3_000) for nodes in (1, 3, 30)]
COMPUTED: Final = (3_000, 30)
OPENS_MAX: Final = 0.2
"""Directories opened a second for each log and node, at 300 logs."""
CORE_MAX: Final = 0.01
"""Of a core, at 300 logs."""
REAL_LOGS: Final = 300
REAL_RACK_NS: Final = MINUTE
WARMING_S: Final = 5 if SHORT else 270
"""Until racks are packed: two to four minutes after their end."""
REAL_S: Final = 60


def counted(logs: int, nodes: int, age_ns: Span = 0) -> dict[str, Any]:
    """Return what all nodes together ask of the mount in a second, for logs that are so old."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        world = PacedWorld(PosixStorage(Path(place)), nodes, logs, events=False)
        world.run(age_ns)
        for node in world.nodes:
            node.mount.forget()
        world.run(RACKS * DAILY.rack_ns)
        seconds = RACKS * DAILY.rack_ns / SECOND
        opens = sum(node.mount.opens for node in world.nodes) / seconds
        calls = sum(sum(node.mount.calls.values()) for node in world.nodes) / seconds
        listings = sum(node.mount.listings for node in world.nodes) / seconds
    return row(logs, nodes, opens, calls, listings)


def row(logs: int, nodes: int, opens: float, calls: float, listings: float) -> dict[str, Any]:
    each = opens / logs / nodes if logs else 0.0
    return {
        "logs": logs,
        "nodes": nodes,
        "opens_s": round(opens, 3),
        "calls_s": round(calls, 3),
        "listings_s": round(listings, 3),
        "opens_s_each": round(each, 4),
    }


def table() -> list[dict[str, Any]]:
    """Return the rows, the computed one last."""
    rows = [counted(*size) for size in SIZES if size != COMPUTED and not (SHORT and size[0] * size[1] > REAL_LOGS)]
    like = next((each for each in rows if (each["logs"], each["nodes"]) == (COMPUTED[0] // 10, COMPUTED[1])), None)
    if like is not None:
        tenfold = row(*COMPUTED, 10 * like["opens_s"], 10 * like["calls_s"], like["listings_s"])
        rows.append(tenfold | {"computed": True})
    return [*rows, counted(10, 1, DAY) | {"age": "1 day"}]


def daemon(path: Path, logs: int) -> dict[str, Any]:
    """Run a daemon over so many logs in this process; return what it asked of the mount, and took of a core."""
    site = Site(path, policy=msgspec.structs.replace(slow_policy(path), rack_ns=REAL_RACK_NS))
    try:
        with site.open() as cluster:
            for number in range(logs):
                cluster.create_log(f"idle{number}")
        mount = CountingStorage(PosixStorage(site.root))
        stop, seen = Event(), dict[str, float]()
        with site.open(storage=mount) as cluster:
            node = Node(cluster)
            node.start()

            def begin() -> None:
                mount.forget()
                seen["cpu"], seen["at"] = time.process_time(), time.monotonic()

            def end() -> None:
                seen["cpu"], seen["at"] = time.process_time() - seen["cpu"], time.monotonic() - seen["at"]
                seen["opens"], seen["calls"], seen["listings"] = mount.opens, mount.calls.total(), mount.listings
                stop.set()

            for after_s, do in ((WARMING_S, begin), (WARMING_S + REAL_S, end)):
                Timer(after_s, do).start()
            node.run(stop)
            node.stop()
        node.close()
        span = seen["at"]
        numbers = row(logs, 1, seen["opens"] / span, seen["calls"] / span, seen["listings"] / span)
        return numbers | {"core": round(seen["cpu"] / span, 4)}
    finally:
        site.close()


def real(logs: int) -> dict[str, Any]:
    """Run a daemon in a process of its own."""
    words = [sys.executable, __file__, "--daemon", str(logs)]
    return json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)  # type: ignore[no-any-return]


def main() -> int:
    """Measure, show, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--daemon", type=int, metavar="LOGS", help="only run a daemon over so many logs, in here")
    options = parser.parse_args()
    if options.daemon is not None:
        with tempfile.TemporaryDirectory() as place:
            print(json.dumps(daemon(Path(place), options.daemon)))
        return 0
    rows, none, daemons = table(), real(0), real(REAL_LOGS)
    if options.json:
        print(json.dumps({"paced": rows, "daemon_without_logs": none, "daemon": daemons}))
    else:
        for each in rows:
            print(each)
        print("a whole daemon without logs:", none)
        print("a whole daemon:", daemons)
    each_max = max(each["opens_s_each"] for each in rows)
    slower = REAL_RACK_NS / DAILY.rack_ns
    real_each = slower * (daemons["opens_s"] - none["opens_s"]) / REAL_LOGS
    core = slower * (daemons["core"] - none["core"])
    good = max(each_max, real_each) <= OPENS_MAX and core <= CORE_MAX
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
