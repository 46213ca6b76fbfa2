"""Each verb of each simulated port fails: a change, done and not done; a look, without a trace.

Two of a clock's never do: boot time and sleep need no bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from appliance.bag.ports import Storage
from appliance.lease.transport import Transport
from appliance.lease.wire import Inspect, Refused
from tests.simulation.client import MountMishaps
from tests.simulation.clocks import SimulatedTime
from tests.simulation.cluster import T0, signer
from tests.simulation.mount import SimulatedMount
from tests.simulation.network import Endpoint, Network, NetworkMishaps, SimulatedTransport, answer
from tests.simulation.scheduler import Machine, Process, Scheduler
from tests.simulation.server import Server
from timeagent.clock import Clock, NodeTime, Stamper
from timeagent.errors import BadTime, Environment, ShardUnavailable
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

type Did = Callable[[Server], bool]

CHANGES: dict[str, tuple[Callable[[SimulatedMount], object], Did]] = {
    "ensure_directory": (lambda mount: mount.ensure_directory("d/e"), lambda server: "d/e" in server.directories),
    "publish": (lambda mount: mount.publish("d/x", b"1", "tmp"), lambda server: server.find("d/x") is not None),
    "publish_stream": (
        lambda mount: mount.publish_stream("d/x", (b"1",), "tmp"),
        lambda server: server.find("d/x") is not None,
    ),
    "ensure_marker": (lambda mount: mount.ensure_marker("d/x"), lambda server: server.find("d/x") is not None),
    "append": (lambda mount: mount.append("d/old", b"1", 3), lambda server: _old(server) == b"old1"),
    "unlink": (lambda mount: mount.unlink("d/old"), lambda server: _old(server) is None),
    "remove_directory": (lambda mount: mount.remove_directory("e"), lambda server: "e" not in server.directories),
}
LOOKS: dict[str, Callable[[SimulatedMount], object]] = {
    "look": lambda mount: mount.look("d", ("old",)) == frozenset({"old"}),
    "list_afresh": lambda mount: mount.list_afresh("d") == ["old"],
    "read": lambda mount: mount.read("d/old") == b"old",
    "read_each": lambda mount: list(mount.read_each("d", ("old",))) == [b"old"],
    "size_of": lambda mount: mount.size_of("d/old") == 3,
    "read_from": lambda mount: mount.read_from("d/old", 1, 1) == b"l",
    "server_clock": lambda mount: mount.server_clock("tmp") > T0,
}

TIMES: dict[str, Callable[[SimulatedTime], object]] = {
    "now": lambda time: time.now(),
    "token": lambda time: time.token(),
    "now_and_token": lambda time: time.now_and_token(),
    "token_over": lambda time: time.token_over(bytes(32)),
}
NEEDS_NO_BOUND = {"boot_ns", "sleep"}


def _old(server: Server) -> bytes | None:
    file = server.find("d/old")
    return None if file is None else file.data


def verbs(port: type) -> set[str]:
    return {name for name, what in vars(port).items() if callable(what) and not name.startswith("_")}


def rough(seed: int) -> SimulatedMount:
    """Return a mount that fails about every second change, and every eighth look, on a small tree."""
    server = Server(Scheduler(seed, start_ns=T0, end_ns=T0 + 100 * SECOND, steps_max=1_000))
    server.mkdir("d")
    server.mkdir("e")
    server.directories["d"]["old"] = server.new(b"old")
    return SimulatedMount(server, "a", MountMishaps(failure=2))


def played(scheduler: Scheduler, *bodies: Callable[[], object]) -> None:
    process = Process(Machine("m"), "p")
    for number, body in enumerate(bodies):
        scheduler.spawn(f"actor {number}", process, body)
    scheduler.run()
    assert scheduler.bugs == []


@pytest.mark.parametrize("verb", CHANGES)
def test_what_changes_something_fails_done_and_not_done(verb: str) -> None:
    change, done = CHANGES[verb]
    failed, went_well = set(), set()
    for seed in range(100):
        mount = rough(seed)

        def body(mount: SimulatedMount = mount) -> None:
            try:
                change(mount)
            except Environment as problem:
                if problem.code == "mount-failed":
                    failed.add(done(mount.server))
            else:
                went_well.add(done(mount.server))

        played(mount.scheduler, body)
    assert failed == {True, False}
    assert went_well == {True}


@pytest.mark.parametrize("verb", LOOKS)
def test_what_only_looks_fails_and_changes_nothing(verb: str) -> None:
    ways = set()
    for seed in range(50):
        mount = rough(seed)
        before = {name: file.data for name, file in mount.server.files().items()}

        def body(mount: SimulatedMount = mount) -> None:
            for _ in range(5):
                try:
                    assert LOOKS[verb](mount)
                except Environment as problem:
                    ways.add(problem.code)
                else:
                    ways.add("well")

        played(mount.scheduler, body)
        assert {name: file.data for name, file in mount.server.files().items()} == before
    assert ways == {"mount-failed", "well"}


def test_no_verb_of_a_port_is_left_out() -> None:
    assert verbs(Storage) == {*CHANGES, *LOOKS}
    assert verbs(Transport) == {"call"}
    assert verbs(Clock) | verbs(Stamper) | verbs(NodeTime) == {*TIMES, *NEEDS_NO_BOUND}


# Whoever calls cannot tell the two failures apart: that is the port's contract.
def test_a_call_that_is_not_answered_arrived_or_did_not() -> None:
    ways = set()
    for seed in range(60):
        scheduler = Scheduler(seed, start_ns=T0, end_ns=T0 + 5 * SECOND, steps_max=1_000)
        network = Network(scheduler, NetworkMishaps(lost=3))
        process = Process(Machine("caller"), "p")
        endpoint = Endpoint(Machine("server"))
        network.serve(0, endpoint)

        def serve(scheduler: Scheduler = scheduler, network: Network = network, endpoint: Endpoint = endpoint) -> None:
            endpoint.server = scheduler.current
            while not endpoint.inbox:
                scheduler.wait(T0 + 5 * SECOND)
            refused = Refused(request_id=b"r" * 16, code="c", message="m", hint="h")
            answer(network, endpoint, endpoint.inbox[0], [refused])

        def call(network: Network = network, endpoint: Endpoint = endpoint, process: Process = process) -> None:
            try:
                SimulatedTransport(network, process, 0).call([Inspect(after_domain="", leases_max=1)], SECOND)
            except ShardUnavailable:
                ways.add(("unanswered", bool(endpoint.inbox)))
            else:
                ways.add(("answered", bool(endpoint.inbox)))

        played(scheduler, serve, call)
    assert ways == {("answered", True), ("unanswered", True), ("unanswered", False)}


def silent() -> tuple[Scheduler, SimulatedTime]:
    """Return a node's time that can give no bound now."""
    scheduler = Scheduler(1, start_ns=T0, end_ns=T0 + SECOND, steps_max=100)
    time = SimulatedTime(scheduler, signer("n1", real=False))
    time.silent = True
    return scheduler, time


@pytest.mark.parametrize("verb", TIMES)
def test_each_look_at_the_time_fails_where_there_is_no_bound_and_works_again_after_it(verb: str) -> None:
    _, time = silent()
    with pytest.raises(BadTime, match="no time source"):
        TIMES[verb](time)
    time.silent = False
    TIMES[verb](time)


# Whoever waits for a bound has to be able to, and to give up after so long.
def test_boot_time_and_sleep_need_no_bound() -> None:
    scheduler, time = silent()
    passed: dict[int, tuple[int, int]] = {}

    def body() -> None:
        for span in (100 * MS, 0, -SECOND):
            boot, true = time.boot_ns(), scheduler.now
            time.sleep(span)
            passed[span] = time.boot_ns() - boot, scheduler.now - true

    played(scheduler, body)
    assert {boot - true for boot, true in passed.values()} == {0}
    assert passed[100 * MS][0] >= 100 * MS
    assert passed[0] == passed[-SECOND] == (0, 0)
