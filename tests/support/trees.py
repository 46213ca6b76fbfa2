"""Whole cluster trees on disk, scripted by hand: good ones, and ones with a single planted breach.

Made from timeagent and appliance.formats only. The actors here keep the protocol because the script says so, not
because they run it: ``change`` replaces fields before they are signed, which is how a breach is planted with good
signatures.
"""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from appliance.formats.birth import BagKind, LogBirth
from appliance.formats.ceiling import CeilingKind, CeilingRecord, open_ceiling
from appliance.formats.frame import Attempt, CommittedFrame, FrameHead, encode_frame
from appliance.formats.framing import Kind, pieces
from appliance.formats.lease import Ending, Holder, LeaseOutcome, Mode, Phase
from appliance.formats.ledger import block_bytes
from appliance.formats.lockfile import LockEntry, LockFile, RackSeal, SealEntry
from appliance.formats.marker import Marker
from appliance.formats.paths import DataName, Grid, chain_path, ledger_path, record_name
from appliance.formats.policy import Policy
from appliance.formats.shardmap import ShardMap
from appliance.formats.stamped import sign, stamp
from appliance.formats.witness import (
    NO_HEAD,
    CeilingCopy,
    Ended,
    Entry,
    SignedWitness,
    Stopped,
    Witness,
    WitnessKind,
    head_digest,
    sign_batch,
)
from tests.support.clocks import HandTime
from timeagent.canonical import encode
from timeagent.keys import Signer
from timeagent.trust import KeyEntry, Purpose, TrustRecord
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from appliance.formats.paths import Bag, Rack
    from appliance.formats.witness import Batch
    from timeagent.canonical import Record

START_NS = 1_795_212_000 * SECOND
"""2026-11-20T22:00:00Z: the beginning of a rack."""

type Change = dict[str, Any]


def seed(*parts: object) -> bytes:
    """32 bytes that depend on nothing but the names."""
    return hashlib.sha256(repr(parts).encode()).digest()


def changed[R: Record](record: R, change: Change | None) -> R:
    return msgspec.structs.replace(record, **change) if change else record


@dataclass
class Node:
    name: str
    time_key: Signer
    witness_key: Signer
    time: HandTime


@dataclass
class Lease:
    """A lease as its holder and its shard know it."""

    shard: Shard
    witness: Witness
    signed: SignedWitness
    written_ns: int | None = None
    written_time: bytes | None = None
    messages: int = 0
    chain_head: bytes | None = None


@dataclass
class Memory:
    fence: int
    floor_ns: int
    settle_to_ns: int
    previous_id: bytes | None = None
    last_ended: Ending | None = None


