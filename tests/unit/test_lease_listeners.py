"""The door for other nodes: who comes in is who the trust record says, and nobody else costs a shard anything."""

from __future__ import annotations

import errno
import random
import socket
import ssl
import struct
from datetime import UTC, datetime
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest

from appliance.lease import listeners, tls
from appliance.lease.client import LeaseClient, LeaseGranted
from appliance.lease.connection import ClientLimits
from appliance.lease.listeners import BoundedListener, TlsListener, Visitor
from appliance.lease.server import ShardServer
from appliance.lease.wire import Refused, Welcome, encode_call
from tests.support.certificates import Certificates
from tests.support.cluster import wait_until
from tests.support.nodes import DoorWorld, entry, hello, read_answer, read_to_the_end, tls_key
from tests.support.shards import HOLDER, POLICY, acquire
from tests.support.values import NOW_NS
from timeagent.errors import Environment, NotTrusted, ShardUnavailable
from timeagent.keys import Purpose, Signer
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from appliance.lease.transport import TlsTransport

PATIENCE_NS = 20 * SECOND


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DoorWorld]:
    each = DoorWorld(tmp_path)
    yield each
    each.close()


def greet(transport: TlsTransport) -> Welcome:
    (reply,) = transport.call([hello("node-b")], PATIENCE_NS)
    assert isinstance(reply, Welcome)
    return reply


def refused(transport: TlsTransport) -> ShardUnavailable:
    with pytest.raises(ShardUnavailable) as caught:
        transport.call([hello("node-b")], PATIENCE_NS)
    transport.close()
    return caught.value


def test_node_takes_a_lease_of_another_node(world: DoorWorld) -> None:
    transport = world.transport()
    client = LeaseClient(transport, world.world.time, POLICY, HOLDER, random.Random(1))
    taken = client.acquire([f"d{n}" for n in range(300)])
    assert all(isinstance(each, LeaseGranted) for each in taken)
    assert all(isinstance(each, LeaseGranted) for each in client.renew([each.witness for each in taken]))  # type: ignore[union-attr]
    assert world.door.let_in == 1
    transport.close()


def test_only_the_newest_protocol_of_tls_is_spoken(world: DoorWorld) -> None:
    old = tls.client_context(tls_key("node-b"))
    old.minimum_version = ssl.TLSVersion.TLSv1_2
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        world.raw(old)
    connection = world.raw()
    assert connection.version() == "TLSv1.3"
    connection.close()


# -- keys --------------------------------------------------------------------------------------------------------------


def test_node_that_is_not_in_the_trust_record_is_told_so(world: DoorWorld) -> None:
    answer = refused(world.transport("node-x", hello("node-x")))
    assert answer.code == "not-trusted"
    assert "is not in the trust record" in answer.message
    wait_until(world.clock, lambda: world.trust.looks > 0)  # it may have joined a moment ago


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"revoked_from_ns": NOW_NS}, "revoked"),
        ({"valid_until_ns": NOW_NS}, "not valid at"),
        ({"valid_from_ns": NOW_NS + 1}, "not valid at"),
        ({"purpose": Purpose.WITNESS}, "is for witness"),
    ],
)
def test_node_whose_key_does_not_count_is_told_why(world: DoorWorld, changes: dict[str, object], why: str) -> None:
    address = str(world.door.address)
    world.trust.put(entry("node-a", address), entry("node-b", None, **changes))
    answer = refused(world.transport())
    assert answer.code == "not-trusted"
    assert why in answer.message


def test_living_connection_of_a_revoked_node_ends_at_once_and_others_stay(world: DoorWorld) -> None:
    revoked, other = world.raw(), world.transport("node-c", hello("node-c"))
    revoked.sendall(encode_call([hello("node-b")]))
    assert isinstance(read_answer(revoked)[0], Welcome)
    other.call([hello("node-c")], PATIENCE_NS)
    assert world.server.connections == 2
    kept = entry("node-a", str(world.door.address)), entry("node-c")
    world.trust.put(*kept, entry("node-b", None, revoked_from_ns=NOW_NS))
    (why,) = read_answer(revoked)  # nothing was asked: the server says so by itself, within a tick
    assert isinstance(why, Refused)
    assert why.code == "not-trusted"
    assert "revoked" in why.message
    assert revoked.recv(1) == b""
    other.call([hello("node-c")], PATIENCE_NS)
    other.close()
    revoked.close()


