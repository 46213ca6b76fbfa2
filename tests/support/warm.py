"""Programs of ours that tests start, without each of them loading the product anew.

One process for each process of tests has loaded it, and forks whatever is to run: as ``python -m MODULE WORDS...``, a
child of whoever starts it, with its own streams, environment and signals, and no thread. What it costs to load, and
that it loads no more than it should, is for other tests to say: they start an interpreter.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import IO

ROOT: Final = Path(__file__).parents[2]
LOADED: Final = ("appliance.daemon.daemon", "appliance.cli.service", "appliance.cli.run", "appliance.cli.agent")
ORDER_BYTES_MAX: Final = 1 << 17
CLONE_PARENT: Final = 0x00008000
CLONE: Final = 56 if os.uname().machine == "x86_64" else 220
"""The number of the call: of the table that all newer machines share, else."""

_LOCK: Final = Lock()


@cache
def _server(_: int) -> socket.socket:
    """Return the way to that of one process of tests, by its number: what is forked of that one has its own."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = ["env", "--default-signal", sys.executable, "-m", "tests.support.warm", str(far.fileno())]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, pass_fds=[far.fileno()])
    far.close()

    def close() -> None:
        near.close()
        process.wait()

    atexit.register(close)
    return near


class WarmProcess(subprocess.Popen[str]):
    """``python -m MODULE WORDS...``, or ``python -c PROGRAM WORDS...``, forked."""

    def __init__(
        self,
        module: str,
        words: Sequence[str],
        *,
        stdin: int | None = None,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        super().__init__([module, *words], stdin=stdin, stdout=stdout, stderr=stderr, env=env, cwd=cwd, text=True)

    def _execute_child(self, args: Sequence[str], *rest: object) -> None:
        """Have it forked where another would call ``execve``: the place that the standard library has for it."""
        cwd, env, ends = rest[4], rest[5], [end for end in rest[9:15] if isinstance(end, int)]
        streams = [number if end == -1 else end for number, end in enumerate((ends[0], ends[3], ends[5]))]
        order = json.dumps([list(args), dict(env if isinstance(env, dict) else os.environ), str(cwd or Path.cwd())])
        try:
            with _LOCK:
                server = _server(os.getpid())
                socket.send_fds(server, [order.encode()], streams)
                self.pid = int(server.recv(64))
            self._child_created = True
        finally:
            for theirs, ours in ((ends[0], ends[1]), (ends[3], ends[2]), (ends[5], ends[4])):
                if ours != -1:
                    os.close(theirs)


def ran(
    module: str, words: Sequence[str], *, timeout_s: float = 100, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one to its end."""
    with WarmProcess(module, words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd) as process:
        out, err = process.communicate(timeout=timeout_s)
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def _fork_sibling() -> int:
    """Fork a child of this process's parent; return 0 in the child. ``os.fork`` can make children of its own only."""
    python = ctypes.PyDLL(None)
    python.PyOS_BeforeFork()
    pid = python.syscall(CLONE, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    assert pid >= 0
    return int(pid)


def _become(args: Sequence[str], env: Mapping[str, str], cwd: str, streams: Sequence[int]) -> None:
    """Run a module as the main one of a process that has these streams."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, 1024)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115 - as Python does
    sys.stderr = open(2, "w", closefd=False, errors="backslashreplace", buffering=1)  # noqa: SIM115
    module, *sys.argv[1:] = args
    if module == "-c":
        sys.argv[:2] = ["-c"]
        exec(args[1], {"__name__": "__main__"})
    else:
        runpy.run_module(module, run_name="__main__", alter_sys=True)


def main() -> None:
    """Fork whatever is asked for, until nobody can ask any more."""
    for name in LOADED:
        __import__(name)
    line = socket.socket(fileno=int(sys.argv[1]))
    gc.freeze()
    while True:
        order, streams, _, _ = socket.recv_fds(line, ORDER_BYTES_MAX, 3)
        if not order:
            return
        if (pid := _fork_sibling()) == 0:
            line.detach()
            args, env, cwd = json.loads(order)
            _become(args, env, cwd, streams)
            return
        for stream in streams:
            os.close(stream)
        line.send(str(pid).encode())


if __name__ == "__main__":
    main()
