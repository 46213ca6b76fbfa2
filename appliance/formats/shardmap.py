"""The map record: which shards there are, which node should own each, and which of them a domain is held from.

A shard is a ceiling chain. It is named by one number for ever: (the map under which its chain began − 1) × 1024 + its
place in the layout. So the shards of the first map are 0, 1, 2 …

A planned move is three maps: the old one; one in phase *both*, which has the layout before beside its own; and the new
one, with that layout alone. Meanwhile a domain whose two shards differ is held from the one that leaves and then from
the one that comes (docs/protocol/lease.md, "Planned moves").
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache

from timeagent.canonical import U64, Bytes16, Record

from .names import tree_of
from .witness import Half

SHARDS_MAX = 1024


def shard_number(chain: int, place: int) -> int:
    """Return the number of a shard: the map under which its chain began, and its place in the layout."""
    return (chain - 1) * SHARDS_MAX + place


def chain_of(shard: int) -> tuple[int, int]:
    """Return where the chain of a shard lies: the map under which it began, and its place."""
    chain, place = divmod(shard, SHARDS_MAX)
    return chain + 1, place


def shard_text(shard: int) -> str:
    """Return a shard as people read it: its place, and the map of its chain where that is not the first."""
    chain, place = chain_of(shard)
    return str(place) if chain == 1 else f"{place} (chain {chain})"


class Layout(Record, frozen=True):
    """Which shards there are: one for each place."""

    owners: tuple[str, ...]
    """The node that should own each."""
    chains: tuple[U64, ...]
    """The map under which the chain of each began."""

    @property
    def shards(self) -> tuple[int, ...]:
        """Return the numbers of the shards, by place."""
        return tuple(shard_number(chain, place) for place, chain in enumerate(self.chains))

    def of(self, domain: str) -> int:
        place = 0 if len(self.owners) == 1 else _place_of(tree_of(domain), len(self.owners))
        return shard_number(self.chains[place], place)


class ShardMap(Record, frozen=True):
    """Numbered, immutable, signed by the cluster root key."""

    number: U64
    cluster_id: Bytes16
    owners: tuple[str, ...]
    """The node that should own each shard, by its place."""
    chains: tuple[U64, ...] = ()
    """The map under which the chain of each began; empty: all began under map 1."""
    before: Layout | None = None
    """In phase *both*: the layout of the map before."""

    def __post_init__(self) -> None:
        """Refuse (ValueError; Damaged while decoding) a map without shards, and layouts that contradict themselves."""
        if not self.owners:
            raise ValueError("a map has at least one shard")
        for layout in (self.layout, self.before):
            if layout is not None and not 0 < len(layout.owners) == len(layout.chains) <= SHARDS_MAX:
                raise ValueError(f"a layout has 1 to {SHARDS_MAX} shards, and a chain for each")
            if layout is not None and not all(0 < chain <= self.number for chain in layout.chains):
                raise ValueError(f"a chain of map {self.number} began under no map before it")

    @property
    def layout(self) -> Layout:
        """Return the layout of this map: in phase *both* the one to come."""
        return Layout(owners=self.owners, chains=self.chains or (1,) * len(self.owners))

    @property
    def shards(self) -> tuple[int, ...]:
        """Return the numbers of all shards that run by this map; those that leave come last."""
        return (*self.layout.shards, *self.leaving)

    @property
    def leaving(self) -> tuple[int, ...]:
        """Return the shards of the layout before that are not in this one; none but in phase *both*."""
        coming = set(self.layout.shards)
        return () if self.before is None else tuple(each for each in self.before.shards if each not in coming)

    def shards_of(self, domain: str) -> tuple[int, ...]:
        """Return from which shards a domain is held, in the order in which they are asked: one; two while it moves."""
        new = self.layout.of(domain)
        old = new if self.before is None else self.before.of(domain)
        return (new,) if old == new else (old, new)

    def shard_of(self, domain: str) -> int:
        """Return the place of a domain's shard in the layout, by rendezvous hashing of its tree.

        Weights do not depend on the map's number: a map with one shard more moves only what the new shard takes.
        """
        return _place_of(tree_of(domain), len(self.owners))

    def owner_of(self, shard: int) -> str | None:
        """Return which node should own a shard; None: no shard of that number runs by this map."""
        chain, place = chain_of(shard)
        for layout in (self.layout, self.before):
            if layout is not None and place < len(layout.chains) and layout.chains[place] == chain:
                return layout.owners[place]
        return None

    def half_of(self, shard: int) -> Half | None:
        """Return how much of a lease a shard grants; None: it is not of this map."""
        if shard in self.leaving:
            return Half.LEAVING
        if shard not in self.layout.shards:
            return None
        return Half.WHOLE if self.before is None or shard in self.before.shards else Half.COMING

    def since(self, shard: int) -> int:
        """Return from which map on a shard is what it is by this one: who names an earlier one is not served."""
        if self.half_of(shard) is not Half.WHOLE:
            return self.number
        chain, _ = chain_of(shard)
        return 1 if chain == 1 else chain + 1

    def heirs(self, shard: int, nodes: Iterable[str]) -> list[str]:
        """Return who should run a shard, the first that can: its owner, then the other nodes by rendezvous hashing."""
        owner = self.owner_of(shard)
        assert owner is not None, f"no shard {shard} in map {self.number}"

        def weight(node: str) -> bytes:
            return hashlib.sha256(b"%d\0heir\0" % shard + node.encode()).digest()

        return [owner, *sorted(set(nodes) - {owner}, key=weight, reverse=True)]


@lru_cache(maxsize=16384)
def _place_of(tree: str, shards: int) -> int:
    name = tree.encode()

    def weight(place: int) -> bytes:
        return hashlib.sha256(b"%d\0" % place + name).digest()

    return max(range(shards), key=weight)
