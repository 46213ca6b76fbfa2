"""Good trees: the smallest closed story, one in which everything happens that innocently may, one to vary."""

from __future__ import annotations

from pathlib import Path

from appliance.formats.lease import LeaseOutcome, Phase
from appliance.formats.paths import Grid
from appliance.formats.witness import WitnessKind
from timeagent.units import MS, SECOND

from . import sessions
from .shard import Lease, Shard
from .tree import ClusterTree
from .writer import Writer


def small_tree(root: Path, store: str = "") -> ClusterTree:
    """The smallest closed story: one lease, two frames, relinquished, bags closed, rack sealed.

    ``store``: what the log's birth says that it is in.
    """
    tree = ClusterTree(root)
    grid = tree.log(store=store)
    shard, writer = Shard(tree), Writer(tree)
    tree.advance(SECOND + 100 * MS)
    lease = shard.grant("alice", writer)
    tree.advance(50 * MS)
    writer.publish(grid, lease)
    tree.advance(SECOND)
    writer.publish(grid, lease, payloads=[b"three"])
    shard.end(lease)
    tree.settle(grid)
    return tree


def eventful_tree(root: Path) -> ClusterTree:
    """Everything that may innocently happen: see the script."""
    tree = ClusterTree(root, nodes=("n1", "n2", "n3"))
    orders, audit_log = tree.log(), tree.log("audit.v2", node="n2")
    alice, bob = Writer(tree, "n2"), Writer(tree, "n3")
    tree.advance(SECOND)
    _holders_come_and_go(tree, orders, audit_log, alice, bob)
    _shards_come_and_go(tree, orders, alice, bob)
    tree.settle(orders)
    tree.settle(audit_log)
    # A bag that is still open: what it holds is not judged yet.
    tree.advance(SECOND)
    alice.publish(orders, payloads=[b"open"])
    return tree


def _holders_come_and_go(tree: ClusterTree, orders: Grid, audit_log: Grid, alice: Writer, bob: Writer) -> None:
    shard = Shard(tree)
    lease = shard.grant("alice", alice)
    alice.publish(orders, lease)
    tree.advance(3 * SECOND)
    shard.prolong(lease)
    shard.extend()
    alice.publish(orders, lease)
    shard.end(lease)
    # The next holder writes nothing, the one after it writes to two logs under two leases.
    idle = shard.grant("alice", bob)
    tree.advance(200 * MS)
    shard.end(idle)
    tree.advance(MS)
    first = shard.grant("alice", bob, phase=Phase.TENTATIVE)
    second = shard.grant("bob", bob, phase=Phase.TENTATIVE)
    shard.prolong(first, WitnessKind.UPGRADE)
    shard.prolong(second, WitnessKind.UPGRADE)
    tree.advance(10 * MS)
    bob.publish(orders, first, second)
    bob.publish(audit_log, first, second, payloads=[b"a", b"b", b"c"], at=tree.now_ns + 100)
    # An attempt that came to nothing: its file was never linked, its sequence stays unused.
    bob.sequence += 1
    shard.end(second)
    # A tentative one is broken at once.
    wounded = shard.grant("bob", alice, phase=Phase.TENTATIVE)
    shard.end(wounded, LeaseOutcome.WITHDRAWN)
    other = shard.grant("bob", bob)
    shard.end(other)
    # The holder of `alice` dies: broken after its expiry; the next one writes above it.
    shard.extend()
    shard.expire(first)
    shard.extend()
    heir = shard.grant("alice", alice)
    tree.settle_to(orders, heir.witness.settle_to_ns)
    alice.publish(orders, heir)
    _kept_together(tree, orders, shard, bob)
    # The shard is killed in an append.
    tree.append(shard.ledger, tree.get(shard.ledger)[:100])


