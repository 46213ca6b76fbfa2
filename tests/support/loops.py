"""A shard server whose loop and clock a test moves by hand: every limit is met exactly, and nothing is waited for."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from appliance.lease.server import ShardServer
from tests.support.nodes import read_answer
from tests.support.shards import World
from timeagent.units import SECOND

if TYPE_CHECKING:
    from pathlib import Path

    from appliance.lease.connection import ClientLimits
    from appliance.lease.wire import Reply
    from timeagent.units import Span

ROUNDS = 4
"""After so many rounds of the loop all that can be done now is done."""


class HandCounter:
    """A boot clock that stands still."""

    def __init__(self) -> None:
        self.now = 100 * SECOND

    def boot_ns(self) -> int:
        return self.now


class HandServer:
    """One shard behind a Unix socket. Close it."""

    def __init__(self, path: Path, limits: ClientLimits) -> None:
        self.world = World(path)
        self.clock = HandCounter()
        self.path = path / "s"
        self.server = ShardServer(self.world.started(), self.path, limits=limits, clock=self.clock)
        self._lines: list[socket.socket] = []

    def line(self) -> socket.socket:
        """Connect; the server has seen it."""
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._lines.append(made)
        made.settimeout(1)  # what can come is here when the loop has gone round
        made.connect(str(self.path))
        self.rounds()
        return made

    def rounds(self, count: int = ROUNDS, after_ns: Span = 0) -> None:
        """Let the loop go round, the clock so much later."""
        self.clock.now += after_ns
        for _ in range(count):
            self.server._wake.send(b"\0")  # it does not wait for anybody
            self.server._loop_once()

    def awake(self) -> bool:
        """Whether anything that the loop watches is ready just now."""
        return bool(self.server._poll.poll(0))

    def told(self, line: socket.socket) -> Reply:
        """Return the one answer that is there."""
        return read_answer(line)[0]

    @property
    def answered(self) -> int:
        """How many requests had their turn."""
        return self.server.counts.requests

    def close(self) -> None:
        for line in self._lines:
            line.close()
        self.server.stop()
        self.server.run()
        self.world.close()
