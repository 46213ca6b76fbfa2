"""A turn's entries signed as one batch, and the witness ledger to which each batch goes, off the request path.

``BatchSigner`` chains the batches of one incarnation and hands each to the ledger. ``LedgerSpool`` is a bounded queue
that a thread of the shell empties into a sink: a shard never waits for the ledger. What the sink refuses is kept and
handed to it again, for as long as there is room; what does not fit, or is still refused at the end, is a gap for the
auditor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from threading import Condition, Event
from typing import Final, Protocol

from timeagent.errors import Environment, TenureError
from timeagent.keys import KeyInUse, Signer
from timeagent.signedtime import SignedTime
from timeagent.units import MS, SECOND, Instant, Span

from ..formats.witness import NO_HEAD, Batch, CeilingCopy, Entry, Resumed, block_bytes, head_digest, sign_batch
from .ceiling import CeilingChain, ShardIdentity
from .whole_shard import GoingBy, Suspension

HOLD_NS: Final = 20 * MS
"""For how long the ends of leases wait for a turn that signs, where nothing else was to be signed."""

HELD_MAX: Final = 256
"""How many entries wait so at most."""


class BatchSigner:
    """The head chain of one incarnation. A batch counts once it is published; until then it can be dropped."""

    def __init__(
        self,
        identity: ShardIdentity,
        going: GoingBy,
        signer: Signer | KeyInUse,
        chain: CeilingChain,
        ledger: LedgerSink,
    ) -> None:
        self._identity = identity
        self._going = going
        self._signer = signer
        self._chain = chain
        self._ledger = ledger
        self.head = NO_HEAD
        """The digest of the newest head that is published."""
        self.signed_ns: Instant = 0
        """The time by which that was signed."""
        self.block_bytes = 0
        self._signing_ns: Instant = 0
        self._first: list[Entry | bytes] = []
        self._held: tuple[SignedTime, tuple[int, Instant], int] | None = None
        """The turn's time, the right to grant that it had, and how many of the first entries it left."""
        self.held_until_boot_ns: int | None = None
        """By when what is held has to be signed; None: nothing is."""
        self.not_before_ns: Instant = 0
        """What a run before signed last: nothing is signed by an earlier time, wherever the clock steps."""
        self.batches = 0
        """How many batches are published."""
        self.blocks_lost = 0
        """How many of them the ledger refused: gaps for the auditor, never a reason to stop."""

    def resume(self, said: Suspension) -> None:
        """Go on behind the last batch of a run that stopped for a restart."""
        self.head, self.batches, self.blocks_lost = said.head, said.batches, said.blocks_lost
        self.signed_ns, self.block_bytes = said.signed_ns, said.block_bytes
        self.not_before_ns = said.signed_ns

    def say(self, entry: CeilingCopy | Resumed) -> None:
        """Say in the next batch which record was linked (the chain itself is pruned), or since when none was signed."""
        self._first.append(entry)

    def waiting(self) -> list[Entry | bytes]:
        """Return what the next batch has to begin with."""
        return list(self._first)

    def hold(self, entries: Sequence[Entry | bytes], time: SignedTime, boot_ns: int) -> bool:
        """Keep a turn's entries, which begin with what was waiting, for the next batch; False: it is time to sign.

        For a turn that no answer needs a witness of. ``time``: that of the turn; ``boot_ns``: now.
        """
        if not 0 < len(entries) <= HELD_MAX or boot_ns >= (self.held_until_boot_ns or boot_ns + HOLD_NS):
            return False
        self._first, self._held = list(entries), (time, self._right(), len(entries))
        self.held_until_boot_ns = self.held_until_boot_ns or boot_ns + HOLD_NS
        return True

    def sign_held(self, time: SignedTime | None = None) -> Batch | None:
        """Sign what is held as its own turn would have; None: there is nothing, or a turn at ``time`` may sign it.

        No end is signed by a time before it; and who is deposed has no right any more that a head could name.
        """
        if self._held is None or (time is not None and time.midpoint_ns >= self._held[0].midpoint_ns):
            return None
        then, right, count = self._held
        return self._signed(self._first[:count], then, right)

    def sign(self, entries: Sequence[Entry | bytes], time: SignedTime) -> Batch | None:
        """Sign a turn's entries, which begin with what was waiting; None where there are none.

        Whoever begins a turn sees first that the key has not ended.
        """
        return self._signed(entries, time, self._right()) if entries else None

    def _right(self) -> tuple[int, Instant]:
        return self._chain.number, self._chain.ceiling_ns

    def _signed(self, entries: Sequence[Entry | bytes], time: SignedTime, right: tuple[int, Instant]) -> Batch:
        self._signing_ns = time.midpoint_ns
        return sign_batch(
            entries,
            self._signer.in_use,
            cluster_id=self._identity.cluster_id,
            node=self._identity.node,
            map_number=self._identity.map_number,
            shard=self._identity.shard,
            incarnation=self._identity.incarnation,
            going_by=self._going.number,
            half=self._going.half,
            ceiling_number=right[0],
            ceiling_ns=right[1],
            sequence=self.batches + 1,
            previous=self.head,
            time=time,
        )

    def publish(self, batch: Batch | None, keep: Callable[[bytes], None] = lambda _: None) -> None:
        """Adopt a batch whose states are written, and hand its block to the ledger. No reply leaves before this.

        ``keep``: is given the block before the ledger is; what it raises ends the incarnation.
        """
        if batch is None:
            return
        self.batches += 1
        self.head = head_digest(batch.head)
        self.signed_ns = self._signing_ns
        del self._first[: len(batch.entries)]
        self._held = self.held_until_boot_ns = None
        block = block_bytes(batch)
        self.block_bytes = len(block)
        keep(block)
        try:
            self._ledger.append(block)
        except TenureError:
            self.blocks_lost += 1


