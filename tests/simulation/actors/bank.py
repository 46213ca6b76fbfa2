"""Tellers: transfers between accounts, decided upon what was read under the leases of both accounts.

Every transfer says which balances it was decided upon. Money is conserved, no account is ever overdrawn, no transfer
counts twice: if and only if whoever held an account had everything before it that was written under it earlier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.bag.writing import Committed, NotCommitted
from tests.simulation.actors.session import SessionKit
from timeagent.errors import TenureError
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from appliance.session.held import Lease
    from tests.simulation.scheduler import Process
    from tests.simulation.world import World

OPENING = 10


def transfer(number: int, source: str, target: str, amount: int, balances: dict[str, int]) -> bytes:
    return f"bank {number} {source} {target} {amount} {balances[source]} {balances[target]}".encode()


def parsed(payload: bytes) -> tuple[int, str, str, int, int, int] | None:
    """Return number, source, target, amount and the two balances that were seen; None for another message."""
    parts = payload.decode().split(" ")
    if parts[0] != "bank":
        return None
    return int(parts[1]), parts[2], parts[3], int(parts[4]), int(parts[5]), int(parts[6])


def balances_of(accounts: Iterable[str], payloads: Iterable[bytes]) -> dict[str, int]:
    """Return what each account holds after these transfers."""
    found = dict.fromkeys(accounts, OPENING)
    for payload in payloads:
        said = parsed(payload)
        if said is not None:
            for account, change in ((said[1], -said[3]), (said[2], said[3])):
                if account in found:
                    found[account] += change
    return found


class Teller:
    """One teller with one session."""

    def __init__(
        self, world: World, process: Process, accounts: Sequence[str], logs: Sequence[str], rounds: int
    ) -> None:
        self._world = world
        self._process = process
        self._accounts = accounts
        self._logs = logs
        self._rounds = rounds

    def run(self) -> None:
        kit = SessionKit(self._world, self._process)
        for _ in range(self._rounds):
            kit.pause(self._world.pace_ns)
            source, target = kit.chance.sample(self._accounts, 2)
            leases = kit.acquire((source, target), kit.chance.choice((2, 6)) * SECOND, record_only=True)
            if leases is None:
                continue
            try:
                self._serve(kit, leases, source, target)
            except TenureError as problem:
                self._world.scheduler.refused("stops:", problem)
            if kit.chance.random() < 0.95:
                kit.relinquish(leases)
        kit.end()

    def _serve(self, kit: SessionKit, leases: Sequence[Lease], source: str, target: str) -> None:
        payloads = [message.payload for log in self._logs for message in kit.read(log, leases)]
        balances = balances_of((source, target), payloads)
        for _ in range(kit.chance.choice((1, 1, 2))):
            amount = min(balances[source], kit.chance.randint(1, OPENING))
            if amount <= 0:
                return
            payload = transfer(self._world.number(), source, target, amount, balances)
            log = kit.chance.choice(self._logs)
            outcome = kit.publish(log, [payload], leases)
            for _ in range(2):
                if not isinstance(outcome, Committed):
                    kit.pause(self._world.pace_ns // 4)
                    outcome = kit.repeat(log, [payload], leases)
            if isinstance(outcome, Committed):
                balances[source] -= amount
                balances[target] += amount
            elif not isinstance(outcome, NotCommitted):
                return  # whether it happened is not known: nothing more can be decided under these leases
