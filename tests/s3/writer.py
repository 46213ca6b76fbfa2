"""An application that writes into one log until it is killed, and says what was acknowledged: ROOT NODE_DIR LOG."""

from __future__ import annotations

import itertools
import sys

from tenure import Cluster, Committed


def write(root: str, node_dir: str, log: str) -> None:
    with Cluster.open(root, node_dir=node_dir, allow_root=True) as cluster, cluster.session("writer") as session:
        for number in itertools.count():
            with session.acquire("account/7", record_only=True) as leases:
                outcome = session.publish(log, [b"%d" % number], under=leases)
            if isinstance(outcome, Committed):
                print(number, flush=True)


if __name__ == "__main__":
    write(*sys.argv[1:])
