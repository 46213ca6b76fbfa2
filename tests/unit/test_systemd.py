"""The units: systemd accepts them, they are as closed as they say, and adjtimex(2) still works in them."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from appliance.daemon.daemon import AGENT_NS
from appliance.formats.policy import Policy
from appliance.node.runtime import SERVICE
from tenure.__main__ import main
from timeagent.units import SECOND

SERVICES: Final = ("tenure-time@.service", "tenure-node@.service")
INSTANCE: Final = "srv-lease"
EXPOSURE_MAX: Final = 2.0
ANALYZE: Final = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed (Debian: systemd)")


@pytest.fixture
def units(repository: Path) -> Path:
    return repository / "systemd"


def lines(text: str, key: str) -> list[str]:
    """All values of a key, in order."""
    return [line.partition("=")[2] for line in text.splitlines() if line.startswith(f"{key}=")]


def installed(units: Path, place: Path, change: tuple[str, str] = ("", "")) -> Path:
    """The units as they would be for one root, with a command that is there, and with a change."""
    for unit in [*units.glob("*.service"), *units.glob("*.target")]:
        text = unit.read_text().replace("/usr/bin/tenure", "/bin/true")
        assert not change[0] or change[0] in text or unit.suffix == ".target"
        (place / unit.name).write_text(text.replace(*change) if change[0] else text)
    return place


def analyze(*words: str | Path, where: Path) -> subprocess.CompletedProcess[str]:
    assert ANALYZE is not None
    environment = {**os.environ, "SYSTEMD_UNIT_PATH": f"{where}:/lib/systemd/system"}
    return subprocess.run([ANALYZE, *words], env=environment, capture_output=True, text=True, check=False, timeout=100)


@needs_systemd
@pytest.mark.parametrize("name", [*SERVICES, "tenure@.target"])
def test_systemd_finds_nothing_wrong_with_a_unit(units: Path, tmp_path: Path, name: str) -> None:
    where = installed(units, tmp_path)
    assert ours(analyze("verify", "--man=no", name.replace("@", f"@{INSTANCE}"), where=where)) == []


@needs_systemd
def test_wrong_line_in_a_unit_is_found(units: Path, tmp_path: Path) -> None:
    where = installed(units, tmp_path, ("WatchdogSec=", "WatchDogSec="))
    assert ours(analyze("verify", "--man=no", f"tenure-node@{INSTANCE}.service", where=where)) != []


def ours(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What systemd says of our units; it speaks of the machine's own as well."""
    return [line for line in (done.stdout + done.stderr).splitlines() if "tenure" in line]


def exposure(unit: Path) -> float:
    done = analyze("security", "--offline=true", "--no-pager", unit, where=unit.parent)
    (overall,) = (line for line in done.stdout.splitlines() if "Overall exposure level" in line)
    return float(overall.partition(": ")[2].split()[0])


@needs_systemd
@pytest.mark.parametrize("name", SERVICES)
def test_units_are_closed(units: Path, tmp_path: Path, name: str) -> None:
    instance = name.replace("@", f"@{INSTANCE}")
    good = installed(units, tmp_path) / name
    good.rename(tmp_path / instance)
    assert exposure(tmp_path / instance) <= EXPOSURE_MAX
    open_ = (tmp_path / instance).read_text().replace("CapabilityBoundingSet=\n", "").replace("NoNewPrivileges=yes", "")
    (tmp_path / instance).write_text(open_)
    assert exposure(tmp_path / instance) > EXPOSURE_MAX


def allowed(unit: str, sets: dict[str, set[str]]) -> set[str]:
    """The system calls that a unit's filter allows: its lines in order, as systemd.exec(5) has it."""
    found: set[str] = set()
    for line in lines(unit, "SystemCallFilter"):
        calls = set().union(*(sets.get(word, {word}) for word in line.removeprefix("~").split()))
        found = found - calls if line.startswith("~") else found | calls
    return found


@pytest.fixture(scope="module")
def sets() -> dict[str, set[str]]:
    """The named sets of system calls of this machine's systemd, with those that they include."""
    if ANALYZE is None:
        pytest.skip("systemd-analyze is not installed (Debian: systemd)")
    told = analyze("syscall-filter", "--no-pager", where=Path("/")).stdout.splitlines()
    groups: dict[str, set[str]] = {}
    group = ""
    for line in told:
        if line.startswith("@"):
            group = line.strip()
            groups[group] = set()
        elif group and line.startswith(" ") and not line.lstrip().startswith("#"):
            groups[group].add(line.strip())
    while any(word.startswith("@") for words in groups.values() for word in words):
        for name, calls in groups.items():
            included = {word for word in calls if word.startswith("@")}
            groups[name] = (calls - included).union(*(groups[word] for word in included))
    return groups


@pytest.mark.parametrize("name", SERVICES)
def test_adjtimex_works_and_setting_the_clock_does_not(units: Path, sets: dict[str, set[str]], name: str) -> None:
    unit = (units / name).read_text()
    calls = allowed(unit, sets)
    assert {"adjtimex", "clock_adjtime", "clock_nanosleep", "recvfrom", "link", "mmap"} <= calls
    assert not {"settimeofday", "clock_settime", "reboot", "setuid", "ptrace", "mount"} & calls
    assert lines(unit, "ProtectClock") == []
    assert lines(unit, "CapabilityBoundingSet") == [""], "without CAP_SYS_TIME adjtimex only reads"
    without = unit.replace("SystemCallFilter=adjtimex clock_adjtime", "# ")
    assert "adjtimex" not in allowed(without, sets)


