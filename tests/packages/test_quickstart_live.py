"""The README's cluster of three, typed line by line on three booted machines that saw nothing of it before."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from release import deb
from tests.support import quickstart
from tests.support.booted import Booted, Network, refuse_where_none_boots
from timeagent.clock import SystemClock
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed: not a Debian"),
]

ADDRESSES: Final = ("10.0.0.11", "10.0.0.12", "10.0.0.13")
INIT: Final = "tenure init /srv/tenure"
ROOT: Final = "--root /srv/tenure"
NODE: Final = "tenure-node@srv-tenure.service"
SAID, ENDED = "/tmp/holder.said", "/tmp/holder.ended"
"""What a holder printed, and the code with which it ended."""


@pytest.fixture(scope="module")
def booted(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Booted]]:
    """The three machines, by name, once every line of the README was typed."""
    refuse_where_none_boots()
    readme = (repository / "README.md").read_text(encoding="utf-8")
    assert all(address in readme for address in ADDRESSES)
    place = tmp_path_factory.mktemp("quickstart")
    package = deb.pack(place / "tree", deb.stage(place / "tree"), "1", place / "out")
    mount = place / "mount"
    mount.mkdir()
    os.chown(mount, 742, 742)
    mount.chmod(0o2770)
    shared = {"/given": package.parent, "/srv/tenure": mount}
    clock = SystemClock()
    with ExitStack() as stack:
        network = Network(*ADDRESSES)
        stack.callback(network.close)
        machines = {
            name: stack.enter_context(Booted(f"quick-{name}", place / name, network, shared))
            for name in quickstart.machines(readme)
        }

        def run(machine: str, text: str) -> str:
            if " tenure status " in text:  # a shard that has just moved may say until when it recovers
                machines[machine].wait_until(partial(is_ready, machines[machine]))
            # This machine has no time service: the one thing that is typed otherwise.
            done = machines[machine].sh(f"cd /given; {text.replace(INIT, f'{INIT} --assume-radius 5ms')}")
            return done.stdout + done.stderr

        followed = list(quickstart.follow(quickstart.lines(readme), run, lambda: clock.sleep(SECOND // 4)))
        assert [line for line, _ in followed] == quickstart.lines(readme)
        yield machines


def test_cluster_of_three_is_set_up_as_the_readme_says(booted: dict[str, Booted]) -> None:
    for machine in booted.values():
        status = machine.as_tenure(f"tenure status {ROOT}", check=False)
        assert status.returncode == 0, status.stdout + status.stderr
    booted["beta"].sh(f"echo credit 7 | sudo -u tenure tenure publish ledger --lease account/7 {ROOT}")
    read = booted["gamma"].as_tenure(f"tenure read ledger --settle {ROOT}")
    assert read.stdout.splitlines()[-1] == "credit 7"
    booted["alpha"].as_tenure("tenure audit /srv/tenure")


def is_ready(machine: Booted) -> bool:
    return machine.as_tenure(f"tenure status {ROOT}", check=False).returncode == 0


def holds(machine: Booted) -> bool:
    said = machine.sh(f"cat {SAID}; cat {ENDED}", check=False).stdout
    if machine.sh(f"test -e {ENDED}", check=False).returncode == 0:
        pytest.fail(f"{machine.name}: the holder has ended: {said}")
    return "held" in said


def domains(machine: Booted) -> dict[str, str]:
    """A domain of each shard, by shard."""
    found: dict[str, str] = {}
    for n in range(24):
        told = machine.json(f"tenure lease show held{n} {ROOT}")
        found.setdefault(str(told["shard"]), f"held{n}")
    return found


# Each holder ends as soon as its own clock, or its shard, says that it has its lease no more: its code is there then.
def test_holders_keep_their_leases_while_systemd_restarts_every_daemon(booted: dict[str, Booted]) -> None:
    on = booted["alpha"]
    chosen = domains(on)
    assert len(chosen) == len(ADDRESSES)
    holders = list(zip(booted.values(), chosen.values(), strict=True))
    for machine, domain in holders:
        kept = f"tenure lease hold {domain} --session --seconds 1h {ROOT}"
        machine.sh(
            f"rm -f {ENDED}; (sudo -u tenure {kept} >{SAID} 2>&1; echo $? >{ENDED}) </dev/null >/dev/null 2>&1 &"
        )
        machine.wait_until(partial(holds, machine))

    def fences() -> list[str]:
        held = booted["alpha"].json(f"tenure lease ls {ROOT}")["shards"]
        assert isinstance(held, list)
        return sorted(
            f"{lease['domain']} {lease['fence']}"
            for shard in held
            for lease in shard["leases"]
            if lease["domain"] in chosen.values()
        )

    before = fences()
    assert len(before) == len(holders)
    for restart in (f"systemctl restart {NODE}", f"tenure node upgrade {ROOT} --package /given/*.deb"):
        for machine in booted.values():
            was = machine.show(NODE, "MainPID")
            machine.sh(restart)
            assert machine.show(NODE, "MainPID") not in ("0", was)
            machine.wait_until(partial(is_ready, machine))
            on.wait_until(lambda: fences() == before)  # a fence that was lost never comes back
    for machine, domain in holders:
        assert machine.sh(f"cat {ENDED}", check=False).stdout == "", f"{domain}: {machine.sh(f'cat {SAID}').stdout}"
    booted["alpha"].as_tenure("tenure audit /srv/tenure")
