"""What a scenario is, and what it is given."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from tests.nfs_lab.lab import Lab
    from tests.nfs_lab.machine import Machine
    from tests.nfs_lab.site import Site
    from tests.nfs_lab.tellers import Tellers

NOTHING: Final[frozenset[str]] = frozenset()


@dataclass(slots=True)
class Stage:
    """A cluster under load. ``writer`` owns no shard; ``owner`` and ``first`` own one each."""

    lab: Lab
    site: Site
    tellers: Tellers

    @property
    def first(self) -> Machine:
        """The node that founded the cluster."""
        return self.lab["node1"]

    @property
    def owner(self) -> Machine:
        """A node that owns a shard."""
        return self.lab["node2"]

    @property
    def writer(self) -> Machine:
        """A node that owns no shard: it only writes."""
        return self.lab["node3"]

    def others(self, *away: Machine) -> list[Machine]:
        """All nodes but these."""
        return [node for node in self.lab.nodes if node not in away]

    def hold(self, seconds: float) -> None:
        """Let time pass, while whoever can works."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.tellers.keep_going()
            threading.Event().wait(min(0.5, max(0.0, until - time.monotonic())))

    def acknowledged(self, since: float, *nodes: Machine) -> int:
        """How many messages these nodes were told of since then."""
        names = {node.name for node in nodes}
        return sum(entry.node in names and entry.heard_at > since for entry in self.tellers.heard())

    def refused(self, before: Counter[str]) -> str:
        """What the tellers were refused since then, by code."""
        fresh = self.tellers.interruptions - before
        return ", ".join(f"{code} {count}" for code, count in sorted(fresh.items())) or "nothing"


@dataclass(frozen=True, slots=True)
class Promise:
    """One row of the table."""

    name: str
    title: str
    promised: str


@dataclass(frozen=True, slots=True)
class Scenario(Promise):
    """Promised first, then played, then judged."""

    play: Callable[[Stage], str]
    """Injects, repairs, waits until all nodes are at work again; returns what was seen, in a few words."""
    may: frozenset[str] = NOTHING
    """Violations that the audit may report, since the scenario commits them."""
    must: frozenset[str] = NOTHING
    """Findings that the audit must report."""
    anew: bool = False
    """The referee reads the whole record again."""
    short: bool = False
    """Part of SHORT=1."""
