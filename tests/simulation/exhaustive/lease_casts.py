"""Who takes part in an exploration of leases: holders over the production dealings with a shard, and an operator."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from appliance.formats.lease import Holder, Mode, Phase
from appliance.formats.shardmap import ShardMap
from appliance.formats.witness import Ended, SessionWitness, Witness
from appliance.lease.wire import Revoke
from appliance.session.held import Keeper
from appliance.session.leasing import Leasing
from tests.simulation.exhaustive.lease_promises import LeasePromises
from tests.simulation.exhaustive.lease_room import START, LeaseWorld
from tests.simulation.exhaustive.nodes import TIME_KEY
from tests.support.bags import CLUSTER, POLICY
from tests.support.clocks import HandTime
from tests.support.explorer import Explorer, Kind
from timeagent.errors import LeaseLost, TryAgain
from timeagent.signedtime import TimeFlags, sign_time
from timeagent.units import SECOND, TimeInterval

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from appliance.lease.wire import Reply, Request
    from appliance.session.held import Lease
    from tests.support.explorer import Port
    from timeagent.signedtime import SignedTime
    from timeagent.units import Instant, Span

DUE: Instant = START + 6 * SECOND
"""A lease that was granted at the start has to be renewed."""
OVER: Instant = START + 13 * SECOND
"""It is over, unless it was renewed."""


class RoomTime(HandTime):
    """Time as the room has it: asked for at every reading."""

    def __init__(self, port: Port) -> None:
        super().__init__(TIME_KEY, START)
        self._port = port

    def now(self) -> TimeInterval:
        self.midpoint_ns = self._port.ask("now")
        return super().now()

    def sleep(self, span: Span) -> None:
        """Others run in between anyway."""

    def _sign(self, digest: bytes | None) -> SignedTime:
        """Sign what was read last; under one number, so that equal statements are equal bytes."""
        return sign_time(
            self.signer,
            TimeInterval.around(self.midpoint_ns, self.radius_ns),
            status=self.status,
            flags=TimeFlags.NONE,
            staleness_ns=self.staleness_ns,
            sequence=1,
            clock_epoch=self.clock_epoch,
            digest=digest,
        )


class RoomRoutes:
    """The way to the one shard."""

    def __init__(self, port: Port) -> None:
        self._port = port

    @property
    def map(self) -> ShardMap:
        return ShardMap(number=1, cluster_id=CLUSTER, owners=("s",))

    def transport(self, shard: int) -> RoomRoutes:
        assert shard == 0
        return self

    def call(self, requests: list[Request], timeout_ns: Span) -> list[Reply]:
        assert timeout_ns
        replies: Sequence[Reply] = self._port.ask("call", tuple(requests))
        return list(replies)


def _hold(port: Port, *, name: str, wanted: Mapping[str, Mode], renews: int, ends: str, together: bool) -> None:
    time, routes = RoomTime(port), RoomRoutes(port)
    incarnation = name.encode().ljust(8, b"-")
    holder = Holder(node=name, process=1, boot=bytes(16), incarnation=incarnation, purpose="p")
    leasing = Leasing(Keeper(time, POLICY, routes, holder, random.Random(name)))
    leasing.session_leases.drop_from = 1 if ends == "drop" else 16
    try:
        leases, _ = leasing.acquire(wanted, POLICY.lease_term_max_ns, 0, together=together)
    except TryAgain as problem:
        port.note("gets nothing", problem.code)
        return
    _write(port, time, leases)
    for _ in range(renews):
        for session_lease in leasing.session_leases.due(time.now().latest):
            leasing.session_leases.renew(session_lease)
        _write(port, time, leases)
    if ends != "leave":
        port.note("gives back")
        leasing.relinquish(leases)


def _write(port: Port, time: RoomTime, leases: Sequence[Lease]) -> None:
    """Write one message under all leases, at the lowest instant that may be chosen now. Note what a reader judges."""
    try:
        now = time.now()
        for lease in leases:
            lease.check_held(now, POLICY.holder_margin_ns)
    except LeaseLost as problem:
        port.note("lost", problem.code)
        return
    stamp = max(now.midpoint, *(lease.floor_ns + 1 for lease in leases))
    if any(stamp >= lease.expiry_ns for lease in leases):
        return
    for lease in leases:
        lease.wrote(stamp, time.token().encode())
        said = None if lease.session_lease is None else lease.session_lease.signed.statement()
        named = said.ended if isinstance(said, SessionWitness) else ()
        port.note("wrote", lease.domain, lease.mode, lease.fence, lease.correlation_id, named, stamp)


def _revoke(port: Port, *, domain: str) -> None:
    """End, as an operator, the newest lease on a domain that is out."""
    seen = port.ask("leases")
    over = {entry.ending.correlation_id for entry in seen if isinstance(entry, Ended)}
    held = [each for each in seen if isinstance(each, Witness) and each.phase is Phase.HELD and each.domain == domain]
    out = [each.correlation_id for each in held if each.correlation_id not in over]
    if out:
        by = Holder(node="o", process=1, boot=bytes(16), incarnation=bytes(8), purpose="operator")
        request = Revoke(request_id=b"o" * 16, domain=domain, correlation_id=out[-1], by=by)
        RoomRoutes(port).call([request], SECOND)
        port.note("revoked")


def holder(name: str, *, ends: str = "relinquish", renews: int = 0, together: bool = True, **wanted: Mode) -> Kind:
    """``ends``: relinquish, drop (the session lease), leave. ``wanted``: the mode of each domain."""
    body = partial(_hold, name=name, wanted=wanted, renews=renews, ends=ends, together=together)
    return Kind(f"holder {name}", body)


def operator(domain: str = "d") -> Kind:
    return Kind("operator", partial(_revoke, domain=domain))


@dataclass(frozen=True, slots=True)
class LeaseCast:
    """Holders of one shard's leases, and how far time goes meanwhile."""

    actors: tuple[Kind, ...]
    instants: tuple[Instant, ...] = (START, OVER)
    faults: int = 0
    reduced: bool = True

    def explorer(self, *, states_max: int = 3_000_000, breadth_first: bool = False) -> Explorer:
        world = LeaseWorld(self.instants)
        return Explorer(
            world,
            self.actors,
            LeasePromises(world),
            faults=self.faults,
            states_max=states_max,
            reduced=self.reduced,
            breadth_first=breadth_first,
        )
