"""Real chronyd pairs: a server whose clock is off by a known amount, and whether the truth is inside what is said.

``chronyd -x`` never touches the clock; its server's is faked by libfaketime for that one process. Skipped by name where
chronyd or libfaketime is not installed (Debian: chrony, libfaketime). Everything listens on 127.0.0.1.
"""

import os
import random
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.agents import Node, found, until
from tests.support.ports import free_port
from timeagent.agent.discipline import STALL_NS
from timeagent.agent.page import AgentTime
from timeagent.clock import SystemClock
from timeagent.errors import BadTime
from timeagent.keys import Purpose
from timeagent.sources.chrony import ChronySource, parse_tracking, tracking_request
from timeagent.sources.port import Endpoint, UdpExchange
from timeagent.units import MS, SECOND

CHRONYD = shutil.which("chronyd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)

pytestmark = [
    pytest.mark.skipif(CHRONYD is None, reason="chronyd is not installed (Debian: chrony)"),
    pytest.mark.skipif(FAKETIME is None, reason="libfaketime is not installed (Debian: libfaketime)"),
    pytest.mark.skipif(os.geteuid() != 0, reason="chronyd starts as root only"),
]


class Chronyd:
    """One chronyd in the foreground, with a clock of its own if one is wanted."""

    def __init__(self, directory: Path, name: str, lines: list[str], fake: str = "") -> None:
        self.command_port = free_port()
        configuration = directory / f"{name}.conf"
        own = [f"cmdport {self.command_port}", "bindcmdaddress 127.0.0.1", f"bindcmdaddress {directory}/{name}.sock"]
        configuration.write_text("\n".join([*lines, *own, f"pidfile {directory}/{name}.pid"]) + "\n")
        environment = dict(os.environ)
        if fake:
            environment |= {"LD_PRELOAD": str(FAKETIME), "FAKETIME": fake, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        assert CHRONYD is not None
        self.process = subprocess.Popen(
            [CHRONYD, "-x", "-d", "-U", "-u", "root", "-f", str(configuration)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def source(self, *, cluster_time: str = "") -> ChronySource:
        exchange = UdpExchange(Endpoint("127.0.0.1", self.command_port), timeout_ns=10 * SECOND)
        return ChronySource(SystemClock(), exchange, random.Random(1), cluster_time=cluster_time)

    def refusal(self, *, cluster_time: str = "") -> str:
        try:
            self.source(cluster_time=cluster_time).sample()
        except BadTime as refused:
            return refused.code
        return ""

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Lab:
    """Servers and clients in a directory of their own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.running: list[Chronyd] = []

    def server(self, name: str, fake: str = "") -> tuple[Chronyd, int]:
        port = free_port()
        lines = ["local stratum 8", "allow 127.0.0.0/8", f"port {port}", "bindaddress 127.0.0.1"]
        self.running.append(Chronyd(self.directory, name, lines, fake))
        return self.running[-1], port

    def client(self, *servers: int, name: str = "client") -> Chronyd:
        lines = [f"server 127.0.0.1 port {port} minpoll -4 maxpoll -2 iburst" for port in servers]
        self.running.append(Chronyd(self.directory, name, [*lines, "maxclockerror 50", "port 0"]))
        return self.running[-1]


@pytest.fixture
def lab() -> Iterator[Lab]:
    # chronyd wants its sockets in a directory that only its user may enter, and a path that is short.
    with tempfile.TemporaryDirectory(prefix="lh", dir="/tmp") as directory:
        made = Lab(Path(directory))
        yield made
        for each in made.running:
            each.end()


# The server's clock is the truth here: it is the machine's own, moved by what libfaketime was told.
@pytest.mark.parametrize("seconds", [0, 0.05, 0.3, -0.3, 10, -3600])
def test_truth_is_always_inside_what_a_client_of_a_moved_server_says(lab: Lab, seconds: float) -> None:
    _, port = lab.server("server", f"{seconds:+}s" if seconds else "")
    client = lab.client(port)
    until(lambda: not client.refusal())
    source = client.source()
    truth = int(seconds * SECOND)
    for _ in range(200):
        sample = source.sample()
        assert sample.offset.earliest <= truth <= sample.offset.latest
        # A bound that holds everything would say nothing. It widens by the time that a busy machine takes to answer.
        assert sample.offset.radius <= abs(truth) * 5 // 4 + 10 * SECOND


# Its report is perfect: leap Normal, no offset, no delay, no dispersion. It means nothing.
def test_server_of_its_own_clock_is_refused_unless_it_is_named(lab: Lab) -> None:
    server, _ = lab.server("server")
    until(lambda: server.refusal() == "local-reference")
    raw = UdpExchange(Endpoint("127.0.0.1", server.command_port), timeout_ns=10 * SECOND)(
        tracking_request(7), lambda _: True
    )
    report = parse_tracking(raw, 7)
    assert (report.leap, report.correction_ns, report.root_delay_ns, report.root_dispersion_ns) == (0, 0, 0, 0)
    assert server.source(cluster_time="this server").sample().cluster_time


# chronyd goes on saying "synchronised"; eight polls later nobody here believes it.
def test_client_of_a_server_that_died_is_stale(lab: Lab) -> None:
    server, port = lab.server("server")
    client = lab.client(port)
    until(lambda: not client.refusal())
    server.end()
    until(lambda: client.refusal() == "stale")


def test_client_without_a_server_is_refused(lab: Lab) -> None:
    client = lab.client(free_port())
    until(lambda: client.refusal() == "not-synchronized")


def test_chronyd_that_does_not_run_is_refused(lab: Lab) -> None:
    client = lab.client(free_port())
    until(lambda: client.refusal() == "not-synchronized")
    client.end()
    assert client.refusal() == "no-answer"


# ---- whole agents over chronyd ----


def toml(chronyd: Chronyd, listen: int, **peers: int) -> str:
    lines = [f'chrony = "127.0.0.1:{chronyd.command_port}"', 'clockbound = ""', "kernel = false"]
    lines += [f'listen = "127.0.0.1:{listen}"', "[peers]"]
    return "\n".join([*lines, *(f'{node} = "127.0.0.1:{port}"' for node, port in peers.items())]) + "\n"


def test_agent_says_what_its_chronyd_knows(lab: Lab, tmp_path: Path) -> None:
    (alpha,) = found(tmp_path, "alpha")
    try:
        _, port = lab.server("server", "+0.05s")
        client = lab.client(port)
        until(lambda: not client.refusal())
        alpha.start(toml(client, free_port()))
        until(lambda: alpha.now()["status"] == "synchronized")
        clock, times = SystemClock(), alpha.time()
        for _ in range(200):
            before = clock.realtime_ns()
            now = times.now()
            after = clock.realtime_ns()
            assert now.earliest <= after + 50 * MS
            assert before + 50 * MS <= now.latest
        assert alpha.sources()["chrony"]["role"] == "shapes"
    finally:
        alpha.end()


# Three nodes with a good chronyd each; but one machine's clock is three seconds ahead of what its chronyd disciplines.
def test_node_whose_clock_is_wrong_is_found_by_its_peers_and_by_itself(lab: Lab, tmp_path: Path) -> None:
    nodes = found(tmp_path, "alpha", "beta", "gamma")
    try:
        _, port = lab.server("server")
        client = lab.client(port)
        until(lambda: not client.refusal())
        ports = {node.settings.node: free_port() for node in nodes}
        for node, ahead_ns in zip(nodes, (0, 0, 3 * SECOND), strict=True):
            others = {name: port for name, port in ports.items() if name != node.settings.node}
            node.start(toml(client, ports[node.settings.node], **others), ahead_ns=ahead_ns)
        alpha, beta, gamma = nodes
        right = {"agent": "synchronized", "chrony": "shapes", "peer gamma": "dissents"}
        for good in (alpha, beta):
            until(lambda good=good: right.items() <= good.roles().items())  # type: ignore[misc]
        # The two peers outvote its own chronyd, which contradicts all that was said before, and then they count.
        wrong = {"agent": "synchronized", "chrony": "dissents", "peer alpha": "shapes", "peer beta": "shapes"}
        until(lambda: wrong.items() <= gamma.roles().items())
        clock, times = SystemClock(), gamma.time()
        before = clock.realtime_ns()
        now = times.now()
        assert now.earliest <= clock.realtime_ns()
        assert before <= now.latest
        assert accused(gamma, alpha) + accused(gamma, beta)
        until(lambda: accused(alpha, gamma))
    finally:
        for node in nodes:
            node.end()


# The agent is stopped for longer than a stall; what it says afterwards is of another clock epoch.
def test_agent_that_was_stopped_for_long_begins_another_epoch(lab: Lab, tmp_path: Path) -> None:
    (alpha,) = found(tmp_path, "alpha")
    try:
        _, port = lab.server("server")
        client = lab.client(port)
        until(lambda: not client.refusal())
        alpha.start(toml(client, free_port()))
        until(lambda: alpha.roles().get("agent") == "synchronized")
        times, clock = alpha.time(), SystemClock()
        epoch = times.token().clock_epoch
        assert alpha.process is not None
        alpha.process.send_signal(signal.SIGSTOP)
        began = clock.boot_ns()
        until(lambda: clock.boot_ns() - began > STALL_NS + SECOND)
        alpha.process.send_signal(signal.SIGCONT)
        until(lambda: epoch_of(times) == epoch + 1)
    finally:
        alpha.end()


def epoch_of(times: AgentTime) -> int | None:
    try:
        return times.token().clock_epoch
    except BadTime:
        return None


def accused(node: Node, peer: Node) -> list[str]:
    """What the evidence that a node kept proves about itself and a peer, by both their signatures."""
    from timeagent.agent.evidence import judge_exchange
    from timeagent.keys import Verifier
    from timeagent.sources.nonce import Exchanged

    proven: list[str] = []
    for record in node.evidence():
        for exchange in record["exchanges"]:
            if exchange["peer"] == f"peer {peer.settings.node}":
                parts = (bytes.fromhex(exchange[part]) for part in ("own", "chance", "answer", "after"))
                keys = (Verifier(each.settings.key(Purpose.TIME).public) for each in (node, peer))
                proven += judge_exchange(Exchanged(*parts), *keys)
    return proven
