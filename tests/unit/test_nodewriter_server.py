from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import msgspec
import pytest

from appliance.bag.logs import Store, create_log
from appliance.bag.writing import Committed, FrameFile, NotCommitted, Outcome, Unknown
from appliance.formats.paths import Grid
from appliance.formats.policy import Policy
from appliance.node import writer_server
from appliance.node.writer_client import RETRY_NS, SILENCE_NS, Doubt, NodeWriterClient
from appliance.node.writer_server import WRITERS, Batcher, NodeWriter, NodeWriterServer
from appliance.node.writer_wire import Line, Rebuff, Submit, WriterHello, decode_answer, encode, receive
from tests.support.bags import CLUSTER, POLICY, T0, Node, frame_file
from tests.support.storage import MemoryStorage
from timeagent.errors import BadRequest, Damaged, Environment
from timeagent.units import SECOND, Span

WRITER = b"W" * 8


def patient(span: Span) -> Policy:
    """A policy by which an answer is waited for so long."""
    return msgspec.structs.replace(POLICY, attempt_timeout_ns=span)


class Log:
    """A log whose files are kept, with the outcome that was set; it can be made to wait."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.writer = self
        self.files: list[FrameFile] = []
        self.outcomes: list[Outcome] = []
        self.go = Event()
        self.go.set()

    def write(self, file: FrameFile) -> Outcome:
        assert self.go.wait(30)
        self.files.append(file)
        return self.outcomes.pop(0) if self.outcomes else Committed()

    def resolve(self, file: FrameFile, deadline_boot_ns: int | None = None) -> Outcome:
        raise NotImplementedError


def refuse_to_start(_: Thread) -> None:
    raise RuntimeError("can't start new thread")


def end_by_a_bug(server: NodeWriterServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have its loop end by an exception, while its threads write."""

    def bug() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(server, "_loop_once", bug)
    for thread in server.threads[1:]:
        thread.start()
    with pytest.raises(ZeroDivisionError):
        server.run()


@pytest.fixture
def node() -> Node:
    return Node(MemoryStorage())


@pytest.fixture
def log(node: Node) -> Log:
    return Log(node.grid)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "w"


@pytest.fixture
def server(log: Log, path: Path) -> Iterator[NodeWriterServer]:
    def opened(name: str) -> Log:
        if name != "events":
            raise BadRequest("no-such-log", f"there is no log {name!r}", hint="make it")
        return log

    server = NodeWriterServer(NodeWriter(CLUSTER, "n1", WRITER, opened), path)
    server.start()
    yield server
    log.go.set()
    server.stop()


@pytest.fixture
def client(server: NodeWriterServer, path: Path, node: Node) -> Iterator[NodeWriterClient]:
    client = NodeWriterClient(path, CLUSTER, "n1", node.time, patient(20 * SECOND))
    yield client
    client.close()


def test_frames_are_stored_as_they_came_under_a_name_of_the_writer(
    client: NodeWriterClient, log: Log, node: Node
) -> None:
    file = node.file(b"one", b"two")
    assert client.submit(file.bag, file.data) == Committed()
    assert client.submit(file.bag, file.data) == Committed()
    assert [each.data for each in log.files] == [file.data, file.data]
    assert [(each.name.writer, each.name.incarnation, each.name.sequence) for each in log.files] == [
        ("n1", WRITER, 1),
        ("n1", WRITER, 2),
    ]
    assert log.files[0].bag == file.bag


def test_each_outcome_comes_back_and_doubt_is_tried_once_more(client: NodeWriterClient, log: Log, node: Node) -> None:
    file = node.file()
    log.outcomes = [NotCommitted("late")]
    assert client.submit(file.bag, file.data) == NotCommitted("late")
    log.outcomes = [Unknown("lost"), Committed()]
    assert client.submit(file.bag, file.data) == Committed()
    assert log.files[-1] == log.files[-2], "the same attempt again, not another"
    log.outcomes = [Unknown("lost"), Unknown("still lost")]
    assert client.submit(file.bag, file.data) == Doubt("still lost", WRITER)


