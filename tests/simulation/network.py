"""The network between holders and shards: a Transport whose messages are lost, late, repeated and out of order.

A call is one message to the shard's inbox and one back. Each of the two can be lost, delayed, delivered twice; a pair
of machines can be cut in one direction only. A shard has several addresses while several incarnations of it run: a
client keeps to one until it does not answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from appliance.lease.wire import (
    Acquire,
    BeginSession,
    Renew,
    RenewSession,
    Upgrade,
    decode_answer,
    decode_call,
    encode_answer,
    encode_call,
)
from timeagent.errors import ShardUnavailable
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from appliance.lease.wire import Reply, Request
    from tests.simulation.scheduler import Actor, Machine, Process, Scheduler
    from timeagent.units import Instant, Span


@dataclass(frozen=True, slots=True)
class NetworkMishaps:
    """How often a message is lost, repeated, or late: once in so many; 0: never."""

    lost: int = 0
    repeated: int = 0
    late: int = 0


NO_NETWORK_MISHAPS = NetworkMishaps()


class Call(msgspec.Struct, eq=False):
    """A request on its way, and the caller who waits for the answer."""

    process: Process
    requests: list[Request]
    caller: Actor | None
    replies: list[Reply] | None = None
    refused: str = ""
    """By which code it was not even read."""


@dataclass(eq=False, slots=True)
class Endpoint:
    """Where one incarnation of a shard takes calls."""

    machine: Machine
    inbox: list[Call] = field(default_factory=list)
    server: Actor | None = None
    open: bool = True
    hung_up: Callable[[Process], None] = lambda _: None
    """Told when a process closes its connection: it has heard nothing for too long."""


class Network:
    """All endpoints, and what is between them."""

    def __init__(self, scheduler: Scheduler, mishaps: NetworkMishaps, *, encoded: bool = False) -> None:
        self.scheduler = scheduler
        self.mishaps = mishaps
        self.encoded = encoded
        """Whether what is sent goes through the bytes of the wire: slower."""
        self.endpoints: dict[int, list[Endpoint]] = {}
        self.cut: dict[tuple[str, str], Instant] = {}
        """Until when nothing gets from one machine to another."""
        self.lost = 0
        self.asked: dict[object, Instant] = {}
        """Until when a lease or session lease was asked for at most, by what named it in the request."""

    @cached_property
    def random(self) -> random.Random:
        """The network's own choices: seeding takes longer than many an operation, and not every run has a shard."""
        return self.scheduler.stream("network")

    def serve(self, shard: int, endpoint: Endpoint) -> None:
        self.endpoints.setdefault(shard, []).append(endpoint)

    def leave(self, shard: int, endpoint: Endpoint) -> None:
        endpoint.open = False
        if endpoint in self.endpoints.get(shard, []):
            self.endpoints[shard].remove(endpoint)

    def send(self, source: Machine, target: Machine, arrive: object) -> None:
        """Deliver, or do not: at once or later, once or twice."""
        chance, mishaps = self.random, self.mishaps
        if self.cut.get((source.name, target.name), 0) > self.scheduler.now:
            self.lost += 1
            return
        if mishaps.lost and chance.random() * mishaps.lost < 1:
            self.lost += 1
            self.scheduler.note("  a message is lost:", f"{source.name} -> {target.name}")
            return
        copies = 2 if mishaps.repeated and chance.random() * mishaps.repeated < 1 else 1
        for _ in range(copies):
            delay = int(chance.random() * MS)
            if mishaps.late and chance.random() * mishaps.late < 1:
                delay += int(chance.random() ** 3 * 6 * SECOND)
            self.scheduler.call_at(self.scheduler.now + delay, arrive)  # type: ignore[arg-type]


class SimulatedTransport:
    """One client's way to a shard."""

    def __init__(self, network: Network, process: Process, shard: int) -> None:
        self._network = network
        self._process = process
        self._machine = process.machine
        self._shard = shard
        self._endpoint: Endpoint | None = None

    def call(self, requests: list[Request], timeout_ns: Span) -> list[Reply]:
        network, scheduler = self._network, self._network.scheduler
        scheduler.operations += 1
        scheduler.step("call", f"shard {self._shard}: {_names(requests)}" if scheduler.trace is not None else "")
        _note_asked(network.asked, requests)
        endpoint = self._address(network.random)
        if endpoint is not None:
            sent = decode_call(encode_call(requests)[4:]) if network.encoded else requests
            call = Call(self._process, sent, scheduler.current)

            def arrive() -> None:
                if endpoint.open:
                    endpoint.inbox.append(call)
                    if endpoint.server is not None:
                        scheduler.wake(endpoint.server)

            network.send(self._machine, endpoint.machine, arrive)
            until = scheduler.now + timeout_ns
            while call.replies is None and not call.refused and scheduler.now < until:
                scheduler.wait(until, "call")
            call.caller = None
            if scheduler.trace is not None:
                self._tell(call)
            if call.replies is not None:
                return call.replies
            if call.refused:
                self._endpoint = None
                raise ShardUnavailable(call.refused, f"shard {self._shard} does not run there", hint="ask again")
            endpoint.hung_up(self._process)
        self._endpoint = None
        raise ShardUnavailable("no-answer", f"no answer from shard {self._shard}", hint="ask again")

    def _tell(self, call: Call) -> None:
        """Let the trace say what the caller heard."""
        scheduler = self._network.scheduler
        heard = [f"{type(each).__name__} {getattr(each, 'code', '')}".strip() for each in call.replies or ()]
        assert scheduler.trace is not None
        assert scheduler.current is not None
        scheduler.trace.answered(scheduler.current.name, ", ".join(heard) or call.refused or "no answer")

    def _address(self, chance: random.Random) -> Endpoint | None:
        if self._endpoint is None or not self._endpoint.open:
            known = self._network.endpoints.get(self._shard)
            self._endpoint = chance.choice(known) if known else None
        return self._endpoint


def answer(network: Network, endpoint: Endpoint, call: Call, replies: list[Reply]) -> None:
    """Send the answer of a call back to who waits for it."""
    if network.encoded:
        replies = decode_answer(encode_answer(replies)[4:], len(replies))

    def arrive() -> None:
        if call.caller is not None and call.replies is None:
            call.replies = replies
            network.scheduler.wake(call.caller)

    network.send(endpoint.machine, call.process.machine, arrive)


def refuse(network: Network, endpoint: Endpoint, call: Call, code: str) -> None:
    """Send back that a call is not for who got it."""

    def arrive() -> None:
        if call.caller is not None and call.replies is None:
            call.refused = code
            network.scheduler.wake(call.caller)

    network.send(endpoint.machine, call.process.machine, arrive)


def _note_asked(asked: dict[object, Instant], requests: list[Request]) -> None:
    names: object
    for request in requests:
        # By the type itself: to be no instance of a struct's class takes ten times as long to find out.
        if type(request) is Acquire:
            names = (request.holder.incarnation, request.domain)
        elif type(request) is Renew or type(request) is Upgrade:
            names = request.correlation_id
        elif type(request) is BeginSession:
            names = request.holder.incarnation
        elif type(request) is RenewSession:
            names = request.session_id
        else:
            continue
        asked[names] = max(asked.get(names, 0), request.expiry_ns_max)


def _names(requests: list[Request]) -> str:
    return ", ".join(f"{type(each).__name__} {getattr(each, 'domain', '')}" for each in requests)
