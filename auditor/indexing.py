"""What of a frame goes into the index: itself, what it names, and the use that it makes of leases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from timeagent.units import INSTANT_MAX

if TYPE_CHECKING:
    from .finding import Evidence
    from .frames import FrameEvidence, HeldSession, HeldWitness
    from .rows import Rows


def index_frame(
    index: Rows,
    frame: FrameEvidence,
    digest: bytes,
    accepted: int,
    span: tuple[int, int],
    rank: int,
    *,
    hashed: bool = True,
    counts: bool = True,
) -> None:
    """Remember a frame. ``accepted``: how many of its messages are in the record; ``span``: their first and last.

    ``rank``: how many frames were read before it; ``hashed``: whether frames are known by their digests. ``counts``:
    whether it is known that the list that it is in counts.
    """
    head, where = frame.frame.head, frame.where
    writer = (head.writer, head.incarnation)
    timestamps = frame.frame.timestamps
    stamps = (int(timestamps[0]), int(timestamps[-1]))
    token, proven = frame.token, frame.refusal is None
    # An end of an interval above what a column holds is kept as that: nothing lies above either.
    interval = (token.interval.earliest, min(token.interval.latest, INSTANT_MAX)) if proven else (None, None)
    index.add("frame", *writer, head.sequence, digest, where=where, rest=(*stamps, *interval))
    if head.committed is not None:
        named = (*writer, head.committed.sequence, head.committed.digest if hashed else bytes(32))
        naming = (head.sequence, *interval, token.staleness_ns)
        index.add("committed", *named, where=where, rest=(int(timestamps[-1]), *naming))
    first, last = span
    stamped = min(token.interval.latest + token.staleness_ns, INSTANT_MAX)
    for session in frame.sessions:
        if session.refusal is None:
            _index_witness(index, session, ("", session.witness.session_id), where, rank)
    counted = set()
    for held in frame.witnesses:
        witness = held.witness
        if witness.correlation_id not in counted:
            counted.add(witness.correlation_id)
            sure = counts and held.refusal is None
            numbers = (len(timestamps), accepted, first, last, sure, witness.settle_to_ns, stamped)
            itself = (head.sequence, digest if hashed else None)
            index.add("use", witness.domain, witness.correlation_id, where=where, rest=(*numbers, *itself))
        if held.refusal is not None:
            continue
        _index_witness(index, held, (witness.domain, witness.correlation_id), where, rank)


def _index_witness(
    index: Rows, held: HeldWitness | HeldSession, lease: tuple[str, bytes], where: Evidence, rank: int
) -> None:
    """Remember a witness with its head. ``lease``: domain and id. Session leases are of no domain: theirs is ""."""
    batch, signed = held.head, held.signed
    index.add(
        "head",
        *(batch.incarnation, batch.sequence, held.head_digest, batch.map_number, batch.shard, batch.ceiling_number),
        *(False, signed.head),
        where=where,
        rank=rank,
    )
    index.add(
        "entry",
        *(*lease, batch.incarnation, batch.sequence, signed.index, held.head_digest, signed.entry),
        where=where,
        rest=(0,),
        rank=rank,
    )
