import os
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Lock, Thread

import msgspec
import pytest

from appliance.formats.lease import Phase
from appliance.lease import connection, wire
from appliance.lease.client import LeaseClient, LeaseGranted, LeaseUnavailable
from appliance.lease.connection import ClientLimits
from appliance.lease.server import ShardServer
from appliance.lease.sockets import Listener
from appliance.lease.transport import UnixTransport
from appliance.lease.wire import (
    LENGTH_BYTES,
    NO_REQUEST,
    REQUEST_FRAME_BYTES_MAX,
    REQUESTS_MAX,
    Hello,
    Inspect,
    LeasePage,
    Refused,
    Relinquish,
    Welcome,
    decode_answer,
    encode_answer,
    encode_call,
)
from tests.support.cluster import wait_until
from tests.support.shards import HOLDER, POLICY, RIVAL, World, acquire, granted, relinquish
from tests.support.transport import InProcessTransport
from tests.support.values import CLUSTER
from timeagent.clock import SystemClock
from timeagent.errors import BadRequest, Environment, ShardUnavailable
from timeagent.units import MS, SECOND

HELLO = Hello(version=1, cluster_id=CLUSTER)
PATIENCE_NS = 20 * SECOND


class Served:
    def __init__(self, tmp_path: Path, limits: ClientLimits | None = None) -> None:
        self.world = World(tmp_path)
        self.shard = self.world.started()
        self.path = tmp_path / "shard.sock"
        self.guard = Lock()
        self.server = ShardServer(self.shard, self.path, self.guard, limits=limits or ClientLimits(connections_max=8))
        self.thread = Thread(target=self.server.run)
        self.thread.start()

    def transport(self) -> UnixTransport:
        return UnixTransport(self.path, SystemClock())

    def client(self, transport: UnixTransport, seed: int = 1) -> LeaseClient:
        return LeaseClient(transport, self.world.time, POLICY, HOLDER, random.Random(seed))

    def raw(self) -> socket.socket:
        plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        plain.settimeout(20)
        plain.connect(str(self.path))
        return plain

    def answers(self) -> None:
        transport = self.transport()
        (reply,) = transport.call([HELLO], PATIENCE_NS)
        transport.close()
        assert isinstance(reply, Welcome)

    def end(self) -> None:
        self.server.stop()
        self.thread.join(20)
        assert not self.thread.is_alive()
        self.world.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    each = Served(tmp_path)
    yield each
    each.end()


