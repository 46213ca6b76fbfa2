"""The demo's application: accounts with balances, transfers between them, and the teller who makes these.

A message is one JSON object. ``open`` brings an account into being with its first money; ``transfer`` moves money.
Every message carries an id, by which the demo checks afterwards that nothing was lost and nothing counted twice.
``BALANCES`` is the view of it.

``python -m appliance.demo.bank`` is a teller: the director starts one per node. It moves money between accounts until
it is told to stop, or killed. What it does it says on stdout, one JSON object a line; every transfer that was
acknowledged also goes into its journal, a local file that outlives it.
"""

from __future__ import annotations

import argparse
import random
import select
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from appliance.bag.message import MessageBatch
from appliance.bag.writing import Committed, Unknown
from appliance.cluster import Cluster
from appliance.formats.lease import LeaseOutcome
from appliance.session.asking import Leases
from appliance.session.session import Session
from appliance.views import Fold
from timeagent.errors import LeaseLost, TryAgain
from timeagent.units import MS, SECOND, Instant, Span

LOG: Final = "bank"
AMOUNT_MAX: Final = 40
WAIT_NS: Final = SECOND
"""How long a teller waits for a pair of accounts before it serves another customer."""


class Opening(msgspec.Struct, frozen=True, tag="open"):
    id: str
    account: str
    amount: int


class Transfer(msgspec.Struct, frozen=True, tag="transfer"):
    id: str
    source: str
    target: str
    amount: int


decode_entry: Final = msgspec.json.Decoder(Opening | Transfer).decode
encode: Final = msgspec.json.encode


class Balances(msgspec.Struct):
    """What money is where, and how it came about: a fold over messages in their order, and the state of the view."""

    balances: dict[str, int] = {}
    opened: int = 0
    """All the money there is."""
    transfers: int = 0
    lowest: int = 0
    """The lowest balance that ever was: below zero means that two holders spent the same money."""
    strangers: int = 0
    """Messages that are none of the bank's: skipped, by everybody alike."""

    def take(self, entry: Opening | Transfer) -> None:
        balances = self.balances
        match entry:
            case Opening(account=account, amount=amount):
                balances[account] = balances.get(account, 0) + amount
                self.opened += amount
            case Transfer(source=source, target=target, amount=amount):
                balances[source] = balances.get(source, 0) - amount
                balances[target] = balances.get(target, 0) + amount
                self.lowest = min(self.lowest, balances[source])
                self.transfers += 1


class Books(Balances):
    """The balances of whoever answers for them: with how often each id was met."""

    seen: dict[str, int] = {}

    def apply_all(self, payloads: Iterable[bytes]) -> Books:
        """Take in messages in order; return self. Raises msgspec.DecodeError for what is none of the bank's."""
        for entry in map(decode_entry, payloads):
            self.seen[entry.id] = self.seen.get(entry.id, 0) + 1
            self.take(entry)
        return self

    def copied(self) -> Books:
        return msgspec.structs.replace(self, balances=self.balances.copy(), seen=self.seen.copy())

    @property
    def conserved(self) -> bool:
        return sum(self.balances.values()) == self.opened

    @property
    def doubled(self) -> int:
        return sum(1 for count in self.seen.values() if count > 1)


def step(state: Balances, batch: MessageBatch) -> Balances:
    for payload in batch.payloads():
        try:
            entry = decode_entry(payload)
        except msgspec.DecodeError:
            state.strangers += 1
        else:
            state.take(entry)
    return state


def encode_balances(state: Balances) -> bytes:
    return msgspec.json.encode(state, order="sorted")


BALANCES: Final[Fold[Balances]] = Fold(
    view="balances",
    version=1,
    logs=(LOG,),
    initial=encode_balances(Balances()),
    decode=msgspec.json.Decoder(Balances).decode,
    step=step,
    encode=encode_balances,
)


def account(number: int) -> str:
    return f"account/{number:02d}"


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
        before = {lease.domain: lease.signed.witness().last_ended for lease in leases}
        expired = [domain for domain, end in before.items() if end and end.outcome is LeaseOutcome.EXPIRED]
        say(
            event="acknowledged",
            id=transfer.id,
            boot_ns=self._cluster.time.boot_ns(),
            source=transfer.source,
            target=transfer.target,
            amount=transfer.amount,
            waited_ms=waited_ns // MS,
            after_expiry=expired,
        )


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
