"""What a run says of its operations is the calls of port verbs that its actors made: counted here once more."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from appliance.bag.objects import Bucket
from appliance.bag.ports import Storage
from appliance.lease.transport import Transport
from appliance.lease.witness_ledger import LedgerSink
from tests.simulation import scenarios
from tests.simulation.actors.shard import Spool
from tests.simulation.clocks import SimulatedTime
from tests.simulation.machine import MeasuringSource, SimulatedMachine
from tests.simulation.mount import SimulatedMount
from tests.simulation.network import SimulatedTransport
from tests.simulation.objects import SimulatedObjects
from tests.simulation.scheduler import Scheduler
from tests.support.shares import sampled
from timeagent.clock import MachineClock, NodeTime
from timeagent.sources.port import Source

if TYPE_CHECKING:
    from collections.abc import Callable

PORTS: dict[type, type] = {
    SimulatedMount: Storage,
    SimulatedObjects: Bucket,
    SimulatedTime: NodeTime,
    SimulatedMachine: MachineClock,
    MeasuringSource: Source,
    SimulatedTransport: Transport,
    Spool: LedgerSink,
}
"""What is simulated, and the port whose verbs it has."""
READS_WHEN_ASKED = "read_each"
"""Nothing happens when it is called: it reads a file each time it is asked for the next, and each counts."""
SEEDS = (3, 23, 40)


def verbs_of(port: type) -> set[str]:
    """Return what a port declares, and those that it is made of."""
    protocols = [each for each in port.__mro__ if each not in (object, Protocol) and each.__module__ != "typing"]
    declared = {name for each in protocols for name, what in vars(each).items() if callable(what)}
    return {name for name in declared if not name.startswith("_")} - {READS_WHEN_ASKED}


class Calls:
    """Calls of verbs by actors during a run. What a port asks of itself to answer one does not count."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[str] = []
        self._runs = False
        for simulated, port in PORTS.items():
            for name in verbs_of(port):
                verb = getattr(simulated, name)
                monkeypatch.setattr(simulated, name, self._counted(f"{simulated.__name__}.{name}", verb))
        monkeypatch.setattr(Scheduler, "run", self._watched(Scheduler.run))

    def _watched(self, run: Callable[[Scheduler], None]) -> Callable[[Scheduler], None]:
        def watched(scheduler: Scheduler) -> None:
            self._runs = True
            run(scheduler)
            self._runs = False

        return watched

    def _counted(self, name: str, verb: Callable[..., Any]) -> Callable[..., Any]:
        own = inspect.unwrap(verb).__code__.co_filename

        @functools.wraps(verb)
        def counted(*args: object, **options: object) -> Any:  # noqa: ANN401 - what the verb returns
            caller = sys._getframe(1).f_code
            if self._runs and (caller.co_filename != own or READS_WHEN_ASKED in caller.co_qualname):
                self.made.append(name)
            return verb(*args, **options)

        return counted


@pytest.mark.parametrize("scenario", sampled(scenarios.SCENARIOS, 5))
def test_operations_are_the_calls_of_port_verbs_by_actors(scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch)
    for seed in SEEDS:
        calls.made.clear()
        world = scenarios.SCENARIOS[scenario](seed)
        world.run()
        assert world.scheduler.operations == len(calls.made) > 0


def test_every_port_has_its_verbs_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the test above compares with more than a few of them."""
    calls = Calls(monkeypatch)
    for scenario in scenarios.SCENARIOS:
        scenarios.SCENARIOS[scenario](3).run()
    assert {name.partition(".")[0] for name in calls.made} == {each.__name__ for each in PORTS}
    assert {"read", "publish", "append", "look", "list_afresh", "now", "boot_ns", "token"} <= {
        name.partition(".")[2] for name in calls.made
    }
