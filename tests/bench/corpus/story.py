"""The story of the corpus: leases are granted, written under, renewed and relinquished, tick by tick.

Ten messages are written under each witness, in one frame. A quarter of the leases is renewed once. A domain goes from
writer to writer; who has it next writes above its predecessor's watermark.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from appliance.formats.chains import CeilingKind
from appliance.formats.framing import Attempt, CommittedFrame, FrameHead, encode_frame
from appliance.formats.lease import Ending, LeaseOutcome, Mode, Phase
from appliance.formats.witness import Ended, Stopped, Witness, WitnessKind
from timeagent.canonical import encode
from timeagent.units import MS

from .cast import START_NS, TICK_NS, Cluster, Shard, Writer, seed
from .faults import ENDING_FAULTS, FRAME_FAULTS, GRANT_FAULTS, witness_change

if TYPE_CHECKING:
    from collections.abc import Callable

    from appliance.formats.witness import SignedWitness

type Change = dict[str, Any]

WRITERS: Final = 64
SLOTS: Final = 512
"""Leases that are out at once."""
PER_WRITER: Final = SLOTS // WRITERS
MESSAGES: Final = 10
"""Under each witness."""
_GENERATIONS: Final = 8
_GENERATION_TICKS: Final = 64
"""After so many ticks other domains are written to."""
_RENEWED: Final = 4
"""Each fourth slot has leases of two ticks."""
STEP_NS: Final = 300_000
FAR_TICKS: Final = 30
"""So much later than its messages is a signed time that breaks R1."""


@dataclass
class Memory:
    """What the shard knows of a domain."""

    shard: Shard
    fence: int = 0
    granted_fence: int = 0
    floor_ns: int = 0
    granted_floor_ns: int = 0
    previous_id: bytes | None = None
    last_ended: Ending | None = None


@dataclass
class Lease:
    """One lease, and what was written under it."""

    witness: Witness
    memory: Memory
    fault: str = ""
    signed: SignedWitness | None = None
    messages: int = 0
    times: tuple[int, ...] = ()
    written_time: bytes = b""
    chain_head: bytes | None = None


class Story:
    """Makes frames, tick by tick; ``write`` takes those of one writer's file when its bag is full."""

    def __init__(
        self,
        cluster: Cluster,
        frames: int,
        *,
        message_bytes: int,
        planted: dict[int, str],
        write: Callable[[Writer, int, list[tuple[int, bytes]], list[str]], None],
    ) -> None:
        """Take how many frames there are to be. ``planted``: the fault of each frame that has one."""
        self.cluster = cluster
        self.frames = frames
        self.shards = [Shard(cluster, number) for number in range(len(cluster.map.owners))]
        nodes = list(cluster.nodes.values())
        self.writers = [
            Writer.of(nodes[number % len(nodes)], number, "payments" if number % 4 == 3 else "orders")
            for number in range(WRITERS)
        ]
        self._memories: dict[str, Memory] = {}
        self._leases: list[Lease | None] = [None] * SLOTS
        self._planted = planted
        self._message = bytes(range(33, 127)) * (message_bytes // 94 + 1)
        self._message_bytes = message_bytes
        self._write = write
        self._made = 0
        self._file_faults: dict[int, list[str]] = {}

    def tell(self) -> int:
        """Tell the whole story; return the instant after its end."""
        now = START_NS
        for tick in itertools.count():
            now = START_NS + tick * TICK_NS
            if tick and now % self.cluster.policy.span_ns == 0:
                self._flush(now - 1)
            if self._made >= self.frames:
                break
            if now % self.cluster.policy.ceiling_period_ns == 0:
                for shard in self.shards:
                    shard.extend(now)
            self._tick(tick, now)
        self._flush(now - 1)
        for lease in self._leases:
            if lease is not None:
                self._end(lease, now)
        highest = max((m.floor_ns for m in self._memories.values()), default=0)
        highest = max([highest, *(m.fence for m in self._memories.values())])
        for shard in self.shards:
            shard.entries.append(Stopped(floor_ns=highest, settle_to_ns=0))
            shard.floor_ns = highest
            shard.extend(now, CeilingKind.ORDERLY)
            shard.turn(now)
            shard.flush()
        return now

    def _flush(self, instant: int) -> None:
        """Write what a bag holds."""
        for number, writer in enumerate(self.writers):
            if writer.pending:
                self._write(writer, instant, writer.pending, self._file_faults.pop(number, []))
                writer.pending = []
        for shard in self.shards:
            shard.flush()

    def _tick(self, tick: int, now: int) -> None:
        coming = min(SLOTS, self.frames - self._made)
        starts: list[tuple[int, Lease]] = []
        for slot in range(SLOTS):
            lease = self._leases[slot]
            renewed = slot % _RENEWED == 0
            if lease is not None and renewed and tick % 2 and slot < coming:
                self._prolong(lease, now)
                starts.append((slot, lease))
            elif lease is not None:
                self._end(lease, now)
                self._leases[slot] = None
        for slot in range(coming):
            if self._leases[slot] is None:
                self._leases[slot] = lease = self._grant(slot, tick, now)
                starts.append((slot, lease))
        self._sign(now, starts)
        for slot in range(coming):
            lease = self._leases[slot]
            assert lease is not None
            self._publish(slot, lease, now)

    def _sign(self, now: int, starts: list[tuple[int, Lease]]) -> None:
        places: list[tuple[Lease, int]] = []
        for _, lease in starts:
            places.append((lease, len(lease.memory.shard.entries)))
            lease.memory.shard.entries.append(lease.witness)
        batches = {shard.number: shard.turn(now) for shard in self.shards}
        for lease, place in places:
            batch = batches[lease.memory.shard.number]
            assert batch is not None
            lease.signed = batch.signed_witness(place)

    def _domain(self, slot: int, tick: int) -> str:
        generation = tick // _GENERATION_TICKS % _GENERATIONS
        number, row = divmod(slot, _RENEWED)
        if row == 0:
            return f"account/a{generation}{(number + tick // 2) % (SLOTS // _RENEWED):04d}"
        others = SLOTS - SLOTS // _RENEWED
        return f"account/b{generation}{(number * (_RENEWED - 1) + row - 1 + tick) % others:04d}"

    def _grant(self, slot: int, tick: int, now: int) -> Lease:
        domain = self._domain(slot, tick)
        memory = self._memories.get(domain)
        if memory is None:
            memory = self._memories[domain] = Memory(self.shards[self.cluster.map.shard_of(domain)])
        fence = max(memory.fence, memory.floor_ns, now) + 1
        holder = self.writers[slot // PER_WRITER].holder
        policy = self.cluster.policy
        witness = Witness(
            kind=WitnessKind.GRANT,
            domain=domain,
            mode=Mode.X,
            phase=Phase.HELD,
            holder=holder,
            correlation_id=fence.to_bytes(8, "big") + seed(domain, fence)[:8],
            fence=fence,
            expiry_ns=now + policy.lease_term_max_ns,
            floor_ns=memory.floor_ns,
            settle_to_ns=0,
            session_id=None,
            previous_id=memory.previous_id,
            last_ended=memory.last_ended,
            floor_set_by=None,
            others=0,
            others_digest=None,
        )
        fault = self._planted.get(self._made + slot, "")
        if fault in GRANT_FAULTS:
            change = witness_change(
                fault,
                now_ns=now,
                floor_ns=memory.floor_ns,
                granted_floor_ns=memory.granted_floor_ns,
                fence=memory.granted_fence,
            )
            if fault == "foreign-lease":
                change = {"holder": self.writers[(slot // PER_WRITER + 4) % WRITERS].holder}
            witness = msgspec.structs.replace(witness, **change)
        memory.fence = max(memory.fence, fence)
        memory.granted_fence, memory.granted_floor_ns = witness.fence, witness.floor_ns
        return Lease(witness, memory, fault)

    def _prolong(self, lease: Lease, now: int) -> None:
        lease.witness = msgspec.structs.replace(
            lease.witness, kind=WitnessKind.RENEWAL, expiry_ns=now + self.cluster.policy.lease_term_max_ns
        )

    def _publish(self, slot: int, lease: Lease, now: int) -> None:
        writer = self.writers[slot // PER_WRITER]
        number, self._made = self._made, self._made + 1
        fault = lease.fault if lease.fault in FRAME_FAULTS else ""
        first = now + 8 * MS + slot % PER_WRITER * 4 * MS + slot
        times = tuple(range(first, first + MESSAGES * STEP_NS, STEP_NS))
        honest = token = writer.node.page(now).encode()
        assert lease.signed is not None
        signed = lease.signed
        if fault == "r1-breach":
            token = writer.node.signed(now + FAR_TICKS * TICK_NS).encode()
        elif fault == "forged-time":
            token = token[:-1] + bytes([token[-1] ^ 1])
        elif fault == "forged-witness":
            signed = msgspec.structs.replace(signed, path=(bytes(32), *signed.path[1:]))
        if fault != "sequence-reused":
            writer.sequence += 1
        head = FrameHead(
            cluster_id=self.cluster.cluster_id,
            log=writer.log,
            writer=writer.node.name,
            incarnation=writer.holder.incarnation,
            sequence=writer.sequence,
            attempts=(Attempt(id=seed("attempt", number)[:16], messages=MESSAGES),),
            committed=writer.committed,
            time=token,
            witnesses=(encode(signed),),
            trust_number=1,
            policy_number=1,
        )
        start = number % 94
        payload = self._message[start : start + self._message_bytes]
        piece, digest = encode_frame(head, times, [payload] * MESSAGES)
        if fault != "lost-frame":
            writer.pending.append((writer.sequence, piece))
            lease.messages += MESSAGES
        if fault != "r1-breach":  # else who names it as committed breaks R2
            writer.committed = CommittedFrame(sequence=writer.sequence, digest=digest)
        lease.times, lease.written_time, lease.chain_head = times, honest, digest
        planted = self._planted.get(number)
        if planted:
            self._file_faults.setdefault(slot // PER_WRITER, []).append(planted)

    def _end(self, lease: Lease, now: int) -> None:
        memory, fault = lease.memory, lease.fault if lease.fault in ENDING_FAULTS else ""
        watermark = max(lease.times[-1], lease.witness.floor_ns)
        if lease.fault == "timestamp-after-expiry":
            watermark = lease.witness.expiry_ns - 1
        elif fault == "watermark-below-message":
            watermark = lease.times[-2]
        ending = Ending(
            correlation_id=lease.witness.correlation_id,
            outcome=LeaseOutcome.RELINQUISHED,
            ended_ns=now,
            watermark_ns=watermark,
            watermark_time=lease.written_time,
            messages=lease.messages + (fault == "count-mismatch"),
            chain_head=lease.chain_head,
        )
        memory.floor_ns = max(memory.floor_ns, watermark)
        memory.previous_id, memory.last_ended = lease.witness.correlation_id, ending
        memory.shard.entries.append(
            Ended(domain=lease.witness.domain, ending=ending, floor_ns=memory.floor_ns, settle_to_ns=0)
        )
