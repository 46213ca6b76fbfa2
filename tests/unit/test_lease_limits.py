"""What one client may ask of a server: beyond it that client waits, is refused or cut off, and nobody else notices."""

from __future__ import annotations

import errno
import os
import socket
import struct
from threading import Lock, Thread
from typing import TYPE_CHECKING

import msgspec
import pytest

from appliance.lease import server, sockets
from appliance.lease.connection import ClientLimits
from appliance.lease.server import ShardServer
from appliance.lease.sockets import credentials, permitted
from appliance.lease.transport import UnixTransport
from appliance.lease.wire import Denied, Granted, Hello, Refused, Unavailable, Welcome, encode_call
from tests.support.cluster import wait_until
from tests.support.loops import HandServer
from tests.support.nodes import read_answer, read_to_the_end
from tests.support.shards import World, acquire, granted, relinquish
from tests.support.values import CLUSTER
from timeagent.clock import SystemClock
from timeagent.errors import ShardUnavailable
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CLOCK = SystemClock()
HELLO = Hello(version=1, cluster_id=CLUSTER)
PATIENCE_NS = 20 * SECOND


class Served:
    def __init__(self, path: Path, limits: ClientLimits) -> None:
        self.world = World(path)
        self.shard = self.world.started()
        self.path = path / "s"
        self.guard = Lock()
        self.server = ShardServer(self.shard, self.path, self.guard, limits=limits, clock=CLOCK)
        self.thread = Thread(target=self.server.run, daemon=True)
        self.thread.start()

    def raw(self) -> socket.socket:
        plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        plain.settimeout(20)
        plain.connect(str(self.path))
        return plain

    def answers(self) -> None:
        with self.raw() as plain:
            plain.sendall(encode_call([HELLO]))
            assert isinstance(read_answer(plain)[0], Welcome)

    def end(self) -> None:
        self.server.stop()
        self.thread.join(20)
        assert not self.thread.is_alive()
        self.world.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[ClientLimits], Served]]:
    made: list[Served] = []

    def make(limits: ClientLimits) -> Served:
        made.append(Served(tmp_path, limits))
        return made[-1]

    yield make
    for each in made:
        each.end()


# Who asks for more than it may is answered all the same, later: nothing is lost, and its leases do not end of it.
def test_peer_that_asks_for_too_much_is_read_from_later(serve: Callable[[ClientLimits], Served]) -> None:
    served = serve(ClientLimits(requests_per_second=100, burst=20))
    with served.raw() as plain:
        calls = [acquire(served.world, f"d{n}") for n in range(80)]
        plain.sendall(b"".join(encode_call([each]) for each in calls))
        answers = [read_answer(plain)[0] for _ in calls]
    assert all(isinstance(each, Granted) for each in answers)
    assert served.server.counts.throttled > 0


# Its socket is readable all the while: were it watched, the loop would do nothing else than find that out.
def test_peer_that_asks_for_too_much_does_not_keep_the_loop_awake(tmp_path: Path) -> None:
    hand = HandServer(tmp_path, ClientLimits(requests_per_second=10, burst=10))
    plain = hand.line()
    plain.sendall(encode_call([HELLO]) * 20)
    hand.rounds()
    for _ in range(10):
        hand.told(plain)
    plain.sendall(encode_call([HELLO]) * 5)
    for _ in range(3):
        assert not hand.awake()
        hand.rounds(1)
    plain.shutdown(socket.SHUT_WR)
    assert not hand.awake()
    # What is here is done in its time, and then what has been sent since, though nothing more can come.
    for count in (10, 5):
        hand.rounds(2, after_ns=SECOND)
        for _ in range(count):
            hand.told(plain)
    assert hand.server.connections == 0
    hand.close()


def waiters(served: Served) -> int:
    """How many requests of this process are held back."""
    peer = served.server._peers.get(f"process {os.getpid()}")
    return 0 if peer is None else peer.waiting


