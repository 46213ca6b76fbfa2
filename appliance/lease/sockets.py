"""What all servers have: a listening socket, and one thread's loop that takes in who comes, and ends in good order.

A listener for which no descriptor is free stays ready: without a pause a loop would do nothing else from then on.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

from timeagent.errors import Environment
from timeagent.units import MS

from ..formats.names import Address

_log = logging.getLogger(__name__)

TICK_NS: Final = 100 * MS
"""How often a loop looks at least after what has stood still; for how long a listener is left alone."""

_BACKLOG: Final = 1024
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_PEERCRED: Final = struct.Struct("i2I")
_SO_PEERGROUPS: Final = 59
"""socket(7): the supplementary groups of the other end; the socket module has no name for it."""


class BootClock(Protocol):
    """A clock, as far as a time-out needs one."""

    def boot_ns(self) -> int:
        """Return nanoseconds since boot."""
        ...


class Listener:
    """A listening socket: at an address, or at a path, with its file."""

    def __init__(
        self,
        place: Address | Path,
        group: int | None = None,
        *,
        code: str = "no-socket",
        hint: str = "use a short path on tmpfs that is writable",
    ) -> None:
        """Listen. A socket that an earlier run left is removed. ``group``: may connect at the path too.

        Port 0 is any free port: ``place`` says which then. Raises Environment, by this code and hint.
        """
        self._file: tuple[Path, int, int] | None = None
        try:
            if isinstance(place, Path):
                self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self._bind(place, group)
            else:
                family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
                self.socket = socket.create_server((place.host, place.port), family=family, backlog=_BACKLOG)
                place = Address(place.host, self.socket.getsockname()[1])
        except OSError as problem:
            raise Environment(code, f"cannot listen at {place}: {problem}", hint=hint) from None
        self.place = place

    def _bind(self, path: Path, group: int | None) -> None:
        try:
            if path.is_socket():  # whatever else lies there is somebody's
                path.unlink(missing_ok=True)
            self.socket.bind(str(path))
            path.chmod(0o600)
            if group is not None:
                os.chown(path, -1, group)
                path.chmod(0o660)
            self.socket.listen(_BACKLOG)
            self._file = _identified(path)
        except OSError:
            self.socket.close()
            raise

    def close(self) -> None:
        """Listen no more; remove the file, unless another has bound its own under the name meanwhile. Idempotent."""
        file, self._file = self._file, None
        with contextlib.suppress(OSError):
            # While the socket is open no other file has its inode's number.
            if file is not None and _identified(file[0]) == file:
                file[0].unlink()
        self.socket.close()


def _identified(path: Path) -> tuple[Path, int, int]:
    """Return what tells a file from another under the same name."""
    status = path.stat()
    return path, status.st_dev, status.st_ino


class SocketLoop(ABC):
    """Serves who connects to a listener, until it is told to stop: ``run`` is the body of one thread."""

    def __init__(self, listener: Listener, clock: BootClock) -> None:
        """Take in nobody yet. Raises Environment, and closes the listener."""
        self._listener = listener
        self._clock = clock
        self._stopping = False
        self._deaf_until = 0
        """Until when nobody is taken in; 0: everybody is."""
        with contextlib.ExitStack() as undo:
            undo.callback(listener.close)
            try:
                self._poll = select.epoll()
                undo.callback(self._poll.close)
                self._wake, self._woken = socket.socketpair()
            except OSError as problem:
                what = f"cannot serve at {listener.place}: {problem}"
                raise Environment("no-socket", what, hint="raise LimitNOFILE, or ulimit -n") from None
            undo.pop_all()
        for each in (listener.socket, self._wake, self._woken):
            each.settimeout(0)
        for each in (listener.socket, self._woken):
            self._poll.register(each, select.EPOLLIN)

    def run(self) -> None:
        """Serve until stop(), then come to an end and close everything. Blocks; call it once.

        A bug in what is served ends it too: the exception comes out here.
        """
        try:
            while not self._stopping:
                self._loop_once()
            self._finish()
        finally:
            self._stopping = True  # also where it ends by itself
            self._drop_all()
            self.close_all()

    def close_all(self) -> None:
        """Close what it was made with, once run() has ended or where it never began. Idempotent."""
        for each in (self._listener, self._wake, self._woken, self._poll):
            each.close()

    def stop(self) -> None:
        """End run() soon. Thread-safe, idempotent, safe in a signal handler."""
        self._stopping = True
        self._rouse()

    @abstractmethod
    def _loop_once(self) -> None:
        """Wait until something is ready, and serve that."""

    def _finish(self) -> None:  # noqa: B027 - mostly there is nothing to finish
        """Do what is owed to those who are here when the loop ends."""

    @abstractmethod
    def _drop_all(self) -> None:
        """Close all connections."""

    def _rouse(self) -> None:
        with contextlib.suppress(OSError):  # full: it is awake; closed: it has ended
            self._wake.send(b"\0")

    def _knocks(self, descriptor: int) -> bool:
        """Whether what is ready, and nobody's connection, is the listener; else it is what rouses the loop."""
        if descriptor == self._woken.fileno():
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(4096)
        return descriptor == self._listener.socket.fileno()

    def _next_caller(self, now: int) -> tuple[socket.socket, str] | None:
        """Return who comes next, as a socket that never blocks, and from which address; None: nobody now."""
        try:
            accepted, whence = self._listener.socket.accept()
        except OSError as problem:
            if problem.errno in _EXHAUSTED:
                _log.warning("accept-failed reason=%s", problem.strerror)
                self._be_deaf(now)
            return None
        accepted.settimeout(0)
        return accepted, str(whence[0]) if whence else ""

    def _be_deaf(self, now: int) -> None:
        """Leave the listener alone for a tick."""
        self._deaf_until = now + TICK_NS
        self._poll.unregister(self._listener.socket)

    def _listen_again(self, now: int) -> None:
        if self._deaf_until and now >= self._deaf_until:
            self._deaf_until = 0
            self._poll.register(self._listener.socket, select.EPOLLIN)


def credentials(connection: socket.socket) -> tuple[int, int, list[int]]:
    """Return process, user and groups of the other end of a Unix socket, as they were when it connected.

    Raises OSError.
    """
    process, user, group = _PEERCRED.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size)
    )
    groups = {group}
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 4 * 1024)
    except OSError:  # an old kernel, or more groups than fit: the first group is known all the same
        raw = b""
    groups.update(struct.unpack(f"{len(raw) // 4}I", raw))
    return process, user, sorted(groups)


def permitted(user: int, groups: Iterable[int], *, own_user: int, group: int | None) -> bool:
    """Whether a process of this machine may use the socket: the same user, the superuser, or the configured group."""
    return user in (own_user, 0) or (group is not None and group in groups)
