"""What a shard is asked by 64 processes of one node that take a domain in turn: a lease each, or sub-leases of one.

Eight of them are there at once: an interpreter with all that a lease of its own needs takes a second to start.

Run it as a script: ``python tests/bench/bench_cooperative.py [--processes N] [--json]``. Every request that the shard
gets is counted, renewals and questions for recalls too; both ways are taken in one run, one after the other, with so
many processes, each of which has the domain for as long. Exit code 1 where one lease comes to more than a tenth.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from appliance.daemon.daemon import Node  # noqa: E402 - a script finds the repository first
from tests.support.cluster import Site  # noqa: E402
from tests.support.run_stage import slow_policy  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from appliance.cluster import Cluster
    from appliance.lease.recall import Waiter
    from appliance.lease.wire import Encoded, Reply, Task

PROCESSES = 64
AT_ONCE = 8
HOLD_S = 0.05
LEAST = 10


def counted(cluster: Cluster) -> Counter[str]:
    """Count from now on, by kind, what the shard of a cluster is asked, by whomever."""
    hosted = cluster.routes.host.hosted(0)
    assert hosted is not None
    asked: Counter[str] = Counter()
    shard = hosted.server._shard
    encoded = shard.encoded

    def count(requests: Sequence[Task], waiters: Mapping[int, Waiter]) -> Sequence[Reply | Encoded | None]:
        asked.update(type(each).__name__ for each in requests)
        return encoded(requests, waiters)

    shard.encoded = count  # type: ignore[method-assign, assignment]
    return asked


def took(site: Site, processes: int, *words: str) -> float:
    """Have so many processes run a command in turn; return how long that took, in seconds."""
    command = [sys.executable, "-m", "tenure", "run", *site.options(), "--lease", "bench", "--wait", "10m", *words]
    begun = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        codes = set(pool.map(lambda _: subprocess.call([*command, "--", "sleep", str(HOLD_S)]), range(processes)))
    assert codes == {0}, codes
    return time.monotonic() - begun


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        site = Site(Path(place), policy=slow_policy(Path(place)))
        try:
            with site.open() as cluster:
                node = Node(cluster)
                node.start()
                try:
                    asked = counted(cluster)
                    together_s = took(site, options.processes, "--quick")
                    together = Counter(asked)
                    asked.clear()
                    apart_s = took(site, options.processes)
                    apart = Counter(asked)
                finally:
                    node.stop()
            node.close()
        finally:
            site.close()
    times = sum(apart.values()) / sum(together.values())
    if options.json:
        print(json.dumps({"processes": options.processes, "apart": apart, "together": together, "times_fewer": times}))
    else:
        print(f"a lease each: {sum(apart.values())} requests {dict(apart)}, {apart_s:.1f} s")
        print(f"of one lease: {sum(together.values())} requests {dict(together)}, {together_s:.1f} s")
        print(f"{times:.1f} times fewer; at least {LEAST} is to be")
    return 1 if times < LEAST else 0


if __name__ == "__main__":
    sys.exit(main())
