"""The rows of the store: states of domains, encoded whole or in short, and session leases.

Most leases are the first that a shard knows of their domain: one lease, and nothing before it but the shard's own
numbers. Of those only what is their own is written, forty bytes and some, and whoever has them is named by a number.
All else is written as it is. Both are read as the same state: tests/property/test_lease_rows.py.

Most leases never have another state than the plain ones, which are kept as what differs from the one before. Plain is
a lease in mode X, held, under no session lease, alone on its domain, of which nothing has been asked since its grant;
and a domain whose last lease was given back by a holder that wrote nothing. ``expanded`` says which ``State`` each of
them is. They are made by ``fast_path`` and by the rows, and are values like the states they stand for.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import msgspec

from timeagent.canonical import encode

from ..formats.hints import NOTHING_WRITTEN, nothing_known
from ..formats.lease import Ending, Holder, LeaseOutcome, Mode, Phase
from .domain import Free, LeaseRecord, Memory, State, Taken
from .session_state import SessionRecord
from .wire import Age

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from timeagent.units import Instant


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
    setter = b"\xc0" if memory.floor_set_by is None else encode(memory.floor_set_by)
    return DomainDefaults(memory, _encoder.encode(memory.floor_ns) + _encoder.encode(memory.settle_to_ns), setter)


class FreedDomain(msgspec.Struct, frozen=True, gc=False):
    """A free domain whose last lease was plain, and was given back without a word about messages."""

    defaults: DomainDefaults
    correlation_id: bytes
    ended_ns: Instant
    request_id: bytes
    """What that lease was granted to."""


class ExclusiveLease(msgspec.Struct, frozen=True, gc=False):
    """A domain with one lease, which is plain."""

    defaults: DomainDefaults
    before: FreedDomain | Memory
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


type Plain = FreedDomain | ExclusiveLease


def memory_of(given: FreedDomain) -> Memory:
    """Return what is remembered of a free domain that was left plainly."""
    defaults = given.defaults.memory
    return Memory(
        fence=int.from_bytes(given.correlation_id[:8], "big"),
        floor_ns=defaults.floor_ns,
        settle_to_ns=defaults.settle_to_ns,
        hints=defaults.hints,
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
        floor_set_by=defaults.floor_set_by,
        ended_request=given.request_id,
        before_last=(),
    )


def expanded(kept: State | Plain) -> State:
    """Return the state that a plain one stands for; any other is what it is."""
    if type(kept) is FreedDomain:
        return Free(memory=memory_of(kept))
    if type(kept) is not ExclusiveLease:
        return kept  # type: ignore[return-value]
    before = kept.before
    memory = memory_of(before) if type(before) is FreedDomain else before
    assert isinstance(memory, Memory)
    fence = kept.fence
    lease = LeaseRecord(
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


type Row = tuple[int, Instant, Instant | None, int, Instant | None, Instant | None, bytes]
"""kind, expiry_ns, latest_ns, fence, floor_ns, settle_ns, state (schema.sql)."""

FREE, TENTATIVE, HELD = range(3)
NEVER: Final = 2**63 - 1
HOLDERS_MAX: Final = 65_536
"""How many holders have a number; leases of others are written whole."""

_SHORT: Final = struct.Struct(">BH8sQ16s")
_UNDER_SESSION: Final = struct.Struct(">16sQ")
_MODES: Final = tuple(Mode)
_MODE_BITS, _IS_HELD, _HAS_ANSWERED, _IN_SESSION = 0x07, 0x08, 0x10, 0x20
_PLAIN: Final = _IS_HELD | _MODES.index(Mode.X)
"""The bits of a lease that is plain."""
_SHORT_MAX: Final = 0x3F
"""What is written whole begins with an array's head, which is above."""
_GIVEN: Final = struct.Struct(">B8sQ16s")
_HAD: Final = struct.Struct(">BH8sQQ16s16sQ16s")
_IS_GIVEN, _IS_HAD = 0x40, 0x41

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Free | Taken)


