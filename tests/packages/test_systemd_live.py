"""The units under a running systemd, installed from the package: ready, watched, upheld; a mount absent, late, hung."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from release import deb
from tests.support.booted import Booted, Network, refuse_where_none_boots

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed: not a Debian"),
]

NODE: Final = "tenure-node@srv-tenure.service"
TIME: Final = "tenure-time@srv-tenure.service"
TARGET: Final = "tenure@srv-tenure.target"
SETTLED: Final = "--root /srv/tenure"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    refuse_where_none_boots()
    place = tmp_path_factory.mktemp("deb")
    return deb.pack(place / "tree", deb.stage(place / "tree"), "1", place / "out")


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system of its own, which can be frozen: then every change hangs, as on a mount whose server is gone."""
    place = tmp_path_factory.mktemp("disk")
    image, point = place / "image", place / "point"
    point.mkdir()
    subprocess.run(["truncate", "-s", "512M", image], check=True)
    subprocess.run(["mkfs.ext4", "-q", "-N", "100000", image], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", image, point], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"this machine cannot mount an image: {mounted.stderr}")
    yield point
    subprocess.run(["fsfreeze", "--unfreeze", point], check=False, capture_output=True)
    subprocess.run(["umount", "--lazy", point], check=True)


@pytest.fixture(scope="module")
def machine(package: Path, frozen: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    with ExitStack() as stack:
        network = Network()
        stack.callback(network.close)
        shared = {"/given": package.parent, "/srv/tenure": frozen / "root"}
        (frozen / "root").mkdir()
        booted = stack.enter_context(Booted("tenure-live", tmp_path_factory.mktemp("machines") / "m", network, shared))
        # nspawn shows a boot id of its own to all but units, which have a /proc of their own and see this machine's.
        booted.sh("umount /proc/sys/kernel/random/boot_id")
        booted.sh(f"dpkg -i /given/{package.name}")
        booted.sh("chown tenure:tenure /srv/tenure; chmod 2770 /srv/tenure")
        booted.sh("tenure init /srv/tenure --node alpha --listen 127.0.0.1 --assume-radius 5ms")
        yield booted


def pid(machine: Booted, unit: str) -> int:
    return int(machine.show(unit, "MainPID"))


def restarts(machine: Booted, unit: str) -> int:
    return int(machine.show(unit, "NRestarts"))


def is_ready(machine: Booted) -> bool:
    return machine.as_tenure(f"tenure status {SETTLED}", check=False).returncode == 0


def test_init_leaves_a_node_that_says_it_is_ready(machine: Booted) -> None:
    for unit in (NODE, TIME):
        assert machine.show(unit, "Type") == "notify"
        assert machine.show(unit, "ActiveState") == "active"
        assert machine.show(unit, "User") == "tenure"
    assert "ready" in machine.show(NODE, "StatusText")
    status = machine.as_tenure(f"tenure status {SETTLED}", check=False)
    assert status.returncode == 0, status.stdout + status.stderr
    assert machine.show(TARGET, "UnitFileState") == "enabled"
    # Idempotent: the second call says what is there, and starts nothing anew.
    before = pid(machine, NODE)
    again = machine.sh("tenure init /srv/tenure --node alpha --listen 127.0.0.1 --assume-radius 5ms")
    assert "already" in again.stdout
    assert pid(machine, NODE) == before


def test_messages_are_written_and_audited(machine: Booted) -> None:
    machine.sh(f"echo credit 5 | sudo -u tenure tenure publish ledger --lease account/7 {SETTLED}")
    assert machine.as_tenure(f"tenure read ledger --settle {SETTLED}").stdout == "credit 5\n"
    machine.as_tenure("tenure audit /srv/tenure")


@pytest.mark.parametrize("unit", [NODE, TIME])
def test_daemon_that_stands_still_is_started_again_by_the_watchdog(machine: Booted, unit: str) -> None:
    before, count = pid(machine, unit), restarts(machine, unit)
    machine.sh(f"kill -STOP {before}")
    machine.wait_until(lambda: restarts(machine, unit) > count and pid(machine, unit) not in (0, before))
    assert "Watchdog timeout" in machine.journal(f"-u {unit}")
    machine.wait_until(lambda: is_ready(machine))


def test_death_of_the_time_agent_ends_no_node(machine: Booted) -> None:
    node, agent = pid(machine, NODE), pid(machine, TIME)
    machine.sh(f"kill -KILL {agent}")
    machine.wait_until(lambda: pid(machine, TIME) not in (0, agent) and is_ready(machine))
    assert pid(machine, NODE) == node


def test_what_the_target_holds_comes_back_also_after_it_was_stopped(machine: Booted) -> None:
    before = pid(machine, NODE)
    machine.sh(f"systemctl stop {NODE}")
    assert machine.show(NODE, "Result") == "success", "it stopped in good order, within its time"
    machine.wait_until(lambda: pid(machine, NODE) not in (0, before) and is_ready(machine))


ASK: Final = """
import glob, http.client, socket
for path in ("/healthz", "/v1/leases", "/metrics"):
    line = http.client.HTTPConnection("localhost", timeout=20)
    line.sock = socket.socket(socket.AF_UNIX)
    line.sock.settimeout(20)
    line.sock.connect(glob.glob("/run/tenure/*/http.sock")[0])
    line.request("GET", path)
    answer = line.getresponse()
    print(path, answer.status)
    if path == "/metrics":
        print(answer.read().decode())
"""
"""Asks the node by its door on tmpfs: nothing of it touches the mount."""


# A hung mount is a process in state D for whoever changes it. Time is published from memory, what a shard is asked it
# answers, and the watchdog sees loops that go round. When the mount is back everything goes on, in the same processes.
def test_hung_mount_stalls_neither_time_nor_leases(machine: Booted, frozen: Path) -> None:
    daemons = [pid(machine, NODE), pid(machine, TIME)]
    counts = [restarts(machine, unit) for unit in (NODE, TIME)]
    ask = f"/opt/tenure/bin/python3 -c '{ASK}'"

    def fed_us(unit: str) -> int:
        return int(machine.show(unit, "WatchdogTimestampMonotonic"))

    # Somebody holds a lease, so that the shard has ceilings to extend.
    machine.sh(f"(sudo -u tenure tenure lease hold account/9 --seconds 600s {SETTLED} >/dev/null 2>&1 &)")
    machine.wait_until(lambda: "account/9" in machine.as_tenure(f"tenure lease ls {SETTLED}", check=False).stdout)
    subprocess.run(["fsfreeze", "--freeze", frozen], check=True)
    try:
        begun = {unit: fed_us(unit) for unit in (NODE, TIME)}
        # Longer than any watchdog waits, by systemd's own clock, and longer than a ceiling lies ahead.
        machine.wait_until(lambda: all(fed_us(unit) > begun[unit] + 25_000_000 for unit in begun))
        told = machine.as_tenure(ask).stdout
        assert "/healthz 200" in told
        assert "/v1/leases 200" in told
        assert 'tenure_ceiling_waits_for_mount{shard="0"} 1.0' in told
        assert "tenure_time_radius_seconds" in told
        assert machine.as_tenure(f"tenure time now {SETTLED}").returncode == 0
        assert [restarts(machine, unit) for unit in (NODE, TIME)] == counts
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", frozen], check=True)
    machine.wait_until(lambda: is_ready(machine))
    assert [pid(machine, NODE), pid(machine, TIME)] == daemons
    machine.sh(f"echo credit 6 | sudo -u tenure tenure publish ledger --lease account/7 {SETTLED}")
    machine.as_tenure("tenure audit /srv/tenure")


LATE: Final = """
mkdir -p /backing/late /srv/late
chown tenure:tenure /backing/late && chmod 2770 /backing/late
cd /etc/systemd/system
printf '[Mount]\\nWhat=/backing/late\\nWhere=/srv/late\\nType=none\\nOptions=bind\\n' > srv-late.mount
systemctl daemon-reload
systemctl start srv-late.mount
tenure init /srv/late --node omega --assume-radius 5ms
systemctl stop tenure@srv-late.target tenure-node@srv-late.service tenure-time@srv-late.service srv-late.mount
mv /backing /backing.away
touch /backing
"""
"""A root on a mount of its own, whose server is gone: there is a file where what is mounted should be."""


def test_mount_that_is_absent_and_comes_late_is_waited_for(machine: Booted) -> None:
    machine.sh(LATE)
    node, agent = "tenure-node@srv-late.service", "tenure-time@srv-late.service"
    machine.sh("systemctl start --no-block tenure@srv-late.target")
    machine.wait_until(lambda: machine.show("srv-late.mount", "ActiveState") == "failed")
    machine.wait_until(lambda: "Dependency failed" in machine.journal(f"_PID=1 -u {agent} -u {node}"))
    assert "active" not in (machine.show(node, "ActiveState"), machine.show(agent, "ActiveState"))
    machine.sh("rm /backing && mv /backing.away /backing")
    status = "tenure status --root /srv/late"
    machine.wait_until(lambda: machine.as_tenure(status, check=False).returncode == 0)
    assert machine.show("srv-late.mount", "ActiveState") == "active"
    # No process of tenure ever took the bare mount point for a root.
    machine.sh("systemctl stop tenure@srv-late.target tenure-node@srv-late.service")
    machine.sh("systemctl stop tenure-time@srv-late.service srv-late.mount")
    assert machine.sh("ls -A /srv/late").stdout == ""


# Mounted by hand, with no unit that systemd could wait for: the daemons refuse an empty directory, again and again.
def test_root_that_is_not_mounted_yet_is_refused_until_it_is(machine: Booted) -> None:
    machine.sh("rm /etc/systemd/system/srv-late.mount; systemctl daemon-reload")
    machine.sh("systemctl start --no-block tenure@srv-late.target")
    agent = "tenure-time@srv-late.service"
    machine.wait_until(lambda: restarts(machine, agent) >= 2)
    assert "empty-root" in machine.journal(f"-u {agent}")
    machine.sh("mount --bind /backing/late /srv/late")
    status = "tenure status --root /srv/late"
    machine.wait_until(lambda: machine.as_tenure(status, check=False).returncode == 0)


def table(text: str) -> list[str]:
    """The commands of the table of symptoms, with names of this cluster."""
    section = text.partition("\n## When something is wrong\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\| [^|]+ \| `([^`]+)` \| [^|]+ \|$", section, re.MULTILINE)
    assert len(found) == len(re.findall(r"^\| (?!symptom)", section, re.MULTILINE))
    return [each.replace("DOMAIN", "account/7").replace("LOG", "ledger").replace("NODE", "alpha") for each in found]


# What an operator types when something waits must do what the table says: none is misspelt, none ends in a traceback.
def test_every_command_for_operators_runs(machine: Booted, repository: Path) -> None:
    wrong = []
    commands = table((repository / "docs/operators.md").read_text(encoding="utf-8"))
    for command in dict.fromkeys(commands):
        if command.startswith("curl ") and machine.sh("command -v curl", check=False).returncode:
            continue
        typed = re.sub(r"\bN\b", str(pid(machine, NODE)), command)
        inner = f"sh -c {shlex.quote(f'export TENURE_ROOT=/srv/tenure; {typed}')}"
        done = machine.as_tenure(inner, check=False)
        if done.returncode not in (0, 1, 3) or "Traceback" in done.stderr:
            wrong.append((command, done.returncode, done.stderr))
    assert wrong == []
    assert len(commands) > 15


def test_upgrade_of_the_package_restarts_what_ran(machine: Booted, package: Path) -> None:
    before = pid(machine, NODE)
    said = machine.sh(f"tenure node upgrade {SETTLED} --package /given/{package.name}")
    assert "runs 0." in said.stdout
    assert pid(machine, NODE) not in (0, before)
    machine.wait_until(lambda: is_ready(machine))
    again = machine.sh(f"tenure node upgrade {SETTLED}")
    assert "already" in again.stdout
    before = pid(machine, NODE)
    machine.sh(f"dpkg -i /given/{package.name}")
    machine.wait_until(lambda: pid(machine, NODE) not in (0, before) and is_ready(machine))


def test_removal_stops_the_daemons_and_leaves_the_data(machine: Booted, frozen: Path) -> None:
    machine.sh("dpkg -r tenure")
    assert machine.show(NODE, "ActiveState") in ("inactive", "failed")
    assert (frozen / "root/TENURE").exists()
    assert machine.sh("ls /etc/tenure/*/witness.key").stdout.count("witness.key") >= 1
    assert "timed out" not in machine.journal(f"_PID=1 -u {NODE}")
