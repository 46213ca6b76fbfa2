"""The Python clients in processes of their own, asked by JSON lines (``holders.py``)."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from .generator import Figure, NotBelieved

if TYPE_CHECKING:
    from types import TracebackType

ROOT = Path(__file__).parents[3]
_ANSWER_S = 120
_WEDGED_S = 20
"""Far above the term of a second that is asked for: who has not got the domain by then never will."""


class Worker:
    """One process with one kind of client."""

    def __init__(self, python: str | Path, kind: str, target: str, pid: int) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        words = [str(python), str(Path(__file__).with_name("holders.py")), kind, target, str(pid)]
        self.kind = kind
        self._unread = b""
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True, cwd=ROOT
        )

    def __enter__(self) -> Self:
        """Go on while it starts: its first line, without a job, says that it is ready."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """End it as SIGKILL does."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for each in (self.process.stdin, self.process.stdout):
            assert each is not None
            each.close()

    def say(self, **job: object) -> None:
        """Hand it a job."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()

    def heard(self, seconds: float = _ANSWER_S) -> dict[str, Any]:
        """Return its next line. Raises NotBelieved when none comes in time, or it has died."""
        assert self.process.stdout is not None
        while b"\n" not in self._unread:  # two lines may come at once: the second one is not waited for
            if not select.select([self.process.stdout], [], [], seconds)[0]:
                raise NotBelieved(f"{self.kind}: no answer in {seconds} s")
            if not (read := os.read(self.process.stdout.fileno(), 65_536)):
                raise NotBelieved(f"{self.kind}: the client process has died")
            self._unread += read
        line, _, self._unread = self._unread.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def figure(self, **job: object) -> Figure:
        """Have a job done. Raises NotBelieved for double holders, and for a sample that could not be verified."""
        self.say(**job)
        found = self.heard()
        if found["double_holders"] or found["problems"] or not found["rate"]:
            raise NotBelieved(f"{self.kind}: {found}")
        if self.kind == "ours" and not found["verified"]:
            raise NotBelieved("ours: no witness was verified")
        waits = found.get("longest_wait_us", 0.0), found.get("mean_wait_us", 0.0)
        return Figure(found["rate"], found["cpu_us"], *waits, found["verified"])


def waited_behind_the_dead(python: str | Path, target: str, pid: int) -> float:
    """Kill one that waits, and then the one that holds; return how long the one behind them waited from then on, in s.

    Raises NotBelieved when it never got the domain.
    """
    name = f"wedge-{time.monotonic_ns()}"
    workers = [Worker(python, "ours", target, pid) for _ in range(3)]
    holder, waiter, last = workers
    try:
        for each in workers:
            each.heard()
        for each in workers:
            each.say(job="stay", name=name)
            assert "waits" in each.heard()
            if each is holder:
                assert "holds" in holder.heard()
            time.sleep(0.2)  # so that they stand in the queue in this order; otherwise less is tried
        began = time.monotonic()
        waiter.kill()
        holder.kill()
        assert "holds" in last.heard(_WEDGED_S)
        return time.monotonic() - began
    finally:
        for each in workers:
            each.kill()
