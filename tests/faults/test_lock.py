"""``tenure lock`` and ``unlock``: whose it is, and what comes of a shell, a keeper or a lease that ends."""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from appliance.recipes.lock import LOST, OWNERLESS, LockRecord, locks
from appliance.single_leases import ByHand
from tests.support.cluster import Site, sites, wait_until
from tests.support.warm import WarmProcess, ran
from timeagent.clock import SystemClock
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from appliance.cluster import Cluster

NAME = "deploy"
PATIENCE_S = 100


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    yield from sites(tmp_path)


@pytest.fixture
def cluster(site: Site) -> Iterator[Cluster]:
    """The node's shard runs in this process."""
    with site.open() as cluster:
        cluster.routes.host.try_host(0, cluster.map)
        yield cluster


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait(PATIENCE_S)


def said(site: Site, *words: str | int) -> subprocess.CompletedProcess[str]:
    return ran("tenure", [*map(str, words), *site.options()])


def record(cluster: Cluster) -> LockRecord:
    ((_, found),) = locks(cluster.routes.runtime, NAME)
    return found


def is_free(cluster: Cluster) -> bool:
    """Whether nobody has it: a shard lists what has expired until somebody asks for it."""
    leases, now = ByHand(cluster, random.Random(1)).leases(NAME), cluster.time.now()
    return all(now.surely_past(each.expiry_ns) for each in leases)


def end(owner: subprocess.Popen[bytes]) -> None:
    owner.kill()
    owner.wait(PATIENCE_S)


def test_lock_is_held_until_it_is_unlocked(site: Site, cluster: Cluster, owner: subprocess.Popen[bytes]) -> None:
    locked = said(site, "lock", NAME, "--pid", owner.pid)
    (lease,) = ByHand(cluster, random.Random(1)).leases(NAME)
    assert (locked.returncode, locked.stdout, locked.stderr) == (0, f"{lease.fence}\n", "")
    SystemClock().sleep(2 * site.policy.lease_term_max_ns)
    other = said(site, "lock", NAME, "--pid", os.getpid(), "--wait", "0")
    assert other.returncode == 75
    assert f"by sleep/{owner.pid}" in other.stderr
    assert said(site, "unlock", NAME, "--pid", owner.pid).returncode == 0
    assert is_free(cluster)
    assert said(site, "unlock", NAME, "--pid", owner.pid).returncode == 2


def test_lock_ends_with_its_owner(site: Site, cluster: Cluster, owner: subprocess.Popen[bytes]) -> None:
    assert said(site, "lock", NAME, "--pid", owner.pid).returncode == 0
    end(owner)
    wait_until(SystemClock(), lambda: is_free(cluster))
    assert list(locks(cluster.routes.runtime, NAME)) == []


def test_lock_is_held_for_an_owner_of_any_name(site: Site, cluster: Cluster, tmp_path: Path) -> None:
    shutil.copy("/bin/sleep", tmp_path / "a\tb")
    with subprocess.Popen([tmp_path / "a\tb", "600"]) as owner:
        locked = said(site, "lock", NAME, "--pid", owner.pid)
        other = said(site, "lock", NAME, "--pid", os.getpid(), "--wait", "0")
        owner.kill()
    assert locked.returncode == 0, locked.stderr
    assert rf"by a\tb/{owner.pid}" in other.stderr, "a terminal does not obey it"
    wait_until(SystemClock(), lambda: is_free(cluster))


def test_shell_unlocks_what_it_has_locked_and_knows_its_fence(site: Site, cluster: Cluster) -> None:
    tenure = f"{sys.executable} -m tenure"
    words = " ".join(site.options())
    script = f'f=$({tenure} lock {words} --pid $$ {NAME}) && echo "$f" && (exec {tenure} unlock {words} {NAME})'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 0
    assert is_free(cluster)


def test_nobody_unlocks_anothers_but_by_force(site: Site, cluster: Cluster, owner: subprocess.Popen[bytes]) -> None:
    said(site, "lock", NAME, "--pid", owner.pid)
    refused = said(site, "unlock", NAME)
    assert refused.returncode == 2
    assert "[not-owner]" in refused.stderr
    assert not is_free(cluster)
    assert said(site, "unlock", NAME, "--force").returncode == 0
    assert is_free(cluster)


