"""The node's writer: takes what several processes hand in over a Unix socket, and writes it as one file.

While one file of a bag is being written, everything that comes in for that bag waits, and goes into the next: the
slower the mount, the larger the batches. Frames are stored as they came; each submission gets the outcome of the file
that it went into (docs/protocol/bag.md, "The node's writer"). Whoever breaks the rules of the wire, or does not read
the answers, loses the connection and nothing else: what it handed in is written all the same.
"""

from __future__ import annotations

import logging
import socket
from collections import deque
from collections.abc import Callable
from pathlib import Path
from threading import Condition, Lock, Thread
from typing import Final, Protocol

from timeagent.clock import SystemClock
from timeagent.errors import Damaged, Environment, TenureError
from timeagent.units import SECOND

from ..bag.writing import Committed, FrameFile, Outcome, Unknown, Writer
from ..formats.birth import store_of
from ..formats.framing import open_frame, pieces
from ..formats.paths import Bag, DataName, Grid
from ..lease.sockets import TICK_NS, Listener, SocketLoop
from . import writer_wire as wire
from .desk_wire import LEASE, words_of
from .runtime import begin

QUEUE_BYTES_MAX: Final = 256 * 1024 * 1024
"""How much may wait for the mount before submissions are refused."""

FILE_BYTES_MAX: Final = 8 * 1024 * 1024
"""How much goes into one file, unless a single submission is larger: it is read whole when its bag is closed."""

type Write = Callable[[Bag, bytes], Outcome]
"""Write some whole frames into a bag as one file. Touches the mount."""

type Desk = Callable[[socket.socket, list[str]], None]
"""Serve a process that asked for a sub-lease, in these words, to its end. Blocks; may raise OSError, Damaged."""

type Told = Callable[[Outcome], None]


type _Submission = tuple[bytes, Told]
"""Whole frames, and who is told what became of them."""


