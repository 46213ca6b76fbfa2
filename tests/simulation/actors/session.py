"""Sessions: what an application does with leases and messages, through the production Session.

A session's renewal thread is an actor of the same process, and its lock one that actors can wait for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from appliance.bag.writing import Committed, NotCommitted, Unknown
from appliance.formats.lease import Mode
from appliance.session.open_logs import LogBook, OpenLog
from appliance.session.session import Session
from tests.simulation.actors.processes import Kit
from tests.simulation.actors.writer import said
from tests.simulation.cluster import grid_of
from tests.simulation.history import Hold, LatestRead, NarrowRead, Turn, Waited, Wrote, key_of
from tests.simulation.lock import SimulatedLock
from tests.simulation.network import SimulatedTransport
from timeagent.errors import TenureError
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from appliance.bag.reader import Message
    from appliance.bag.writing import Outcome
    from appliance.formats.paths import Grid
    from appliance.formats.shardmap import ShardMap
    from appliance.lease.transport import Transport
    from appliance.session.held import Lease, Loss
    from tests.simulation.scheduler import Process
    from tests.simulation.world import World
    from timeagent.units import Instant, Span

MESSAGES = (1, 1, 1, 2, 3, 4)
"""How many messages an application publishes at once: each as often as it stands here."""
REPEATS = 10
"""How often who is in doubt writes the same once more: for longer than a bag is open."""


class SharedGrids(LogBook):
    """The logs of a process; their grids are those that all runs share."""

    def _wired(self, grid: Grid) -> OpenLog:
        return super()._wired(grid_of(grid.birth))


class SimulatedRoutes:
    """How one process reaches the shards."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process

    @property
    def map(self) -> ShardMap:
        return self._world.map

    def transport(self, shard: int) -> Transport:
        return SimulatedTransport(self._world.network, self._process, shard)


