"""``tenure run`` with real children that misbehave, and a shard that dies, hangs, is cut off or takes leases away."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.faults.soak_run import KINDS, LEASE_LOST, soak
from tests.support.cluster import wait_until
from tests.support.run_stage import PATIENCE_S, Runner, Stage, marked
from tests.support.runner import MUTANTS
from tests.support.warm import ran
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    stage = Stage(tmp_path_factory.mktemp("stage"), random.Random(7))
    yield stage
    stage.close()


@pytest.fixture
def begin(stage: Stage, tmp_path: Path) -> Iterator[Callable[..., tuple[str, Runner]]]:
    runners: list[Runner] = []

    def begun(*words: str) -> tuple[str, Runner]:
        name, ready = stage.fresh_name(), tmp_path / f"ready{len(runners)}"
        runner = stage.run(name, f"{os.getpid()}-{stage.path.name}-{name}", *words[:-1], f"ready={ready}", words[-1])
        runners.append(runner)
        runner.wait_ready(stage.clock, ready)
        assert ready.exists(), runner.said
        return name, runner

    yield begun
    stage.line.mend()
    for each in runners:
        each.end()


def run_to_the_end(stage: Stage, name: str, *command: str) -> subprocess.CompletedProcess[str]:
    return ran("tenure", ["run", *stage.site.options("node2"), "--lease", name, "--", *command])


@pytest.mark.parametrize("code", [0, 3, 76])
def test_exit_code_is_the_commands(stage: Stage, code: int) -> None:
    assert run_to_the_end(stage, stage.fresh_name(), "sh", "-c", f"exit {code}").returncode == code


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGUSR1])
def test_signal_that_ends_the_command_is_in_the_exit_code(stage: Stage, number: int) -> None:
    done = run_to_the_end(stage, stage.fresh_name(), "sh", "-c", f"kill -{number} $$")
    assert done.returncode == 128 + number


def test_command_finds_fence_lease_and_expiry_in_its_environment(stage: Stage) -> None:
    names = sorted(stage.fresh_name() for _ in range(2))
    told = 'echo "$TENURE_LEASE $TENURE_FENCE $TENURE_EXPIRY"; echo "$TENURE_FENCES"'
    words = [each for name in reversed(names) for each in ("--lease", name)]
    done = ran("tenure", ["run", *stage.site.options("node2"), *words, "--", "sh", "-c", told])
    first, *fences = done.stdout.splitlines()
    lease, fence, expiry = first.split()
    assert lease == names[1]
    assert fences == [f"{names[1]}={fence}", fences[1]]
    assert fences[1].startswith(f"{names[0]}=")
    assert int(fence) > 0
    assert expiry.endswith("Z")


@pytest.mark.parametrize(("program", "code"), [("there-is-none", 127), ("/there/is/none", 127), ("/etc/passwd", 126)])
def test_program_that_cannot_be_run_costs_no_lease(program: str, code: int) -> None:
    done = ran("tenure", ["run", "--root", "/nowhere", "--lease", "x", "--", program])
    assert (done.returncode, done.stdout) == (code, "")
    assert "no lease was taken" in done.stderr
    assert ("way out: chmod +x" if code == 126 else "way out: see whether") in done.stderr


def test_file_that_is_no_program_is_told_by_its_code(stage: Stage, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_bytes(b"\x7fELF but not really")
    script.chmod(0o755)
    assert run_to_the_end(stage, stage.fresh_name(), str(script)).returncode == 126


# What others see as the reason is plain text and short; a file's name need not be.
@pytest.mark.parametrize("name", ["x" * 200, "\u20ac" * 60, "a\tb", "\udcff"])
def test_command_of_any_name_is_run(stage: Stage, tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to("/bin/true")
    assert run_to_the_end(stage, stage.fresh_name(), str(tmp_path / name)).returncode == 0


SWALLOWED = """
import signal, sys
from appliance.cli import run
from tenure.__main__ import entry

signal.signal({number}, signal.SIG_DFL)  # as of a shell, not of nohup

def opened(options, open_cluster=run.open_cluster):
    try:
        signal.raise_signal({number})
    except BaseException:
        pass  # as Python does in a callback or a destructor
    return open_cluster(options)

