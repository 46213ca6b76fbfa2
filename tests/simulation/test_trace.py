"""A trace says what each operation saw, beside its lines: the digest of a run is the same without."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from appliance.bag.ports import Storage
from appliance.lease.wire import Inspect, Refused
from tests.simulation import scenarios
from tests.simulation.client import MountMishaps
from tests.simulation.cluster import T0
from tests.simulation.mount import SimulatedMount
from tests.simulation.network import Endpoint, Network, NetworkMishaps, SimulatedTransport, answer
from tests.simulation.scheduler import Machine, Process, Scheduler
from tests.simulation.server import Server
from tests.simulation.trace import SHORT, told
from timeagent.errors import Environment
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

ANSWERS: dict[str, list[tuple[Callable[[SimulatedMount], object], str]]] = {
    "ensure_directory": [(lambda mount: mount.ensure_directory("d/e"), "done")],
    "look": [
        (lambda mount: mount.look("d", ("x", "old")), "old"),
        (lambda mount: mount.look("d", ("x",)), "nothing"),
        (lambda mount: mount.look("absent", ("x",)), "no directory"),
    ],
    "list_afresh": [
        (lambda mount: mount.list_afresh("d"), "old"),
        (lambda mount: mount.list_afresh("many"), "0, 1, 2 and 4 more"),
        (lambda mount: mount.list_afresh("absent"), "no directory"),
    ],
    "read": [
        (lambda mount: mount.read("d/old"), "3 bytes, 3f5dd4e5"),
        (lambda mount: mount.read("d/x"), "not there"),
    ],
    "read_each": [(lambda mount: list(mount.read_each("d", ("x", "old"))), "3 bytes, 3f5dd4e5")],
    "size_of": [(lambda mount: mount.size_of("d/old"), "3 bytes"), (lambda mount: mount.size_of("d/x"), "not there")],
    "read_from": [(lambda mount: mount.read_from("d/old", 1, 1), "1 bytes, 9606c2fe")],
    "publish": [
        (lambda mount: mount.publish("d/x", b"1", "tmp"), "won"),
        (lambda mount: mount.publish("d/old", b"1", "tmp"), "lost"),
        (lambda mount: mount.publish("absent/x", b"1", "tmp"), "absent"),
    ],
    "publish_stream": [(lambda mount: mount.publish_stream("d/x", (b"1",), "tmp"), "won")],
    "ensure_marker": [
        (lambda mount: mount.ensure_marker("d/x"), "there"),
        (lambda mount: mount.ensure_marker("absent/x"), "no directory"),
    ],
    "append": [
        (lambda mount: mount.append("d/old", b"1", 3), "4 bytes now"),
        (lambda mount: mount.append("d/old", b"1", 2), "size-not-expected"),
    ],
    "unlink": [(lambda mount: mount.unlink("d/old"), "done")],
    "remove_directory": [
        (lambda mount: mount.remove_directory("e"), "gone"),
        (lambda mount: mount.remove_directory("d"), "not empty"),
    ],
    "server_clock": [(lambda mount: mount.server_clock("tmp"), "22:10:00.0")],
}


def a_mount(failure: int = 0, *, traced: bool = True) -> SimulatedMount:
    """Return a mount with a small tree."""
    server = Server(Scheduler(1, start_ns=T0, end_ns=T0 + 100 * SECOND, steps_max=1_000, traced=traced))
    for path in ("d", "e", "many"):
        server.mkdir(path)
    server.directories["d"]["old"] = server.new(b"old")
    for number in range(7):
        server.directories["many"][str(number)] = server.new(b"")
    return SimulatedMount(server, "a", MountMishaps(failure=failure, late=0))


def lines(mount: SimulatedMount, work: Callable[[SimulatedMount], object]) -> list[str]:
    """Let one actor work on a mount, and return the trace."""
    scheduler = mount.scheduler
    scheduler.spawn("actor", Process(Machine("m"), "p"), lambda: work(told(mount)))
    scheduler.run()
    assert scheduler.bugs == []
    assert scheduler.trace is not None
    return list(scheduler.trace.told())


CASES = [(verb, number) for verb, cases in ANSWERS.items() for number in range(len(cases))]


@pytest.mark.parametrize(("verb", "number"), CASES)
def test_last_line_of_an_operation_says_what_the_mount_answered(verb: str, number: int) -> None:
    work, answered = ANSWERS[verb][number]
    last = [line for line in lines(a_mount(), work) if " gives up " not in line][-1]
    assert f" -> {answered}" in last


def test_no_verb_of_a_mount_is_left_out() -> None:
    declared = {name for name, what in vars(Storage).items() if callable(what) and not name.startswith("_")}
    assert declared == {*ANSWERS} == {*SHORT, "read_each"}


def test_each_file_of_several_that_are_read_has_its_answer() -> None:
    said = lines(a_mount(), lambda mount: list(mount.read_each("d", ("x", "old"))))
    assert [line.rpartition(" -> ")[2] for line in said] == ["not there", "3 bytes, 3f5dd4e5"]


# Done or not, the caller is told the same: both stand in the trace.
def test_what_fails_says_so_behind_what_became_of_it() -> None:
    def work(mount: SimulatedMount) -> None:
        for number in range(20):
            with suppress(Environment):
                mount.ensure_marker(f"d/{number}")

    said = lines(a_mount(failure=1), work)
    failed = [line for line in said if "  fails" in line or "no space" in line]
    assert len(failed) > 5
    assert all(line.endswith((" -> mount-failed", " -> mount-full")) for line in failed)


@pytest.mark.parametrize(("lost", "heard"), [(0, "Refused c"), (1, "no answer")])
def test_who_called_a_shard_says_what_it_heard(lost: int, heard: str) -> None:
    scheduler = Scheduler(1, start_ns=T0, end_ns=T0 + 5 * SECOND, steps_max=1_000, traced=True)
    network = Network(scheduler, NetworkMishaps(lost=lost))
    process, endpoint = Process(Machine("caller"), "p"), Endpoint(Machine("server"))
    network.serve(0, endpoint)

    def serve() -> None:
        endpoint.server = scheduler.current
        while not endpoint.inbox:
            scheduler.wait(T0 + 5 * SECOND)
        answer(network, endpoint, endpoint.inbox[0], [Refused(request_id=b"r" * 16, code="c", message="m", hint="h")])

    def call() -> None:
        SimulatedTransport(network, process, 0).call([Inspect(after_domain="", leases_max=1)], SECOND)

    scheduler.spawn("serves", Process(Machine("s"), "s"), serve)
    scheduler.spawn("calls", process, call)
    scheduler.run()
    assert scheduler.trace is not None
    assert [line.rpartition(" -> ")[2] for line in scheduler.trace.told() if "wakes from call" in line] == [heard]


def test_digest_of_a_run_is_that_of_its_lines_without_what_they_saw() -> None:
    world = scenarios.SCENARIOS["leases"](7, traced=True)
    world.run()
    trace = world.scheduler.trace
    assert trace is not None
    assert len(trace.answers) > 20
    assert list(trace.told()) != list(trace)
    assert world.scheduler.fingerprint()[0] == hashlib.sha256("\n".join(trace).encode()).hexdigest()


def test_nothing_stands_before_a_mount_whose_run_keeps_no_trace() -> None:
    mount = a_mount(traced=False)
    assert told(mount) is mount
