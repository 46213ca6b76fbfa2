"""Each limit of the wire at its exact value: up to it all is as ever, and one more is refused, put off or cut off."""

from __future__ import annotations

import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from appliance.formats.lease import Phase
from appliance.lease import tls
from appliance.lease.connection import GRACE_NS, ClientLimits, Connection, Peer, TentativeLeaseReaper
from appliance.lease.transport import SocketTransport, UnixTransport
from appliance.lease.wire import (
    LENGTH_BYTES,
    PROTOCOL_VERSION,
    REPLY_FRAME_BYTES_MAX,
    REQUEST_FRAME_BYTES_MAX,
    Acquire,
    Denied,
    Granted,
    Hello,
    Inspect,
    Refused,
    Unavailable,
    Welcome,
    Withdraw,
    body_length,
    encode_answer,
    encode_call,
)
from tests.support.loops import HandServer
from tests.support.nodes import read_answer, tls_key
from tests.support.shards import HOLDER, World, acquire
from tests.support.values import CLUSTER
from timeagent.clock import SystemClock
from timeagent.errors import Damaged, ShardUnavailable
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

type Serve = Callable[[ClientLimits], HandServer]

HELLO = encode_call([Hello(version=PROTOCOL_VERSION, cluster_id=CLUSTER)])
FULL = dict.fromkeys(("connections_max", "connections_per_peer"), 2)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    made: list[HandServer] = []

    def make(limits: ClientLimits) -> HandServer:
        made.append(HandServer(tmp_path, limits))
        return made[-1]

    yield make
    for each in made:
        each.close()


def code(reply: object) -> str:
    assert isinstance(reply, Refused)
    return reply.code


def waiting(served: HandServer, domain: str = "a") -> Acquire:
    return msgspec.structs.replace(acquire(served.world, domain), wait_ns=60 * SECOND)


# -- frames ------------------------------------------------------------------------------------------------------------


def head(length: int) -> bytes:
    return struct.pack(">I", length)


def test_frame_as_long_as_it_may_be_is_taken_and_one_byte_more_is_not() -> None:
    assert body_length(head(100), 100) == 100
    with pytest.raises(Damaged, match="a frame of 101 bytes exceeds the limit of 100"):
        body_length(head(101), 100)


def test_call_longer_than_a_call_may_be_is_refused_by_its_head() -> None:
    here, there = socket.socketpair()
    with here, there:
        connection = Connection(here, Peer("process 1"), 0, bytearray(head(REQUEST_FRAME_BYTES_MAX)))
        assert connection.next_frame(0) is None  # the rest is waited for
        connection.received = bytearray(head(REQUEST_FRAME_BYTES_MAX + 1))
        with pytest.raises(Damaged, match="exceeds the limit"):
            connection.next_frame(0)


# Else each byte of a slow sender costs the shard's thread a copy of all that came before.
def test_what_comes_piece_by_piece_is_gathered_in_place() -> None:
    here, there = socket.socketpair()
    with here, there:
        connection = Connection(here, Peer("process 1"), 0)
        gathered = connection.received
        for piece in (head(3), b"a", b"bc"):
            there.sendall(piece)
            assert connection.receive()
            assert connection.received is gathered
        assert connection.next_frame(0) == len(gathered)


def test_answer_longer_than_an_answer_may_be_is_not_read() -> None:
    here, there = socket.socketpair()
    transport = UnixTransport(Path("nowhere"), clock := SystemClock())
    with here, there:
        there.sendall(head(REPLY_FRAME_BYTES_MAX + 1))
        with pytest.raises(Damaged, match="exceeds the limit"):
            transport._exchange(here, HELLO, clock.boot_ns() + SECOND)


