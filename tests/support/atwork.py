"""A cluster of real processes at work: daemons in a hurry, and writers on every node. Close it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from threading import Thread
from typing import IO, TYPE_CHECKING, Self

from appliance.admin.trust import next_policy, publish_policy
from appliance.formats.paths import RETAINED
from appliance.node.settings import FILE
from tests.support import hasty, scribe
from tests.support.cluster import wait_until
from tests.support.daemons import Daemons
from timeagent.clock import SystemClock
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

CLOCK = SystemClock()
PATIENCE_NS = 120 * SECOND


class AtWork:
    """Two nodes or more, each with a daemon and a scribe; racks of a second, packed at once, deleted soon."""

    def __init__(self, path: Path, *nodes: str, agents: Sequence[str] = ()) -> None:
        """``agents``: nodes with a time agent too, which their daemon and scribe begin with."""
        self.daemons = Daemons(path, *nodes)
        self.root = self.daemons.site.root
        self._committed: dict[int, int] = {}
        """Messages, by the word of each scribe."""
        site = self.daemons.site
        self.root_key = site.root_key.public
        short = next_policy(site.policy, {"rack_ns": SECOND, "seal_delay_ns": 1_300 * MS})
        publish_policy(site.registers, site.root_key, short)
        for node in nodes:
            settings = site.node_dir(node) / FILE
            settings.write_text(f"retention_days = 1\n{settings.read_text()}")
        self._scribes: list[subprocess.Popen[str]] = []
        self._listeners: list[Thread] = []
        try:
            for node in agents:
                self.daemons.start_agent(node)
            self.start(*nodes)
            for seed, node in enumerate(nodes):
                self._write(node, seed)
        except BaseException:
            self.close()
            raise

    def start(self, *nodes: str) -> None:
        """Start daemons."""
        self.daemons.start(*nodes, program=("-P", hasty.__file__))

    def _write(self, node: str, seed: int) -> None:
        words = [
            sys.executable,
            "-P",
            scribe.__file__,
            str(self.root),
            str(self.daemons.site.node_dir(node)),
            str(seed),
        ]
        with (self.daemons.site.node_dir(node) / "scribe.log").open("ab") as log:
            process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        self._scribes.append(process)
        assert process.stdout is not None
        self._listeners.append(Thread(target=self._listen, args=(process.stdout, seed), daemon=True))
        self._listeners[-1].start()

    def _listen(self, stream: IO[str], scribe: int) -> None:
        self._committed[scribe] = 0
        for line in stream:
            self._committed[scribe] += line == "committed\n"
        stream.close()

    @property
    def committed(self) -> int:
        """How many messages were committed."""
        return sum(list(self._committed.values()))

    def more(self, messages: int) -> None:
        """Wait until so many messages more are committed."""
        target = self.committed + messages
        wait_until(CLOCK, lambda: self.committed >= target, PATIENCE_NS)

    def racks(self, name: str) -> int:
        """Return how many racks there are with a file of a name."""
        return sum(1 for _ in self.root.glob(f"logs/*/*/*/{name}"))

    def deleted(self, racks: int) -> None:
        """Wait until retention has deleted so many packs, of all logs."""
        wait_until(CLOCK, lambda: self.racks(RETAINED) >= racks, PATIENCE_NS)

    def finish(self) -> None:
        """Let the scribes end in good order."""
        for process in self._scribes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._scribes:
            assert process.wait(60) == 0
        for thread in self._listeners:
            thread.join(60)

    def close(self) -> None:
        for process in self._scribes:
            assert process.stdin is not None
            process.stdin.close()
            process.kill()
            process.wait(60)
        for thread in self._listeners:
            thread.join(60)
        self.daemons.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