def test_several_processes_share_a_file_while_the_mount_is_slow(
    server: NodeWriterServer, path: Path, log: Log, node: Node
) -> None:
    log.go.clear()
    clients = [NodeWriterClient(path, CLUSTER, "n1", node.time, patient(30 * SECOND)) for _ in range(6)]
    files = [node.file(b"%d" % n, sequence=n + 1) for n in range(6)]
    outcomes: list[object] = []

    def hand_in(client: NodeWriterClient, file: FrameFile) -> None:
        outcomes.append(client.submit(file.bag, file.data))

    threads = [Thread(target=hand_in, args=pair, daemon=True) for pair in zip(clients, files, strict=True)]
    for thread in threads:
        thread.start()
    batcher = server._writer.batchers[""]
    while batcher._bytes < sum(len(file.data) for file in files):
        Event().wait(0.001)
    log.go.set()
    for thread in threads:
        thread.join(30)
    assert outcomes == [Committed()] * 6
    assert len(log.files) < 6
    assert sorted(b"".join(each.data for each in log.files)) == sorted(b"".join(each.data for each in files))
    for client in clients:
        client.close()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda node: (node.grid.bag(T0), b"no frame"),
        lambda node: (node.grid.bag(T0), node.file().data[:-1]),
        lambda node: (node.grid.bag(T0), node.file().data + b"x"),
        lambda node: (node.grid.bag(T0), b""),
        lambda node: (node.grid.bag(T0 + SECOND), node.file().data),
        lambda node: (node.grid.bag(T0), frame_file(node, [b"m"], writer="n2").data),
        lambda node: (node.grid.bag(T0), frame_file(node, [b"m"], cluster_id=b"x" * 16).data),
        lambda node: (node.grid.bag(T0), frame_file(node, [b"m"], log="other").data),
    ],
)
def test_what_would_spoil_the_file_for_others_is_not_taken(
    client: NodeWriterClient, log: Log, node: Node, spoil: object
) -> None:
    assert callable(spoil)
    bag, frames = spoil(node)
    assert client.submit(bag, frames) is None
    assert log.files == []
    file = node.file()
    assert client.submit(file.bag, file.data) == Committed(), "the connection is not the frames' fault"


