"""What a shard runs with on its machine, and how an application gives its shard up when the daemon comes.

Who decides which shards run, and how one begins and ends (``ShardFailover``, ``shards.py``), gets all of it from here
and makes none of it, so that the same decisions run where a machine is a simulated one.

Whoever asks first runs a shard (``shards.py``), also an application whose daemon was killed a moment ago. But only the
daemon answers other nodes, and it goes on when applications end: while an application kept the shard, the rest of the
cluster could have no lease of it. So an application looks now and then for a daemon, stops the shard in good order when
there is one, and begins none while it runs. The daemon takes it from there (``ShardFailover``).
"""

from __future__ import annotations

import logging
import os
import socket
from threading import Lock, Thread
from typing import TYPE_CHECKING, Final, Protocol

from timeagent.units import MS

from ..lease.ceiling import CeilingExtender
from ..lease.connection import credentials
from ..lease.store import LeaseStore
from ..lease.witness_ledger import LedgerSpool
from .runtime import LocalLock, daemon_lock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from timeagent.clock import NodeTime
    from timeagent.units import Instant, Span

    from ..formats.policy import PolicyNumbers
    from ..lease.ceiling import CeilingChain
    from .records import StoredLedger


class Running(Protocol):
    """Something that was begun and goes on by itself."""

    def is_alive(self) -> bool:
        """Whether it has not ended yet. Never blocks."""
        ...

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, or for so many seconds."""
        ...


type Spawn = Callable[[str, Callable[[], object]], Running]
"""Begins something that goes on by itself, under a name for people."""


def in_thread(name: str, body: Callable[[], object]) -> Running:
    """Begin something in a thread of its own, which does not outlive the process."""
    thread = Thread(target=body, name=name, daemon=True)
    thread.start()
    return thread


class ShardRuntime:
    """A real machine's. ``runtime``: this node's directory on tmpfs."""

    def __init__(self, runtime: Path) -> None:
        """Make nothing yet."""
        self._runtime = runtime

    def spawn(self, name: str, body: Callable[[], object]) -> Running:
        """Begin something in a thread of its own."""
        return in_thread(name, body)

    def mutex(self) -> Lock:
        """Return a lock between threads of this process."""
        return Lock()

    def lock(self, shard: int) -> LocalLock:
        """Return the lock by which one process of this machine at a time runs a shard."""
        return LocalLock(self._runtime / f"shard-{shard:04d}.lock")

    def daemon_runs(self) -> bool:
        """Whether a process of this machine is the node's daemon. Never blocks."""
        return daemon_lock(self._runtime).is_held()

    def store(self, shard: int) -> LeaseStore:
        """Return an empty database for a shard. Raises Environment."""
        return LeaseStore(self._runtime / f"shard-{shard:04d}.db")

    def chain(self, right: CeilingChain, time: NodeTime, policy: PolicyNumbers) -> CeilingExtender:
        """Return a chain whose mount work keeps no request waiting."""
        return CeilingExtender(right, time, policy)

    def spool(self, ledger: StoredLedger) -> LedgerSpool:
        """Return the queue by which blocks reach a run's ledger."""
        return LedgerSpool(ledger)


_log = logging.getLogger(__name__)

LOOK_NS: Final[Span] = 250 * MS
"""How often a shard's loop looks whether there is a daemon."""


class ShardHandover:
    """One application's shards, as far as they are the daemon's."""

    def __init__(
        self,
        shard_runtime: ShardRuntime,
        time: NodeTime,
        leave: Callable[[int], None],
        keys_end: Callable[[], str | None],
    ) -> None:
        """Look for nobody yet. ``leave``: stop a shard in good order and give up its lock; it may block.

        ``keys_end``: why no shard may go on in this process for its keys, or None.
        """
        self._shard_runtime = shard_runtime
        self._time = time
        self._leave = leave
        self._keys_end = keys_end
        self._looked: dict[int, Instant] = {}
        self._leaving: dict[int, Running] = {}

    def look(self, shard: int) -> None:
        """Begin to give a shard up if a daemon runs, or its keys end. For the shard's own loop.

        Never blocks, touches tmpfs only.
        """
        now = self._time.boot_ns()
        if now - self._looked.get(shard, 0) < LOOK_NS:
            return
        self._looked[shard] = now
        leaving = self._leaving.get(shard)
        if leaving is not None and leaving.is_alive():
            return
        why = "the daemon runs" if self._shard_runtime.daemon_runs() else self._keys_end()
        if why is None:
            return
        _log.info("shard-gives-way shard=%d reason=%s", shard, why)
        self._leaving[shard] = self._shard_runtime.spawn(f"tenure-leave-{shard}", lambda: self._leave(shard))


def kept_by(path: Path) -> str | None:
    """Return in words which other process of this machine listens at a shard's socket; None: none that is seen.

    Touches tmpfs only; never blocks. It is there also while it stands still.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(0)
        try:
            asking.connect(str(path))
            process = credentials(asking)[0]
        except BlockingIOError:
            process = 0  # so many wait to be let in that nobody hears who it is
        except OSError:
            return None
    if process == os.getpid():
        return None
    return f"process {process} of this machine" if process else "another process of this machine"
