"""Session leases of a scripted shard: begun, renewed, and ended, with the leases under them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.formats.lease import LeaseOutcome
from appliance.formats.witness import SessionEnded, SessionKind, SessionWitness

from .shard import Lease, Session
from .tree import Change, changed

if TYPE_CHECKING:
    from .shard import Shard
    from .writer import Writer


def begin(shard: Shard, writer: Writer, change: Change | None = None) -> Session:
    """Grant a session lease for a full term."""
    now = shard.node.time.midpoint_ns
    witness = SessionWitness(
        kind=SessionKind.GRANT,
        session_id=now.to_bytes(8, "big") + shard.tree.chance(8),
        holder=writer.holder,
        expiry_ns=min(now + shard.tree.policy.lease_term_max_ns, shard.ceiling_ns),
        ended=(),
    )
    witness = changed(witness, change)
    return Session(shard, witness, shard.turn(witness).signed_witness(0))


def under(session: Session, domain: str, writer: Writer, change: Change | None = None) -> Lease:
    """Grant a domain under a session lease, as if nobody had it."""
    fields: Change = {"session_id": session.witness.session_id, "expiry_ns": session.witness.expiry_ns}
    lease = session.shard.grant(domain, writer, change=fields | (change or {}))
    lease.session = session
    session.leases.append(lease)
    return lease


def renew(session: Session, change: Change | None = None) -> None:
    """Renew a session lease to a full term."""
    shard = session.shard
    expiry = min(shard.node.time.midpoint_ns + shard.tree.policy.lease_term_max_ns, shard.ceiling_ns)
    fields: Change = {"kind": SessionKind.RENEWAL, "expiry_ns": max(expiry, session.witness.expiry_ns)}
    session.witness = changed(session.witness, fields | (change or {}))
    session.signed = shard.turn(session.witness).signed_witness(0)


def end_alone(lease: Lease, outcome: LeaseOutcome = LeaseOutcome.REVOKED, *, says_who: bool = True) -> None:
    """End one lease while its session lives: floor and settle_to are the session's expiry as last renewed."""
    session = lease.session
    assert session is not None
    memory = lease.shard.memories[lease.witness.domain]
    memory.floor_ns = max(memory.floor_ns, session.witness.expiry_ns)
    memory.settle_to_ns = max(memory.settle_to_ns, session.witness.expiry_ns)
    lease.shard.end(lease, outcome, says_who=says_who)
    session.leases.remove(lease)
    session.witness = changed(session.witness, {"ended": (*session.witness.ended, lease.witness.correlation_id)})


def give_back(lease: Lease) -> None:
    """End one lease by its holder's word while its session lives."""
    assert lease.session is not None
    lease.shard.end(lease)
    lease.session.leases.remove(lease)


def end(session: Session, outcome: LeaseOutcome = LeaseOutcome.DROPPED, change: Change | None = None) -> None:
    """End a session lease with all leases under it; what that brings to their domains is remembered."""
    told = outcome is LeaseOutcome.DROPPED
    wrote = [lease for lease in session.leases if lease.written_ns is not None and told]
    last = max(wrote, key=lambda lease: lease.written_ns or 0, default=None)
    entry = changed(
        SessionEnded(
            session_id=session.witness.session_id,
            outcome=outcome,
            ended_ns=session.shard.node.time.midpoint_ns,
            expiry_ns=session.witness.expiry_ns,
            leases=len(session.leases),
            watermark_ns=last.written_ns if last else None,
            watermark_time=last.written_time if last else None,
            messages=sum(lease.messages for lease in session.leases) if told else 0,
            chain_head=last.chain_head if last else None,
        ),
        change,
    )
    session.shard.turn(entry)
    for lease in session.leases:
        memory = session.shard.memories[lease.witness.domain]
        brings = (entry.watermark_ns or 0, 0) if told else (entry.expiry_ns, entry.expiry_ns)
        memory.floor_ns = max(memory.floor_ns, brings[0])
        memory.settle_to_ns = max(memory.settle_to_ns, brings[1])
        memory.previous_id = lease.witness.correlation_id