class ClusterTree:
    """A root with its records, and the nodes that work on it. One hand drives all clocks."""

    def __init__(self, root: Path, *, nodes: Sequence[str] = ("n1", "n2"), shards: int = 1) -> None:
        self.root = root
        self.cluster_id = seed("cluster")[:16]
        self.root_key = Signer(seed("root"))
        self.nodes = {
            name: Node(
                name,
                Signer(seed(name, "time")),
                Signer(seed(name, "witness")),
                HandTime(Signer(seed(name, "time")), START_NS),
            )
            for name in nodes
        }
        self.policy = Policy(number=1, cluster_id=self.cluster_id, rack_ns=10 * SECOND, seal_delay_ns=5 * SECOND)
        self.map = ShardMap(number=1, cluster_id=self.cluster_id, owners=tuple(nodes[:1]) * shards)
        self.trust = TrustRecord(number=1, cluster_id=self.cluster_id, keys=tuple(self._keys()))
        self.put("LEASEHOLD", Marker(self.cluster_id, self.root_key.public).encode())
        self.put_register(Kind.POLICY, self.policy)
        self.put_register(Kind.TRUST, self.trust)
        self.put_register(Kind.MAP, self.map)
        self.grids: dict[str, Grid] = {}
        self._counter = itertools.count(1)

    def _keys(self) -> Iterable[KeyEntry]:
        for node in self.nodes.values():
            for purpose, key in ((Purpose.TIME, node.time_key), (Purpose.WITNESS, node.witness_key)):
                yield KeyEntry(
                    node=node.name,
                    purpose=purpose,
                    public=key.public,
                    valid_from_ns=START_NS - 3600 * SECOND,
                    valid_until_ns=START_NS + 86400 * SECOND,
                )

    # Files.

    def put(self, path: str, data: bytes) -> str:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        return path

    def append(self, path: str, data: bytes) -> None:
        self.put(path, (self.get(path) if (self.root / path).exists() else b"") + data)

    def get(self, path: str) -> bytes:
        return (self.root / path).read_bytes()

    def remove(self, path: str) -> None:
        (self.root / path).unlink()

    def put_register(self, kind: Kind, record: Policy | TrustRecord | ShardMap, signer: Signer | None = None) -> str:
        path = f"{kind.name.lower()}/{record_name(record.number)}"
        return self.put(path, sign(kind, record, signer or self.root_key))

    def files(self) -> list[str]:
        return sorted(p.relative_to(self.root).as_posix() for p in self.root.rglob("*") if p.is_file())

    # Time.

    @property
    def now_ns(self) -> int:
        return next(iter(self.nodes.values())).time.midpoint_ns

    def advance(self, span: int) -> None:
        for node in self.nodes.values():
            node.time.advance(span)

    def until(self, instant: int) -> None:
        self.advance(max(0, instant - self.now_ns))

    def chance(self, length: int) -> bytes:
        return seed("chance", next(self._counter))[:length]

    # Logs, bags and racks.

    def log(self, name: str = "orders", *, node: str = "n1", change: Change | None = None) -> Grid:
        policy = self.policy
        birth = changed(
            LogBirth(
                cluster_id=self.cluster_id,
                log=name,
                kind=BagKind.MAILDIR,
                created_ns=self.now_ns - self.now_ns % policy.span_ns,
                span_ns=policy.span_ns,
                grace_ns=policy.grace_ns,
                rack_ns=policy.rack_ns,
                created_by=node,
            ),
            change,
        )
        self.put(f"logs/{name}/log", stamp(Kind.BIRTH, birth, self.nodes[node].time))
        self.grids[name] = Grid(birth)
        return self.grids[name]

    def data_files(self, bag: Bag) -> list[str]:
        place = self.root / bag.path
        return sorted(p.name for p in place.iterdir() if p.suffix == ".msg") if place.exists() else []

    def close(
        self, bag: Bag, *, node: str = "n2", omit: Iterable[str] = (), change: Change | None = None, put: bool = True
    ) -> bytes:
        """Close a bag as it is; return the lock file's bytes."""
        entries = []
        for name in self.data_files(bag):
            data = self.get(f"{bag.path}/{name}")
            size = max((piece.end for piece in pieces(data)[0]), default=0)
            if name not in omit:
                entries.append(LockEntry(name=name, size=size, digest=hashlib.sha256(data[:size]).digest()))
        lock = LockFile(
            cluster_id=self.cluster_id,
            log=bag.log,
            bag=bag.path,
            closer=node,
            trust_number=1,
            policy_number=1,
            entries=tuple(entries),
        )
        raw = stamp(Kind.LOCK, changed(lock, change), self.nodes[node].time)
        if put:
            self.put(f"{bag.path}/prelock", b"")
            self.put(f"{bag.path}/lock", raw)
        return raw

    def close_due(self, grid: Grid, *, node: str = "n2") -> None:
        """Close every bag that somebody wrote to and that is due."""
        for path in sorted((self.root / grid.log_path).glob("*-*-*/*/*")):
            day, rack_name, name = path.relative_to(self.root / grid.log_path).parts
            rack = grid.parse_rack(day, rack_name)
            bag = grid.parse_bag(rack, name) if rack and path.is_dir() else None
            if bag and not (path / "lock").exists() and self.nodes[node].time.now().surely_past(bag.due_ns):
                self.close(bag, node=node)

    def seal(self, rack: Rack, *, node: str = "n1", omit: Iterable[str] = (), change: Change | None = None) -> str:
        """Seal a rack with the bags that are closed in it."""
        locks = sorted((self.root / rack.path).glob("*/lock"))
        entries = tuple(
            SealEntry(bag=lock.parent.name, lock=lock.read_bytes()) for lock in locks if lock.parent.name not in omit
        )
        seal = RackSeal(cluster_id=self.cluster_id, log=rack.log, rack=rack.path, sealer=node, entries=entries)
        self.put(f"{rack.path}/prelock", b"")
        return self.put(f"{rack.path}/seal", stamp(Kind.SEAL, changed(seal, change), self.nodes[node].time))

    def settle(self, grid: Grid, *, seal: bool = True) -> None:
        """Wait, close what is due, and seal the racks that are over."""
        self.advance(4 * SECOND)
        self.close_due(grid)
        if not seal:
            return
        rack = grid.rack(grid.first_ns)
        self.until(grid.rack(self.now_ns).end_ns + self.policy.seal_delay_ns + SECOND)
        self.close_due(grid)
        while self.nodes["n1"].time.now().surely_past(rack.end_ns + self.policy.seal_delay_ns):
            if not (self.root / rack.path / "seal").exists():
                self.seal(rack)
            rack = grid.next_rack(rack)


