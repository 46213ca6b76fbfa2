"""Who is in the corpus: nodes with their keys, registers, shards, writers; and their signed times, once per period."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from appliance.formats.birth import Marker
from appliance.formats.chains import CeilingKind, CeilingRecord
from appliance.formats.framing import Kind
from appliance.formats.lease import Holder
from appliance.formats.paths import chain_path, ledger_path, record_name
from appliance.formats.policy import Policy
from appliance.formats.shardmap import ShardMap
from appliance.formats.stamped import sign
from appliance.formats.witness import NO_HEAD, CeilingCopy, Entry, Half, block_bytes, head_digest, sign_batch
from timeagent.agent.bounded_clock import PERIOD_NS
from timeagent.keys import Purpose, Signer
from timeagent.signedtime import STALENESS_NS, ClockStatus, SignedTime, TimeFlags, sign_time
from timeagent.trust import KeyEntry, TrustRecord
from timeagent.units import HOUR, MS, SECOND, TimeInterval

if TYPE_CHECKING:
    from pathlib import Path

    from appliance.formats.framing import CommittedFrame
    from appliance.formats.witness import Batch

START_NS: Final = 1_795_212_000 * SECOND
"""2026-11-20T22:00:00Z."""
TICK_NS: Final = PERIOD_NS
"""Each node's page door has a new signed time so often: everything happens once per tick."""
NODES: Final = ("n1", "n2", "n3", "n4")
RADIUS_NS: Final = 2 * MS


def seed(*parts: object) -> bytes:
    """Return 32 bytes that depend on nothing but the names: the same call makes the same tree."""
    return hashlib.sha256(repr(parts).encode()).digest()


class Node:
    """A node: its keys, and its page door."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.time_key = Signer(seed(name, "time"))
        self.witness_key = Signer(seed(name, "witness"))
        self._page: tuple[int, SignedTime] | None = None

    def page(self, instant: int) -> SignedTime:
        """Return the signed time of the tick that begins at an instant."""
        if self._page is None or self._page[0] != instant:
            self._page = instant, self.signed(instant)
        return self._page[1]

    def signed(self, instant: int, digest: bytes | None = None) -> SignedTime:
        return sign_time(
            self.time_key,
            TimeInterval.around(instant, RADIUS_NS),
            status=ClockStatus.SYNCHRONIZED,
            flags=TimeFlags.NONE,
            staleness_ns=STALENESS_NS,
            sequence=(instant - START_NS) // TICK_NS + 1,
            clock_epoch=1,
            digest=digest,
        )


class StampAt:
    """A node's two doors at one instant."""

    def __init__(self, node: Node, instant: int) -> None:
        self._node = node
        self._instant = instant

    def token(self) -> SignedTime:
        return self._node.signed(self._instant)

    def token_over(self, digest: bytes) -> SignedTime:
        return self._node.signed(self._instant, digest)


class Cluster:
    """A root with its records."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cluster_id = seed("cluster")[:16]
        self.nodes = {name: Node(name) for name in NODES}
        self.policy = Policy(number=1, cluster_id=self.cluster_id, rack_ns=10 * SECOND, seal_delay_ns=5 * SECOND)
        self.map = ShardMap(number=1, cluster_id=self.cluster_id, owners=NODES)
        root_key = Signer(seed("root"))
        trust = TrustRecord(number=1, cluster_id=self.cluster_id, keys=tuple(self._keys()))
        self.put("TENURE", Marker(self.cluster_id, root_key.public).encode())
        for kind, record in ((Kind.POLICY, self.policy), (Kind.TRUST, trust), (Kind.MAP, self.map)):
            self.put(f"{kind.name.lower()}/{record_name(1)}", sign(kind, record, root_key))

    def _keys(self) -> list[KeyEntry]:
        return [
            KeyEntry(
                node=node.name,
                purpose=purpose,
                public=key.public,
                valid_from_ns=START_NS - HOUR,
                valid_until_ns=START_NS + 1000 * HOUR,
            )
            for node in self.nodes.values()
            for purpose, key in ((Purpose.TIME, node.time_key), (Purpose.WITNESS, node.witness_key))
        ]

    def put(self, path: str, data: bytes) -> None:
        """Write a new file."""
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)


class Shard:
    """One run of a shard, on the node that owns it."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.node = cluster.nodes[cluster.map.owners[number]]
        self.incarnation = seed("shard", number)[:8]
        self.entries: list[Entry] = []
        """What it tells in the next batch."""
        self.ceiling_ns = 0
        self.ceiling_number = 0
        self.floor_ns = 0
        self._sequence = 0
        self._previous = NO_HEAD
        self._blocks: list[bytes] = []

    def extend(self, now_ns: int, kind: CeilingKind = CeilingKind.RUNNING) -> None:
        """Link the next ceiling record and copy it to the ledger."""
        policy = self.cluster.policy
        self.ceiling_number += 1
        self.ceiling_ns = max(self.ceiling_ns, now_ns + policy.lease_term_max_ns + policy.ceiling_ahead_ns)
        record = CeilingRecord(
            cluster_id=self.cluster.cluster_id,
            map_number=1,
            shard=self.number,
            number=self.ceiling_number,
            node=self.node.name,
            incarnation=self.incarnation,
            kind=kind,
            ceiling_ns=self.ceiling_ns,
            floor_ns=self.floor_ns,
            settle_to_ns=0,
            time=self.node.page(now_ns).encode(),
        )
        raw = sign(Kind.CEILING, record, self.node.witness_key)
        self.cluster.put(f"{chain_path(1, self.number)}/{record_name(self.ceiling_number)}", raw)
        self.entries.append(CeilingCopy(record=raw))

    def turn(self, now_ns: int) -> Batch | None:
        """Sign what has gathered."""
        if not self.entries:
            return None
        self._sequence += 1
        batch = sign_batch(
            self.entries,
            self.node.witness_key,
            cluster_id=self.cluster.cluster_id,
            node=self.node.name,
            map_number=1,
            shard=self.number,
            incarnation=self.incarnation,
            going_by=1,
            half=Half.WHOLE,
            ceiling_number=self.ceiling_number,
            ceiling_ns=self.ceiling_ns,
            sequence=self._sequence,
            previous=self._previous,
            time=self.node.page(now_ns),
        )
        self._previous = head_digest(batch.head)
        self._blocks.append(block_bytes(batch))
        self.entries = []
        return batch

    def flush(self) -> None:
        """Append what was signed to the ledger."""
        path = self.cluster.root / ledger_path(1, self.number, self.incarnation)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(b"".join(self._blocks))
        self._blocks.clear()


@dataclass
class Writer:
    """One process that writes to one log."""

    node: Node
    log: str
    holder: Holder
    sequence: int = 0
    committed: CommittedFrame | None = None
    files: int = 0
    pending: list[tuple[int, bytes]] = field(default_factory=list)
    """Frames of the bag that is being filled: sequence and piece."""

    @classmethod
    def of(cls, node: Node, number: int, log: str) -> Writer:
        incarnation = seed("writer", number)[:8]
        boot = seed(node.name, "boot")[:16]
        holder = Holder(node=node.name, process=1000 + number, boot=boot, incarnation=incarnation, purpose="corpus")
        return cls(node, log, holder)