def test_holder_leaves_a_server_whose_key_was_revoked(world: DoorWorld) -> None:
    transport = world.transport()
    greet(transport)
    gone = entry("node-a", str(world.door.address), revoked_from_ns=NOW_NS)
    world.trust.put(gone, entry("node-b"))
    with pytest.raises(ShardUnavailable) as caught:
        transport.call([hello("node-b")], PATIENCE_NS)
    assert caught.value.code == "peer-not-trusted"
    assert caught.value.message.startswith("whoever answers at node-a")  # it did answer
    assert "trust rotate --purpose tls" in caught.value.hint
    assert transport._idle == []


def test_holder_says_nothing_to_another_node_than_the_one_it_meant(world: DoorWorld) -> None:
    world.trust.put(entry("node-a"), entry("node-b"), entry("node-c", str(world.door.address)))
    answer = refused(world.transport(to="node-c"))
    assert answer.code == "peer-not-trusted"
    assert "node-a" in answer.message
    wait_until(world.clock, lambda: world.door.visitors == 0)
    assert world.door.let_in == 0


def test_certificate_by_another_issuer_ends_the_handshake(world: DoorWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "_ISSUER_SEED", bytes(32))
    foreign = tls.certificate(tls_key("node-b").public)
    monkeypatch.undo()
    connection = world.raw(tls.client_context(tls_key("node-b"), own=foreign))
    with pytest.raises(ssl.SSLError, match=r"(?i)unknown.ca"):
        connection.recv(1)
    connection.close()
    wait_until(world.clock, lambda: world.door.refused["tls"] == 1)


def test_certificate_out_of_date_ends_the_handshake(world: DoorWorld) -> None:
    key = tls_key("node-b")
    past = tls.certificate(key.public, start=datetime(2001, 1, 1, tzinfo=UTC), end=datetime(2002, 1, 1, tzinfo=UTC))
    connection = world.raw(tls.client_context(key, own=past))
    with pytest.raises(ssl.SSLError, match=r"(?i)expired"):
        connection.recv(1)
    connection.close()


def test_no_certificate_at_all_ends_the_handshake(world: DoorWorld) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    connection = world.raw(context)
    with pytest.raises(ssl.SSLError):
        connection.recv(1)
    connection.close()
    wait_until(world.clock, lambda: world.door.refused["tls"] == 1)


# Anybody can issue a certificate for any key. Without the key itself that is worth nothing.
def test_certificate_of_a_key_that_one_does_not_have_cannot_be_shown() -> None:
    with pytest.raises(ssl.SSLError):
        tls.client_context(Signer(bytes(32)), own=tls.certificate(tls_key("node-b").public))


def test_certificate_of_a_key_is_always_the_same() -> None:
    public = tls_key("node-b").public
    assert tls.certificate(public) == tls.certificate(public)


# -- certificates that TLS takes, and nobody can read ------------------------------------------------------------------


def bad_certificates(node: str) -> dict[str, bytes]:
    made = Certificates(tls_key(node).public, random.Random(1))
    return {
        "version 5": made.with_version(4),
        "bad string": made.with_name(0x13, b"what is not printable: \xff*@"),
        "bad text": made.with_name(0x14, b"\xff\xfe"),  # read only when somebody asks for the name
    }


@pytest.mark.parametrize("kind", ["version 5", "bad string", "bad text"])
def test_certificate_that_cannot_be_read_is_refused_and_the_door_stays(world: DoorWorld, kind: str) -> None:
    connection = world.raw(tls.client_context(tls_key("node-b"), own=bad_certificates("node-b")[kind]))
    connection.sendall(encode_call([hello("node-b")]))
    (answer,) = read_answer(connection)
    if kind == "bad text":
        assert isinstance(answer, Welcome)
    else:
        assert isinstance(answer, Refused)
        assert answer.code == "not-trusted"
        assert "cannot be read" in answer.message
    connection.close()
    greet(transport := world.transport())
    transport.close()


