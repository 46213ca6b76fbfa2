"""One shard that a process runs: what it takes of the machine, the threads that serve it, and its end.

What it needs of the machine it takes from a ``ShardRuntime``, as does who decides which shards run (``shards.py``), so
that the same runs on a simulated one. ``LeaseCounts`` is what became of the leases of one run.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from typing import Final, Protocol
from uuid import UUID

import msgspec

from timeagent.canonical import encode
from timeagent.clock import NodeTime, boot_id
from timeagent.errors import BadTime, Damaged, Environment
from timeagent.units import MS, SECOND, Span

from ..bag.ports import Storage
from ..formats.framing import pieces
from ..formats.lease import LeaseOutcome
from ..formats.policy import PolicyNumbers
from ..formats.shardmap import ShardMap
from ..formats.witness import Ended, Witness, WitnessKind, decode_entry, open_block
from ..lease import ceiling
from ..lease.server import ShardServer
from ..lease.shard import Shard
from ..lease.store import LeaseStore
from ..lease.turn_log import Etcd, KeyValues, LogLost, TurnLog
from ..lease.whole_shard import Suspension
from ..lease.witness_ledger import LedgerSpool
from .records import StoredLedger
from .runtime import LocalLock, begin, daemon_lock
from .settings import Settings

_log = logging.getLogger(__name__)

PAUSE_NS: Final = 20 * MS
"""How long to wait before the mount, or a stopping shard, is asked again."""

START_TRIES: Final = 50
LEDGER_END_NS: Final = 5 * SECOND
"""How long the end of a shard waits for the mount to take the last blocks of its ledger."""

STOP_SLACK_NS: Final = 2 * SECOND
"""How much longer than the last lease an orderly stop may take: for the mount, and a clock that does not go on."""

PARTS_MAX: Final = 50
"""How many first parts of names are told apart; the others are REST."""
REST: Final = "(others)"
COUNTED_MAX: Final = 64
"""How many entries of one block are looked at."""
FENCE_BYTES: Final = 8


class Running(Protocol):
    """Something that was begun and goes on by itself."""

    def is_alive(self) -> bool: ...

    def join(self, timeout: float | None = None) -> None: ...


type Spawn = Callable[[str, Callable[[], object]], Running]
"""Begins something that goes on by itself, under a name for people."""


def in_thread(name: str, body: Callable[[], object]) -> Running:
    """Begin something in a thread of its own, which does not outlive the process. Raises Environment."""
    thread = Thread(target=body, name=name, daemon=True)
    begin(thread)
    return thread


class ShardRuntime:
    """A real machine's. ``runtime``: this node's directory on tmpfs."""

    chain_apart = True
    """Whether a chain touches the mount in a thread of its own: its work keeps no request waiting."""

    def __init__(self, runtime: Path) -> None:
        self._runtime = runtime
        self._tries = 0

    def spawn(self, name: str, body: Callable[[], object]) -> Running:
        return in_thread(name, body)

    def mutex(self) -> Lock:
        return Lock()

    def lock(self, shard: int) -> LocalLock:
        """Return the lock by which one process of this machine at a time runs a shard."""
        return LocalLock(self._runtime / f"shard-{shard:04d}.lock")

    def daemon_runs(self) -> bool:
        """Whether a process of this machine is the node's daemon. Never blocks."""
        return daemon_lock(self._runtime).is_held()

    def boot(self) -> str:
        """Return what names this boot of the machine."""
        return str(UUID(bytes=boot_id()))

    def _file(self, shard: int) -> Path:
        return self._runtime / f"shard-{shard:04d}.db"

    def left(self) -> list[int]:
        names = (path.stem.removeprefix("shard-") for path in self._runtime.glob("shard-*.db"))
        return sorted(int(name) for name in names if name.isdecimal())

    def store(self, shard: int) -> LeaseStore:
        """Return an empty database for a shard. Raises Environment."""
        return LeaseStore(self._file(shard))

    def taken_over(self, shard: int) -> tuple[LeaseStore, bytes] | None:
        """Return the database that a run left which stopped for a restart, and what it said; each is found once."""
        return LeaseStore.taken_over(self._file(shard))

    def key_values(self, settings: Settings, patience_ns: Span) -> KeyValues | None:
        """Return what keeps the turns of shards beyond a crash, where this node has one. Raises BadConfiguration."""
        access = settings.etcd
        if access is None:
            return None
        self._tries += 1  # the next who begins asks the next instance first
        first = self._tries % len(access.endpoints)
        endpoints = (*access.endpoints[first:], *access.endpoints[:first])
        return Etcd(endpoints, patience_ns // 4, ca=access.ca, cert=access.cert, key=access.key)

    def spool(self, ledger: StoredLedger) -> LedgerSpool:
        """Return the queue by which blocks reach a run's ledger."""
        return LedgerSpool(ledger)


def first_part(domain: str) -> str:
    """Return the first part of a domain's name: ``account`` of account/7, ``/srv`` of /srv/a, ``/semaphore``."""
    head, _, rest = domain.removeprefix("/").partition("/")
    tree = domain[: len(domain) - len(domain.removeprefix("/"))]
    return tree + (head.partition(":")[0] if tree and rest else head)


class LeaseCounts:
    """What became of leases in one run of a shard, by the first part of their domains' names. All numbers only grow.

    Each is written by one thread, and read by any: by that which appends the ledger, or, of what has waited in a queue,
    by the shard's. Of a block with more than COUNTED_MAX entries every n-th is counted, n-fold; names of which too many
    come are counted together.
    """

    def __init__(self) -> None:
        self.parts: set[str] = set()
        self.grants: Counter[str] = Counter()
        """By part: also of sets that were given up, whose leases are withdrawn."""
        self.ends: Counter[tuple[str, LeaseOutcome]] = Counter()
        self.held_ns: Counter[str] = Counter()
        """How long those that ended had been held."""
        self.sad: Counter[str] = Counter()
        """Grants where an earlier lease ended without its holder's word, and may be believed in still."""
        self.sad_ns: Counter[str] = Counter()
        """For how long, together: so long waits who does not only write messages."""
        self.waits: Counter[tuple[str, bool]] = Counter()
        """Requests that have waited in a queue, by part, and whether they were granted: else they waited in vain."""
        self.waits_ns: Counter[tuple[str, bool]] = Counter()
        """How long, together."""

    def waited(self, domain: str, span: Span, granted: bool) -> None:  # noqa: FBT001 - as a shard says it
        """Count a request that has left its queue: in the shard's thread."""
        key = (self._part(domain), granted)
        self.waits[key] += 1
        self.waits_ns[key] += span

    def count(self, data: bytes) -> None:
        """Count whole blocks. Raises Damaged."""
        for piece in pieces(data)[0]:
            block = open_block(piece, "a block of the ledger")
            signed_ns = block.batch_head("a block of the ledger").signed_time().midpoint_ns
            weight = -(-len(block.entries) // COUNTED_MAX)
            for entry in map(decode_entry, block.entries[::weight]):
                if isinstance(entry, Witness) and entry.kind is WitnessKind.GRANT:
                    part = self._part(entry.domain)
                    self.grants[part] += weight
                    if entry.settle_to_ns > signed_ns:
                        self.sad[part] += weight
                        self.sad_ns[part] += (entry.settle_to_ns - signed_ns) * weight
                elif isinstance(entry, Ended):
                    part = self._part(entry.domain)
                    self.ends[part, entry.ending.outcome] += weight
                    granted = int.from_bytes(entry.ending.correlation_id[:FENCE_BYTES], "big")  # its fence: about then
                    self.held_ns[part] += max(0, entry.ending.ended_ns - granted) * weight

    def _part(self, domain: str) -> str:
        part = first_part(domain)
        if part not in self.parts:
            if len(self.parts) >= PARTS_MAX:
                return REST
            self.parts.add(part)
        return part


class CountedLedger(StoredLedger):
    """A run's ledger that counts what it appends."""

    def __init__(self, storage: Storage, map_number: int, shard: int, incarnation: bytes) -> None:
        super().__init__(storage, map_number, shard, incarnation)
        self.lease_counts = LeaseCounts()

    def append(self, data: bytes) -> None:
        super().append(data)
        with contextlib.suppress(Damaged):  # what cannot be counted costs numbers, not the ledger
            self.lease_counts.count(data)


def stopping_ns(policy: PolicyNumbers) -> Span:
    """Return how long an orderly stop may take; so long before the end of its keys a shard without others stops."""
    return policy.lease_term_max_ns + 2 * policy.radius_ns_max + STOP_SLACK_NS


@dataclass(eq=False)
class HostedShard:
    """A started shard that this process serves: one thread serves it, one appends its ledger. Made by ``ShardHost``."""

    identity: ceiling.ShardIdentity
    shard: Shard
    store: LeaseStore
    server: ShardServer
    chain: ceiling.CeilingChain
    ledger: CountedLedger
    spool: LedgerSpool
    _guard: Lock
    _runtime: ShardRuntime
    _time: NodeTime
    _policy: PolicyNumbers
    _log: TurnLog | None
    place: LocalLock
    """Held for as long as it runs here."""

    def __post_init__(self) -> None:
        self._ending = self._runtime.mutex()
        self._ended = False
        self._threads: list[Running] = []
        try:
            for name, body in (("tenure-shard", self._serve), ("tenure-ledger", self.spool.run)):
                self._threads.append(self._runtime.spawn(name, body))
        except Environment:  # no more threads: who made this closes the store
            self.server.stop(at_once=True)
            for each in self._threads:
                each.join()
            self.server.close_all()
            raise

    def _serve(self) -> None:
        """The body of the shard's thread. What breaks the shard, a damaged database too, ends it and nothing else."""
        try:
            self.server.run()
        except LogLost as problem:  # nobody was answered: who asked asks again, and the next run knows what is kept
            _log.warning("shard-ends shard=%d reason=%s", self.identity.number, problem.message)
        except Exception:  # noqa: BLE001 - whatever it is: the next incarnation begins empty
            _log.exception("shard-broken")

    def ended(self) -> str | None:
        """Return why this shard serves nobody any more although it was not stopped, or None."""
        return self.broken() or self.shard.over()

    def broken(self) -> str | None:
        """Return that its server or its ledger's thread has ended by itself, which never should happen, or None."""
        alive = [each.is_alive() for each in self._threads]
        if all(alive) or self._ended or self.shard.over() is not None:
            return None
        return f"its {'ledger' if alive[0] else 'server'} has ended; the log says why"

    def is_held(self) -> bool:
        """Whether a lease is out that may not be past. Blocks for the turn that is under way."""
        with self._guard:
            return not self._ended and self.shard.is_held()

    def closes_if_free(self) -> bool:
        """Grant nothing more if no lease is out; return whether. Blocks as ``is_held``. ``stop`` is to follow."""
        with self._guard:
            return not self._ended and self.shard.closes_if_free()

    def go_by(self, newest: ShardMap, follows: ceiling.Beginning) -> None:
        """Have it go by a newer map. Blocks for the turn that is under way, and for some more where it becomes whole.

        ``follows``: how the chains ended that its own follows.
        """
        while True:
            with self._guard:
                if self._ended or self.shard.go_by(newest, follows):
                    return
            self._time.sleep(MS)  # others have their turn

    def stop(self) -> None:
        """Stop orderly: grant nothing more, wait until every lease is relinquished or over, link the last record.

        Holders are served meanwhile. Waits for leases that are out, at most about the longest term by the time since
        boot. Where the mount, the tmpfs or the clock does not allow an orderly end, the shard just ends, as in a crash:
        its successor's floor is then the ceiling.
        """
        deadline = self._time.boot_ns() + stopping_ns(self._policy)
        tries = 0
        try:
            while tries < START_TRIES and self._time.boot_ns() < deadline and not self._ended and not self._lost():
                # Another thread may have suspended it by the turn that this waits for: nothing is signed behind that.
                stop = self._tried(lambda: None if self._ended else self.shard.stop_orderly())
                if isinstance(stop, ceiling.StoppedOrderly | ceiling.Deposed):
                    break
                tries += not isinstance(stop, ceiling.NotYet)
                self._time.sleep(PAUSE_NS)
        finally:
            self.abandon()

    def suspend(self) -> None:
        """Stop for a restart: whoever takes the lock next on this boot goes on with all leases. Idempotent.

        Serves nobody any more, and waits for nobody's lease; where none is out this is an orderly stop. Where the
        mount, the tmpfs or the clock does not allow it, or the shard is broken, it just ends, as in a crash.
        """
        self._end(leaves=True)

    def abandon(self) -> None:
        """Just end, as in a crash: a successor's floor is then the ceiling. Idempotent."""
        self._end(leaves=False)

    def _end(self, *, leaves: bool) -> None:
        """Serve nobody any more, let the ledger be written to its end, leave what was said there, close all parts."""
        with self._ending:
            if self._ended:
                return
            broken, self._ended = self.broken(), True
            self.server.stop(at_once=leaves)
            self._threads[0].join()
            said = self._stopped_at_once() if leaves and not broken else None
            self.chain.close()
            self.spool.close()
            self._threads[1].join(LEDGER_END_NS / SECOND)
            with self._guard:
                # Where each turn is kept, whoever goes on finds all of them there.
                if isinstance(said, Suspension) and self._log is None:
                    self._leave(said)
                self.store.close()
            if self._log is not None:
                self._log.close()

    def _stopped_at_once(self) -> Suspension | ceiling.Stop | None:
        goes_on = self.store.leases and not self.shard.is_of_no_map
        step = partial(self.shard.suspend, self._runtime.boot()) if goes_on else self.shard.stop_orderly
        for _ in range(START_TRIES):
            said = self._tried(step)
            if isinstance(said, Suspension | ceiling.StoppedOrderly | ceiling.Deposed) or self._lost():
                return said
            self._time.sleep(PAUSE_NS)
        return None

    def _lost(self) -> bool:
        return self._log is not None and self._log.lost is not None

    def _leave(self, said: Suspension) -> None:
        number, size = self.ledger.end
        whole = encode(msgspec.structs.replace(said, ledger_file=number, ledger_bytes=size))
        left = self.spool.drained and self.store.leave(whole)
        shard, leases = self.identity.number, self.store.leases
        if left:
            _log.info("shard-suspended shard=%d leases=%d", shard, leases)
        else:
            what = "its file could not be written" if self.spool.drained else "its ledger could not be written"
            _log.warning("shard-not-suspended shard=%d leases=%d reason=%s", shard, leases, what)

    def _tried[Said](self, step: Callable[[], Said]) -> Said | ceiling.Deposed | None:
        """Take a step of its end; None: it may be tried again."""
        try:
            with self._guard:
                return step()
        except (BadTime, Environment, LogLost) as problem:  # no usable time, a full tmpfs, or its turns are not kept
            _log.warning("stop-failed code=%s reason=%s", problem.code, problem.message)
            return None
        except Exception as problem:  # noqa: BLE001 - as in ``_serve``: it ends this shard, and not the end of others
            _log.exception("shard-broken")
            return ceiling.Deposed(f"it is broken: {problem}")
