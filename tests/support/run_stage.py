"""A shard in a daemon of its own, a runner that reaches it through a line that can be cut, and a rival for the lease.

The rival is the judge: when its ``acquire`` returns, nothing that was run under the earlier lease may live.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

from msgspec import structs

from appliance.formats.policy import check_policy
from appliance.node.runtime import shard_socket
from appliance.node.settings import save_settings
from appliance.single_leases import ByHand
from tests.support.cluster import Site, fast_policy, wait_until
from tests.support.warm import WarmProcess
from timeagent.clock import SystemClock
from timeagent.errors import TenureError
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from appliance.formats.policy import Policy

MISBEHAVING = Path(__file__).with_name("misbehaving.py")
PATIENCE_S = 200
SHARD = 0


def slow_policy(path: Path) -> Policy:
    """Terms that a loaded machine can keep: SIGTERM comes 2.1 s, SIGKILL 1.1 s before an expiry."""
    numbers = fast_policy(random.Random(str(path)).randbytes(16))  # as the site names its cluster
    return check_policy(
        structs.replace(
            numbers, lease_term_max_ns=6 * SECOND, renew_period_ns=1_500 * MS, attempt_timeout_ns=1_200 * MS
        )
    )


class Line:
    """A Unix socket that leads to another one, as long as it is not cut or held."""

    def __init__(self, path: Path, to: Path) -> None:
        self._to = to
        self._open = Event()
        self._open.set()
        self._refuses = False
        self._pairs: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                if self._refuses:
                    near.close()
                    continue
                far = socket.socket(socket.AF_UNIX)
                self._pairs += [near, far]
                far.connect(str(self._to))
            except OSError:
                if self._listener.fileno() < 0:
                    return
                near.close()
                continue
            for one, other in ((near, far), (far, near)):
                Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                self._open.wait()
                other.sendall(data)
        for each in (one, other):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def hold(self) -> None:
        """Swallow everything: who waits for an answer waits in vain."""
        self._open.clear()

    def cut(self) -> None:
        """End every connection and refuse others."""
        self._refuses = True
        for each in self._pairs:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._refuses = False
        self._open.set()

    def close(self) -> None:
        self._listener.close()
        self.cut()
        self._open.set()


def marked(mark: str) -> list[int]:
    """Every process that lives and was started with this mark in its environment. One that is being killed is none."""
    wanted, found = f"TENURE_MARK={mark}\0".encode(), []
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            with contextlib.suppress(OSError):
                if wanted in (each / "environ").read_bytes() and not _is_being_killed(each):
                    found.append(int(each.name))
    return found


def _is_being_killed(place: Path) -> bool:
    said = (line.split(":\t") for line in (place / "status").read_text().splitlines() if "Pnd:" in line)
    return any(int(value, 16) >> (signal.SIGKILL - 1) & 1 for _, value in said)


class Stage:
    """One shard, one line, one rival. Close it."""

    def __init__(self, path: Path, chance: random.Random) -> None:
        self.clock = SystemClock()
        self.path = path
        self.site = Site(path, ("node1", "node2", "node3"), slow_policy(path))
        self._number = 0
        self._chance = chance
        near = self.site.tmpfs / "line"
        near.mkdir()
        self.site.settings["node2"] = replace(
            self.site.settings["node2"], peers={**self.site.settings["node2"].peers, "node1": near}
        )
        save_settings(self.site.settings["node2"])
        self.shard = self._started()
        self.line = Line(shard_socket(near, SHARD), shard_socket(self.site.tmpfs / "node1", SHARD))
        self.rival = self.site.open("node3")
        self.session = self.rival.session("rival")
        self.hand = ByHand(self.rival, chance)

    def _started(self) -> subprocess.Popen[str]:
        log = (self.path / "node1.log").open("ab")
        with log:
            words = ["node", "run", "--json", *self.site.options("node1")]
            daemon = WarmProcess("tenure", words, stdout=subprocess.PIPE, stderr=log)
        assert daemon.stdout is not None
        assert json.loads(daemon.stdout.readline())
        return daemon

    def fresh_name(self) -> str:
        """A domain of the shard that nobody has used."""
        while True:
            self._number += 1
            name = f"run/{self._number}"
            if self.rival.map.shard_of(name) == SHARD:
                return name

    def run(
        self,
        name: str,
        mark: str,
        *words: str,
        mutant: str | None = None,
        wait: str = "100",
        stderr: int = subprocess.PIPE,
    ) -> Runner:
        module, *planted = ["tenure"] if mutant is None else ["tests.support.runner", mutant]
        command = ["env", f"TENURE_MARK={mark}", sys.executable, "-S", "-E", str(MISBEHAVING), *words]
        return Runner(
            module,
            [*planted, "run", *self.site.options("node2"), "--lease", name, "--wait", wait, "--", *command],
            mark,
            stderr,
        )

    def crash_shard(self) -> None:
        self.shard.kill()
        self._reap()
        self.shard = self._started()

    def _reap(self) -> None:
        self.shard.wait(PATIENCE_S)
        assert self.shard.stdout is not None
        self.shard.stdout.close()

    def revoke(self, name: str) -> None:
        with contextlib.suppress(TenureError):
            for each in self.hand.leases(name):
                self.hand.revoke(each, "planted")

    def when_rival_has(self, name: str, mark: str) -> list[int]:
        """Return what lives of the marked when the rival has the lease by the default ``acquire``."""
        with self.session.acquire(name, timeout_s=PATIENCE_S):
            return marked(mark)

    def close(self) -> None:
        self.line.close()
        self.rival.close()
        self.shard.send_signal(signal.SIGCONT)
        self.shard.kill()
        self._reap()
        self.site.close()


class Runner:
    """One ``tenure run``, and what it said."""

    def __init__(self, module: str, words: list[str], mark: str, stderr: int = subprocess.PIPE) -> None:
        """Start it. ``stderr``: a descriptor; then nothing is known of what it said."""
        self.mark = mark
        nothing = subprocess.DEVNULL
        self.process = WarmProcess(module, words, stdin=nothing, stdout=nothing, stderr=stderr)
        self._said: list[str] = []
        self._reading = Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        if self.process.stderr is not None:
            with self.process.stderr as stream:
                self._said += stream

    @property
    def said(self) -> str:
        return "".join(self._said)

    def wait_ready(self, clock: SystemClock, ready: Path) -> None:
        wait_until(clock, lambda: ready.exists() or self.process.poll() is not None, PATIENCE_S * SECOND)

    def code(self) -> int:
        return self.process.wait(PATIENCE_S)

    def end(self) -> None:
        """End it and all that it began, by number, whatever has become of it."""
        for pid in marked(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait(PATIENCE_S)
        self._reading.join(5)