class StateRows:
    """Writes states as rows and reads them, for one incarnation of a shard."""

    def __init__(self) -> None:
        """Know of no holders; a domain of which nothing is known has zeros for floor and settle_to."""
        self._numbers: dict[Holder, int] = {}
        self._holders: list[Holder] = []
        self.begin(0, 0)

    def begin(self, floor_ns: Instant, settle_to_ns: Instant) -> None:
        """Say what a domain has of which nothing is known: rows with the same leave it out. While there are none."""
        self.floor_ns, self.settle_to_ns = floor_ns, settle_to_ns
        self._hints = nothing_known(floor_ns)
        self._unknown = Memory(fence=0, floor_ns=floor_ns, settle_to_ns=settle_to_ns, hints=self._hints)
        self._defaults = defaults_of(self._unknown)

    def row(self, kept: State | Plain) -> Row:
        """Return a state's columns."""
        if type(kept) is FreedDomain and self._is_ours(kept.defaults):
            name, fence = kept.correlation_id, int.from_bytes(kept.correlation_id[:8], "big")
            raw = _GIVEN.pack(_IS_GIVEN, name[8:], kept.ended_ns, kept.request_id)
            return FREE, 0, 0, fence, None, None, raw
        if type(kept) is ExclusiveLease and (had := self._had(kept)) is not None:
            return HELD, kept.expiry_ns, None, kept.fence, None, None, had
        state = expanded(kept)
        memory = state.memory
        floor = None if memory.floor_ns == self.floor_ns else memory.floor_ns
        settle_to = None if memory.settle_to_ns == self.settle_to_ns else memory.settle_to_ns
        if isinstance(state, Free):
            return FREE, 0, 0, memory.fence, floor, settle_to, _encoder.encode(state)
        leases = state.leases
        kind = HELD if all(each.phase is Phase.HELD for each in leases) else TENTATIVE
        own = [each.expiry_ns for each in leases if each.session_id is None]
        expiry, latest = (min(own), max(own)) if own else (NEVER, 0)
        short = None if len(leases) > 1 or memory.last_ended is not None else self._short(memory, leases[0])
        raw = _encoder.encode(state) if short is None else short
        return kind, expiry, None if latest == expiry else latest, memory.fence, floor, settle_to, raw

    def state(self, raw: bytes, expiry_ns: Instant, fence: int) -> State | Plain:
        """Return the state of a row, from three of its columns."""
        kind = raw[0]
        if kind == _IS_GIVEN:
            _, chance, ended, request_id = _GIVEN.unpack(raw)
            return FreedDomain(self._defaults, fence.to_bytes(8, "big") + chance, ended, request_id)
        if kind == _IS_HAD:
            _, number, chance, granted, first_try, request_id, name, ended, got = _HAD.unpack(raw)
            before: FreedDomain | Memory = FreedDomain(self._defaults, name, ended, got)
        elif kind == _PLAIN:
            _, number, chance, first_try, request_id = _SHORT.unpack(raw)
            granted, before = fence - 1, self._unknown
        else:
            return _decoder.decode(raw) if kind > _SHORT_MAX else self._long(raw, expiry_ns, fence)
        name = fence.to_bytes(8, "big") + chance
        age = Age(first_try_ns=first_try, request_id=request_id)
        return ExclusiveLease(self._defaults, before, self._holders[number], name, granted, expiry_ns, age, request_id)

    def _is_ours(self, defaults: DomainDefaults) -> bool:
        """Whether it is that of a domain of which nothing is known."""
        memory, ours = defaults.memory, self._defaults
        return defaults is ours or (defaults.numbers, defaults.setter, memory.hints) == (
            ours.numbers,
            ours.setter,
            self._hints,
        )

    def _had(self, had: ExclusiveLease) -> bytes | None:
        """Return a plain lease behind another in short; None: it says more than that, or is the first of its domain."""
        before = had.before
        if had.age.request_id != had.request_id or type(before) is not FreedDomain or not self._is_ours(had.defaults):
            return None
        number = self._number(had.holder)
        if number is None:
            return None
        return _HAD.pack(
            _IS_HAD,
            number,
            had.correlation_id[8:],
            had.granted_ns,
            had.age.first_try_ns,
            had.request_id,
            before.correlation_id,
            before.ended_ns,
            before.request_id,
        )

    def _short(self, memory: Memory, lease: LeaseRecord) -> bytes | None:
        """Return an ordinary state in short; None: it says more than that."""
        fence, first = lease.fence, lease.correlation_id
        numbers = self.floor_ns, self.settle_to_ns
        if (
            memory.fence != fence
            or first[:8] != fence.to_bytes(8, "big")
            or (memory.floor_ns, memory.settle_to_ns) != numbers
            or (lease.floor_ns, lease.settle_to_ns) != numbers
            or lease.lowest_ns != lease.floor_ns
            or lease.granted_ns != fence - 1
            or lease.granted_by != lease.age.request_id
            or memory.previous_id != first
            or memory.hints != self._hints
            or lease.hints != NOTHING_WRITTEN
        ):
            return None
        there = (memory.ended_request, memory.floor_set_by, memory.before_last, lease.previous_id, lease.past)
        if any(each is not None for each in there):
            return None
        number = self._number(lease.holder)
        if number is None:
            return None
        bits = _MODES.index(lease.mode)
        if lease.phase is Phase.HELD:
            bits |= _IS_HELD
        more = b""
        if lease.answered != lease.granted_by:
            bits |= _HAS_ANSWERED
            more = lease.answered
        if lease.session_id is not None:
            bits |= _IN_SESSION
            more += _UNDER_SESSION.pack(lease.session_id, lease.expiry_ns)
        return _SHORT.pack(bits, number, first[8:], lease.age.first_try_ns, lease.granted_by) + more

    def _long(self, raw: bytes, expiry_ns: Instant, fence: int) -> Taken:
        bits, number, chance, first_try, request_id = _SHORT.unpack_from(raw)
        at = _SHORT.size
        answered, session_id = request_id, None
        if bits & _HAS_ANSWERED:
            answered = raw[at : at + 16]
            at += 16
        if bits & _IN_SESSION:
            session_id, expiry_ns = _UNDER_SESSION.unpack_from(raw, at)
        correlation_id = fence.to_bytes(8, "big") + chance
        lease = LeaseRecord(
            mode=_MODES[bits & _MODE_BITS],
            phase=Phase.HELD if bits & _IS_HELD else Phase.TENTATIVE,
            holder=self._holders[number],
            correlation_id=correlation_id,
            fence=fence,
            granted_ns=fence - 1,
            expiry_ns=expiry_ns,
            floor_ns=self.floor_ns,
            settle_to_ns=self.settle_to_ns,
            lowest_ns=self.floor_ns,
            age=Age(first_try_ns=first_try, request_id=request_id),
            granted_by=request_id,
            answered=answered,
            session_id=session_id,
        )
        memory = Memory(
            fence=fence,
            floor_ns=self.floor_ns,
            settle_to_ns=self.settle_to_ns,
            hints=self._hints,
            previous_id=correlation_id,
        )
        return Taken(memory=memory, leases=(lease,))

    def _number(self, holder: Holder) -> int | None:
        """Return a holder's number; None: there is none left."""
        number = self._numbers.get(holder)
        if number is None and len(self._holders) < HOLDERS_MAX:
            number = self._numbers[holder] = len(self._holders)
            self._holders.append(holder)
        return number


