"""Three machines that saw nothing of tenure before, and the README's lines, typed on them literally.

They have Debian, the mount, chrony and the package; tests/support/quickstart.py types. Two things are the lab's: a
machine without sudo gets a small one, and units may take longer to start.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from release import deb
from tests.nfs_lab.channel import MachineError
from tests.nfs_lab.lab import MOUNT, SQUASHED, Lab, each, work_directory
from tests.nfs_lab.scenario import Promise
from tests.nfs_lab.share import REPOSITORY
from tests.nfs_lab.site import SLOW_UNITS
from tests.support import quickstart
from tests.support.booted import SUDO

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.nfs_lab.machine import Machine

QUICKSTART: Final = Promise(
    "quickstart",
    "three fresh machines, the README's lines, typed by a script that takes them out of it",
    "every line ends well; the status is green everywhere, and what one machine writes another reads",
)
FIRST_ADDRESS: Final = 11
GIVEN: Final = "/given"
PATIENCE_S: Final = 1200.0


def make_new(node: Machine, address: str) -> None:
    """Take away what the lab put there; leave the mount, an address as in the README, and the package."""
    node.shell(
        "umount /opt/tenure /etc/tenure /var/lib/tenure && rm -r /etc/tenure /var/lib/tenure "
        "/opt/tenure /usr/bin/tenure && "
        f"mkdir /opt/share {GIVEN} && mount -o ro /dev/vdc /opt/share && mount --bind /opt/share/given {GIVEN} && "
        f"ip addr add {address}/24 dev eth0; {SLOW_UNITS}"
    )
    node.write("/usr/local/bin/sudo", SUDO)
    node.shell("test -x /usr/bin/sudo && rm /usr/local/bin/sudo || chmod 755 /usr/local/bin/sudo")


def follow_readme(vers: str, say: Callable[[str], None]) -> dict[str, Any]:
    """Follow it; return a row as a scenario's. Raises Impossible."""
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    typed, names = quickstart.lines(readme), quickstart.machines(readme)
    work = work_directory()
    work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="package-", dir=work) as scratch:
        tree = Path(scratch) / "tree"
        package = deb.pack(tree, deb.stage(tree), "1", Path(scratch) / "out")
        lab = Lab(len(names), vers, given=[package])
    begun = time.monotonic()
    row: dict[str, Any] = {
        "scenario": QUICKSTART.name,
        "vers": vers,
        "shown": "",
        "findings": {},
        "objections": [],
        "cuts": 0,
    }
    with lab:
        lab.server.shell(f"chown 742:742 {SQUASHED}; chmod 2770 {SQUASHED}")
        machines = dict(zip(names, lab.nodes, strict=True))
        each(
            [
                lambda node=node, number=number: make_new(node, f"10.0.0.{FIRST_ADDRESS + number}")
                for number, node in enumerate(lab.nodes)
            ]
        )

        def run(name: str, text: str) -> str:
            done = machines[name].try_shell(f"cd {GIVEN}; {text}", PATIENCE_S)
            if done["code"]:
                raise MachineError(f"{name}: {text} ended with {done['code']}: {done['out']}{done['err']}")
            return str(done["out"] + done["err"])

        try:
            first = time.monotonic()
            for line, _ in quickstart.follow(typed, run, lambda: time.sleep(1)):
                say(f"{QUICKSTART.name}: {time.monotonic() - first:4.0f} s  {line.machine}: {line.text}")
            took = time.monotonic() - first
            words = f"--root {MOUNT}"
            run(
                names[1],
                f"echo credit 7 | sudo -u tenure tenure publish ledger --lease account/7 --wait 2m {words}",
            )
            read = run(names[-1], f"sudo -u tenure tenure read ledger --settle {words}")
            if read.splitlines()[-1:] != ["credit 7"]:
                row["objections"].append(f"{names[-1]} read {read!r}")
            run(names[0], f"sudo -u tenure tenure audit {MOUNT}")
            row["shown"] = f"{len(typed)} lines on {len(names)} machines in {took:.0f} s"
        except (MachineError, RuntimeError) as problem:
            row["objections"].append(str(problem))
    return row | {"seconds": round(time.monotonic() - begun)}
