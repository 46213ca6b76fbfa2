"""Keys that are rotated and revoked, and policies that change, under daemons, time agents and applications at work.

Nobody is started again, no lease is lost, every message is committed, and the audit finds nothing.
"""

from __future__ import annotations

import re
import subprocess
import urllib.request
from threading import Thread
from typing import IO, TYPE_CHECKING, Self

import pytest

from appliance.admin.trust import revoke_keys
from appliance.bag.posix import PosixStorage
from appliance.formats.birth import LogBirth
from appliance.formats.framing import Kind
from appliance.formats.stamped import open_stamped
from auditor.audit import audit
from auditor.evidence.finding import Verdict
from auditor.evidence.opening import open_tree
from tests.support import keeper
from tests.support.cluster import wait_until
from tests.support.daemons import Daemons
from tests.support.ports import free_port
from tests.support.warm import WarmProcess
from timeagent.canonical import decode
from timeagent.clock import SystemClock
from timeagent.keys import Purpose
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.support.cluster import Site

pytestmark = pytest.mark.timeout(300)

CLOCK = SystemClock()
PATIENCE_NS = 120 * SECOND
NODES = ("node1", "node2")
LONGER = ("--lease-term-max", "4.8s", "--renew-period", "1.6s")
SHORTER = (
    "--lease-term-max",
    "2.2s",
    "--renew-period",
    "700ms",
    "--attempt-timeout",
    "300ms",
    "--r1-tolerance",
    "600ms",
)
SHORT_BAGS = ("--span", "50ms", "--seal-delay", "2500ms")


DEAF = f"""
import runpy
from appliance.node.own_keys import OwnKeys
OwnKeys.look = lambda *_: None
runpy.run_path({keeper.__file__!r}, run_name="__main__")
"""
"""A keeper that does not look for its keys."""


