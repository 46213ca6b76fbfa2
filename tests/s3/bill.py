"""What an idle cluster asks of its object store, counted by a store, and a month's bill of it.

    python -m tests.s3.bill [SECONDS [BEFORE]]     three nodes, one log with a message in it, the default policy

It is counted for SECONDS, and BEFORE, 20 when left out, are let pass after the message: its bag is closed then, and
its rack is sealed and packed after the rack's span.

Prices are a large provider's list prices of a thousand requests, in its currency: puts and lists 0.005, gets and heads
0.0004, deletes nothing. What is stored and what leaves the provider's network comes on top.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from unittest.mock import patch

from appliance.demo import machines as demo
from appliance.formats.policy import Policy
from tenure import Cluster
from tests.s3.servers import PLACE, moto
from timeagent.clock import SystemClock
from timeagent.units import MS

PRICES = {"PUT": 5e-6, "LIST": 5e-6, "GET": 4e-7, "HEAD": 4e-7, "DELETE": 0.0}
MONTH_S = 30 * 86_400
NODES = 3
ROOT = "s3://bags/idle"
SETTLES_S = 20
_LINE = re.compile(r'"\S*?(GET|PUT|HEAD|DELETE) /bags(\?\S*|/\S*)')
_KINDS = ("logs", "policy", "trust", "map", "shards", "ledger", "tmp")


def counted(log: Path, offset: int) -> Counter[tuple[str, str]]:
    """Return the requests in a server's log from an offset on: by kind, and by what they are about."""
    found: Counter[tuple[str, str]] = Counter()
    with log.open(encoding="utf-8", errors="replace") as lines:
        lines.seek(offset)
        for line in lines:
            request = _LINE.search(line)
            if request is not None:
                kind, rest = request[1], request[2].replace("%2F", "/")
                about = next((name for name in _KINDS if f"/{name}/" in rest), "marker")
                found["LIST" if rest.startswith("?") else kind, about] += 1
    return found


def idle(seconds: float, before: float) -> None:
    """Run a cluster, let so long pass, and print what it asked for in the seconds after that."""
    with moto() as store, tempfile.TemporaryDirectory() as directory:
        os.environ.update(store.environment)
        chance = random.Random(os.getpid())
        with patch.object(demo, "demo_policy", lambda own: Policy(number=1, cluster_id=own, assumed_radius_ns=5 * MS)):
            founded = demo.set_up_place(Path(directory), NODES, SystemClock().realtime_ns(), chance, ROOT)
        words = [
            sys.executable,
            "-m",
            "tenure",
            "node",
            "run",
            "--allow-root",
            "--root",
            ROOT,
            "--node-dir",
        ]
        daemons = [subprocess.Popen([*words, str(each.directory)]) for each in founded.machines]
        try:
            time.sleep(SETTLES_S)
            node = founded.machines[0].directory
            with (
                Cluster.open(ROOT, node_dir=node, allow_root=True) as cluster,
                cluster.session() as session,
                session.acquire("a", record_only=True) as leases,
            ):
                session.publish("ledger", [b"1"], under=leases)
            time.sleep(before)
            log = PLACE / "moto" / "server.log"
            offset = log.stat().st_size
            time.sleep(seconds)
            found = counted(log, offset)
        finally:
            for daemon in daemons:
                daemon.send_signal(signal.SIGINT)
            for daemon in daemons:
                daemon.wait()
            founded.forget()
    bill = 0.0
    for (kind, about), count in sorted(found.items()):
        month = count / seconds * MONTH_S * PRICES[kind]
        bill += month
        print(f"{kind:6} {about:8} {count / seconds / NODES:7.3f} a second and node {month:9.2f} a month")
    print(f"a month of {NODES} idle nodes with one log: {bill:.2f}")


if __name__ == "__main__":
    asked = [float(word) for word in sys.argv[1:3]]
    idle(*asked, *(120.0, float(SETTLES_S))[len(asked) :])
