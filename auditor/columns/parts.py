"""A part of the evidence: what one rack, or one ledger file, tells when it is read by itself; which are read, by whom.

A part depends on nothing but its own bytes and the cluster's records, so that parts are read by several processes, kept
from run to run, and put together in the order of their names: the verdict does not depend on who read what when.

What is narrowed away on purpose may hold anything: a message that is missing from the rest is no finding. Records,
ceiling chains and ledgers are read whole in any case, because what may be written in one hour follows from what was
granted before it.

Several processes read parts of one tree: results come back in the order in which they were asked for. The processes are
forked, so that they begin with everything that the parent knows, and need nothing sent but numbers. Each has a
connection of its own and no lock with the others: whatever one is doing, it can be ended at any time.
"""

from __future__ import annotations

import os
import signal
import traceback
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from appliance.formats.paths import Rack
from appliance.formats.witness import BatchHead
from timeagent.console import printable
from timeagent.errors import BadRequest, Damaged, Environment
from timeagent.signedtime import SignedTime
from timeagent.trust import Keyring
from timeagent.units import INSTANT_MAX, Instant, rfc3339

from ..evidence.finding import Evidence, Finding, found
from ..evidence.records import ClusterRecords, Stranger, take_latest
from ..evidence.signatures import FrameReader, Signatures
from ..evidence.tree import LedgerFile, Tree
from .layout import Chunk, HeadName

