"""One domain as a shard knows it: its state, the commands on it, and the decisions that follow. Values only.

``decisions.decide`` is the function over them. At the end: how hints grow with what holders say, and who is told.
Of the messages under a lease that ended without its holder's word nothing is known but that none is above the floor.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Final

import msgspec

from timeagent.canonical import U64, Bytes16, Bytes32, Record
from timeagent.units import Instant, Span, TimeInterval

from ..formats.hints import NOTHING_WRITTEN, PLACES_MAX, Hints, capped, joined, nothing_known
from ..formats.lease import Ending, Holder, LeaseOutcome, Mode, Phase
from ..formats.witness import Ended, SessionEnded, Witness, others_digest
from .wire import Acquire, Age, Denied, Over, Refused, Relinquish, Renew, Revoke, Unavailable, Upgrade


class Memory(Record, frozen=True):
    """What a shard remembers of a domain beyond the leases on it."""

    fence: U64
    floor_ns: U64
    settle_to_ns: U64
    hints: Hints
    """About all messages that were written under leases that have ended, also before the domain was remembered."""
    previous_id: Bytes16 | None = None
    """The last grant."""
    last_ended: Ending | None = None
    floor_set_by: Ending | None = None
    """The lease whose ending set the floor; None where the shard floor did."""
    ended_request: Bytes16 | None = None
    """The request that got the last lease that ended: a late duplicate of it gets nothing."""
    before_last: tuple[Ended, ...] | None = None
    """What ended since the last grant, in order and without the last; None where nothing did."""


class Past(Record, frozen=True):
    """What a witness says of the leases that ended before it."""

    last_ended: Ending | None
    floor_set_by: Ending | None
    others: U64
    others_digest: Bytes32 | None


class LeaseRecord(Record, frozen=True):
    """A lease that is out. Floor, settle_to and past are as its grant or last upgrade stated them."""

    mode: Mode
    phase: Phase
    holder: Holder
    correlation_id: Bytes16
    fence: U64
    granted_ns: U64
    expiry_ns: U64
    """The latest that any witness of this lease states."""
    floor_ns: U64
    settle_to_ns: U64
    lowest_ns: U64
    """The floor of its first witness: what was written under an earlier one lies above this."""
    age: Age
    granted_by: Bytes16
    """The request that it was granted to."""
    answered: Bytes16
    """The newest request that got a witness of it."""
    previous_id: Bytes16 | None = None
    """The grant before."""
    past: Past | None = None
    """None: as the domain's memory has it, which has not changed since."""
    hints: Hints = NOTHING_WRITTEN
    """What its holder said where it wrote."""
    session_id: Bytes16 | None = None
    """The session lease that it is under: then the expiry is that one's, as it was when this was written."""


class Free(Record, frozen=True, tag="free"):
    """Nobody has the domain."""

    memory: Memory
    leases: ClassVar[tuple[LeaseRecord, ...]] = ()


class Taken(Record, frozen=True, tag="taken"):
    """At least one lease is out; in order of their grants, no two in modes that conflict.

    A tentative one is not to be written under, and an older request breaks it at once. A held one is its holder's until
    it is relinquished, or surely past its expiry and in somebody's way.
    """

    memory: Memory
    leases: tuple[LeaseRecord, ...]


type State = Free | Taken


_encode: Final = msgspec.msgpack.Encoder().encode


class DomainDefaults(msgspec.Struct, frozen=True, gc=False):
    """What stays of a domain's memory while nothing is written under its leases: shared by all its plain states."""

    memory: Memory
    """Of it floor, settle_to, hints and who set the floor."""
    numbers: bytes
    """Floor and settle_to as they are encoded, one behind the other."""
    setter: bytes
    """Who set the floor, encoded."""


def defaults_of(memory: Memory) -> DomainDefaults:
    """Return what stays of a memory."""
    numbers = _encode(memory.floor_ns) + _encode(memory.settle_to_ns)
    return DomainDefaults(memory, numbers, _encode(memory.floor_set_by))


class FreedDomain(msgspec.Struct, frozen=True, gc=False):
    """Plain: a free domain whose last lease was plain, and was given back without a word about messages."""

    defaults: DomainDefaults
    correlation_id: bytes
    ended_ns: Instant
    request_id: bytes
    """What that lease was granted to."""


class ExclusiveLease(msgspec.Struct, frozen=True, gc=False):
    """Plain: one lease in mode X, held, under no session lease, of which nothing has been asked since its grant."""

    defaults: DomainDefaults
    before: FreedDomain | Memory
    """The domain without it; nothing is left in it of what ended before the last grant but the last of that."""
    holder: Holder
    correlation_id: bytes
    """It begins with the fence, which is the domain's too."""
    granted_ns: Instant
    expiry_ns: Instant
    age: Age
    request_id: bytes