def _kept_together(tree: ClusterTree, orders: Grid, shard: Shard, bob: Writer) -> None:
    """Leases under session leases: given back alone, ended alone, dropped together, broken together."""
    shard.extend()
    session = sessions.begin(shard, bob)
    carol, dave, erin, frank = (sessions.under(session, name, bob) for name in ("carol", "dave", "erin", "frank"))
    tree.advance(4 * SECOND)
    shard.extend()
    sessions.renew(session)
    tree.until(carol.witness.expiry_ns - SECOND)
    bob.publish(orders, carol, dave, payloads=[b"together"])
    sessions.give_back(carol)
    sessions.end_alone(dave)
    shard.extend()
    sessions.renew(session)
    tree.until(carol.witness.expiry_ns + SECOND)  # later than the expiry that the leases' own witnesses state
    bob.publish(orders, erin, frank, payloads=[b"later"])
    sessions.end(session)
    tree.advance(MS)
    lost = sessions.begin(shard, bob)
    grace = sessions.under(lost, "erin", bob)
    bob.publish(orders, grace)
    shard.extend()
    tree.until(lost.witness.expiry_ns + 2 * tree.nodes["n1"].time.radius_ns + MS)
    shard.extend()
    sessions.end(lost, LeaseOutcome.EXPIRED)
    heir = shard.grant("erin", bob)
    shard.end(heir)
    shard.end(shard.grant("dave", bob))
    tree.advance(3 * SECOND)


def _shards_come_and_go(tree: ClusterTree, orders: Grid, alice: Writer, bob: Writer) -> None:
    # The successor of a killed run knows nothing and starts above its ceiling.
    shard = Shard(tree, "n2")
    late = shard.grant("alice", bob)
    shard.prolong(late)
    tree.until(late.witness.floor_ns - SECOND)
    shard.extend()
    shard.prolong(late)
    tree.settle_to(orders, late.witness.settle_to_ns)
    bob.publish(orders, late)
    shard.end(late)
    # An orderly stop, and a run whose last words are lost though a frame carries one of them.
    shard.stop_orderly()
    shard = Shard(tree, "n1")
    tree.advance(MS)
    last = shard.grant("alice", alice)
    alice.publish(orders, last)
    tree.advance(SECOND)
    shard.keeps_ledger = False
    shard.end(last)
    unheard = shard.grant("alice", alice)
    alice.publish(orders, unheard)


class Story:
    """One holder after another on one domain; each test changes one line of it."""

    def __init__(self, root: Path, *, shards: int = 1) -> None:
        self.tree = ClusterTree(root, shards=shards)
        self.grid = self.tree.log()
        self.shard = Shard(self.tree)
        self.writer = Writer(self.tree)
        self.other = Writer(self.tree, "n1")
        self.tree.advance(SECOND + 100 * MS)

    def lease(self, **change: object) -> Lease:
        return self.shard.grant("alice", self.writer, **change)  # type: ignore[arg-type]

    def elsewhere(self) -> Lease:
        """A lease of the first writer's on another domain: what it writes then has nothing to do with the story."""
        return self.shard.grant("elsewhere", self.writer)

    def done(self, *, seal: bool = True) -> ClusterTree:
        self.tree.settle(self.grid, seal=seal)
        return self.tree

    def written(self, **change: object) -> tuple[Lease, str]:
        lease = self.lease()
        self.tree.advance(50 * MS)
        return lease, self.writer.publish(self.grid, lease, change=change or None)


def rack_not_sealed(root: Path) -> tuple[ClusterTree, str]:
    """One lease and its frame in a rack that is not sealed yet; and the lock file of its bag."""
    story = Story(root)
    lease, _ = story.written()
    story.shard.end(lease)
    tree = story.done(seal=False)
    return tree, only_file(tree, "logs/orders/*/*/*/lock")


def flip(tree: ClusterTree, path: str, offset: int) -> None:
    data = bytearray(tree.get(path))
    data[offset] ^= 0x10
    tree.put(path, bytes(data))


def only_file(tree: ClusterTree, pattern: str) -> str:
    return next(p.relative_to(tree.root).as_posix() for p in sorted(tree.root.glob(pattern)))


def two_sealed_racks(root: Path) -> ClusterTree:
    """Two messages in the first rack, nothing in the second; both are sealed."""
    tree = small_tree(root)
    tree.settle(tree.grids["orders"])
    return tree
