"""A process that has one lease and looks at every turn of its own clock whether it has it still: ``python holder.py``.

It says a line of JSON for each thing that happens: ``held`` with the fence, ``expiry`` with each later expiry, ``lost``
with the reason, and ``kept``, when its input has ended, with how often it looked. What it says of its lease is its own
clock's word, ``Lease.surely_held``, between two looks as at them: a lease that was lost never comes back.
"""

from __future__ import annotations

import json
import sys
from threading import Event, Thread

from appliance.cluster import Cluster
from timeagent.clock import SystemClock
from timeagent.errors import TenureError
from timeagent.units import MS

LOOK_NS = 20 * MS
MESSAGE_EVERY = 50
"""After so many looks a message is written."""


def say(**words: object) -> None:
    print(json.dumps(words), flush=True)


def main(root: str, node_dir: str, domain: str) -> None:
    over = Event()

    def read() -> None:
        sys.stdin.read()
        over.set()

    Thread(target=read, daemon=True).start()
    clock, looks = SystemClock(), 0
    with Cluster.open(root, node_dir=node_dir, allow_root=True) as cluster, cluster.session("holder") as session:
        (lease,) = leases = session.acquire(domain, timeout_s=120)
        say(held=lease.fence)
        expiry = 0
        while not over.is_set():
            if not lease.surely_held():
                say(lost=str(lease.loss or "its own clock says so"))
                return
            looks += 1
            if lease.expiry_ns > expiry:
                expiry = lease.expiry_ns
                say(expiry=expiry)
            if looks % MESSAGE_EVERY == 0:
                try:
                    session.publish("log", [f"{domain} {looks}".encode()], under=leases)
                except TenureError as problem:
                    say(lost=f"{problem.code}: {problem.message}")
                    return
            clock.sleep(LOOK_NS)
        say(kept=looks)


if __name__ == "__main__":
    main(*sys.argv[1:])