@pytest.mark.parametrize("kind", ["version 5", "bad string", "bad text"])
def test_impostor_with_a_certificate_that_cannot_be_read_is_an_error_with_a_code(tmp_path: Path, kind: str) -> None:
    world = DoorWorld(tmp_path, shown=bad_certificates("node-a")[kind])
    if kind != "bad text":
        answer = refused(world.transport())
        assert answer.code == "bad-certificate"
        assert answer.hint
    with pytest.raises(NotTrusted) as caught:
        world.transport().release(PATIENCE_NS)
    assert caught.value.code == "bad-certificate"
    world.close()


# Whatever it is that nobody thought of: one connection ends, and the door goes on.
def test_what_nobody_expected_ends_a_connection_and_not_the_door(
    world: DoorWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def planted(_: object) -> bytes:
        raise RuntimeError("planted")

    with monkeypatch.context() as patched:
        patched.setattr(TlsListener, "_judged", planted)
        connection = world.raw()
        read_to_the_end(connection)
    assert "visitor-failed" in caplog.text
    assert world.door.refused["unexpected"] == 1
    greet(transport := world.transport())
    transport.close()


# -- hello -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "code", "why"),
    [
        ({"version": 2}, "protocol-version", "version 2 was offered"),
        ({"version": 0}, "protocol-version", "version 0 was offered"),
        ({"cluster_id": bytes(16)}, "other-cluster", bytes(16).hex()),
        ({"node": "node-c"}, "other-node", "the key of node-b"),
        ({"shard": 7}, "not-here", "shard 7"),
        ({"shard": None}, "not-here", "shard"),
    ],
)
def test_hello_that_does_not_fit_is_refused_with_the_reason(
    world: DoorWorld, changes: dict[str, object], code: str, why: str
) -> None:
    answer = refused(world.transport(greeting=hello("node-b", **changes)))
    assert answer.code == code
    assert why in answer.message
    assert world.door.refused[code] == 1
    assert world.server.connections == 0


def test_shard_that_runs_here_no_more_is_said_so(world: DoorWorld) -> None:
    world.serving = None
    assert refused(world.transport()).code == "not-here"