def test_peer_with_as_many_waiters_as_it_may_have_is_denied_at_once(serve: Callable[[ClientLimits], Served]) -> None:
    served = serve(ClientLimits(waiters_per_peer=2))
    with served.guard:
        lease = granted(served.shard, acquire(served.world, "a"))
    with served.raw() as one, served.raw() as other:
        waits = [msgspec.structs.replace(acquire(served.world, "a"), wait_ns=60 * SECOND) for _ in range(4)]
        one.sendall(encode_call([waits[0]]))
        other.sendall(encode_call([waits[1]]))
        wait_until(CLOCK, lambda: waiters(served) == 2)
        with served.raw() as third:
            third.sendall(encode_call([waits[2]]))
            (denied,) = read_answer(third)
            assert isinstance(denied, Denied)
            assert denied.place == 3
        with served.guard:
            served.shard.turn([relinquish(served.world, lease)])
        assert isinstance(read_answer(one)[0], Granted)
        assert waiters(served) == 1
        with served.raw() as fourth:
            fourth.sendall(encode_call([waits[3]]))
            wait_until(CLOCK, lambda: waiters(served) == 2)


def test_measure_is_one_for_all_connections_of_a_peer(serve: Callable[[ClientLimits], Served]) -> None:
    served = serve(ClientLimits(requests_per_second=10, burst=10))
    first, second = served.raw(), served.raw()
    first.sendall(encode_call([HELLO] * 500))  # one call may be above the measure: then it is long until the next
    assert len(read_answer(first, 500)) == 500
    second.settimeout(0.2)
    second.sendall(encode_call([HELLO]))
    with pytest.raises(TimeoutError):
        read_answer(second)
    first.close()
    second.close()


def test_turn_is_bounded_and_the_rest_has_its_own(serve: Callable[[ClientLimits], Served]) -> None:
    served = serve(ClientLimits(requests_per_turn=10))
    lines = [served.raw() for _ in range(5)]
    with served.guard:  # all of them are there when the loop looks next
        for line in lines:
            line.sendall(encode_call([HELLO] * 8))
    for line in lines:
        assert len(read_answer(line, 8)) == 8
        line.close()
    assert served.server.counts.turns >= 3


def test_idle_connection_is_closed_and_the_next_call_opens_another(serve: Callable[[ClientLimits], Served]) -> None:
    served = serve(ClientLimits(idle_ns=50 * MS))
    transport = UnixTransport(served.path, CLOCK, HELLO)
    transport.call([HELLO], PATIENCE_NS)
    wait_until(CLOCK, lambda: served.server.connections == 0)
    assert served.server.counts.closed["idle"] == 1
    assert isinstance(transport.call([HELLO], PATIENCE_NS)[0], Welcome)  # at the first attempt
    transport.close()


def test_frame_that_does_not_end_is_not_waited_for(serve: Callable[[ClientLimits], Served]) -> None:
    served = serve(ClientLimits(frame_ns=50 * MS))
    with served.raw() as plain:
        plain.sendall(encode_call([HELLO])[:-1])
        (why,) = read_answer(plain)
        assert isinstance(why, Refused)
        assert why.code == "frame-too-slow"
        assert plain.recv(1) == b""


def test_reader_that_stands_still_is_cut_off(serve: Callable[[ClientLimits], Served]) -> None:
    served = serve(ClientLimits(unread_ns=50 * MS))
    with served.raw() as plain:
        plain.sendall(encode_call([acquire(served.world, f"d{n}") for n in range(900)]))
        wait_until(CLOCK, lambda: served.server.counts.closed["unread"] == 1)
    served.answers()


def test_hello_that_is_refused_ends_the_connection(serve: Callable[[ClientLimits], Served]) -> None:
    served = serve(ClientLimits())
    with served.raw() as plain:
        plain.sendall(encode_call([Hello(version=2, cluster_id=CLUSTER)]) + encode_call([acquire(served.world, "a")]))
        (why,) = read_answer(plain)
        assert isinstance(why, Refused)
        assert why.code == "protocol-version"
        read_to_the_end(plain)
    transport = UnixTransport(served.path, CLOCK, Hello(version=2, cluster_id=CLUSTER))
    with pytest.raises(ShardUnavailable, match="version 2 was offered") as refused:
        transport.call([acquire(served.world, "a")], PATIENCE_NS)
    assert refused.value.code == "protocol-version"
    other = UnixTransport(served.path, CLOCK, Hello(version=1, cluster_id=CLUSTER, shard=7))
    with pytest.raises(ShardUnavailable, match="not shard 7"):
        other.call([HELLO], PATIENCE_NS)


