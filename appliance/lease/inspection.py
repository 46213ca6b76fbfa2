"""What a shard shows to people and greets holders with: unsigned, changes nothing, answered also without time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from timeagent.errors import BadTime

from .wire import (
    NO_REQUEST,
    PAGE_LEASES_MAX,
    PROTOCOL_VERSION,
    AskClock,
    ClockTold,
    Hello,
    LeaseView,
    Page,
    Refused,
    ShardNumbers,
    Welcome,
)

if TYPE_CHECKING:
    from timeagent.clock import NodeTime
    from timeagent.units import Instant

    from .ceiling import RightToGrant, ShardIdentity
    from .domain import Lease
    from .notary import Notary
    from .sessions import Sessions
    from .store import LeaseStore
    from .waiting import WaitingRoom
    from .wire import Inspect

_LOOKED_AT: Final = 2_048
"""How many leases are looked at for those of one session."""


def welcome(hello: Hello, identity: ShardIdentity) -> Welcome | Refused:
    """Answer a Hello: another version or another cluster is refused by name."""
    if hello.version != PROTOCOL_VERSION:
        why = f"this shard speaks version {PROTOCOL_VERSION}; version {hello.version} was offered"
        return Refused(request_id=NO_REQUEST, code="protocol-version", message=why, hint="use the same release")
    if hello.cluster_id != identity.cluster_id:
        why = f"this shard is of cluster {identity.cluster_id.hex()}, not of {hello.cluster_id.hex()}"
        return Refused(request_id=NO_REQUEST, code="other-cluster", message=why, hint="check the root")
    if hello.shard is not None and hello.shard != identity.shard:
        why = f"this is shard {identity.shard} at node {identity.node}, not shard {hello.shard}"
        return Refused(request_id=NO_REQUEST, code="other-shard", message=why, hint="read the shard map anew")
    return Welcome(
        version=PROTOCOL_VERSION,
        node=identity.node,
        map_number=identity.map_number,
        shard=identity.shard,
        incarnation=identity.incarnation,
    )


def clock_told(time: NodeTime, node: str) -> ClockTold:
    """Tell what time it is here. What this node has no bound for is not told. Never blocks."""
    token = None
    try:
        token = time.token().encode()
        now = time.now()
    except BadTime as problem:
        return ClockTold(node=node, problem=problem.message, token=token)
    return ClockTold(node=node, earliest_ns=now.earliest, latest_ns=now.latest, token=token)


@dataclass(frozen=True, slots=True)
class Inspected:
    """What of a shard is shown."""

    identity: ShardIdentity
    chain: RightToGrant
    store: LeaseStore
    notary: Notary
    sessions: Sessions
    waiting: WaitingRoom
    time: NodeTime

    def answer(self, request: Inspect | AskClock, floor_ns: Instant, settle_to_ns: Instant) -> Page | ClockTold:
        """Answer whoever only looks. ``floor_ns``, ``settle_to_ns``: the shard's own."""
        if isinstance(request, AskClock):
            return clock_told(self.time, self.identity.node)
        return self.page(request, floor_ns, settle_to_ns)

    def page(self, inspect: Inspect, floor_ns: Instant, settle_to_ns: Instant) -> Page:
        """Show a page of leases, and how the shard stands. ``floor_ns``, ``settle_to_ns``: the shard's own.

        Of one session lease at most so many domains are looked at, of whichever: the page may be empty, and not the
        last.
        """
        limit = max(1, min(inspect.leases_max, PAGE_LEASES_MAX))
        if inspect.session_id is not None:
            limit = _LOOKED_AT
        rows, more = self.store.page(inspect.after_domain, limit, inspect.domain)
        shown = self.sessions.shown(rows, inspect.session_id)
        return Page(
            numbers=self._numbers(floor_ns, settle_to_ns),
            leases=tuple(
                _view(domain, lease, self.waiting.waiting(domain)) for domain, state in shown for lease in state.leases
            ),
            more=more,
            after_domain=rows[-1][0] if rows else inspect.after_domain,
        )

    def _numbers(self, floor_ns: Instant, settle_to_ns: Instant) -> ShardNumbers:
        return ShardNumbers(
            node=self.identity.node,
            map_number=self.identity.map_number,
            shard=self.identity.shard,
            incarnation=self.identity.incarnation,
            floor_ns=floor_ns,
            settle_to_ns=settle_to_ns,
            ceiling_number=self.chain.number,
            ceiling_ns=self.chain.ceiling_ns,
            domains=self.store.domains,
            leases=self.store.leases,
            waiting=self.waiting.count,
            batches=self.notary.batches,
            blocks_lost=self.notary.blocks_lost,
            since_ns=self.identity.since_ns,
            release=self.identity.release,
            sessions=self.store.sessions,
        )


def _view(domain: str, lease: Lease, waiting: int) -> LeaseView:
    return LeaseView(
        domain=domain,
        mode=lease.mode,
        phase=lease.phase,
        holder=lease.holder,
        correlation_id=lease.correlation_id,
        fence=lease.fence,
        granted_ns=lease.granted_ns,
        expiry_ns=lease.expiry_ns,
        floor_ns=lease.floor_ns,
        settle_to_ns=lease.settle_to_ns,
        waiting=waiting,
        session_id=lease.session_id,
    )
