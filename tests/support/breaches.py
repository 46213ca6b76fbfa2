"""Trees with one planted breach each, by the code that must name it: the smallest story in which it can happen."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import msgspec

from appliance.formats.birth import LogBirth
from appliance.formats.ceiling import CeilingKind, open_ceiling
from appliance.formats.framing import Kind, pack
from appliance.formats.lease import LeaseOutcome, Mode, Phase
from appliance.formats.lockfile import open_lock, open_seal
from appliance.formats.paths import chain_path, record_name
from appliance.formats.stamped import Stamped, open_stamped, sign, stamp
from appliance.formats.witness import WitnessKind
from tests.support.trees import ClusterTree, Lease, Shard, Writer, seed, small_tree
from timeagent.canonical import decode, encode
from timeagent.keys import Signer
from timeagent.trust import Purpose
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


type Plant = Callable[[Path], ClusterTree]

PLANTS: dict[str, list[Plant]] = {}


def plants(code: str) -> Callable[[Plant], Plant]:
    """Register a tree with one breach, and the code that must name it."""

    def register(plant: Plant) -> Plant:
        PLANTS.setdefault(code, []).append(plant)
        return plant

    return register


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

    def done(self, *, seal: bool = True) -> ClusterTree:
        self.tree.settle(self.grid, seal=seal)
        return self.tree

    def written(self, **change: object) -> tuple[Lease, str]:
        lease = self.lease()
        self.tree.advance(50 * MS)
        return lease, self.writer.publish(self.grid, lease, change=change or None)


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


# Bytes and signatures.


@plants("damaged-record")
def damaged_policy(root: Path) -> ClusterTree:
    tree = small_tree(root)
    flip(tree, "policy/00000001", 40)
    return tree


@plants("damaged-record")
def damaged_marker(root: Path) -> ClusterTree:
    tree = small_tree(root)
    flip(tree, "LEASEHOLD", 3)
    return tree


@plants("damaged-record")
def marker_of_another_cluster(root: Path) -> ClusterTree:
    tree = small_tree(root)
    tree.put("LEASEHOLD", tree.get("LEASEHOLD").replace(tree.cluster_id.hex().encode(), b"00" * 16))
    return tree


@plants("damaged-record")
def damaged_birth(root: Path) -> ClusterTree:
    tree = small_tree(root)
    flip(tree, "logs/orders/log", 50)
    return tree


@plants("damaged-record")
def damaged_ceiling(root: Path) -> ClusterTree:
    tree = small_tree(root)
    flip(tree, only_file(tree, "shards/*/*/*"), 50)
    return tree


@plants("damaged-record")
def map_under_another_number(root: Path) -> ClusterTree:
    tree = small_tree(root)
    tree.put("map/00000002", tree.get("map/00000001"))
    return tree


def joined_later(root: Path) -> tuple[ClusterTree, str]:
    """A node that the second trust record let in, and the path of that record."""
    story = Story(root)
    every, first = story.tree.trust.keys, story.tree.trust.keys[:2]
    story.tree.put_register(Kind.TRUST, msgspec.structs.replace(story.tree.trust, keys=first))
    second = story.tree.put_register(Kind.TRUST, msgspec.structs.replace(story.tree.trust, number=2, keys=every))
    story.shard = Shard(story.tree, "n2")
    story.tree.until(story.shard.floor_ns + SECOND)
    story.shard.extend()
    story.written(trust_number=2)
    story.tree.advance(4 * SECOND)
    story.tree.close(story.grid.bag(story.tree.now_ns - 4 * SECOND), change={"trust_number": 2})
    return story.tree, second


# Nobody is called a forger because the record that names their keys cannot be read.
@plants("damaged-record")
def damaged_trust_record_of_a_node_that_joined_later(root: Path) -> ClusterTree:
    tree, second = joined_later(root)
    flip(tree, second, 60)
    return tree


@plants("unverifiable-trust")
def missing_trust_record_of_a_node_that_joined_later(root: Path) -> ClusterTree:
    tree, second = joined_later(root)
    tree.remove(second)
    return tree


@plants("unverifiable-trust")
def missing_trust_record_of_a_node_that_sealed_before_a_lock_names_it(root: Path) -> ClusterTree:
    tree, second = joined_later(root)
    grid = tree.grids["orders"]
    tree.seal(grid.rack(grid.first_ns), node="n2")
    tree.log("before.all", node="n2")
    tree.remove(second)
    return tree


@plants("damaged-lock")
def damaged_lock(root: Path) -> ClusterTree:
    tree = small_tree(root)
    flip(tree, only_file(tree, "logs/*/*/*/*/lock"), 60)
    return tree


@plants("damaged-lock")
def damaged_lock_of_an_open_rack(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    story.shard.end(lease)
    tree = story.done(seal=False)
    flip(tree, only_file(tree, "logs/*/*/*/*/lock"), 60)
    return tree


@plants("damaged-lock")
def damaged_lock_of_a_committed_frame(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    story.tree.advance(SECOND)
    story.writer.publish(story.grid, lease)
    story.shard.end(lease)
    tree = story.done(seal=False)
    flip(tree, only_file(tree, "logs/*/*/*/*/lock"), 60)
    return tree


@plants("damaged-lock")
def lock_of_another_bag(root: Path) -> ClusterTree:
    story = Story(root)
    story.written()
    story.tree.advance(4 * SECOND)
    bag = story.grid.bag(story.grid.first_ns + SECOND)
    story.tree.close(bag, change={"bag": story.grid.bag(story.grid.first_ns).path})
    return story.tree


@plants("damaged-seal")
def damaged_seal(root: Path) -> ClusterTree:
    tree = small_tree(root)
    flip(tree, only_file(tree, "logs/*/*/*/seal"), 60)
    return tree


@plants("damaged-ledger")
def damaged_ledger(root: Path) -> ClusterTree:
    tree = small_tree(root)
    flip(tree, only_file(tree, "ledger/*/*/*"), 200)
    return tree


@plants("damaged-ledger")
def ledger_of_another_run(root: Path) -> ClusterTree:
    tree = small_tree(root)
    path = only_file(tree, "ledger/*/*/*")
    tree.put(path.replace(path.rpartition("/")[2], f"{'0' * 16}.ledger"), tree.get(path))
    return tree


@plants("missing-ledger")
def ledger_removed(root: Path) -> ClusterTree:
    tree = small_tree(root)
    tree.remove(only_file(tree, "ledger/*/*/*"))
    return tree


@plants("missing-ledger")
def ledger_of_an_orderly_run_removed(root: Path) -> ClusterTree:
    tree = ClusterTree(root)
    shard = Shard(tree)
    shard.stop_orderly()
    tree.remove(shard.ledger)
    return tree


@plants("truncated-ledger")
def ledger_cut_before_the_orderly_stop(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    story.shard.end(lease)
    whole = story.tree.get(story.shard.ledger)
    story.shard.stop_orderly()
    story.tree.put(story.shard.ledger, whole)
    return story.done()


@plants("damaged-frame")
def frame_of_another_log(root: Path) -> ClusterTree:
    story = Story(root)
    story.written(log="payments")
    return story.done()


@plants("forged-record")
def forged_policy(root: Path) -> ClusterTree:
    tree = small_tree(root)
    tree.put_register(Kind.POLICY, tree.policy, Signer(seed("nobody")))
    return tree


@plants("forged-record")
def forged_ceiling(root: Path) -> ClusterTree:
    tree = small_tree(root)
    path = only_file(tree, "shards/*/*/*")
    record, _ = open_ceiling(tree.get(path), path)
    tree.put(path, sign(Kind.CEILING, record, Signer(seed("nobody"))))
    return tree


@plants("forged-record")
def ceiling_signed_with_the_time_key(root: Path) -> ClusterTree:
    tree = small_tree(root)
    path = only_file(tree, "shards/*/*/*")
    record, _ = open_ceiling(tree.get(path), path)
    tree.put(path, sign(Kind.CEILING, record, tree.nodes[record.node].time_key))
    return tree


@plants("forged-time")
def times_signed_with_the_witness_key(root: Path) -> ClusterTree:
    story = Story(root)
    node = story.tree.nodes[story.writer.node]
    node.time.signer = node.witness_key
    story.written()
    node.time.signer = node.time_key
    return story.done()


@plants("forged-time")
def times_signed_with_a_key_for_connections(root: Path) -> ClusterTree:
    story = Story(root)
    tree, node = story.tree, story.tree.nodes[story.writer.node]
    theirs = Signer(seed("tls"))
    entry = msgspec.structs.replace(tree.trust.keys[0], node=node.name, purpose=Purpose.TLS, public=theirs.public)
    tree.put_register(Kind.TRUST, msgspec.structs.replace(tree.trust, keys=(*tree.trust.keys, entry)))
    node.time.signer = theirs
    story.written()
    node.time.signer = node.time_key
    return story.done()


@plants("forged-time")
def forged_birth(root: Path) -> ClusterTree:
    tree = small_tree(root)
    path = "logs/orders/log"
    stamped = open_stamped(Kind.BIRTH, tree.get(path), path)
    birth = decode(LogBirth, stamped.body)
    forged = ClusterTree(root.parent / "elsewhere", nodes=("n1",))
    time = forged.nodes["n1"].time
    time.signer = Signer(seed("nobody"))
    tree.put(path, stamp(Kind.BIRTH, birth, time))
    return tree


def restamped(tree: ClusterTree, kind: Kind, path: str) -> Stamped:
    """The envelope with a signed time that was made over something else."""
    stamped = open_stamped(kind, tree.get(path), path)
    return msgspec.structs.replace(stamped, time=tree.nodes["n2"].time.token_over(bytes(32)).encode())


@plants("forged-time")
def forged_lock(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    story.shard.end(lease)
    tree = story.done(seal=False)
    path = only_file(tree, "logs/*/*/*/*/lock")
    tree.put(path, pack(Kind.LOCK, encode(restamped(tree, Kind.LOCK, path))))
    return tree


@plants("forged-time")
def forged_seal(root: Path) -> ClusterTree:
    tree = small_tree(root)
    path = only_file(tree, "logs/*/*/*/seal")
    seal, _ = open_seal(tree.get(path), path)
    tree.put(path, stamp(Kind.SEAL, msgspec.structs.replace(seal, sealer="n2"), tree.nodes["n1"].time))
    return tree


@plants("forged-time")
def forged_frame(root: Path) -> ClusterTree:
    story = Story(root)
    time = story.tree.nodes["n2"].time.token()
    story.written(time=time.encode()[:-1] + bytes([time.signature[-1] ^ 1]))
    return story.done()


@plants("forged-time")
def frame_with_the_time_of_another_node(root: Path) -> ClusterTree:
    story = Story(root)
    story.written(time=story.tree.nodes["n1"].time.token().encode())
    return story.done()


@plants("forged-time")
def forged_head_time(root: Path) -> ClusterTree:
    story = Story(root)
    story.lease(head={"time": story.tree.nodes["n2"].time.token()})
    return story.done()


@plants("forged-witness")
def witness_of_an_unknown_key(root: Path) -> ClusterTree:
    story = Story(root)
    story.shard.keeps_ledger = False
    lease = story.lease(signer=Signer(seed("nobody")))
    story.tree.advance(MS)
    story.writer.publish(story.grid, lease)
    return story.done()


@plants("forged-witness")
def witness_signed_with_the_time_key(root: Path) -> ClusterTree:
    story = Story(root)
    story.shard.keeps_ledger = False
    lease = story.lease(signer=story.shard.node.time_key)
    story.tree.advance(MS)
    story.writer.publish(story.grid, lease)
    return story.done()


@plants("forged-witness")
def witness_that_its_head_does_not_sign(root: Path) -> ClusterTree:
    story = Story(root)
    lease = story.lease()
    story.tree.advance(MS)
    longer = msgspec.structs.replace(lease.witness, expiry_ns=lease.witness.expiry_ns + SECOND)
    forged = msgspec.structs.replace(lease.signed, entry=encode(longer))
    story.writer.publish(story.grid, change={"witnesses": (encode(forged),)})
    return story.done()


@plants("forged-witness")
def witness_that_is_none(root: Path) -> ClusterTree:
    story = Story(root)
    story.tree.advance(MS)
    story.writer.publish(story.grid, change={"witnesses": (b"trust me",)})
    return story.done()


@plants("forged-witness")
def forged_ledger_block(root: Path) -> ClusterTree:
    story = Story(root)
    story.lease(signer=Signer(seed("nobody")))
    return story.done()


# Bags.


@plants("altered-file")
def altered_file(root: Path) -> ClusterTree:
    tree = small_tree(root)
    flip(tree, only_file(tree, "logs/*/*/*/*/*.msg"), 300)
    return tree


@plants("altered-file")
def shortened_file(root: Path) -> ClusterTree:
    tree = small_tree(root)
    path = only_file(tree, "logs/*/*/*/*/*.msg")
    tree.put(path, tree.get(path)[:-1])
    return tree


@plants("lost-file")
def lost_file(root: Path) -> ClusterTree:
    tree = small_tree(root)
    tree.remove(only_file(tree, "logs/*/*/*/*/*.msg"))
    return tree


@plants("lost-file")
def lost_lock(root: Path) -> ClusterTree:
    tree = small_tree(root)
    tree.remove(only_file(tree, "logs/*/*/*/*/lock"))
    return tree


@plants("lost-file")
def lost_bag(root: Path) -> ClusterTree:
    tree = small_tree(root)
    bag = (tree.root / only_file(tree, "logs/*/*/*/*/lock")).parent
    for path in bag.iterdir():
        path.unlink()
    bag.rmdir()
    return tree


@plants("lost-file")
def lost_seal(root: Path) -> ClusterTree:
    tree = two_sealed_racks(root)
    tree.remove(only_file(tree, "logs/*/*/*/seal"))
    return tree


@plants("lost-file")
def lost_empty_rack(root: Path) -> ClusterTree:
    tree = two_sealed_racks(root)
    tree.settle(tree.grids["orders"])
    shutil.rmtree(sorted(tree.root.glob("logs/*/*/*/seal"))[1].parent)
    return tree


@plants("late-writer")
def late_writer(root: Path) -> ClusterTree:
    tree = small_tree(root)
    grid = tree.grids["orders"]
    Writer(tree).publish(grid, at=grid.first_ns + SECOND + 5)
    return tree


@plants("late-writer")
def bytes_beyond_the_listed_size(root: Path) -> ClusterTree:
    tree = small_tree(root)
    tree.append(only_file(tree, "logs/*/*/*/*/*.msg"), b"more")
    return tree


@plants("overwritten-lock")
def overwritten_lock(root: Path) -> ClusterTree:
    tree = small_tree(root)
    path = only_file(tree, "logs/*/*/*/*/lock")
    lock, _ = open_lock(tree.get(path), path)
    shorter = msgspec.structs.replace(lock, entries=lock.entries[1:])
    tree.put(path, stamp(Kind.LOCK, shorter, tree.nodes["n2"].time))
    return tree


@plants("stale-lock")
def stale_lock(root: Path) -> ClusterTree:
    story = Story(root)
    story.tree.put_register(Kind.POLICY, msgspec.structs.replace(story.tree.policy, number=2))
    story.written(policy_number=2)
    return story.done()


@plants("ghost-bag")
def ghost_bag(root: Path) -> ClusterTree:
    tree = small_tree(root)
    grid = tree.grids["orders"]
    Writer(tree).publish(grid, at=grid.first_ns + 7 * SECOND)
    return tree


@plants("off-grid")
def off_grid_bag(root: Path) -> ClusterTree:
    tree = small_tree(root)
    path = only_file(tree, "logs/*/*/*/*/lock")
    tree.put(path.replace("-1000-2000/", "-500-2000/"), b"")
    return tree


@plants("off-grid")
def off_grid_day(root: Path) -> ClusterTree:
    tree = small_tree(root)
    tree.put("logs/orders/9999-12-31/99-99/x/lock", b"")
    return tree


@plants("premature-lock")
def premature_lock(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    story.shard.end(lease)
    bag = story.grid.bag(story.tree.now_ns)
    story.tree.nodes["n2"].time.advance(MS)
    story.tree.close(bag)
    return story.tree


# Time.


@plants("r1-breach")
def r1_breach(root: Path) -> ClusterTree:
    story = Story(root)
    old = story.tree.nodes["n2"].time.token()
    lease = story.lease()
    story.tree.advance(1200 * MS)
    story.writer.publish(story.grid, lease, change={"time": old.encode()})
    return story.done()


@plants("r1-breach")
def watermark_far_from_its_time(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    story.shard.end(lease, change={"watermark_ns": story.tree.now_ns + 2 * SECOND})
    return story.done()


@plants("r2-breach")
def message_signed_before_its_witness(root: Path) -> ClusterTree:
    story = Story(root)
    lease = story.lease()
    story.tree.nodes["n2"].time.midpoint_ns -= 400 * MS
    story.writer.publish(story.grid, lease, at=story.tree.now_ns + MS)
    story.tree.nodes["n2"].time.midpoint_ns += 400 * MS
    return story.done()


@plants("r2-breach")
def batch_signed_before_the_one_before(root: Path) -> ClusterTree:
    story = Story(root)
    story.lease()
    story.tree.nodes["n1"].time.midpoint_ns -= 400 * MS
    story.shard.grant("bob", story.writer)
    story.tree.nodes["n1"].time.midpoint_ns += 400 * MS
    return story.done()


@plants("r2-breach")
def bag_closed_before_its_message(root: Path) -> ClusterTree:
    story = Story(root)
    lease = story.lease()
    story.tree.nodes["n2"].time.advance(890 * MS)
    story.writer.publish(story.grid, lease, at=story.grid.first_ns + 1990 * MS)
    # By its own time the closer is not early, and yet it closed over what was signed after that.
    story.tree.nodes["n2"].time.advance(50 * MS)
    story.writer.publish(story.grid, lease, at=story.grid.first_ns + 1995 * MS)
    story.tree.nodes["n1"].time.midpoint_ns = story.grid.first_ns + 1996 * MS
    story.tree.close(story.grid.bag(story.grid.first_ns + SECOND), node="n1")
    return story.tree


@plants("timestamp-outside-bag")
def message_in_another_bag(root: Path) -> ClusterTree:
    story = Story(root)
    lease = story.lease()
    story.tree.advance(MS)
    story.writer.publish(story.grid, lease, bag=story.grid.bag(story.grid.first_ns))
    return story.done()


@plants("timestamp-after-expiry")
def message_after_expiry(root: Path) -> ClusterTree:
    story = Story(root)
    lease = story.lease()
    story.tree.until(lease.witness.expiry_ns - MS)
    story.writer.publish(story.grid, lease, at=lease.witness.expiry_ns - 1)
    return story.done()


@plants("timestamp-below-floor")
def message_below_floor(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    story.shard.end(lease)
    after = story.lease()
    story.writer.publish(story.grid, after, at=after.witness.floor_ns)
    return story.done()


# Leases.


@plants("tentative-write")
def tentative_write(root: Path) -> ClusterTree:
    story = Story(root)
    lease = story.lease(phase=Phase.TENTATIVE)
    story.tree.advance(MS)
    story.writer.publish(story.grid, lease)
    return story.done()


@plants("read-mode-write")
def read_mode_write(root: Path) -> ClusterTree:
    story = Story(root)
    lease = story.lease(mode=Mode.S)
    story.tree.advance(MS)
    story.writer.publish(story.grid, lease)
    return story.done()


@plants("foreign-lease")
def foreign_lease(root: Path) -> ClusterTree:
    story = Story(root)
    lease = story.lease()
    story.tree.advance(MS)
    story.other.publish(story.grid, lease)
    return story.done()


def shared(story: Story, mode: Mode) -> tuple[Lease, Lease]:
    """Two holders of one domain at once, the second beside the first."""
    first = story.lease(mode=mode)
    story.tree.advance(MS)
    change = {"previous_id": first.witness.correlation_id}
    return first, story.shard.grant("alice", story.other, mode=mode, change=change)


@plants("early-grant")
def writer_beside_a_reader(root: Path) -> ClusterTree:
    story = Story(root)
    reader = story.lease(mode=Mode.S)
    story.tree.advance(MS)
    story.shard.grant("alice", story.other, mode=Mode.IX, change={"previous_id": reader.witness.correlation_id})
    return story.done()


@plants("early-grant")
def stronger_mode_beside_another_reader(root: Path) -> ClusterTree:
    story = Story(root)
    first, second = shared(story, Mode.S)
    story.tree.advance(MS)
    change = {"mode": Mode.X, "fence": second.witness.fence + 1}
    story.shard.prolong(first, WitnessKind.UPGRADE, change=change)
    return story.done()


@plants("fence-not-growing")
def stronger_mode_with_the_fence_of_its_grant(root: Path) -> ClusterTree:
    story = Story(root)
    first, second = shared(story, Mode.S)
    story.shard.end(second)
    story.shard.prolong(first, WitnessKind.UPGRADE, change={"mode": Mode.X})
    return story.done()


@plants("grant-overlap")
def watermark_of_a_shared_holder_forgotten(root: Path) -> ClusterTree:
    story = Story(root)
    first, second = shared(story, Mode.IX)
    story.writer.publish(story.grid, first)
    story.shard.end(first)
    story.shard.end(second)
    floor = {"floor_ns": second.witness.floor_ns}
    after = story.shard.grant("alice", story.other, change=floor)
    story.shard.end(after)
    return story.done()


@plants("watermark-below-message")
def watermark_below_message(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    assert lease.written_ns is not None
    story.shard.end(lease, change={"watermark_ns": lease.written_ns - 1})
    return story.done()


@plants("watermark-below-message")
def relinquished_as_unwritten(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    story.shard.end(lease, change={"watermark_ns": None, "watermark_time": None})
    return story.done()


@plants("watermark-beyond-expiry")
def watermark_beyond_expiry(root: Path) -> ClusterTree:
    story = Story(root)
    lease = story.lease(change={"expiry_ns": story.tree.now_ns + 500 * MS})
    story.tree.advance(50 * MS)
    story.writer.publish(story.grid, lease)
    story.shard.end(lease, change={"watermark_ns": lease.witness.expiry_ns})
    return story.done()


@plants("count-mismatch")
def fewer_messages_than_there_are(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    story.shard.end(lease, change={"messages": 1})
    return story.done()


@plants("count-mismatch")
def more_messages_than_there_are(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    story.shard.end(lease, change={"messages": 3})
    return story.done()


def aged(story: Story) -> ClusterTree:
    """Close nothing, and let the shard go on for so long that whatever was written must be in a closed bag."""
    story.tree.advance(20 * SECOND)
    story.shard.extend()
    return story.tree


@plants("count-mismatch")
def all_bags_of_a_lease_removed(root: Path) -> ClusterTree:
    story = Story(root)
    lease, path = story.written()
    story.shard.end(lease)
    shutil.rmtree((story.tree.root / path).parent)
    return aged(story)


@plants("count-mismatch")
def whole_log_removed(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    story.shard.end(lease)
    story.done()
    story.shard.extend()
    shutil.rmtree(story.tree.root / "logs/orders")
    return story.tree


@plants("early-grant")
def granted_while_held(root: Path) -> ClusterTree:
    story = Story(root)
    story.lease()
    story.tree.advance(SECOND)
    story.shard.grant("alice", story.other)
    return story.done()


@plants("early-grant")
def broken_before_it_was_surely_past(root: Path) -> ClusterTree:
    story = Story(root)
    lease = story.lease()
    story.tree.until(lease.witness.expiry_ns - 300 * MS)
    story.shard.end(lease, LeaseOutcome.EXPIRED)
    story.shard.grant("alice", story.other)
    return story.done()


@plants("early-grant")
def granted_by_two_runs_at_once(root: Path) -> ClusterTree:
    story = Story(root)
    story.lease()
    rogue = Shard(story.tree, "n2")
    rogue.floor_ns = rogue.settle_to_ns = 0
    chain = sorted(story.tree.root.glob("shards/*/*/*"))
    for path in chain:
        path.unlink()
    story.tree.remove(rogue.ledger)
    rogue.sequence, rogue.previous = 0, bytes(32)
    story.tree.advance(SECOND)
    rogue.grant("alice", story.other)
    return story.done()


@plants("grant-overlap")
def floor_below_the_watermark(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    story.shard.end(lease)
    assert lease.written_ns is not None
    story.shard.grant("alice", story.other, change={"floor_ns": lease.written_ns - 1})
    return story.done()


@plants("grant-overlap")
def floor_below_the_expiry_of_a_broken_one(root: Path) -> ClusterTree:
    story = Story(root)
    lease = story.lease()
    story.shard.expire(lease)
    story.shard.grant("alice", story.other, change={"floor_ns": lease.witness.expiry_ns - 1})
    return story.done()


@plants("fence-not-growing")
def fence_not_growing(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    story.shard.end(lease)
    story.tree.advance(MS)
    story.shard.grant("alice", story.other, change={"fence": lease.witness.fence})
    return story.done()


@plants("floor-fell")
def floor_fell(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    story.shard.end(lease)
    after = story.lease()
    story.shard.end(after)
    story.tree.advance(MS)
    story.shard.grant("alice", story.other, change={"floor_ns": 0})
    return story.done()


@plants("floor-fell")
def settle_to_below_the_shards_own(root: Path) -> ClusterTree:
    story = Story(root)
    story.shard = Shard(story.tree)
    story.lease(change={"settle_to_ns": story.shard.settle_to_ns - 1})
    return story.done()


@plants("floor-fell")
def run_that_begins_below_the_ceiling(root: Path) -> ClusterTree:
    story = Story(root)
    Shard(story.tree, change={"floor_ns": story.shard.ceiling_ns - 1})
    return story.done()


@plants("chain-gap")
def unknown_predecessor(root: Path) -> ClusterTree:
    story = Story(root)
    story.lease(change={"previous_id": bytes(16)})
    return story.done()


@plants("chain-fork")
def two_grants_after_one(root: Path) -> ClusterTree:
    story = Story(root)
    first = story.lease()
    story.shard.end(first)
    story.shard.end(story.lease())
    story.lease(change={"previous_id": first.witness.correlation_id})
    return story.done()


@plants("chain-fork")
def two_batches_with_one_sequence(root: Path) -> ClusterTree:
    story = Story(root)
    story.lease()
    story.shard.sequence -= 1
    story.shard.grant("bob", story.writer)
    return story.done()


@plants("chain-fork")
def batch_that_names_another_before_it(root: Path) -> ClusterTree:
    story = Story(root)
    story.lease(head={"previous": bytes(31) + b"\1"})
    return story.done()


@plants("chain-fork")
def two_ceilings_with_one_number(root: Path) -> ClusterTree:
    story = Story(root)
    path = only_file(story.tree, "shards/*/*/*")
    record, _ = open_ceiling(story.tree.get(path), path)
    record = msgspec.structs.replace(record, floor_ns=1, settle_to_ns=1)
    story.tree.put(path, sign(Kind.CEILING, record, story.tree.nodes["n1"].witness_key))
    return story.done()


@plants("grant-above-ceiling")
def expiry_above_ceiling(root: Path) -> ClusterTree:
    story = Story(root)
    story.tree.advance(3 * SECOND)
    story.lease(change={"expiry_ns": story.shard.ceiling_ns + 1})
    return story.done()


@plants("grant-without-right")
def grant_under_a_ceiling_of_another_run(root: Path) -> ClusterTree:
    story = Story(root)
    Shard(story.tree, "n2")
    story.lease(head={"ceiling_number": 2})
    return story.done()


@plants("ceiling-fell")
def ceiling_fell(root: Path) -> ClusterTree:
    story = Story(root)
    story.shard.extend(change={"ceiling_ns": story.shard.ceiling_ns - 1})
    return story.done()


@plants("chain-fork")
def record_after_a_terminal_one(root: Path) -> ClusterTree:
    story = Story(root)
    story.shard.extend(kind=CeilingKind.TERMINAL)
    story.shard.extend()
    return story.done()


def two_maps(root: Path) -> Story:
    """A run under map 1 that ended, and another number of shards by map 2."""
    story = Story(root)
    owners = tuple(story.tree.map.owners) * 2
    story.tree.put_register(Kind.MAP, msgspec.structs.replace(story.tree.map, number=2, owners=owners))
    lease = story.lease()
    story.shard.end(lease)
    story.shard.floor_ns = story.shard.settle_to_ns = story.shard.ceiling_ns
    story.shard.extend(kind=CeilingKind.TERMINAL)
    story.tree.advance(SECOND)
    return story


def shard_of_map_2(story: Story, **change: object) -> Shard:
    number = msgspec.structs.replace(story.tree.map, owners=story.tree.map.owners * 2).shard_of("alice")
    return Shard(story.tree, number=number, map_number=2, change=change or None)


@plants("floor-fell")
def chain_of_a_new_map_that_begins_below_the_end_of_the_old_one(root: Path) -> ClusterTree:
    story = two_maps(root)
    shard_of_map_2(story, floor_ns=story.shard.floor_ns - 1)
    return story.done()


@plants("r2-breach")
def chain_of_a_new_map_that_begins_before_the_old_one_has_ended(root: Path) -> ClusterTree:
    story = two_maps(root)
    before = open_ceiling(story.tree.get(f"{chain_path(1, 0)}/{record_name(1)}"), "")[0]
    shard_of_map_2(story, time=before.time)
    return story.done()


@plants("grant-without-right")
def grant_under_a_map_whose_chain_has_ended(root: Path) -> ClusterTree:
    story = two_maps(root)
    story.shard.ceiling_number += 1
    story.shard.grant("alice", story.other)
    return story.done()


@plants("term-above-policy")
def term_above_policy(root: Path) -> ClusterTree:
    story = Story(root)
    story.lease(change={"expiry_ns": story.tree.now_ns + 10 * SECOND + 6 * MS})
    return story.done()


@plants("wrong-shard")
def domain_of_another_shard(root: Path) -> ClusterTree:
    story = Story(root, shards=2)
    owned = next(str(n) for n in range(100) if story.tree.map.shard_of(str(n)) == 1)
    story.shard.grant(owned, story.writer)
    return story.done()


# Sequences.


@plants("lost-frame")
def committed_frame_that_is_nowhere(root: Path) -> ClusterTree:
    story = Story(root)
    _, path = story.written()
    story.tree.advance(MS)
    story.writer.publish(story.grid)
    story.tree.remove(path)
    return story.done()


@plants("sequence-reused")
def sequence_reused(root: Path) -> ClusterTree:
    story = Story(root)
    story.written()
    story.tree.advance(SECOND)
    story.writer.sequence = 0
    story.writer.committed = None
    story.writer.publish(story.grid)
    return story.done()


# Keys and records that are not there.


@plants("unverifiable-trust")
def no_trust(root: Path) -> ClusterTree:
    tree = small_tree(root)
    tree.remove("trust/00000001")
    return tree


@plants("unverifiable-trust")
def trust_record_that_a_lock_names_is_missing(root: Path) -> ClusterTree:
    story = Story(root)
    story.written()
    story.tree.advance(4 * SECOND)
    story.tree.close(story.grid.bag(story.grid.first_ns + SECOND), change={"trust_number": 7})
    return story.tree


@plants("unverifiable-policy")
def no_policy(root: Path) -> ClusterTree:
    tree = small_tree(root)
    tree.remove("policy/00000001")
    return tree


@plants("unverifiable-map")
def no_map(root: Path) -> ClusterTree:
    tree = small_tree(root)
    tree.remove("map/00000001")
    return tree


@plants("unverifiable-log")
def no_birth(root: Path) -> ClusterTree:
    tree = small_tree(root)
    tree.remove("logs/orders/log")
    return tree


@plants("unverifiable-log")
def no_birth_of_the_log_that_a_committed_frame_is_in(root: Path) -> ClusterTree:
    story = Story(root)
    other = story.tree.log("other")
    lease = story.lease()
    story.tree.advance(MS)
    story.writer.publish(other, lease)
    story.tree.advance(MS)
    story.writer.publish(story.grid, lease)
    story.shard.end(lease)
    story.done()
    story.tree.settle(other)
    story.tree.remove("logs/other/log")
    return story.tree


@plants("unreadable")
def link_instead_of_a_file(root: Path) -> ClusterTree:
    tree = small_tree(root)
    path = tree.root / only_file(tree, "logs/*/*/*/*/*.msg")
    path.unlink()
    path.symlink_to("/dev/zero")
    return tree
