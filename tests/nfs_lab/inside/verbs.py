"""Runs on a node: does what it is told on the mount, with the verbs of the storage port, as one user.

Told over a Unix socket of the machine, one JSON line a connection, which the lab's agent reaches: never over the mount.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import threading
import time
from enum import Enum
from pathlib import Path
from typing import Any

from appliance.bag.posix import PosixStorage
from timeagent.errors import Environment

GROUP = 1000


def plain(value: object) -> object:
    """Return what JSON can say of what a verb returned."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return value.decode()
    return sorted(value) if isinstance(value, frozenset) else value


class Told(PosixStorage):
    """Counts how often a link was told EEXIST, and whether by its own repeat."""

    refusals = 0

    def _is_same_file(self, prepared: str, target: str) -> bool:  # type: ignore[override] # it counts for itself
        self.refusals += 1
        return super()._is_same_file(prepared, target)


class Verbs:
    """The storage of one process, and what the port does not have: a held descriptor, a mode, a clock."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)
        self._storage = Told(self._root)
        self._held = -1

    def do(self, verb: str, path: str, rest: list[Any]) -> object:
        """Do it; return what came of it, or the code of the refusal."""
        try:
            own = getattr(self, f"_{verb}", None)
            if own is not None:
                return own(path, *rest)
            words = [word.encode() if verb in {"publish", "append"} and n == 0 else word for n, word in enumerate(rest)]
            return plain(getattr(self._storage, verb)(path, *words))
        except Environment as problem:
            return problem.code
        except PermissionError:
            return "mount-refused"

    def _links_refused(self, _: str) -> int:
        return self._storage.refusals

    def _clock(self, _: str) -> int:
        return time.time_ns()

    def _chmod(self, path: str, mode: int) -> None:
        (self._root / path).chmod(mode)

    def _hold(self, path: str) -> None:
        self._held = os.open(self._root / path, os.O_WRONLY | os.O_APPEND)

    def _write_held(self, _: str, text: str) -> str:
        try:
            os.write(self._held, text.encode())
            os.fsync(self._held)
        finally:
            os.close(self._held)
        return "lands"


def serve(connection: socket.socket, verbs: Verbs) -> None:
    """Answer one request."""
    with connection, connection.makefile("rw") as stream:
        request = json.loads(stream.readline())
        stream.write(json.dumps(verbs.do(**request)) + "\n")


def main() -> None:
    """Serve for ever."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", required=True)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--uid", type=int, required=True)
    options = parser.parse_args()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(options.socket)
    listening.listen(64)
    os.umask(0)
    os.setgroups([])
    if options.uid:
        os.setgid(GROUP)
        os.setuid(options.uid)
    verbs = Verbs(options.root)
    print(f"ready {os.getpid()}", flush=True)
    while True:
        connection, _ = listening.accept()
        threading.Thread(target=serve, args=(connection, verbs), daemon=True).start()


if __name__ == "__main__":
    main()
