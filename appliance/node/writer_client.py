"""The writer that a process uses where its node has one: hand in first, write oneself where that leaves doubt.

No answer is no outcome: the writer may have written what it was handed, or may do so later. Who gets no clear answer
writes the same frame into a file of its own (docs/protocol/bag.md, "The node's writer"). Only "not in the record" is
harder to say then: the frame must be in no file of the closed bag that either of them wrote.
"""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Final, Protocol

from timeagent.clock import NodeTime
from timeagent.errors import Damaged, Environment, TenureError
from timeagent.units import SECOND, span_text

from ..bag.closedbags import ListedFiles
from ..bag.closing import Authority
from ..bag.writing import Committed, FrameFile, NotCommitted, Outcome, Unknown, Writer
from ..formats.framing import pieces
from ..formats.paths import Bag, Grid
from ..formats.policy import PolicyNumbers
from . import writer_wire as wire
from .runtime import begin

RETRY_NS: Final = SECOND
"""How long nobody is called again who did not listen."""

SILENCE_NS: Final = 5 * SECOND
"""How long nobody is called again who did not answer in time: each such call costs the whole patience."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """It was handed in, and it is in the writer's files, or in none, or will be: nobody has said."""

    reason: str
    incarnation: bytes
    """The writer's: its files are where to look."""


type Handed = Committed | NotCommitted | Doubt | None
"""What became of what was handed in, as far as the writer said so; None: nothing was handed in, write it yourself."""


@dataclass(slots=True, eq=False)
class _Link:
    line: wire.Line
    incarnation: bytes
    calls: dict[int, SimpleQueue[wire.WriterAnswer | None]] = field(default_factory=dict)
    """Where the answer to each call comes; None: it never will."""
    broken: bool = False