SPOOL_BYTES_MAX: Final = 64 * 1024 * 1024
APPEND_BYTES_MAX: Final = 4 * 1024 * 1024
"""How much is handed to the sink at once, unless a single block is larger."""

PAUSE_S: Final = 1
PAUSE_S_MAX: Final = 64
"""How long to leave a sink alone that refuses: twice as long each time, because each try may leave a file behind."""

GATHER_S: Final = 0.02
"""How long the draining thread lets blocks gather once there are some.

Woken for every block it would take the interpreter from the shard in every turn, and give it back when the scheduler
pleases; and the mount would see as many appends as the shard has turns."""

LAST_TRIES: Final = 3
"""How often a sink is asked that refuses while the spool is being closed."""


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
        self._closing = Event()
        self._refusals = 0
        self.appends_failed = 0
        """How often the sink refused some blocks."""
        self.blocks_lost = 0
        """How many blocks were given up at the end."""
        self.blocks_written = 0
        """How many blocks the sink has taken."""

    @property
    def bytes_waiting(self) -> int:
        """How many bytes wait for the mount."""
        return self._bytes

    @property
    def drained(self) -> bool:
        """Whether nothing waits, and nothing was given up at the end."""
        return not self._bytes and not self.blocks_lost

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

        What is refused goes first the next time. False: the spool is closed and empty. Touches the mount.
        """
        with self._changed:
            if not self._blocks and not self._closed:
                self._changed.wait(timeout_ns / SECOND)
            taken: list[bytes] = []
            size = 0
            while self._blocks and (not taken or size + len(self._blocks[0]) <= APPEND_BYTES_MAX):
                taken.append(self._blocks.popleft())
                size += len(taken[-1])
        if taken:
            try:
                self._sink.append(b"".join(taken))
                self._refusals = 0
                self.blocks_written += len(taken)
            except TenureError:
                self._refused(taken, size)
                return True
        with self._changed:
            self._bytes -= size
            return bool(taken) or bool(self._blocks) or not self._closed

    def _refused(self, taken: list[bytes], size: int) -> None:
        """Put blocks back to the front, or give them up if the end does not wait for them any longer."""
        with self._changed:
            self.appends_failed += 1
            self._refusals += 1
            if self._closed and self._refusals >= LAST_TRIES:
                self.blocks_lost += len(taken)
                self._bytes -= size
            else:
                self._blocks.extendleft(reversed(taken))

    def run(self) -> None:
        """Drain until the spool is closed and empty: the body of the shell's thread."""
        while self.drain(SECOND):
            self._closing.wait(GATHER_S)
            if self._refusals and not self._closing.is_set():
                self._closing.wait(min(PAUSE_S_MAX, PAUSE_S << min(self._refusals - 1, 6)))

    def close(self) -> None:
        """Take nothing more; the draining thread writes what is queued and ends."""
        with self._changed:
            self._closed = True
            self._refusals = 0
            self._changed.notify_all()
        self._closing.set()


class LedgerSink(Protocol):
    """Where the blocks of the witness ledger go."""

    def append(self, data: bytes) -> None:
        """Take whole blocks. May raise TenureError: what is lost is a gap for the auditor, never a violation."""
        ...
