"""A writer that needs no shard: it stamps and writes one batch after another, and finds out what became of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.bag.writing import Committed, NotCommitted, Unknown
from appliance.session.stamping import AheadOfClock, FrameStamper, WriterState
from tests.simulation.actors.issuer import Issuer
from tests.simulation.actors.processes import Kit
from tests.simulation.history import Attempt
from timeagent.errors import TenureError
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from appliance.bag.writing import Outcome
    from appliance.session.stamping import Publication
    from tests.simulation.actors.processes import LogKit
    from tests.simulation.scheduler import Process
    from tests.simulation.world import World

TRIES = 3


class Writer:
    """One incarnation of one writer."""

    def __init__(self, world: World, process: Process, logs: tuple[str, ...], batches: int) -> None:
        self._world = world
        self._process = process
        self._names = logs
        self._batches = batches

    def run(self) -> None:
        world = self._world
        kit = Kit(world, self._process)
        state = WriterState(kit.records.cluster_id, kit.context.node, kit.chance.randbytes(8))
        stamper = FrameStamper(kit.time, kit.policy, state, kit.records)
        issuer = Issuer(kit, state.incarnation)
        logs = [kit.log(name) for name in self._names]
        for number in range(self._batches):
            kit.pause(world.pace_ns)
            log = kit.chance.choice(logs)
            said_by = f"{kit.process.name} {state.incarnation.hex()}.{number}"  # no two publications say the same
            payloads = [f"{said_by}.{n}".encode() for n in range(kit.chance.choice((1, 1, 2)))]
            identity = kit.chance.randbytes(16)
            try:
                records = stamper.in_force(kit.records.newest())
                leases = (issuer.lease(),)
                publication = stamper.publication(log.grid, payloads, leases, identity, records)
            except TenureError as problem:
                world.scheduler.refused("writes nothing:", problem)
                continue
            if isinstance(publication, AheadOfClock):
                kit.time.sleep(publication.span_ns)
                continue
            if isinstance(self._write(kit, log, publication, payloads), Committed):
                state.confirm(publication)

    def _write(self, kit: Kit, log: LogKit, publication: Publication, payloads: list[bytes]) -> Outcome:
        world = self._world
        file = publication.file
        attempt = Attempt(
            who=kit.process.name,
            log=log.name,
            path=f"{file.bag.path}/{file.name.text()}",
            data=file.data,
            first_ns=publication.first_ns,
            last_ns=publication.last_ns,
            payloads=tuple(payloads),
        )
        world.history.attempts.append(attempt)
        outcome: Outcome = Unknown("not tried")
        for _ in range(TRIES):
            outcome = log.writer.write(file)
            attempt.outcomes.append((world.scheduler.now, said(outcome)))
            world.scheduler.note("is told", f"{said(outcome)} {getattr(outcome, 'reason', '')}")
            if not isinstance(outcome, Unknown):
                break
            if kit.chance.random() < 0.5:
                deadline = kit.time.boot_ns() + kit.chance.choice((200 * MS, 3 * SECOND))
                outcome = log.writer.resolve(file, deadline)
                attempt.outcomes.append((world.scheduler.now, said(outcome)))
                world.scheduler.note("is told after closing", said(outcome))
                if not isinstance(outcome, Unknown):
                    break
            kit.pause(100 * MS)
        return outcome


def said(outcome: Outcome) -> str:
    """Return the word for an outcome."""
    match outcome:
        case Committed():
            return "committed"
        case NotCommitted():
            return "not-committed"
        case Unknown():
            return "unknown"
