"""Holders that keep their leases together under session leases, and an operator who ends some of them alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.formats.lease import LeaseOutcome, Mode
from appliance.lease.wire import Over, Revoke
from tests.simulation.actors.processes import Kit
from tests.simulation.actors.session import Application, SessionKit, SimulatedRoutes
from timeagent.errors import ShardUnavailable
from timeagent.units import MS

if TYPE_CHECKING:
    from tests.simulation.scheduler import Process
    from tests.simulation.world import World


class Together(Application):
    """Takes one or two domains at a time under one session lease, and gives them back one by one, or by dropping it."""

    def kit(self) -> SessionKit:
        kit = super().kit()
        kit.session._together = True
        kit.session._leasing.session_leases.drop_from = kit.chance.choice((1, 1, 16))
        return kit


class TogetherBesideOthers(Together):
    """So that others may have the same domains at once; often it lets them run out."""

    modes = (Mode.X, Mode.IX, Mode.IX, Mode.IX, Mode.S)
    gives_back = 0.5


class Operator:
    """Revokes leases that somebody has."""

    def __init__(self, world: World, process: Process, turns: int) -> None:
        self._world = world
        self._process = process
        self._turns = turns

    def run(self) -> None:
        kit = Kit(self._world, self._process)
        routes_of = self._world.routes_of
        routes = SimulatedRoutes(self._world, self._process) if routes_of is None else routes_of(kit)
        for _ in range(self._turns):
            kit.pause(600 * MS)
            history = self._world.history
            held = [hold.lease for hold in history.holds if hold.until_ns is None and hold.lease.ended is None]
            if not held:
                continue
            lease = kit.chance.choice(held)
            halves = [each for each in (lease.second, lease) if each is not None]
            history.revoked |= {each.correlation_id for each in halves}
            by, told = lease.signed.witness().holder, None
            try:
                for each in halves:
                    request = Revoke(kit.chance.randbytes(16), each.domain, each.correlation_id, by)
                    (told,) = routes.transport(each.shard).call([request], self._world.policy.attempt_timeout_ns)
                if isinstance(told, Over) and told.outcome is LeaseOutcome.REVOKED:
                    history.revocations.append((lease, self._world.scheduler.now))
            except ShardUnavailable as problem:
                self._world.scheduler.note("revokes nothing:", str(problem))
