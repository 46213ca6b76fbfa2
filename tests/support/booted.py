"""Machines with a systemd of their own, booted in containers over a base that they do not change. Close them.

Each has a layer of its own above TENURE_LAB_BASE (this machine's root unless another is named), and shares a network
and directories with those that it is booted with.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import pytest

from tests.support.cluster import wait_until
from tests.support.containers import BASE
from timeagent.clock import SystemClock
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PATIENCE_NS: Final = 200 * SECOND
UP: Final = ["active", "active"]
_TOOLS: Final = ("systemd-nspawn", "nsenter", "unshare")
SUDO: Final = """#!/bin/sh
# What the documents type, where no sudo is installed: as root, or with -u as somebody else.
[ "$1" = -u ] || exec "$@"
user=$2; shift 2
exec setpriv --reuid "$(id -u "$user")" --regid "$(id -g "$user")" --clear-groups env HOME=/ "$@"
"""
"""For a machine that has no sudo of its own."""


class Network:
    """Names for a network that nobody else is in. Close it."""

    def __init__(self, *addresses: str) -> None:
        script = "".join(f"ip addr add {each}/32 dev lo; " for each in addresses)
        self._holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", f"ip link set lo up; {script} echo up; exec sleep infinity"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "up\n"
        self.path = f"/proc/{self._holder.pid}/ns/net"

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait(60)
        assert self._holder.stdout is not None
        self._holder.stdout.close()


class Booted:
    """One machine. ``shared``: directories of this machine by where they are there."""

    def __init__(self, name: str, place: Path, network: Network, shared: Mapping[str, Path]) -> None:
        self.name = name
        self._place = place
        for each in ("upper", "work", "root"):
            (place / each).mkdir(parents=True)
        if not (BASE / "usr/bin/sudo").exists():
            shim = place / "upper/usr/local/bin/sudo"
            shim.parent.mkdir(parents=True)
            shim.write_text(SUDO)
            shim.chmod(0o755)
        binds = [f"--bind={path}:{there}" for there, path in shared.items()]
        nspawn = ["systemd-nspawn", "-q", "-D", f"{place}/root", f"--machine={name}", "--register=no", "--keep-unit"]
        # Before nspawn makes it impossible: a mount propagates nowhere, and is gone with the process.
        mounted = (
            f"mount --make-rprivate / && mount -t overlay overlay "
            f"-o lowerdir={BASE},upperdir={place}/upper,workdir={place}/work {place}/root && "
            f"rm -f {place}/root/var/lib/man-db/auto-update {place}/root/etc/fstab {place}/root/etc/machine-id && "
        )
        boot = [*nspawn, "--boot", "--link-journal=no", f"--network-namespace-path={network.path}", *binds]
        self._log = (place / "boot.log").open("wb")
        self._clock = SystemClock()
        self._process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", mounted + "exec " + shlex.join(boot)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"},
        )
        self._init = 0
        self._said = ""
        with ExitStack() as failed:
            failed.callback(self.close)
            self.wait_until(self._is_up)
            failed.pop_all()

    def _is_up(self) -> bool:
        assert self._process.poll() is None, (self._place / "boot.log").read_text(errors="replace")
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        with suppress(OSError, IndexError):
            self._init = int(children.read_text().split()[-1])
            # What the base starts beside may wait for ever: for a port, for instance, that another machine has here.
            return self.sh("systemctl is-active basic.target dbus.service", check=False).stdout.split() == UP
        return False

    def sh(self, command: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command there as root, to its end."""
        entered = ["nsenter", "-t", str(self._init), *("-m", "-u", "-i", "-n", "-p", "-C")]
        done = subprocess.run(
            [*entered, "sh", "-c", f"cd /; {command}"],
            env={"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/root"},
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )
        self._said = f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        assert not check or done.returncode == 0, f"{self.name}: {command}\n{done.stdout}{done.stderr}{self.journal()}"
        return done

    def as_tenure(self, command: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command there as the user tenure."""
        return self.sh(f"umask 002; sudo -u tenure {command}", check=check)

    def json(self, command: str) -> dict[str, object]:
        """Run a command there as the user tenure; return the object that it prints."""
        told: dict[str, object] = json.loads(self.as_tenure(f"{command} --json", check=False).stdout)
        return told

    def show(self, unit: str, name: str) -> str:
        """Return one property of a unit."""
        return self.sh(f"systemctl show -P {name} '{unit}'").stdout.strip()

    def journal(self, words: str = "-u 'tenure*'") -> str:
        """Return what the units said."""
        entered = ["nsenter", "-t", str(self._init), *("-m", "-u", "-i", "-n", "-p", "-C")]
        command = [*entered, "sh", "-c", f"journalctl --no-pager -o cat {words} | tail -80"]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100).stdout

    def wait_until(self, fulfilled: Callable[[], bool]) -> None:
        """Ask again and again, up to a generous bound."""
        try:
            wait_until(self._clock, fulfilled, PATIENCE_NS)
        except AssertionError:
            told = (self._place / "boot.log").read_text(errors="replace")[-4000:]
            journal = self.journal() if self._init else ""
            pytest.fail(f"{self.name}: waited in vain\n{told}{journal}\nlast: {self._said}", pytrace=True)

    def close(self) -> None:
        """End it at once, as a power cut does."""
        if self._init:
            with suppress(ProcessLookupError):
                os.kill(self._init, 9)
        self._process.kill()
        self._process.wait(60)
        self._log.close()
        shutil.rmtree(self._place, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def refuse_where_none_boots() -> None:
    """Skip, with the reason, where no machine can be booted."""
    if os.geteuid() != 0:
        pytest.skip("booting a container needs the superuser")
    for tool in _TOOLS:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed (Debian: systemd-container, util-linux)")
    if not (BASE / "usr/lib/systemd/systemd").exists():
        pytest.skip(f"no systemd in {BASE}: name another root by TENURE_LAB_BASE")
