"""A clean history at random: what a cluster did before a story begins. So a fault is planted inside a large tree.

Everything of it keeps the rules: leases come and go on many domains, some are broken and the next holder settles, bags
are closed, racks sealed and some of them packed, the shard stops orderly. One seed, one history.
"""

from __future__ import annotations

import itertools
import random
import shutil
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from appliance.formats.lease import Mode, Phase
from appliance.formats.paths import SEAL
from appliance.formats.witness import WitnessKind
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from appliance.formats.paths import Grid

    from .tree import ClusterTree

NODE = "n1"
"""All of it is one node's: stories may say that the others joined later."""
_LOGS = ("accounts", "history", "zebra", "ledger.v2")

type Prologue = Callable[[ClusterTree], None]

prologue: ContextVar[Prologue | None] = ContextVar("prologue", default=None)
"""What every new tree begins with."""


@contextmanager
def beginning_with(past: Prologue) -> Iterator[None]:
    """Let every tree that is made meanwhile begin with a history."""
    token = prologue.set(past)
    try:
        yield
    finally:
        prologue.reset(token)


def begin(tree: ClusterTree) -> None:
    """Give a new tree its history, if one is asked for."""
    past = prologue.get()
    if past is not None:
        past(tree)


def at_random(seed: int, events: int) -> Prologue:
    """Return a history of so many events."""
    return lambda tree: _Past(tree, random.Random(seed)).run(events)


@dataclass(frozen=True, slots=True)
class Remembered:
    """A history that was made once: its files, and where its clocks and its chance stood at the end."""

    root: Path
    now_ns: int
    drawn: int

    @classmethod
    def of(cls, tree: ClusterTree) -> Remembered:
        """Remember the history of a tree that has nothing else."""
        return cls(tree.root, tree.now_ns, tree.drawn)

    def __call__(self, tree: ClusterTree) -> None:
        """Give it to another tree."""
        assert len(tree.map.owners) == 1, "it was made under a map with one shard"
        shutil.copytree(self.root, tree.root, dirs_exist_ok=True)
        tree.until(self.now_ns)
        tree.draw(self.drawn)


class _Past:
    def __init__(self, tree: ClusterTree, chance: random.Random) -> None:
        from .shard import Shard
        from .writer import Writer

        self.tree = tree
        self.chance = chance
        self.grids = [tree.log(name) for name in sorted(chance.sample(_LOGS, chance.randint(1, 3)))]
        self.shard = Shard(tree, NODE)
        self.writers = [Writer(tree, NODE) for _ in range(chance.randint(1, 4))]
        names = (f"past/{number}" for number in itertools.count())
        owned = (name for name in names if tree.map.shard_of(name) == 0)
        self.domains = list(itertools.islice(owned, chance.randint(1, 8)))

    def run(self, events: int) -> None:
        tree = self.tree
        for _ in range(events):
            tree.advance(self.chance.randrange(MS, 400 * MS))
            self.shard.extend()
            self.chance.choice(
                (self._written, self._written, self._written, self._idle, self._taken_together, self._broken)
            )()
        self.shard.stop_orderly()
        for grid in self.grids:
            tree.settle(grid, node=NODE)
        self._pack()
        rack_ns = tree.policy.rack_ns
        tree.until(tree.now_ns - tree.now_ns % rack_ns + rack_ns)

    def _grid(self) -> Grid:
        return self.chance.choice(self.grids)

    def _written(self) -> None:
        tree, chance, writer = self.tree, self.chance, self.chance.choice(self.writers)
        mode = chance.choice((Mode.X, Mode.X, Mode.SIX, Mode.IX))
        lease = self.shard.grant(chance.choice(self.domains), writer, mode=mode)
        grid = self._grid()
        tree.settle_to(grid, lease.witness.settle_to_ns, node=NODE)
        for _ in range(chance.randint(1, 4)):
            tree.advance(chance.randrange(MS, 300 * MS))
            payloads = [chance.randbytes(chance.randrange(1, 200)) for _ in range(chance.randint(1, 6))]
            writer.publish(grid, lease, payloads=payloads)
        if chance.random() < 0.3:
            self.shard.extend()
            self.shard.prolong(lease)
        self.shard.end(lease)

    def _idle(self) -> None:
        lease = self.shard.grant(self.chance.choice(self.domains), self.chance.choice(self.writers))
        self.tree.advance(self.chance.randrange(MS, 900 * MS))
        self.shard.end(lease)

    def _taken_together(self) -> None:
        writer, grid = self.chance.choice(self.writers), self._grid()
        names = self.chance.sample(self.domains, min(2, len(self.domains)))
        leases = [self.shard.grant(name, writer, phase=Phase.TENTATIVE) for name in names]
        for lease in leases:
            self.shard.prolong(lease, WitnessKind.UPGRADE)
        self.tree.settle_to(grid, max(lease.witness.settle_to_ns for lease in leases), node=NODE)
        self.tree.advance(MS)
        writer.publish(grid, *leases)
        for lease in leases:
            self.shard.end(lease)

    def _broken(self) -> None:
        lease = self.shard.grant(self.chance.choice(self.domains), self.chance.choice(self.writers))
        if self.chance.random() < 0.5:
            self.tree.settle_to(grid := self._grid(), lease.witness.settle_to_ns, node=NODE)
            self.tree.advance(MS)
            next(each for each in self.writers if each.incarnation == lease.witness.holder.incarnation).publish(
                grid, lease
            )
        self.tree.advance(5 * SECOND)
        self.shard.extend()
        self.shard.expire(lease)

    def _pack(self) -> None:
        from .faults_packs import pack_rack

        for seal in sorted(self.tree.root.glob(f"logs/*/*/*/{SEAL}")):
            if self.chance.random() < 0.4:
                pack_rack(seal.parent)
