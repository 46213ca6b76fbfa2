"""What a shard shows to people and greets holders with: unsigned, changes nothing, needs no clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..formats.lease import Phase
from .state import Held
from .wire import NO_REQUEST, PROTOCOL_VERSION, Hello, LeaseView, Page, Refused, ShardNumbers, Welcome

if TYPE_CHECKING:
    from .ceiling import ShardIdentity
    from .state import Tentative


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


def page(numbers: ShardNumbers, rows: list[tuple[str, Tentative | Held]], limit: int) -> Page:
    """Show at most ``limit`` of the rows; one more says that there are more."""
    return Page(
        numbers=numbers, leases=tuple(_view(domain, state) for domain, state in rows[:limit]), more=len(rows) > limit
    )


def _view(domain: str, state: Tentative | Held) -> LeaseView:
    lease = state.lease
    return LeaseView(
        domain=domain,
        mode=lease.mode,
        phase=Phase.HELD if isinstance(state, Held) else Phase.TENTATIVE,
        holder=lease.holder,
        correlation_id=lease.correlation_id,
        fence=lease.fence,
        granted_ns=lease.granted_ns,
        expiry_ns=lease.expiry_ns,
        floor_ns=lease.floor_ns,
        settle_to_ns=lease.settle_to_ns,
    )
