"""The tree in an object store: listed once, and each object fetched when it is read.

A process of its own fetches, because what the library does in threads does not survive the fork of those who judge. To
each of them it hands what was asked for as an open file without a name below TMPDIR; and it goes ahead of them, in the
order of names, by a bounded number of bytes: neither disk nor memory has to hold the tree. What is deleted between the
listing and its turn is not there, as of a tree in use that rsync copies.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import weakref
from bisect import bisect_left
from collections.abc import Buffer, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from threading import Lock, Thread, local
from typing import IO, TYPE_CHECKING, Final

import msgspec

from timeagent.errors import BadConfiguration, Damaged, Environment

from .tree import ListedTree, Opened, open_at, text_of_bytes

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore

_CLIENT: Final[ClientConfig] = {"timeout": "60s", "connect_timeout": "5s", "allow_http": True}
_AT_ONCE: Final = 16
_AHEAD: Final = 32
"""So many objects from the one that is asked for on are fetched before somebody asks for them,"""
_KEPT_MAX: Final = 4 * _AHEAD
"""so many at most are kept for those who did not ask yet,"""
_KEPT_BYTES_MAX: Final = 64 * 1024 * 1024
"""and so many bytes of them: a larger object is fetched when it is its turn."""
_DATAGRAM_MAX: Final = 64 * 1024
_LIST, _HERE, _GONE, _FAILED = b"/", b"+", b"-", b"!"


class _Listed(msgspec.Struct, array_like=True):
    key: str
    size: int
    mark: str
    """What changes when the object does."""


class _Process:
    """The process that fetches, and the way to it: each process that asks, and each thread, has its own."""

    def __init__(self, address: str) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-P", "-m", __name__, address, str(theirs.fileno())]
            # It ends when nobody has the other end of this any more, however that comes about.
            self._process = subprocess.Popen(  # noqa: S603 - this module again
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
            )
        self._mine = local()
        self._ways: list[socket.socket] = []

    def ask(self, asked: bytes) -> Opened | None:
        """Return an object by its key, or the list; None: it is gone. Blocks. Raises Environment."""
        if getattr(self._mine, "process", 0) != os.getpid():
            self._mine.way, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                socket.send_fds(self._control, [_HERE], [theirs.fileno()])
            self._mine.process = os.getpid()
            self._ways.append(self._mine.way)
        try:
            self._mine.way.send(asked)
            said, found, *_ = socket.recv_fds(self._mine.way, _DATAGRAM_MAX, 1)
        except OSError as problem:
            said, found = _FAILED + str(problem).encode(), []
        if found:
            return Opened(found[0], 0, os.fstat(found[0]).st_size)
        if said == _GONE:
            return None
        why = said[1:].decode() or "the process that fetches has ended"
        named = "no file can be named so: move that object away"  # it lists nothing where there is one
        hint = named if "object with invalid path" in why else "check the address, the keys and the way"
        raise Environment("store-failed", why, hint=hint)

    def close(self) -> None:
        for each in (self._control, *self._ways):
            each.close()
        self._process.kill()
        self._process.wait()


class FetchedTree(ListedTree):
    """A copy of what is at an address, each file of which is fetched when it is opened."""

    def __init__(self, address: str) -> None:
        """List it. Blocks. Raises Environment, BadConfiguration; Damaged for names that no file can have."""
        super().__init__(Path(address))
        self.said = address
        if find_spec("obstore") is None:  # an extra
            raise BadConfiguration(
                "no-obstore", f"{address} needs the library obstore", hint="pip install 'tenure[s3]'"
            )
        self._process = _Process(address)
        weakref.finalize(self, self._process.close)
        self._files = {text_of_bytes(each.key.encode()): each for each in self._listed()}
        if not self._files:
            raise Environment("no-root", f"{address} holds nothing", hint="name BUCKET/PREFIX of a cluster's root")
        for path, each in sorted(self._files.items()):
            if not {"", ".", ".."}.isdisjoint(each.key.split("/")):
                what = f"an object is named {each.key!r}"
                raise Damaged("bad-name", what, hint="no file can be named so: move it away")
            self._add(path, is_directory=False)
        for path in self._children.keys() & self._files.keys():
            if self._files[path].size:  # what a console makes in the place of a directory is empty
                what = f"{self._files[path].key!r} is an object, and there are objects below it"
                raise Damaged("bad-name", what, hint="move one of them away")

    def _listed(self) -> list[_Listed]:
        found = self._process.ask(_LIST)
        assert found is not None
        try:
            return msgspec.json.decode(found.read(0, found.size), type=list[_Listed])
        finally:
            found.close()

    def size(self, path: str) -> int:
        return self._files[path].size if path in self._files else 0

    def identity(self, path: str) -> str:
        return self._files[path].mark if path in self._files else ""

    def open_file(self, path: str) -> Opened | None:
        if path not in self._files:
            return None
        if not self._files[path].size:  # as a prelock is: there is nothing to fetch
            return open_at(Path(os.devnull), 0, 0)
        try:
            return self._process.ask(self._files[path].key.encode())
        except Environment as problem:
            self.unreadable[path] = problem.message
            return None


class _Fetching:
    """What the process does that fetches, in a thread for each that asks."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._store: ObjectStore
        self._threads = ThreadPoolExecutor(_AT_ONCE)
        self._lock = Lock()
        self._sizes: dict[str, int] = {}
        self._keys: list[str] = []
        self._begun: set[str] = set()
        self._kept: dict[str, Future[IO[bytes]]] = {}
        self._kept_bytes = 0

    def listed(self) -> IO[bytes]:
        """List the store, once; return a file of that. Raises obstore's errors, OSError."""
        import obstore  # noqa: PLC0415 - an extra; and a directory is judged without it

        self._store = obstore.store.from_url(self._address, client_options=_CLIENT)
        found = [
            _Listed(each["path"], each["size"], f"{each['size']} {each['e_tag']} {each['last_modified']}")
            for each in chain.from_iterable(obstore.list(self._store))
        ]
        self._sizes = {each.key: each.size for each in found}
        self._keys = sorted(self._sizes)
        return _file([msgspec.json.encode(found)])

    def taken(self, key: str) -> IO[bytes]:
        """Return a file of an object. Blocks. Raises FileNotFoundError, obstore's errors, OSError."""
        with self._lock:
            mine = self._forget(key) or self._threads.submit(self._fetch, key)
            self._go_ahead(key)
        return mine.result()

    def _go_ahead(self, key: str) -> None:
        """Begin with the rest of its directory, and what stands behind it."""
        self._begun.add(key)
        at = bisect_left(self._keys, key)
        first = bisect_left(self._keys, key.rpartition("/")[0], max(0, at - _AHEAD), at)
        for each in self._keys[first : at + _AHEAD]:
            if each not in self._begun and 0 < self._sizes[each] <= _KEPT_BYTES_MAX // _AT_ONCE:
                self._begun.add(each)
                self._kept[each] = self._threads.submit(self._fetch, each)
                self._kept_bytes += self._sizes[each]
        while len(self._kept) > _KEPT_MAX or self._kept_bytes > _KEPT_BYTES_MAX:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: str) -> None:
        found = self._forget(key)
        if found is not None and not found.cancel():
            found.add_done_callback(lambda done: None if done.exception() else done.result().close())

    def close(self) -> None:
        """Close what is kept. Blocks for what is being fetched."""
        with self._lock:
            for key in list(self._kept):
                self._drop(key)
        self._threads.shutdown()

    def _forget(self, key: str) -> Future[IO[bytes]] | None:
        found = self._kept.pop(key, None)
        if found is not None:
            self._kept_bytes -= self._sizes[key]
        return found

    def _fetch(self, key: str) -> IO[bytes]:
        import obstore  # noqa: PLC0415 - loaded by now

        return _file(obstore.get(self._store, key).stream())

    def answer(self, way: socket.socket) -> None:
        """Answer one thread of a process until it ends."""
        from obstore.exceptions import BaseError  # noqa: PLC0415 - as above

        with way:
            while asked := way.recv(_DATAGRAM_MAX):
                try:
                    with self.listed() if asked == _LIST else self.taken(asked.decode()) as file:
                        socket.send_fds(way, [_HERE], [file.fileno()])
                except FileNotFoundError:
                    way.send(_GONE)
                except (BaseError, OSError, ValueError) as problem:
                    said = str(problem).partition("\n\nDebug source:")[0]
                    way.send(_FAILED + f"{self._address}: {' '.join(said.split())[:300]}".encode())


def _file(chunks: Iterable[Buffer]) -> IO[bytes]:
    file = tempfile.TemporaryFile()  # noqa: SIM115 - whoever is handed it closes it; it has no name any more
    for chunk in chunks:
        file.write(chunk)
    file.flush()
    return file


def main(address: str, descriptor: int) -> None:
    """Fetch for everybody who asks, until nobody can any more."""
    fetching = _Fetching(address)
    with socket.socket(fileno=descriptor) as control:
        while found := socket.recv_fds(control, 1, 1)[1]:
            Thread(target=fetching.answer, args=(socket.socket(fileno=found[0]),), daemon=True).start()
    fetching.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