type Kept = State | FreedDomain | ExclusiveLease
"""A state as it is remembered: most leases never have another state than the plain ones."""


def unwritten(correlation_id: bytes, outcome: LeaseOutcome, ended_ns: Instant) -> Ending:
    """Return the end of a lease of which nobody says that anything was written under it."""
    return Ending(
        correlation_id=correlation_id,
        outcome=outcome,
        ended_ns=ended_ns,
        watermark_ns=None,
        watermark_time=None,
        messages=0,
        chain_head=None,
    )


def memory_of(freed: FreedDomain) -> Memory:
    """Return what is remembered of a free domain that was left plainly."""
    defaults = freed.defaults.memory
    return Memory(
        fence=int.from_bytes(freed.correlation_id[:8], "big"),
        floor_ns=defaults.floor_ns,
        settle_to_ns=defaults.settle_to_ns,
        hints=defaults.hints,
        previous_id=freed.correlation_id,
        last_ended=unwritten(freed.correlation_id, LeaseOutcome.RELINQUISHED, freed.ended_ns),
        floor_set_by=defaults.floor_set_by,
        ended_request=freed.request_id,
        before_last=(),
    )


def lone_lease(
    plain: ExclusiveLease,
    mode: Mode = Mode.X,
    phase: Phase = Phase.HELD,
    answered: bytes | None = None,
    session_id: bytes | None = None,
) -> Taken:
    """Return the state of a domain with one lease that differs from a plain one in these only."""
    before = plain.before
    memory = memory_of(before) if isinstance(before, FreedDomain) else before
    fence = int.from_bytes(plain.correlation_id[:8], "big")
    lease = LeaseRecord(
        mode=mode,
        phase=phase,
        holder=plain.holder,
        correlation_id=plain.correlation_id,
        fence=fence,
        granted_ns=plain.granted_ns,
        expiry_ns=plain.expiry_ns,
        floor_ns=memory.floor_ns,
        settle_to_ns=memory.settle_to_ns,
        lowest_ns=memory.floor_ns,
        age=plain.age,
        granted_by=plain.request_id,
        answered=answered or plain.request_id,
        previous_id=memory.previous_id,
        session_id=session_id,
    )
    return Taken(memory=memory_under(memory, lease), leases=(lease,))


def memory_under(memory: Memory, lease: LeaseRecord) -> Memory:
    """Return a domain's memory once a lease is granted: nothing has ended since."""
    return Memory(
        fence=lease.fence,
        floor_ns=memory.floor_ns,
        settle_to_ns=memory.settle_to_ns,
        previous_id=lease.correlation_id,
        last_ended=memory.last_ended,
        floor_set_by=memory.floor_set_by,
        ended_request=memory.ended_request,
        hints=memory.hints,
    )


def past_of(memory: Memory) -> Past:
    """Return what a witness says of the leases that ended before it."""
    last, setter = memory.last_ended, memory.floor_set_by
    if setter is not None and last is not None and setter.correlation_id == last.correlation_id:
        setter = None
    if not memory.before_last:
        return Past(last_ended=last, floor_set_by=setter, others=0, others_digest=None)
    named = None if setter is None else setter.correlation_id
    rest = [each for each in memory.before_last if each.ending.correlation_id != named]
    return Past(last_ended=last, floor_set_by=setter, others=len(rest), others_digest=others_digest(rest))


def expanded(kept: Kept) -> State:
    """Return the state that a plain one stands for; any other is what it is."""
    if isinstance(kept, FreedDomain):
        return Free(memory=memory_of(kept))
    return lone_lease(kept) if isinstance(kept, ExclusiveLease) else kept


class SessionRecord(Record, frozen=True):
    """A session lease as its shard knows it."""

    session_id: Bytes16
    holder: Holder
    granted_ns: U64
    expiry_ns: U64
    """The latest that any witness of it states."""
    begun_by: Bytes16
    """The request that it was granted to."""
    answered: Bytes16
    """The newest request that got a witness of it."""
    leases: U64 = 0
    """How many leases are under it; of one that is over: how many of them have not been met since."""
    ended: tuple[Bytes16, ...] = ()
    """The leases that were ended alone."""
    over: SessionEnded | None = None

    @property
    def brings(self) -> tuple[Instant, Instant]:
        """Floor and settle_to that its end brings to the domain of each lease that was out under it."""
        if self.over is None:
            return 0, 0
        if self.over.outcome is LeaseOutcome.DROPPED:
            return self.over.watermark_ns or 0, 0
        return self.over.expiry_ns, self.over.expiry_ns


