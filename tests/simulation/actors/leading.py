"""Candidates: they campaign over a lease or on the mount alone, lead, check before every act, and end in many ways."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from appliance.recipes.election import Election
from appliance.recipes.mount_election import MountElection, MountLeadership
from tests.simulation.actors.processes import Kit
from tests.simulation.actors.session import SessionKit
from tests.simulation.cluster import CLUSTER, LOGS
from tests.simulation.history import Led
from tests.simulation.lock import SimulatedLock
from timeagent.errors import TenureError
from timeagent.keys import Purpose
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from appliance.recipes.election import Leadership
    from tests.simulation.scheduler import Actor, Process
    from tests.simulation.world import World
    from timeagent.units import Instant, TimeInterval

NAME = "billing"
BEATS = 40


class Candidate:
    """Leads for a while, again and again, and says when it surely leads."""

    def __init__(self, world: World, process: Process, names: tuple[str, ...], rounds: int) -> None:
        self._world = world
        self._process = process
        self._names = names
        self._rounds = rounds
        self._idle = False
        """Whether nobody renews or extends."""
        self._read: dict[Actor | None, Instant] = {}

    def _watch_clock(self, kit: Kit) -> None:
        """Know at which true instant each actor has read the clock: what it says later holds for then."""
        scheduler, ask = self._world.scheduler, kit.time.now

        def now() -> TimeInterval:
            said = ask()
            self._read[scheduler.current] = scheduler.now
            return said

        kit.time.now = now  # type: ignore[method-assign]
        kit.time.now_and_token = lambda: (now(), kit.time.page())  # type: ignore[method-assign]

    def _lead(self, kit: Kit, leadership: Leadership | MountLeadership) -> None:
        """Check, as often as before acts, until it is lost or nothing is left to do."""
        pace = kit.chance.choice((5, 20, 60)) * MS
        for _ in range(kit.chance.choice((BEATS // 4, BEATS, 8 * BEATS))):
            self._check(leadership)
            kit.pause(pace)

    def _check(self, leadership: Leadership | MountLeadership) -> None:
        leadership.check()
        read = self._read[self._world.scheduler.current]
        self._world.history.led.append(Led(read, NAME, leadership.epoch, self._process.name))

    def _end(self, kit: Kit, leadership: Leadership | MountLeadership) -> None:
        """Resign, hand over, or leave it to its end."""
        others = [name for name in self._names if name != self._process.name]
        match kit.chance.choice(("resign", "hand over", "leave")):
            case "resign":
                leadership.resign()
            case "hand over":
                came = leadership.resign(to=kit.chance.choice(others), timeout_s=2)
                self._world.scheduler.note("hands over", f"and it came: {came}")
            case _:
                self._leave(kit, leadership)

    def _leave(self, kit: Kit, leadership: Leadership | MountLeadership) -> None:
        """Have it kept no more, and go on for as long as it leads."""
        self._idle = True
        while True:  # until it is lost
            self._lead(kit, leadership)

    def _campaigns(self, kit: Kit, election: Election | MountElection) -> None:
        scheduler = self._world.scheduler
        for _ in range(self._rounds):
            kit.pause(self._world.pace_ns)
            self._idle = False
            try:
                with election.campaign(timeout_s=4) as leadership:
                    self.begun(kit, leadership)
                    self._lead(kit, leadership)
                    self._end(kit, leadership)
            except TenureError as problem:
                scheduler.refused("leads no more, or not at all:", problem)

    def begun(self, kit: Any, leadership: Any) -> None:  # noqa: ANN401 - of either kind
        """Have another actor check too, as another thread does, until it is over."""

        def acts() -> None:
            try:
                while True:
                    self._check(leadership)
                    kit.pause(50 * MS)
            except TenureError as problem:
                self._world.scheduler.refused("acts no more:", problem)

        self._world.scheduler.spawn(f"{self._process.name} acts", self._process, acts)


class OverLease(Candidate):
    """Over a lease, which its session renews."""

    def run(self) -> None:
        kit = SessionKit(self._world, self._process)
        self._watch_clock(kit)
        renew = kit.session.renew_due
        kit.session.renew_due = lambda: None if self._idle else renew()  # type: ignore[method-assign]
        self._campaigns(kit, Election(kit.session, NAME))
        kit.end()

    def begun(self, kit: SessionKit, leadership: Leadership) -> None:
        super().begun(kit, leadership)
        said = f"{self._process.name}.{self._world.number()} leads"
        try:
            kit.publish(LOGS[0], [said.encode()], [leadership.lease])
        except TenureError as problem:
            self._world.scheduler.refused("writes nothing:", problem)


class OnMount(Candidate):
    """On the mount alone, with an actor that extends."""

    def run(self) -> None:
        kit = Kit(self._world, self._process)
        self._watch_clock(kit)
        node = self._process.machine.name
        election = MountElection(
            kit.storage,
            kit.time,
            self._world.keys[node][Purpose.WITNESS],
            (CLUSTER, node),
            kit.chance,
            NAME,
            self._process.name,
            2 * SECOND,
            background=False,
        )
        self._campaigns(kit, election)

    def begun(self, kit: Kit, leadership: MountLeadership) -> None:
        super().begun(kit, leadership)
        lock: Any = SimulatedLock(self._world.scheduler)
        leadership._lock = lock
        self._idle = kit.chance.random() < 0.3

        def keep() -> None:
            while not leadership.over:
                kit.time.sleep(600 * MS)
                if self._idle:
                    return
                try:
                    leadership.extend()
                except TenureError as problem:
                    self._world.scheduler.refused("is not extended:", problem)

        self._world.scheduler.spawn(f"{self._process.name} extends", self._process, keep)