# -- who may connect ---------------------------------------------------------------------------------------------------


def test_kernel_says_who_is_at_the_other_end() -> None:
    here, there = socket.socketpair()
    process, user, groups = credentials(here)
    assert (process, user) == (os.getpid(), os.geteuid())
    assert os.getegid() in groups
    here.close()
    there.close()


@pytest.mark.parametrize(
    ("user", "groups", "allowed"),
    [(7, [7], True), (0, [0], True), (8, [8], False), (8, [8, 50], True), (8, [50], True)],
)
def test_same_user_root_and_the_group_may_connect(user: int, groups: list[int], allowed: bool) -> None:  # noqa: FBT001
    assert permitted(user, groups, own_user=7, group=50) is allowed
    assert permitted(8, [8, 0], own_user=7, group=None) is False


def test_stranger_is_told_and_closed(serve: Callable[[ClientLimits], Served], monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve(ClientLimits())
    monkeypatch.setattr(server, "credentials", lambda _: (1, 12_345, [12_345]))
    with served.raw() as plain:
        (why,) = read_answer(plain)
        assert isinstance(why, Refused)
        assert why.code == "not-permitted"
        assert "12345" in why.message
        assert plain.recv(1) == b""
    assert served.server.counts.requests == 0


def test_old_kernel_without_the_other_groups_names_the_first() -> None:
    class Old:
        def getsockopt(self, _level: int, option: int, _size: int) -> bytes:
            if option == sockets._SO_PEERGROUPS:
                raise OSError(errno.ENOPROTOOPT, "not known")
            return struct.pack("3i", 1, 2, 3)

    assert credentials(Old()) == (1, 2, [3])  # type: ignore[arg-type]


# A user's number has 32 bits and no sign: directories of large sites give such.
def test_user_and_group_of_a_high_number_are_themselves() -> None:
    class High:
        def getsockopt(self, _level: int, option: int, _size: int) -> bytes:
            return (
                struct.pack("I", 2**31 + 2)
                if option == sockets._SO_PEERGROUPS
                else struct.pack("i2I", 1, 2**31, 2**31 + 1)
            )

    assert credentials(High()) == (1, 2**31, [2**31 + 1, 2**31 + 2])  # type: ignore[arg-type]


# -- what runs out -----------------------------------------------------------------------------------------------------


class NoDescriptors:
    """A listener whose accept fails as without free descriptors, for a while; the connection stays in its queue."""

    def __init__(self, inner: socket.socket) -> None:
        self._inner = inner
        self.failing = True
        self.failed = 0
        self.when_it_failed: Callable[[], None] = lambda: None

    def accept(self) -> tuple[socket.socket, object]:
        if self.failing:
            self.failed += 1
            self.when_it_failed()
            raise OSError(errno.EMFILE, "Too many open files")
        return self._inner.accept()

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


def short_of_descriptors(world: World) -> tuple[ShardServer, NoDescriptors]:
    """A server, not running yet, whose listener can be made to find no descriptor free."""
    served = ShardServer(world.started(), world.path / "s", clock=CLOCK)
    listener = NoDescriptors(served._listener.socket)
    served._poll.unregister(served._listener.socket)
    served._listener.socket = listener  # type: ignore[assignment]
    served._poll.register(listener, 1)  # type: ignore[arg-type]
    return served, listener


def test_server_without_descriptors_serves_on_and_accepts_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    served, listener = short_of_descriptors(world)
    listener.failing = False
    thread = Thread(target=served.run, daemon=True)
    thread.start()
    known = UnixTransport(tmp_path / "s", CLOCK)
    known.call([HELLO], PATIENCE_NS)
    listener.failing = True
    newcomer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    newcomer.connect(str(tmp_path / "s"))
    wait_until(CLOCK, lambda: listener.failed > 0)
    before, loops = listener.failed, 200
    for _ in range(loops):
        known.call([HELLO], PATIENCE_NS)  # who is in is served as ever
    assert listener.failed - before < loops // 2  # and the loop does not spin on the listener
    listener.failing = False
    newcomer.settimeout(20)
    newcomer.sendall(encode_call([HELLO]))
    assert isinstance(read_answer(newcomer)[0], Welcome)
    newcomer.close()
    known.close()
    served.stop()
    thread.join(20)
    world.close()


def test_server_that_is_told_to_stop_while_it_has_no_descriptors_stops_in_good_order(tmp_path: Path) -> None:
    world = World(tmp_path)
    served, listener = short_of_descriptors(world)
    # The loop turns away from the listener first, and is told to stop before it listens again.
    listener.failing, listener.when_it_failed = True, served.stop
    newcomer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    newcomer.connect(str(tmp_path / "s"))
    served.run()
    assert listener.failed == 1
    assert not (tmp_path / "s").exists()
    newcomer.close()
    world.close()


def test_full_tmpfs_is_said_and_what_was_granted_stays(
    serve: Callable[[ClientLimits], Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.lease.store.UNWRITTEN_MAX", 100)
    served = serve(ClientLimits())
    with served.guard:
        first = granted(served.shard, acquire(served.world, "a"))
        served.world.leave_room(2)
    with served.raw() as plain:
        answers = []
        for turn in range(20):
            plain.sendall(encode_call([acquire(served.world, f"{turn}-{n}" + "x" * 400) for n in range(20)]))
            answers += read_answer(plain, 20)
        told = [each for each in answers if isinstance(each, Unavailable)]
        assert {each.code for each in told} == {"store-full"}
        assert "tmpfs is full" in told[0].message
        with served.guard:
            served.world.leave_room(1_000_000)
        plain.sendall(encode_call([acquire(served.world, "b"), acquire(served.world, "a")]))
        late, mine = read_answer(plain, 2)
    assert isinstance(late, Granted)
    assert not isinstance(mine, Granted)
    assert first.domain == "a"


def test_file_that_is_removed_under_a_shard_costs_nothing(
    serve: Callable[[ClientLimits], Served], tmp_path: Path
) -> None:
    served = serve(ClientLimits())
    with served.raw() as plain:
        plain.sendall(encode_call([acquire(served.world, "a")]))
        assert isinstance(read_answer(plain)[0], Granted)
        for path in tmp_path.glob("*.db"):
            path.unlink()
        plain.sendall(encode_call([acquire(served.world, "a"), acquire(served.world, "b")]))
        mine, other = read_answer(plain, 2)
    assert not isinstance(mine, Granted)
    assert isinstance(other, Granted)


# -- the end -----------------------------------------------------------------------------------------------------------


def test_server_that_stops_answers_what_has_come_in(tmp_path: Path) -> None:
    served = Served(tmp_path, ClientLimits())
    lines = [served.raw() for _ in range(3)]
    for line in lines:
        line.sendall(encode_call([HELLO]))
        read_answer(line)
    with served.guard:  # the loop is held up: what is sent now has come in, and is not answered
        for number, line in enumerate(lines):
            line.sendall(b"".join(encode_call([acquire(served.world, f"{number}-{n}")]) for n in range(40)))
        served.server.stop()
    for line in lines:
        assert len([read_answer(line)[0] for _ in range(40)]) == 40
        assert line.recv(1) == b""
        line.close()
    served.thread.join(20)
    assert not served.path.exists()
    served.world.close()


def test_server_that_stops_does_not_wait_for_who_reads_nothing(tmp_path: Path) -> None:
    served = Served(tmp_path, ClientLimits(drain_ns=50 * MS))
    line = served.raw()
    line.sendall(encode_call([acquire(served.world, f"d{n}") for n in range(900)]))
    wait_until(CLOCK, lambda: any(each.unsent for each in list(served.server._connections.values())))
    served.end()
    line.close()
