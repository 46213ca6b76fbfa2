"""One run of a shard, scripted: it grants what it is told to, and signs it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from appliance.formats.chains import CeilingKind, CeilingRecord, open_ceiling
from appliance.formats.framing import Kind
from appliance.formats.lease import Ending, LeaseOutcome, Mode, Phase
from appliance.formats.paths import chain_path, ledger_path, record_name
from appliance.formats.stamped import sign
from appliance.formats.witness import (
    NO_HEAD,
    CeilingCopy,
    Ended,
    Entry,
    Half,
    Resumed,
    Revoked,
    SignedWitness,
    Stopped,
    Witness,
    WitnessKind,
    block_bytes,
    head_digest,
    sign_batch,
)
from timeagent.keys import Signer
from timeagent.units import MS

from .tree import Change, ClusterTree, changed

if TYPE_CHECKING:
    from appliance.formats.witness import Batch, SessionWitness

    from .writer import Writer


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
    session: Session | None = None
    """The session lease that it is under."""


@dataclass
class Session:
    """A session lease as its holder and its shard know it."""

    shard: Shard
    witness: SessionWitness
    signed: SignedWitness
    leases: list[Lease] = field(default_factory=list)


@dataclass
class Memory:
    fence: int
    floor_ns: int
    settle_to_ns: int
    previous_id: bytes | None = None
    last_ended: Ending | None = None


class Shard:
    """One run of a shard: grants, ends leases, signs batches, keeps its ledger and its ceiling chain."""

    def __init__(
        self,
        tree: ClusterTree,
        node: str = "n1",
        *,
        number: int = 0,
        map_number: int = 1,
        half: Half = Half.WHOLE,
        change: Change | None = None,
    ) -> None:
        self.tree = tree
        self.node = tree.nodes[node]
        self.number = number
        self.map_number = map_number
        self.going_by = map_number
        self.half = half
        self.incarnation = tree.chance(8)
        self.sequence = 0
        self.previous = NO_HEAD
        self.keeps_ledger = True
        self.file = 1
        """The number of its ledger's file."""
        self.latest_ns = 0
        """The latest expiry that it stated."""
        self.alone_ns = 0
        """Of a shard that leaves: that up to then."""
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
            return 0, 0, 0
        record, _ = open_ceiling(self.tree.get(f"{chain_path(self.map_number, self.number)}/{record_name(newest)}"), "")
        if record.kind is CeilingKind.RUNNING:
            return record.ceiling_ns, record.ceiling_ns, record.ceiling_ns
        return record.floor_ns, record.settle_to_ns, record.ceiling_ns

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

    def restart(self, pause: int) -> None:
        """Stop for a restart, and go on after a while."""
        since = self.node.time.midpoint_ns
        self.tree.advance(pause)
        self.file += 1
        self.extend()
        self.turn(Resumed(since_ns=since))

    @property
    def ledger(self) -> str:
        return ledger_path(self.map_number, self.number, self.incarnation, self.file)

    def turn(self, *entries: Entry, change: Change | None = None, signer: Signer | None = None) -> Batch:
        """Sign a batch and append it to the ledger. ``change``: fields of the head."""
        self.sequence += 1
        self.latest_ns = max(self.latest_ns, *(getattr(each, "expiry_ns", 0) for each in entries))
        fields: Change = {
            "cluster_id": self.tree.cluster_id,
            "node": self.node.name,
            "map_number": self.map_number,
            "shard": self.number,
            "incarnation": self.incarnation,
            "going_by": self.going_by,
            "half": self.half,
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
        fence = (change or {}).get("fence", max(memory.fence, self.floor_ns, now) + 1)
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
        self,
        lease: Lease,
        outcome: LeaseOutcome = LeaseOutcome.RELINQUISHED,
        change: Change | None = None,
        *,
        states: Change | None = None,
        says_who: bool = True,
    ) -> Ending:
        """End a lease: floor and settle_to follow from how it ended.

        ``states``: other numbers than these; ``says_who``: who revoked it stands behind that.
        """
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
        if outcome in (LeaseOutcome.EXPIRED, LeaseOutcome.REVOKED, LeaseOutcome.ABANDONED):
            memory.floor_ns = max(memory.floor_ns, lease.witness.expiry_ns)
            memory.settle_to_ns = max(memory.settle_to_ns, lease.witness.expiry_ns)
        memory.floor_ns = max(memory.floor_ns, ending.watermark_ns or 0)
        memory.previous_id, memory.last_ended = lease.witness.correlation_id, ending
        numbers = {"floor_ns": memory.floor_ns, "settle_to_ns": memory.settle_to_ns}
        entry = Ended(domain=lease.witness.domain, ending=ending, **(numbers | (states or {})))
        name, operator = lease.witness.correlation_id, changed(lease.witness.holder, {"purpose": "in the way"})
        revoked = Revoked(domain=lease.witness.domain, correlation_id=name, by=operator)
        self.turn(entry, *([revoked] if outcome is LeaseOutcome.REVOKED and says_who else []))
        return ending

    def expire(self, lease: Lease) -> None:
        """Wait until the lease is surely past, then break it."""
        self.tree.until(lease.witness.expiry_ns + 2 * self.node.time.radius_ns + MS)
        self.end(lease, LeaseOutcome.EXPIRED)

    def stop_orderly(self) -> None:
        """Link an orderly record with what a successor starts from. All leases have ended, or are half of one."""
        memories = self.memories.values()
        self.floor_ns = max([self.floor_ns, self.alone_ns, *(max(m.floor_ns, m.fence) for m in memories)])
        self.settle_to_ns = max([self.settle_to_ns, self.alone_ns, *(m.settle_to_ns for m in memories)])
        self.extend(kind=CeilingKind.ORDERLY)
        # Last, as the shard writes it: a ledger that lacks its end is known by what it lacks.
        self.turn(Stopped(floor_ns=self.floor_ns, settle_to_ns=self.settle_to_ns))
