"""One value of each format, always the same: fixed keys, fixed instants, fixed names."""

import hashlib
from collections.abc import Sequence

import msgspec

from appliance.formats import merkle
from appliance.formats.birth import BagKind, LogBirth, Marker, PlacedBirth
from appliance.formats.chains import CeilingKind, CeilingRecord, EpochKind, EpochRecord
from appliance.formats.closed import LockEntry, LockFile, RackSeal, SealEntry
from appliance.formats.framing import Attempt, CommittedFrame, FrameHead, Kind, encode_frame, measure
from appliance.formats.lease import Ending, Holder, LeaseOutcome, Mode, Phase
from appliance.formats.policy import Policy
from appliance.formats.shardmap import ShardMap
from appliance.formats.stamped import sign, stamp
from appliance.formats.view import Checkpoint, FoldIdentity, LogStart, checkpoint_bytes
from appliance.formats.witness import (
    NO_HEAD,
    Batch,
    CeilingCopy,
    Ended,
    Entry,
    Half,
    SessionEnded,
    SessionKind,
    SessionWitness,
    SignedWitness,
    Stopped,
    Witness,
    WitnessKind,
    block_bytes,
    head_refused,
    sign_batch,
)
from tests.support.clocks import HandTime
from timeagent.canonical import encode
from timeagent.keys import Purpose, Signer
from timeagent.signedtime import ClockStatus, SignedTime, TimeFlags, sign_time
from timeagent.trust import KeyEntry, Keyring, TrustRecord
from timeagent.units import DAY, INSTANT_MAX, MS, SECOND, TimeInterval

NOW_NS = 1_795_212_607_500_000_000
"""2026-11-20T22:10:07.5Z."""
CLUSTER = bytes(range(16))
NODE = "node-a"
ROOT_KEY = Signer(hashlib.sha256(b"root").digest())
TIME_KEY = Signer(hashlib.sha256(b"time").digest())
WITNESS_KEY = Signer(hashlib.sha256(b"witness").digest())
INCARNATION = bytes.fromhex("0011223344556677")
LOG = "events"
RACK_PATH = "logs/events/2026-11-20/22-10"
BAG_NAME = "22-10-07.000-1000-2000"
COVERED = hashlib.sha256(b"what existed before").digest()


def hand_time(start_ns: int = NOW_NS) -> HandTime:
    return HandTime(TIME_KEY, start_ns)


def page_token(midpoint_ns: int = NOW_NS, radius_ns: int = 5 * MS, signer: Signer = TIME_KEY) -> SignedTime:
    return sign_time(
        signer,
        TimeInterval.around(midpoint_ns, radius_ns),
        status=ClockStatus.SYNCHRONIZED,
        flags=TimeFlags.NONE,
        staleness_ns=250 * MS,
        sequence=7,
        clock_epoch=3,
    )


def nonce_token(digest: bytes, midpoint_ns: int = NOW_NS, signer: Signer = TIME_KEY) -> SignedTime:
    return sign_time(
        signer,
        TimeInterval.around(midpoint_ns, 5 * MS),
        status=ClockStatus.FREE_RUNNING,
        flags=TimeFlags.ASSUMED,
        staleness_ns=250 * MS,
        sequence=8,
        clock_epoch=3,
        digest=digest,
    )


def trust_record() -> TrustRecord:
    def entry(signer: Signer, purpose: Purpose) -> KeyEntry:
        return KeyEntry(
            node=NODE,
            purpose=purpose,
            public=signer.public,
            valid_from_ns=NOW_NS - DAY,
            valid_until_ns=INSTANT_MAX,
        )

    keys = (entry(TIME_KEY, Purpose.TIME), entry(WITNESS_KEY, Purpose.WITNESS))
    return TrustRecord(number=1, cluster_id=CLUSTER, keys=keys)


def keyring() -> Keyring:
    return Keyring(trust_record().keys)


def holder() -> Holder:
    return Holder(node=NODE, process=4321, boot=bytes(range(16, 32)), incarnation=INCARNATION, purpose="an example")


def ending() -> Ending:
    return Ending(
        correlation_id=bytes(range(32, 48)),
        outcome=LeaseOutcome.RELINQUISHED,
        ended_ns=NOW_NS - SECOND,
        watermark_ns=NOW_NS - 2 * SECOND,
        watermark_time=page_token(NOW_NS - 2 * SECOND).encode(),
        messages=12,
        chain_head=bytes(range(32)),
    )