def test_lock_that_is_held_on_says_who_died_and_ends_by_force_alone(
    site: Site, cluster: Cluster, owner: subprocess.Popen[bytes]
) -> None:
    said(site, "lock", NAME, "--pid", owner.pid, "--hold-if-orphaned")
    end(owner)
    wait_until(SystemClock(), lambda: record(cluster).state == OWNERLESS)
    SystemClock().sleep(2 * site.policy.lease_term_max_ns)
    other = said(site, "lock", NAME, "--pid", os.getpid(), "--wait", "0")
    assert other.returncode == 75
    assert "held on after its owner died since 2" in other.stderr
    assert f"sleep/{owner.pid}" in other.stderr
    assert "[not-owner]" in said(site, "unlock", NAME, "--pid", os.getpid()).stderr
    assert said(site, "unlock", NAME, "--force").returncode == 0
    assert is_free(cluster)


def test_lost_lock_is_told_by_unlock(site: Site, cluster: Cluster, owner: subprocess.Popen[bytes]) -> None:
    said(site, "lock", NAME, "--pid", owner.pid)
    hand = ByHand(cluster, random.Random(1))
    hand.revoke(hand.leases(NAME)[0], "planted")
    wait_until(SystemClock(), lambda: record(cluster).state == LOST)
    done = said(site, "unlock", NAME, "--pid", owner.pid)
    assert done.returncode == 76
    assert "planted" in done.stderr
    assert list(locks(cluster.routes.runtime, NAME)) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_keeper_that_was_ended_is_a_lost_lock(
    site: Site, cluster: Cluster, owner: subprocess.Popen[bytes], number: int
) -> None:
    said(site, "lock", NAME, "--pid", owner.pid)
    os.kill(record(cluster).keeper, number)
    wait_until(SystemClock(), lambda: is_free(cluster))
    done = said(site, "unlock", NAME, "--pid", owner.pid)
    assert (done.returncode, "[lock-lost]" in done.stderr) == (76, True)


# Its owner has not asked, and may never: that must not keep anybody from unlocking what is held since.
@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("loss", ["keeper killed", "revoked"])
def test_lock_that_was_lost_before_does_not_hide_the_one_that_is_held(
    site: Site, cluster: Cluster, owner: subprocess.Popen[bytes], loss: str, *, force: bool
) -> None:
    said(site, "lock", NAME, "--pid", owner.pid)
    if loss == "revoked":
        hand = ByHand(cluster, random.Random(1))
        hand.revoke(hand.leases(NAME)[0], "planted")
        wait_until(SystemClock(), lambda: record(cluster).state == LOST)
    else:
        os.kill(record(cluster).keeper, signal.SIGKILL)
    words = ["--force"] if force else ["--pid", owner.pid]
    assert said(site, "lock", NAME, "--pid", owner.pid).returncode == 0
    assert said(site, "unlock", NAME, *words).returncode == 0
    assert is_free(cluster)
    again = said(site, "unlock", NAME, *words)
    assert (again.returncode, "[lock-lost]" in again.stderr) == (76, True)
    assert list(locks(cluster.routes.runtime, NAME)) == []


def test_one_of_several_locks_is_unlocked_by_the_number_of_its_owner(
    site: Site, cluster: Cluster, owner: subprocess.Popen[bytes]
) -> None:
    for each in (owner.pid, os.getpid()):
        said(site, "lock", NAME, "--mode", "S", "--pid", each, "--hold-if-orphaned")
    end(owner)
    several = said(site, "unlock", NAME, "--force")
    assert (several.returncode, "[several-locks]" in several.stderr) == (2, True)
    assert said(site, "unlock", NAME, "--force", "--pid", owner.pid).returncode == 0
    assert record(cluster).owner == os.getpid()
    assert said(site, "unlock", NAME, "--pid", os.getpid()).returncode == 0
    assert is_free(cluster)


def test_caller_that_is_killed_while_it_waits_leaves_no_lock(
    site: Site, cluster: Cluster, owner: subprocess.Popen[bytes]
) -> None:
    with cluster.session("before") as session, session.acquire(NAME):
        words = ["lock", NAME, "--pid", str(owner.pid), "--wait", "1h", *site.options()]
        caller = WarmProcess("tenure", words)

        def waiting() -> int:
            return ByHand(cluster, random.Random(1)).leases(NAME)[0].waiting

        wait_until(SystemClock(), lambda: waiting() == 1)
        caller.kill()
        caller.wait(PATIENCE_S)
        wait_until(SystemClock(), lambda: waiting() == 0)
    SystemClock().sleep(SECOND)
    assert is_free(cluster)


