"""What of a frame goes into the index: itself, what it names, and the use that it makes of leases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.formats.witness import head_digest

if TYPE_CHECKING:
    from .frames import FrameEvidence
    from .index import Index


def index_frame(index: Index, frame: FrameEvidence, accepted: int, span: tuple[int, int] | None) -> None:
    """Remember a frame. ``accepted``: how many of its messages are in the record; ``span``: their first and last."""
    head, where = frame.frame.head, frame.where
    writer = (head.writer, head.incarnation)
    timestamps = frame.frame.timestamps
    stamps = (int(timestamps[0]), int(timestamps[-1]))
    index.add("frame", *writer, head.sequence, frame.frame.digest, where=where, rest=stamps)
    if head.committed is not None:
        named = (*writer, head.committed.sequence, head.committed.digest)
        index.add("committed", *named, where=where, rest=(int(timestamps[-1]),))
    first, last = span or stamps
    counted = set()
    for held in frame.witnesses:
        batch, witness = held.head, held.witness
        if witness.correlation_id not in counted:
            counted.add(witness.correlation_id)
            numbers = (len(timestamps), accepted, first, last, held.refusal is None)
            index.add("use", witness.domain, witness.correlation_id, where=where, rest=numbers)
        if held.refusal is not None:
            continue
        digest = head_digest(held.signed.head)
        index.add(
            "head",
            *(batch.incarnation, batch.sequence, digest, batch.map_number, batch.shard, batch.ceiling_number),
            *(False, held.signed.head),
            where=where,
        )
        index.add(
            "entry",
            *(witness.domain, witness.correlation_id, batch.incarnation, batch.sequence, held.signed.index),
            *(digest, held.signed.entry),
            where=where,
            rest=(0,),
        )
