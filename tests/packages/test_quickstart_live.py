"""The README's cluster of three, typed line by line on three booted machines that saw nothing of it before."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from release import deb
from tests.support import quickstart
from tests.support.booted import Booted, Network, refuse_where_none_boots
from timeagent.clock import SystemClock
from timeagent.units import SECOND

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed: not a Debian"),
]

ADDRESSES: Final = ("10.0.0.11", "10.0.0.12", "10.0.0.13")
INIT: Final = "tenure init /srv/tenure"


def test_cluster_of_three_is_set_up_as_the_readme_says(repository: Path, tmp_path: Path) -> None:
    refuse_where_none_boots()
    readme = (repository / "README.md").read_text(encoding="utf-8")
    assert all(address in readme for address in ADDRESSES)
    package = deb.pack(tmp_path / "tree", deb.stage(tmp_path / "tree"), "1", tmp_path / "out")
    mount = tmp_path / "mount"
    mount.mkdir()
    os.chown(mount, 742, 742)
    mount.chmod(0o2770)
    shared = {"/given": package.parent, "/srv/tenure": mount}
    clock = SystemClock()
    with ExitStack() as stack:
        network = Network(*ADDRESSES)
        stack.callback(network.close)
        booted = {
            name: stack.enter_context(Booted(f"quick-{name}", tmp_path / name, network, shared))
            for name in quickstart.machines(readme)
        }

        def run(machine: str, text: str) -> str:
            # This machine has no time service: the one thing that is typed otherwise.
            done = booted[machine].sh(f"cd /given; {text.replace(INIT, f'{INIT} --assume-radius 5ms')}")
            return done.stdout + done.stderr

        followed = list(quickstart.follow(quickstart.lines(readme), run, lambda: clock.sleep(SECOND // 4)))
        assert [line for line, _ in followed] == quickstart.lines(readme)
        for machine in booted.values():
            status = machine.as_tenure("tenure status --root /srv/tenure", check=False)
            assert status.returncode == 0, status.stdout + status.stderr
        booted["beta"].sh("echo credit 7 | sudo -u tenure tenure publish ledger --lease account/7 --root /srv/tenure")
        read = booted["gamma"].as_tenure("tenure read ledger --settle --root /srv/tenure")
        assert read.stdout.splitlines()[-1] == "credit 7"
        booted["alpha"].as_tenure("tenure audit /srv/tenure")