@pytest.mark.parametrize("name", SERVICES)
def test_command_lines_of_the_units_are_taken(units: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    unit = (units / name).read_text()
    for command in lines(unit, "ExecStart"):
        program, *words = shlex.split(command.replace("%f", "/srv"))
        assert program == "/usr/bin/tenure"
        with pytest.raises(SystemExit) as ended:
            main([*words, "--help"])
        assert ended.value.code == 0
        said = capsys.readouterr().out
        assert all(word in said for word in words if word.startswith("--"))


def test_what_the_units_wait_fits_what_tenure_needs(units: Path) -> None:
    agent, node = ((units / name).read_text() for name in SERVICES)
    longest = Policy(number=1, cluster_id=bytes(16)).lease_term_max_ns
    (stop,) = lines(node, "TimeoutStopSec")
    assert int(stop) * SECOND >= 2 * longest
    (start,) = lines(node, "TimeoutStartSec")
    assert int(start) * SECOND > AGENT_NS
    assert (lines(agent, "CPUSchedulingPolicy"), lines(agent, "CPUSchedulingPriority")) == (["fifo"], ["1"])
    for unit in (agent, node):
        assert lines(unit, "Type") == ["notify"]
        assert lines(unit, "Restart") == ["always"]
        assert lines(unit, "RequiresMountsFor") == ["%f"]
        assert lines(unit, "StartLimitIntervalSec") == ["0"]


def test_target_upholds_both_services(units: Path) -> None:
    (upheld,) = lines((units / "tenure@.target").read_text(), "Upholds")
    assert upheld.split() == [name.replace("@", "@%i") for name in SERVICES]


@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="systemd-sysusers is not installed")
@pytest.mark.skipif(os.geteuid() != 0, reason="systemd-sysusers writes as root only")
def test_user_has_one_number_everywhere_and_owns_its_directories(units: Path, tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    for tool, words in (("systemd-sysusers", []), ("systemd-tmpfiles", ["--create"])):
        file = units / f"tenure.{tool.partition('-')[2]}.conf"
        subprocess.run([tool, f"--root={tmp_path}", *words, file], check=True, capture_output=True, timeout=60)
    (entry,) = ((tmp_path / "etc/passwd").read_text()).splitlines()
    assert entry.split(":")[:4:2] == ["tenure", "742"]
    assert entry.split(":")[3] == "742"
    for name, mode in (("etc/tenure", 0o750), (str(SERVICE).lstrip("/"), 0o755)):
        place = (tmp_path / name).stat()
        assert (place.st_uid, place.st_mode & 0o7777) == (742, mode)


# One for all of them: what one unit removed when it stops, the others would miss.
@pytest.mark.parametrize("name", SERVICES)
def test_units_keep_what_they_forget_in_a_directory_that_nobody_can_make_beforehand(units: Path, name: str) -> None:
    unit = (units / name).read_text()
    assert [f"/run/{each}" for each in lines(unit, "RuntimeDirectory")] == [str(SERVICE)]
    assert lines(unit, "RuntimeDirectoryPreserve") == ["yes"]


def test_nothing_starts_by_itself(units: Path) -> None:
    words = [line.split() for line in (units / "90-tenure.preset").read_text().splitlines() if line[0] != "#"]
    assert sorted(words) == sorted(["disable", name] for name in [*SERVICES, "tenure@.target"])
    assert json.dumps(words).count("enable") == 0


@pytest.mark.parametrize(("state", "told"), [("running", False), ("degraded", False), ("stopping", True)])
def test_daemon_drains_where_the_machine_goes_down_and_not_for_a_restart(
    units: Path, tmp_path: Path, state: str, *, told: bool
) -> None:
    (tmp_path / "systemctl").write_text(f"#!/bin/sh\necho {state}\nexit 1\n")
    (tmp_path / "systemctl").chmod(0o755)
    (line,) = lines((units / "tenure-node@.service").read_text(), "ExecStop")
    shell, option, words = shlex.split(line.removeprefix("-+").replace("$$", "$"))
    waits = (
        "import signal, sys; signal.signal(signal.SIGINT, lambda *_: sys.exit(7)); print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", waits], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as daemon:
        assert daemon.stdout is not None
        daemon.stdout.readline()
        environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "MAINPID": str(daemon.pid)}
        subprocess.run([shell, option, words], env=environment, check=True, timeout=60)
        if not told:
            assert daemon.poll() is None
        _, _ = daemon.communicate()
    assert daemon.returncode == (7 if told else 0)


# Nobody goes on with the leases of a package that is removed: SIGTERM alone would have others wait for them.
@pytest.mark.parametrize(("action", "drained"), [("remove", True), ("deconfigure", True), ("upgrade", False)])
def test_daemon_drains_before_the_package_is_removed_and_not_for_an_upgrade(
    repository: Path, tmp_path: Path, action: str, *, drained: bool
) -> None:
    script = (repository / "release/debian/prerm").read_text().replace("/run/systemd/system", str(tmp_path))
    (tmp_path / "systemctl").write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/told\n[ "$1" != kill ]\n')
    (tmp_path / "systemctl").chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", script, "prerm", action], env=environment, check=True)
    assert (tmp_path / "told").exists() is drained
    if drained:
        kill, stop = (tmp_path / "told").read_text().splitlines()
        assert kill == "kill --signal=SIGINT tenure-node@*.service"
        assert stop.startswith("stop tenure@*.target ")
