"""How a domain's state stands in one row of the store: whole, or short where it is as most are.

Most leases are the first that a shard knows of their domain: one lease, and nothing before it but the shard's own
numbers. Of those only what is their own is written, forty bytes and some, and whoever has them is named by a number.
All else is written as it is. Both are read as the same state: tests/property/test_lease_rows.py.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import msgspec

from ..formats.hints import NOTHING_WRITTEN, nothing_known
from ..formats.lease import Mode, Phase
from .domain import Free, Lease, Memory, State, Taken
from .plain import Given, Had, expanded, ground_of
from .wire import Age

if TYPE_CHECKING:
    from timeagent.units import Instant

    from ..formats.lease import Holder
    from .plain import Ground, Plain

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
"""The bits of a lease that is plain (plain.py)."""
_SHORT_MAX: Final = 0x3F
"""What is written whole begins with an array's head, which is above."""
_GIVEN: Final = struct.Struct(">B8sQ16s")
_HAD: Final = struct.Struct(">BH8sQQ16s16sQ16s")
_IS_GIVEN, _IS_HAD = 0x40, 0x41

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Free | Taken)


class Rows:
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
        self._ground = ground_of(self._unknown)

    def row(self, kept: State | Plain) -> Row:
        """Return a state's columns."""
        if type(kept) is Given and self._is_ours(kept.ground):
            name, fence = kept.correlation_id, int.from_bytes(kept.correlation_id[:8], "big")
            raw = _GIVEN.pack(_IS_GIVEN, name[8:], kept.ended_ns, kept.request_id)
            return FREE, 0, 0, fence, None, None, raw
        if type(kept) is Had and (had := self._had(kept)) is not None:
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
            return Given(self._ground, fence.to_bytes(8, "big") + chance, ended, request_id)
        if kind == _IS_HAD:
            _, number, chance, granted, first_try, request_id, name, ended, got = _HAD.unpack(raw)
            before: Given | Memory = Given(self._ground, name, ended, got)
        elif kind == _PLAIN:
            _, number, chance, first_try, request_id = _SHORT.unpack(raw)
            granted, before = fence - 1, self._unknown
        else:
            return _decoder.decode(raw) if kind > _SHORT_MAX else self._long(raw, expiry_ns, fence)
        name = fence.to_bytes(8, "big") + chance
        age = Age(first_try_ns=first_try, request_id=request_id)
        return Had(self._ground, before, self._holders[number], name, granted, expiry_ns, age, request_id)

    def _is_ours(self, ground: Ground) -> bool:
        """Whether it is that of a domain of which nothing is known."""
        memory, ours = ground.memory, self._ground
        return ground is ours or (ground.numbers, ground.setter, memory.hints) == (
            ours.numbers,
            ours.setter,
            self._hints,
        )

    def _had(self, had: Had) -> bytes | None:
        """Return a plain lease behind another in short; None: it says more than that, or is the first of its domain."""
        before = had.before
        if had.age.request_id != had.request_id or type(before) is not Given or not self._is_ours(had.ground):
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

    def _short(self, memory: Memory, lease: Lease) -> bytes | None:
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
        lease = Lease(
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
