"""Sets of several domains in several modes, asked for by everybody at once; and somebody who dies while it waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.formats.lease import Mode
from tests.simulation.actors.session import SessionKit
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.simulation.scheduler import Process
    from tests.simulation.world import World
    from timeagent.units import Span

PATIENCE_NS: Span = 20 * SECOND
"""Longer than anybody may have to wait."""

_WRITE = (Mode.X, Mode.SIX, Mode.IX)


class Crossing:
    """Takes one to three domains, each in a mode of its own, and gives them back soon; again and again."""

    def __init__(self, world: World, process: Process, domains: Sequence[str], log: str, rounds: int) -> None:
        self._world = world
        self._process = process
        self._domains = domains
        self._log = log
        self._rounds = rounds

    def run(self) -> None:
        kit = SessionKit(self._world, self._process)
        chance = kit.chance
        for number in range(self._rounds):
            names = chance.sample(self._domains, chance.choice((1, 2, 3, 3)))
            modes = {name: chance.choice((Mode.X, Mode.S, Mode.S, Mode.IX)) for name in names}
            leases = kit.acquire(names, PATIENCE_NS, mode=modes, record_only=True)
            if leases is None:
                continue
            writable = [each for each in leases if each.mode in _WRITE]
            if writable and chance.random() < 0.1:
                kit.publish(self._log, [f"{kit.process.name}.{number}".encode()], writable)
            kit.time.sleep(chance.randint(0, 20) * MS)
            kit.relinquish(leases)
        kit.end()


class Sitter:
    """Has one domain for a while, gives it back, and wants it again much later."""

    def __init__(self, world: World, process: Process, domain: str, log: str, sits_ns: Span) -> None:
        self._world = world
        self._process = process
        self._domain = domain
        self._log = log
        self._sits_ns = sits_ns

    def run(self) -> None:
        kit = SessionKit(self._world, self._process)
        leases = kit.acquire([self._domain], PATIENCE_NS, record_only=True)
        assert leases is not None, "nobody else has it yet"
        kit.publish(self._log, [b"sat"], leases)
        kit.time.sleep(self._sits_ns)
        kit.relinquish(leases)
        kit.end()


class Queuer:
    """Comes when its time has come, waits for one domain, and gives it back."""

    def __init__(self, world: World, process: Process, domain: str, log: str, comes_ns: Span) -> None:
        self._world = world
        self._process = process
        self._domain = domain
        self._log = log
        self._comes_ns = comes_ns

    def run(self) -> None:
        kit = SessionKit(self._world, self._process)
        kit.time.sleep(self._comes_ns)
        leases = kit.acquire([self._domain], PATIENCE_NS, record_only=True)
        if leases is not None:
            kit.publish(self._log, [kit.process.name.encode()], leases)
            kit.relinquish(leases)
        kit.end()
