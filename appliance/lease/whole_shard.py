"""What holds for a shard as a whole: the map it goes by, its floor, and what a run leaves that stops for a restart.

Requests that grant or keep something name the map that the asker goes by. A shard serves those who name one under which
it is what it is now: so nobody who goes by the map before a move ever meets somebody who goes by the one after.

What is left is the last thing that is written to the shard's file on tmpfs (``store.py``), and is found once. To go on
is a courtesy: whatever does not match, or cannot be read, is as if nothing had been left (docs/protocol/lease.md,
"Restarts").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from timeagent.canonical import U64, Bytes8, Bytes16, Bytes32, Record
from timeagent.errors import Damaged
from timeagent.units import Instant

from ..formats.framing import pieces
from ..formats.hints import nothing_known
from ..formats.policy import PolicyNumbers
from ..formats.shardmap import ShardMap, shard_text
from ..formats.witness import Half, Revoked, head_digest, open_block
from .ceiling import ShardIdentity
from .domain import Memory, Taken
from .store import LeaseStore
from .wire import MAP_NOT_YET, NEWER_MAP, Acquire, BeginSession, Renew, RenewSession, Task, Unavailable, Upgrade

_NAMES_A_MAP: Final = (Acquire, Upgrade, Renew, BeginSession, RenewSession)


class GoingBy:
    """The newest map that one shard knows, and what that makes of it. Changes between two turns only."""

    def __init__(self, shard_map: ShardMap, shard: int) -> None:
        self._shard = shard
        self.over = False
        """Whether the shard is of no map any more: it grants nothing, and keeps nothing."""
        self.alone_until_ns: Instant = 0
        """Of a shard that leaves: until when leases that it granted before may be believed in alone."""
        self.half = Half.WHOLE
        self.take(shard_map)

    def take(self, shard_map: ShardMap) -> None:
        half = shard_map.half_of(self._shard)
        self.map, self.over = shard_map, half is None
        self.half = half or Half.LEAVING
        self.since = shard_map.number + 1 if self.over else shard_map.since(self._shard)
        """The first map that who asks may name."""

    @property
    def number(self) -> int:
        """The last map that who asks may name."""
        return self.map.number

    def refused(self, request: Task) -> Unavailable | None:
        """Refuse, for now, what names a map by which the shard does not go."""
        if not isinstance(request, _NAMES_A_MAP) or self.since <= request.map_number <= self.number:
            return None
        code = MAP_NOT_YET if request.map_number > self.number else NEWER_MAP
        return Unavailable(request_id=request.request_id, code=code, message=self.why(request.map_number))

    def why(self, named: int) -> str:
        """Return what is to be said to who names a map that does not do."""
        what = "which has this shard no more" if self.over else f"in which it is {self.half} since map {self.since}"
        return f"shard {shard_text(self._shard)} goes by map {self.number}, {what}; the request names map {named}"


class Eviction:
    """What holds for every domain that is not remembered: the shard floor, and its settle_to. Neither ever falls."""

    def __init__(self, store: LeaseStore, policy: PolicyNumbers, domains_max: int) -> None:
        self._store = store
        self._policy = policy
        self.domains_max = domains_max
        self.floor_ns: Instant = 0
        self.settle_to_ns: Instant = 0
        self._memory = Memory(fence=0, floor_ns=0, settle_to_ns=0, hints=nothing_known(0))

    def begin(self, floor_ns: Instant, settle_to_ns: Instant) -> None:
        """Take the numbers that the chain states for a run that begins."""
        self.floor_ns, self.settle_to_ns = floor_ns, settle_to_ns
        self._store.rows.begin(floor_ns, settle_to_ns)

    def rise(self, floor_ns: Instant, settle_to_ns: Instant) -> None:
        self.floor_ns, self.settle_to_ns = max(self.floor_ns, floor_ns), max(self.settle_to_ns, settle_to_ns)

    def memory(self) -> Memory:
        """Return what a domain has that is not remembered."""
        if (self._memory.floor_ns, self._memory.settle_to_ns) != (self.floor_ns, self.settle_to_ns):
            hints = nothing_known(self.floor_ns)
            self._memory = Memory(fence=0, floor_ns=self.floor_ns, settle_to_ns=self.settle_to_ns, hints=hints)
        return self._memory

    def long_past(self, earliest: Instant) -> Instant:
        """Return before which instant all numbers of a domain lie that may be evicted."""
        policy = self._policy
        return earliest - (policy.span_ns + policy.grace_ns + 4 * policy.radius_ns_max)

    def evict(self, domains: Sequence[str], earliest: Instant) -> list[str]:
        """Evict those of some domains that are free and long past; the shard floor covers them from now on.

        Return those with leases that are past: once these are broken, they can be evicted later.
        """
        old = self.long_past(earliest)
        past: list[str] = []
        self._store.look_up(domains)
        for domain in domains:
            state = self._store.read(domain)
            if isinstance(state, Taken):
                if any(each.session_id is None and each.expiry_ns < earliest for each in state.leases):
                    past.append(domain)
            elif state is not None:
                memory = state.memory
                newest = max(memory.floor_ns, memory.settle_to_ns, memory.fence)
                if newest < old:
                    self._store.put(domain, None)
                    self.floor_ns = max(self.floor_ns, newest)
                    self.settle_to_ns = max(self.settle_to_ns, memory.settle_to_ns)
        return past


class Suspension(Record, frozen=True):
    """A run that stopped with leases out: what of it is not in the states of its domains and session leases."""

    cluster_id: Bytes16
    map_number: U64
    shard: U64
    node: str
    boot: str
    """Of the machine: nothing is taken over after it has begun anew."""
    incarnation: Bytes8
    since_ns: U64
    signed_ns: U64
    """The latest instant that it signed."""
    head: Bytes32
    """The digest of the head of its last batch."""
    batches: U64
    blocks_lost: U64
    block_bytes: U64
    """How long the last block of its ledger is."""
    ceiling: bytes
    """The newest record that it linked and saw."""
    pending: bytes
    """A record that it may have linked after that; empty: there is none."""
    floor_ns: U64
    """The shard floor and its settle_to: evictions have raised what the ceiling record states."""
    settle_to_ns: U64
    begun_floor_ns: U64
    """The same when the run began: rows of the file leave them out."""
    begun_settle_to_ns: U64
    going_by: U64
    """The newest map that it went by."""
    alone_until_ns: U64
    """While it leaves: until when leases of before may be believed in alone."""
    recalls: U64
    """The number of its last recall: holders have heard up to there."""
    revoked: tuple[Revoked, ...]
    """The newest revocations."""
    ledger_file: U64 = 0
    """Where its ledger ends: the number of the file, and its size."""
    ledger_bytes: U64 = 0

    def identity(self, release: str) -> ShardIdentity:
        return ShardIdentity(
            self.cluster_id, self.map_number, self.shard, self.node, self.incarnation, self.since_ns, release
        )

    def difference(self, fresh: ShardIdentity, boot: str) -> str | None:
        """Return what of it is another's than that of a run that would begin ``fresh`` here, or None."""
        for what, own, other in (
            ("the machine has begun anew: boot", self.boot, boot),
            ("it was left by node", self.node, fresh.node),
            ("it is of cluster", self.cluster_id.hex(), fresh.cluster_id.hex()),
            ("it is of map", self.map_number, fresh.map_number),
            ("it is of shard", self.shard, fresh.shard),
        ):
            if own != other:
                return f"{what} {own}, not {other}"
        return None

    def ledger_difference(self, last_block: bytes | None) -> str | None:
        """Return what is wrong with the end of its ledger, or None. ``last_block``: None where that ends elsewhere."""
        where = "the last block of its ledger"
        if last_block is None:
            return "its ledger does not end where it did"
        try:
            (piece,), rest = pieces(last_block)
            same = not rest and head_digest(open_block(piece, where).head) == self.head
        except (Damaged, ValueError):
            same = False
        return None if same else f"{where} is another"

    def clock_difference(self, midpoint_ns: Instant) -> str | None:
        """Return that a clock is behind what was signed last, or None."""
        behind = self.signed_ns - midpoint_ns
        return f"the clock is {behind} ns behind what was signed last" if behind > 0 else None
