"""A lease and a shard's numbers as JSON shows them: the same fields on the command line and at the read-only door."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from timeagent.console import bound_fields, instant_fields

if TYPE_CHECKING:
    from .wire import LeaseView, ShardNumbers


def lease_fields(view: LeaseView) -> dict[str, Any]:
    """Return a lease as JSON shows it."""
    return {
        "domain": view.domain,
        "mode": view.mode,
        "phase": view.phase,
        "node": view.holder.node,
        "process": view.holder.process,
        "purpose": view.holder.purpose,
        "correlation_id": view.correlation_id.hex(),
        "fence": view.fence,
        **instant_fields("granted", view.granted_ns),
        **instant_fields("expiry", view.expiry_ns),
        **bound_fields("floor", view.floor_ns),
        **bound_fields("settle_to", view.settle_to_ns),
        "waiting": view.waiting,
        "session_id": None if view.session_id is None else view.session_id.hex(),
    }


def shard_fields(numbers: ShardNumbers) -> dict[str, Any]:
    """Return how a shard stands as JSON shows it."""
    return {
        "node": numbers.node,
        "release": numbers.release,
        "incarnation": numbers.incarnation.hex(),
        **instant_fields("since", numbers.since_ns),
        "leases": numbers.leases,
        "domains": numbers.domains,
        "sessions": numbers.sessions,
        "ceiling_number": numbers.ceiling_number,
        **instant_fields("ceiling", numbers.ceiling_ns),
        **bound_fields("floor", numbers.floor_ns),
        **bound_fields("settle_to", numbers.settle_to_ns),
        "batches": numbers.batches,
        "ledger_blocks_lost": numbers.blocks_lost,
    }