def witness(domain: str = "accounts/7") -> Witness:
    return Witness(
        kind=WitnessKind.GRANT,
        domain=domain,
        mode=Mode.X,
        phase=Phase.HELD,
        holder=holder(),
        correlation_id=bytes(range(48, 64)),
        fence=NOW_NS + 1,
        expiry_ns=NOW_NS + 10 * SECOND,
        floor_ns=NOW_NS - 2 * SECOND,
        settle_to_ns=NOW_NS - 60 * SECOND,
        session_id=None,
        previous_id=ending().correlation_id,
        last_ended=ending(),
        floor_set_by=None,
        others=0,
        others_digest=None,
    )


def entries() -> list[Entry]:
    """One of each kind."""
    return [
        witness(),
        Ended(domain="accounts/8", ending=ending(), floor_ns=NOW_NS - 2 * SECOND, settle_to_ns=0),
        CeilingCopy(record=ceiling_file()),
        Stopped(floor_ns=NOW_NS, settle_to_ns=NOW_NS - SECOND),
    ]


def session_entries() -> list[Entry]:
    """A lease under a session lease, the session's newest witness, and how it ended."""
    session_id = bytes(range(80, 96))
    return [
        msgspec.structs.replace(witness(), session_id=session_id),
        SessionWitness(
            kind=SessionKind.RENEWAL,
            session_id=session_id,
            holder=holder(),
            expiry_ns=NOW_NS + 10 * SECOND,
            ended=(bytes(range(96, 112)),),
        ),
        SessionEnded(
            session_id=session_id,
            outcome=LeaseOutcome.DROPPED,
            ended_ns=NOW_NS,
            expiry_ns=NOW_NS + 10 * SECOND,
            leases=2,
            watermark_ns=NOW_NS - 2 * SECOND,
            watermark_time=page_token(NOW_NS - 2 * SECOND).encode(),
            messages=3,
            chain_head=bytes(range(32)),
        ),
    ]


def session_frame_head() -> FrameHead:
    signed = batch(session_entries())
    return frame_head(witnesses=tuple(encode(signed.signed_witness(index)) for index in (0, 1)))


def batch(of: list[Entry] | None = None, *, time: SignedTime | None = None, signer: Signer = WITNESS_KEY) -> Batch:
    return sign_batch(
        entries() if of is None else of,
        signer,
        cluster_id=CLUSTER,
        node=NODE,
        map_number=1,
        shard=0,
        incarnation=INCARNATION,
        going_by=1,
        half=Half.WHOLE,
        ceiling_number=1,
        ceiling_ns=NOW_NS + 12 * SECOND,
        sequence=1,
        previous=NO_HEAD,
        time=time or page_token(),
    )


def ceiling_record() -> CeilingRecord:
    return CeilingRecord(
        cluster_id=CLUSTER,
        map_number=1,
        shard=0,
        number=1,
        node=NODE,
        incarnation=INCARNATION,
        kind=CeilingKind.RUNNING,
        ceiling_ns=NOW_NS + 12 * SECOND,
        floor_ns=0,
        settle_to_ns=0,
        time=page_token().encode(),
    )


def epoch_record(**changes: object) -> EpochRecord:
    record = EpochRecord(
        cluster_id=CLUSTER,
        election="billing",
        number=8,
        epoch=5,
        candidate="billing-2",
        node=NODE,
        incarnation=INCARNATION,
        kind=EpochKind.LEADS,
        since_ns=NOW_NS - 30 * SECOND,
        until_ns=NOW_NS + 10 * SECOND,
        successor="",
        time=page_token().encode(),
    )
    return msgspec.structs.replace(record, **changes)


def ceiling_file() -> bytes:
    return sign(Kind.CEILING, ceiling_record(), WITNESS_KEY)


PAYLOADS = (b"first", b"", bytes(range(256)))
TIMESTAMPS = (NOW_NS, NOW_NS + 1, NOW_NS + 2 * MS)


def frame_head(**changes: object) -> FrameHead:
    head = FrameHead(
        cluster_id=CLUSTER,
        log=LOG,
        writer=NODE,
        incarnation=INCARNATION,
        sequence=2,
        attempts=(Attempt(id=bytes(range(16)), messages=1), Attempt(id=bytes(range(1, 17)), messages=2)),
        committed=CommittedFrame(sequence=1, digest=bytes(range(32))),
        time=page_token().encode(),
        witnesses=(encode(batch().signed_witness(0)),),
        trust_number=1,
        policy_number=1,
    )
    return msgspec.structs.replace(head, **changes)


def frame_piece() -> bytes:
    return encode_frame(frame_head(), TIMESTAMPS, PAYLOADS)[0]


