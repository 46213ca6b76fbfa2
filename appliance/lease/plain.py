"""The plain states of a domain, kept as what differs from the one before: most leases never have another.

Plain is a lease in mode X, held, under no session lease, alone on its domain, of which nothing has been asked since its
grant; and a domain whose last lease was given back by a holder that wrote nothing. ``expanded`` says which ``State``
each of them is. They are made by ``plainturn`` and by the store's rows, and are values like the states they stand for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from timeagent.canonical import encode

from ..formats.lease import Ending, Holder, LeaseOutcome, Mode, Phase
from .domain import Free, Lease, Memory, Taken
from .wire import Age

if TYPE_CHECKING:
    from timeagent.units import Instant

    from .domain import State

_encode: Final = msgspec.msgpack.Encoder().encode


class Ground(msgspec.Struct, frozen=True, gc=False):
    """What stays of a domain's memory while nothing is written under its leases: shared by all its plain states."""

    memory: Memory
    """Of it floor, settle_to, hints and who set the floor."""
    numbers: bytes
    """Floor and settle_to as they are encoded, one behind the other."""
    setter: bytes
    """Who set the floor, encoded."""


def ground_of(memory: Memory) -> Ground:
    """Return what stays of a memory."""
    setter = b"\xc0" if memory.floor_set_by is None else encode(memory.floor_set_by)
    return Ground(memory, _encode(memory.floor_ns) + _encode(memory.settle_to_ns), setter)


class Given(msgspec.Struct, frozen=True, gc=False):
    """A free domain whose last lease was plain, and was given back without a word about messages."""

    ground: Ground
    correlation_id: bytes
    ended_ns: Instant
    request_id: bytes
    """What that lease was granted to."""


class Had(msgspec.Struct, frozen=True, gc=False):
    """A domain with one lease, which is plain."""

    ground: Ground
    before: Given | Memory
    """The domain without it; nothing is left in it of what ended before the last grant but the last of that."""
    holder: Holder
    correlation_id: bytes
    granted_ns: Instant
    expiry_ns: Instant
    age: Age
    request_id: bytes

    @property
    def fence(self) -> int:
        """The lease's fence, and the domain's."""
        return int.from_bytes(self.correlation_id[:8], "big")


type Plain = Given | Had


def memory_of(given: Given) -> Memory:
    """Return what is remembered of a free domain that was left plainly."""
    ground = given.ground.memory
    return Memory(
        fence=int.from_bytes(given.correlation_id[:8], "big"),
        floor_ns=ground.floor_ns,
        settle_to_ns=ground.settle_to_ns,
        hints=ground.hints,
        previous_id=given.correlation_id,
        last_ended=Ending(
            correlation_id=given.correlation_id,
            outcome=LeaseOutcome.RELINQUISHED,
            ended_ns=given.ended_ns,
            watermark_ns=None,
            watermark_time=None,
            messages=0,
            chain_head=None,
        ),
        floor_set_by=ground.floor_set_by,
        ended_request=given.request_id,
        before_last=(),
    )


def expanded(kept: State | Plain) -> State:
    """Return the state that a plain one stands for; any other is what it is."""
    if type(kept) is Given:
        return Free(memory=memory_of(kept))
    if type(kept) is not Had:
        return kept  # type: ignore[return-value]
    before = kept.before
    memory = memory_of(before) if type(before) is Given else before
    assert isinstance(memory, Memory)
    fence = kept.fence
    lease = Lease(
        mode=Mode.X,
        phase=Phase.HELD,
        holder=kept.holder,
        correlation_id=kept.correlation_id,
        fence=fence,
        granted_ns=kept.granted_ns,
        expiry_ns=kept.expiry_ns,
        floor_ns=memory.floor_ns,
        settle_to_ns=memory.settle_to_ns,
        lowest_ns=memory.floor_ns,
        age=kept.age,
        granted_by=kept.request_id,
        answered=kept.request_id,
        previous_id=memory.previous_id,
    )
    after = Memory(
        fence=fence,
        floor_ns=memory.floor_ns,
        settle_to_ns=memory.settle_to_ns,
        previous_id=kept.correlation_id,
        last_ended=memory.last_ended,
        floor_set_by=memory.floor_set_by,
        ended_request=memory.ended_request,
        hints=memory.hints,
    )
    return Taken(memory=after, leases=(lease,))