class Keeper:
    """One process of ``tests.support.keeper``, and all that it said."""

    def __init__(self, site: Site, node: str, name: str, program: Sequence[str] = (keeper.__name__,)) -> None:
        words = [*program, str(site.root), str(site.node_dir(node)), name]
        with (site.node_dir(node) / f"{name}.log").open("ab") as log:
            pipe = subprocess.PIPE
            self.process = WarmProcess(words[0], words[1:], stdin=pipe, stdout=pipe, stderr=log)
        assert self.process.stdout is not None
        self.said: list[str] = []
        self._listener = Thread(target=self._listen, args=(self.process.stdout,), daemon=True)
        self._listener.start()

    def _listen(self, stream: IO[str]) -> None:
        self.said.extend(line.rstrip("\n") for line in stream)
        stream.close()

    def told(self, words: str) -> int:
        """Return how many lines begin so."""
        return sum(line.startswith(words) for line in self.said)

    def wrong(self, *also: str) -> list[str]:
        """Return what should not have happened."""
        return [line for line in self.said if line.startswith(("lost", "doubt", "refused", *also))]

    def finish(self) -> None:
        """End it in good order."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(60) == 0
        self._listener.join(60)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.kill()
        self.process.wait(60)
        self._listener.join(60)


class Work:
    """Two nodes with a daemon each, one with a time agent, and a keeper on either."""

    def __init__(self, path: Path) -> None:
        self.daemons = Daemons(path, *NODES)
        self.site = self.daemons.site
        self.keepers: list[Keeper] = []
        self.ports = {node: free_port() for node in NODES}
        try:
            for node, port in self.ports.items():
                settings = self.site.node_dir(node) / "node.toml"
                settings.write_text(settings.read_text().replace("listen =", f'http = "127.0.0.1:{port}"\nlisten ='))
            self.daemons.start_agent("node1")
            self.daemons.start(*NODES)
            self.keepers += [Keeper(self.site, node, f"keeper-{node}") for node in NODES]
            self.more(10)
        except BaseException:
            self.close()
            raise

    def until(self, words: str, times: int = 1) -> None:
        """Wait until every keeper has said so, so often; nothing may go wrong meanwhile."""
        self._watch(lambda: all(each.told(words) >= times for each in self.keepers))

    def more(self, messages: int) -> None:
        """Wait until every keeper has so many messages more committed."""
        targets = [each.told("committed") + messages for each in self.keepers]
        self._watch(lambda: all(k.told("committed") >= t for k, t in zip(self.keepers, targets, strict=True)))

    def _watch(self, done: Callable[[], bool]) -> None:
        wait_until(CLOCK, lambda: bool(self.wrong()) or done(), PATIENCE_NS)
        assert self.wrong() == []

    def wrong(self) -> list[str]:
        """Return what should not have happened. Nobody has the time for a moment where this machine's clock was set."""
        clock_moved = "clock-moved" in (self.site.node_dir("node1") / "agent.log").read_text()
        return [line for each in self.keepers for line in each.wrong(*(() if clock_moved else ("untimed",)))]

    def root(self, node: str, *words: str) -> None:
        """Run a command of whoever has the root key."""
        done = self.daemons.tenure(node, *words, "--root-key", str(self.site.root_key_file))
        assert done.returncode == 0, done.stderr

    def told_by_daemon(self, node: str, metric: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[node]}/metrics", timeout=20) as answer:
            (value,) = re.findall(rf"^{metric} (.*)$", answer.read().decode(), re.MULTILINE)
        return float(value)

    def policy(self, *numbers: str) -> None:
        """Change the policy; wait until everybody goes by it, in the midst of their work."""
        self.root("node1", "policy", "set", *numbers)
        number = self.site.registers.newest_policy().number
        self.until(f"policy {number}")
        self._watch(lambda: {self.told_by_daemon(node, "tenure_policy_record_number") for node in NODES} == {number})
        self.more(30)

    def until_radius(self, node: str, radius_ns: int) -> None:
        """Wait until a node knows the time no better than its agent assumes by now."""
        self._watch(lambda: self.told_by_daemon(node, "tenure_time_radius_seconds") >= radius_ns / SECOND)

    def rotate(self, times: int) -> None:
        """Rotate every key of each node; revoke the earlier ones once everybody has taken theirs up."""
        known = self.site.registers.trust(self.site.registers.newest().trust).keys
        old = [each.public for each in known if each.revoked_from_ns is None]
        for node in NODES:
            self.root(node, "trust", "rotate", "--overlap", "1h")
        self.until("key ", times)
        taken = [
            (self.site.node_dir(node) / log, purpose)
            for node, log, purpose in (
                *((node, "stderr.log", purpose) for node in NODES for purpose in (Purpose.WITNESS, Purpose.TLS)),
                ("node1", "agent.log", Purpose.TIME),
            )
        ]
        self._watch(lambda: all(taken_up(log, purpose) >= times for log, purpose in taken))
        self.more(10)
        revoke_keys(self.site.registers, self.site.root_key, old, CLOCK.realtime_ns())
        self.more(60)

    def close(self) -> None:
        for each in self.keepers:
            each.close()
        self.daemons.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def taken_up(log: Path, purpose: Purpose) -> int:
    """Return how many keys a process took up, by its log."""
    return log.read_text().count(f"key-taken-up purpose={purpose} ")


def birth(site: Site, log: str) -> LogBirth:
    path = f"logs/{log}/log"
    data = PosixStorage(site.root).read(path)
    assert data is not None
    return decode(LogBirth, open_stamped(Kind.BIRTH, data, path).body, path)


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    with Work(tmp_path) as each:
        yield each


@pytest.mark.verify
def test_keys_and_policies_change_under_those_who_hold_leases_and_write(work: Work) -> None:
    daemons, site = work.daemons, work.site
    work.rotate(1)
    work.policy(*LONGER)
    work.policy(*SHORTER)
    work.rotate(2)
    work.policy("--assumed-radius", "6ms")
    work.until_radius("node1", 6 * MS)
    work.policy(*SHORT_BAGS)
    with site.open("node2") as cluster:
        cluster.create_log("later")
    work.more(10)
    assert (birth(site, "later").span_ns, birth(site, keeper.LOG).span_ns) == (50 * MS, 100 * MS)
    for each in work.keepers:
        each.finish()
        assert each.told("held ") == 1
        assert each.wrong() == []
    assert [daemons.stop(name) for name in (*NODES, "node1 agent")] == [0, 0, 0]
    found = audit(open_tree(site.root), root_key=site.root_key.public).findings
    assert [each for each in found if each.verdict is Verdict.VIOLATION] == []


def test_application_that_takes_no_keys_up_is_refused(work: Work) -> None:
    deaf = Keeper(work.site, "node2", "deaf", ("-c", DEAF))
    work.keepers.append(deaf)
    work.more(5)
    work.keepers.remove(deaf)
    try:
        work.rotate(1)
        wait_until(CLOCK, lambda: deaf.wrong() != [], PATIENCE_NS)
    finally:
        deaf.close()
    assert work.wrong() == []