class SessionKit(Kit):
    """A process with one session."""

    def __init__(self, world: World, process: Process, *, renews: bool = True) -> None:
        super().__init__(world, process)
        self.session = Session(
            self.context,
            SharedGrids(self.context, self.shared),
            SimulatedRoutes(world, process) if world.routes_of is None else world.routes_of(self),
            self.policy,
            process.name,
            self.chance,
            background=False,
        )
        world.sessions.append(self.session)
        keeper = self.session.keeper
        keeper.lock = SimulatedLock(world.scheduler)  # type: ignore[assignment]
        keeper.holder = msgspec.structs.replace(keeper.holder, process=world.number(), boot=bytes(16))
        found = keeper.losses.found

        def lost(loss: Loss) -> None:
            self._lost(loss)
            found(loss)

        keeper.losses.found = lost  # type: ignore[method-assign]
        world.scheduler.interrupted.add(process)
        if renews:
            world.scheduler.spawn(f"{process.name} renewal", process, self._renew)
        if world.records_change:
            world.scheduler.spawn(f"{process.name} records", process, self._look)
        self._over = False
        self.doubts: list[Wrote] = []
        """What is in doubt, as far as this has not been asked about."""

    def end(self) -> None:
        self._over = True

    def _renew(self) -> None:
        while not self._over:
            self.time.sleep(self.policy.renew_period_ns // 4)
            try:
                self.session.renew_due()
            except TenureError as problem:
                self.world.scheduler.refused("renews nothing:", problem)

    def _look(self) -> None:
        """Look for newer records, as a process's watch does: often or hardly ever."""
        pace = self.chance.choice((100, 400, 3_000)) * MS
        while not self._over:
            self.pause(pace)
            try:
                self.records.newest()
            except TenureError as problem:
                self.world.scheduler.refused("sees no records:", problem)

    # -- what applications do, with a record of it ---------------------------------------------------------------------

    def acquire(
        self,
        domains: Sequence[str],
        timeout_ns: int,
        term_ns: int | None = None,
        mode: Mode | Mapping[str, Mode] = Mode.X,
        **options: Any,  # noqa: ANN401 - those of Session.acquire
    ) -> Sequence[Lease] | None:
        scheduler, history = self.world.scheduler, self.world.history
        began = scheduler.now
        term = None if term_ns is None else term_ns / SECOND
        try:
            leases = self.session.acquire(*domains, mode=mode, timeout_s=timeout_ns / SECOND, term_s=term, **options)
        except TenureError as problem:
            self.world.scheduler.refused("gets no lease:", problem)
            history.waits.append(Waited(self.process.name, tuple(domains), began, scheduler.now - began, granted=False))
            return None
        history.waits.append(Waited(self.process.name, tuple(domains), began, scheduler.now - began, granted=True))
        for lease in leases:
            self._holds(lease, began)
        scheduler.note("holds", ", ".join(f"{each.domain} fence {each.fence}" for each in leases))
        return leases

    def read(self, log: str, leases: Sequence[Lease]) -> list[Message]:
        scheduler = self.world.scheduler
        began = scheduler.now
        under = tuple((each.domain, each.fence, each.mode, each.correlation_id) for each in leases)
        messages = self.session.read(log, under=leases)
        keys = tuple(key_of(each) for each in messages)
        self.world.history.latest.append(LatestRead(self.process.name, began, scheduler.now, log, 0, keys, under))
        scheduler.note("has read", f"{len(keys)} messages of {log} under {under}")
        return messages

    def read_domains(self, log: str, leases: Sequence[Lease], after_ns: int, last: int | None) -> None:
        """Read the messages of the held domains between two readings of all, as far back as they go."""
        scheduler, history = self.world.scheduler, self.world.history
        earlier = tuple(key_of(each) for each in self.session.read(log, under=leases, after_ns=after_ns))
        began = scheduler.now
        found = self.session.read_domains(log, under=leases, after_ns=after_ns, last=last)
        keys = tuple(key_of(each) for each in found)
        now = scheduler.now
        later = tuple(key_of(each) for each in self.session.read(log, under=leases, after_ns=after_ns))
        domains = tuple(each.domain for each in leases)
        history.narrow.append(NarrowRead(self.process.name, now, log, domains, last, earlier, keys, later))
        if last is None:
            under = tuple((each.domain, each.fence, each.mode, each.correlation_id) for each in leases)
            history.latest.append(LatestRead(self.process.name, began, now, log, after_ns, keys, under))
        scheduler.note("has read", f"{len(keys)} messages of {log} that name {domains}, of {len(later)}")

    def publish(self, log: str, payloads: Sequence[bytes], leases: Sequence[Lease]) -> Outcome:
        scheduler = self.world.scheduler
        wrote = Wrote(self.process.name, log, tuple(payloads), tuple((each.domain, each.fence) for each in leases))
        self.world.history.wrote.append(wrote)
        outcome = self.session.publish(log, payloads, under=leases)
        wrote.outcomes.append((scheduler.now, said(outcome)))
        if isinstance(outcome, Unknown):
            self.doubts.append(wrote)
        scheduler.note("is told", f"{said(outcome)} {getattr(outcome, 'reason', '')}")
        return outcome

    def repeat(self, log: str, payloads: Sequence[bytes], leases: Sequence[Lease]) -> Outcome:
        """Have decided what is in doubt, look for it, and write it once more if it is not there: it is there once."""
        held = {each.domain for each in leases}
        mine = [each for each in self.doubts if each.log == log and held.intersection(dict(each.leases))]
        for _ in range(REPEATS):
            decided = self.session.resolve(log, leases)
            if not isinstance(decided, Unknown):
                if isinstance(decided, NotCommitted) and len(mine) == 1:
                    mine[0].outcomes.append((self.world.scheduler.now, said(decided)))
                self.doubts = [each for each in self.doubts if each not in mine]
                there = payloads[0] in [each.payload for each in self.read(log, leases)]
                return Committed() if there else self.publish(log, payloads, leases)
            self.time.sleep(300 * MS)
        return decided

    def over(self, leases: Sequence[Lease]) -> None:
        """Note that the holder does not believe any more that it has these."""
        for hold in self.world.history.holds:
            if hold.until_ns is None and any(hold.lease is lease for lease in leases):
                hold.until_ns = self.world.scheduler.now

    def _lost(self, loss: Loss) -> None:
        for hold in self.world.history.holds:
            if hold.lease is loss.lease and hold.until_ns is None:
                hold.lost_ns, hold.good_until_ns = self.world.scheduler.now, loss.lease.expiry_ns

    def _holds(self, lease: Lease, asked_ns: Instant) -> None:
        history, now, who = self.world.history, self.world.scheduler.now, self.process.name
        mode, until = lease.mode, lease.expiry_ns
        if self.is_noted(lease):
            return
        hold = Hold(who, lease.domain, lease.fence, mode, now, lease, self.process, None, asked_ns, until)
        if lease.loss is not None:  # as its renewal thread has found out before it was handed out
            hold.lost_ns, hold.good_until_ns = now, until
        history.holds.append(hold)

    def is_noted(self, lease: Lease) -> bool:  # noqa: ARG002 - for sessions of several threads
        """Whether there is nothing to note of a lease that was got."""
        return False

    def upgrade(self, lease: Lease, mode: Mode, timeout_ns: int) -> None:
        scheduler = self.world.scheduler
        began = scheduler.now
        self.session.upgrade(lease, mode, timeout_s=timeout_ns / SECOND, record_only=True)
        self.over([lease])
        self._holds(lease, began)
        scheduler.note("has changed", f"{lease.domain} to {mode}, fence {lease.fence}")

    def relinquish(self, leases: Sequence[Lease]) -> None:
        self.over(leases)
        self.session.relinquish(leases)


class Application:
    """Takes one or several domains, reads, writes a little, and gives them back; again and again."""

    gives_back = 0.9
    renews = True
    modes: tuple[Mode, ...] = (Mode.X,)

    def __init__(
        self, world: World, process: Process, domains: Sequence[str], logs: Sequence[str], rounds: int
    ) -> None:
        self._world = world
        self._process = process
        self._domains = domains
        self._logs = logs
        self._rounds = rounds

    def run(self) -> None:
        kit = self.kit()
        for number in range(self._rounds):
            kit.pause(self._world.pace_ns)
            chosen = kit.chance.sample(self._domains, min(len(self._domains), kit.chance.choice((1, 1, 1, 2, 3))))
            term = kit.chance.choice((None, None, self._world.policy.lease_term_max_ns // 2))
            mode = kit.chance.choice(self.modes)
            wait = kit.chance.choice((1, 4, 8)) * SECOND
            leases = kit.acquire(chosen, wait, term, mode, **self.options(kit))
            if leases is None:
                continue
            self.taken(kit, leases)
            try:
                self._use(kit, leases, number)
            except TenureError as problem:
                self._world.scheduler.refused("stops:", problem)
            if kit.chance.random() < self.gives_back:
                kit.relinquish(leases)
        kit.end()

    def options(self, kit: SessionKit) -> dict[str, Any]:  # noqa: ARG002 - for others
        """Return with what else leases are taken."""
        return {"record_only": True}

    def taken(self, kit: SessionKit, leases: Sequence[Lease]) -> None:
        """Do what has to be done as soon as leases are taken."""

    def kit(self) -> SessionKit:
        """Begin its session."""
        return SessionKit(self._world, self._process, renews=self.renews)

    def _use(self, kit: SessionKit, leases: Sequence[Lease], number: int) -> None:
        chance = kit.chance
        for log in chance.sample(self._logs, chance.randint(1, len(self._logs))):
            if chance.random() < 0.8:
                kit.read(log, leases)
            if any(lease.mode in (Mode.S, Mode.IS) for lease in leases):
                continue  # these may not write
            for again in range(chance.choice((1, 1, 2, 3))):
                if chance.random() < 0.3:
                    kit.pause(self._world.pace_ns)
                if self._world.linger_ns and chance.random() < 0.5:
                    kit.time.sleep(int(chance.random() * self._world.linger_ns))
                said = f"{kit.process.name}.{self._world.number()}.{number}.{log}.{again}"
                payloads = [f"{said}.{n}".encode() for n in range(chance.choice(MESSAGES))]
                under = chance.sample(leases, chance.choice((len(leases), len(leases), 1)))
                outcome = kit.publish(log, payloads, under)
                if not isinstance(outcome, Committed) and chance.random() < 0.5:
                    kit.time.sleep(50 * MS)
                    if isinstance(outcome, Unknown):
                        kit.repeat(log, payloads, under)
            if chance.random() < 0.2:
                kit.session.renew_due()


class Regular:
    """One turn after the other on one domain of its own; each is timed. Nobody but the dead can be in its way."""

    def __init__(self, world: World, process: Process, domain: str, log: str, *, victim: bool) -> None:
        self._world = world
        self._process = process
        self._domain = domain
        self._log = log
        self._victim = victim

    def run(self) -> None:
        kit = SessionKit(self._world, self._process)
        scheduler = self._world.scheduler
        while True:
            kit.pause(self._world.pace_ns)
            turn = Turn(self._process, self._domain, scheduler.now)
            self._world.history.turns.append(turn)
            while (leases := self._used(kit)) is None:
                kit.pause(100 * MS)
            turn.over_ns = scheduler.now
            if self._victim:
                kit.time.sleep(60 * SECOND)  # until it dies, renewing
            kit.relinquish(leases)

    def _used(self, kit: SessionKit) -> Sequence[Lease] | None:
        """Return the lease under which it has read and written; None: that has to be tried again."""
        leases = kit.acquire([self._domain], 30 * SECOND, record_only=True)
        if leases is None:
            return None
        try:
            kit.read(self._log, leases)
            kit.publish(self._log, [f"{kit.process.name} {self._world.number()}".encode()], leases)
        except TenureError as problem:
            self._world.scheduler.refused("stops:", problem)
            kit.relinquish(leases)
            return None
        return leases


class Taker:
    """Wants two domains, the second of which somebody keeps: it has the first tentatively, and waits."""

    def __init__(self, world: World, process: Process, domains: Sequence[str]) -> None:
        self._world = world
        self._process = process
        self._domains = domains

    def run(self) -> None:
        kit = SessionKit(self._world, self._process)
        kit.time.sleep(600 * MS)  # until the other is sure to have it
        while True:
            leases = kit.acquire(self._domains, 30 * SECOND, record_only=True)
            if leases is not None:
                kit.relinquish(leases)
            kit.pause(100 * MS)


class Sharing(Application):
    """Takes all modes: readers beside each other, writers beside each other, and who excludes them. Changes some."""

    gives_back = 0.7
    modes: tuple[Mode, ...] = (Mode.X, Mode.S, Mode.S, Mode.IX, Mode.IX, Mode.SIX, Mode.IS)
    stronger: Mapping[Mode, tuple[Mode, ...]] = {
        Mode.IS: (Mode.S, Mode.IX, Mode.SIX, Mode.X),
        Mode.IX: (Mode.SIX, Mode.X),
        Mode.S: (Mode.SIX, Mode.X),
        Mode.SIX: (Mode.X,),
    }

    def _use(self, kit: SessionKit, leases: Sequence[Lease], number: int) -> None:
        super()._use(kit, leases, number)
        lease = leases[0]
        stronger = self.stronger.get(lease.mode)
        if stronger is not None and kit.chance.random() < 0.4:
            kit.upgrade(lease, kit.chance.choice(stronger), kit.chance.choice((1, 4)) * SECOND)
            super()._use(kit, leases, number)


class Narrow(Application):
    """Reads what names its domains where hints say that it is, between two readings of everything."""

    gives_back = 0.8
    modes = (Mode.X, Mode.X, Mode.S, Mode.SIX, Mode.IX)

    def _use(self, kit: SessionKit, leases: Sequence[Lease], number: int) -> None:
        self._read(kit, leases)
        super()._use(kit, leases, number)
        if kit.chance.random() < 0.6:
            self._read(kit, leases)  # its own messages too, also those that it was left in doubt about

    def _read(self, kit: SessionKit, leases: Sequence[Lease]) -> None:
        after = kit.time.now().earliest - SECOND if kit.chance.random() < 0.2 else 0
        kit.read_domains(kit.chance.choice(self._logs), leases, after, kit.chance.choice((None, None, 1, 3)))


class Forgetful(Application):
    """Mostly lets its leases run out, without renewing them."""

    gives_back = 0.3
    renews = False


def keep(kit: SessionKit, domain: str, log: str, pace_ns: Span) -> None:
    """Have one lease, and write under it now and then; where it is lost, another."""
    world = kit.world
    while True:
        leases = kit.acquire([domain], 4 * SECOND, record_only=True)
        while leases is not None and leases[0].ended is None:
            kit.pause(pace_ns)
            try:
                kit.publish(log, [f"kept {world.number()}".encode()], leases)
            except TenureError as problem:
                world.scheduler.refused("writes nothing:", problem)
        kit.pause(100 * MS)
