"""A lease shard over hand-driven ports, and what tests ask of it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from appliance.formats.chains import open_ceiling
from appliance.formats.framing import pieces
from appliance.formats.lease import Ending, Holder, Mode, Phase
from appliance.formats.policy import Policy
from appliance.formats.shardmap import ShardMap
from appliance.formats.witness import Ended, LedgerBlock, SignedWitness, Witness, WitnessKind, open_block
from appliance.lease.ceiling import CeilingChain, Extended, ShardIdentity
from appliance.lease.shard import DOMAINS_MAX, Shard
from appliance.lease.store import LeaseStore
from appliance.lease.wire import (
    Acquire,
    Age,
    Denied,
    Encoded,
    Granted,
    Relinquish,
    Renew,
    Reply,
    Request,
    Upgrade,
    decode_reply,
)
from appliance.lease.witness_ledger import HOLD_NS
from tests.support.clocks import HandTime
from tests.support.values import CLUSTER, NODE, NOW_NS, TIME_KEY, WITNESS_KEY
from timeagent.canonical import decode
from timeagent.errors import Environment
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from appliance.formats.witness import Entry
    from timeagent.units import Instant, Span

POLICY = Policy(number=1, cluster_id=CLUSTER)
TERM = POLICY.lease_term_max_ns
HOLDER = Holder(node="node-h", process=7, boot=bytes(16), incarnation=bytes(8), purpose="test")
RIVAL = Holder(node="node-r", process=8, boot=bytes(16), incarnation=bytes(8), purpose="rival")


class MemoryChain:
    """A ChainPort in memory. ``faults`` holds what happens to the next calls: None, "lost" or "done"."""

    def __init__(self) -> None:
        self.records: dict[int, bytes] = {}
        self.faults: dict[str, list[str | None]] = {}
        self.hidden: set[int] = set()

    def _fails(self, verb: str) -> str | None:
        script = self.faults.get(verb)
        return script.pop(0) if script else None

    def list_afresh(self) -> list[int]:
        if self._fails("list"):
            raise Environment("planted", "the listing failed")
        return sorted(set(self.records) - self.hidden)

    def read(self, number: int) -> bytes | None:
        if self._fails("read"):
            raise Environment("planted", "the reading failed")
        return self.records.get(number)

    def link(self, number: int, data: bytes) -> bool:
        fault = self._fails("link")
        if fault == "lost":
            raise Environment("planted", "nothing was linked")
        won = number not in self.records
        self.records.setdefault(number, data)
        if fault == "done":
            raise Environment("planted", "linked, and reported as failed")
        if fault == "repeated":
            return False
        return won

    def unlink(self, number: int) -> None:
        if self._fails("unlink"):
            raise Environment("planted", "the unlinking failed")
        self.records.pop(number, None)


class ListLedger:
    """A LedgerSink in memory."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.broken = False

    def append(self, data: bytes) -> None:
        if self.broken:
            raise Environment("planted", "the ledger cannot be appended to")
        self.data.append(data)

    def blocks(self) -> list[LedgerBlock]:
        found, rest = pieces(b"".join(self.data))
        assert rest == ""
        return [open_block(piece, "the ledger") for piece in found]

    def entries(self) -> list[Entry]:
        return [entry for block in self.blocks() for entry in block.decoded("the ledger")]


@dataclass
class World:
    """One shard's surroundings: they outlive its incarnations."""

    path: Path
    policy: Policy = POLICY
    domains_max: int = DOMAINS_MAX
    time: HandTime = field(default_factory=lambda: HandTime(TIME_KEY, NOW_NS))
    chain: MemoryChain = field(default_factory=MemoryChain)
    ledgers: list[ListLedger] = field(default_factory=list)
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    shards: int = 1
    stores: list[LeaseStore] = field(default_factory=list)
    waited: list[tuple[str, Span, bool]] = field(default_factory=list)
    """What a shard says of requests that have left their queues."""

    def shard(self, node: str = NODE) -> Shard:
        """A new incarnation that has not started."""
        identity = ShardIdentity(CLUSTER, 1, 0, node, self.chance.randbytes(8))
        self.ledgers.append(ListLedger())
        self.stores.append(LeaseStore(self.path / f"shard-{len(self.stores)}.db"))
        return Shard(
            identity,
            ShardMap(number=1, cluster_id=CLUSTER, owners=(NODE,) * self.shards),
            self.policy,
            store=self.stores[-1],
            chain=CeilingChain(self.chain, self.time, WITNESS_KEY, self.policy, identity),
            time=self.time,
            signer=WITNESS_KEY,
            ledger=self.ledgers[-1],
            randomness=self.chance,
            domains_max=self.domains_max,
            waited=lambda *each: self.waited.append(each),
        )

    def started(self, node: str = NODE) -> Shard:
        shard = self.shard(node)
        assert isinstance(shard.start(), Extended)
        return shard

    @property
    def ledger(self) -> ListLedger:
        return self.ledgers[-1]

    def sign_held(self, shard: Shard) -> None:
        """Wait until a shard signs the ends that it has left to a next turn."""
        self.time.advance(HOLD_NS)
        shard.housekeeping()

    def request_id(self) -> bytes:
        return self.chance.randbytes(16)

    def leave_room(self, pages: int) -> None:
        """Let the newest store take so many pages more of its tmpfs."""
        connection = self.stores[-1]._connection
        connection.execute(f"PRAGMA max_page_count = {connection.pragma('page_count') + pages}")

    def close(self) -> None:
        for store in self.stores:
            store.close()


