"""Where a demo lives, and its machines: per node a daemon, a teller and perhaps a time agent, killed like a power cut.

```
DIR/cluster/            the root: what would be the NFS mount; or it is where --root says
DIR/machines/node1/     node.toml, keys, journal, stderr.log of one machine: what would be its own disk
```

The tmpfs directories are made under /dev/shm and removed at the end.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import IO, Any, Final

import msgspec

from timeagent.errors import Environment
from timeagent.keys import Signer, save_private_key
from timeagent.units import MINUTE, MS, SECOND, Instant

from ..admin.membership import enroll, found_cluster, publish_map
from ..bag.roots import Root, storage_at
from ..formats.policy import Policy
from ..node.runtime import default_directory
from ..node.settings import ROOT_KEY, Settings, check_root, save_settings


def demo_policy(cluster_id: bytes) -> Policy:
    """Return short terms, so that a takeover takes about five seconds; clocks of one machine agree to 5 ms."""
    return Policy(
        number=1,
        cluster_id=cluster_id,
        span_ns=500 * MS,
        grace_ns=1_100 * MS,
        rack_ns=5 * SECOND,
        seal_delay_ns=2 * SECOND,
        radius_ns_max=20 * MS,
        assumed_radius_ns=5 * MS,
        lease_term_max_ns=2_400 * MS,
        renew_period_ns=800 * MS,
        holder_margin_ns=100 * MS,
        attempt_timeout_ns=400 * MS,
        ceiling_ahead_ns=600 * MS,
        ceiling_period_ns=300 * MS,
    )


ROOT_NAME: Final = "cluster"
MACHINES_NAME: Final = "machines"


@dataclass(frozen=True, slots=True)
class DemoPlace:
    directory: Path
    root: Root
    policy: Policy
    machines: tuple[Settings, ...]

    @property
    def mount(self) -> Path:
        """The root of a demo that has it in a directory."""
        assert isinstance(self.root, Path)
        return self.root

    def forget(self) -> None:
        """Remove the machines' tmpfs directories: what a reboot would do."""
        for settings in self.machines:
            assert settings.runtime is not None
            shutil.rmtree(settings.runtime, ignore_errors=True)


def set_up_place(
    directory: Path, nodes: int, now: Instant, randomness: random.Random, root: Root | None = None
) -> DemoPlace:
    """Found a cluster of so many nodes in a new or empty directory. Raises Environment for any other, or another's.

    ``root``: where the root is, if not in that directory.
    """
    if directory.exists() and (owner := directory.stat().st_uid) not in (os.geteuid(), 0):
        raise Environment("demo-not-ours", f"{directory} belongs to user {owner}", hint="name a new directory")
    if directory.exists() and any(directory.iterdir()):
        raise Environment("demo-not-empty", f"{directory} is not empty", hint="name a new directory")
    root = check_root(root or directory / ROOT_NAME)
    if isinstance(root, Path):
        root.mkdir(parents=True, exist_ok=True)
    machines = directory / MACHINES_NAME
    machines.mkdir(parents=True, mode=0o700)
    cluster_id = randomness.randbytes(16)
    storage = storage_at(root)
    root_key = Signer.generate()
    policy = demo_policy(cluster_id)
    registers = found_cluster(storage, root, policy, root_key)
    save_private_key(machines / ROOT_KEY, root_key)
    names = [f"node{number}" for number in range(1, nodes + 1)]
    runtimes = {name: default_directory(cluster_id, name) for name in names}
    settled = []
    for name in names:
        settings = enroll(registers, root, root_key, name, now, machines / name)
        peers = {other: place for other, place in runtimes.items() if other != name}
        settings = replace(settings, runtime=runtimes[name], peers=peers)
        save_settings(settings)
        settled.append(settings)
    publish_map(registers, root_key, names)
    return DemoPlace(directory, root, policy, tuple(settled))


PATIENCE_NS: Final = 2 * MINUTE
"""How long the demo waits for a process to do what it should, on a busy machine."""

