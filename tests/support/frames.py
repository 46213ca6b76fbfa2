"""Frames as a broken or hostile client sends them, and a judge of what a shard grants meanwhile."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from appliance.formats.framing import pieces
from appliance.formats.lease import Mode, Phase
from appliance.formats.witness import Ended, Witness, WitnessKind, open_block
from appliance.lease.wire import REQUEST_FRAME_BYTES_MAX, AskClock, Attend, Hello, Inspect, Revoke, encode_call
from tests.support.shards import HOLDER, RIVAL, World, acquire, relinquish, renew, upgrade
from tests.support.values import CLUSTER
from timeagent.units import SECOND

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from appliance.lease.wire import Request

DOMAINS = 100
KEPT = 500
"""How many sent frames are kept to be replayed."""


class WrongGrant(AssertionError):
    """Two leases of one domain were out at once although one of them excludes the other."""


class JudgingLedger:
    """A LedgerSink that holds each entry against the ones before, and keeps nothing but what is out."""

    def __init__(self) -> None:
        self.out: dict[str, dict[bytes, Witness]] = {}
        self.grants = 0

    def append(self, data: bytes) -> None:
        found, rest = pieces(data)
        assert rest == ""
        for piece in found:
            for entry in open_block(piece, "the ledger").decoded("the ledger"):
                self.judge(entry)

    def judge(self, entry: object) -> None:
        if isinstance(entry, Ended):
            self.out.get(entry.domain, {}).pop(entry.ending.correlation_id, None)
        elif isinstance(entry, Witness):
            holders = self.out.setdefault(entry.domain, {})
            if entry.kind is WitnessKind.GRANT:
                self.grants += 1
                others = [each for name, each in holders.items() if name != entry.correlation_id]
                if any(Mode.X in (each.mode, entry.mode) for each in others):
                    raise WrongGrant(f"{entry.domain!r} to {entry.holder}: {others[0].holder} has it")
            holders[entry.correlation_id] = entry


class Frames:
    """Makes frames from one source of chance: good ones, the same again, and all the ways to spoil them."""

    def __init__(self, world: World, chance: random.Random, out: Callable[[], list[Witness]]) -> None:
        self._world = world
        self.chance = chance
        self._out = out
        self._sent: list[bytes] = []

    def one(self) -> bytes:
        """The next frame, or what should have been one."""
        chance = self.chance
        kind = chance.randrange(10)
        if kind < 3 or not self._sent:
            frame = encode_call(self._call())
            if len(self._sent) < KEPT:
                self._sent.append(frame)
            else:
                self._sent[chance.randrange(KEPT)] = frame
            return frame
        known = chance.choice(self._sent)
        return known if kind == 3 else self.spoiled(known)

    def spoiled(self, frame: bytes) -> bytes:
        """The frame with something wrong in it; now and then it is still a frame."""
        chance = self.chance
        data = bytearray(frame)
        match chance.randrange(9):
            case 0:
                return frame[: chance.randrange(len(frame))]
            case 1:
                for _ in range(chance.randint(1, 8)):
                    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            case 2:
                at = chance.randrange(4, len(data) + 1)
                data[at:at] = chance.randbytes(chance.randint(1, 40))
                data[:4] = struct.pack(">I", len(data) - 4)
            case 3:
                at = chance.randrange(4, len(data))
                del data[at : at + chance.randint(1, 40)]
                data[:4] = struct.pack(">I", len(data) - 4)
            case 4:
                data[:4] = struct.pack(">I", chance.choice([0, 1, REQUEST_FRAME_BYTES_MAX + 1, 2**31, 2**32 - 1]))
            case 5:
                body = chance.randbytes(chance.randrange(200))
                return struct.pack(">I", len(body)) + body
            case 6:
                other = chance.choice(self._sent)
                at = chance.randrange(4, min(len(data), len(other)))
                data[at:] = other[at:]
                data[:4] = struct.pack(">I", len(data) - 4)
            case 7:
                depth = chance.randint(1, 2000)
                body = b"\x91" * depth + b"\x90"
                return struct.pack(">I", len(body)) + body
            case _:
                body = b"\xdd" + struct.pack(">I", chance.choice([2**32 - 1, 2**20])) + bytes(data[4:])
                return struct.pack(">I", len(body)) + body
        return bytes(data)

    def _call(self) -> list[Request]:
        return [self._request() for _ in range(self.chance.choice([1, 1, 1, 2, 5]))]

    def _request(self) -> Request:
        chance, world = self.chance, self._world
        out = self._out()
        kind = chance.randrange(8)
        if kind < 3 or not out:
            return acquire(
                world,
                f"d{chance.randrange(DOMAINS)}",
                holder=chance.choice([HOLDER, RIVAL]),
                phase=chance.choice([Phase.HELD, Phase.HELD, Phase.TENTATIVE]),
            )
        match kind:
            case 3 | 4:
                return relinquish(world, chance.choice(out))
            case 5:
                return renew(world, chance.choice(out))
            case 6:
                return upgrade(world, chance.choice(out))
        match chance.randrange(7):
            case 0 | 1:
                return Hello(version=1, cluster_id=CLUSTER)
            case 4:
                return AskClock()
            case 2:
                holder, heard = chance.choice([HOLDER, RIVAL]), chance.randrange(4)
                wait = chance.choice([0, 0, SECOND])
                return Attend(request_id=world.request_id(), holder=holder, run=bytes(8), heard=heard, wait_ns=wait)
            case 3:
                lease = chance.choice(out)
                return Revoke(
                    request_id=world.request_id(), domain=lease.domain, correlation_id=lease.correlation_id, by=RIVAL
                )
        return Inspect(after_domain="", leases_max=3)
