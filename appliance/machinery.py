"""What a shard runs with on its machine: threads, a lock and a database on tmpfs, and the two queues to the mount.

Who decides which shards run, and how one begins and ends (``tenancy.py``, ``shards.py``), gets all of it from here and
makes none of it, so that the same decisions run where a machine is a simulated one.
"""

from __future__ import annotations

from threading import Lock, Thread
from typing import TYPE_CHECKING, Protocol

from .lease.ceiling import CeilingExtender
from .lease.store import LeaseStore
from .lease.witness_ledger import LedgerSpool
from .runtime import LocalLock, daemon_lock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from timeagent.clock import NodeTime

    from .formats.policy import PolicyNumbers
    from .lease.ceiling import CeilingChain
    from .registers import StoredLedger


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


class Machinery:
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