def test_process_that_may_have_no_more_threads_hands_nothing_in_and_is_told_so(
    client: NodeWriterClient, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = node.file()
    begin = Thread.start

    def begin_but_that(thread: Thread) -> None:
        (refuse_to_start if thread.name == "tenure-writer-answers" else begin)(thread)

    with monkeypatch.context() as patch:
        patch.setattr(Thread, "start", begin_but_that)
        assert client.submit(file.bag, file.data) is None, "it writes for itself"
    node.time.advance(RETRY_NS)
    assert client.submit(file.bag, file.data) == Committed()


def test_a_log_that_cannot_be_opened_is_not_taken(server: NodeWriterServer, path: Path, node: Node) -> None:
    client = NodeWriterClient(path, CLUSTER, "n1", node.time, patient(20 * SECOND))
    file = frame_file(node, [b"m"], log="nowhere")
    bag = msgspec.structs.replace(file.bag, log="nowhere")
    assert client.submit(bag, file.data) is None
    client.close()


def test_writer_ends_though_clients_come_without_a_pause(server: NodeWriterServer, path: Path) -> None:
    ends = Thread(target=server.stop)
    came = 0
    while came < 200 or (ends.is_alive() and came < 20_000):
        if came == 100:
            ends.start()
        came += 1
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    ends.join()
    assert came < 20_000


def test_writer_for_which_there_are_no_threads_leaves_nothing_behind(
    node: Node, log: Log, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    writer = NodeWriter(CLUSTER, "n1", WRITER, lambda _: log)
    server = NodeWriterServer(writer, path)
    with monkeypatch.context() as patch:
        patch.setattr(Thread, "start", refuse_to_start)
        with pytest.raises(Environment, match="new thread"):
            server.start()
    server.stop()
    assert not path.exists()
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before
    with socket.socket(socket.AF_UNIX) as client, pytest.raises(OSError, match="No such file"):
        client.connect(str(path))


@pytest.mark.parametrize("begin", range(1, 1 + WRITERS))
def test_writer_for_which_there_are_few_threads_ends_those_that_began(
    log: Log, path: Path, monkeypatch: pytest.MonkeyPatch, begin: int
) -> None:
    server = NodeWriterServer(NodeWriter(CLUSTER, "n1", WRITER, lambda _: log), path)
    died = list[object]()
    monkeypatch.setattr(threading, "excepthook", died.append)
    for each in server.threads[begin:]:
        monkeypatch.setattr(each, "start", lambda each=each: refuse_to_start(each))
    with pytest.raises(Environment, match="new thread"):
        server.start()
    server.stop()
    for each in server.threads[:begin]:
        each.join(30)
        assert not each.is_alive()
    assert died == []


def test_writer_whose_loop_fails_takes_nothing_more(
    node: Node, log: Log, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = NodeWriter(CLUSTER, "n1", WRITER, lambda _: log)
    server = NodeWriterServer(writer, path)
    end_by_a_bug(server, monkeypatch)
    for thread in server.threads[1:]:
        thread.join(30)
        assert not thread.is_alive()
    assert not path.exists()


def test_store_that_is_first_written_to_behind_a_failure_of_the_loop_is_refused(
    path: Path, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = SeveralLogs(node)
    service = NodeWriter(CLUSTER, "n1", WRITER, logs.by_name.__getitem__)
    server = NodeWriterServer(service, path)
    end_by_a_bug(server, monkeypatch)
    assert service.submit(submitted(logs, node), list[Outcome]().append) == "the node's writer is stopping"
    server.stop()


def test_nobody_there_takes_nothing_and_is_not_called_again_at_once(path: Path, node: Node, log: Log) -> None:
    client = NodeWriterClient(path, CLUSTER, "n1", node.time, patient(SECOND))
    file = node.file()
    assert client.submit(file.bag, file.data) is None
    server = NodeWriterServer(NodeWriter(CLUSTER, "n1", WRITER, lambda _: log), path)
    server.start()
    assert client.submit(file.bag, file.data) is None
    node.time.advance(2 * SECOND)
    assert client.submit(file.bag, file.data) == Committed()
    client.close()
    server.stop()


@pytest.mark.parametrize(("cluster", "name", "version"), [(b"x" * 16, "n1", 1), (CLUSTER, "n2", 1), (CLUSTER, "n1", 2)])
def test_another_cluster_node_or_version_is_turned_away_by_name(
    server: NodeWriterServer, path: Path, cluster: bytes, name: str, version: int
) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(30)
        raw.connect(str(path))
        raw.sendall(encode(WriterHello(version=version, cluster_id=cluster, node=name)))
        answer = decode_answer(receive(raw) or b"")
        assert isinstance(answer, Rebuff)
        assert "n1" in answer.reason
        assert raw.recv(1) == b""


def test_who_waits_in_vain_is_in_doubt_and_knows_where_to_look(
    server: NodeWriterServer, path: Path, log: Log, node: Node
) -> None:
    client = NodeWriterClient(path, CLUSTER, "n1", node.time, patient(60 * SECOND))
    file = node.file()
    assert client.submit(file.bag, file.data) == Committed()  # connected, however slow the machine is
    log.go.clear()
    client._policy = patient(SECOND // 20)
    assert client.submit(file.bag, file.data) == Doubt("the node's writer said nothing for 50 ms", WRITER)
    log.go.set()
    assert client.submit(file.bag, file.data) is None, "it is left alone for a while"
    client.close()


# Its daemon stands still: the kernel takes who comes, and each who waits for a welcome loses the whole patience.
def test_writer_that_welcomes_nobody_is_left_alone_as_one_that_says_nothing(path: Path, node: Node) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    listener.settimeout(0)
    client = NodeWriterClient(path, CLUSTER, "n1", node.time, patient(SECOND // 20))
    file = node.file()
    for pause_ns, called in ((0, True), (RETRY_NS, False), (SILENCE_NS, True)):
        node.time.advance(pause_ns)
        assert client.submit(file.bag, file.data) is None
        with contextlib.nullcontext() if called else pytest.raises(BlockingIOError):
            listener.accept()[0].close()
    listener.close()


class Sending:
    """A socket that somebody sends over until it is shut down."""

    def __init__(self) -> None:
        self.under_way, self.shut, self.closed = Event(), Event(), Event()
        self.closed_meanwhile = False

    def setsockopt(self, *option: object) -> None:
        pass

    def sendall(self, _: bytes) -> None:
        self.under_way.set()
        assert self.shut.wait(30)
        self.closed_meanwhile = self.closed.wait(0.2)
        raise BrokenPipeError

    def shutdown(self, _: int) -> None:
        self.shut.set()

    def close(self) -> None:
        self.closed.set()


# Its descriptor may be a file's by then, and what is sent would be written there.
def test_line_is_closed_only_when_nobody_sends_over_it() -> None:
    sending = Sending()
    connection: Any = sending
    line = Line(connection, 1)

    def send() -> None:
        with pytest.raises(BrokenPipeError):
            line.send(Rebuff(reason=""))

    thread = Thread(target=send)
    thread.start()
    assert sending.under_way.wait(30)
    line.close()
    thread.join(30)
    assert sending.closed.is_set()
    assert not sending.closed_meanwhile


# A message of which a part was sent: whatever went over the same connection after it would be read as its rest.
def test_handing_in_that_is_interrupted_leaves_nobody_else_in_doubt(
    client: NodeWriterClient, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = node.file()
    assert client.submit(file.bag, file.data) == Committed()

    def cut(line: Line, message: Submit) -> None:
        line.socket.sendall(encode(message)[:-1])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Line, "send", cut)
        with pytest.raises(KeyboardInterrupt):
            client.submit(file.bag, file.data)
    client._policy = patient(5 * SECOND)
    assert client.submit(file.bag, file.data) == Committed()


def test_a_writer_that_dies_leaves_doubt_at_once(path: Path, node: Node) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def die_after_taking() -> None:
        from appliance.node.writer_wire import WriterWelcome

        accepted, _ = listener.accept()
        accepted.recv(65536)
        accepted.sendall(encode(WriterWelcome(incarnation=WRITER)))
        accepted.recv(65536)
        accepted.close()

    client = NodeWriterClient(path, CLUSTER, "n1", node.time, patient(600 * SECOND))
    file = node.file()
    for _ in range(2):  # the next one is called at once: it was not silence
        Thread(target=die_after_taking, daemon=True).start()
        assert client.submit(file.bag, file.data) == Doubt("the node's writer hung up before it answered", WRITER)
    client.close()
    listener.close()


def test_stopping_writes_what_was_taken_and_takes_nothing_more(
    server: NodeWriterServer, client: NodeWriterClient, path: Path, log: Log, node: Node
) -> None:
    log.go.clear()
    file = node.file()
    outcomes: list[object] = []
    thread = Thread(target=lambda: outcomes.append(client.submit(file.bag, file.data)), daemon=True)
    thread.start()
    while not server._writer.batchers[""]._busy:
        Event().wait(0.001)
    stopping = Thread(target=server.stop, daemon=True)
    stopping.start()
    while not server._writer.batchers[""]._closed:
        Event().wait(0.001)
    assert client.submit(file.bag, file.data) is None
    log.go.set()
    stopping.join(30)
    thread.join(30)
    assert outcomes == [Committed()]
    assert not path.exists()


class SeveralLogs:
    """Logs by name, one of them in another store; what it is handed waits for its ``go``."""

    def __init__(self, node: Node) -> None:
        far = create_log(node.context, "far", store=Store("/srv/far", MemoryStorage()))
        self.by_name = {"events": Log(node.grid), "far": Log(Grid(far))}
        self.far = self.by_name["far"]
        self.far.go.clear()


def submitted(logs: SeveralLogs, node: Node) -> Submit:
    """A frame for the log in the other store."""
    file = frame_file(node, (b"m",), log="far", timestamps=[T0], bag_at=T0)
    return Submit(number=1, log="far", bag_start_ns=logs.far.grid.bag(T0).start_ns, frames=file.data)


def test_store_that_does_not_answer_holds_up_its_own_logs_alone(path: Path, node: Node) -> None:
    logs, told = SeveralLogs(node), list[Outcome]()
    service = NodeWriter(CLUSTER, "n1", WRITER, logs.by_name.__getitem__)
    server = NodeWriterServer(service, path)
    server.start()
    client = NodeWriterClient(path, CLUSTER, "n1", node.time, patient(60 * SECOND))
    for number in range(WRITERS + 1):  # more bags than there are threads for them
        at = T0 + number * SECOND
        file = frame_file(node, (b"m",), sequence=number + 1, log="far", timestamps=[at], bag_at=at)
        submission = Submit(number=1, log="far", bag_start_ns=logs.far.grid.bag(at).start_ns, frames=file.data)
        assert service.submit(submission, told.append) is None
    file = node.file()
    assert client.submit(file.bag, file.data) == Committed()
    assert told == []
    logs.far.go.set()
    client.close()
    server.stop()
    assert told == [Committed()] * (WRITERS + 1), "stopping writes what was taken"
    assert service.submit(submission, told.append) == "the node's writer is stopping"


# The daemon's shards end after it: a supervisor that loses its patience would have them forget all leases.
def test_store_that_does_not_answer_is_not_waited_for_at_the_end_for_ever(
    path: Path, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_server, "END_NS", SECOND // 10)
    logs, told, sooner = SeveralLogs(node), list[Outcome](), list[Outcome]()
    service = NodeWriter(CLUSTER, "n1", WRITER, logs.by_name.__getitem__)
    server = NodeWriterServer(service, path)
    server.start()
    assert service.submit(submitted(logs, node), told.append) is None
    file = node.file()
    here = Submit(number=2, log="events", bag_start_ns=file.bag.start_ns, frames=file.data)
    assert service.submit(here, sooner.append) is None
    stopping = Thread(target=server.stop, daemon=True)
    stopping.start()
    stopping.join(10)
    waited = stopping.is_alive()
    logs.far.go.set()
    for thread in (stopping, *server.threads):
        thread.join(30)
    assert not waited
    assert (sooner, told) == ([Committed()], [Committed()])


def test_threads_of_a_store_are_minded_as_the_others_are(path: Path, node: Node) -> None:
    logs, told = SeveralLogs(node), list[Outcome]()
    service = NodeWriter(CLUSTER, "n1", WRITER, logs.by_name.__getitem__)
    server = NodeWriterServer(service, path)
    server.start()
    before = set(server.threads)
    assert service.submit(submitted(logs, node), told.append) is None
    begun = set(server.threads) - before
    assert len(begun) == WRITERS
    assert all(each.is_alive() for each in server.threads)
    logs.far.go.set()
    server.stop()
    assert told == [Committed()]
    assert not any(each.is_alive() for each in begun)


class Unstartable(Thread):
    """One thread too many."""

    def start(self) -> None:
        raise RuntimeError("can't start new thread")


class ShortServer(NodeWriterServer):
    """A server in a process that may not have all the threads that a store needs, for once."""

    short = False

    def _threads_of(self, batcher: Batcher) -> list[Thread]:
        threads = super()._threads_of(batcher)
        if self.short:
            threads[-1] = Unstartable()
        return threads


def test_store_for_which_there_are_no_threads_is_refused_and_taken_when_there_are(path: Path, node: Node) -> None:
    logs, told = SeveralLogs(node), list[Outcome]()
    logs.far.go.set()
    service = NodeWriter(CLUSTER, "n1", WRITER, logs.by_name.__getitem__)
    server = ShortServer(service, path)
    server.start()
    server.short = True
    refused = service.submit(submitted(logs, node), told.append)
    assert refused is not None
    assert "no more threads" in refused
    assert all(each.is_alive() for each in server.threads)
    server.short = False
    assert service.submit(submitted(logs, node), told.append) is None
    server.stop()
    assert told == [Committed()]


def test_store_that_is_first_written_to_after_the_end_is_refused(path: Path, node: Node) -> None:
    logs = SeveralLogs(node)
    service = NodeWriter(CLUSTER, "n1", WRITER, logs.by_name.__getitem__)
    server = NodeWriterServer(service, path)
    server.start()
    server.stop()
    assert service.submit(submitted(logs, node), list[Outcome]().append) == "the node's writer is stopping"


@pytest.mark.parametrize("garbage", [b"\xff" * 64, b"\0\0\0\1\xc1", b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\5ab", b""])
def test_garbage_costs_its_sender_the_connection_and_nobody_else(
    server: NodeWriterServer, client: NodeWriterClient, path: Path, node: Node, garbage: bytes
) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(30)
        raw.connect(str(path))
        raw.sendall(garbage)
        raw.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):  # so it ends where something was left unread
            assert raw.recv(64) == b""
    file = node.file()
    assert client.submit(file.bag, file.data) == Committed()


def test_a_child_makes_a_connection_of_its_own(client: NodeWriterClient, log: Log, node: Node) -> None:
    file = node.file()
    assert client.submit(file.bag, file.data) == Committed()
    before = client._link
    client._process = os.getpid() + 1  # as it looks to a child
    assert client.submit(file.bag, file.data) == Committed()
    assert client._link is not before


def test_a_path_that_cannot_be_bound_is_named(log: Log, tmp_path: Path) -> None:
    from timeagent.errors import Environment

    with pytest.raises(Environment, match="cannot listen at"):
        NodeWriterServer(NodeWriter(CLUSTER, "n1", WRITER, lambda _: log), tmp_path / "missing" / "w")


def test_an_oversized_message_is_damage() -> None:
    here, there = socket.socketpair()
    with here, there:
        there.sendall(b"\xff\xff\xff\xff")
        with pytest.raises(Damaged, match="exceeds the limit"):
            receive(here)


def test_process_without_descriptors_hands_nothing_in_and_is_told_so(
    client: NodeWriterClient, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    file = node.file()
    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "__init__", refused)
        assert client.submit(file.bag, file.data) is None, "it writes for itself"
    node.time.advance(RETRY_NS)
    assert client.submit(file.bag, file.data) == Committed()
