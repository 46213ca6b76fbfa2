"""What the outside was told during a run, with true time beside it. Checkers read it; actors write it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from timeagent.units import SECOND

if TYPE_CHECKING:
    from appliance.bag.reader import Message
    from appliance.formats.lease import Mode
    from appliance.formats.shardmap import ShardMap
    from appliance.formats.witness import Half
    from appliance.lease.domain import SessionRecord, State
    from appliance.session.held import Lease
    from tests.simulation.scheduler import Machine, Process
    from timeagent.units import Instant, Span

type Key = tuple[int, str, bytes, int, int, bytes]
"""A message as every reader must see it: timestamp, writer, incarnation, sequence, index, payload."""


def key_of(message: Message) -> Key:
    return (
        message.timestamp_ns, message.writer, message.incarnation, message.sequence, message.index, message.payload,
    )  # fmt: skip


@dataclass(slots=True)
class Attempt:
    """One try to write, and what was said of it, in order of time."""

    who: str
    log: str
    path: str
    data: bytes
    first_ns: Instant
    last_ns: Instant
    payloads: tuple[bytes, ...]
    outcomes: list[tuple[Instant, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SettledRead:
    who: str
    true_ns: Instant
    log: str
    after_ns: Instant
    until_ns: Instant
    """Everything above the one, up to and with the other."""
    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class LatestRead:
    who: str
    began_ns: Instant
    true_ns: Instant
    log: str
    after_ns: Instant
    keys: tuple[Key, ...]
    leases: tuple[tuple[str, int, Mode, bytes], ...] = ()
    """Domain, fence, mode and correlation id of each."""


@dataclass(frozen=True, slots=True)
class NarrowRead:
    """What was read of some domains, and everything that was read just before and just after."""

    who: str
    true_ns: Instant
    log: str
    domains: tuple[str, ...]
    last: int | None
    """At most so many were asked for."""
    earlier: tuple[Key, ...]
    keys: tuple[Key, ...]
    later: tuple[Key, ...]


AT_THE_PACE = ", at the pace"


@dataclass(frozen=True, slots=True)
class HorizonSeen:
    who: str
    """With ``AT_THE_PACE`` behind it where a daemon's metronome saw it."""
    true_ns: Instant
    log: str
    reached_ns: Instant


@dataclass(frozen=True, slots=True)
class Answer:
    """What a bag was said to hold: names of data files; None: it does not exist."""

    who: str
    true_ns: Instant
    bag: str
    names: tuple[str, ...] | None


@dataclass(slots=True)
class Hold:
    """A holder's belief that it has a domain: from the grant until it ended for the holder, in true time."""

    who: str
    domain: str
    fence: int
    mode: Mode
    """The lease's own may change: then another hold begins."""
    from_ns: Instant
    lease: Lease
    process: Process
    until_ns: Instant | None = None
    """When it was given back; None: it runs out."""
    asked_ns: Instant = 0
    """When it was asked for, in true time."""
    handed_until_ns: Instant = 2**62
    """The expiry that it had when it was handed out."""
    lost_ns: Instant | None = None
    """When it was lost against the holder's will, in true time: noted as soon as the lease says so."""
    good_until_ns: Instant | None = None
    """The expiry that it had when it was lost: that of its session lease may be renewed without it."""

    def believed_until_ns(self, margin_ns: Span) -> Instant:
        """Return until when the holder believed to have it; since when it had it, where the end was not noted."""
        runs_out = (self.lease.expiry_ns if self.good_until_ns is None else self.good_until_ns) - margin_ns
        ends = [each for each in (self.until_ns, self.lost_ns) if each is not None]
        if not ends and self.lease.ended is not None:
            return self.from_ns
        return min(*ends, runs_out) if ends else runs_out


