"""Second halves: while a domain moves to another shard it is held from both.

The half from the shard that comes is a lease of its own here, which nobody sees: it is renewed, told of messages and
given back beside the other (``Lease.second``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from appliance.formats.shardmap import ShardMap
from appliance.lease.client import LeaseClient, LeaseGranted, LeaseUnavailable, may_ask_again
from appliance.lease.wire import NO_REQUEST, Above, Relinquish
from timeagent.errors import TenureError
from timeagent.units import Span

from ..formats.lease import covers
from ..formats.witness import Half
from .held import Keeper, Lease, SessionLease
from .renewal import SessionLeases

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SecondHalves:
    """The second halves of one session's leases: how they are taken, and when a lease goes on with its own alone."""

    _keeper: Keeper
    _newest: Callable[[], ShardMap]
    _client: Callable[[int], LeaseClient]
    _session_leases: SessionLeases

    def maps_to_name(self, session_lease: SessionLease) -> list[int]:
        """Return the maps to be named in a renewal, one after the other while its shard does not go by them yet."""
        newest = self._newest()
        half, number = newest.half_of(session_lease.shard), newest.number
        if half is not Half.WHOLE:
            with self._keeper.lock:
                leases = list(session_lease.leases.values())
            self.catch_up(leases, newest)
        if half is Half.LEAVING:
            with self._keeper.lock:
                leases = list(session_lease.leases.values())
            self.take([each for each in leases if each.keeper is not None], newest)
            if any(each.ended is None and each.second is None and each.counts_alone for each in leases):
                return [number - 1]
        return [] if half is None else [number, number - 1]

    def catch_up(self, leases: Sequence[Lease], by: ShardMap) -> None:
        """Let leases go on with their second half where a second move has begun before they heard of the first's end.

        Nothing is written under them until they have another second half, and both are renewed.
        """
        with self._keeper.lock:
            for lease in [each.first or each for each in leases]:
                gone = lease.second is not None and by.half_of(lease.shard) is None
                if gone and lease.second is not None and by.half_of(lease.second.shard) is Half.LEAVING:
                    lease.go_on_with_second()
                    lease.alone_until_ns = lease.expiry_ns
                    self._keeper.moved.append(lease)

    def take(self, leases: Sequence[Lease], by: ShardMap) -> None:
        """Take leases from the shards that come, where they are not held from these yet. What fails is tried again."""
        groups: dict[tuple[int, Span, bool], list[Lease]] = {}
        for lease in leases:
            if lease.second is None and lease.first is None and lease.ended is None:
                key = by.shards_of(lease.domain)[-1], lease.term_ns, lease.session_lease is not None
                groups.setdefault(key, []).append(lease)
        for shard, term_ns, together in sorted(groups):
            self._take_some(shard, groups[shard, term_ns, together], term_ns, by, together=together)

    def _take_some(self, shard: int, leases: Sequence[Lease], term_ns: Span, by: ShardMap, *, together: bool) -> None:
        try:
            with self._session_leases.asking(shard):
                session_lease = self._session_leases.ready(shard, by.number) if together else None
                if isinstance(session_lease, LeaseUnavailable):
                    return
                client = self._client(shard)
                asks = [lease.asking or client.ask(lease.domain, lease.age, lease.mode) for lease in leases]
                for lease, ask in zip(leases, asks, strict=True):
                    lease.asking = ask
                results = client.acquire(
                    asks,
                    term_ns=term_ns,
                    session_id=None if session_lease is None else session_lease.session_id,
                    map_number=by.number,
                    above=above_of(shard, leases),
                )
                useless: list[Relinquish] = []
                for lease, result in zip(leases, results, strict=True):
                    if isinstance(result, LeaseGranted):
                        name = result.witness.correlation_id
                        with self._keeper.lock:
                            known = None if lease.second is None else lease.second.correlation_id
                            weaker = not covers(result.witness.mode, lease.own_mode)  # it was asked for before that
                            if weaker:
                                lease.asking = None
                            if known is None and lease.ended is None and not weaker:
                                lease.join(self._session_leases.taken(shard, result, lease.term_ns, lease.age))
                            elif known != name:  # another thread was faster, or it is over
                                useless.append(Relinquish(NO_REQUEST, lease.domain, name))
                    elif not may_ask_again(result):
                        lease.asking = None
                if useless:
                    client.relinquish(useless)
        except TenureError as problem:
            _log.warning("second-half-failed shard=%d code=%s reason=%s", shard, problem.code, problem.message)


def joined(taken: Sequence[Lease]) -> list[Lease]:
    """Return the leases of a set, each with its second half where its domain moves: that was taken later."""
    found: dict[str, Lease] = {}
    for half in taken:
        lease = found.setdefault(half.domain, half)
        if lease is not half:
            lease.join(half)
    return list(found.values())


def above_of(shard: int, leases: Iterable[Lease]) -> dict[str, Above]:
    """Return what the halves from other shards say, by domain: who comes gives no less."""
    return {
        lease.domain: Above(fence=lease.fence, floor_ns=lease.floor_ns, settle_to_ns=lease.settle_to_ns)
        for lease in leases
        if lease.shard < shard
    }


def is_as_by(lease: Lease, by: ShardMap) -> bool:
    """Whether a lease, or a half, is held as it is to be by a map: from both shards, or from one that is left."""
    half = by.half_of(lease.shard)
    return half is not None and (half is not Half.LEAVING or lease.second is not None)
