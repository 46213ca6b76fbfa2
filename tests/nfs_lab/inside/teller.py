"""Runs on a node: the demo's bank teller, which here also lives through a mount that is gone, full or forbidden."""

from __future__ import annotations

import argparse
import select
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.cluster import Cluster
from appliance.demo.bank import Teller, say, told_to_stop
from timeagent.errors import TenureError
from timeagent.units import SECOND

if TYPE_CHECKING:
    from appliance.demo.bank import Books
    from appliance.session.asking import Leases

WAIT_NS = 5 * SECOND
HOLD_S = 0.7
"""How long the leases are held after the books were read: time enough to cut the power of a holder."""

PAUSE_S = 0.5
"""Between two customers: emulated machines have better things to do than to be busy."""


class LabTeller(Teller):
    """Says when it holds leases, and keeps them for a while."""

    def _balances(self, leases: Leases) -> Books:
        books = super()._balances(leases)
        say(event="holding", domains=[lease.domain for lease in leases])
        select.select([], [], [], HOLD_S)
        return books


def main() -> int:
    """Serve customers until the standard input is closed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", required=True)
    parser.add_argument("--accounts", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    with Cluster.open(options.root) as cluster, cluster.session("bank teller") as session:
        teller = LabTeller(cluster, session, options.accounts, Path("/dev/null"), options.seed, WAIT_NS)
        say(event="ready", incarnation=session.incarnation.hex())
        while not told_to_stop():
            try:
                teller.serve()
            except TenureError as problem:
                say(event="interrupted", code=problem.code, reason=problem.message)
            except OSError as problem:
                say(event="interrupted", code="os-error", reason=str(problem))
            select.select([sys.stdin], [], [], PAUSE_S)
    say(event="done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
