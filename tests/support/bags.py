"""Builders for tests of bags: one cluster with fixed records, nodes on a shared storage, frames with good defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any, Final

import msgspec

from appliance.bag.closing import Authority
from appliance.bag.horizon import Horizon
from appliance.bag.logs import create_log
from appliance.bag.metronome import Metronome
from appliance.bag.ports import BagContext, RecordNumbers, wake_nobody
from appliance.bag.reader import Reader
from appliance.bag.writing import FrameFile, writer_for
from appliance.formats.birth import BagKind
from appliance.formats.framing import Attempt, FrameHead, encode_frame
from appliance.formats.lease import Holder, Mode, Phase
from appliance.formats.paths import DataName, Grid
from appliance.formats.policy import Policy, check_policy
from appliance.formats.witness import (
    NO_HEAD,
    Half,
    SessionKind,
    SessionWitness,
    SignedWitness,
    Witness,
    WitnessKind,
    sign_batch,
)
from tests.support.clocks import HandTime
from timeagent.canonical import encode
from timeagent.errors import Damaged
from timeagent.keys import Purpose, Signer
from timeagent.trust import KeyEntry, Keyring
from timeagent.units import INSTANT_MAX, MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from appliance.bag.ports import Storage
    from timeagent.units import Instant

CLUSTER = b"c" * 16
LOG = "events"
T0: Instant = 1_700_000_400 * SECOND
"""2023-11-14 22:20:00, the start of a rack; long past on any file server."""
INCARNATION = b"i" * 8

TIME_KEY = Signer(b"t" * 32)
SHARD_KEY = Signer(b"w" * 32)
STRANGER = Signer(b"s" * 32)

type Part = tuple[int, Half]
"""By which map a shard goes that signs a witness, and how much of a lease that is."""
WHOLE: Final[Part] = 1, Half.WHOLE

POLICY = check_policy(
    Policy(number=1, cluster_id=CLUSTER, rack_ns=10 * SECOND, seal_delay_ns=5 * SECOND, radius_ns_max=250 * MS)
)
"""The defaults, but for racks of ten bags that are sealed five seconds after their end."""


def key(signer: Signer, purpose: Purpose, node: str = "n1", **changes: object) -> KeyEntry:
    entry = KeyEntry(node=node, purpose=purpose, public=signer.public, valid_from_ns=0, valid_until_ns=INSTANT_MAX)
    return msgspec.structs.replace(entry, **changes)


def time_key(node: str) -> Signer:
    """Return the key of a node's clock."""
    return TIME_KEY if node == "n1" else Signer(node.encode().ljust(32, b"*"))


KEYS = (
    key(TIME_KEY, Purpose.TIME),
    key(SHARD_KEY, Purpose.WITNESS),
    *(key(time_key(name), Purpose.TIME, name) for name in ("n0", "n2", "n3", "n4", *ascii_lowercase)),
)


@dataclass
class FixedRecords:
    """Records by number; the newest is the highest."""

    cluster_id: bytes = CLUSTER
    keyrings: dict[int, Keyring] = field(default_factory=lambda: {1: Keyring(KEYS)})
    policies: dict[int, Policy] = field(default_factory=lambda: {1: POLICY})

    @property
    def known(self) -> RecordNumbers | None:
        return self.newest()

    def newest(self) -> RecordNumbers:
        return RecordNumbers(max(self.keyrings), max(self.policies))

    def keyring(self, number: int) -> Keyring:
        if number not in self.keyrings:
            raise Damaged("no-record", f"there is no trust record {number}")
        return self.keyrings[number]

    def policy(self, number: int) -> Policy:
        if number not in self.policies:
            raise Damaged("no-record", f"there is no policy record {number}")
        return self.policies[number]


class Node:
    """One process: its time, and everything that works on the log ``events``, freshly made."""

    def __init__(
        self,
        storage: Storage,
        name: str = "n1",
        time: HandTime | None = None,
        records: FixedRecords | None = None,
        grid: Grid | None = None,
        kind: BagKind = BagKind.MAILDIR,
        wake: Callable[[str], None] = wake_nobody,
    ) -> None:
        self.time = time or HandTime(TIME_KEY, T0 + 500 * MS)
        self.records = records or FixedRecords()
        self.context = BagContext(storage, self.time, self.records, name, wake=wake)
        self.grid = grid or Grid(create_log(self.context, LOG, kind))
        self.authority = Authority(self.context, self.grid)
        self.closer, self.sealer = self.authority.closer, self.authority.sealer
        self.writer = writer_for(self.context, self.grid, self.authority)
        self.horizon = Horizon(self.context, self.grid, self.authority)
        self.reader = Reader(self.context, self.grid, self.horizon)
        self.metronome = Metronome(self.context, self.grid, self.horizon)

    def again(self, storage: Storage | None = None) -> Node:
        """Return a new process with nothing remembered, on the same or another storage, with the same time."""
        return Node(storage or self.context.storage, self.context.node, self.time, self.records, self.grid)

    def file(self, *payloads: bytes, sequence: int = 1, **changes: Any) -> FrameFile:  # noqa: ANN401 - as frame_file
        """Return a frame of messages stamped from now on, in the bag that holds now."""
        return frame_file(self, payloads or (b"m",), sequence=sequence, **changes)

    def settled(self) -> list[bytes]:
        return [message.payload for message in self.reader.settled()]

    def latest(self) -> list[bytes]:
        return [message.payload for message in self.reader.latest()]


