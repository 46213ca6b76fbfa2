"""Errors in speaking to a shard, each planted once: refused or reported by name, and whoever has the lease keeps it."""

from __future__ import annotations

import socket
import struct
from threading import Thread
from typing import TYPE_CHECKING

import msgspec
import pytest

from appliance.formats.lease import Mode, Phase
from appliance.formats.shardmap import ShardMap
from appliance.formats.witness import SessionWitness, SignedWitness, decode_entry
from appliance.lease.connection import ClientLimits
from appliance.lease.server import ShardServer
from appliance.lease.wire import (
    REQUEST_FRAME_BYTES_MAX,
    REQUESTS_MAX,
    Attend,
    BeginSession,
    Denied,
    Granted,
    Hello,
    Inspect,
    LeasePage,
    Over,
    Refused,
    RenewSession,
    Revoke,
    SessionGranted,
    Unavailable,
)
from tests.support.nodes import read_to_the_end
from tests.support.shards import HOLDER, RIVAL, World, acquire, granted, one, relinquish, renew, upgrade
from tests.support.values import CLUSTER, NODE
from timeagent.canonical import decode
from timeagent.clock import SystemClock
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from appliance.formats.witness import Witness
    from appliance.lease.shard import Shard
    from appliance.lease.wire import Reply, Request

replace = msgspec.structs.replace

type Planted = Callable[[World, Shard, Witness], Request]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    each = World(tmp_path, shards=4)
    yield each
    each.close()


MAP = ShardMap(number=1, cluster_id=CLUSTER, owners=(NODE,) * 4)


def domains_of(shard: int) -> list[str]:
    return [name for n in range(99) if MAP.shard_of(name := f"d{n}") == shard]


def mine(_: World) -> str:
    """A domain of shard 0: the one that is held."""
    return domains_of(0)[0]


def another(_: World) -> str:
    return domains_of(0)[1]


def foreign(_: World) -> str:
    return domains_of(1)[0]


def said(reply: Reply) -> str:
    """How a shard put it."""
    match reply:
        case Refused() | Unavailable():
            return f"{type(reply).__name__.lower()} {reply.code}"
        case Over():
            return f"over {reply.outcome}"
        case Denied():
            return f"denied {reply.reason}"
        case _:
            return type(reply).__name__.lower()


def tentative(world: World, shard: Shard) -> Witness:
    return granted(shard, acquire(world, another(world), phase=Phase.TENTATIVE))


def other_session(world: World, shard: Shard) -> bytes:
    reply = one(
        shard,
        BeginSession(
            map_number=1, request_id=world.request_id(), holder=RIVAL, term_ns=5 * SECOND, expiry_ns_max=2**62
        ),
    )
    assert isinstance(reply, SessionGranted)
    entry = decode_entry(decode(SignedWitness, reply.signed).entry)
    assert isinstance(entry, SessionWitness)
    return entry.session_id


def wrote(world: World, lease: Witness, watermark_ns: int | None) -> Request:
    return relinquish(world, lease, watermark_ns)


