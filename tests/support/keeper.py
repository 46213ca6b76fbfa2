"""A process that keeps one lease of every shard for as long as it lives, and writes under them all the time.

Run as a script: ``keeper.py ROOT NODE-DIR NAME``. Says ``ready``, then a line for each thing that happens:
``committed``, ``key ID`` and ``policy NUMBER`` when it has taken them up, and whatever should not be: ``lost WHY``,
``doubt WHY``, ``refused WHY``, ``untimed WHY``. When its input ends it says for how many messages it has held its
leases, and gives them back.
"""

from __future__ import annotations

import select
import sys
from itertools import count
from pathlib import Path

from appliance.bag.writing import Committed
from appliance.cluster import Cluster
from timeagent.errors import BadTime, LeaseLost, TenureError
from timeagent.units import MS

LOG = "kept"
PAUSE_NS = 30 * MS


def say(word: str) -> None:
    print(word, flush=True)


def one_of_each_shard(cluster: Cluster, name: str) -> list[str]:
    """Return a domain of each shard that nobody else wants."""
    found: dict[int, str] = {}
    for number in count():
        domain = f"{name}/{number}"
        found.setdefault(cluster.map.shard_of(domain), domain)
        if len(found) == len(cluster.map.owners):
            return list(found.values())
    raise AssertionError


def main(root: Path, node_dir: Path, name: str) -> None:
    known: dict[str, str] = {}
    with (
        Cluster.open(root, node_dir=node_dir, allow_root=True) as cluster,
        cluster.session(name) as session,
        session.acquire(*one_of_each_shard(cluster, name)) as leases,
    ):
        session.on_lost(lambda loss: say(f"lost {loss}"))
        say("ready")
        for number in count():
            if select.select([sys.stdin], [], [], 0)[0]:
                say(f"held {number}")
                return
            try:
                for what, value in (
                    ("key", cluster.time.token().key_id.hex()),
                    ("policy", str(cluster.policy.newest.number)),
                ):
                    if known.setdefault(what, value) != value:
                        known[what] = value
                        say(f"{what} {value}")
                for lease in leases:
                    lease.check()
                outcome = session.publish(LOG, [b"%d" % number], under=leases)
            except LeaseLost as problem:
                say(f"lost {problem}")
                raise
            except BadTime as problem:
                say(f"untimed {problem.code}: {problem}")
            except TenureError as problem:
                say(f"refused {problem.code}: {problem}")
            else:
                say("committed" if isinstance(outcome, Committed) else f"doubt {outcome}")
            cluster.time.sleep(PAUSE_NS)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
