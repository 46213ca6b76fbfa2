"""A teller: one application process of the demo. Moves money between accounts until it is told to stop, or killed.

``python -m appliance.demo.teller`` is started by the director, once per node. What it does it says on stdout, one JSON
object a line; every transfer that was acknowledged also goes into its journal, a local file that outlives it.
"""

from __future__ import annotations

import argparse
import random
import select
import signal
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from appliance.bag.writing import Committed, Unknown
from appliance.cluster import Cluster
from appliance.demo.bank import LOG, Books, Transfer, account, encode
from appliance.formats.lease import LeaseOutcome
from appliance.session.asking import Leases
from appliance.session.session import Session
from timeagent.errors import LeaseLost, TryAgain
from timeagent.units import MS, SECOND, Instant, Span

AMOUNT_MAX: Final = 40
WAIT_NS: Final = SECOND
"""How long a teller waits for a pair of accounts before it serves another customer."""


class Teller:
    def __init__(
        self, cluster: Cluster, session: Session, accounts: int, journal: Path, seed: int, wait_ns: Span = WAIT_NS
    ) -> None:
        """Read nothing yet. ``wait_ns``: how long for a pair of accounts before another customer is served."""
        self._cluster = cluster
        self._session = session
        self._accounts = accounts
        self._wait_ns = wait_ns
        self._journal = journal.open("ab", buffering=0)
        self._random = random.Random(seed)  # noqa: S311 - which customer comes next
        self._books = Books()
        self._cursor: Instant = 0
        self._served = 0

    def serve(self) -> None:
        """Serve one customer: two accounts, their leases, their balances, one transfer."""
        source, target = self._random.sample(range(self._accounts), 2)
        started = self._cluster.time.boot_ns()
        try:
            leases = self._session.acquire(
                account(source), account(target), timeout_s=self._wait_ns / SECOND, record_only=True
            )
        except TryAgain:
            return
        with leases:
            books = self._balances(leases)
            has = books.balances.get(account(source), 0)
            amount = min(has, self._random.randint(1, AMOUNT_MAX))
            if amount <= 0:
                return
            self._served += 1
            transfer = Transfer(
                id=f"{self._cluster.settings.node}-{self._session.incarnation.hex()[:6]}-{self._served}",
                source=account(source),
                target=account(target),
                amount=amount,
            )
            outcome = self._session.publish(LOG, [encode(transfer)], under=leases)
            if isinstance(outcome, Unknown):
                outcome = self._session.resolve(LOG, leases)
        waited = self._cluster.time.boot_ns() - started
        if isinstance(outcome, Committed):
            self._acknowledge(transfer, leases, waited)
        else:
            say(event="not-acknowledged", id=transfer.id, outcome=type(outcome).__name__, reason=outcome.reason)

    def _balances(self, leases: Leases) -> Books:
        """Return the books as of now. What is final is folded in once; the rest is read again each time."""
        horizon = self._session.horizon(LOG)
        if horizon - 1 > self._cursor:
            final = self._session.read(LOG, under=leases, after_ns=self._cursor, level="settled")
            until = horizon - 1
            self._books.apply_all(m.payload for m in final if m.timestamp_ns <= until)
            self._cursor = until
        recent = self._session.read(LOG, under=leases, after_ns=self._cursor)
        return self._books.copied().apply_all(m.payload for m in recent)

    def _acknowledge(self, transfer: Transfer, leases: Leases, waited_ns: int) -> None:
        self._journal.write(transfer.id.encode() + b"\n")
        taken_over = [lease.domain for lease in leases if taken_from_the_dead(lease.signed)]
        say(
            event="acknowledged",
            id=transfer.id,
            boot_ns=self._cluster.time.boot_ns(),
            source=transfer.source,
            target=transfer.target,
            amount=transfer.amount,
            waited_ms=waited_ns // MS,
            after_expiry=taken_over,
        )


def taken_from_the_dead(signed: Any) -> bool:  # noqa: ANN401 - a SignedWitness
    """Whether the lease before this one ended because its holder did not come back."""
    ended = signed.witness().last_ended
    return ended is not None and ended.outcome is LeaseOutcome.EXPIRED


def say(**fields: object) -> None:
    sys.stdout.write(msgspec.json.encode(fields).decode() + "\n")
    sys.stdout.flush()


def told_to_stop() -> bool:
    """Whether the director has closed our stdin."""
    ready, _, _ = select.select([sys.stdin], [], [], 0)
    return bool(ready) and not sys.stdin.readline()


def main() -> int:
    parser = argparse.ArgumentParser(prog="teller")
    parser.add_argument("--root", required=True)
    parser.add_argument("--node-dir", required=True)
    parser.add_argument("--accounts", type=int, required=True)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the director decides when tellers stop
    with (
        Cluster.open(options.root, node_dir=options.node_dir, allow_root=True) as cluster,
        cluster.session("bank teller") as session,
    ):
        teller = Teller(cluster, session, options.accounts, options.journal, options.seed)
        say(event="ready", incarnation=session.incarnation.hex())
        while not told_to_stop():
            try:
                teller.serve()
            except (LeaseLost, TryAgain) as problem:
                say(event="interrupted", code=problem.code, reason=problem.message)
    say(event="done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