PLANTED: dict[str, tuple[Planted, str]] = {
    "another version": (
        lambda *_: Hello(version=99, cluster_id=CLUSTER),
        "refused protocol-version",
    ),
    "another cluster": (lambda *_: Hello(version=1, cluster_id=bytes(16)), "refused other-cluster"),
    "another shard": (lambda *_: Hello(version=1, cluster_id=CLUSTER, shard=7), "refused other-shard"),
    "a domain of another shard": (lambda w, *_: acquire(w, foreign(w)), "refused wrong-shard"),
    "a domain with a control character": (lambda w, *_: acquire(w, "a\nb"), "refused bad-domain"),
    "a node that has no such name": (
        lambda w, *_: acquire(w, mine(w), holder=replace(RIVAL, node="Not A Node")),
        "refused bad-node-name",
    ),
    "a purpose of many lines": (
        lambda w, *_: acquire(w, mine(w), holder=replace(RIVAL, purpose="a\nb")),
        "refused bad-purpose",
    ),
    "a domain that another has": (lambda w, *_: acquire(w, mine(w), holder=RIVAL), "denied held"),
    "an expiry that is past": (
        lambda w, _, lease: acquire(w, f"{lease.domain}", holder=HOLDER, mode=Mode.X, until_ns=1),
        "denied held",
    ),
    "a request that comes too late": (
        lambda w, *_: acquire(w, another(w), until_ns=1),
        "unavailable late",
    ),
    "a lease that is held, made held": (lambda w, _, lease: upgrade(w, lease), "refused already-held"),
    "a weaker mode": (lambda w, _, lease: replace(upgrade(w, lease), mode=Mode.S), "refused mode-not-stronger"),
    "another mode for a tentative lease": (
        lambda w, shard, _: replace(upgrade(w, tentative(w, shard)), mode=Mode.S),
        "refused tentative-mode",
    ),
    "a renewal under an id of nobody": (
        lambda w, _, lease: replace(renew(w, lease), correlation_id=bytes(16)),
        "over unknown",
    ),
    "an upgrade under an id of nobody": (
        lambda w, _, lease: replace(upgrade(w, lease), correlation_id=bytes(16)),
        "over unknown",
    ),
    "relinquishing under an id of nobody": (
        lambda w, _, lease: replace(relinquish(w, lease), correlation_id=bytes(16)),
        "over unknown",
    ),
    "revoking under an id of nobody": (
        lambda w, _, lease: Revoke(request_id=w.request_id(), domain=lease.domain, correlation_id=bytes(16), by=RIVAL),
        "over unknown",
    ),
    "revoking for a reason of many lines": (
        lambda w, _, lease: Revoke(
            request_id=w.request_id(),
            domain=lease.domain,
            correlation_id=lease.correlation_id,
            by=replace(RIVAL, purpose="a\nb"),
        ),
        "refused bad-purpose",
    ),
    "messages without a watermark": (
        lambda w, _, lease: replace(relinquish(w, lease), messages=3),
        "refused watermark-missing",
    ),
    "a watermark without its signed time": (
        lambda w, _, lease: replace(wrote(w, lease, lease.expiry_ns - 1), watermark_time=None),
        "refused watermark-incomplete",
    ),
    "a watermark not above the floor": (
        lambda w, _, lease: replace(wrote(w, lease, lease.floor_ns), watermark_ns=lease.floor_ns),
        "refused watermark-below-floor",
    ),
    "a watermark not below the expiry": (
        lambda w, _, lease: wrote(w, lease, lease.expiry_ns),
        "refused watermark-not-below-expiry",
    ),
    "a watermark with a damaged time": (
        lambda w, _, lease: replace(wrote(w, lease, lease.expiry_ns - 1), watermark_time=bytes(128)),
        "refused watermark-time-damaged",
    ),
    "a watermark far from its time": (
        lambda w, _, lease: wrote(w, lease, lease.expiry_ns - 1),
        "refused watermark-breaks-r1",
    ),
    "something written under a tentative lease": (
        lambda w, shard, _: wrote(w, tentative(w, shard), w.time.midpoint_ns),
        "refused tentative-written",
    ),
    "a session lease of nobody": (
        lambda w, *_: replace(acquire(w, mine(w)), session_id=bytes(16)),
        "unavailable no-session",
    ),
    "a session lease of another": (
        lambda w, shard, _: replace(acquire(w, mine(w)), session_id=other_session(w, shard)),
        "refused foreign-session",
    ),
    "renewing a session lease of nobody": (
        lambda w, *_: RenewSession(
            map_number=1, request_id=w.request_id(), session_id=bytes(16), term_ns=SECOND, expiry_ns_max=2**62
        ),
        "over unknown",
    ),
    "listening under a run that never was": (
        lambda w, *_: Attend(request_id=w.request_id(), holder=RIVAL, run=b"nonsense", heard=2**62),
        "recalled",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_error_is_refused_by_name_and_changes_nothing(name: str, world: World) -> None:
    planted, expected = PLANTED[name]
    shard = world.started()
    lease = granted(shard, acquire(world, mine(world)))
    assert said(one(shard, planted(world, shard, lease))) == expected
    page = one(shard, Inspect(after_domain="", leases_max=9, domain=lease.domain))
    assert isinstance(page, LeasePage)
    assert [(each.correlation_id, each.expiry_ns) for each in page.leases] == [(lease.correlation_id, lease.expiry_ns)]
    assert isinstance(one(shard, renew(world, lease)), Granted)


def test_there_are_as_many_as_are_promised() -> None:
    assert len(PLANTED) + len(SPOILED) >= 24


HELLO = msgspec.msgpack.encode([Hello(version=1, cluster_id=CLUSTER)])
MANY = msgspec.msgpack.encode([Inspect(after_domain="", leases_max=1)] * (REQUESTS_MAX + 1))
SPOILED: dict[str, tuple[bytes, str]] = {
    "a frame over the limit": (struct.pack(">I", REQUEST_FRAME_BYTES_MAX + 1), "frame-too-large"),
    "no msgpack": (struct.pack(">I", 3) + b"\xc1\xc1\xc1", "call-damaged"),
    "no list": (struct.pack(">I", 1) + b"\x01", "call-damaged"),
    "too many requests": (struct.pack(">I", len(MANY)) + MANY, "call-damaged"),
    "a request of no known kind": (struct.pack(">I", 8) + b"\x91\x91\xa5steal", "call-damaged"),
    "an answer instead of a request": (struct.pack(">I", 10) + b"\x91\x91\xa7granted", "call-damaged"),
    "a rest behind a call": (struct.pack(">I", len(HELLO) + 1) + HELLO + b"\xc0", "call-damaged"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_spoiled_frame_is_said_and_ends_the_connection_and_nothing_else(
    name: str, world: World, tmp_path: Path
) -> None:
    data, code = SPOILED[name]
    shard = world.started()
    lease = granted(shard, acquire(world, mine(world)))
    server = ShardServer(shard, tmp_path / "s", limits=ClientLimits(), clock=SystemClock())
    thread = Thread(target=server.run, daemon=True)
    thread.start()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as plain:
        plain.settimeout(20)
        plain.connect(str(tmp_path / "s"))
        plain.sendall(data)
        assert code.encode() in read_to_the_end(plain)
    server.stop()
    thread.join(20)
    assert isinstance(one(shard, renew(world, lease)), Granted)
