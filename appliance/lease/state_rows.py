"""A domain's state as a row of a shard's database, and back: what is ordinary takes some forty bytes."""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from timeagent.units import Instant

from ..formats.hints import nothing_known
from ..formats.lease import Holder, Mode, Phase
from .domain import (
    ExclusiveLease,
    Free,
    FreedDomain,
    Kept,
    Memory,
    State,
    Taken,
    defaults_of,
    expanded,
    lone_lease,
)
from .wire import Age

FREE, TENTATIVE, HELD = range(3)
NEVER: Final = 2**63 - 1
HOLDERS_MAX: Final = 65_536
"""How many holders have a number; leases of others are written whole."""

_FREED: Final = struct.Struct(">B8sQ16s")
_LONE: Final = struct.Struct(">BH8sQQ16s")
_UNDER_SESSION: Final = struct.Struct(">16sQ")
_MODES: Final = tuple(Mode)
_MODE_BITS, _IS_HELD, _HAS_ANSWERED, _IN_SESSION, _HAS_BEFORE = 0x07, 0x08, 0x10, 0x20, 0x40
_IS_FREED: Final = _MODE_BITS
_SHORT_MAX: Final = 0x7F
"""What is written whole begins with an array's head, which is above."""

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Free | Taken)


class StateRows:
    """Writes states as rows and reads them, for one incarnation of a shard.

    Most domains have the shard's own floor and settle_to, and one lease, with nothing before it but one that was given
    back plainly. Of these only what is their own is written, some forty bytes, and whoever has them is named by a
    number. All else is written as it is.
    """

    def __init__(self) -> None:
        """Know of no holders; a domain of which nothing is known has zeros for floor and settle_to."""
        self._numbers: dict[Holder, int] = {}
        self.holders: list[Holder] = []
        """Those who have a number, by it."""
        self.named = 0
        """How many of them the file knows."""
        self.begin(0, 0)

    def begin(self, floor_ns: Instant, settle_to_ns: Instant) -> None:
        """Say what a domain has of which nothing is known: rows with the same leave it out. While there are none."""
        hints = nothing_known(floor_ns)
        self._unknown = Memory(fence=0, floor_ns=floor_ns, settle_to_ns=settle_to_ns, hints=hints)
        self.defaults = defaults_of(self._unknown)

    def row(self, kept: Kept) -> tuple[int, Instant, Instant | None, int, Instant | None, Instant | None, bytes]:
        """Return a state's columns, but for the domain."""
        if isinstance(kept, FreedDomain):
            if kept.defaults is self.defaults or kept.defaults == self.defaults:
                return FREE, 0, 0, int.from_bytes(kept.correlation_id[:8], "big"), None, None, _freed(kept)
        elif isinstance(kept, ExclusiveLease) and (short := self._plain(kept)) is not None:
            fence = int.from_bytes(kept.correlation_id[:8], "big")
            return HELD, kept.expiry_ns, None, fence, None, None, short
        state = expanded(kept)
        memory, known = state.memory, self.defaults.memory
        floor = None if memory.floor_ns == known.floor_ns else memory.floor_ns
        settle_to = None if memory.settle_to_ns == known.settle_to_ns else memory.settle_to_ns
        raw = self._short(state) or _encoder.encode(state)
        if isinstance(state, Free):
            return FREE, 0, 0, memory.fence, floor, settle_to, raw
        kind = HELD if all(each.phase is Phase.HELD for each in state.leases) else TENTATIVE
        own = [each.expiry_ns for each in state.leases if each.session_id is None]
        expiry, latest = (min(own), max(own)) if own else (NEVER, 0)
        return kind, expiry, None if latest == expiry else latest, memory.fence, floor, settle_to, raw

    def _short(self, state: State) -> bytes | None:
        """Return a state in short; None: it says more than that."""
        freed = self._freed_before(state.memory)
        if isinstance(state, Free):
            return _freed(freed) if freed is not None and expanded(freed) == state else None
        lease = state.leases[0]
        plain = ExclusiveLease(
            self.defaults,
            freed or self._unknown,
            lease.holder,
            lease.correlation_id,
            lease.granted_ns,
            lease.expiry_ns,
            lease.age,
            lease.granted_by,
        )
        if lone_lease(plain, lease.mode, lease.phase, lease.answered, lease.session_id) != state:
            return None
        bits, more = _MODES.index(lease.mode) | (_IS_HELD if lease.phase is Phase.HELD else 0), b""
        if lease.answered != lease.granted_by:
            bits, more = bits | _HAS_ANSWERED, lease.answered
        if lease.session_id is not None:
            bits, more = bits | _IN_SESSION, more + _UNDER_SESSION.pack(lease.session_id, lease.expiry_ns)
        return self._plain(plain, bits, more)

    def _plain(
        self, plain: ExclusiveLease, bits: int = _MODES.index(Mode.X) | _IS_HELD, more: bytes = b""
    ) -> bytes | None:
        """Return a lone lease in short; None: it says more than that, or its holder has no number."""
        before = plain.before
        if (
            plain.age.request_id != plain.request_id
            or plain.defaults != self.defaults
            or (number := self._number(plain.holder)) is None
        ):
            return None
        if isinstance(before, FreedDomain):
            bits, more = bits | _HAS_BEFORE, more + _freed(before) + before.correlation_id[:8]
        elif before != self._unknown:
            return None
        name = plain.correlation_id[8:]
        return _LONE.pack(bits, number, name, plain.granted_ns, plain.age.first_try_ns, plain.request_id) + more

    def _freed_before(self, memory: Memory) -> FreedDomain | None:
        """Return how the last lease was given back, if the domain has had one."""
        last, request_id = memory.last_ended, memory.ended_request
        if last is None or request_id is None:
            return None
        return FreedDomain(self.defaults, last.correlation_id, last.ended_ns, request_id)

    def state(self, raw: bytes, expiry_ns: Instant, fence: int) -> Kept:
        """Return the state of a row, from three of its columns."""
        bits, stamp = raw[0], fence.to_bytes(8, "big")
        if bits > _SHORT_MAX:
            whole: State = _decoder.decode(raw)
            return whole
        if bits == _IS_FREED:
            return self._read_freed(raw, stamp)
        _, number, name, granted, first_try, request_id = _LONE.unpack_from(raw)
        at, answered, session_id = _LONE.size, None, None
        if bits & _HAS_ANSWERED:
            answered, at = raw[at : at + 16], at + 16
        if bits & _IN_SESSION:
            session_id, expiry_ns = _UNDER_SESSION.unpack_from(raw, at)
            at += _UNDER_SESSION.size
        plain = ExclusiveLease(
            self.defaults,
            self._read_freed(raw[at : at + _FREED.size], raw[-8:]) if bits & _HAS_BEFORE else self._unknown,
            self.holders[number],
            stamp + name,
            granted,
            expiry_ns,
            Age(first_try_ns=first_try, request_id=request_id),
            request_id,
        )
        mode, phase = _MODES[bits & _MODE_BITS], Phase.HELD if bits & _IS_HELD else Phase.TENTATIVE
        if mode is Mode.X and phase is Phase.HELD and answered is None and session_id is None:
            return plain
        return lone_lease(plain, mode, phase, answered, session_id)

    def _read_freed(self, raw: bytes, stamp: bytes) -> FreedDomain:
        _, name, ended, request_id = _FREED.unpack(raw)
        return FreedDomain(self.defaults, stamp + name, ended, request_id)

    def _number(self, holder: Holder) -> int | None:
        """Return a holder's number; None: there is none left."""
        number = self._numbers.get(holder)
        if number is None and len(self.holders) < HOLDERS_MAX:
            number = self.name(holder)
        return number

    def name(self, holder: Holder) -> int:
        """Give the next number to a holder that has none."""
        number = self._numbers[holder] = len(self.holders)
        self.holders.append(holder)
        return number


def _freed(freed: FreedDomain) -> bytes:
    return _FREED.pack(_IS_FREED, freed.correlation_id[8:], freed.ended_ns, freed.request_id)