_PUT_SESSION: Final = "INSERT OR REPLACE INTO session VALUES (?, ?, ?, ?, ?, ?, ?, ?)"

_session_decoder: Final = msgspec.msgpack.Decoder(SessionRecord)


class SessionRows:
    """The table ``session`` of schema.sql. Whoever writes here sees to the transaction."""

    def __init__(self, execute: Callable[..., Any]) -> None:
        """Take the connection's ``execute``."""
        self._execute = execute

    def find(self, session_id: bytes) -> SessionRecord | None:
        """Return a session lease."""
        row = self._execute("SELECT state FROM session WHERE session_id = ?", (session_id,)).fetchone()
        return _session_decoder.decode(row[0]) if row else None

    def begun_by(self, request_id: bytes) -> SessionRecord | None:
        """Return the session lease that a request got."""
        row = self._execute("SELECT state FROM session WHERE request_id = ?", (request_id,)).fetchone()
        return _session_decoder.decode(row[0]) if row else None

    def put(self, session: SessionRecord) -> bool:
        """Write a session lease as it is; False: it is over, without leases, and is forgotten."""
        if session.over is not None and not session.leases:
            self._execute("DELETE FROM session WHERE session_id = ?", (session.session_id,))
            return False
        numbers = session.expiry_ns, session.leases, session.over is not None, *session.brings
        self._execute(_PUT_SESSION, (session.session_id, session.begun_by, *numbers, _encoder.encode(session)))
        return True

    def past(self, instant: Instant, limit: int) -> list[bytes]:
        """Return session leases that expire before an instant and are not over, the longest past first."""
        question = "SELECT session_id FROM session WHERE NOT over AND expiry_ns < ? ORDER BY expiry_ns LIMIT ?"
        return [row[0] for row in self._execute(question, (instant, limit))]

    def latest_expiry(self) -> Instant:
        """Return the latest expiry of those under which leases are out; 0 where there are none."""
        question = "SELECT coalesce(max(expiry_ns), 0) FROM session WHERE leases > 0 AND NOT over"
        latest: Instant = self._execute(question).fetchone()[0]
        return latest
