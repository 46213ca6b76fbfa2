"""The node daemon: runs the shards that the map gives to this node, and the metronome for every log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from timeagent.errors import Environment, LeaseholdError, ShardUnavailable
from timeagent.units import MS, SECOND

from .bag.metronome import Metronome

if TYPE_CHECKING:
    from threading import Event

    from .cluster import Cluster

_log = logging.getLogger(__name__)

BEAT_NS: Final = 100 * MS
"""How often the metronome looks whether a bag is due: closing is never urgent, settling helps itself."""

NEW_LOGS_NS: Final = SECOND
"""How often new logs are looked for."""


class Node:
    """One node's daemon over an open cluster."""

    def __init__(self, cluster: Cluster) -> None:
        """Run nothing yet."""
        self._cluster = cluster
        self._metronomes: dict[str, Metronome] = {}
        self._looked_ns: int | None = None

    def start(self) -> list[int]:
        """Run this node's shards; return their numbers. Raises Environment if another process of this machine does."""
        routes = self._cluster.routes
        shards = routes.own_shards()
        for shard in shards:
            if not routes.host.try_host(shard, self._cluster.map):
                raise Environment(
                    "shard-runs-already",
                    f"another process of this machine runs shard {shard}",
                    hint="stop it first: there is one daemon per node",
                )
        return shards

    def run(self, stop: Event) -> None:
        """Keep the pace until told to stop. Blocks. What fails is logged, and tried again at the next beat.

        Raises ShardUnavailable when a shard of this node has ended: a daemon without its shard is of no use, and
        whoever supervises it starts the next incarnation.
        """
        # Not stop.wait(): a signal handler that sets the event while this thread is inside wait() would block for ever
        # on the lock that wait() holds.
        while not stop.is_set():
            self._cluster.time.sleep(BEAT_NS)
            self.beat()
            for shard, why in self._cluster.routes.host.ended().items():
                raise ShardUnavailable("shard-ended", f"shard {shard} has ended: {why}", hint="start the node again")

    def beat(self) -> None:
        """Look for new logs now and then; give each log's metronome a turn."""
        try:
            self._look_for_logs()
            now = self._cluster.time.now()
        except LeaseholdError as problem:
            _log.warning("beat-failed code=%s reason=%s", problem.code, problem.message)
            return
        for name, metronome in self._metronomes.items():
            try:
                metronome.turn(now)
            except LeaseholdError as problem:
                _log.warning("metronome-failed log=%s code=%s reason=%s", name, problem.code, problem.message)

    def _look_for_logs(self) -> None:
        boot = self._cluster.time.boot_ns()
        if self._looked_ns is not None and boot - self._looked_ns < NEW_LOGS_NS:
            return
        self._looked_ns = boot
        for name in self._cluster.log_names():
            if name in self._metronomes:
                continue
            try:
                grid = self._cluster.logs.opened(name).grid
            except LeaseholdError as problem:  # the other logs go on
                _log.warning("log-not-opened log=%s code=%s reason=%s", name, problem.code, problem.message)
            else:
                self._metronomes[name] = Metronome(self._cluster.context, grid)
