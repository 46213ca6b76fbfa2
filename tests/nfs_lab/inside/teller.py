"""Runs on a node: the demo's bank teller, which here also lives through a mount that is gone, full or forbidden."""

from __future__ import annotations

import argparse
import select
import sys
from pathlib import Path

from appliance.cluster import Cluster
from appliance.demo.teller import Teller, say, told_to_stop
from timeagent.errors import LeaseholdError
from timeagent.units import SECOND

WAIT_NS = 5 * SECOND
PAUSE_S = 1.5
"""Between two customers: emulated machines have better things to do than to be busy."""


def main() -> int:
    """Serve customers until the standard input is closed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", required=True)
    parser.add_argument("--accounts", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    with Cluster.open(options.root) as cluster, cluster.session("bank teller") as session:
        teller = Teller(cluster, session, options.accounts, Path("/dev/null"), options.seed, WAIT_NS)
        say(event="ready", incarnation=session.incarnation.hex())
        while not told_to_stop():
            try:
                teller.serve()
            except LeaseholdError as problem:
                say(event="interrupted", code=problem.code, reason=problem.message)
            except OSError as problem:
                say(event="interrupted", code="os-error", reason=str(problem))
            select.select([sys.stdin], [], [], PAUSE_S)
    say(event="done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