def acquire(
    world: World,
    domain: str = "a",
    *,
    holder: Holder = HOLDER,
    phase: Phase = Phase.HELD,
    mode: Mode = Mode.X,
    term_ns: Span = TERM,
    until_ns: Instant | None = None,
    request_id: bytes | None = None,
    age_ns: Instant | None = None,
) -> Acquire:
    request_id = request_id or world.request_id()
    return Acquire(
        map_number=1,
        request_id=request_id,
        domain=domain,
        mode=mode,
        phase=phase,
        holder=holder,
        age=Age(first_try_ns=world.time.midpoint_ns if age_ns is None else age_ns, request_id=request_id),
        term_ns=term_ns,
        expiry_ns_max=world.time.midpoint_ns + 60 * SECOND if until_ns is None else until_ns,
    )


def renew(world: World, lease: Witness, *, term_ns: Span = TERM, until_ns: Instant | None = None) -> Renew:
    return Renew(
        map_number=1,
        request_id=world.request_id(),
        domain=lease.domain,
        correlation_id=lease.correlation_id,
        term_ns=term_ns,
        expiry_ns_max=world.time.midpoint_ns + 60 * SECOND if until_ns is None else until_ns,
    )


def upgrade(world: World, lease: Witness, *, term_ns: Span = TERM) -> Upgrade:
    return Upgrade(
        map_number=1,
        request_id=world.request_id(),
        domain=lease.domain,
        correlation_id=lease.correlation_id,
        term_ns=term_ns,
        expiry_ns_max=world.time.midpoint_ns + 60 * SECOND,
    )


def relinquish(world: World, lease: Witness, watermark_ns: Instant | None = None) -> Relinquish:
    written = watermark_ns is not None
    return Relinquish(
        request_id=world.request_id(),
        domain=lease.domain,
        correlation_id=lease.correlation_id,
        watermark_ns=watermark_ns,
        watermark_time=world.time.token().encode() if written else None,
        messages=3 if written else 0,
        chain_head=bytes(32) if written else None,
    )


def one(shard: Shard, request: Request) -> Reply:
    (reply,) = shard.turn([request])
    return reply


def opened(reply: Reply) -> tuple[SignedWitness, Witness]:
    assert isinstance(reply, Granted), reply
    signed = decode(SignedWitness, reply.signed)
    return signed, signed.witness()


def granted(shard: Shard, request: Request) -> Witness:
    return opened(one(shard, request))[1]


def repeated(first: Reply, again: Reply) -> None:
    """Check that an answer says the same as the first one, signed anew."""
    assert isinstance(first, Granted)
    assert isinstance(again, Granted)
    before, after = opened(first)[1], opened(again)[1]
    assert after == msgspec.structs.replace(before, kind=WitnessKind.RENEWAL)
    assert again.request_id == first.request_id


def worlds(path: Path) -> Iterator[World]:
    world = World(path)
    yield world
    world.close()


def ended(world: World) -> list[Ending]:
    """What the ledger of a world says that ended."""
    return [entry.ending for entry in world.ledger.entries() if isinstance(entry, Ended)]


def ceiling_of(world: World, number: int = -1) -> int:
    """The ceiling of a chain record of a world, the newest if none is named."""
    number = max(world.chain.records) if number < 0 else number
    return open_ceiling(world.chain.records[number], "the chain")[0].ceiling_ns


def heard(reply: Reply | Encoded) -> Reply:
    """Return what a waiter was told, which may be encoded already."""
    return decode_reply(reply) if isinstance(reply, bytes) else reply


@dataclass(eq=False)
class Caller:
    """A waiter that remembers what it was told."""

    gone: bool = False
    replies: list[Reply] = field(default_factory=list)

    def answer(self, reply: Reply | Encoded) -> None:
        self.replies.append(heard(reply))

    @property
    def witness(self) -> Witness:
        (reply,) = self.replies
        return opened(reply)[1]

    @property
    def denied(self) -> Denied:
        (reply,) = self.replies
        assert isinstance(reply, Denied)
        return reply