run.open_cluster = opened
sys.exit(entry())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_before_the_command_is_heard_whatever_runs_then(
    stage: Stage, tmp_path: Path, number: signal.Signals
) -> None:
    begun = tmp_path / "begun"
    words = ["run", *stage.site.options("node2"), "--lease", stage.fresh_name(), "--", "touch", str(begun)]
    program = SWALLOWED.format(number=number.value)
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, begun.exists()) == (128 + number, False), done.stderr


@pytest.mark.parametrize("chosen", [("--semaphore", "s:2"), ("--elect", "e")])
def test_mode_of_what_has_none_is_refused(stage: Stage, chosen: tuple[str, str]) -> None:
    done = ran("tenure", ["run", *stage.site.options("node2"), *chosen, "--mode", "S", "--", "true"])
    assert (done.returncode, "[no-mode]" in done.stderr) == (2, True)


@pytest.mark.parametrize("size", ["", "x", "-1", "9" * 5_000])
def test_what_is_no_size_of_a_semaphore_is_refused(stage: Stage, size: str) -> None:
    done = ran("tenure", ["run", *stage.site.options("node2"), "--semaphore", f"s:{size}", "--", "true"])
    assert (done.returncode, "[bad-semaphore]" in done.stderr) == (2, True)


def test_lease_that_another_has_is_not_had_in_time(stage: Stage) -> None:
    name = stage.fresh_name()
    with stage.session.acquire(name):
        runner = stage.run(name, "busy", "exit=0", wait="0")
        assert runner.code() == 75
    runner.end()
    assert "[busy]" in runner.said


@pytest.mark.parametrize("kind", ["deaf", "session", "daemon", "stopped", "chain"])
def test_nothing_outlives_a_lease_that_is_taken_away(
    stage: Stage, begin: Callable[..., tuple[str, Runner]], kind: str
) -> None:
    name, runner = begin("deaf", kind, "sleep")
    stage.revoke(name)
    assert stage.when_rival_has(name, runner.mark) == []
    assert runner.code() == LEASE_LOST
    assert marked(runner.mark) == []


