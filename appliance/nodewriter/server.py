"""The shell around a node's writer: a Unix socket, a thread for each connection, and a few that write.

Whoever breaks the rules of the wire, or does not read the answers, loses the connection and nothing else: what it
handed in is written all the same, and it can find out by closing the bag.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Final

from timeagent.errors import Damaged, Environment

from .stream import limit_sending, receive_exactly
from .wire import (
    LENGTH_BYTES,
    PROTOCOL_VERSION,
    Rebuff,
    Submit,
    WriterAnswer,
    WriterHello,
    WriterSaid,
    WriterWelcome,
    answer_of,
    body_bytes,
    decode_call,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from appliance.bag.outcome import Outcome

    from .service import NodeWriter
    from .wire import Incoming, Outgoing

_log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 256
WRITERS: Final = 4
"""How many files are on their way to the mount at once: its latency is waited out side by side."""

PAUSE_S: Final = 0.1
"""How long nobody is taken in after that has failed: who waits is told of again and again."""

PATIENCE_S: Final = 2
"""How long a client may leave no room for an answer before it is cut off."""


class NodeWriterServer:
    """Serves one NodeWriter on a socket, between ``start`` and ``stop``."""

    def __init__(self, writer: NodeWriter, path: Path, *, writers: int = WRITERS) -> None:
        """Listen. A socket that an earlier run left is removed: whoever starts this made sure that it is alone.

        Raises Environment.
        """
        self._writer = writer
        self._path = path
        self._ending = Event()
        self._connections: set[_Connection] = set()
        self._lock = Lock()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            path.unlink(missing_ok=True)
            self._listener.bind(str(path))
            path.chmod(0o600)
            self._listener.listen(128)
        except OSError as problem:
            self._listener.close()
            raise Environment(
                "no-socket", f"cannot listen at {path}: {problem}", hint="use a short path on tmpfs that is writable"
            ) from None
        self._writing = [Thread(target=writer.batcher.run, name="tenure-writer", daemon=True) for _ in range(writers)]
        self.threads = [Thread(target=self._accept, name="tenure-writer-door", daemon=True), *self._writing]

    def start(self) -> None:
        """Begin to answer."""
        for thread in self.threads:
            thread.start()

    def stop(self) -> None:
        """Take nothing more, write and answer what was taken, end. Waits for the mount. Idempotent."""
        if self._ending.is_set():
            return
        self._ending.set()
        self._path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._writer.batcher.close()
        for thread in self._writing:
            thread.join()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.close()

    def _accept(self) -> None:
        while not self._ending.is_set():
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                # Out of descriptors, perhaps: who waits keeps waiting, and the next close makes room.
                if not self._ending.wait(PAUSE_S):
                    _log.warning("writer-cannot-accept")
                continue
            with self._lock:
                if len(self._connections) >= CONNECTIONS_MAX or self._ending.is_set():
                    accepted.close()
                    continue
                connection = _Connection(self._writer, accepted, self._forget)
                self._connections.add(connection)
            try:
                Thread(target=connection.run, name="tenure-writer-client", daemon=True).start()
            except RuntimeError:  # this process may have no more threads
                connection.close()

    def _forget(self, connection: _Connection) -> None:
        with self._lock:
            self._connections.discard(connection)


class _Connection:
    """One process."""

    def __init__(self, writer: NodeWriter, accepted: socket.socket, forget: Callable[[_Connection], None]) -> None:
        self._writer = writer
        self._socket = accepted
        limit_sending(accepted, PATIENCE_S)
        self._forget = forget
        self._sending = Lock()

    def run(self) -> None:
        """Hear the process out, until it goes."""
        try:
            if self._greeted():
                while (message := self._receive()) is not None:
                    if not isinstance(message, Submit):
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
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._forget(self)

    def _greeted(self) -> bool:
        hello = self._receive()
        asked = hello if isinstance(hello, WriterHello) else None
        mine = (PROTOCOL_VERSION, self._writer.cluster_id, self._writer.node)
        if asked is None or (asked.version, asked.cluster_id, asked.node) != mine:
            if asked is not None:
                text = f"this is the writer of {mine[2]} in cluster {mine[1].hex()}, protocol version {mine[0]}"
                self._send(Rebuff(reason=text))
            return False
        self._send(WriterWelcome(incarnation=self._writer.incarnation))
        return True

    def _take(self, submission: Submit) -> None:
        def told(outcome: Outcome) -> None:
            self._send(answer_of(submission.number, outcome))

        refused = self._writer.submit(submission, told)
        if refused is not None:
            self._send(WriterAnswer(number=submission.number, said=WriterSaid.REFUSED, reason=refused))

    def _send(self, message: Incoming) -> None:
        """Send an answer. Never raises: who cannot be told finds out by itself."""
        with self._sending:
            try:
                self._socket.sendall(encode(message))
            except OSError:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)  # its thread wakes and forgets it

    def _receive(self) -> Outgoing | None:
        """Return the next message; None at the end of the connection. Raises OSError, Damaged."""
        head = receive_exactly(self._socket, LENGTH_BYTES)
        if head is None:
            return None
        body = receive_exactly(self._socket, body_bytes(head))
        return None if body is None else decode_call(body)