def read_exactly(plain: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = plain.recv(size - len(data))
        assert part, "closed"
        data += part
    return data


def read_answer(plain: socket.socket, requests: int) -> list[object]:
    (length,) = struct.unpack(">I", read_exactly(plain, LENGTH_BYTES))
    return list(decode_answer(read_exactly(plain, length), requests))


def test_lease_is_taken_renewed_and_relinquished_over_a_socket(served: Served) -> None:
    transport = served.transport()
    client = served.client(transport)
    taken = client.acquire([f"d{n}" for n in range(40)])
    assert all(isinstance(each, LeaseGranted) for each in taken)
    witnesses = [each.witness for each in taken if isinstance(each, LeaseGranted)]
    assert all(isinstance(each, LeaseGranted) for each in client.renew(witnesses))
    client.relinquish([Relinquish(NO_REQUEST, each.domain, each.correlation_id) for each in witnesses])
    (page,) = transport.call([wire.Inspect(after_domain="", leases_max=1)], SECOND)
    assert isinstance(page, LeasePage)
    assert (page.numbers.domains, page.numbers.leases) == (40, 0)
    transport.close()


def test_two_clients_and_the_process_itself_share_one_shard(served: Served) -> None:
    one, two = served.transport(), served.transport()
    (mine,) = served.client(one, 1).acquire(["a"])
    (yours,) = served.client(two, 2).acquire(["a"])
    inside = LeaseClient(
        InProcessTransport(served.shard, served.guard), served.world.time, POLICY, RIVAL, random.Random(3)
    )
    (ours,) = inside.acquire(["a"])
    assert isinstance(mine, LeaseGranted)
    assert not isinstance(yours, LeaseGranted)
    assert not isinstance(ours, LeaseGranted)
    one.close()
    two.close()


# The bytes of a call may come in any pieces; two calls may come in one.
def test_half_frames_are_waited_for_and_joined(served: Served) -> None:
    plain = served.raw()
    frame = encode_call([HELLO])
    for at in range(len(frame)):
        plain.sendall(frame[at : at + 1])
    assert isinstance(read_answer(plain, 1)[0], Welcome)
    plain.sendall(frame + frame + frame[:3])
    assert isinstance(read_answer(plain, 1)[0], Welcome)
    assert isinstance(read_answer(plain, 1)[0], Welcome)
    plain.sendall(frame[3:])
    assert isinstance(read_answer(plain, 1)[0], Welcome)
    plain.close()


def test_many_calls_sent_at_once_are_all_answered_in_order(served: Served) -> None:
    plain = served.raw()
    calls = ClientLimits().calls_per_turn * 3 + 1
    requests = [acquire(served.world, f"d{n}") for n in range(calls)]
    plain.sendall(b"".join(encode_call([request]) for request in requests))
    answers = [read_answer(plain, 1)[0] for _ in range(calls)]
    assert [getattr(each, "request_id", None) for each in answers] == [request.request_id for request in requests]
    plain.close()


BAD_BYTES = [
    struct.pack(">I", REQUEST_FRAME_BYTES_MAX + 1),
    struct.pack(">I", 3) + b"abc",
    struct.pack(">I", 0),
    struct.pack(">I", 3) + b"\x93\x01\x02",
    b"GET / HTTP/1.1\r\n\r\n",
    struct.pack(">I", len(body := msgspec.msgpack.encode([["acquire", b"short"]]))) + body,
    struct.pack(">I", len(many := msgspec.msgpack.encode([HELLO] * (REQUESTS_MAX + 1)))) + many,
]


@pytest.mark.parametrize("garbage", BAD_BYTES)
def test_client_that_sends_garbage_loses_its_connection_and_nobody_else(served: Served, garbage: bytes) -> None:
    bystander = served.raw()
    plain = served.raw()
    plain.sendall(garbage)
    (why,) = read_answer(plain, 1)
    assert isinstance(why, Refused)
    assert why.code in ("frame-too-large", "call-damaged")
    assert plain.recv(1) == b""
    bystander.sendall(encode_call([HELLO]))
    assert isinstance(read_answer(bystander, 1)[0], Welcome)
    for each in (plain, bystander):
        each.close()


def test_client_that_dies_leaves_its_lease_and_the_server(served: Served) -> None:
    plain = served.raw()
    plain.sendall(encode_call([acquire(served.world, "a")]))
    plain.close()
    dead = served.raw()
    dead.sendall(encode_call([HELLO])[:5])
    dead.close()
    served.answers()
    with served.guard:
        (reply,) = served.shard.turn([acquire(served.world, "b")])
    assert reply is not None


# An answer that does not fit the socket stays with the server until it is read, and is then complete.
def test_client_that_reads_slowly_gets_whole_answers(served: Served) -> None:
    plain = served.raw()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    calls = [[acquire(served.world, f"{turn}-{n}") for n in range(200)] for turn in range(4)]
    for call in calls:
        plain.sendall(encode_call(list(call)))
    for call in calls:
        answers = read_answer(plain, len(call))
        assert [getattr(each, "request_id", None) for each in answers] == [each.request_id for each in call]
    plain.close()


def test_client_that_never_reads_is_cut_off(tmp_path: Path) -> None:
    served = Served(tmp_path, ClientLimits(output_bytes_max=100_000))
    plain = served.raw()
    plain.settimeout(20)
    calls = [encode_call([acquire(served.world, f"{turn}-{n}") for n in range(500)]) for turn in range(40)]
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        plain.sendall(b"".join(calls))
    plain.close()
    served.answers()
    assert served.server.counts.closed["unread"] == 1
    served.end()


def test_connection_beyond_the_limit_is_refused_and_an_end_makes_room(served: Served) -> None:
    open_ones = [served.raw() for _ in range(8)]
    for plain in open_ones:
        plain.sendall(encode_call([HELLO]))
        assert isinstance(read_answer(plain, 1)[0], Welcome)
    refused = served.raw()
    (why,) = read_answer(refused, 1)
    assert isinstance(why, Refused)
    assert why.code == "too-many-connections"
    assert refused.recv(1) == b""
    refused.close()
    for plain in open_ones:
        plain.close()
    served.answers()


def test_transport_opens_a_new_connection_after_the_server_came_back(tmp_path: Path) -> None:
    first = Served(tmp_path)
    transport = first.transport()
    assert isinstance(transport.call([HELLO], PATIENCE_NS)[0], Welcome)
    first.end()
    with pytest.raises(ShardUnavailable, match="no answer from the shard"):
        transport.call([HELLO], PATIENCE_NS)
    second = Served(tmp_path)
    assert isinstance(transport.call([HELLO], PATIENCE_NS)[0], Welcome)
    transport.close()
    second.end()


def test_call_without_an_answer_times_out_and_is_asked_again_on_a_new_connection(tmp_path: Path) -> None:
    path = tmp_path / "silent.sock"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(4)
    transport = UnixTransport(path, SystemClock())
    with pytest.raises(ShardUnavailable, match="timed out"):
        transport.call([HELLO], 1_000_000)
    assert transport._idle == []
    world = World(tmp_path)
    client = LeaseClient(
        transport, world.time, msgspec.structs.replace(POLICY, attempt_timeout_ns=1_000_000), HOLDER, random.Random(1)
    )
    (result,) = client.acquire(["a"])
    assert isinstance(result, LeaseUnavailable)
    assert result.code == "no-answer"
    transport.close()
    listener.close()


def test_answer_that_is_damaged_is_no_answer(tmp_path: Path) -> None:
    path = tmp_path / "odd.sock"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(4)
    good = encode_answer([Refused(request_id=bytes(16), code="a", message="b", hint="c")])

    def serve() -> None:
        for data in (good[:4] + b"\xff" * (len(good) - 4), struct.pack(">I", 2**31), encode_answer([]), good[:9]):
            accepted, _ = listener.accept()
            accepted.recv(1000)
            accepted.sendall(data)
            accepted.close()

    thread = Thread(target=serve)
    thread.start()
    transport = UnixTransport(path, SystemClock())
    for _ in range(4):
        with pytest.raises(ShardUnavailable):
            transport.call([HELLO], PATIENCE_NS)
    thread.join(20)
    listener.close()
    transport.close()


# A server that stops answers, and says so: the answer counts, and the next call finds another connection.
@pytest.mark.parametrize(("size", "pieces"), [(100, 1), (100, 60), (100_000, 3)])
def test_word_behind_an_answer_ends_the_connection_and_not_the_call(tmp_path: Path, size: int, pieces: int) -> None:
    path = tmp_path / "leaving.sock"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(4)
    good = encode_answer([Refused(request_id=bytes(range(16)), code="a", message="b" * size, hint="c")])
    word = encode_answer([Refused(request_id=NO_REQUEST, code="stopping", message="", hint="")])

    def serve() -> None:
        for _ in range(2):
            accepted, _ = listener.accept()
            with accepted:
                accepted.recv(1000)
                for at in range(0, len(good), step := len(good) // pieces + 1):
                    accepted.sendall(good[at : at + step] + (word if at + step >= len(good) else b""))

    thread = Thread(target=serve)
    thread.start()
    transport = UnixTransport(path, SystemClock())
    for _ in range(2):
        (reply,) = transport.call([HELLO], PATIENCE_NS)
        assert isinstance(reply, Refused)
        assert reply.code == "a"
    thread.join(20)
    listener.close()
    transport.close()


# Over one connection each would hear what the other asked for, and give the other's lease back.
def test_child_after_a_fork_calls_over_connections_of_its_own(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    transport = served.transport()
    for process, connections in ((1, 1), (1, 1), (2, 2), (2, 2)):
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        transport.call([HELLO], PATIENCE_NS)
        assert served.server.counts.accepted == connections
    transport.close()


class Turned(UnixTransport):
    """Says nothing before it has been turned away."""

    away = Event()

    def _check(self, connection: socket.socket) -> None:
        assert connection
        self.away.wait(20)


def test_who_is_turned_away_before_it_has_said_anything_hears_why(tmp_path: Path) -> None:
    transport = Turned(tmp_path / "full.sock", SystemClock(), HELLO)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(transport.path))
        listener.listen(4)

        def serve() -> None:
            with listener.accept()[0] as accepted:
                accepted.sendall(wire.refusal("too-many-connections", "this shard has all that it may have"))
            transport.away.set()

        thread = Thread(target=serve)
        thread.start()
        with pytest.raises(ShardUnavailable, match="this shard has all that it may have") as refused:
            transport.call([HELLO], PATIENCE_NS)
        thread.join(20)
    assert refused.value.code == "too-many-connections"


def test_call_over_its_limits_is_refused_before_it_is_sent(served: Served) -> None:
    transport = served.transport()
    with pytest.raises(BadRequest, match="exceed 1024 requests"):
        transport.call([HELLO] * (REQUESTS_MAX + 1), PATIENCE_NS)
    transport.close()


def test_client_splits_what_is_more_than_one_call(served: Served) -> None:
    transport = served.transport()
    results = served.client(transport).acquire([f"d{n}" for n in range(REQUESTS_MAX + 5)])
    assert len(results) == REQUESTS_MAX + 5
    assert all(isinstance(each, LeaseGranted) for each in results)
    transport.close()


def test_stopped_server_removes_its_socket_and_a_left_one_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "shard.sock"
    left = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    left.bind(str(path))
    left.close()
    served = Served(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    served.answers()
    served.end()
    served.server.stop()
    assert not path.exists()


def test_socket_that_cannot_be_made_is_an_error_with_the_way_out(tmp_path: Path) -> None:
    world = World(tmp_path)
    with pytest.raises(Environment, match="cannot listen"):
        ShardServer(world.started(), tmp_path / "no" / "such" / "directory" / "s")
    world.close()


def test_file_that_is_no_socket_is_left_where_it_lies(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_bytes(b"kept")
    with pytest.raises(Environment, match="in use"):
        Listener(path)
    assert path.read_bytes() == b"kept"


# The loop itself looks after the ceiling: nobody has to ask for it.
def test_server_extends_the_ceiling_while_leases_are_out(served: Served) -> None:
    with served.guard:
        granted(served.shard, acquire(served.world, "a"))
        served.world.time.advance(2 * SECOND)
    for _ in range(3):
        served.answers()
    with served.guard:
        assert sorted(served.world.chain.records) == [1, 2]


# Two daemons can meet where somebody deleted the directory under the first: its end must not cut off the second.
def test_stopped_server_leaves_a_socket_that_another_has_bound_meanwhile(tmp_path: Path) -> None:
    first = Served(tmp_path)
    first.path.unlink()
    second = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    second.bind(str(first.path))
    first.end()
    assert first.path.exists()
    second.close()


# -- answers that are held back ----------------------------------------------------------------------------------------


def held_back(served: Served, domain: str = "a") -> bytes:
    return encode_call([msgspec.structs.replace(acquire(served.world, domain), wait_ns=60 * SECOND)])


def waiting(served: Served) -> int:
    with served.guard:
        (page,) = served.shard.turn([Inspect(after_domain="", leases_max=1)])
    assert isinstance(page, LeasePage)
    return page.numbers.waiting


def test_waiter_is_answered_when_the_lease_is_given_back_by_another(served: Served) -> None:
    with served.guard:
        lease = granted(served.shard, acquire(served.world, "a"))
    plain = served.raw()
    plain.sendall(held_back(served))
    wait_until(SystemClock(), lambda: waiting(served) == 1)
    with served.guard:
        served.shard.turn([relinquish(served.world, lease)])
    assert isinstance(read_answer(plain, 1)[0], wire.Granted)
    plain.close()


# A prototype gave the lease to a dead waiter, and nobody could have it for a term.
def test_waiter_that_is_killed_gets_nothing_and_those_behind_it_are_served(served: Served) -> None:
    with served.guard:
        lease = granted(served.shard, acquire(served.world, "a"))
    dead, alive = served.raw(), served.raw()
    dead.sendall(held_back(served))
    wait_until(SystemClock(), lambda: waiting(served) == 1)
    alive.sendall(held_back(served))
    wait_until(SystemClock(), lambda: waiting(served) == 2)
    dead.close()
    wait_until(SystemClock(), lambda: waiting(served) == 1)
    with served.guard:
        served.shard.turn([relinquish(served.world, lease)])
    assert isinstance(read_answer(alive, 1)[0], wire.Granted)
    alive.close()


# A set is taken tentatively first; who dies then must not be in everybody's way for a term.
def test_tentative_leases_of_who_has_died_are_withdrawn_and_held_ones_are_not(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "GRACE_NS", 200 * MS)
    dead, alive = served.raw(), served.raw()
    tentative = [acquire(served.world, domain, phase=Phase.TENTATIVE) for domain in ("a", "b")]
    dead.sendall(encode_call([*tentative, acquire(served.world, "c")]))
    assert [type(each) for each in read_answer(dead, 3)] == [wire.Granted] * 3
    alive.sendall(held_back(served, "a"))
    wait_until(SystemClock(), lambda: waiting(served) == 1)
    dead.close()
    assert isinstance(read_answer(alive, 1)[0], wire.Granted)
    alive.sendall(encode_call([Inspect(after_domain="", leases_max=9)]))
    (page,) = read_answer(alive, 1)
    assert isinstance(page, LeasePage)
    assert [(each.domain, each.phase) for each in page.leases] == [("a", Phase.HELD), ("c", Phase.HELD)]
    alive.close()


def test_tentative_lease_of_who_asks_on_over_another_connection_stays(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "GRACE_NS", 200 * MS)
    first, second = served.raw(), served.raw()
    for plain, domain in ((first, "a"), (second, "b")):
        plain.sendall(encode_call([acquire(served.world, domain, phase=Phase.TENTATIVE)]))
        assert isinstance(read_answer(plain, 1)[0], wire.Granted)
    first.close()
    clock = SystemClock()
    until = clock.boot_ns() + 2 * connection.GRACE_NS
    while clock.boot_ns() < until:
        with served.guard:
            (page,) = served.shard.turn([Inspect(after_domain="", leases_max=9)])
        assert isinstance(page, LeasePage)
        assert len(page.leases) == 2
        clock.sleep(100 * MS)
    second.close()
    wait_until(clock, lambda: served.shard._store.leases == 0)


def test_answers_behind_one_that_is_held_back_wait_for_it_in_their_order(served: Served) -> None:
    with served.guard:
        lease = granted(served.shard, acquire(served.world, "a"))
    plain = served.raw()
    plain.sendall(held_back(served) + encode_call([HELLO]) + encode_call([acquire(served.world, "b")]))
    wait_until(SystemClock(), lambda: waiting(served) == 1)
    with served.guard:
        served.shard.turn([relinquish(served.world, lease)])
    answers = [read_answer(plain, 1)[0] for _ in range(3)]
    assert [type(each) for each in answers] == [wire.Granted, Welcome, wire.Granted]
    plain.close()


def test_process_that_waits_for_one_lease_goes_on_with_others(served: Served) -> None:
    transport = served.transport()
    mine, rival = served.client(transport, 1), served.client(transport, 2)
    (first,) = mine.acquire(["a"])
    assert isinstance(first, LeaseGranted)
    got: list[object] = []
    thread = Thread(target=lambda: got.extend(rival.acquire(["a"], wait_ns=60 * SECOND)), daemon=True)
    thread.start()
    wait_until(SystemClock(), lambda: waiting(served) == 1)
    assert isinstance(mine.renew([first.witness])[0], LeaseGranted)
    mine.relinquish([Relinquish(NO_REQUEST, "a", first.witness.correlation_id)])
    thread.join(20)
    assert isinstance(got[0], LeaseGranted)
    transport.close()


def test_listener_removes_its_file_while_no_other_can_have_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, removed = tmp_path / "a.sock", []
    listener = Listener(path)
    unlink = Path.unlink

    def look(self: Path, *, missing_ok: bool = False) -> None:
        removed.append((self, listener.socket.fileno() >= 0))
        unlink(self, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", look)
    listener.close()
    assert removed == [(path, True)], "once the socket is closed, another file may have the inode's number"
    listener.close()
    other = Listener(path)
    listener.close()
    assert path.exists(), "the file is another's"
    other.close()
    assert not path.exists()
