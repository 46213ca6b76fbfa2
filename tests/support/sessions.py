"""Requests about session leases, as a holder would make them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from appliance.formats.witness import SessionWitness, SignedWitness
from appliance.lease.wire import BeginSession, DropSession, RenewSession, SessionGranted
from tests.support.shards import HOLDER, TERM, World, acquire, one
from timeagent.canonical import decode
from timeagent.units import SECOND

if TYPE_CHECKING:
    from appliance.formats.lease import Holder, Mode, Phase
    from appliance.lease.shard import Shard
    from appliance.lease.wire import Acquire, Reply
    from timeagent.units import Instant, Span


def begin(world: World, *, holder: Holder = HOLDER, term_ns: Span = TERM) -> BeginSession:
    until = world.time.midpoint_ns + 60 * SECOND
    return BeginSession(
        map_number=1, request_id=world.request_id(), holder=holder, term_ns=term_ns, expiry_ns_max=until
    )


def prolong(
    world: World, session: SessionWitness, *, term_ns: Span = TERM, until_ns: Instant | None = None
) -> RenewSession:
    return RenewSession(
        map_number=1,
        request_id=world.request_id(),
        session_id=session.session_id,
        term_ns=term_ns,
        expiry_ns_max=world.time.midpoint_ns + 60 * SECOND if until_ns is None else until_ns,
    )


def drop(world: World, session: SessionWitness, watermark_ns: Instant | None = None) -> DropSession:
    written = watermark_ns is not None
    return DropSession(
        request_id=world.request_id(),
        session_id=session.session_id,
        watermark_ns=watermark_ns,
        watermark_time=world.time.token().encode() if written else None,
        messages=3 if written else 0,
        chain_head=bytes(32) if written else None,
    )


def under(
    world: World, session: SessionWitness, domain: str, *, mode: Mode | None = None, phase: Phase | None = None
) -> Acquire:
    request = msgspec.structs.replace(acquire(world, domain, holder=session.holder), session_id=session.session_id)
    request = request if mode is None else msgspec.structs.replace(request, mode=mode)
    return request if phase is None else msgspec.structs.replace(request, phase=phase)


def stated(reply: Reply) -> SessionWitness:
    """Return what an answer about a session lease states."""
    assert isinstance(reply, SessionGranted), reply
    statement = decode(SignedWitness, reply.signed).statement()
    assert isinstance(statement, SessionWitness)
    return statement


def session_of(shard: Shard, world: World, *, holder: Holder = HOLDER, term_ns: Span = TERM) -> SessionWitness:
    return stated(one(shard, begin(world, holder=holder, term_ns=term_ns)))