def frame_file(
    node: Node,
    payloads: Sequence[bytes],
    *,
    sequence: int = 1,
    writer: str | None = None,
    incarnation: bytes = INCARNATION,
    timestamps: Sequence[Instant] | None = None,
    bag_at: Instant | None = None,
    name: DataName | None = None,
    **head: object,
) -> FrameFile:
    """Return one attempt. All may be made wrong: ``bag_at`` and ``name`` misplace it, ``head`` changes its head."""
    stamps = timestamps if timestamps is not None else [node.time.midpoint_ns + n for n in range(len(payloads))]
    author = writer or node.context.node
    fields: dict[str, Any] = {
        "cluster_id": CLUSTER,
        "log": LOG,
        "writer": author,
        "incarnation": incarnation,
        "sequence": sequence,
        "attempts": (Attempt(id=sequence.to_bytes(16, "big"), messages=len(payloads)),),
        "committed": None,
        "time": (node.time if author == "n1" else HandTime(time_key(author), node.time.midpoint_ns)).token().encode(),
        "witnesses": (lease_of(author, incarnation, stamps[0]),),
        "trust_number": 1,
        "policy_number": 1,
    }
    data, _ = encode_frame(FrameHead(**(fields | head)), stamps, payloads)
    bag = node.grid.bag(stamps[0] if bag_at is None else bag_at)
    return FrameFile(bag, name or DataName(author, incarnation, sequence), data)


def lease_of(node: str, incarnation: bytes, at_ns: Instant) -> bytes:
    """Return an encoded SignedWitness of a lease that a writer has for the longest term from an instant on."""
    holder = Holder(node=node, process=1, boot=b"b" * 16, incarnation=incarnation)
    return witness(HandTime(TIME_KEY, at_ns), holder=holder)


def witness(
    time: HandTime,
    domain: str = "d",
    *,
    signer: Signer = SHARD_KEY,
    shard: int = 0,
    part: Part = WHOLE,
    **changes: object,
) -> bytes:
    """Return an encoded SignedWitness: X, held, granted now for the longest term, floor far below."""
    holder = Holder(node="n1", process=1, boot=b"b" * 16, incarnation=INCARNATION)
    fields: dict[str, Any] = {
        "kind": WitnessKind.GRANT,
        "domain": domain,
        "mode": Mode.X,
        "phase": Phase.HELD,
        "holder": holder,
        "correlation_id": b"g" * 16,
        "fence": 1,
        "expiry_ns": time.midpoint_ns + POLICY.lease_term_max_ns,
        "floor_ns": time.midpoint_ns - SECOND,
        "settle_to_ns": 0,
        "session_id": None,
        "previous_id": None,
        "last_ended": None,
        "floor_set_by": None,
        "others": 0,
        "others_digest": None,
    }
    return signed_entry(time, Witness(**(fields | changes)), signer, shard=shard, part=part)


def session_witness(
    time: HandTime,
    *,
    signer: Signer = SHARD_KEY,
    run: bytes = b"S" * 8,
    shard: int = 0,
    part: Part = WHOLE,
    **changes: object,
) -> bytes:
    """Return an encoded SignedWitness of the session lease ``s…``: granted now for the longest term, none ended."""
    fields: dict[str, Any] = {
        "kind": SessionKind.GRANT,
        "session_id": b"s" * 16,
        "holder": Holder(node="n1", process=1, boot=b"b" * 16, incarnation=INCARNATION),
        "expiry_ns": time.midpoint_ns + POLICY.lease_term_max_ns,
        "ended": (),
    }
    return signed_entry(time, SessionWitness(**(fields | changes)), signer, run, shard, part)


def signed_entry(
    time: HandTime,
    entry: Witness | SessionWitness,
    signer: Signer,
    run: bytes = b"S" * 8,
    shard: int = 0,
    part: Part = WHOLE,
) -> bytes:
    """Return an encoded SignedWitness that is alone in its batch."""
    batch = sign_batch(
        [entry],
        signer,
        cluster_id=CLUSTER,
        node="n1",
        map_number=1,
        shard=shard,
        incarnation=run,
        going_by=part[0],
        half=part[1],
        ceiling_number=1,
        ceiling_ns=INSTANT_MAX,
        sequence=1,
        previous=NO_HEAD,
        time=time.token(),
    )
    signed: SignedWitness = batch.signed_witness(0)
    return encode(signed)