# 256 revocations may stand beside each renewal of one session lease, and a call holds a thousand.
def test_who_asks_for_more_than_fits_in_an_answer_is_told_so_and_nobody_else_notices(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.lease.wire.REPLY_FRAME_BYTES_MAX", 4096)
    served = serve(ClientLimits())
    line, other = served.line(), served.line()
    line.sendall(encode_call([acquire(served.world, f"d{n}") for n in range(20)]))
    other.sendall(HELLO)
    served.rounds()
    (told,) = read_answer(line)
    assert code(told) == "answer-too-large"
    assert isinstance(served.told(other), Welcome)
    transport = UnixTransport(served.path, SystemClock())
    with pytest.raises(ShardUnavailable, match="exceeds the limit of 4096") as refused:
        transport._replies(memoryview(encode_answer([told])[LENGTH_BYTES:]), [Inspect(after_domain="", leases_max=1)])
    assert refused.value.hint == "ask in several calls"


# -- connections -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", FULL)
def test_as_many_connections_as_there_may_be_are_in_and_the_next_is_told(serve: Serve, limit: str) -> None:
    served = serve(ClientLimits(**{limit: FULL[limit]}))
    first, second = served.line(), served.line()
    assert served.server.connections == 2
    assert code(served.told(served.line())) == "too-many-connections"
    for line in (first, second):
        line.sendall(HELLO)
        served.rounds()
        assert isinstance(served.told(line), Welcome)


@pytest.mark.parametrize("limit", FULL)
def test_connection_that_ends_makes_room_for_one(serve: Serve, limit: str) -> None:
    served = serve(ClientLimits(**{limit: FULL[limit]}))
    first, _ = served.line(), served.line()
    first.close()
    served.rounds()
    third = served.line()
    third.sendall(HELLO)
    served.rounds()
    assert isinstance(served.told(third), Welcome)
    assert code(served.told(served.line())) == "too-many-connections"


def test_connection_is_idle_for_so_long_and_not_a_nanosecond_longer(serve: Serve) -> None:
    served = serve(ClientLimits(idle_ns=10 * SECOND))
    served.line()
    served.rounds(after_ns=10 * SECOND)
    assert served.server.connections == 1
    served.rounds(after_ns=SECOND)
    assert served.server.connections == 0
    assert served.server.counts.closed["idle"] == 1


def test_who_waits_for_a_lease_is_not_idle(serve: Serve) -> None:
    served = serve(ClientLimits(idle_ns=10 * SECOND))
    line = served.line()
    line.sendall(encode_call([acquire(served.world, "a")]) + encode_call([waiting(served)]))
    served.rounds()
    served.rounds(after_ns=20 * SECOND)
    assert served.server.connections == 1


# -- waiters -----------------------------------------------------------------------------------------------------------


def test_as_many_wait_as_may_and_the_next_is_denied_at_once_until_one_waits_no_more(serve: Serve) -> None:
    served = serve(ClientLimits(waiters_per_peer=2))
    holder, one, other, third = (served.line() for _ in range(4))
    holder.sendall(encode_call([acquire(served.world, "a")]))
    served.rounds()
    assert isinstance(served.told(holder), Granted)
    peer = next(iter(served.server._peers.values()))
    for line in (one, other):
        line.sendall(encode_call([waiting(served)]))
        served.rounds()
    assert peer.waiting == 2
    third.sendall(encode_call([waiting(served)]))
    served.rounds()
    assert isinstance(served.told(third), Denied)
    one.close()
    served.rounds()
    assert peer.waiting == 1
    third.sendall(encode_call([waiting(served)]))
    served.rounds()
    assert peer.waiting == 2


def test_connection_is_owed_so_many_calls_and_cut_off_for_one_more(serve: Serve) -> None:
    served = serve(ClientLimits(owed_per_connection=2))
    holder, line = served.line(), served.line()
    holder.sendall(encode_call([acquire(served.world, "a")]))
    served.rounds()
    for _ in range(2):
        line.sendall(encode_call([waiting(served)]))
        served.rounds()
    assert served.server.connections == 2
    line.sendall(HELLO)
    served.rounds()
    assert served.server.connections == 1
    assert code(served.told(line)) == "too-many-waiting"


# -- rate --------------------------------------------------------------------------------------------------------------


def test_peer_asks_so_much_at_once_and_then_as_much_as_time_gives(serve: Serve) -> None:
    served = serve(ClientLimits(requests_per_second=5, burst=10))
    line = served.line()
    line.sendall(HELLO * 30)
    served.rounds()
    assert served.answered == 10
    served.rounds(after_ns=SECOND)
    assert served.answered == 15
    served.rounds(after_ns=SECOND - 1)
    assert served.answered == 19
    served.rounds(after_ns=3600 * SECOND)  # a long pause is worth no more than a burst
    assert served.answered == 29


def test_call_counts_by_its_requests_and_for_all_connections_of_a_peer(serve: Serve) -> None:
    served = serve(ClientLimits(requests_per_second=5, burst=10))
    first, second = served.line(), served.line()
    first.sendall(encode_call([Hello(version=PROTOCOL_VERSION, cluster_id=CLUSTER)] * 10))
    served.rounds()
    assert served.answered == 10
    second.sendall(HELLO)
    first.sendall(HELLO)
    served.rounds()
    assert served.answered == 10


# Otherwise who is refused its measure would only have to connect anew.
def test_peer_that_leaves_and_comes_back_has_no_new_measure(serve: Serve) -> None:
    served = serve(ClientLimits(requests_per_second=5, burst=10))
    first = served.line()
    first.sendall(HELLO * 10)
    served.rounds()
    first.close()
    served.rounds()
    served.rounds(after_ns=200 * MS)
    again = served.line()
    again.sendall(HELLO * 10)
    served.rounds()
    assert served.answered == 11


def test_turn_takes_so_many_calls_of_one_connection_and_so_many_requests(serve: Serve) -> None:
    served = serve(ClientLimits(calls_per_turn=3, requests_per_turn=6))
    one, other, third = (served.line() for _ in range(3))
    for line in (one, other, third):
        line.sendall(HELLO * 4)
    done = []
    for _ in range(5):
        served.rounds(1)
        done.append(served.answered)
    assert done == [6, 11, 12, 12, 12]


# -- slow readers and slow writers -------------------------------------------------------------------------------------


def unread(served: HandServer) -> Connection:
    """Have a connection whose client does not read."""
    line = served.line()
    line.sendall(encode_call([acquire(served.world, f"d{n}") for n in range(900)]))
    served.rounds(20)
    (connection,) = served.server._connections.values()
    assert connection.unsent
    return connection


def test_reader_that_stands_still_is_cut_off_after_so_long_and_not_before(serve: Serve) -> None:
    served = serve(ClientLimits(unread_ns=10 * SECOND))
    unread(served)
    served.rounds(after_ns=10 * SECOND)
    assert served.server.connections == 1
    served.rounds(after_ns=SECOND)
    assert served.server.connections == 0
    assert served.server.counts.closed["unread"] == 1


def test_reader_that_reads_a_little_has_its_time_anew(serve: Serve) -> None:
    served = serve(ClientLimits(unread_ns=10 * SECOND))
    connection = unread(served)
    (line,) = served._lines
    served.clock.now += 9 * SECOND
    left = len(connection.unsent)
    while len(connection.unsent) == left:
        line.recv(65536)
        served.rounds(1)
    assert connection.unsent
    served.rounds(after_ns=9 * SECOND)
    assert served.server.connections == 1


# TLS says how much of a write has gone only once all of it has: a slow reader of a megabyte seemed to stand still.
def test_what_a_reader_by_tls_has_taken_is_seen_record_by_record() -> None:
    here, there = socket.socketpair()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(tls.client_context(tls_key("node-b")).wrap_socket, there)
        with (
            tls.server_context(tls_key("node-a")).wrap_socket(here, server_side=True) as writes,
            reading.result() as reads,
        ):
            writes.settimeout(0)
            connection = Connection(writes, Peer("node node-b"), 0)
            connection.unsent += bytes(4 * 1024 * 1024)
            assert connection.send() > 0
            for _ in range(4):
                reads.recv(16 * 1024)
            assert connection.send() > 0


def test_reader_leaves_so_many_bytes_unread_and_is_cut_off_for_one_more(serve: Serve) -> None:
    served = serve(ClientLimits(output_bytes_max=10_000_000))
    connection = unread(served)
    for more, stays in ((0, True), (1, False)):
        connection.unsent += bytes(10_000_000 - len(connection.unsent) + more)
        served.server._send(connection)
        assert connection.open is stays
    assert served.server.counts.closed["unread"] == 1


# A process may have one session after another over a connection that lives on: each of them is another holder.
def test_holders_of_a_connection_are_known_up_to_so_many_and_the_one_heard_longest_ago_is_forgotten(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.lease.connection.HOLDERS_MAX", 3)
    here, there = socket.socketpair()
    with here, there:
        reaper, only, shared = (
            TentativeLeaseReaper(),
            *(Connection(each, Peer("process 1"), 0) for each in (here, there)),
        )
        holders = [msgspec.structs.replace(HOLDER, process=number) for number in range(6)]
        asks = [[acquire(world, holder=holder, phase=Phase.TENTATIVE)] for holder in holders]
        reaper.heard(shared, asks[1])
        for number in (0, 1, 2, 3, 0, 4, 3, 5):
            reaper.heard(only, asks[number])
        reaper.left(only, 0)
        assert [each.holder for each in reaper.gone(GRACE_NS) if isinstance(each, Withdraw)] == [
            holders[4],
            holders[3],
            holders[5],
        ]
        reaper.left(shared, 0)
        assert [each.holder for each in reaper.gone(GRACE_NS) if isinstance(each, Withdraw)] == [holders[1]]
        assert not reaper._asked


def test_rest_of_a_frame_takes_so_long_and_not_longer(serve: Serve) -> None:
    served = serve(ClientLimits(frame_ns=10 * SECOND))
    line = served.line()
    line.sendall(HELLO[:-1])
    served.rounds()
    served.rounds(after_ns=10 * SECOND)
    assert served.server.connections == 1
    served.rounds(after_ns=SECOND)
    assert code(served.told(line)) == "frame-too-slow"


# Its time runs from its first byte, however many come, one now and one then.
def test_frame_of_which_a_byte_comes_now_and_then_is_too_slow(serve: Serve) -> None:
    served = serve(ClientLimits(frame_ns=10 * SECOND))
    line = served.line()
    for place in range(4):
        line.sendall(HELLO[place : place + 1])
        served.rounds(after_ns=4 * SECOND)
    assert served.server.connections == 0
    assert code(served.told(line)) == "frame-too-slow"


# Its frames are whole, and the server lets them lie: that is not its fault.
def test_who_is_read_from_later_is_not_too_slow(serve: Serve) -> None:
    served = serve(ClientLimits(requests_per_second=1, burst=1, frame_ns=SECOND // 2))
    line = served.line()
    line.sendall(HELLO * 4)
    served.rounds()
    for _ in range(6):
        served.rounds(after_ns=700 * MS)
    assert served.answered == 4
    assert served.server.connections == 1


# -- versions ----------------------------------------------------------------------------------------------------------


# Its connection has long stood still, in order: the time of a frame runs from its first byte.
def test_frame_that_begins_after_a_pause_has_all_of_its_time(serve: Serve) -> None:
    served = serve(ClientLimits(frame_ns=10 * SECOND))
    line = served.line()
    served.rounds(after_ns=60 * SECOND)
    line.sendall(HELLO[:-1])
    served.rounds(after_ns=SECOND)
    served.rounds(after_ns=9 * SECOND)
    line.sendall(HELLO[-1:])
    served.rounds()
    assert isinstance(served.told(line), Welcome)


@pytest.mark.parametrize("version", [PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1])
def test_older_and_newer_version_are_refused_and_nothing_of_what_they_say_is_done(serve: Serve, version: int) -> None:
    served = serve(ClientLimits())
    line = served.line()
    line.sendall(encode_call([Hello(version=version, cluster_id=CLUSTER)]))
    served.rounds()
    assert code(served.told(line)) == "protocol-version"
    assert served.server.connections == 0


def test_nothing_is_done_of_what_comes_right_behind_a_hello_that_is_refused(serve: Serve) -> None:
    served = serve(ClientLimits())
    line = served.line()
    line.sendall(encode_call([Hello(version=1, cluster_id=bytes(16))]) + encode_call([acquire(served.world, "a")]))
    served.rounds()
    assert code(served.told(line)) == "other-cluster"
    assert served.world.stores[0].leases == 0


def test_own_version_is_said_with_the_map_under_which_the_shard_works(serve: Serve) -> None:
    served = serve(ClientLimits())
    line = served.line()
    line.sendall(HELLO)
    served.rounds()
    (welcome,) = read_answer(line)
    assert isinstance(welcome, Welcome)
    assert (welcome.version, welcome.map_number, welcome.shard) == (PROTOCOL_VERSION, 1, 0)


class SentLate(SocketTransport):
    """Its answer is there already; time jumps while a call is sent."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(self, None)
        self.here, self.there = socket.socketpair()
        self.there.sendall(answer)
        self.readings = iter([0, 0])

    def __str__(self) -> str:
        return "a shard in this test"

    def boot_ns(self) -> int:
        return next(self.readings, 2 * SECOND)

    def _connect(self, until: int) -> socket.socket:
        assert until == SECOND
        return self.here


@pytest.mark.parametrize(("calls", "in_time"), [(1, True), (100, False)])
def test_large_call_that_took_its_time_to_be_sent_is_not_waited_for_once_more(
    world: World, calls: int, *, in_time: bool
) -> None:
    requests = [acquire(world, f"d{n}") for n in range(calls)]
    late = SentLate(
        encode_answer([Unavailable(request_id=each.request_id, code="planted", message="") for each in requests])
    )
    if in_time:
        assert len(late.call([*requests], SECOND)) == calls
    else:
        with pytest.raises(ShardUnavailable, match="timed out"):
            late.call([*requests], SECOND)
    late.close()
    late.there.close()


class SentBitByBit(SentLate):
    """TLS takes a record at a time, each within the whole time-out of the socket; time goes on meanwhile."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(answer)
        self.now = 0
        self.records = 0
        connection: Any = self
        self.connection: socket.socket = connection

    def boot_ns(self) -> int:
        return self.now

    def _connect(self, until: int) -> socket.socket:
        assert until == SECOND
        return self.connection

    def settimeout(self, seconds: float) -> None:
        assert seconds > 0

    def send(self, data: bytes | memoryview) -> int:
        self.records += 1
        self.now += 300 * MS
        return min(len(data), 1024)

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self.send(view) :]

    def recv(self, size: int) -> bytes:
        return self.here.recv(size)


def test_call_that_is_taken_bit_by_bit_is_given_up_in_time(world: World) -> None:
    requests = [acquire(world, f"d{n}") for n in range(100)]
    slow = SentBitByBit(b"")
    with pytest.raises(ShardUnavailable, match="timed out"):
        slow.call([*requests], SECOND)
    assert slow.records == 4
    slow.here.close()
    slow.there.close()
