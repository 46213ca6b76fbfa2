"""Leaders in processes of their own: killed, or stopped behind their last check and woken when another leads."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import termios
from typing import TYPE_CHECKING

import pytest

from appliance.recipes.election import Election
from appliance.recipes.exclusion import Semaphore
from appliance.recipes.fence_gate import FenceGate
from tests.support.cluster import Site, wait_until
from tests.support.warm import WarmProcess
from tests.support.zombie import election_of
from timeagent.clock import SystemClock
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from appliance.cluster import Cluster

PATIENCE_S = 120


@pytest.fixture
def cluster(site: Site) -> Iterator[Cluster]:
    with site.daemon() as cluster:
        with cluster.session() as session, session.acquire("its shard begins"):
            pass
        yield cluster


@pytest.fixture
def gate_file(tmp_path: Path) -> Path:
    return tmp_path / "fences.db"


class Zombie:
    """One leader in a process of its own."""

    def __init__(self, site: Site, kind: str, gate_file: Path) -> None:
        words = [str(site.root), str(site.node_dir()), kind, str(gate_file)]
        self.process = WarmProcess("tests.support.zombie", words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.epoch = int(self.heard())
        assert self.heard() == "checked"

    def heard(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.communicate()


@pytest.mark.parametrize("kind", ["lease", "mount"])
def test_leader_that_is_stopped_and_woken_is_refused_by_the_receiver(
    kind: str, site: Site, cluster: Cluster, gate_file: Path
) -> None:
    with contextlib.closing(Zombie(site, kind, gate_file)) as zombie, contextlib.closing(FenceGate(gate_file)) as gate:
        zombie.process.send_signal(signal.SIGSTOP)
        with election_of(cluster, kind, "successor").campaign(timeout_s=PATIENCE_S) as leadership:
            assert leadership.epoch > zombie.epoch
            with gate.passing(leadership.epoch):
                leadership.check()
            zombie.process.send_signal(signal.SIGCONT)
            assert zombie.process.stdin is not None
            zombie.process.stdin.write("go on\n")
            zombie.process.stdin.flush()
            assert (zombie.heard(), zombie.heard()) == ("fence-passed", "lost")
            assert gate.highest() == leadership.epoch


@pytest.mark.parametrize("kind", ["lease", "mount"])
def test_leader_that_is_killed_is_followed(kind: str, site: Site, cluster: Cluster, gate_file: Path) -> None:
    with contextlib.closing(Zombie(site, kind, gate_file)) as zombie:
        zombie.process.kill()
        with election_of(cluster, kind, "successor").campaign(timeout_s=PATIENCE_S) as leadership:
            assert leadership.epoch > zombie.epoch


# -- from a shell ------------------------------------------------------------------------------------------------------


def run(site: Site, *words: str, wait: str = "0", stderr: int = subprocess.PIPE) -> subprocess.Popen[str]:
    words = ("run", *site.options(), "--wait", wait, *words)
    return WarmProcess("tenure", words, stdout=subprocess.PIPE, stderr=stderr)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    told, said = process.communicate(timeout=PATIENCE_S)
    return process.returncode, told, said


def test_command_runs_as_the_leader_and_another_leads_when_it_has_been_told_to_end(
    site: Site, cluster: Cluster, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    script = f'echo "$TENURE_FENCE"; : >{ready}; trap "exit 7" TERM; while :; do sleep 0.1; done'
    leader = run(site, "--elect", "e", "--purpose", "shell", "--", "sh", "-c", script)
    wait_until(SystemClock(), lambda: ready.exists() or leader.poll() is not None, PATIENCE_S * SECOND)
    leads = election_of(cluster, "lease", "other", "e").leader()
    assert leads is not None, leader.poll()
    assert leads.candidate == "shell"
    code, _, said = ended(run(site, "--elect", "e", "--", "true"))
    assert (code, "busy" in said) == (75, True)
    leader.terminate()
    code, told, said = ended(leader)
    assert code == 7, said
    assert int(told) == leads.epoch
    code, _, said = ended(run(site, "--elect", "e", "--", "true"))
    assert code == 0, said


def test_commands_run_under_a_semaphore_and_no_more_than_it_says(site: Site, cluster: Cluster) -> None:
    with cluster.session() as session, Semaphore(session, "gpu", 2), Semaphore(session, "gpu", 2) as hold:
        code, _, said = ended(run(site, "--semaphore", "gpu:2", "--", "true"))
        assert (code, "busy" in said) == (75, True)
        code, _, said = ended(run(site, "--semaphore", "gpu:3", "--", "true"))
        assert (code, "semaphore-size" in said) == (2, True)
        hold.relinquish()
        _, told, said = ended(run(site, "--semaphore", "gpu:2", "--", "sh", "-c", 'echo "$TENURE_LEASE"'))
        assert told.strip() == hold.lease.domain, said


@pytest.mark.parametrize("words", [["--semaphore", "gpu:1"], ["--elect", "gpu"]])
def test_terminal_is_shown_who_is_waited_for_and_a_pipe_is_not(site: Site, cluster: Cluster, words: list[str]) -> None:
    with (
        cluster.session("the other") as session,
        Semaphore(session, "gpu", 1) if words[0] == "--semaphore" else Election(session, "gpu"),
    ):
        near, far = os.openpty()
        termios.tcsetwinsize(far, (24, 200))  # what does not go into a row is cut off
        waits = run(site, *words, "--", "true", wait="60s", stderr=far)
        os.close(far)
        shown = b""
        while b"the other) has it since" not in shown:
            shown += os.read(near, 4096)
        waits.terminate()
        waits.communicate()
        os.close(near)
        assert b"waiting, place: 1 for /" in shown
        code, _, said = ended(run(site, *words, "--", "true", wait="1s"))
        assert (code, "waiting" in said) == (75, False)


@pytest.mark.parametrize(
    "words", [[], ["--semaphore", "gpu"], ["--semaphore", "gpu:x"], ["--lease", "a", "--elect", "e"]]
)
def test_what_says_nothing_or_too_much_is_refused(site: Site, cluster: Cluster, words: list[str]) -> None:
    del cluster
    assert ended(run(site, *words, "--", "true"))[0] == 2
