"""tenure on the machines of a lab: installed, founded, joined and run as docs/operators.md says."""

from __future__ import annotations

import json
import re
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tests.nfs_lab.channel import MachineError
from tests.nfs_lab.lab import MOUNT, SQUASHED, TRUSTING, each

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.nfs_lab.lab import Lab
    from tests.nfs_lab.machine import Machine

USER: Final = "tenure"
TARGET: Final = "tenure@srv-tenure.target"
UNITS: Final = "tenure-node@srv-tenure tenure-time@srv-tenure"
ROOT_KEY: Final = "/var/lib/tenure/root.key"
ENVIRONMENT: Final = f"HOME=/var/lib/tenure TENURE_ROOT={MOUNT}"
PATIENCE_S: Final = 900.0
TRY_AGAIN: Final = 75
"""The exit code of what may succeed later (docs/exit-codes.md)."""

SLOW_UNITS: Final = """
# Emulated machines on a busy host start and turn ten times slower than any real one.
for unit in time node; do
    mkdir -p /run/systemd/system/tenure-$unit@.service.d
    printf '[Service]\\nTimeoutStartSec=900\\nTimeoutStopSec=300\\nWatchdogSec=120\\n' \\
        >/run/systemd/system/tenure-$unit@.service.d/slow.conf
done
systemctl daemon-reload
"""

INSTALL: Final = f"""set -e
cd /opt/tenure/systemd
install -m 644 *.service *.target /etc/systemd/system/
install -D -m 644 tenure.sysusers.conf /etc/sysusers.d/tenure.conf && systemd-sysusers
install -D -m 644 tenure.tmpfiles.conf /etc/tmpfiles.d/tenure.conf && systemd-tmpfiles --create
install -D -m 644 90-tenure.preset /etc/systemd/system-preset/90-tenure.preset
{SLOW_UNITS}"""


class Site:
    """One cluster of all nodes of a lab."""

    def __init__(self, lab: Lab, *, agents: bool = True) -> None:
        """Do nothing yet. ``agents``: each node has a time agent; else each process asks the kernel."""
        self.lab = lab
        self._units = UNITS if agents else UNITS.split()[0]
        self._approving = threading.Lock()

    def found(self) -> None:
        """Install, found the cluster on the first node, let the others join by request and approval; run it."""
        self.lab.server.shell(f"chown 742:742 {SQUASHED} {TRUSTING}; chmod 2775 {SQUASHED} {TRUSTING}")
        each([lambda node=node: self.install(node) for node in self.lab.nodes])
        first, *others = self.lab.nodes
        self.command(first, f"init {MOUNT} --node {first.name} --listen {first.address} --root-key {ROOT_KEY}")
        each([lambda node=node: self._join(node) for node in others])
        names = ",".join(node.name for node in self.lab.nodes[:2])  # the third only writes
        self.command(first, f"shards reshard 2 --silent-too --nodes {names} --root-key {ROOT_KEY}")
        self.start(*self.lab.nodes)

    def install(self, node: Machine) -> None:
        """Install the units and the user, as after each start of a machine whose system disk forgets."""
        node.shell(INSTALL, seconds=600)
        if self._units != UNITS:
            node.shell("systemctl mask --runtime tenure-time@srv-tenure")

    def _join(self, node: Machine) -> None:
        said: list[str] = []
        words = f"HOME=/var/lib/tenure tenure join {MOUNT} --node {node.name} --listen {node.address} 2>&1"
        number = node.follow(words, said.append, USER)
        first = self.lab.nodes[0]
        found: list[str] = []

        def asked() -> bool:
            found[:] = re.findall(r"trust approve.*?(SHA256:\S+)", " ".join(said))
            return bool(found) or node.ended(number)

        await_true(asked, f"{node.name} to ask to be let in")
        if not found:
            raise MachineError(f"{node.name} did not join: {said}")
        with self._approving:
            self.command(first, f"trust approve {node.name} --fingerprint {found[0]} --root-key {ROOT_KEY}")
        await_true(lambda: node.ended(number), f"{node.name} to have joined")

    def command(self, node: Machine, words: str, seconds: float = 600) -> str:
        """Run a command of tenure as its user; return what it printed. Raises MachineError when it fails."""
        return node.shell(f"{ENVIRONMENT} tenure {words}", seconds, USER)

    def start(self, *nodes: Machine) -> None:
        """Start the units of these nodes; wait until they say that they are ready."""
        each([lambda node=node: node.shell(f"systemctl start {TARGET}", 600) for node in nodes])
        for node in nodes:
            # Asking costs an emulated machine more than answering does a real one.
            await_true(partial(self.running, node), f"tenure to run on {node.name}", every_s=2)

    def running(self, node: Machine) -> bool:
        """Whether time agent and node of a machine are active."""
        states = node.try_shell(f"systemctl is-active {self._units}")["out"].split()
        return set(states) == {"active"}

    def stop(self, *nodes: Machine) -> None:
        """Stop in good order."""
        each([lambda node=node: node.shell(f"systemctl stop {TARGET} {self._units}", 600) for node in nodes])

    def back(self, *nodes: Machine, cold: bool = False) -> None:
        """Switch nodes on again, with all that their system disk had; tenure runs."""
        self.lab.restart(*nodes, cold=cold)
        each([lambda node=node: self.install(node) for node in nodes if node is not self.lab.server])
        self.start(*(node for node in nodes if node is not self.lab.server))

    def journal(self, node: Machine, lines: int = 30) -> str:
        """What the units of a node said last."""
        words = f"journalctl --no-pager -o cat -n {lines} -u tenure-node@srv-tenure -u tenure-time@srv-tenure"
        return str(node.try_shell(words)["out"])

    def owners(self) -> list[str]:
        """Which node each shard belongs to, by its number."""
        shards = json.loads(self.command(self.lab.nodes[0], "shards --json"))["shards"]
        return [shard["owner"] for shard in shards]

    def read(self, node: Machine, log: str, after: str = "") -> tuple[list[dict[str, Any]], str]:
        """Return a log's settled messages as a node reads them once all written by now is final, and a cursor.

        ``after``: the cursor of a reading before, which this one goes on from. A node that says "try again" (75, as one
        does whose clock has just been through a fault) is asked again. Raises MachineError.
        """
        words = f"read {log} --settle --json" + (f" --after {after}" if after else "")
        done: dict[str, Any] = {}

        def told() -> bool:
            done.update(node.try_shell(f"{ENVIRONMENT} tenure {words}", PATIENCE_S, USER))
            return bool(done["code"] != TRY_AGAIN)

        await_true(told, f"{node.name} to read: {words}", every_s=1)
        if done["code"]:
            raise MachineError(f"{node.name}: tenure {words} ended with {done['code']}: {done['err']}")
        conclusion = json.loads(done["err"].splitlines()[-1])
        return [json.loads(line) for line in done["out"].splitlines()], conclusion["cursor"]


def await_true(fulfilled: Callable[[], bool], what: str, patience_s: float = PATIENCE_S, every_s: float = 0.2) -> float:
    """Ask again and again; return how long it took. Raises MachineError after the patience."""
    begun = time.monotonic()
    while not fulfilled():
        if time.monotonic() - begun > patience_s:
            raise MachineError(f"waited {patience_s:.0f} s for {what}, in vain")
        threading.Event().wait(every_s)
    return time.monotonic() - begun
