"""A whole cluster tree on disk, scripted by hand: its records, logs, bags and racks. One hand drives all clocks.

Made from timeagent and appliance.formats only. The actors here keep the protocol because the script says so, not
because they run it: ``change`` replaces fields before they are signed, which is how a breach is planted with good
signatures.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from appliance.formats.birth import BagKind, LogBirth, Marker, PlacedBirth
from appliance.formats.closed import LockEntry, LockFile, RackSeal, SealEntry
from appliance.formats.framing import Kind, measure
from appliance.formats.paths import Grid, record_name
from appliance.formats.policy import Policy
from appliance.formats.shardmap import ShardMap
from appliance.formats.stamped import sign, stamp
from tests.support.clocks import HandTime
from timeagent.keys import Purpose, Signer
from timeagent.trust import KeyEntry, TrustRecord
from timeagent.units import SECOND

from .history import begin

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from appliance.formats.paths import Bag, Rack
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


class ClusterTree:
    """A root with its records, and the nodes that work on it. One hand drives all clocks."""

    def __init__(
        self, root: Path, *, nodes: Sequence[str] = ("n1", "n2"), shards: int = 1, cluster_id: bytes | None = None
    ) -> None:
        self.root = root
        self.cluster_id = cluster_id or seed("cluster")[:16]
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
        self.put("TENURE", Marker(self.cluster_id, self.root_key.public).encode())
        self.put_register(Kind.POLICY, self.policy)
        self.put_register(Kind.TRUST, self.trust)
        self.put_register(Kind.MAP, self.map)
        self.policy_number = 1
        self.grids: dict[str, Grid] = {}
        self.drawn = 0
        """How often chance was asked."""
        begin(self)

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

    def change_policy(self, **numbers: int) -> int:
        """Publish the next policy, which closers know from now on; return its number. Shards grant by the first."""
        self.policy_number += 1
        changed_numbers = msgspec.structs.replace(self.policy, number=self.policy_number, **numbers)
        self.put_register(Kind.POLICY, changed_numbers)
        return self.policy_number

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
        self.drawn += 1
        return seed("chance", self.drawn)[:length]

    def draw(self, count: int) -> None:
        """Go on as if chance had been asked so often."""
        self.drawn = count

    # Logs, bags and racks.

    def log(self, name: str = "orders", *, node: str = "n1", change: Change | None = None, store: str = "") -> Grid:
        """Make a log. ``store``: what its birth says that it is in; the tree is a copy of both then."""
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
        if store:
            birth = PlacedBirth(**msgspec.structs.asdict(birth), store=store)
        raw = stamp(Kind.BIRTH, birth, self.nodes[node].time)
        for place in ("log", "store")[: 2 if store else 1]:
            self.put(f"logs/{name}/{place}", raw)
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
            _, size, digest = measure(data)
            if name not in omit:
                entries.append(LockEntry(name=name, size=size, digest=digest))
        lock = LockFile(
            cluster_id=self.cluster_id,
            log=bag.log,
            bag=bag.path,
            closer=node,
            trust_number=1,
            policy_number=self.policy_number,
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

    def settle_to(self, grid: Grid, instant: int, *, node: str = "n2") -> None:
        """Do what a holder does before its first write: wait, and close every bag that begins before an instant."""
        if instant <= grid.first_ns:
            return
        self.until(grid.bag(instant - 1).due_ns + 3 * self.nodes[node].time.radius_ns)
        start = grid.first_ns
        while start < instant:
            bag = grid.bag(start)
            if not (self.root / bag.path / "lock").exists() and not (self.root / bag.rack.path / "seal").exists():
                self.close(bag, node=node)
            start = bag.end_ns

    def settle(self, grid: Grid, *, seal: bool = True, node: str = "n2") -> None:
        """Wait, close what is due, and seal the racks that are over."""
        self.advance(4 * SECOND)
        self.close_due(grid, node=node)
        if not seal:
            return
        rack = grid.rack(grid.first_ns)
        self.until(grid.rack(self.now_ns).end_ns + self.policy.seal_delay_ns + SECOND)
        self.close_due(grid, node=node)
        while self.nodes["n1"].time.now().surely_past(rack.end_ns + self.policy.seal_delay_ns):
            if not (self.root / rack.path / "seal").exists():
                self.seal(rack)
            rack = grid.next_rack(rack)
