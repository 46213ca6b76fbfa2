"""How leases end: broken when surely past by the shard's own clock, with floor and settle_to at the expiry.

An orderly record is linked when every lease of its incarnation has ended, and not before; but by a shard that no map
has any more, when every lease by itself is covered by its floor: what it has else is half of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checkers.forms import CeilingCopy, Ended, SessionEnded, Witness
from tests.simulation.checkers.reading import time_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History


def check(history: History, record: Record) -> Iterator[str]:
    alone: dict[bytes, int] = {}
    expiries: dict[bytes, int] = {}
    out: dict[bytes, set[bytes]] = {}
    together: dict[bytes, set[bytes]] = {}
    for turn in record.turns:  # in the order in which they were signed: what ends was granted before
        head = turn.head
        leases = out.setdefault(head.incarnation, set())
        for entry in turn.entries:
            if type(entry) is Witness and entry.phase == "held":
                known = expiries.get(entry.correlation_id, 0)
                expiries[entry.correlation_id] = max(known, entry.expiry_ns)
                leases.add(entry.correlation_id)
                if head.half == "whole":
                    alone[entry.correlation_id] = max(alone.get(entry.correlation_id, 0), entry.expiry_ns)
                if entry.session_id is not None:
                    together.setdefault(entry.session_id, set()).add(entry.correlation_id)
            elif type(entry) is SessionEnded:
                leases -= together.pop(entry.session_id, set())
            elif type(entry) is CeilingCopy:
                end, shard = record.ceilings[entry.record], (head.map_number - 1) * 1024 + head.shard
                if end.kind == "orderly" and shard not in history.shards_of_map.get(head.going_by, (shard,)):
                    late = [alone[each] for each in leases if alone.get(each, 0) > min(end.floor_ns, end.settle_to_ns)]
                    if late:
                        yield f"{head.incarnation.hex()} ended below {max(late)}, until when a lease was good alone"
                elif end.kind == "orderly" and leases:
                    yield f"{head.incarnation.hex()} linked an orderly record while {len(leases)} leases were out"
            elif type(entry) is Ended:
                leases.discard(entry.ending.correlation_id)
                if entry.ending.outcome != "expired":
                    continue
                expiry = expiries.get(entry.ending.correlation_id, 0)
                if min(entry.floor_ns, entry.settle_to_ns) < expiry:
                    yield f"a broken lease on {entry.domain} expired at {expiry}, above its floor or settle_to"
                if entry.ending.ended_ns - _radius_ns(record) <= expiry:
                    yield (
                        f"a lease on {entry.domain} with expiry {expiry} was broken at {entry.ending.ended_ns}, "
                        f"which is not surely later"
                    )


def _radius_ns(record: Record) -> int:
    """Return how far off a shard's clock was sure to be allowed to be.

    The interval by which a lease was broken is another one than the token's, and may be a little narrower.
    """
    return min(time_of(turn.head.time).radius_ns for turn in record.turns) * 9 // 10