ROGUE: Final = "appliance.demo.rogue"

type Event = dict[str, Any]


@dataclass(slots=True)
class Machine:
    """One node of the demo. Its files stand in for the machine's own disk."""

    settings: Settings
    seed: int
    events: SimpleQueue[tuple[str, Event]]
    rogue_daemon: str = ""
    """The rule that this machine's daemon breaks, if any."""
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    """Its processes by role: daemon, teller, agent, rogue."""
    readers: list[Thread] = field(default_factory=list)
    """What follows those whose end somebody waits for."""

    @property
    def name(self) -> str:
        return self.settings.node

    @property
    def journal(self) -> Path:
        return self.settings.directory / "journal"

    def start_daemon(self) -> None:
        words = ("tenure", "node", "run", "--json", "--allow-root")
        self._start("daemon", *((ROGUE, self.rogue_daemon) if self.rogue_daemon else words))

    def start_agent(self) -> None:
        """Start the node's time agent; it says so when there is a time. It runs until the machine is without power."""
        self._start("agent", "tenure", "time", "run", "--json", "--allow-root")

    def start_rogue(self, what: str) -> None:
        self._start("rogue", ROGUE, what)

    def start_teller(self, accounts: int) -> None:
        self.seed += 1
        words = ("--accounts", str(accounts), "--journal", str(self.journal), "--seed", str(self.seed))
        self._start("teller", "appliance.demo.bank", *words)

    def send(self, role: str, number: signal.Signals) -> None:
        """Send a signal to one of its processes, if that runs."""
        process = self.running.get(role)
        if process and process.poll() is None:
            process.send_signal(number)

    def cut_power(self) -> None:
        """Kill all processes, at once: nothing is flushed, nothing is given back."""
        for role in self.running:
            self.send(role, signal.SIGKILL)
        for process in self.running.values():
            process.wait()
        self.running.clear()

    def finish(self, role: str) -> None:
        """Wait for one of its processes, if that runs: the daemon and the teller are told to stop in good order."""
        process = self.running.get(role)
        if process is None:
            return
        if role == "daemon":
            process.send_signal(signal.SIGINT)
        elif process.stdin:
            process.stdin.close()
        hint = f"look at {self.settings.directory / 'stderr.log'}"
        try:
            process.wait(PATIENCE_NS / SECOND)
        except subprocess.TimeoutExpired:
            raise Environment("demo-stuck", f"the {role} of {self.name} did not stop", hint=hint) from None
        del self.running[role]
        if process.returncode:
            ended = f"the {role} of {self.name} ended with exit code {process.returncode}: {self._last_words()}"
            raise Environment("demo-failed", ended, hint=hint)

    def acknowledged(self) -> list[str]:
        """Return the ids in the journal; a line that the power cut tore is not one."""
        if not self.journal.exists():
            return []
        *lines, _ = self.journal.read_text(encoding="ascii").split("\n")
        return lines

    def _start(self, role: str, module: str, *words: str) -> None:
        place = ["--root", str(self.settings.root), "--node-dir", str(self.settings.directory)]
        stdin = subprocess.PIPE if role == "teller" else subprocess.DEVNULL
        with (self.settings.directory / "stderr.log").open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 - this interpreter and our own modules
                [sys.executable, "-P", "-m", module, *words, *place], stdin=stdin, stdout=subprocess.PIPE, stderr=log
            )
        assert process.stdout is not None
        self.running[role] = process
        reader = Thread(target=self._relay, args=(process.stdout, role), daemon=True)
        reader.start()
        if role != "agent":
            self.readers.append(reader)

    def _relay(self, stream: IO[bytes], role: str) -> None:
        for line in stream:
            if line.endswith(b"\n"):
                self.events.put((self.name, {"role": role, **msgspec.json.decode(line)}))
        stream.close()

    def _last_words(self) -> str:
        lines = (self.settings.directory / "stderr.log").read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "it said nothing")
