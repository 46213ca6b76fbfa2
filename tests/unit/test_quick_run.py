"""``tenure run`` by a sub-lease of the node's daemon: what it loads and tells, and what it leaves alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from appliance.daemon.daemon import Node
from appliance.formats.lease import Mode
from appliance.node.desk_wire import door
from appliance.node.runtime import close_doors, open_doors, user_directory
from appliance.recipes.quick_run import quick_run
from tests.support.cluster import Site, wait_until
from tests.support.run_stage import slow_policy
from timeagent.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAVY = {"appliance.cluster", "argparse", "cryptography", "dataclasses", "msgspec", "numpy", "pathlib", "typing"}
"""What a command by a sub-lease has no time to load, unless the interpreter has loaded it by itself."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, policy=slow_policy(tmp_path))
    yield site
    site.close()


@pytest.fixture
def node(site: Site) -> Iterator[Node]:
    with site.open() as cluster:
        node = Node(cluster)
        node.start()
        yield node
        node.stop()
    node.close()


def started(site: Site, *words: str, quick: bool = True) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tenure", "run", *site.options(), *(["--quick"] if quick else []), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(site: Site, *words: str, quick: bool = True) -> tuple[int, str, str]:
    with started(site, *words, quick=quick) as process:
        out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def test_command_is_told_its_lease_and_its_code_is_kept(site: Site, node: Node) -> None:
    shown = 'echo "$TENURE_LEASE $TENURE_FENCE $TENURE_EXPIRY"; exit 7'
    code, out, err = ended(site, "--lease", "a b", "--", "sh", "-c", shown)
    assert (code, err) == (7, "")
    *name, fence, expiry = out.split()
    assert name == ["a", "b"]
    assert int(fence) > 0
    assert expiry.endswith("Z")
    assert node.desk.handed_out == 1


def test_command_of_any_name_is_run(site: Site, node: Node, tmp_path: Path) -> None:
    names = ["x" * 200, "\u20ac" * 60, "a\tb", "\udcff"]
    for name in names:
        (tmp_path / name).symlink_to("/bin/true")
        assert ended(site, "--lease", "a", "--", str(tmp_path / name)) == (0, "", "")
    assert node.desk.handed_out == len(names)


@pytest.mark.parametrize("words", [(), ("--mode", "IX"), ("--purpose", "said"), ("--lease", "other")])
def test_what_is_not_said_in_the_plainest_way_has_a_lease_of_its_own(
    site: Site, node: Node, words: tuple[str, ...]
) -> None:
    code, out, err = ended(site, "--lease", "d", *words, "--", "sh", "-c", "echo $TENURE_FENCE", quick=bool(words))
    assert (code, err) == (0, "")
    assert int(out) > 0
    assert node.desk.handed_out == 0


def test_commands_that_share_run_beside_each_other(site: Site, node: Node) -> None:
    with started(site, "--lease", "d", "--mode", "S", "--", "sh", "-c", "echo on; exec sleep 100") as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "on\n"
        assert ended(site, "--lease", "d", "--mode", "S", "--wait", "0", "--", "true")[0] == 0
        assert ended(site, "--lease", "d", "--wait", "0", "--", "true")[0] == 75
        holder.send_signal(signal.SIGTERM)
    assert (node.desk.leases, node.desk.handed_out) == (1, 2)


def test_fence_grows_from_a_sub_lease_to_a_lease_of_its_own_and_back(site: Site, node: Node) -> None:
    fences = [
        int(ended(site, "--lease", "d", "--", "sh", "-c", "echo $TENURE_FENCE", quick=quick)[1])
        for quick in (True, False, True, True)
    ]
    assert sorted(set(fences)) == fences
    assert node.desk.handed_out == 3


def test_without_a_daemon_the_whole_command_takes_a_lease(site: Site) -> None:
    assert ended(site, "--lease", "d", "--", "sh", "-c", "exit 5")[0] == 5


