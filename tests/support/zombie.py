"""A leader in a process of its own: it checks, says so, waits for a word, and then acts without another check.

python -m tests.support.zombie ROOT NODE_DIR lease|mount GATE
"""

from __future__ import annotations

import sys

from appliance.cluster import Cluster
from appliance.recipes.election import Election
from appliance.recipes.fence_gate import FenceGate
from appliance.recipes.mount_election import MountElection
from timeagent.errors import LeaseLost

NAME = "billing"


def election_of(cluster: Cluster, kind: str, candidate: str, name: str = NAME) -> Election | MountElection:
    if kind == "lease":
        return Election(cluster.session(candidate), name)
    return MountElection.on(cluster, name, candidate)


def main(root: str, node_dir: str, kind: str, gate_file: str) -> None:
    gate = FenceGate(gate_file)
    with Cluster.open(root, node_dir=node_dir, allow_root=True) as cluster:
        leadership = election_of(cluster, kind, "zombie").campaign(timeout_s=60)
        with gate.passing(leadership.epoch):
            print(leadership.epoch, flush=True)
        leadership.check()
        print("checked", flush=True)
        sys.stdin.readline()
        try:
            with gate.passing(leadership.epoch):
                print("acted", flush=True)
        except LeaseLost as problem:
            print(problem.code, flush=True)
        try:
            leadership.check()
        except LeaseLost:
            print("lost", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