@pytest.mark.parametrize("reader", ["stands still", "is gone"])
def test_nothing_outlives_a_lease_though_nobody_reads_what_is_said(stage: Stage, tmp_path: Path, reader: str) -> None:
    name, ready, (read, write) = stage.fresh_name(), tmp_path / "ready", os.pipe()
    if reader == "is gone":
        os.close(read)
    else:
        os.set_blocking(write, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(write, b"x" * 4096)
        os.set_blocking(write, True)
    mark = f"{os.getpid()}-{stage.path.name}-{name}"
    runner = stage.run(name, mark, "deaf", f"ready={ready}", "sleep", stderr=write)
    try:
        runner.wait_ready(stage.clock, ready)
        assert ready.exists()
        stage.revoke(name)
        assert stage.when_rival_has(name, mark) == []
        os.set_blocking(read, False) if reader == "stands still" else None
        while reader == "stands still" and runner.process.poll() is None:
            with contextlib.suppress(BlockingIOError):
                os.read(read, 65536)
            stage.clock.sleep(MS)
        assert runner.code() == LEASE_LOST
    finally:
        runner.end()
        os.close(write)
        if reader == "stands still":
            os.close(read)


@pytest.mark.parametrize("fault", ["cut", "hold", "crash"])
def test_nothing_outlives_a_lease_that_cannot_be_renewed(
    stage: Stage, begin: Callable[..., tuple[str, Runner]], fault: str
) -> None:
    name, runner = begin("deaf", "daemon", "stopped", "stop")
    {"cut": stage.line.cut, "hold": stage.line.hold, "crash": stage.crash_shard}[fault]()
    assert stage.when_rival_has(name, runner.mark) == []
    assert runner.code() == LEASE_LOST
    assert marked(runner.mark) == []


def test_what_the_command_leaves_behind_is_ended_before_the_lease_is_given_back(
    stage: Stage, begin: Callable[..., tuple[str, Runner]]
) -> None:
    name, runner = begin(*KINDS, "exit=5")
    assert stage.when_rival_has(name, runner.mark) == []
    assert runner.code() == 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_signal_reaches_the_command_and_its_end_is_told(
    begin: Callable[..., tuple[str, Runner]], number: signal.Signals
) -> None:
    _, runner = begin("fork", "sleep")
    runner.process.send_signal(number)
    assert runner.code() == 128 + number
    assert marked(runner.mark) == []


def test_command_that_ignores_a_signal_goes_on(stage: Stage, begin: Callable[..., tuple[str, Runner]]) -> None:
    name, runner = begin("deaf", "sleep")
    runner.process.send_signal(signal.SIGTERM)
    stage.clock.sleep(SECOND)
    assert runner.process.poll() is None
    assert marked(runner.mark)
    stage.revoke(name)
    assert runner.code() == LEASE_LOST


# The documented gap: SIGKILL of the runner takes the command with it, and nothing that the command has begun.
def test_command_dies_with_a_runner_that_is_killed(stage: Stage, begin: Callable[..., tuple[str, Runner]]) -> None:
    _, runner = begin("deaf", "sleep")
    (command,) = marked(runner.mark)
    runner.process.kill()
    assert runner.code() == -signal.SIGKILL
    wait_until(stage.clock, lambda: command not in marked(runner.mark))


# It could stop nobody while it stood still; once it runs again nothing of the command does.
def test_runner_that_stood_still_looks_at_its_lease_first(
    stage: Stage, begin: Callable[..., tuple[str, Runner]]
) -> None:
    name, runner = begin("deaf", "daemon", "sleep")
    runner.process.send_signal(signal.SIGSTOP)
    stage.when_rival_has(name, runner.mark)
    runner.process.send_signal(signal.SIGCONT)
    assert runner.code() == LEASE_LOST
    assert marked(runner.mark) == []


# In front of it, the command reads its terminal and gets what is typed there, Ctrl-C as well.
def test_command_has_the_terminal_and_its_code_is_kept(stage: Stage) -> None:
    near, far = os.openpty()
    words = [sys.executable, "-m", "tenure", "run", *stage.site.options("node2"), "--lease", stage.fresh_name(), "--"]
    script = "read word; test $word = hello && echo there; exec sleep 100"
    command = ["env", "--default-signal", "setsid", "--ctty", *words, "sh", "-c", script]
    process = subprocess.Popen(command, stdin=far, stdout=far, stderr=far)
    os.close(far)
    os.write(near, b"hello\n")
    shown = b""
    while b"there" not in shown:
        shown += os.read(near, 4096)
    os.write(near, b"\x03")
    assert process.wait(PATIENCE_S) == 128 + signal.SIGINT
    os.close(near)


# As where ssh -t has begun it and the connection breaks: the kernel sends the leader of the session SIGHUP and SIGCONT.
def test_command_that_ignores_the_end_of_its_terminal_goes_on_under_its_lease(stage: Stage, tmp_path: Path) -> None:
    near, far = os.openpty()
    words = [sys.executable, "-m", "tenure", "run", *stage.site.options("node2"), "--lease", stage.fresh_name(), "--"]
    script = f"trap '' HUP; echo there; sleep 1; touch {tmp_path}/done; exit 7"
    command = ["env", "--default-signal", "setsid", "--ctty", *words, "sh", "-c", script]
    process = subprocess.Popen(command, stdin=far, stdout=far, stderr=far)
    os.close(far)
    shown = b""
    while b"there" not in shown:
        shown += os.read(near, 4096)
    os.close(near)
    assert process.wait(PATIENCE_S) == 7
    assert (tmp_path / "done").exists()


@pytest.mark.slow
def test_random_runs_break_no_rule() -> None:
    assert soak(range(1000, 1010), 2, None).violations == []


SEEN_BY = {
    "kills-only-the-group": ("deaf", "daemon", "sleep"),
    "is-no-subreaper": ("deaf", "daemon", "exit=0"),
    "sigkill-after-the-expiry": ("deaf", "sleep"),
    "never-kills": ("deaf", "sleep"),
    "loses-the-exit-code": ("exit=3",),
}


@pytest.mark.verify
@pytest.mark.parametrize("mutant", MUTANTS)
def test_wrong_step_breaks_a_rule(stage: Stage, tmp_path: Path, mutant: str) -> None:
    name, mark, ready = stage.fresh_name(), f"{os.getpid()}-{mutant}", tmp_path / "ready"
    *kinds, end = SEEN_BY[mutant]
    runner = stage.run(name, mark, *kinds, f"ready={ready}", end, mutant=mutant)
    runner.wait_ready(stage.clock, ready)
    if end == "sleep":
        stage.revoke(name)
    alive = stage.when_rival_has(name, mark)
    lost = end == "exit=3" and runner.code() != 3
    runner.end()
    assert alive or lost, runner.said
