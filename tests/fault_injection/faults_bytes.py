"""Planted faults in bytes and signatures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from appliance.formats.birth import LogBirth
from appliance.formats.chains import open_ceiling
from appliance.formats.closed import open_seal
from appliance.formats.framing import Kind, pack, pieces
from appliance.formats.stamped import Stamped, open_stamped, sign, stamp
from timeagent.canonical import decode, encode
from timeagent.keys import Purpose, Signer
from timeagent.units import MS, SECOND

from .fixtures import Story, flip, only_file, rack_not_sealed, small_tree
from .plants import plants
from .shard import Shard
from .tree import ClusterTree, seed

if TYPE_CHECKING:
    from pathlib import Path


@plants("damaged-record")
def damaged_policy(root: Path) -> ClusterTree:
    tree = small_tree(root)
    flip(tree, "policy/00000001", 40)
    return tree


@plants("damaged-record")
def damaged_marker(root: Path) -> ClusterTree:
    tree = small_tree(root)
    flip(tree, "TENURE", 3)
    return tree


@plants("damaged-record")
def marker_of_another_cluster(root: Path) -> ClusterTree:
    tree = small_tree(root)
    tree.put("TENURE", tree.get("TENURE").replace(tree.cluster_id.hex().encode(), b"00" * 16))
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
    tree, lock = rack_not_sealed(root)
    flip(tree, lock, 60)
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


@plants("ledger-disorder")
def ledger_with_two_blocks_exchanged(root: Path) -> ClusterTree:
    tree = small_tree(root)
    path = only_file(tree, "ledger/*/*/*")
    data = tree.get(path)
    cut = [data[piece.offset : piece.end] for piece in pieces(data)[0]]
    tree.put(path, b"".join([cut[0], cut[2], cut[1], *cut[3:]]))
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
    tree, lock = rack_not_sealed(root)
    tree.put(lock, pack(Kind.LOCK, encode(restamped(tree, Kind.LOCK, lock))))
    return tree


@plants("forged-time")
def forged_seal(root: Path) -> ClusterTree:
    tree = small_tree(root)
    path = only_file(tree, "logs/orders/*/*/seal")
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
    story.writer.publish(
        story.grid, story.elsewhere()
    )  # whose bag is closed afterwards, under the trust record that has no such key
    return story.done()