@dataclass(slots=True)
class Wrote:
    """One call of publish, and what it returned."""

    who: str
    log: str
    payloads: tuple[bytes, ...]
    leases: tuple[tuple[str, int], ...]
    outcomes: list[tuple[Instant, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Waited:
    """How long an acquire took, and on what."""

    who: str
    domains: tuple[str, ...]
    began_ns: Instant
    took_ns: Span
    granted: bool


@dataclass(slots=True)
class Turn:
    """One whole turn under a lease, from asking for it, as often as it takes, to having read and written."""

    process: Process
    domain: str
    began_ns: Instant
    over_ns: Instant | None = None
    """None: it was still under way when its process died, or the run ended."""


@dataclass(frozen=True, slots=True)
class Death:
    """Somebody was made to die, who may have been in the way of others."""

    process: Process
    true_ns: Instant
    what: str
    """holder died, shard died, taker died: between a tentative lease and a held one."""
    tentative: str = ""
    """Which domain a taker had so."""


@dataclass(frozen=True, slots=True)
class Started:
    """A shard's incarnation began: how much it remembered then."""

    shard: int
    incarnation: bytes
    true_ns: Instant
    domains: int
    leases: int
    resumed: bool = False
    """It goes on with what a run before left."""


@dataclass(frozen=True, slots=True)
class LeftState:
    """What a shard's file held when its run stopped for a restart, or when another goes on with it."""

    shard: int
    incarnation: bytes
    file: str
    """The same for the copy of a cloned machine."""
    machine: Machine
    boot: str
    true_ns: Instant
    signed_ns: Instant
    """What the run had signed last; of one that goes on, what it has signed first."""
    domains: dict[str, State]
    sessions: dict[bytes, SessionRecord]
    going: tuple[int, Half, Instant]
    """The map that it goes by, which half of a lease it grants, and until when leases may be held from it alone."""


@dataclass(frozen=True, slots=True)
class Said:
    """What an embedded clock said of the time, between two instants of true time."""

    node: str
    began_ns: Instant
    ended_ns: Instant
    earliest: Instant
    latest: Instant


@dataclass(slots=True)
class Tenant:
    """One run of a shard at a node, as the node's daemon had it, or an application there."""

    shard: int
    node: str
    incarnation: bytes
    considered_ns: Instant
    """When it was decided that it may begin, at the earliest; then it began."""
    from_ns: Instant
    told_ns: Instant | None = None
    """When it was told to end; None: it never was."""
    how: str = ""
    """left: in good order; dropped: at once; suspended: for a restart."""
    application: bool = False
    """It answers its own machine and nobody else."""


@dataclass(slots=True)
class Fault:
    """What was wrong with a node: stopping in good order, down, paused, cut off from other nodes, or from the mount."""

    node: str
    what: str
    from_ns: Instant
    until_ns: Instant


@dataclass(frozen=True, slots=True)
class Calm:
    """What runs where, long after all faults have ended."""

    judged_ns: Instant
    owners: dict[int, str]
    nodes: frozenset[str]
    """Who was up."""
    runs: dict[int, list[str]]
    """By shard, the nodes at which it runs."""
    held: frozenset[int]
    """The shards of which leases are out, or were a moment ago: who stands in keeps those."""
    missed: frozenset[int]
    """The shards that somebody asked for in vain seconds ago, and just now again."""


@dataclass(slots=True)
class Lent:
    """A process's belief that it has a sub-lease: from when it was told so first until when it is over for it."""

    who: str
    lender: str
    """The daemon."""
    domain: str
    mode: Mode
    fence: int
    from_ns: Instant
    until_ns: Instant
    """As it was told last, or when it gave it back: who lives no more may have left something that goes on."""
    orphaned: bool = False
    """Its daemon died, or ended, before it was over."""


@dataclass(frozen=True, slots=True)
class Led:
    """Somebody read its clock at a true instant, and surely led by it."""

    true_ns: Instant
    election: str
    epoch: int
    who: str


@dataclass(slots=True)
class CachedUse:
    """One call about a value that is kept in memory, in true time."""

    who: str
    process: Process
    domain: str
    what: str
    """get; set, written through; put, left in memory; flush and close."""
    began_ns: Instant
    value: bytes | None
    """What was read, or written."""
    ended_ns: Instant | None = None
    """None: it failed, or nobody lived to see."""
    outcome: str = ""
    """Of what was written; of what was put: that of the next flush, lost where any call failed before."""


@dataclass(slots=True)
class PathsHeld:
    """Which paths of a tree somebody surely had, between two instants of true time."""

    who: str
    read: tuple[str, ...]
    write: tuple[str, ...]
    from_ns: Instant
    until_ns: Instant


@dataclass(slots=True)
class History:
    """Everything that was said."""

    revoked: set[bytes] = field(default_factory=set)
    """Leases that an operator may have ended, by correlation id."""
    revocations: list[tuple[Lease, Instant]] = field(default_factory=list)
    """Those that were, and when that was said, in true time."""
    attempts: list[Attempt] = field(default_factory=list)
    settled: list[SettledRead] = field(default_factory=list)
    latest: list[LatestRead] = field(default_factory=list)
    narrow: list[NarrowRead] = field(default_factory=list)
    cached: list[CachedUse] = field(default_factory=list)
    paths: list[PathsHeld] = field(default_factory=list)
    horizons: list[HorizonSeen] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    wrote: list[Wrote] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    waits: list[Waited] = field(default_factory=list)
    led: list[Led] = field(default_factory=list)
    lent: list[Lent] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)
    ended_ns: Instant = 0
    """When the run ended: what was under way then was waited for until then."""
    starts: list[Started] = field(default_factory=list)
    suspended: list[LeftState] = field(default_factory=list)
    """What was left by runs that stopped for a restart."""
    resumed: list[LeftState] = field(default_factory=list)
    """What others went on with."""
    taken: list[tuple[Machine, str]] = field(default_factory=list)
    """Which files were found to have been left, and where."""
    told: list[tuple[bytes, int]] = field(default_factory=list)
    """Which runs were told to stop for a restart, and how many leases were out then that may be believed in."""
    only_moves: bool = False
    """Whether nothing happens but that shards are moved, and daemons restarted in order."""
    only_restarts: bool = False
    """Whether nothing happens but restarts in order: then they are noticed by nobody."""
    said: list[Said] = field(default_factory=list)
    blocks: list[bytes] = field(default_factory=list)
    """Every ledger block that a shard handed on, whether or not it reached the mount."""
    kept_until: list[tuple[str, str, Instant, Instant]] = field(default_factory=list)
    """Who had a domain that it might not keep for long, until when it was renewed, and the latest that is allowed."""
    overstayed: set[str] = field(default_factory=set)
    """The nodes that went on with a key which had ended."""
    alone: str | tuple[str, ...] = ()
    """How those are called who act outside the record: two of them never have one domain at one true instant."""
    served_within_ns: Span | None = None
    """How long anybody may wait for leases; None: who waits has to be patient."""
    asked_before_ns: Span = SECOND
    """So long before a node gives a shard away, at most, it has asked the owner."""
    queuing: str = ""
    """How those are called who wait for one domain and get it in the order in which they come."""
    asked: dict[object, Instant] = field(default_factory=dict)
    """Until when each lease and session lease was asked for at most, by what named it: that of ``network.py``."""
    stopping: set[bytes] = field(default_factory=set)
    """Runs (incarnations) that were told to stop, and have not come back from that with their last block written."""
    tenants: list[Tenant] = field(default_factory=list)
    visits: list[tuple[Instant, str, int]] = field(default_factory=list)
    """When a node was asked for a shard that it did not run."""
    stops: list[tuple[str, Instant, Span]] = field(default_factory=list)
    """When a node's clocks stood still, and for how long: what it counted by them took so much longer."""
    faults: list[Fault] = field(default_factory=list)
    clones: dict[str, Instant] = field(default_factory=dict)
    """Since when another machine answers in a node's name, also while that is down."""
    answering: tuple[str, ...] = ()
    """The nodes that answer others."""
    reliable: bool = False
    """Whether no message is lost or late but by a fault of a node."""
    owners: dict[int, str] = field(default_factory=dict)
    """To whom the newest map that has it gives each shard."""
    shards: tuple[int, ...] = ()
    """Those of the newest map."""
    shards_of_map: dict[int, tuple[int, ...]] = field(default_factory=dict)
    calm: Calm | None = None
    rejected: list[tuple[str, str]] = field(default_factory=list)

    def learn(self, shard_map: ShardMap) -> None:
        """Take note of a map that is published."""
        self.shards = self.shards_of_map[shard_map.number] = shard_map.shards
        self.owners |= {shard: shard_map.owner_of(shard) or "" for shard in self.shards}

    @property
    def queued(self) -> list[Hold]:
        """What those had who are served in the order in which they come."""
        return [hold for hold in self.holds if self.queuing and hold.who.startswith(self.queuing)]