class Batcher:
    """Submissions by bag, written by any number of threads, one file of a bag at a time."""

    def __init__(
        self, write: Write, *, queue_bytes_max: int = QUEUE_BYTES_MAX, file_bytes_max: int = FILE_BYTES_MAX
    ) -> None:
        """Write nothing yet: threads that call ``run`` do, or whoever calls ``turn``."""
        self._write = write
        self._queue_bytes_max = queue_bytes_max
        self._file_bytes_max = file_bytes_max
        self._waiting: dict[Bag, deque[_Submission]] = {}
        self._busy: set[Bag] = set()
        self._bytes = 0
        self._closed = False
        self._changed = Condition()
        self.files = 0
        """How many files were written, or tried."""
        self.submissions = 0
        """How many submissions went into them."""

    def submit(self, bag: Bag, frames: bytes, told: Told) -> str | None:
        """Queue whole frames; return None, or why they are refused: then ``told`` is never called.

        ``told`` gets the outcome, once, in a writing thread. Never waits.
        """
        with self._changed:
            if self._closed:
                return "the node's writer is stopping"
            if self._bytes + len(frames) > self._queue_bytes_max:
                return f"{self._bytes} bytes wait for the mount already"
            self._waiting.setdefault(bag, deque()).append((frames, told))
            self._bytes += len(frames)
            self._changed.notify()
        return None

    def turn(self) -> bool:
        """Write one file, if something waits whose bag no other thread is writing to. Touches the mount."""
        with self._changed:
            taken = self._take()
        if taken is None:
            return False
        self._flush(*taken)
        return True

    def run(self) -> None:
        """Write until the batcher is closed and nothing waits: the body of a thread."""
        while True:
            with self._changed:
                while (taken := self._take()) is None:
                    if self._closed and not self._waiting:
                        return
                    self._changed.wait()
            self._flush(*taken)

    def close(self) -> None:
        """Take nothing more; what was taken is written. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _take(self) -> tuple[Bag, list[_Submission]] | None:
        bag = next((each for each in self._waiting if each not in self._busy), None)
        if bag is None:
            return None
        queue = self._waiting.pop(bag)
        taken: list[_Submission] = []
        size = 0
        while queue and (not taken or size + len(queue[0][0]) <= self._file_bytes_max):
            taken.append(queue.popleft())
            size += len(taken[-1][0])
        if queue:
            self._waiting[bag] = queue  # behind those that have waited longer
        self._busy.add(bag)
        return bag, taken

    def _flush(self, bag: Bag, taken: list[_Submission]) -> None:
        data = b"".join(frames for frames, _ in taken)
        outcome: Outcome = Unknown("the node's writer failed")
        try:
            outcome = self._write(bag, data)
        except TenureError as problem:
            outcome = Unknown(str(problem))
        finally:
            with self._changed:
                self._busy.discard(bag)
                self._bytes -= len(data)
                self.files += 1
                self.submissions += len(taken)
                self._changed.notify_all()
            for _, told in taken:
                told(outcome)


_log = logging.getLogger(__name__)

TRIES: Final = 2
"""An attempt in doubt is tried once more, as it is: that is safe, and tells a lost reply from a failure."""


class WritableLog(Protocol):
    """An open log, as far as a writer needs it."""

    @property
    def grid(self) -> Grid: ...

    @property
    def writer(self) -> Writer: ...


class NodeWriter:
    """Everything but the socket. ``submit`` may be called by any thread; ``batcher.run`` or ``.turn`` write."""

    def __init__(self, cluster_id: bytes, node: str, incarnation: bytes, opened: Callable[[str], WritableLog]) -> None:
        """Write for one node. ``incarnation``: 8 random bytes. ``opened``: opens a log by name, for this alone."""
        self.cluster_id = cluster_id
        self.node = node
        self.incarnation = incarnation
        self.batchers = {"": Batcher(self._write)}
        """Of the logs at the root, and of each store that others are in: one that does not answer holds up its own."""
        self.begun: Callable[[Batcher], object] = lambda _: None
        """Told of each of those when it begins; may raise TenureError, and is told of another one next time."""
        self._opened = opened
        self._logs: dict[str, WritableLog] = {}
        self._sequence = 0
        self._lock = Lock()

    def submit(self, submission: wire.Submit, told: Told) -> str | None:
        """Queue a submission; return None, or why it is refused: then nothing of it will ever be written.

        Touches the mount when a log is used for the first time.
        """
        try:
            bag = self._checked(submission)
            batcher = self._batcher_of(bag.log)
        except TenureError as problem:
            return str(problem)
        return batcher.submit(bag, submission.frames, told)

    def _batcher_of(self, log: str) -> Batcher:
        store = store_of(self._log(log).grid.birth)
        with self._lock:
            batcher = self.batchers.get(store)
            if batcher is None:
                batcher = Batcher(self._write)
                self.begun(batcher)
                self.batchers[store] = batcher
            return batcher

    def close(self) -> None:
        """Take nothing more; what was taken is written. Idempotent."""
        with self._lock:
            for batcher in self.batchers.values():
                batcher.close()

    def _checked(self, submission: wire.Submit) -> Bag:
        """Return the bag if these are whole frames of it: one bad one would spoil the file for everybody."""
        log = self._log(submission.log)
        bag = log.grid.bag(submission.bag_start_ns)
        found, rest = pieces(submission.frames)
        if rest or not found or bag.start_ns != submission.bag_start_ns:
            raise Damaged("submission-damaged", f"no whole frames of {bag.path}: {rest or 'no bag begins there'}")
        for piece in found:
            frame = open_frame(piece, "a submission")
            head = frame.head
            if (head.cluster_id, head.log, head.writer) != (self.cluster_id, submission.log, self.node):
                raise Damaged("submission-foreign", f"a frame of {head.writer} for {head.log!r}, not of {self.node}")
            if not bag.start_ns <= int(frame.timestamps[0]) <= int(frame.timestamps[-1]) < bag.end_ns:
                raise Damaged("submission-foreign", f"a frame whose messages do not lie in {bag.path}")
        return bag

    def _write(self, bag: Bag, data: bytes) -> Outcome:
        log = self._log(bag.log)
        with self._lock:
            self._sequence += 1
            name = DataName(self.node, self.incarnation, self._sequence, log.grid.birth.kind.suffix)
        file = FrameFile(bag, name, data)
        outcome: Outcome = Unknown("not tried")
        for attempt in range(TRIES):
            outcome = log.writer.write(file)
            if isinstance(outcome, Committed) and attempt:
                return Committed()  # in a log bag the first try may have left the same frames in another file
            if not isinstance(outcome, Unknown):
                return outcome
        _log.warning("flush-in-doubt bag=%s reason=%s", bag.path, outcome)
        return outcome

    def _log(self, name: str) -> WritableLog:
        with self._lock:
            known = self._logs.get(name)
        if known is None:
            known = self._opened(name)
            with self._lock:
                known = self._logs.setdefault(name, known)
        return known


_LEASE: Final = f"{LEASE}\0".encode()

CONNECTIONS_MAX: Final = 256
WRITERS: Final = 4
"""How many files are on their way to the mount at once: its latency is waited out side by side."""

END_NS: Final = 10 * SECOND
"""How long the end waits for a mount: who is not answered by then is in doubt. The shards end after this."""

PATIENCE_S: Final = 2
"""How long a client may leave no room for an answer before it is cut off."""


class NodeWriterServer(SocketLoop):
    """Serves one NodeWriter on a socket, between ``start`` and ``stop``: a thread for each connection."""

    def __init__(self, writer: NodeWriter, path: Path, *, desk: Desk | None = None) -> None:
        """Listen. A socket that an earlier run left is removed: whoever starts this made sure that it is alone.

        ``desk``: serves, in the thread of the connection, who asks for a sub-lease. Raises Environment.
        """
        super().__init__(Listener(path), SystemClock())
        self._writer = writer
        self._desk = desk
        self._connections: set[_Connection] = set()
        self._writing = self._threads_of(writer.batchers[""])
        self.threads = [Thread(target=self.run, name="tenure-writer-door", daemon=True), *self._writing]
        writer.begun = self._begin

    def _threads_of(self, batcher: Batcher) -> list[Thread]:
        return [Thread(target=batcher.run, name="tenure-writer", daemon=True) for _ in range(WRITERS)]

    def _begin(self, batcher: Batcher) -> None:
        """Write what comes for a store, or refuse it where this is ending. Raises Environment for want of threads."""
        if self._stopping:
            batcher.close()
            return
        threads = self._threads_of(batcher)
        try:
            for thread in threads:
                begin(thread)
        except Environment:  # those that began end with the batcher
            batcher.close()
            raise
        self._writing += threads
        self.threads += threads

    def start(self) -> None:
        """Begin. Raises Environment; ``stop`` ends what began."""
        for thread in self.threads:
            begin(thread)

    def stop(self) -> None:
        """Take nothing more, write and answer what was taken, end. Waits for the mount, END_NS at most. Idempotent."""
        super().stop()
        if self.threads[0].is_alive():
            self.threads[0].join()
        self.close_all()  # also where it never began

    def _loop_once(self) -> None:
        ready = self._poll.poll(TICK_NS / SECOND if self._deaf_until else None)
        now = self._clock.boot_ns()
        for number, _ in ready:
            while self._knocks(number) and not self._stopping and (came := self._next_caller(now)) is not None:
                self._serve(came[0])
        self._listen_again(now)

    def _serve(self, accepted: socket.socket) -> None:
        if len(self._connections) >= CONNECTIONS_MAX:
            accepted.close()
            return
        accepted.settimeout(None)
        connection = _Connection(self._writer, accepted, self._connections.discard, self._desk)
        self._connections.add(connection)
        try:
            Thread(target=connection.run, name="tenure-writer-client", daemon=True).start()
        except RuntimeError:  # this process may have no more threads
            connection.close()

    def _finish(self) -> None:
        self._listener.close()
        self._writer.close()
        until = self._clock.boot_ns() + END_NS
        for thread in self._writing:
            if thread.ident is not None:  # it began
                thread.join(max(0, until - self._clock.boot_ns()) / SECOND)

    def _drop_all(self) -> None:
        self._stopping = True
        self._writer.close()  # also where a bug has ended this: whoever waits to be written is written, nobody after
        for connection in list(self._connections):
            connection.close()


class _Connection:
    def __init__(
        self,
        writer: NodeWriter,
        accepted: socket.socket,
        forget: Callable[[_Connection], object],
        desk: Desk | None,
    ) -> None:
        self._writer = writer
        self._desk = desk
        self._line = wire.Line(accepted, PATIENCE_S)
        self._forget = forget

    def run(self) -> None:
        """Hear the process out, until it goes."""
        try:
            first = wire.receive(self._line.socket)
            if first is not None and first.startswith(_LEASE):
                if self._desk is not None:
                    self._desk(self._line.socket, words_of(first))
            elif first is not None and self._greeted(wire.decode_call(first)):
                while (body := wire.receive(self._line.socket)) is not None:
                    message = wire.decode_call(body)
                    if not isinstance(message, wire.Submit):
                        break
                    self._take(message)
        except (OSError, Damaged) as problem:
            _log.info("writer-client-dropped reason=%s", problem)
        except Exception:  # noqa: BLE001 - whatever it sent: it loses its connection, and nothing else
            _log.exception("writer-client-failed")
        finally:
            self.close()

    def close(self) -> None:
        """Hang up. Idempotent."""
        self._line.close()
        self._forget(self)

    def _greeted(self, hello: wire.Outgoing) -> bool:
        mine = wire.WriterHello(wire.PROTOCOL_VERSION, self._writer.cluster_id, self._writer.node)
        if hello == mine:
            self._line.send(wire.WriterWelcome(incarnation=self._writer.incarnation))
        elif isinstance(hello, wire.WriterHello):
            cluster = mine.cluster_id.hex()
            text = f"this is the writer of {mine.node} in cluster {cluster}, protocol version {mine.version}"
            self._line.send(wire.Rebuff(reason=text))
        return hello == mine

    def _take(self, submission: wire.Submit) -> None:
        refused = self._writer.submit(
            submission, lambda outcome: self._answer(wire.answer_of(submission.number, outcome))
        )
        if refused is not None:
            self._answer(wire.WriterAnswer(number=submission.number, said=wire.WriterSaid.REFUSED, reason=refused))

    def _answer(self, answer: wire.WriterAnswer) -> None:
        """Never raises: who cannot be told finds out by itself."""
        try:
            self._line.send(answer)
        except OSError:
            self._line.hang_up()  # its thread wakes and forgets it
