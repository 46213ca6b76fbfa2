"""The lab's network: a process that passes Ethernet frames between the machines; drops or delays what it is told.

Each machine's card is a datagram socket ``nic-NAME``, its port here ``port-NAME``. Rules come as JSON datagrams at
``rules``: {"cut": [[from, to], ...], "delay": [[from, to, seconds], ...]}; each datagram replaces what was before.
No bridge, no tap device, no root, and nothing that the host's network sees.
"""

from __future__ import annotations

import heapq
import itertools
import json
import os
import select
import socket
import sys
import time

FRAME_MAX = 65536
BURST = 64


def bound(name: str) -> socket.socket:
    """A datagram socket of that name, here."""
    port = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    port.bind(name)
    port.settimeout(0)
    port.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    return port


class Switch:
    """Learns which address is behind which port, as a switch does."""

    def __init__(self, names: list[str]) -> None:
        self._ports = {name: bound(f"port-{name}") for name in names}
        self._rules = bound("rules")
        self._behind: dict[bytes, str] = {}
        self._cut: set[tuple[str, str]] = set()
        self._delay: dict[tuple[str, str], float] = {}
        self._late: list[tuple[float, int, str, str, bytes]] = []
        self._numbers = itertools.count()

    def run(self) -> None:
        """Pass frames for ever."""
        names = {port: name for name, port in self._ports.items()}
        while True:
            wait = max(0.0, self._late[0][0] - time.monotonic()) if self._late else None
            for ready in select.select([self._rules, *names], [], [], wait)[0]:
                if ready is self._rules:
                    self._learn_rules()
                else:
                    self._drain(names[ready])
            self._send_late()

    def _learn_rules(self) -> None:
        told = json.loads(self._rules.recv(FRAME_MAX))
        self._cut = {(one, other) for one, other in told["cut"]}
        self._delay = {(one, other): seconds for one, other, seconds in told["delay"]}

    def _drain(self, source: str) -> None:
        for _ in range(BURST):
            try:
                frame = self._ports[source].recv(FRAME_MAX)
            except BlockingIOError:
                return
            self._behind[frame[6:12]] = source
            known = self._behind.get(frame[:6])
            for target in [known] if known else self._ports:
                if target == source or (source, target) in self._cut:
                    continue
                if late := self._delay.get((source, target)):
                    due = time.monotonic() + late
                    heapq.heappush(self._late, (due, next(self._numbers), source, target, frame))
                else:
                    self._send(target, frame)

    def _send_late(self) -> None:
        while self._late and self._late[0][0] <= time.monotonic():
            _, _, source, target, frame = heapq.heappop(self._late)
            if (source, target) not in self._cut:
                self._send(target, frame)

    def _send(self, target: str, frame: bytes) -> None:
        try:
            self._ports[target].sendto(frame, f"nic-{target}")
        except OSError:
            return  # switched off, or its queue is full: a lost frame


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    Switch(sys.argv[2:]).run()