def test_node_that_comes_to_a_shard_that_has_just_broken_is_not_left_waiting(
    world: DoorWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = ShardServer(world.world.started(), tmp_path / "broken.sock", trust=world.trust)
    monkeypatch.setattr(broken, "_loop_once", lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        broken.run()
    here, there = socket.socketpair()
    with here, there:
        broken.adopt(here, "node-b", bytes(32), b"")
        there.settimeout(1)
        assert there.recv(1) == b""


@pytest.mark.parametrize(
    "first",
    [
        encode_call([hello("node-b"), hello("node-b")]),
        encode_call([]),
        struct.pack(">I", listeners.HELLO_BYTES_MAX + 1),
        struct.pack(">I", 4) + b"\xff\xff\xff\xff",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_hello_is_refused(world: DoorWorld, first: bytes) -> None:
    connection = world.raw()
    connection.sendall(first)
    (why,) = read_answer(connection)
    assert isinstance(why, Refused)
    assert why.code in ("hello-expected", "frame-too-large", "call-damaged")
    connection.close()
    assert world.server.counts.requests == 0


def test_call_right_behind_the_hello_is_served(world: DoorWorld) -> None:
    connection = world.raw()
    wanted = [acquire(world.world, f"d{n}") for n in range(600)]
    connection.sendall(encode_call([hello("node-b")]) + encode_call(list(wanted)))
    assert isinstance(read_answer(connection)[0], Welcome)
    assert len(read_answer(connection, 600)) == 600
    connection.close()


def test_hello_in_pieces_is_waited_for(world: DoorWorld) -> None:
    connection = world.raw()
    for byte in encode_call([hello("node-b")]):
        connection.sendall(bytes([byte]))
    assert isinstance(read_answer(connection)[0], Welcome)
    connection.close()


# -- bad company -------------------------------------------------------------------------------------------------------


def test_who_says_nothing_is_turned_away_and_nobody_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "STAY_NS", SECOND // 5)
    world = DoorWorld(tmp_path)
    mute = [socket.create_connection(("127.0.0.1", world.door.address.port), timeout=20) for _ in range(3)]
    silent = world.raw()
    greet(transport := world.transport())
    transport.close()
    for each in mute:
        read_to_the_end(each)
        each.close()
    assert isinstance(read_answer(silent)[0], Refused)
    silent.close()
    assert world.door.refused["too-slow"] == 4
    world.close()


def test_threshold_is_bounded_and_who_waits_comes_in_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "PLACES", 4)
    monkeypatch.setattr(listeners, "STAY_NS", SECOND // 5)
    world = DoorWorld(tmp_path)
    mute = [socket.create_connection(("127.0.0.1", world.door.address.port), timeout=20) for _ in range(12)]
    transport = world.transport()
    greet(transport)
    assert world.door.visitors <= 4
    for each in mute:
        each.close()
    transport.close()
    world.close()


# A few hundred connections that say nothing are cheap to make, and every node may have to come in at any time.
def test_nobody_waits_for_a_crowd_that_says_nothing(world: DoorWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "STAY_NS", 10_000 * SECOND)
    mute = [socket.create_connection(("127.0.0.1", world.door.address.port), timeout=20) for _ in range(600)]
    greet(transport := world.transport())
    transport.close()
    for each in mute:
        each.close()


def test_those_of_the_address_with_the_most_places_make_room_first() -> None:
    nobody: Any = None
    ours, theirs = [Visitor(nobody, 0, "::1") for _ in range(2)], Visitor(nobody, 0, "::2")
    late = Visitor(nobody, listeners.PATIENCE_NS, "::1")
    left: list[Visitor] = []

    class Crowd(BoundedListener):
        _go_on = nobody

        def __init__(self) -> None:
            self._visitors = dict(enumerate((theirs, *ours, late)))

        def _send_away(self, visitor: Visitor) -> None:
            left.append(visitor)

    assert Crowd()._made_room(listeners.PATIENCE_NS)
    assert left == ours[:1]
    assert not Crowd()._made_room(listeners.PATIENCE_NS - 1)


@pytest.mark.parametrize(
    "junk", [b"", b"\x16\x03\x01", b"\x00" * 5000, b"GET / HTTP/1.0\r\n\r\n", bytes(range(256)) * 9]
)
def test_what_is_no_tls_costs_nobody_anything(world: DoorWorld, junk: bytes) -> None:
    plain = socket.create_connection(("127.0.0.1", world.door.address.port), timeout=20)
    plain.sendall(junk)
    plain.close()
    greet(transport := world.transport())
    transport.close()
    wait_until(world.clock, lambda: world.door.visitors == 0)


def test_node_has_only_so_many_connections_and_another_node_has_its_own(tmp_path: Path) -> None:
    world = DoorWorld(tmp_path, ClientLimits(connections_per_peer=2))
    first, second, third = (world.transport() for _ in range(3))
    greet(first)
    greet(second)
    assert refused(third).code == "too-many-connections"
    other = world.transport("node-c", hello("node-c"))
    other.call([hello("node-c")], PATIENCE_NS)
    for each in (first, second, other):
        each.close()
    wait_until(world.clock, lambda: world.server.connections == 0)
    greet(third)
    third.close()
    world.close()


def test_address_that_is_taken_is_an_error_with_the_way_out(world: DoorWorld) -> None:
    with pytest.raises(Environment, match="cannot listen") as caught:
        TlsListener(
            world.door.address,
            tls.server_context(tls_key("node-a")),
            world.trust,
            bytes(16),
            lambda _: None,
            world.clock,
        )
    assert caught.value.hint


def test_node_without_an_address_is_named(world: DoorWorld) -> None:
    world.trust.put(entry("node-a"), entry("node-b"))
    answer = refused(world.transport())
    assert answer.code == "no-address"
    assert "tenure trust" in answer.hint


# As with a name that has an address of IPv6 where a firewall drops that: each address has its share of the time.
def test_node_is_reached_whose_name_has_an_address_that_does_not_answer(
    world: DoorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as silent, socket.socket() as first, socket.socket() as more:
        for each in (first, more):  # its queue is full: whoever else connects hears nothing
            each.settimeout(0)
            each.connect_ex(silent.getsockname())
        port, resolved = world.door.address.port, socket.getaddrinfo
        places = [silent.getsockname(), ("127.0.0.1", port)]
        named = {("node-a.test", port): [(socket.AF_INET, socket.SOCK_STREAM, 6, "", each) for each in places]}
        monkeypatch.setattr(
            socket,
            "getaddrinfo",
            lambda host, port, *rest, **more: named.get((host, port)) or resolved(host, port, *rest, **more),
        )
        world.trust.put(entry("node-a", f"node-a.test:{port}"), entry("node-b"))
        transport = world.transport()
        (reply,) = transport.call([hello("node-b")], 4 * SECOND)
        assert isinstance(reply, Welcome)


# One thread renews the leases of all shards: those of the others would be lost while it waits for the resolver.
def test_resolver_that_does_not_answer_is_waited_for_no_longer_than_the_call_lasts(
    world: DoorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, resolved, go = world.door.address.port, socket.getaddrinfo, Event()
    asked = list[object]()

    def stuck(host: str, *rest: Any, **more: Any) -> Any:  # noqa: ANN401 - as the resolver
        if host != "node-a.test" or more.get("flags"):
            return resolved(host, *rest, **more)
        asked.append(host)
        assert go.wait(30)
        return resolved("127.0.0.1", *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", stuck)
    world.trust.put(entry("node-a", f"node-a.test:{port}"), entry("node-b"))
    transport = world.transport()
    told = list[str]()

    def call() -> None:
        for _ in range(2):
            with pytest.raises(ShardUnavailable) as caught:
                transport.call([hello("node-b")], SECOND // 20)
            told.append(caught.value.message.rpartition(": ")[2])

    thread = Thread(target=call, daemon=True)
    thread.start()
    thread.join(10)
    waited = thread.is_alive()
    go.set()
    thread.join(30)
    assert not waited
    assert (told, len(asked)) == (["the resolver says nothing of node-a.test"] * 2, 1)
    (reply,) = transport.call([hello("node-b")], 20 * SECOND)
    assert isinstance(reply, Welcome)


def test_node_that_moved_is_found_by_the_next_connection(world: DoorWorld, tmp_path: Path) -> None:
    transport = world.transport()
    greet(transport)
    (tmp_path / "other").mkdir()
    other = DoorWorld(tmp_path / "other")
    world.trust.put(entry("node-a", str(other.door.address)), entry("node-b"))
    world.door.stop()
    world.server.stop()
    for thread in world.threads:
        thread.join(20)
    greet(transport)
    assert other.door.let_in == 1
    transport.close()
    other.close()


# The connection stays in the kernel's queue; the listener, ready all the while, must not keep the loop busy.
def test_door_without_descriptors_lets_in_later(world: DoorWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = 0

    def accept(_: socket.socket) -> tuple[socket.socket, object]:
        nonlocal failed
        failed += 1
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(socket.socket, "accept", accept)
        waiting = socket.create_connection(("127.0.0.1", world.door.address.port), timeout=20)
        wait_until(world.clock, lambda: failed >= 2)
        assert world.door.visitors == 0
    connection = tls.client_context(tls_key("node-b")).wrap_socket(waiting)
    connection.sendall(encode_call([hello("node-b")]))
    assert isinstance(read_answer(connection)[0], Welcome)
    connection.close()
    assert failed < 100