def birth() -> LogBirth:
    return LogBirth(
        cluster_id=CLUSTER,
        log=LOG,
        kind=BagKind.MAILDIR,
        created_ns=NOW_NS - NOW_NS % SECOND,
        span_ns=SECOND,
        grace_ns=2 * SECOND,
        rack_ns=600 * SECOND,
        created_by=NODE,
    )


def placed_birth() -> PlacedBirth:
    return PlacedBirth(**msgspec.structs.asdict(birth()), store="s3://acme-bags/archive")


def lock() -> LockFile:
    data = frame_piece()
    name = f"{NODE}.{INCARNATION.hex()}.00000002.msg"
    return LockFile(
        cluster_id=CLUSTER,
        log=LOG,
        bag=f"{RACK_PATH}/{BAG_NAME}",
        closer=NODE,
        trust_number=1,
        policy_number=1,
        entries=(LockEntry(name=name, size=len(data), digest=measure(data)[2]),),
    )


def lock_bytes() -> bytes:
    return stamp(Kind.LOCK, lock(), hand_time(NOW_NS + 4 * SECOND))


def seal() -> RackSeal:
    entries = (SealEntry(bag=BAG_NAME, lock=lock_bytes()),)
    return RackSeal(cluster_id=CLUSTER, log=LOG, rack=RACK_PATH, sealer=NODE, entries=entries)


def fold_identity() -> FoldIdentity:
    logs = (LogStart(log=LOG, created_ns=birth().created_ns),)
    return FoldIdentity(
        cluster_id=CLUSTER, view="totals", version=1, logs=logs, initial=hashlib.sha256(b"nothing yet").digest()
    )


def checkpoint() -> Checkpoint:
    return Checkpoint(
        cluster_id=CLUSTER,
        view="totals",
        fold=fold_identity().digest(),
        horizon_ns=NOW_NS + SECOND,
        messages=3,
        state=b"what it adds up to",
    )


def shard_map() -> ShardMap:
    return ShardMap(number=1, cluster_id=CLUSTER, owners=(NODE, "node-b"))


def all_files() -> dict[str, bytes]:
    """The bytes of one file, or value, of each kind, by the name of its golden file."""
    signed = batch().signed_witness(0)
    return {
        "marker": Marker(CLUSTER, ROOT_KEY.public).encode(),
        "time-page": page_token().encode(),
        "time-nonce": nonce_token(COVERED).encode(),
        "policy": sign(Kind.POLICY, Policy(number=1, cluster_id=CLUSTER), ROOT_KEY),
        "trust": sign(Kind.TRUST, trust_record(), ROOT_KEY),
        "map": sign(Kind.MAP, shard_map(), ROOT_KEY),
        "birth": stamp(Kind.BIRTH, birth(), hand_time()),
        "placed-birth": stamp(Kind.BIRTH, placed_birth(), hand_time()),
        "ceiling": ceiling_file(),
        "epoch": sign(Kind.EPOCH, epoch_record(), WITNESS_KEY),
        "witness": encode(signed),
        "ledger": block_bytes(batch()),
        "frame": frame_piece(),
        "session": encode(batch(session_entries()).signed_witness(1)),
        "session-ledger": block_bytes(batch(session_entries())),
        "session-frame": encode_frame(session_frame_head(), TIMESTAMPS, PAYLOADS)[0],
        "lock": lock_bytes(),
        "view": checkpoint_bytes(checkpoint()),
        "seal": stamp(Kind.SEAL, seal(), hand_time(NOW_NS + 700 * SECOND)),
    }


def witness_refused(signed: SignedWitness, keyring: Keyring, cluster_id: bytes) -> str | None:
    """Why a witness proves nothing, or None: path, head signature and signed time all verify."""
    head = signed.batch_head()
    if root_of_path(signed.entry, signed.index, head.count, signed.path) != head.root:
        return "the witness is not in the batch that its head signs"
    return head_refused(signed.head, signed.signature, keyring, cluster_id)


def root_and_paths(leaves: list[bytes]) -> tuple[bytes, list[tuple[bytes, ...]]]:
    levels = merkle.tree(leaves)
    return levels[-1][0], [merkle.path(levels, index) for index in range(len(leaves))]


def root_of_path(leaf: bytes, index: int, count: int, path: Sequence[bytes]) -> bytes | None:
    """Return the root that a leaf and its path lead to, or None if the path does not fit index and count."""
    if not 0 <= index < count:
        return None
    current, rest = hashlib.sha256(b"\0" + leaf).digest(), list(path)
    while count > 1:
        if index ^ 1 < count:
            if not rest:
                return None
            sibling = rest.pop(0)
            current = hashlib.sha256(b"\1" + (sibling + current if index & 1 else current + sibling)).digest()
        index, count = index >> 1, (count + 1) >> 1
    return None if rest else current
