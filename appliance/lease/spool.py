"""The witness ledger, off the request path: a bounded queue that a thread of the shell empties into a sink.

A shard never waits for the ledger. What does not fit, or what the sink refuses, is a gap for the auditor.
"""

from __future__ import annotations

from collections import deque
from threading import Condition
from typing import TYPE_CHECKING, Final

from timeagent.errors import Environment, LeaseholdError
from timeagent.units import SECOND

if TYPE_CHECKING:
    from timeagent.units import Span

    from .ports import LedgerSink

SPOOL_BYTES_MAX: Final = 64 * 1024 * 1024
APPEND_BYTES_MAX: Final = 4 * 1024 * 1024
"""How much is handed to the sink at once, unless a single block is larger."""


class LedgerSpool:
    """A LedgerSink in front of another. Thread-safe: shards append, one thread drains."""

    def __init__(self, sink: LedgerSink, *, bytes_max: int = SPOOL_BYTES_MAX) -> None:
        """Take the sink behind: it is called from the draining thread only."""
        self._sink = sink
        self._bytes_max = bytes_max
        self._blocks: deque[bytes] = deque()
        self._bytes = 0
        self._closed = False
        self._changed = Condition()
        self.appends_failed = 0
        """How often the sink refused some blocks: they are lost."""

    def append(self, data: bytes) -> None:
        """Queue a block; never waits. Raises Environment when the queue is full or closed: the block is lost."""
        with self._changed:
            if self._closed or self._bytes + len(data) > self._bytes_max:
                raise Environment(
                    "spool-full",
                    f"{self._bytes} bytes of the witness ledger wait for the mount already",
                    hint="see why appending to the ledger is slow",
                )
            self._blocks.append(data)
            self._bytes += len(data)
            self._changed.notify()

    def drain(self, timeout_ns: Span) -> bool:
        """Hand what is queued to the sink, oldest first, waiting up to ``timeout_ns`` for something to come.

        False: the spool is closed and empty. Touches the mount (the sink does).
        """
        with self._changed:
            if not self._blocks and not self._closed:
                self._changed.wait(timeout_ns / SECOND)
            taken: list[bytes] = []
            size = 0
            while self._blocks and (not taken or size + len(self._blocks[0]) <= APPEND_BYTES_MAX):
                taken.append(self._blocks.popleft())
                size += len(taken[-1])
            self._bytes -= size
            more = bool(self._blocks) or not self._closed
        if taken:
            try:
                self._sink.append(b"".join(taken))
            except LeaseholdError:
                self.appends_failed += 1
        return more or bool(taken)

    def run(self) -> None:
        """Drain until the spool is closed and empty: the body of the shell's thread."""
        while self.drain(SECOND):
            pass

    def close(self) -> None:
        """Take nothing more; the draining thread writes what is queued and ends."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