class Shard:
    """One run of a shard: grants, ends leases, signs batches, keeps its ledger and its ceiling chain."""

    def __init__(
        self, tree: ClusterTree, node: str = "n1", *, number: int = 0, map_number: int = 1, change: Change | None = None
    ) -> None:
        self.tree = tree
        self.node = tree.nodes[node]
        self.number = number
        self.map_number = map_number
        self.incarnation = tree.chance(8)
        self.sequence = 0
        self.previous = NO_HEAD
        self.keeps_ledger = True
        self.memories: dict[str, Memory] = {}
        self.floor_ns, self.settle_to_ns, least = self._predecessor()
        self.ceiling_number = self._newest() + 1
        self.ceiling_ns = least
        self.extend(change=change, first=True)

    def _newest(self) -> int:
        chain = self.tree.root / chain_path(self.map_number, self.number)
        return max((int(path.name) for path in chain.iterdir()), default=0) if chain.exists() else 0

    def _predecessor(self) -> tuple[int, int, int]:
        newest = self._newest()
        if not newest:
            return self._earlier_map()
        record, _ = open_ceiling(self.tree.get(f"{chain_path(self.map_number, self.number)}/{record_name(newest)}"), "")
        if record.kind is CeilingKind.RUNNING:
            return record.ceiling_ns, record.ceiling_ns, record.ceiling_ns
        return record.floor_ns, record.settle_to_ns, record.ceiling_ns

    def _earlier_map(self) -> tuple[int, int, int]:
        """The highest numbers of the terminal records of the map before."""
        chains = sorted(self.tree.root.glob(f"shards/{record_name(self.map_number - 1)}/*"))
        ends = [open_ceiling(max(chain.iterdir()).read_bytes(), "")[0] for chain in chains]
        floor = max((each.floor_ns for each in ends), default=0)
        return floor, max((each.settle_to_ns for each in ends), default=0), floor

    def extend(
        self, *, kind: CeilingKind = CeilingKind.RUNNING, change: Change | None = None, first: bool = False
    ) -> None:
        """Link the next ceiling record and copy it to the ledger."""
        policy, now = self.tree.policy, self.node.time.now()
        if not first:
            self.ceiling_number += 1
        ahead = now.latest + policy.lease_term_max_ns + policy.ceiling_ahead_ns
        self.ceiling_ns = max(ahead, self.ceiling_ns, self.floor_ns, self.settle_to_ns)
        record = changed(
            CeilingRecord(
                cluster_id=self.tree.cluster_id,
                map_number=self.map_number,
                shard=self.number,
                number=self.ceiling_number,
                node=self.node.name,
                incarnation=self.incarnation,
                kind=kind,
                ceiling_ns=self.ceiling_ns,
                floor_ns=self.floor_ns,
                settle_to_ns=self.settle_to_ns,
                time=self.node.time.token().encode(),
            ),
            change,
        )
        self.ceiling_ns = record.ceiling_ns
        raw = sign(Kind.CEILING, record, self.node.witness_key)
        self.tree.put(f"{chain_path(self.map_number, self.number)}/{record_name(record.number)}", raw)
        self.turn(CeilingCopy(record=raw))

    @property
    def ledger(self) -> str:
        return ledger_path(self.map_number, self.number, self.incarnation)

    def turn(self, *entries: Entry, change: Change | None = None, signer: Signer | None = None) -> Batch:
        """Sign a batch and append it to the ledger. ``change``: fields of the head."""
        self.sequence += 1
        fields: Change = {
            "cluster_id": self.tree.cluster_id,
            "node": self.node.name,
            "map_number": self.map_number,
            "shard": self.number,
            "incarnation": self.incarnation,
            "ceiling_number": self.ceiling_number,
            "ceiling_ns": self.ceiling_ns,
            "sequence": self.sequence,
            "previous": self.previous,
            "time": self.node.time.token(),
        }
        batch = sign_batch(entries, signer or self.node.witness_key, **(fields | (change or {})))
        self.previous = head_digest(batch.head)
        if self.keeps_ledger:
            self.tree.append(self.ledger, block_bytes(batch))
        return batch

    def grant(
        self,
        domain: str,
        writer: Writer,
        *,
        phase: Phase = Phase.HELD,
        mode: Mode = Mode.X,
        change: Change | None = None,
        head: Change | None = None,
        signer: Signer | None = None,
    ) -> Lease:
        """Grant a domain, as if nobody had it."""
        now = self.node.time.midpoint_ns
        memory = self.memories.setdefault(domain, Memory(0, self.floor_ns, self.settle_to_ns))
        fence = max(memory.fence, self.floor_ns, now) + 1
        witness = changed(
            Witness(
                kind=WitnessKind.GRANT,
                domain=domain,
                mode=mode,
                phase=phase,
                holder=writer.holder,
                correlation_id=fence.to_bytes(8, "big") + self.tree.chance(8),
                fence=fence,
                expiry_ns=min(now + self.tree.policy.lease_term_max_ns, self.ceiling_ns),
                floor_ns=memory.floor_ns,
                settle_to_ns=memory.settle_to_ns,
                session_id=None,
                previous_id=memory.previous_id,
                last_ended=memory.last_ended,
                floor_set_by=None,
                others=0,
                others_digest=None,
            ),
            change,
        )
        memory.fence = max(memory.fence, witness.fence)
        batch = self.turn(witness, change=head, signer=signer)
        return Lease(self, witness, batch.signed_witness(0))

    def prolong(self, lease: Lease, kind: WitnessKind = WitnessKind.RENEWAL, change: Change | None = None) -> None:
        """Renew or upgrade a lease to a full term."""
        expiry = min(self.node.time.midpoint_ns + self.tree.policy.lease_term_max_ns, self.ceiling_ns)
        fields: Change = {"kind": kind, "phase": lease.witness.phase, "expiry_ns": max(expiry, lease.witness.expiry_ns)}
        if kind is WitnessKind.UPGRADE:
            memory = self.memories[lease.witness.domain]
            fields |= {"phase": Phase.HELD, "floor_ns": memory.floor_ns, "settle_to_ns": memory.settle_to_ns}
        lease.witness = changed(lease.witness, fields | (change or {}))
        lease.signed = self.turn(lease.witness).signed_witness(0)

    def end(
        self, lease: Lease, outcome: LeaseOutcome = LeaseOutcome.RELINQUISHED, change: Change | None = None
    ) -> Ending:
        """End a lease: floor and settle_to follow from how it ended."""
        told = outcome is LeaseOutcome.RELINQUISHED
        ending = changed(
            Ending(
                correlation_id=lease.witness.correlation_id,
                outcome=outcome,
                ended_ns=self.node.time.midpoint_ns,
                watermark_ns=lease.written_ns if told else None,
                watermark_time=lease.written_time if told else None,
                messages=lease.messages if told else 0,
                chain_head=lease.chain_head if told else None,
            ),
            change,
        )
        memory = self.memories[lease.witness.domain]
        if outcome is LeaseOutcome.EXPIRED:
            memory.floor_ns = max(memory.floor_ns, lease.witness.expiry_ns)
            memory.settle_to_ns = max(memory.settle_to_ns, lease.witness.expiry_ns)
        memory.floor_ns = max(memory.floor_ns, ending.watermark_ns or 0)
        memory.previous_id, memory.last_ended = lease.witness.correlation_id, ending
        entry = Ended(
            domain=lease.witness.domain, ending=ending, floor_ns=memory.floor_ns, settle_to_ns=memory.settle_to_ns
        )
        self.turn(entry)
        return ending

    def expire(self, lease: Lease) -> None:
        """Wait until the lease is surely past, then break it."""
        self.tree.until(lease.witness.expiry_ns + 2 * self.node.time.radius_ns + MS)
        self.end(lease, LeaseOutcome.EXPIRED)

    def stop_orderly(self) -> None:
        """Link an orderly record with what a successor starts from. All leases have ended."""
        memories = self.memories.values()
        self.floor_ns = max([self.floor_ns, *(max(m.floor_ns, m.fence) for m in memories)])
        self.settle_to_ns = max([self.settle_to_ns, *(m.settle_to_ns for m in memories)])
        self.turn(Stopped(floor_ns=self.floor_ns, settle_to_ns=self.settle_to_ns))
        self.extend(kind=CeilingKind.ORDERLY)


