"""A machine's daemon that lends its leases, and the processes there that borrow them.

Real: the desk of the daemon, and how a process reckons with its sub-lease. Simulated: the socket between them, on which
nothing is lost, and the daemon's threads: an actor of its process for each connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from appliance.daemon.lease_desk import DeskConnection, LeaseDesk
from appliance.formats.lease import Mode
from appliance.node import desk_wire as wire
from appliance.recipes import quick_run
from tests.simulation.actors.processes import Kit
from tests.simulation.actors.session import SessionKit
from tests.simulation.history import Lent
from tests.simulation.lock import SimulatedCondition
from tests.simulation.scheduler import NEVER, Machine, Process
from timeagent.units import MS, SECOND, span_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from appliance.session.held import Lease
    from appliance.session.session import Session
    from tests.simulation.clocks import SimulatedTime
    from tests.simulation.machine import ProcessTime
    from tests.simulation.scheduler import Actor
    from tests.simulation.world import World
    from timeagent.units import Span


class Socket:
    """One connection: both ends, and what was said that is not heard yet."""

    def __init__(self, world: World, daemon: Process) -> None:
        self.world = world
        self.daemon = daemon
        self.to_desk: list[str] = []
        self.to_process: list[tuple[str, ...]] = []
        self.closed = False
        """Whether either has closed it, or its process has died."""
        self.desk: Actor | None = None
        self.process: Actor | None = None

    def close(self) -> None:
        self.closed = True
        self.world.scheduler.wake(self.desk)
        self.world.scheduler.wake(self.process)


class DeskLine(DeskConnection):
    """The daemon's end. Who waits, or has hung up, is looked for as there; the rest is as a socket has it."""

    def __init__(self, socket: Socket) -> None:
        self._shown = ""
        self._at = socket
        self._scheduler = socket.world.scheduler

    def say(self, *words: str) -> None:
        self._scheduler.step("tells the process", " ".join(words))
        if self._at.closed:
            raise BrokenPipeError
        self._at.to_process.append(words)
        self._scheduler.wake(self._at.process)

    def gone(self) -> bool:
        return self._at.closed or bool(self._at.to_desk)

    def hear(self, span: Span) -> str | None:
        until = self._scheduler.now + max(0, span)
        while not (self._at.to_desk or self._at.closed) and self._scheduler.now < until:
            self._scheduler.wait(until, "the process")
        return self._at.to_desk.pop(0) if self._at.to_desk else None


class ProcessLine(wire.Line):
    """The process's end."""

    def __init__(self, socket: Socket) -> None:
        self._at = socket
        self._scheduler = socket.world.scheduler
        self._patience_ns: Span = NEVER

    def be_patient(self, seconds: int) -> None:
        self._patience_ns = seconds * SECOND if seconds else NEVER

    def say(self, *words: str) -> None:
        self._scheduler.step("tells the daemon", " ".join(words))
        if self._at.closed:
            raise BrokenPipeError
        self._at.to_desk.append(words[0])
        self._scheduler.wake(self._at.desk)

    def receive(self) -> list[str]:
        until = self._scheduler.now + self._patience_ns
        while (words := self.received()) is None:
            if self._scheduler.now >= until:
                raise TimeoutError
            self._scheduler.wait(until, "the daemon")
        return words

    def received(self) -> list[str] | None:
        if self._at.to_process:
            return list(self._at.to_process.pop(0))
        if self._at.closed:
            raise ConnectionResetError
        return None


class Desks:
    """The daemons that lend, by node: who runs there now."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._open: dict[str, tuple[Process, LeaseDesk]] = {}

    def begin(self, node: str, name: str, lives: Sequence[Span], *, alone: bool) -> None:
        """Run a node's daemon, and another whenever that has ended.

        ``lives``: after how long each is stopped, or killed. ``alone``: it may stand still while the processes of its
        machine go on.
        """
        world = self.world
        machine = Machine(node) if alone else world.machines[node]
        world.machines[name] = machine
        process = Process(machine, name)
        process.clock = world.times[node]
        machine.processes.append(process)

        def again() -> None:
            self._open.pop(node, None)
            for each in world.history.lent:
                each.orphaned = each.orphaned or (each.lender == name and each.until_ns > world.scheduler.now)
            delay = int(world.scheduler.stream(f"restart {world.number()}").random() * SECOND)
            world.scheduler.call_at(world.scheduler.now + delay, lambda: self.begin(node, name, lives[1:], alone=alone))

        process.on_death.append(again)
        world.scheduler.spawn(name, process, lambda: self._run(process, lives[0] if lives else None))

    def _run(self, process: Process, lives: Span | None) -> None:
        kit = Kit(self.world, process)
        scheduler = self.world.scheduler
        desk = LeaseDesk(lambda _: cast("Session", _Lending(self.world, process)), kit.time, kit.policy)
        desk._changed = SimulatedCondition(scheduler)  # type: ignore[assignment]
        self._open[process.machine.name] = (process, desk)
        kit.time.sleep(self.world.conditions.lasts_ns if lives is None else lives)
        if kit.chance.random() < 0.5:
            desk.stop()
            scheduler.note("has stopped lending")
        scheduler.crash(process)

    def connected(self, node: str, words: list[str]) -> Socket | None:
        """Return a connection to a node's daemon, who serves it from now on; None: it is not there."""
        scheduler = self.world.scheduler
        scheduler.step("connects")
        if node not in self._open:
            return None
        process, desk = self._open[node]
        socket = Socket(self.world, process)
        socket.process = scheduler.current
        process.on_death.append(socket.close)

        def serve() -> None:
            try:
                desk.serve(DeskLine(socket), words)
            except OSError as problem:
                scheduler.note("has lost a process:", type(problem).__name__)
            finally:
                socket.close()

        socket.desk = scheduler.spawn(f"{process.name} serves {scheduler.current.name}", process, serve)  # type: ignore[union-attr]
        return socket


