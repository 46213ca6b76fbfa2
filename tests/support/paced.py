"""Nodes that keep the pace of many logs, on one storage and one hand-moved clock: what each asks of the mount."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from appliance.bag.logs import create_log
from appliance.bag.ports import BagContext
from appliance.daemon.daemon import BEAT_NS
from appliance.daemon.pace import Pace
from appliance.formats.paths import LOGS
from tests.support.bags import LOG, POLICY, T0, TIME_KEY, FixedRecords, Node
from tests.support.clocks import HandTime
from tests.support.storage import WrappedStorage
from tests.support.woken import WokenLogs
from timeagent.units import DAY, MINUTE, MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from appliance.bag.ports import Storage
    from timeagent.units import Span

DAILY = msgspec.structs.replace(POLICY, rack_ns=10 * MINUTE, seal_delay_ns=MINUTE)
"""The numbers of a cluster that nobody has tuned."""

OPENS = frozenset({"look", "list_afresh"})
"""Verbs that open a directory."""


class CountingStorage(WrappedStorage):
    """Counts calls by verb; apart from them the listings of all logs, which are one however many logs there are."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.calls = Counter[str]()
        self.listings = 0

    def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:
        if path == LOGS:
            self.listings += 1
        else:
            self.calls[verb] += 1
        return call()

    def forget(self) -> None:
        """Count from here on."""
        self.calls.clear()
        self.listings = 0

    @property
    def opens(self) -> int:
        """Directories opened."""
        return sum(count for verb, count in self.calls.items() if verb in OPENS)


class PacedNode:
    """One node: its daemon's pace, over a mount that counts, and an application that uses the log ``events``."""

    def __init__(self, world: PacedWorld, name: str) -> None:
        self._world = world
        self.woken = WokenLogs()
        self.name = name
        self.mount = CountingStorage(world.storage)
        context = BagContext(self.mount, world.time, world.records, name)
        self.pace = Pace(context, self.woken.taken, keep_ns=7 * DAY)

    def process(self) -> Node:
        """Return a new process of this machine."""
        world = self._world
        return Node(world.storage, self.name, world.time, world.records, wake=self.woken.wake)


class PacedWorld:
    """All nodes with all logs, at one time."""

    def __init__(self, storage: Storage, nodes: int = 1, idle: int = 0, *, events: bool = True) -> None:
        """Let every node take up so many logs, and ``events``; nothing is due then for some minutes."""
        self.storage = storage
        self.time = HandTime(TIME_KEY, T0 + 500 * MS)
        self.records = FixedRecords(policies={1: DAILY})
        self.nodes = [PacedNode(self, f"n{number}") for number in range(1, nodes + 1)]
        self.logs = [*([LOG] if events else []), *(f"idle{number}" for number in range(idle))]
        for log in self.logs:
            create_log(BagContext(storage, self.time, self.records, "n1"), log)
        self.run(DAILY.rack_ns // 2)
        for node in self.nodes:
            node.mount.forget()

    def run(self, span: Span, each: Callable[[], object] = lambda: None) -> None:
        """Let so much time go by, beat by beat; ``each`` is called after each beat."""
        until = self.time.midpoint_ns + span
        while self.time.midpoint_ns < until:
            self.time.advance(BEAT_NS)
            for node in self.nodes:
                node.pace.beat()
            each()

    def opens(self, span: Span) -> int:
        """Let time go by; return how many directories all nodes opened meanwhile."""
        before = sum(node.mount.opens for node in self.nodes)
        self.run(span)
        return sum(node.mount.opens for node in self.nodes) - before