_COMPARED_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What is asked for; by default everything."""

    since_ns: Instant = 0
    until_ns: Instant = INSTANT_MAX
    """Racks that hold an instant in [since, until) are read."""
    logs: tuple[str, ...] = ()
    """Names of logs; none: all."""
    domains: tuple[str, ...] = ()
    """Domains whose leases are judged, or beginnings of them that end in ``*``; none: all."""

    def reads_log(self, log: str) -> bool:
        return not self.logs or log in self.logs

    def reads_rack(self, rack: Rack) -> bool:
        return rack.end_ns > self.since_ns and rack.start_ns < self.until_ns

    def judges(self, domain: str) -> bool:
        return not self.domains or any(
            domain.startswith(each[:-1]) if each.endswith("*") else domain == each for each in self.domains
        )

    @property
    def whole(self) -> bool:
        return self == WHOLE

    def fields(self) -> dict[str, Any]:
        """Return what JSON shows; nothing where nothing is left out."""
        if self.whole:
            return {}
        return {
            "narrowed_to": {
                "since": rfc3339(self.since_ns) if self.since_ns else None,
                "until": rfc3339(self.until_ns) if self.until_ns < INSTANT_MAX else None,
                "logs": list(self.logs),
                "domains": list(self.domains),
            }
        }


def check_asked(narrowing: Narrowing, known: Collection[str]) -> None:
    """Raise BadRequest for a domain that was asked for and of which the tree tells nothing. ``known``: all domains.

    Silence about a name that was mistyped looks like an acquittal.
    """
    for asked in narrowing.domains:
        only = Narrowing(domains=(asked,))
        if not any(map(only.judges, known)):
            near = ", ".join(map(printable, _nearest(asked.removesuffix("*"), known)))
            hint = f"the nearest that are: {near}" if near else "the tree tells of no lease at all"
            raise BadRequest("no-such-domain", f"the tree tells of no lease on {printable(asked)!r}", hint=hint)


def _nearest(name: str, known: Collection[str]) -> list[str]:
    """Return the names that are most like one; of very many only those beside it are looked at."""
    names = sorted(known)
    if len(names) > _COMPARED_MAX:
        at = bisect_left(names, name)
        names = names[max(0, at - _COMPARED_MAX // 2) : at + _COMPARED_MAX // 2]
    return get_close_matches(name, names, n=3, cutoff=0.3) or names[:3]


WHOLE: Final = Narrowing()


type Unit = Rack | LedgerFile
"""What is read by itself; its path says which part of the tree it is."""


@dataclass(slots=True)
class EvidenceSource:
    """Where evidence comes from, and how it is read. Processes share nothing of it but what they were born with."""

    tree: Tree
    records: ClusterRecords
    signatures: Signatures
    hashed: bool = True
    """Whether every byte of data files and packs is hashed. Else frames are known by their checksums, as they stand."""
    one_by_one: bool = False
    """Whether nothing is judged by columns: a timeline may be told of clocks that showed something else."""
    keep: Callable[[list[Chunk]], list[Chunk]] = list
    """Puts finished columns where they take no memory."""
    frames: FrameReader = field(init=False)

    def __post_init__(self) -> None:
        self.frames = FrameReader(self.signatures, self.records.cluster_id)


@dataclass(slots=True)
class BagCounts:
    """What the walk has seen."""

    bags: int = 0
    provisional: int = 0
    messages: int = 0
    """In the record: in listed files of closed bags, and accepted."""
    rejected: int = 0
    """In listed files of closed bags, and dropped by readers."""


@dataclass(slots=True)
class LedgersSeen:
    """What the walk over the ledgers has seen: incarnations of runs."""

    there: set[bytes] = field(default_factory=set)
    """That have a file, be it empty or unreadable."""
    stopped: set[bytes] = field(default_factory=set)
    """Whose file says that they stopped, or cannot be read."""
    damaged: set[bytes] = field(default_factory=set)
    """Of whose file some is no block that counts: what is missing there is told already."""
    torn: set[bytes] = field(default_factory=set)
    """Whose last file ends in a torn block."""


type Value = str | bytes | int | None
type Place = tuple[str, int, int]
"""Path, offset and length."""


class HeadRow(NamedTuple):
    """A batch head, and the place that counts of those at which it stands: that with the lowest rank."""

    name: HeadName
    shard: tuple[int, int]
    """Map and number."""
    ceiling: int
    """The number of the ceiling record that it names."""
    in_ledger: int
    """How often it stands in the ledger of its run."""
    raw: bytes
    where: Place
    rank: int


def later(one: SignedTime | None, other: SignedTime | None) -> SignedTime | None:
    """Return the one of two signed times that surely was reached later; of equals the less exact."""
    if one is None or other is None:
        return one or other
    return max(one, other, key=lambda token: (token.interval.earliest, token.radius_ns))


class Part(msgspec.Struct, kw_only=True, dict=True):
    """What is told of a unit, while it is read and then; or what all of them come to together."""

    findings: list[Finding] = []
    heads: list[HeadRow] = []
    ceilings: list[tuple[tuple[int, int], int, bytes, Place]] = []
    """Of each ceiling record its shard, its number, its bytes, and where it is."""
    unread: list[tuple[str, Instant, Instant]] = []
    """Of each file that cannot be read its writer ("": anybody's), and the span of its frames."""
    bags: list[tuple[str, Instant, Instant, bool, bool, Instant]] = []
    columns: list[Chunk] = []
    timeline: bytes = b""
    """Events, encoded, as far as columns do not tell them; nothing where no timeline is told."""
    unreadable: dict[str, str] = {}
    newest: bytes | None = None
    """``latest``, encoded, when it is done."""
    unknown_keys: list[Stranger] = []
    """What goes by a trust record that is not in the copy, or may."""
    beyond_policy: list[Stranger] = []
    """What no policy of the copy allows."""
    counts: BagCounts = msgspec.field(default_factory=BagCounts)
    trust_named: set[int] = set()
    """Trust records that lock files and frames name; of listed frames none beyond that of their lock file."""
    trust_closed: dict[int, int] = {}
    policy_closed: dict[int, int] = {}
    """By record, when the last bag was closed, at the earliest, whose lock file names it."""
    doubted: bool = False
    """Whether a lock file names a trust record that is not there: then all later parts mean something else."""
    has_seal: bool = False
    seal: Evidence | None = None
    """Where the seal of a rack is, if it holds."""
    ledgers: LedgersSeen = msgspec.field(default_factory=LedgersSeen)

    def __post_init__(self) -> None:
        self._ranks: dict[HeadName, int] = {}
        """Of each head the rank of the place where it counts."""
        self._last = ("", "")
        self.latest: SignedTime | None = None
        """The latest signed time that holds, of all frames, lock files and seals."""

    def report(self, *findings: Finding) -> None:
        self.findings += findings

    def found(self, code: str, subject: str, reason: str, where: Iterable[Evidence], title: str = "") -> None:
        """Report a finding of a registered code, which says nothing of times."""
        self.report(found(code, subject, reason, where, title=title))

    def refused(self, findings: Iterable[Finding], keyring: Keyring | None, time: bytes, *key_ids: bytes) -> None:
        """Report why a signature is refused, or keep it until it is known whether its keys may be in a later record.

        ``time``: a signed time, encoded; ``key_ids``: of the other keys that are asked about.
        """
        with suppress(Damaged):
            token = SignedTime.decode(time)
            if keyring is not None and any(keyring.node_of(each) is None for each in (token.key_id, *key_ids)):
                self.unknown_keys += [Stranger(finding, token.interval.latest) for finding in findings]
                return
        self.report(*findings)

    def saw(self, token: SignedTime | None) -> None:
        self.latest = later(self.latest, token)

    def shown(self, path: str) -> str:
        """Return a path as it is shown; most rows in a row are of one file."""
        if path != self._last[0]:
            self._last = path, printable(path)
        return self._last[1]

    def place(self, where: Evidence) -> Place:
        """Return a place as rows have it."""
        return self.shown(where.path), where.offset, where.length

    def add_head(
        self, head: BatchHead, digest: bytes, raw: bytes, where: Evidence, rank: int, *, in_ledger: bool = False
    ) -> None:
        """Take the head of a batch; every frame under it tells of it.

        ``rank``: which place counts where the same is told at several, the lowest. Frames come in the order in which
        they are read, from 0 up; ledgers below 0, and those read last below all.
        """
        name = head.incarnation, head.sequence, digest
        if self._ranks.get(name, rank + 1) > rank:
            self._ranks[name] = rank
            shard, ceiling = (head.map_number, head.shard), head.ceiling_number
            self.heads.append(HeadRow(name, shard, ceiling, int(in_ledger), raw, self.place(where), rank))

    def add_bag(
        self, log: str, start_ns: Instant, end_ns: Instant, *, closed: bool, blind: bool = False, closed_ns: Instant = 0
    ) -> None:
        """Take a bag, or a span into which nothing comes any more but bags that are told of: its rack is sealed.

        ``blind``: some of what it was closed with cannot be read. ``closed_ns``: surely not closed before.
        """
        self.bags.append((printable(log), start_ns, end_ns, closed, blind, closed_ns))

    def done(self) -> Part:
        self.newest = self.latest.encode() if self.latest else None
        return self

    def take(self, other: Part) -> None:
        """Add the next part, but for what the index and the timeline take."""
        self.findings += other.findings
        self.unknown_keys += other.unknown_keys
        self.beyond_policy += other.beyond_policy
        self.saw(SignedTime.decode(other.newest) if other.newest else None)
        self.trust_named |= other.trust_named
        take_latest(self.trust_closed, other.trust_closed)
        take_latest(self.policy_closed, other.policy_closed)
        self.doubted |= other.doubted
        self.counts.bags += other.counts.bags
        self.counts.provisional += other.counts.provisional
        self.counts.messages += other.counts.messages
        self.counts.rejected += other.counts.rejected
        mine, theirs = self.ledgers, other.ledgers
        mine.torn = (mine.torn - theirs.there) | theirs.torn  # a torn block was written again, to the next file
        mine.there |= theirs.there
        mine.stopped |= theirs.stopped
        mine.damaged |= theirs.damaged


PARTS: Final = msgspec.msgpack.Decoder(Part)


if TYPE_CHECKING:
    from multiprocessing.connection import Connection

JOBS_MAX: Final = 64
UNITS_WORTH_IT: Final = 8
"""With fewer parts than this, starting processes costs more than they save."""

AHEAD: Final = 4
"""So many units for each process may be read before the first of them has been taken: what waits is in memory."""


_ENDS: Final = (signal.SIGINT, signal.SIGTERM)


def default_jobs(units: int) -> int:
    """Return how many processes are worth it for so many parts."""
    return min(len(os.sched_getaffinity(0)), JOBS_MAX, units) if units >= UNITS_WORTH_IT else 1


class _Reader:
    """One process, and the parent's end of the way to it."""

    def __init__(self, work: Callable[[Any], bytes], units: Sequence[Any]) -> None:
        import multiprocessing  # noqa: PLC0415 - one process needs none of it

        context = multiprocessing.get_context("fork")
        self.ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self.ours, work, units), daemon=True)
        self._process.start()
        theirs.close()  # so that its end is seen when the process ends, however that comes about
        self.asked: deque[int] = deque()

    def ask(self, number: int) -> None:
        self.asked.append(number)
        with suppress(OSError):  # it has ended: whoever waits for the answer hears how
            self.ours.send(number)

    def answer(self) -> tuple[int, bytes]:
        """Return a unit's number and what came of it. Raises what the work raised; Environment: the process is gone."""
        try:
            problem = self.ours.recv()
            answer = b"" if problem is not None else self.ours.recv_bytes()
        except (EOFError, OSError):
            self._process.join()
            raise Environment(
                "reader-ended",
                f"a process that read a part of the tree ended with exit code {self._process.exitcode}",
                hint="see whether memory ran out, or read with one process: --jobs 1",
            ) from None
        if problem is not None:
            raise problem
        return self.asked.popleft(), answer

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()
        self.ours.close()


