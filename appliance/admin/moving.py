"""Planned moves: shards get other owners, or their number changes, and no lease is lost by it (docs/protocol/lease.md).

Three maps: the one that is; one in phase *both*, which has its layout beside the one to come; one with the latter
alone.
Between the second and the third every shard that leaves has to say that nothing is held from it alone any more, or has
to be surely dead. Who is cut off in between is called again, and goes on where it was; meanwhile no other move begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from timeagent.clock import NodeTime
from timeagent.errors import BadRequest, BadTime, ShardUnavailable, TenureError, TryAgain
from timeagent.keys import Signer
from timeagent.units import MINUTE, MS, Span, rfc3339

from ..bag.ports import Storage
from ..formats.chains import CeilingKind
from ..formats.framing import Kind
from ..formats.paths import chain_path
from ..formats.shardmap import SHARDS_MAX, Layout, ShardMap, chain_of, shard_text
from ..formats.witness import Half
from ..lease.ceiling import newest_record
from ..lease.wire import ShardNumbers
from ..node.records import Registers, StoredChain

LOOK_NS: Final[Span] = 250 * MS
"""How often shards that leave are looked at."""
DEAF_NS: Final[Span] = MINUTE
"""Whose shard goes by an earlier map for so long has no mount, though it answers: it costs what a dead node costs."""


def moved(newest: ShardMap, owners: Mapping[int, str]) -> Layout:
    """Return the layout in which some places get an owner, each with a chain of its own; the others keep theirs."""
    layout, number = newest.layout, newest.number + 1
    return Layout(
        owners=tuple(owners.get(place, owner) for place, owner in enumerate(layout.owners)),
        chains=tuple(number if place in owners else chain for place, chain in enumerate(layout.chains)),
    )


def resharded(newest: ShardMap, count: int, nodes: Sequence[str]) -> Layout:
    """Return a layout of so many shards over some nodes, all with chains of their own.

    Places that stay keep their owner where it is one of the nodes. Raises BadRequest for a number that cannot be.
    """
    if not 1 <= count <= SHARDS_MAX:
        raise BadRequest("bad-shards", f"{count} shards: a map has 1 to {SHARDS_MAX}", hint="name another number")
    share = -(-count // len(nodes))
    spread = [node for _ in range(share) for node in nodes]
    kept = [owner if owner in nodes else None for owner in newest.owners[:count]]
    for owner in kept:
        if owner in spread:
            spread.remove(owner)
    places = [*kept, *[None] * (count - len(kept))]
    owners = tuple(owner or spread.pop(0) for owner in places)
    return Layout(owners=owners, chains=(newest.number + 1,) * count)


def shared(newest: ShardMap, node: str) -> Layout | None:
    """Return the layout in which a node has its share of the shards, beside those that have some; None: it has one."""
    layout = newest.layout
    if node in layout.owners:
        return None
    nodes = [*dict.fromkeys(layout.owners), node]
    if len(layout.owners) < len(nodes):
        return resharded(newest, len(nodes), nodes)
    left, given = list(layout.owners), {}
    for _ in range(len(left) // len(nodes)):
        richest = max(nodes[:-1], key=left.count)
        place = len(left) - 1 - left[::-1].index(richest)
        given[place] = left[place] = node
    return moved(newest, given)


def check_nodes(registers: Registers, nodes: Sequence[str]) -> None:
    """Raise BadRequest for nodes that the cluster does not have, or none."""
    known = {entry.node for entry in registers.newest_trust().keys}
    unknown = sorted(set(nodes) - known)
    if unknown or not nodes:
        raise BadRequest(
            "unknown-node",
            f"the cluster has no node {', '.join(unknown) or '(none named)'}",
            hint="tenure trust ls names them",
        )


def begin(registers: Registers, root_key: Signer, layout: Callable[[ShardMap], Layout]) -> ShardMap:
    """Publish the map in phase *both* of a move to a layout, or find the one of the same move. Touches the mount.

    ``layout``: made from the map before. Raises TryAgain while another move is under way, and where somebody else has
    published a map meanwhile.
    """
    newest = registers.newest_map()
    if newest.before is not None:
        before = registers.map(newest.number - 1)
        if layout(before) == newest.layout:
            return newest
        raise TryAgain(
            "move-under-way",
            f"map {newest.number} moves shards already: {moves_text(newest)}",
            hint="tenure shards finish ends that move; then repeat this",
        )
    to = layout(newest)
    return _published(
        registers,
        root_key,
        ShardMap(
            number=newest.number + 1,
            cluster_id=newest.cluster_id,
            owners=to.owners,
            chains=to.chains,
            before=newest.layout,
        ),
    )


def moves_text(both: ShardMap) -> str:
    """Return what a map in phase *both* moves, for people."""
    assert both.before is not None
    if len(both.before.owners) != len(both.owners):
        return f"{len(both.before.owners)} shards become {len(both.owners)}"
    places = [chain_of(shard)[1] for shard in both.leaving]
    before, after = both.before.owners, both.owners
    return ", ".join(
        f"shard {each} home to {after[each]}"
        if before[each] == after[each]
        else f"shard {each} from {before[each]} to {after[each]}"
        for each in places
    )


@dataclass
class Finish:
    """Ends a move: waits for the shards that leave, then publishes the map without them."""

    registers: Registers
    storage: Storage
    time: NodeTime
    numbers: Callable[[int], ShardNumbers]
    """Asks a shard how it stands."""
    progress: Callable[[str], object]
    """Is told what is waited for, when that changes."""

    def __post_init__(self) -> None:
        self._began_ns = self.time.boot_ns()

    def run(self, root_key: Signer, both: ShardMap) -> ShardMap:
        """Wait until nothing is held alone, however long that takes; return the map that ends the move.

        Raises TryAgain where somebody else has ended it, and what publishing raises. Touches the mount.
        """
        self._wait([partial(self.waits_for, shard, both.number) for shard in both.leaving])
        return _published(self.registers, root_key, ended(both))

    def wait_for_ends(self, both: ShardMap) -> None:
        """Wait until the shards that leave have ended their chains, or may grant no more. Touches the mount.

        Whose daemon ends before that leaves those that come waiting for its ceiling, and no lease is renewed meanwhile.
        """
        self._wait([partial(self.goes_on, shard) for shard in both.leaving])

    def _wait(self, reasons: Sequence[Callable[[], str | None]]) -> None:
        told = ""
        while waits := [why for each in reasons if (why := each()) is not None]:
            if waits[0] != told:
                told = waits[0]
                self.progress(told)
            self.time.sleep(LOOK_NS)

    def waits_for(self, shard: int, both: int) -> str | None:
        """Return why leases may be held from a shard that leaves alone, or None. Blocks; touches the mount."""
        name = f"shard {shard_text(shard)}"
        try:
            now = self.time.now()
        except BadTime as problem:
            return f"no time: {problem.message}"
        try:
            numbers = self.numbers(shard)
        except ShardUnavailable as problem:
            stands = f"does not answer: {problem.message}"
        else:
            if numbers.going_by >= both and numbers.half is Half.LEAVING:
                if now.surely_past(numbers.alone_until_ns):
                    return None
                return f"leases of {name} may be held from it alone until {rfc3339(numbers.alone_until_ns)}"
            stands = f"goes by map {numbers.going_by} still"
            if self.time.boot_ns() - self._began_ns < DEAF_NS:
                return f"{name} {stands}"
        why = self.goes_on(shard, alone=True)
        return None if why is None else f"{name} {stands}; {why}"

    def goes_on(self, shard: int, *, alone: bool = False) -> str | None:
        """Return why a shard's chain has not ended, or may not have, or None. Touches the mount.

        ``alone``: or why a lease of it may be believed in: one that was revoked outlives an orderly end.
        """
        name = f"shard {shard_text(shard)}"
        try:
            now = self.time.now()  # before the look, which shows what was linked while the ceiling before it lasted
            newest = newest_record(StoredChain(self.storage, chain_path(*chain_of(shard))))
            if newest is None:
                return None
            grants = newest.kind is CeilingKind.RUNNING
            until = newest.ceiling_ns if grants else newest.settle_to_ns if alone else 0
            if now.surely_past(until):
                return None
        except TenureError as problem:
            return f"the chain of {name} cannot be read: {problem.message}"
        if grants:
            return f"{name} has not ended its chain, and may grant until {rfc3339(until)}"
        return f"leases of {name} that it ended may be believed in until {rfc3339(until)}"


def ended(both: ShardMap) -> ShardMap:
    return msgspec.structs.replace(both, number=both.number + 1, before=None)


def _published(registers: Registers, root_key: Signer, record: ShardMap) -> ShardMap:
    if not registers.publish(Kind.MAP, record, root_key) and registers.map(record.number) != record:
        raise TryAgain("map-outrun", f"map {record.number} was published by another just now", hint="look, and repeat")
    return record