@dataclass
class Writer:
    """One writer process."""

    tree: ClusterTree
    node: str = "n2"
    incarnation: bytes = b""
    sequence: int = 0
    committed: CommittedFrame | None = None
    paths: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.incarnation = self.incarnation or self.tree.chance(8)

    @property
    def holder(self) -> Holder:
        return Holder(
            node=self.node,
            process=4711,
            boot=seed(self.node, "boot")[:16],
            incarnation=self.incarnation,
            purpose="test",
        )

    def publish(
        self,
        grid: Grid,
        *leases: Lease,
        payloads: Sequence[bytes] = (b"one", b"two"),
        at: int | None = None,
        bag: Bag | None = None,
        commits: bool = True,
        change: Change | None = None,
    ) -> str:
        """Write a frame into its bag; return its path. ``at``: the first timestamp; ``bag``: not its own."""
        time = self.tree.nodes[self.node].time
        floor = max((lease.witness.floor_ns for lease in leases), default=0)
        first = max(time.midpoint_ns, floor + 1) if at is None else at
        timestamps = range(first, first + len(payloads))
        self.sequence += 1
        head = changed(
            FrameHead(
                cluster_id=self.tree.cluster_id,
                log=grid.birth.log,
                writer=self.node,
                incarnation=self.incarnation,
                sequence=self.sequence,
                attempts=(Attempt(id=self.tree.chance(16), messages=len(payloads)),),
                committed=self.committed,
                time=time.token().encode(),
                witnesses=tuple(encode(lease.signed) for lease in leases),
                trust_number=1,
                policy_number=1,
            ),
            change,
        )
        data, digest = encode_frame(head, timestamps, payloads)
        place = bag or grid.bag(first)
        path = self.tree.put(f"{place.path}/{DataName(self.node, self.incarnation, self.sequence).text()}", data)
        self.paths.append(path)
        for lease in leases:
            if lease.written_ns is None or timestamps[-1] > lease.written_ns:
                lease.written_ns, lease.written_time = timestamps[-1], head.time
            if commits:
                lease.messages += len(payloads)
                lease.chain_head = digest
        if commits:
            self.committed = CommittedFrame(sequence=head.sequence, digest=digest)
        return path


def small_tree(root: Path) -> ClusterTree:
    """The smallest closed story: one lease, two frames, relinquished, bags closed, rack sealed."""
    tree = ClusterTree(root)
    grid = tree.log()
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
    # A bag that is still open.
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
    heir = shard.grant("alice", alice)
    tree.until(heir.witness.floor_ns + SECOND)
    alice.publish(orders, heir)
    # The shard is killed in an append.
    tree.append(shard.ledger, tree.get(shard.ledger)[:100])


def _shards_come_and_go(tree: ClusterTree, orders: Grid, alice: Writer, bob: Writer) -> None:
    # The successor of a killed run knows nothing and starts above its ceiling.
    shard = Shard(tree, "n2")
    late = shard.grant("alice", bob)
    shard.prolong(late)
    tree.until(late.witness.floor_ns - SECOND)
    shard.extend()
    shard.prolong(late)
    tree.advance(2 * SECOND)
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