def in_order[T](work: Callable[[T], bytes], units: Sequence[T], jobs: int) -> Iterator[bytes]:
    """Yield what ``work`` returns for each unit, in order, from so many processes.

    Call it from a program with one thread. When the caller stops asking, or is interrupted, the processes end.
    """
    from multiprocessing.connection import wait  # noqa: PLC0415 - as above

    readers: list[_Reader] = []
    answers: dict[int, bytes] = {}
    asked = told = 0
    # What interrupts a fork is ignored by those who are called at each, and the interrupt is lost.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    try:
        try:
            readers.extend(_Reader(work, units) for _ in range(min(jobs, len(units))))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        while told < len(units):
            for reader in sorted(readers, key=lambda each: len(each.asked)):
                # One more than it is at, so that it need not wait until this process comes back to it.
                while len(reader.asked) < 2 and asked < min(len(units), told + AHEAD * len(readers)):  # noqa: PLR2004 - the one that it is at, and one more
                    reader.ask(asked)
                    asked += 1
            busy = {reader.ours: reader for reader in readers if reader.asked}
            for connection in wait(list(busy), 0 if told in answers else None):
                number, answer = busy[connection].answer()  # type: ignore[index]
                answers[number] = answer
            if told in answers:
                yield answers.pop(told)
                told += 1
    finally:
        for reader in readers:
            reader.end()


def _serve(connection: Connection, parents: Connection, work: Callable[[Any], bytes], units: Sequence[Any]) -> None:
    """Do what is asked for until nobody asks. An interrupt is left to the parent, which ends its processes.

    ``parents``: the parent's end, which is open here too: while it is, nobody sees that the parent was killed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)
    parents.close()
    with suppress(EOFError, ConnectionError):
        while True:
            number = connection.recv()
            try:
                answer = work(units[number])
            except Exception as problem:  # noqa: BLE001 - raised where it was asked for
                problem.add_note(f"in a process that reads parts:\n{traceback.format_exc()}")  # it goes without it
                connection.send(problem)
            else:
                connection.send(None)
                connection.send_bytes(answer)
