"""What a shard shows to people and greets holders with: unsigned, changes nothing, needs no clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .wire import NO_REQUEST, PROTOCOL_VERSION, Hello, LeaseView, Page, Refused, ShardNumbers, Welcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from timeagent.units import Instant

    from .ceiling import RightToGrant, ShardIdentity
    from .domain import Lease, Taken
    from .notary import Notary
    from .store import LeaseStore


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


def numbers(
    identity: ShardIdentity,
    chain: RightToGrant,
    store: LeaseStore,
    notary: Notary,
    *,
    floor_ns: Instant,
    settle_to_ns: Instant,
    waiting: int,
) -> ShardNumbers:
    """Show how a shard stands."""
    return ShardNumbers(
        node=identity.node,
        map_number=identity.map_number,
        shard=identity.shard,
        incarnation=identity.incarnation,
        floor_ns=floor_ns,
        settle_to_ns=settle_to_ns,
        ceiling_number=chain.number,
        ceiling_ns=chain.ceiling_ns,
        domains=store.domains,
        leases=store.leases,
        waiting=waiting,
        batches=notary.batches,
        blocks_lost=notary.blocks_lost,
        since_ns=identity.since_ns,
        release=identity.release,
    )


def page(
    numbers: ShardNumbers, rows: Iterable[tuple[str, Taken]], waiting: Callable[[str], int], *, more: bool
) -> Page:
    """Show the leases of these domains. ``waiting``: how many wait for a domain. ``more``: there are other domains."""
    leases = tuple(_view(domain, lease, waiting(domain)) for domain, state in rows for lease in state.leases)
    return Page(numbers=numbers, leases=leases, more=more)


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
    )
