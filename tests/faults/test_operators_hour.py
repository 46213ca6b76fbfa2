"""An operator's hour: whatever befalls one of three nodes, every view says the same of it, and what to do.

Daemons, mounts and the terminal are real. ``top`` stays open all the time, in a terminal on node1; ``status``,
``/readyz`` and the metrics are asked there too. How soon they know is a matter of constants, checked below.
"""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import sys
import time
from typing import TYPE_CHECKING, Final

import pytest

from appliance.cli import service
from appliance.doctor.health import HealthCheck
from appliance.node import releases
from tests.support.daemons import Daemons
from tests.support.mounts import fill, small_mount
from tests.support.terminal import Terminal
from timeagent.units import SECOND
from tui import feed
from tui.sources import live

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux here: no terminal to try it in"),
]

PATIENCE_S: Final = 120
NODES: Final = ("node1", "node2", "node3")


class Ended(AssertionError):
    """A daemon has ended that nobody ended."""


class Desk:
    """Where the operator sits: at node1, with a terminal.

    ``disk``: a small file system with the root on it; ``memory``: the one that node1 keeps its shards on.
    """

    def __init__(self, daemons: Daemons, disk: Path, memory: Path, terminal: Terminal) -> None:
        self.daemons, self.disk, self.memory = daemons, disk, memory
        self._terminal = terminal
        top = shlex.join([sys.executable, "-m", "tenure", "top", *daemons.site.options("node1")])
        terminal.run(f"{top}; echo left with $?")
        terminal.until_words("[1 Overview]")

    def screen(self) -> str:
        """What the terminal shows, as one line of words: long ones go on below."""
        return " ".join(self._terminal.seen().split())

    def status(self) -> tuple[int, dict[str, HealthCheck]]:
        said = self.daemons.tenure("node1", "status", "--json")
        assert said.stdout, said.stderr
        checks = [
            HealthCheck(c["check"], c["verdict"], c["reason"], c["way_out"] or "")
            for c in json.loads(said.stdout)["checks"]
        ]
        return said.returncode, {check.name: check for check in checks}

    def page(self, path: str) -> tuple[int, str]:
        site = self.daemons.site
        answer = service._asked(site.settings["node1"], site.cluster_id, path)
        return (0, "") if answer is None else (answer[0], answer[1].decode())

    def until(self, done: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while not done():
            for node, process in self.daemons.running.items():
                if process.poll() is not None:
                    raise Ended(node, (self.daemons.site.node_dir(node) / "stderr.log").read_text())
            if time.monotonic() > end:
                told = f"{self._terminal.seen()}\n{self.status()}\n{self.page('/readyz')}"
                raise AssertionError(f"not seen: {what}\n{told}")
            time.sleep(0.2)

    def until_well(self) -> None:
        """All four say that all is well."""

        def well() -> bool:
            judged = [line for line in self.page("/metrics")[1].splitlines() if line.startswith("tenure_check{")]
            return (
                "● HEALTHY" in self.screen()
                and self.page("/readyz") == (200, "ok\n")
                and len(judged) > len(NODES)
                and all('verdict="PASS"' in line for line in judged)
                and self.status()[0] == 0
            )

        self.until(well, "all is well")

    def until_told(self, name: str, *words: str, ready: bool, seen: Sequence[str] = ()) -> None:
        """All four say the same of one thing, and what to do; none says that all is well.

        ``seen``: what the screen says of it, where its first reason is another.
        """

        def told() -> bool:
            screen, (status, readyz), (code, checks) = self.screen(), self.page("/readyz"), self.status()
            check = checks.get(name)
            return (
                check is not None
                and check.verdict != "PASS"
                and all(word in check.reason for word in words)
                and code in (1, 3)
                and f"{check.verdict}  {check.words}\n  way out: {check.way_out}\n" in readyz
                and status == (200 if ready else 503)
                and f'tenure_check{{check="{name}",verdict="{check.verdict}"}} 1.0' in self.page("/metrics")[1]
                and "● HEALTHY" not in screen
                and all(word in screen for word in seen or words)
                and "→ " in screen
            )

        self.until(told, f"{name}: {words}")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    terminal = Terminal(tmp_path)
    try:
        with (
            small_mount(tmp_path / "disk", "96m") as disk,
            Daemons(disk, *NODES) as daemons,
            small_mount(daemons.site.tmpfs / "node1", "8m") as memory,
        ):
            memory.chmod(0o700)
            daemons.start(*NODES)
            sitting = Desk(daemons, disk, memory, terminal)
            sitting.until_well()
            yield sitting
            terminal.type("q")
            terminal.until_words("left with 0")
    finally:
        terminal.kill()


def test_what_is_asked_is_known_within_five_seconds() -> None:
    asked = (live.MOUNT_PERIOD_NS, live.SHARD_PERIOD_NS, live.OWN_PERIOD_NS)
    assert releases.LOOK_NS + releases.ASK_NS < 5 * SECOND
    assert max(asked) + feed.SILENT_NS < 5 * SECOND
    assert live.OWN_PERIOD_NS + service._PATIENCE_S * SECOND < 5 * SECOND


def test_node_that_stands_still_and_node_that_died_are_told_by_every_view(desk: Desk) -> None:
    desk.daemons.send("node2", signal.SIGSTOP)
    desk.until_told("other nodes", "1 answer", "no answer from node2", ready=True, seen=["node2 ✗ 1 ✗ no answer"])
    desk.daemons.kill("node3")
    both = ["node2 ✗ 1 ✗ no answer", "node3 ✗ 2 ✗ no answer"]
    desk.until_told("other nodes", "0 answer", "node2", "node3", ready=True, seen=both)
    desk.daemons.send("node2", signal.SIGCONT)
    desk.until_told(
        "other nodes", "1 answer", "no answer from node3", ready=True, seen=["node2 1 ", "node3 ✗ 2 ✗ no answer"]
    )
    desk.daemons.start("node3")
    desk.until_well()


# Its own door says nothing then: whoever asks has to be told by the others.
def test_own_daemon_that_stands_still_is_told_with_its_number(desk: Desk) -> None:
    desk.daemons.send("node1", signal.SIGSTOP)
    process = desk.daemons.running["node1"].pid

    def told() -> bool:
        code, checks = desk.status()
        screen = desk.screen()
        return (
            code == 1
            and f"process {process} of this machine runs node1" in checks["daemon"].reason
            and "kill -CONT" in checks["daemon"].way_out
            and "✗ NOT HEALTHY" in screen
            and f"process {process} of this machine runs node1" in screen
        )

    try:
        desk.until(told, "the daemon stands still")
        assert desk.page("/readyz") == (0, "")
    finally:
        desk.daemons.send("node1", signal.SIGCONT)
    desk.until_well()


def test_mount_that_is_full_is_told_by_every_view(desk: Desk) -> None:
    fill(desk.disk)
    desk.until_told("room", "0.0 GiB left", ready=False)
    (desk.disk / "filler").unlink()
    desk.until_well()


OVERLAP_S: Final = 2


def test_keys_are_rotated_without_a_restart_and_all_is_well(desk: Desk) -> None:
    site = desk.daemons.site
    words = ["--root-key", str(site.root_key_file), "--overlap", f"{OVERLAP_S}s"]
    done = desk.daemons.tenure("node2", "trust", "rotate", *words)
    assert done.returncode == 0, done.stderr
    time.sleep(2 * OVERLAP_S)  # those from before are over by then, and a daemon that uses them still has noticed
    desk.until_well()


def test_tmpfs_that_is_full_is_told_by_every_view(desk: Desk) -> None:
    fill(desk.memory)
    desk.until_told("tmpfs", "full", ready=False)
    (desk.memory / "filler").unlink()
    desk.until_well()
