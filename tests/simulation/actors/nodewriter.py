"""A machine's node writer, and the door by which the processes of that machine reach it.

What the shell of the daemon does with a socket and threads is done here by actors: one takes what was handed in, some
write, and the production NodeWriter, Batcher and wire records are between them. A message on a Unix socket is not lost,
but who sent it may have lost patience, written for itself, and learned the outcome long before it is taken.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from appliance.lease.wire import LENGTH_BYTES
from appliance.node.writer_client import Doubt, Handed, _handed
from appliance.node.writer_server import NodeWriter
from appliance.node.writer_wire import (
    Submit,
    WriterAnswer,
    WriterSaid,
    answer_of,
    decode_answer,
    decode_call,
    encode,
)
from tests.simulation.actors.processes import Kit
from tests.simulation.scheduler import NEVER
from timeagent.units import SECOND

if TYPE_CHECKING:
    from appliance.bag.writing import Outcome
    from appliance.formats.paths import Bag
    from tests.simulation.actors.processes import LogKit
    from tests.simulation.scheduler import Actor, Process
    from tests.simulation.world import World
    from timeagent.units import Span

SILENCE_NS: Span = SECOND


@dataclass(eq=False, slots=True)
class Call:
    """A submission on its way, and who waits for the answer."""

    sent: bytes
    caller: Actor | None
    heard: bytes | None = None


@dataclass(eq=False, slots=True)
class Socket:
    """Where one run of a node's writer takes submissions."""

    incarnation: bytes
    process: Process
    inbox: list[Call] = field(default_factory=list)
    under_way: list[Call] = field(default_factory=list)
    actors: list[Actor] = field(default_factory=list)
    """Who takes and who writes."""


class WriterHost:
    """One run of a machine's node writer: an actor that takes, and some that write."""

    def __init__(self, world: World, process: Process, sockets: dict[str, Socket], writers: int) -> None:
        self._world = world
        self._process = process
        self._sockets = sockets
        self._writers = writers

    def run(self) -> None:
        """Take submissions until the run ends, or the process."""
        world, process = self._world, self._process
        scheduler = world.scheduler
        kit = Kit(world, process)
        kit.door = None
        logs: dict[str, LogKit] = {}

        def opened(name: str) -> LogKit:
            if name not in logs:
                logs[name] = kit.log(name)
            return logs[name]

        writer = NodeWriter(kit.records.cluster_id, kit.context.node, kit.chance.randbytes(8), opened)
        socket = Socket(writer.incarnation, process)
        process.on_death.append(lambda: self._hang_up(socket))
        for number in range(self._writers):
            socket.actors.append(scheduler.spawn(f"{process.name} {number}", process, lambda: self._write(writer)))
        assert scheduler.current is not None
        socket.actors.append(scheduler.current)
        self._sockets[kit.context.node] = socket
        while True:
            if not socket.inbox:
                scheduler.wait(NEVER, "submissions")
                continue
            scheduler.step("takes a submission")
            self._take(writer, socket, socket.inbox.pop(0))

    def _take(self, writer: NodeWriter, socket: Socket, call: Call) -> None:
        scheduler = self._world.scheduler
        submission = decode_call(call.sent[LENGTH_BYTES:])
        assert isinstance(submission, Submit)

        def told(outcome: Outcome) -> None:
            scheduler.step("answers", type(outcome).__name__)
            self._say(call, answer_of(submission.number, outcome))

        refused = writer.submit(submission, told)
        if refused is not None:
            self._say(call, WriterAnswer(number=submission.number, said=WriterSaid.REFUSED, reason=refused))
        for actor in socket.actors:
            scheduler.wake(actor)

    def _say(self, call: Call, answer: WriterAnswer) -> None:
        call.heard = encode(answer)
        self._world.scheduler.wake(call.caller)

    def _write(self, writer: NodeWriter) -> None:
        """Be one of the threads that write."""
        scheduler = self._world.scheduler
        while True:
            if not writer.batchers[""].turn():
                scheduler.wait(NEVER, "something to write")

    def _hang_up(self, socket: Socket) -> None:
        """Let those who wait know: a connection ends with its process."""
        for call in socket.under_way:
            self._world.scheduler.wake(call.caller)


class SimulatedDoor:
    """A Door: one process's connection to whatever run of the node's writer is there."""

    def __init__(self, kit: Kit, sockets: dict[str, Socket], patience_ns: Span) -> None:
        self._scheduler = kit.world.scheduler
        self._time = kit.time
        self._node = kit.context.node
        self._sockets = sockets
        self._patience_ns = patience_ns
        self._silent_until_ns = 0
        self._number = 0

    def submit(self, bag: Bag, frames: bytes) -> Handed:
        """Hand whole frames in; as NodeWriterClient does, with its own judgement of the answer."""
        scheduler = self._scheduler
        scheduler.step("calls the node's writer")
        socket = self._sockets.get(self._node)
        if socket is None or socket.process.dead or self._time.boot_ns() < self._silent_until_ns:
            return None
        self._number += 1
        sent = encode(Submit(number=self._number, log=bag.log, bag_start_ns=bag.start_ns, frames=frames))
        call = Call(sent, scheduler.current)
        socket.inbox.append(call)
        socket.under_way.append(call)
        for actor in socket.actors:
            scheduler.wake(actor)
        until = scheduler.now + self._patience_ns
        while call.heard is None and not socket.process.dead and scheduler.now < until:
            scheduler.wait(until, "the node's writer")
        socket.under_way.remove(call)
        if call.heard is None:
            self._silent_until_ns = self._time.boot_ns() + SILENCE_NS
            scheduler.note("hears nothing from the node's writer")
            return Doubt("the node's writer said nothing", socket.incarnation)
        answer = decode_answer(call.heard[LENGTH_BYTES:])
        assert isinstance(answer, WriterAnswer)
        scheduler.note("hears from the node's writer:", answer.said)
        return _handed(answer, socket.incarnation)
