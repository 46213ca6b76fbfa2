"""A planned move, scripted: chains that leave, then both, then those that came alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from appliance.formats.chains import CeilingKind, CeilingRecord, open_ceiling
from appliance.formats.framing import Kind
from appliance.formats.paths import chain_path, record_name
from appliance.formats.shardmap import Layout, ShardMap
from appliance.formats.stamped import sign
from appliance.formats.witness import Half
from timeagent.units import MS, SECOND

from . import sessions
from .fixtures import Story
from .shard import Shard

if TYPE_CHECKING:
    from pathlib import Path

    from .shard import Lease
    from .tree import Change, ClusterTree
    from .writer import Writer


class Move:
    """The shard of n1 moves to n2, or is resharded to several: one step of it after the other."""

    def __init__(self, root: Path, *, owners: tuple[str, ...] = ("n2",)) -> None:
        self.story = story = Story(root)
        self.tree, self.grid, self.old = story.tree, story.grid, story.shard
        self.writer, self.other = story.writer, story.other
        self.owners = owners
        self.coming: list[Shard] = []

    def publish(self, number: int, change: Change | None = None, *, before: Layout | None = None) -> ShardMap:
        """Publish a map with the layout to come."""
        fields: Change = {"number": number, "owners": self.owners, "chains": (2,) * len(self.owners), "before": before}
        made = msgspec.structs.replace(self.tree.map, **(fields | (change or {})))
        self.tree.put_register(Kind.MAP, made)
        return made

    def both(self, change: Change | None = None) -> None:
        """Publish phase *both*, and begin the chains that come."""
        owners = self.tree.map.owners
        self.publish(2, change, before=Layout(owners=owners, chains=(1,) * len(owners)))
        self.old.going_by, self.old.half, self.old.alone_ns = 2, Half.LEAVING, self.old.latest_ns
        for place, owner in enumerate(self.owners):
            self.coming.append(Shard(self.tree, owner, number=place, map_number=2, half=Half.COMING))
        self.tree.advance(MS)

    def new(self, change: Change | None = None) -> None:
        """Stop the old shard, end its chain, and have those that came go by the new map."""
        self.publish(3, change)
        self.old.stop_orderly()
        self.tree.advance(MS)
        end = end_chain(self.tree, self.old)
        self.tree.advance(MS)
        for shard in self.coming:
            goes_alone(shard, floor_ns=end.floor_ns, settle_to_ns=end.settle_to_ns)

    def of(self, domain: str) -> Shard:
        """Return the shard that comes of a domain."""
        return self.coming[msgspec.structs.replace(self.tree.map, owners=self.owners).shard_of(domain)]

    def take(self, domain: str, writer: Writer, **change: object) -> tuple[Lease, Lease]:
        """Take a domain from both shards, the old one first."""
        leaving = self.old.grant(domain, writer)
        return leaving, self.of(domain).grant(domain, writer, **change)  # type: ignore[arg-type]

    def done(self) -> ClusterTree:
        return self.story.done()


def end_chain(tree: ClusterTree, shard: Shard, change: Change | None = None) -> CeilingRecord:
    """Link the terminal record of a chain, by another process."""
    chain = chain_path(shard.map_number, shard.number)
    newest, _ = open_ceiling(tree.get(f"{chain}/{record_name(shard.ceiling_number)}"), chain)
    running = newest.kind is CeilingKind.RUNNING
    node = tree.nodes["n2"]
    fields: Change = {
        "number": newest.number + 1,
        "node": node.name,
        "incarnation": tree.chance(8),
        "kind": CeilingKind.TERMINAL,
        "floor_ns": newest.ceiling_ns if running else newest.floor_ns,
        "settle_to_ns": newest.ceiling_ns if running else newest.settle_to_ns,
        "time": node.time.token().encode(),
    }
    record = msgspec.structs.replace(newest, **(fields | (change or {})))
    tree.put(f"{chain}/{record_name(record.number)}", sign(Kind.CEILING, record, node.witness_key))
    return record


def goes_alone(shard: Shard, *, floor_ns: int, settle_to_ns: int) -> None:
    """Have a shard go by the new map, with the highest numbers of the ends of the chains that it follows."""
    begun: Change = {"floor_ns": shard.floor_ns, "settle_to_ns": shard.settle_to_ns}  # its records say that for ever
    shard.floor_ns = max(shard.floor_ns, floor_ns)
    shard.settle_to_ns = max(shard.settle_to_ns, settle_to_ns)
    for memory in shard.memories.values():
        memory.floor_ns = max(memory.floor_ns, shard.floor_ns)
        memory.settle_to_ns = max(memory.settle_to_ns, shard.settle_to_ns)
    shard.half, shard.going_by = Half.WHOLE, 3
    shard.extend(change=begun)


def moved_tree(root: Path) -> ClusterTree:
    """A shard moves while leases of every sort are out, and what was taken before goes on."""
    return _moved(Move(root))


def resharded_tree(root: Path) -> ClusterTree:
    """One shard becomes three, in the same way."""
    return _moved(Move(root, owners=("n1", "n2", "n2")))


def _moved(move: Move) -> ClusterTree:
    tree, grid, old, writer, other = move.tree, move.grid, move.old, move.writer, move.other
    tree.advance(5 * MS)
    alice, bob = old.grant("alice", writer), old.grant("bob", other)
    session = sessions.begin(old, writer)
    carol = sessions.under(session, "carol", writer)
    writer.publish(grid, alice, carol)
    other.publish(grid, bob)
    move.both()
    # What was taken before counts alone until it is renewed; then from both shards.
    writer.publish(grid, alice, carol)
    tree.advance(2 * SECOND)
    old.prolong(alice)
    alice_coming = move.of("alice").grant("alice", writer)
    sessions.renew(session)
    coming_session = sessions.begin(move.of("carol"), writer)
    carol_coming = sessions.under(coming_session, "carol", writer)
    writer.publish(grid, alice, alice_coming, carol, carol_coming)
    old.end(bob)
    tree.advance(MS)
    for each in (writer, other):
        leaving, coming = move.take("dave", each)
        each.publish(grid, leaving, coming)
        old.end(leaving)
        coming.shard.end(coming)
        tree.advance(MS)
    # The holder of `erin` dies.
    move.take("erin", other)
    old.extend()
    for shard in move.coming:
        shard.extend()
    tree.advance(2 * SECOND)
    sessions.give_back(carol)
    move.new()
    # From here on the new shard alone, with what its holders have from it.
    alice_coming.shard.prolong(alice_coming)
    sessions.renew(coming_session)
    writer.publish(grid, alice_coming, carol_coming)
    alice_coming.shard.end(alice_coming)
    sessions.end(coming_session)
    # Whoever comes after them writes above all that the old shard had granted by itself.
    tree.until(old.floor_ns - SECOND)
    for shard in move.coming:
        shard.extend()
    tree.settle_to(grid, old.settle_to_ns)
    for domain in ("alice", "bob", "carol", "dave"):
        tree.advance(MS)
        lease = move.of(domain).grant(domain, other)
        other.publish(grid, lease)
        lease.shard.end(lease)
    return move.done()