def hint_bytes(state: State) -> int:
    """Return about how much of a state are hints."""
    hints = state.memory.hints
    size = hints.bytes if hints.places or hints.bounds else 0
    return size + sum(each.hints.bytes for each in state.leases if each.hints is not NOTHING_WRITTEN)


HOLDERS_MAX: Final = 1024
"""How many leases may be out on one domain: all of them are read and written with each change of one."""


class Break(msgspec.Struct, frozen=True, gc=False):
    """End the leases that are surely past; tentative ones also if the shard is stopping, or their holder ``gone``."""

    stopping: bool = False
    gone: Holder | None = None


class Ahead(msgspec.Struct, frozen=True, gc=False):
    """Who waits for a domain already: who asks later is behind them."""

    ages: Iterable[Age]
    """Of all of them: looked at once at most."""
    holder: Holder
    """Who is the first of them, and since when."""
    since_ns: Instant
    until_ns: Instant


class Grant(msgspec.Struct, frozen=True, gc=False):
    """An Acquire with the 8 random bytes for its correlation id."""

    request: Acquire
    chance: bytes
    ahead: Ahead | None = None
    expiry_ns: Instant | None = None
    """Under a session lease: that one's."""


type Command = Grant | Upgrade | Renew | Relinquish | Revoke | Break


class Bounds(msgspec.Struct, frozen=True, gc=False):
    """What a decision depends on beside state and command. One value per turn."""

    now: TimeInterval
    term_ns_max: Span
    ceiling_ns: Instant
    """Nothing expires, and no fence lies, above it."""
    signed_ns_max: Instant
    """The latest expiry that readers accept with the signed time of this turn's batch."""
    shard_floor_ns: Instant
    r1_tolerance_ns: Span
    hint_bytes_left: int
    """How much more may be remembered of where messages are."""

    def expiry(self, term_ns: Span, expiry_ns_max: Instant) -> Instant:
        """Return the expiry that may be granted for what is asked, surely to come or not."""
        term = min(term_ns, self.term_ns_max)
        return min(self.now.midpoint + term, expiry_ns_max, self.ceiling_ns, self.signed_ns_max)


class Again(msgspec.Struct, frozen=True, gc=False):
    """The same answer as the first time: what the newest witness of the lease says, to be signed once more.

    Witnesses are not stored: few answers are lost, and two thirds of a lease's memory was its witness.
    """

    witness: Witness


class Nothing(msgspec.Struct, frozen=True, gc=False):
    """A command of the shard itself has no answer."""


type Answer = Witness | Again | Denied | Over | Refused | Unavailable | Nothing


class Decision(msgspec.Struct, frozen=True, gc=False):
    """What comes of one command."""

    state: State
    answer: Answer
    ended: tuple[Ended, ...] = ()


HINT_BYTES_MAX: Final = 64 * 1024 * 1024
"""How much a shard remembers of where messages are: more than that is forgotten as it comes in."""


def remembering(state: State, hints: Hints | None, bounds: Bounds) -> State:
    """Add what is known about the messages of a lease that has ended: none of them is above the floor by now.

    None: nothing else is known about them.
    """
    if hints == NOTHING_WRITTEN:
        return state
    memory = state.memory
    about = nothing_known(memory.floor_ns) if hints is None else capped(hints, memory.floor_ns)
    about = joined(memory.hints, about, bytes_max=memory.hints.bytes + bounds.hint_bytes_left)
    return msgspec.structs.replace(state, memory=msgspec.structs.replace(memory, hints=about))


def said(state: Taken, lease: LeaseRecord, hints: Hints | None, bounds: Bounds) -> Hints:
    """Return what the holder has said about what it wrote. All leases of a domain share one number of places."""
    if hints is None:
        return lease.hints
    others = sum(len(each.hints.places) for each in state.leases if each is not lease)
    most = max(0, PLACES_MAX - others)
    return joined(lease.hints, hints, places_max=most, bytes_max=lease.hints.bytes + bounds.hint_bytes_left)


def hints_for(command: Command, state: State, correlation_id: bytes) -> Hints | None:
    """Return what a grant says about the messages of others: all of them have ended where nobody else may write."""
    request = command.request if isinstance(command, Grant) else command
    if not (isinstance(request, (Acquire, Upgrade)) and request.hints_wanted and isinstance(state, Taken)):
        return None
    mode = next((each.mode for each in state.leases if each.correlation_id == correlation_id), Mode.IS)
    return state.memory.hints if mode.reads_all else None