class _Lending:
    """A session of a daemon, which takes one lease."""

    def __init__(self, world: World, process: Process) -> None:
        self._kit = SessionKit(world, process)
        self._leases: Sequence[Lease] = ()

    def acquire(self, domain: str, **options: object) -> Sequence[Lease]:
        began = self._kit.world.scheduler.now
        self._leases = self._kit.session.acquire(domain, **options)  # type: ignore[arg-type]
        for lease in self._leases:
            self._kit._holds(lease, began)
        return self._leases

    def close(self) -> None:
        self._kit.end()
        self._kit.world.scheduler.step("gives back")  # not what has died, and the run not at its end
        self._kit.over(self._leases)
        self._kit.session.close()


class Borrowed(quick_run.SubLease):
    """A sub-lease, with a record of what its process believes."""

    def __init__(
        self, world: World, time: SimulatedTime | ProcessTime, line: ProcessLine, note: Callable[[Span], None]
    ) -> None:
        self._world = world
        self.boot_ns = time.boot_ns  # type: ignore[method-assign]
        self._note = note
        super().__init__(line, 0)

    def _take(self, words: list[str]) -> None:
        super()._take(words)
        self._world.scheduler.note("hears from the daemon:", f"{words}, good for {span_text(max(0, self.left_ns()))}")
        self._note(self.left_ns())


class Borrower:
    """Borrows one domain after the other, works under it, and gives most of them back."""

    def __init__(
        self, desks: Desks, process: Process, domains: Sequence[str], modes: Sequence[Mode], rounds: int
    ) -> None:
        self._desks = desks
        self._world = desks.world
        self._process = process
        self._domains = domains
        self._modes = modes
        self._rounds = rounds

    def run(self) -> None:
        kit = Kit(self._world, self._process)
        for _ in range(self._rounds):
            kit.pause(self._world.pace_ns)
            domain, wait = kit.chance.choice(self._domains), kit.chance.choice(("0", "1s", "5s", "5s"))
            mode = kit.chance.choice(self._modes)
            words = [wire.LEASE, wire.VERSION, domain, mode, wait, "work"]
            socket = self._desks.connected(self._process.machine.name, words)
            if socket is None:
                continue
            try:
                self._borrow(kit, ProcessLine(socket), domain, mode, socket.daemon.name)
            except OSError as problem:
                self._world.scheduler.note("has lost the daemon:", type(problem).__name__)
            socket.close()

    def _borrow(self, kit: Kit, line: ProcessLine, domain: str, mode: Mode, lender: str) -> None:
        scheduler, lent = self._world.scheduler, self._world.history.lent
        line.be_patient(0)
        while (words := line.receive())[0] == wire.WAITS:
            continue
        if words[0] != wire.HELD:
            scheduler.note("is refused:", " ".join(words))
            return
        line.be_patient(quick_run.PATIENCE_S)
        found: list[Lent] = []

        def note(left: Span) -> None:
            until = scheduler.now + left
            if left > 0 and not found:
                found.append(Lent(self._process.name, lender, domain, mode, int(words[1]), scheduler.now, until))
                lent.append(found[0])
            elif found:
                found[0].until_ns = max(found[0].until_ns, until)

        borrowed = Borrowed(self._world, kit.time, line, note)
        works = kit.time.boot_ns() + int(kit.chance.choice((0, kit.chance.random())) * self._world.linger_ns)
        while borrowed.lost() is None and borrowed.left_ns() > 0 and kit.time.boot_ns() < works:
            kit.time.sleep(min(100 * MS, works - kit.time.boot_ns()))
            borrowed.exchange()
        if kit.chance.random() < 0.8:
            for each in found:
                each.until_ns = min(each.until_ns, scheduler.now)
            line.say(wire.BACK)
            while line.receive()[0] != wire.DONE:
                continue
