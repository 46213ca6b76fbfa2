"""A machine's root to install into and throw away: this machine's own, or another, with a layer of its own above it.

A namespace of mounts, processes and network: what is done inside is seen by nobody else, reaches no network, and is
gone with its directory.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

BASE: Final = Path(os.environ.get("TENURE_LAB_BASE", "/"))
"""The root below: another one, made by debootstrap, shows another release of Debian."""

_ENTER: Final = """
set -e
mount --make-rprivate /
mkdir -p {place}/upper {place}/work {place}/root
mount -t overlay overlay -o lowerdir={base},upperdir={place}/upper,workdir={place}/work {place}/root
cd {place}/root
mount -t proc proc proc
mount --rbind /sys sys
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
mount -t tmpfs tmpfs root
mount -t tmpfs tmpfs dev
for node in null zero random urandom tty; do touch dev/$node; mount --bind /dev/$node dev/$node; done
mkdir dev/shm && mount -t tmpfs -o mode=1777 tmpfs dev/shm
mkdir tmp/given && mount --bind {given} tmp/given
ip link set lo up
rm -f var/lib/man-db/auto-update
exec chroot . /bin/sh -c {command}
"""


@dataclass(frozen=True, slots=True)
class Root:
    """One root with its own layer. ``given`` is seen inside as /tmp/given."""

    place: Path
    given: Path

    def sh(self, command: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command inside; what it changed is there the next time. No network, no home of this machine's root."""
        script = _ENTER.format(place=self.place, base=BASE, given=self.given, command=shlex.quote(command))
        done = subprocess.run(
            ["unshare", "--mount", "--net", "--pid", "--fork", "sh", "-c", script],
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/root"},
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )
        assert not check or done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done

    def as_tenure(self, command: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command inside as the user tenure."""
        inner = f"umask 002; export HOME=/var/lib/tenure; cd /; {command}"
        return self.sh(f"setpriv --reuid 742 --regid 742 --clear-groups sh -c {shlex.quote(inner)}", check=check)

    def remove(self) -> None:
        """Forget everything."""
        shutil.rmtree(self.place)


def fresh_root(place: Path, given: Path) -> Root:
    """Return a root whose layer is empty. Skips where this machine cannot have one."""
    if os.geteuid() != 0:
        pytest.skip("a root of its own needs the superuser")
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed (Debian: util-linux)")
    place.mkdir()
    root = Root(place, given)
    tried = root.sh("true", check=False)
    if tried.returncode:
        pytest.skip(f"this machine has no layered mounts in a namespace: {tried.stderr.strip()}")
    return root