_GONE: str = """
import os, socket, sys
from argparse import Namespace
from appliance.cli import run

options = Namespace(root=sys.argv[1], node_dir=sys.argv[2], allow_root=True, domain="deploy", mode=None, wait="30s",
                    purpose=None, hold_if_orphaned=False)
ours, its = socket.socketpair()
write = run.Lock.__init__

def written(*arguments):
    write(*arguments)
    ours.close()

run.Lock.__init__ = written
run._be_the_keeper(options, run.Owner(os.getppid()), its)
"""


def test_caller_that_goes_when_the_lease_is_granted_leaves_no_lock(site: Site, cluster: Cluster) -> None:
    words = [sys.executable, "-c", _GONE, str(site.root), str(site.node_dir())]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert not list(locks(cluster.routes.runtime, NAME))
    assert is_free(cluster)


def test_owner_that_cannot_be_told_has_to_be_named(site: Site) -> None:
    unnamed = said(site, "lock", NAME)
    assert (unnamed.returncode, "[no-owner]" in unnamed.stderr) == (2, True)
    for nobody in (2**22 + 1, 2**80, -1):
        refused = said(site, "lock", NAME, "--pid", nobody)
        assert (refused.returncode, "[no-owner]" in refused.stderr) == (2, True)


# Whoever reads what a caller's other descriptors lead to waits for their end, as in x=$(...) and behind a pipe.
@pytest.mark.usefixtures("cluster")
# As in a script that said `exec <&-`: nothing that a lock is kept by may stand in the place of standard input.
def test_lock_of_a_shell_without_standard_input_is_held(
    site: Site, cluster: Cluster, owner: subprocess.Popen[bytes]
) -> None:
    words = [sys.executable, "-m", "tenure", "lock", NAME, "--pid", str(owner.pid), *site.options()]
    locked = subprocess.run(["sh", "-c", 'exec "$@" <&-', "sh", *words], capture_output=True, text=True, check=False)
    assert (locked.returncode, locked.stderr) == (0, "")
    SystemClock().sleep(2 * site.policy.lease_term_max_ns)
    assert not is_free(cluster)
    assert said(site, "unlock", NAME, "--pid", owner.pid).returncode == 0


def test_keeper_has_nothing_of_what_the_caller_has_open(site: Site, owner: subprocess.Popen[bytes]) -> None:
    read, write = os.pipe()
    command = [sys.executable, "-m", "tenure", "lock", NAME, "--pid", str(owner.pid), *site.options()]
    assert subprocess.run(command, capture_output=True, check=False, pass_fds=[write]).returncode == 0
    os.close(write)
    ends, _, _ = select.select([read], [], [], 0)
    os.close(read)
    assert ends, "nobody has its other end"
    assert said(site, "unlock", NAME, "--pid", owner.pid).returncode == 0


_NARROW = """\
import resource, runpy
resource.setrlimit(resource.RLIMIT_FSIZE, (1024, resource.RLIM_INFINITY))
runpy.run_module("tenure", run_name="__main__", alter_sys=True)
"""


def test_lock_whose_record_finds_no_room_is_refused_in_words_and_leaves_nothing(
    site: Site, cluster: Cluster, owner: subprocess.Popen[bytes]
) -> None:
    words = [sys.executable, "-c", _NARROW, "lock", NAME, "--pid", str(owner.pid), *site.options()]
    refused = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (refused.returncode, refused.stdout) == (74, "")
    assert refused.stderr.startswith(f"tenure: cannot write {cluster.routes.runtime}/lock-")
    assert not list(cluster.routes.runtime.glob("lock-*"))
    assert is_free(cluster)


_WITHOUT_ROOM = """\
import resource, runpy, sys
from appliance.recipes import lock

changed = lock.Lock._changed

def without_room(*arguments):
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    changed(*arguments)

def first(self, *arguments):
    changed(self, *arguments)
    lock.Lock._changed = without_room

lock.Lock._changed = first
runpy.run_module("tenure", run_name="__main__", alter_sys=True)
"""


def test_lock_that_is_held_on_needs_no_more_descriptors_for_that(
    site: Site, cluster: Cluster, owner: subprocess.Popen[bytes]
) -> None:
    options = ["--pid", str(owner.pid), "--hold-if-orphaned", *site.options()]
    subprocess.run([sys.executable, "-c", _WITHOUT_ROOM, "lock", NAME, *options], timeout=PATIENCE_S, check=True)
    end(owner)
    wait_until(SystemClock(), lambda: record(cluster).state == OWNERLESS)
    assert said(site, "unlock", NAME, "--force").returncode == 0