class NodeWriterClient:
    """The socket of this node's writer. Thread-safe; a child after fork makes a connection of its own."""

    def __init__(self, path: Path, cluster_id: bytes, node: str, time: NodeTime, policy: PolicyNumbers) -> None:
        """Connect to nothing yet. An answer is waited for as long as an attempt may take by the policy of then."""
        self._path = path
        self._hello = wire.WriterHello(version=wire.PROTOCOL_VERSION, cluster_id=cluster_id, node=node)
        self._time = time
        self._policy = policy
        self._lock = Lock()
        self._link: _Link | None = None
        self._process = os.getpid()
        self._number = 0
        self._not_before_ns = 0
        self._silent_until_ns = 0

    def submit(self, bag: Bag, frames: bytes) -> Handed:
        """Hand whole frames of a bag in and wait for what becomes of them. Blocks up to the patience."""
        with self._lock:
            link = self._connected() if self._time.boot_ns() >= self._silent_until_ns else None
            if link is None:
                return None
            self._number += 1
            number, answers = self._number, SimpleQueue[wire.WriterAnswer | None]()
            link.calls[number] = answers
        try:
            link.line.send(wire.Submit(number=number, log=bag.log, bag_start_ns=bag.start_ns, frames=frames))
        except BaseException as problem:  # what followed would be read as the rest of this
            self._break(link)
            if not isinstance(problem, OSError):
                raise
            return Doubt(f"the node's writer could not be told: {problem}", link.incarnation)
        patience_ns = self._policy.attempt_timeout_ns
        answer = None
        with contextlib.suppress(Empty):
            answer = answers.get(timeout=patience_ns / SECOND)
        with self._lock:
            del link.calls[number]
        if answer is None and link.broken:
            return Doubt("the node's writer hung up before it answered", link.incarnation)
        if answer is None:
            self._silent_until_ns = self._time.boot_ns() + SILENCE_NS
            return Doubt(f"the node's writer said nothing for {span_text(patience_ns)}", link.incarnation)
        return _handed(answer, link.incarnation)

    def close(self) -> None:
        """Hang up. Idempotent."""
        with self._lock:
            link, self._link = self._link, None
        if link is not None and self._process == os.getpid():
            self._break(link)

    def _connected(self) -> _Link | None:
        if self._process != os.getpid():
            self._process, self._link = os.getpid(), None
        if self._link is not None and not self._link.broken:
            return self._link
        if self._time.boot_ns() < self._not_before_ns:
            return None
        self._link = self._connect()
        if self._link is None:
            self._not_before_ns = self._time.boot_ns() + RETRY_NS
        return self._link

    def _connect(self) -> _Link | None:
        patience_ns = self._policy.attempt_timeout_ns
        # Environment: nobody would hear the answers.
        with contextlib.ExitStack() as undo, contextlib.suppress(OSError, Damaged, Environment):
            connection = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            connection.settimeout(patience_ns / SECOND)
            try:
                connection.connect(str(self._path))
                connection.sendall(wire.encode(self._hello))
                welcome = _receive(connection)
            except TimeoutError:
                self._silent_until_ns = self._time.boot_ns() + SILENCE_NS
                raise
            if isinstance(welcome, wire.WriterWelcome):
                connection.settimeout(None)
                link = _Link(wire.Line(connection, max(1, patience_ns // SECOND)), welcome.incarnation)
                begin(Thread(target=self._listen, args=(link,), name="tenure-writer-answers", daemon=True))
                undo.pop_all()
                return link
        return None

    def _listen(self, link: _Link) -> None:
        """Pass answers on until the connection ends; then whoever waits waits no longer."""
        with contextlib.suppress(OSError, Damaged):
            while isinstance(answer := _receive(link.line.socket), wire.WriterAnswer):
                if (call := link.calls.get(answer.number)) is not None:
                    call.put(answer)
        self._break(link)

    def _break(self, link: _Link) -> None:
        link.broken = True
        link.line.close()
        with self._lock:
            waiting = list(link.calls.values())
        for call in waiting:
            call.put(None)


def _receive(connection: socket.socket) -> wire.Incoming | None:
    body = wire.receive(connection)
    return None if body is None else wire.decode_answer(body)


def _handed(answer: wire.WriterAnswer, incarnation: bytes) -> Handed:
    match answer.said:
        case wire.WriterSaid.COMMITTED:
            return Committed(answer.file_name or None)
        case wire.WriterSaid.NOT_COMMITTED:
            return NotCommitted(answer.reason)
        case wire.WriterSaid.UNKNOWN:
            return Doubt(answer.reason, incarnation)
        case wire.WriterSaid.REFUSED:
            return None


class WriterDoor(Protocol):
    """The node's writer, as a process reaches it."""

    def submit(self, bag: Bag, frames: bytes) -> Handed: ...


class SharedWriter:
    """Writes the files of one process into the bags of one log, through its node's writer where that answers."""

    def __init__(self, own: Writer, door: WriterDoor, grid: Grid, authority: Authority, files: ListedFiles) -> None:
        self._own = own
        self._door = door
        self._grid = grid
        self._authority = authority
        self._files = files
        self._doubts: dict[tuple[str, str], bytes | None] = {}
        """Attempts whose outcome is open, by bag and name: with the incarnation of the node's writer that may have
        written them, or may still (empty: whichever it is); None where only the own file is in doubt. Neither is handed
        in again: what the node's writer says of a later file says nothing of an earlier one."""

    def write(self, file: FrameFile) -> Outcome:
        """Publish the frame, here or there, and find out what became of it. May be repeated while that is Unknown.

        Once the outcome is known it is not written again: what the node's writer did is forgotten then, and found by
        ``resolve`` all the same. Never raises for what the mount, the clock, the node's writer or other nodes do: that
        is Unknown. Touches the mount; waits for the node's writer as long as the door's patience lasts.
        """
        if _key(file) in self._doubts:
            return self._decided(file, self._own.write(file))
        try:
            answer = self._door.submit(file.bag, file.data)
        except BaseException:  # Ctrl-C while the answer was waited for: the frames may have been handed in
            self._doubts[_key(file)] = b""
            raise
        match answer:
            case None:
                self._doubts[_key(file)] = None
                return self._decided(file, self._own.write(file))
            case Doubt(reason, incarnation):
                self._doubts[_key(file)] = incarnation
                return Unknown(reason)
            case _:
                return answer

    def resolve(self, file: FrameFile, deadline_boot_ns: int | None = None) -> Outcome:
        """Decide an attempt whose outcome is Unknown by closing its bag, when it is due. Raises Damaged. May wait."""
        return self._decided(file, self._own.resolve(file, deadline_boot_ns))

    def _decided(self, file: FrameFile, own: Outcome) -> Outcome:
        """Join what is known of the own file with what the node's writer may have done."""
        incarnation = self._doubts.get(_key(file), b"")  # also of one whose outcome was told, and not heard
        outcome = own
        if incarnation is not None and isinstance(own, NotCommitted):
            try:
                outcome = self._searched(file, incarnation, own)
            except TenureError as problem:
                return Unknown(str(problem))
        if not isinstance(outcome, Unknown):
            self._doubts.pop(_key(file), None)
        return outcome

    def _searched(self, file: FrameFile, incarnation: bytes, own: NotCommitted) -> Outcome:
        """Look for the frame in the files of the node's writer that the closed bag lists. Touches the mount."""
        contents = self._authority.read(file.bag)
        if contents is None:
            return Unknown(f"{file.bag.path} is not closed")
        if contents.lock is None:
            return own
        wanted = [piece.payload for piece in pieces(file.data)[0]]
        unread: TenureError | None = None
        for entry in contents.lock.entries:
            name = self._grid.data_name(entry.name)
            theirs = name is not None and (name.writer, incarnation or name.incarnation) == (
                file.name.writer,
                name.incarnation,
            )
            try:
                if theirs and any(piece.payload in wanted for piece in self._files.pieces_of(file.bag, entry)):
                    return Committed()
            except TenureError as problem:  # another file may hold it
                unread = problem
        if unread is not None:
            raise unread
        return own


def _key(file: FrameFile) -> tuple[str, str]:
    return file.bag.path, file.name.text()