@pytest.mark.parametrize("of", ["quick_run.socket.socket", "os.pipe", "os.fork"])
def test_what_the_kernel_refuses_before_anything_has_begun_is_left_to_the_whole_command(
    site: Site, node: Node, of: str
) -> None:
    """Which is not hindered by what was left half done, and hears signals."""
    script = (
        "import os, runpy, sys\n"
        "from types import SimpleNamespace\n"
        "from appliance.recipes import quick_run\n"
        "quick_run.socket = SimpleNamespace(**vars(quick_run.socket))\n"
        f"real = {of}\n"
        "def refused(*words):\n"
        f"    {of} = real\n"
        "    raise OSError(23, 'Too many open files in system')\n"
        f"{of} = refused\n"
        "runpy.run_module('tenure', run_name='__main__', alter_sys=True)\n"
    )
    command = ["--lease", "d", "--", "sh", "-c", "grep SigBlk /proc/self/status; exit 5"]
    words = [sys.executable, "-c", script, "run", *site.options(), "--quick", *command]
    done = subprocess.run(words, check=False, timeout=120, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (5, "SigBlk:\t0000000000000000\n", "")


def test_who_waits_too_long_is_told_so(site: Site, node: Node) -> None:
    with started(site, "--lease", "d", "--", "sh", "-c", "echo on; exec sleep 100") as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "on\n"
        code, out, err = ended(site, "--lease", "d", "--wait", "0", "--", "echo", "never")
        assert (code, out) == (75, "")
        assert "[busy]" in err
        holder.send_signal(signal.SIGTERM)
        assert holder.wait(60) == 128 + signal.SIGTERM, "it was sent on, and the command's code kept"


def test_who_is_interrupted_while_it_waits_says_so_and_leaves_the_queue(site: Site, node: Node) -> None:
    with started(site, "--lease", "d", "--", "sh", "-c", "echo on; exec sleep 100") as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "on\n"
        desk = node.desk
        assert desk is not None
        with started(site, "--lease", "d", "--", "true") as waits:
            wait_until(SystemClock(), lambda: len(desk._places["d", Mode.X].queue) == 1)
            waits.send_signal(signal.SIGINT)
            _, err = waits.communicate(timeout=60)
        assert (waits.returncode, err) == (130, "tenure: interrupted\n")
        wait_until(SystemClock(), lambda: not desk._places["d", Mode.X].queue)
        holder.send_signal(signal.SIGTERM)


def test_end_of_the_daemon_ends_the_command(site: Site, node: Node, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    script = f"trap '' TERM; sleep 100 & echo $! >{mark}; echo on; wait"
    with started(site, "--lease", "d", "--", "sh", "-c", script) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "on\n"
        node.stop()  # returns when no sub-lease can be believed in
        with pytest.raises(ProcessLookupError):
            os.kill(int(mark.read_text()), 0)
        assert holder.wait(60) == 76


def test_descendant_of_a_runner_that_was_killed_is_waited_for(site: Site, node: Node) -> None:
    desk = node.desk
    assert desk is not None
    with started(site, "--lease", "d", "--", "sh", "-c", "echo on; exec sleep 100") as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "on\n"
        holder.kill()
        holder.wait()
        assert desk._places["d", Mode.X].lease is not None
        assert ended(site, "--lease", "d", "--wait", "0", "--", "true")[0] == 75
        wait_until(SystemClock(), lambda: ("d", Mode.X) not in desk._places)


def test_door_goes_with_its_daemon_and_what_killed_ones_left_with_the_next(site: Site, tmp_path: Path) -> None:
    place = door(str(user_directory()), str(site.root), str(site.node_dir()))
    assert place is not None
    with site.open() as cluster:
        node = Node(cluster)
        node.start()
        assert os.path.lexists(place)
        node.stop()
    node.close()
    assert not os.path.lexists(place)
    left, there = (Path(place).with_name(f"{tmp_path.name} {each}") for each in ("left", "there"))
    left.symlink_to(tmp_path / "gone")
    there.symlink_to(tmp_path)
    open_doors([place], tmp_path / "writer.sock")
    try:
        assert not left.is_symlink()
        assert there.is_symlink()
        assert not os.path.lexists(place), "nobody listens there"
        open_doors([place], tmp_path)
        close_doors([place], tmp_path / "of another daemon")
        assert os.path.lexists(place)
    finally:
        there.unlink()
        close_doors([place], tmp_path)


def test_command_that_is_not_there_takes_no_lease(site: Site, node: Node) -> None:
    code, _, err = ended(site, "--lease", "d", "--", "no-such-program")
    assert (code, "[not-found]" in err) == (127, True)
    assert node.desk.handed_out == 0


def test_it_loads_no_library(site: Site, node: Node, repository: Path) -> None:
    script = (
        "import sys; before = set(sys.modules)\n"
        "from tenure.script import entry\n"
        f"sys.argv = {['tenure', 'run', *site.options(), '--quick', '--lease', 'd', '--', 'true']!r}\n"
        "assert entry() == 0\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "appliance.recipes.quick_run" in loaded
    assert loaded & HEAVY == set()
    assert len(loaded) < 45, sorted(loaded)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--lease", "d"],
        ["--lease", "d", "--"],
        ["--lease=d", "--", "true"],
        ["--lease", "d", "true"],
        ["--lease", "--wait", "--", "true"],
        ["--lease", "d", "--help", "--", "true"],
    ],
)
def test_what_it_does_not_understand_it_leaves_alone(words: list[str]) -> None:
    assert quick_run(["--root", "/nowhere", "--allow-root", "--quick", *words]) is None


def test_what_the_command_leaves_in_its_own_group_is_asked_to_end_first(tmp_path: Path) -> None:
    asked, ready = tmp_path / "asked", tmp_path / "ready"
    left = f"trap 'touch {asked}; exit' TERM; touch {ready}; while :; do sleep 0.05; done"
    script = (
        "import sys\n"
        "from appliance.recipes.processes import ProcessTree\n"
        "import os, signal, time\n"
        "with ProcessTree(['sh', '-c', sys.argv[1]]) as tree:\n"
        "    tree.start({'A': 'b'})\n"
        "    while tree.status() is None or not os.path.exists(sys.argv[2]): time.sleep(0.01)\n"
        "    assert not tree.over()\n"
        "    tree.signal(signal.SIGTERM)\n"
        "    while not tree.over(): time.sleep(0.01)\n"
    )
    words = [sys.executable, "-c", script, f'sh -c "{left}" & exit 3', str(ready)]
    subprocess.run(words, check=True, timeout=100)
    assert asked.exists()


# Such as `sudo`, which is the superuser's by then: its end is waited for, and its code kept.
@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can become somebody else")
def test_command_of_another_user_that_may_not_be_signalled_is_waited_for() -> None:
    become_nobody = (
        "(os.setresuid(65534, 65534, 0), tree.send(signal.SIGTERM), tree.signal(signal.SIGTERM), tree.kill())"
    )
    assert code_of("import os", "pass", "sleep 1; exit 3", become_nobody) == 3


# As under a program that ignores it, and whatever it was that made that ignore it.
def test_exit_code_is_kept_where_the_end_of_children_is_ignored() -> None:
    assert code_of("signal.signal(signal.SIGCHLD, signal.SIG_IGN)", "pass", "exit 3") == 3


# PermissionError: as where /proc is mounted with hidepid=noaccess. Else the kernel has no room, once.
@pytest.mark.parametrize(
    "fault",
    [
        "processes.open = lambda path, _: refuse(PermissionError(1, path)) if '/1/' in path else open(path, 'rb')",
        "os.listdir = once(os.listdir)",
        "os.pidfd_open = once(os.pidfd_open)",
        "processes.open = once(open)",
    ],
)
def test_look_that_fails_lets_no_descendant_live(fault: str) -> None:
    before = (
        "import os\n"
        "from appliance.recipes import processes\n"
        "def refuse(problem): raise problem\n"
        "def once(real):\n"
        "    ahead = iter([OSError(23, 'Too many open files in system')])\n"
        "    return lambda *words: refuse(each) if (each := next(ahead, None)) else real(*words)\n"
        f"{fault}"
    )
    assert code_of(before, "pass", "setsid sleep 100 & exit 3") == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_that_comes_before_the_program_is_in_the_exit_code(number: signal.Signals) -> None:
    before = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))"
    assert code_of(before, f"tree.send({number.value})", "sleep 100") == 128 + number


def code_of(before: str, at_once: str, command: str, meanwhile: str = "pass") -> int:
    """How a command ends in a process that does these before it makes it, before it starts it, and while it runs."""
    script = (
        "import signal, sys\n"
        "from appliance.recipes.processes import ProcessTree\n"
        f"{before}\n"
        "with ProcessTree(['sh', '-c', sys.argv[1]]) as tree:\n"
        f"    {at_once}\n"
        "    tree.start({'A': 'b'})\n"
        f"    {meanwhile}\n"
        "    while (code := tree.status()) is None: pass\n"
        "sys.exit(code)\n"
    )
    return subprocess.run([sys.executable, "-c", script, command], check=False, timeout=100).returncode
