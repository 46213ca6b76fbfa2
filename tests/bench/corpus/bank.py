"""The story of the bank: each message is written under three leases of two session leases, five witnesses in all.

A teller keeps one branch in mode IX beside others, and takes two accounts of two shards in mode X: first tentatively,
then held. Under these it writes four transfers, a frame each, and gives the accounts back. The session leases, one for
each teller and shard, are renewed; branches are given back and taken again. At the end all leases and sessions end.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from appliance.formats.chains import CeilingKind
from appliance.formats.framing import Attempt, CommittedFrame, FrameHead, encode_frame
from appliance.formats.lease import Ending, LeaseOutcome, Mode, Phase
from appliance.formats.witness import Ended, SessionEnded, SessionKind, SessionWitness, Stopped, Witness, WitnessKind
from timeagent.canonical import encode
from timeagent.units import MS

from .cast import START_NS, TICK_NS, Cluster, Shard, Writer, seed

if TYPE_CHECKING:
    from collections.abc import Callable

    from appliance.formats.witness import Entry, SignedWitness

TELLERS: Final = 64
VISITS: Final = 2 * TELLERS
"""Customers that are served in one tick."""
TRANSFERS: Final = 4
"""Messages for each of them."""
ACCOUNTS: Final = 512
"""Of each shard."""
_RENEWED_TICKS: Final = 20
_BRANCH_TICKS: Final = 16
STEP_NS: Final = 4 * MS


@dataclass
class _Memory:
    """What a shard knows of a domain."""

    domain: str
    shard: Shard
    fence: int = 0
    floor_ns: int = 0
    previous_id: bytes | None = None
    last_ended: Ending | None = None
    floor_set_by: Ending | None = None


@dataclass
class _Session:
    """The session lease of a teller with a shard."""

    shard: Shard
    witness: SessionWitness
    signed: SignedWitness | None = None


@dataclass
class _Lease:
    """One lease, and what was written under it."""

    witness: Witness
    memory: _Memory
    signed: SignedWitness | None = None
    messages: int = 0
    last_ns: int = 0
    written_time: bytes = b""
    chain_head: bytes | None = None


@dataclass
class _Teller:
    """A writer, its session leases by shard, and its branch."""

    number: int
    writer: Writer
    sessions: dict[int, _Session] = field(default_factory=dict)
    branch: _Lease | None = None


class BankStory:
    """Makes frames, tick by tick; ``write`` takes those of one writer's file when its bag is full."""

    def __init__(
        self,
        cluster: Cluster,
        frames: int,
        *,
        message_bytes: int,
        write: Callable[[Writer, int, list[tuple[int, bytes]], list[str]], None],
    ) -> None:
        """Take how many frames there are to be, of one message each."""
        self.cluster = cluster
        self.frames = frames
        self.shards = [Shard(cluster, number) for number in range(len(cluster.map.owners))]
        nodes = list(cluster.nodes.values())
        self.tellers = [_Teller(n, Writer.of(nodes[n % len(nodes)], n, "orders")) for n in range(TELLERS)]
        self._branches = [self._domains(f"branch/{shard.number}-", shard, 1)[0] for shard in self.shards]
        self._accounts = [self._domains("account/", shard, ACCOUNTS) for shard in self.shards]
        self._message = bytes(range(33, 127)) * (message_bytes // 94 + 1)
        self._message_bytes = message_bytes
        self._write = write
        self.made = 0
        """Messages so far."""
        self._waiting: list[tuple[_Session | _Lease, Shard, int]] = []

    def _domains(self, prefix: str, shard: Shard, count: int) -> list[_Memory]:
        names = (f"{prefix}{number:05d}" for number in itertools.count())
        own = (name for name in names if self.cluster.map.shard_of(name) == shard.number)
        return [_Memory(name, shard) for name in itertools.islice(own, count)]

    def tell(self) -> int:
        """Tell the whole story; return the instant after its end."""
        now, out = START_NS, list[_Lease]()
        for tick in itertools.count():
            now = START_NS + tick * TICK_NS
            if tick and now % self.cluster.policy.span_ns == 0:
                self._flush(now - 1)
            for shard in self.shards:
                if now % self.cluster.policy.ceiling_period_ns == 0:
                    shard.extend(now)
            for lease in out:
                self._end(lease, now)
            if self.made >= self.frames:
                break
            out = self._tick(tick, now)
        self._flush(now - 1)
        self._stop(now)
        return now

    def _flush(self, instant: int) -> None:
        for teller in self.tellers:
            if teller.writer.pending:
                self._write(teller.writer, instant, teller.writer.pending, [])
                teller.writer.pending = []
        for shard in self.shards:
            shard.flush()

    def _stop(self, now: int) -> None:
        for teller in self.tellers:
            if teller.branch is not None:
                self._end(teller.branch, now)
            for session in teller.sessions.values():
                ended = SessionEnded(
                    session_id=session.witness.session_id,
                    outcome=LeaseOutcome.DROPPED,
                    ended_ns=now,
                    expiry_ns=session.witness.expiry_ns,
                    leases=0,
                    watermark_ns=None,
                    watermark_time=None,
                    messages=0,
                    chain_head=None,
                )
                self.say(session.shard, ended)
        memories = [*self._branches, *itertools.chain(*self._accounts)]
        highest = max(max(each.floor_ns, each.fence) for each in memories)
        for shard in self.shards:
            shard.entries.append(Stopped(floor_ns=highest, settle_to_ns=0))
            shard.floor_ns = highest
            shard.extend(now, CeilingKind.ORDERLY)
            shard.turn(now)
            shard.flush()

    def _tick(self, tick: int, now: int) -> list[_Lease]:
        """Serve some customers; return the leases that are given back in the next tick."""
        for teller in self.tellers:
            if tick % _RENEWED_TICKS == 0:
                self._renew(teller, now)
        self._sign(now)
        for teller in self.tellers:
            if tick % _BRANCH_TICKS == teller.number % _BRANCH_TICKS or teller.branch is None:
                if teller.branch is not None:
                    self._end(teller.branch, now)
                teller.branch = self._grant(teller, self._branches[teller.number % 4], now, Mode.IX, Phase.HELD)
        visits: list[tuple[_Teller, list[_Lease]]] = []
        for number in range(min(VISITS, -(-(self.frames - self.made) // TRANSFERS))):
            teller = self.tellers[number % TELLERS]
            source, half = teller.number % 4, ACCOUNTS // 2
            target = (source + 1 + (number // 4 + tick) % 3) % 4
            pair = (
                self._accounts[source][(number + tick * 37) % half],
                self._accounts[target][half + (number + tick * 37) % half],
            )
            visits.append((teller, [self._grant(teller, each, now, Mode.X, Phase.TENTATIVE) for each in pair]))
        self._sign(now)
        for lease in itertools.chain(*(leases for _, leases in visits)):
            held = {"kind": WitnessKind.UPGRADE, "phase": Phase.HELD, "floor_ns": lease.memory.floor_ns}
            lease.witness = msgspec.structs.replace(lease.witness, **held)
            self._tell(lease, lease.memory.shard, lease.witness)
        self._sign(now)
        for number, (teller, leases) in enumerate(visits):
            assert teller.branch is not None
            for transfer in range(TRANSFERS):
                step = number // TELLERS * TRANSFERS + transfer
                self._publish(teller, [teller.branch, *leases], now, now + 8 * MS + step * STEP_NS + teller.number)
        return [lease for _, leases in visits for lease in leases]

    def _tell(self, what: _Session | _Lease, shard: Shard, witness: Witness | SessionWitness) -> None:
        self._waiting.append((what, shard, len(shard.entries)))
        self.say(shard, witness)

    def say(self, shard: Shard, entry: Entry) -> None:
        """Put an entry into the next batch of a shard."""
        shard.entries.append(entry)

    def seal(self, head: FrameHead, instant: int, message: bytes) -> tuple[bytes, bytes]:
        """Return a frame with one message, and its digest."""
        return encode_frame(head, (instant,), [message])

    def _sign(self, now: int) -> None:
        """Sign what was told, a batch for each shard."""
        batches = {shard.number: shard.turn(now) for shard in self.shards}
        for told, shard, place in self._waiting:
            batch = batches[shard.number]
            assert batch is not None
            told.signed = batch.signed_witness(place)
        self._waiting.clear()

    def _renew(self, teller: _Teller, now: int) -> None:
        """Renew the session leases of a teller; those that there are not yet begin."""
        expiry = now + self.cluster.policy.lease_term_max_ns
        for shard in self.shards:
            session = teller.sessions.get(shard.number)
            if session is None:
                name = now.to_bytes(8, "big") + seed("session", teller.number, shard.number)[:8]
                witness = SessionWitness(
                    kind=SessionKind.GRANT, session_id=name, holder=teller.writer.holder, expiry_ns=expiry, ended=()
                )
                session = teller.sessions[shard.number] = _Session(shard, witness)
            else:
                session.witness = msgspec.structs.replace(session.witness, kind=SessionKind.RENEWAL, expiry_ns=expiry)
            self._tell(session, shard, session.witness)

    def _grant(self, teller: _Teller, memory: _Memory, now: int, mode: Mode, phase: Phase) -> _Lease:
        memory.fence = fence = max(memory.fence, memory.floor_ns, now) + 1
        session, by = teller.sessions[memory.shard.number].witness, memory.floor_set_by
        witness = Witness(
            kind=WitnessKind.GRANT,
            domain=memory.domain,
            mode=mode,
            phase=phase,
            holder=teller.writer.holder,
            correlation_id=fence.to_bytes(8, "big") + seed(memory.domain, fence)[:8],
            fence=fence,
            expiry_ns=session.expiry_ns,
            floor_ns=memory.floor_ns,
            settle_to_ns=0,
            session_id=session.session_id,
            previous_id=memory.previous_id,
            last_ended=memory.last_ended,
            floor_set_by=None if by is memory.last_ended else by,
            others=0,
            others_digest=None,
        )
        memory.previous_id = witness.correlation_id
        lease = _Lease(witness, memory)
        self._tell(lease, memory.shard, witness)
        return lease

    def _publish(self, teller: _Teller, leases: list[_Lease], now: int, instant: int) -> None:
        writer = teller.writer
        writer.sequence += 1
        token = writer.node.page(now).encode()
        sessions = [teller.sessions[n] for n in dict.fromkeys(each.memory.shard.number for each in leases)]
        carried: list[_Lease | _Session] = [*leases, *sessions]
        signed = [each.signed for each in carried if each.signed is not None]
        head = FrameHead(
            cluster_id=self.cluster.cluster_id,
            log=writer.log,
            writer=writer.node.name,
            incarnation=writer.holder.incarnation,
            sequence=writer.sequence,
            attempts=(Attempt(id=seed("attempt", self.made)[:16], messages=1),),
            committed=writer.committed,
            time=token,
            witnesses=tuple(encode(each) for each in signed),
            trust_number=1,
            policy_number=1,
        )
        start = self.made % 94
        piece, digest = self.seal(head, instant, self._message[start : start + self._message_bytes])
        writer.pending.append((writer.sequence, piece))
        writer.committed = CommittedFrame(sequence=writer.sequence, digest=digest)
        self.made += 1
        for lease in leases:
            lease.messages += 1
            lease.last_ns, lease.written_time, lease.chain_head = instant, token, digest

    def _end(self, lease: _Lease, now: int) -> None:
        memory, wrote = lease.memory, lease.messages > 0
        ending = Ending(
            correlation_id=lease.witness.correlation_id,
            outcome=LeaseOutcome.RELINQUISHED,
            ended_ns=now,
            watermark_ns=lease.last_ns if wrote else None,
            watermark_time=lease.written_time if wrote else None,
            messages=lease.messages,
            chain_head=lease.chain_head,
        )
        if lease.last_ns > memory.floor_ns or memory.last_ended is None:
            memory.floor_ns, memory.floor_set_by = max(memory.floor_ns, lease.last_ns), ending
        memory.last_ended = ending
        entry = Ended(domain=memory.domain, ending=ending, floor_ns=memory.floor_ns, settle_to_ns=0)
        self.say(memory.shard, entry)
