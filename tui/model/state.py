"""What the screens show, as values: one ``ClusterState`` is everything that is known at one instant.

No I/O, no clock. What is not known is ``None``, never zero. What things mean in words is said in words.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec
import numpy as np

from appliance.formats.chains import CeilingKind
from appliance.formats.lease import LeaseOutcome, Mode, Phase
from appliance.formats.witness import Half
from auditor.evidence.finding import Evidence
from timeagent.console import printable
from timeagent.units import SECOND, Instant, Span, TimeInterval, rfc3339

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from appliance.bag.logs import ClosingState
    from appliance.doctor.health import HealthCheck
    from auditor.evidence.finding import Finding
    from timeagent.showing import SourceView


class Tone(StrEnum):
    """How much something asks to be looked at. What is shown in a tone also says so in words."""

    PLAIN = "plain"
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"
    DIM = "dim"
    STRONG = "strong"
    ACCENT = "accent"
    """A key, or where one is."""


class Cell(msgspec.Struct, frozen=True, gc=False):
    """A piece of text in a tone. A struct: a page has hundreds, and each is made anew when it is drawn."""

    text: str
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class NamedSubject:
    name: str
    WHAT: ClassVar[str] = ""


class DomainSubject(NamedSubject):
    """A domain: who has it, what the next holder must respect, who had it before."""

    WHAT = "domain"


class NodeSubject(NamedSubject):
    """A node: its shards, its clock, what it holds."""

    WHAT = "node"


class ClockSubject(NamedSubject):
    """A node's clock: what it says of itself, and what it said before."""

    WHAT = "clock of"


class FindingSubject(NamedSubject):
    WHAT = "finding"


@dataclass(frozen=True, slots=True)
class HolderSubject:
    """A holder: one process on one node, and all that it has."""

    node: str
    process: int


@dataclass(frozen=True, slots=True)
class LeaseSubject:
    """One lease: the chain of its witnesses, and what was written under it."""

    domain: str
    identifier: str
    """Its correlation id."""


@dataclass(frozen=True, slots=True)
class BagSubject:
    """One bag: its files against the list, and who did what to close it."""

    log: str
    start_ns: Instant


type Subject = NamedSubject | HolderSubject | LeaseSubject | BagSubject | Evidence
"""What can be asked about. Evidence: a witness, a frame and its messages, a lock file; of no length the whole file."""
SUBJECTS: Final = (NamedSubject, HolderSubject, LeaseSubject, BagSubject, Evidence)


def title_of(subject: Subject) -> str:
    match subject:
        case NamedSubject(name):
            return f"{subject.WHAT} {name}"
        case HolderSubject(node, process):
            return f"holder {node}/{process}"
        case LeaseSubject(domain, lease):
            return f"lease {lease[-8:]} on {domain}"
        case BagSubject(log, start_ns):
            return f"bag {rfc3339(start_ns)} of {log}"
        case Evidence(path, offset, length):
            return f"{printable(path)} at {offset}" if offset or length else printable(path)


def identifier_of(subject: Subject) -> str:
    match subject:
        case NamedSubject(name):
            return name
        case HolderSubject(node, process):
            return f"{node}/{process}"
        case LeaseSubject(_, lease):
            return lease
        case BagSubject(log, start_ns):
            return f"{log} {start_ns}"
        case Evidence(path, offset, length):
            return f"{printable(path)}:{offset}+{length}"


@dataclass(frozen=True, slots=True)
class DetailLine:
    """One line about a subject; ``subject``: what it leads to."""

    cells: tuple[Cell, ...]
    subject: Subject | None = None

    @property
    def text(self) -> str:
        return "".join(cell.text for cell in self.cells)


class LeaseRows(tuple["LeaseRow", ...]):  # noqa: SLOT001 - it keeps its columns
    """Rows that never change, and columns of them, each made once."""

    @cached_property
    def expiries(self) -> NDArray[np.int64]:
        return np.fromiter((row.expiry_ns for row in self), np.int64, len(self))

    @cached_property
    def fading(self) -> NDArray[np.int64]:
        """Which of them nobody will renew: the holder's process is gone, or the shard does not answer for it."""
        faded = [row.holder_present is False or row.origin in ("last answer", "earlier run") for row in self]
        return np.flatnonzero(faded)

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """What a filter looks at, of each: domain, mode, phase, holder, purpose, in small letters."""
        return tuple(
            f"{row.domain} {row.mode} {row.phase} {row.node}/{row.process} {row.purpose}".casefold() for row in self
        )


NO_LEASES: Final = LeaseRows()


class ViewKind(StrEnum):
    LIVE = "live"
    """The mount and the shards, now."""
    OFFLINE = "offline"
    """The mount or a copy of it, now; no shard is asked."""
    RECORD = "record"
    """A copy that was read as a whole: any instant that it tells of."""


COPY: Final = "a copy"
"""Why no shard of a record is asked, unless that is a bundle."""


class Reach(StrEnum):
    WAITING = "waiting"
    """Asked for the first time, not for long."""
    ANSWERS = "answers"
    SILENT = "no answer"
    NOT_ASKED = "not asked"


@dataclass(frozen=True, slots=True)
class Freshness:
    """How much what is shown of a shard, or of the mount, may be believed."""

    reach: Reach
    age_ns: Span | None = None
    """How old the newest answer is. None: there never was one."""
    silent_ns: Span | None = None
    """How long there has been no answer, where there is none."""
    problem: str = ""
    """Why there is none. Empty with SILENT: the question has not come back."""
    way_out: str = ""
    """What to do about that, where whoever asked knows."""


NOT_ASKED = Freshness(Reach.NOT_ASKED)


@dataclass(frozen=True, slots=True)
class ClockView:
    """What this machine knows of the time."""

    now: TimeInterval
    """With ``bounded`` false, no bound is known: the interval is the machine's clock alone, of no width."""
    bounded: bool
    source: str
    status: str
    assumed: bool
    problem: str = ""

    @classmethod
    def of_nothing(cls, realtime_ns: Instant, problem: str) -> ClockView:
        return cls(TimeInterval.around(realtime_ns, 0), False, "none", "unknown", False, problem)  # noqa: FBT003


@dataclass(frozen=True, slots=True)
class ShardView:
    """One shard of the map, by its number. Numbers are those of its newest answer, or None."""

    shard: int
    node: str
    freshness: Freshness
    incarnation: str | None = None
    leases: int | None = None
    domains: int | None = None
    ceiling_ns: Instant | None = None
    """From the shard, or else from the newest record of its chain on the mount."""
    ceiling_kind: CeilingKind | None = None
    """Of the newest record on the mount."""
    blocks_lost: int | None = None
    ledger_bytes: int | None = None
    resumes_ns: Instant | None = None
    """After this, at the latest, no domain waits for what an earlier run of the shard granted."""
    runner: str | None = None
    """Which node runs it, by its own word, or else by the newest record of its chain; ``node``: whom the map names."""
    half: Half = Half.WHOLE
    """Which half it is in a planned move."""
    half_ns: Instant | None = None
    """Since when, where that is known."""

    def waits(self, now: TimeInterval) -> bool:
        return self.resumes_ns is not None and not now.surely_past(self.resumes_ns)


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node that the trust record knows."""

    name: str
    own: bool
    """Whether it is the node that asks."""
    shards: tuple[ShardView, ...]
    answers: bool | None = None
    """Whether it does, at the address of the trust record. None: it has none there, or was not asked yet."""


class LeaseOrigin(StrEnum):
    SHARD = "shard"
    """Its shard says so, now."""
    LAST_ANSWER = "last answer"
    """Its shard said so when it last answered."""
    EARLIER_RUN = "earlier run"
    """An earlier run of the shard granted it; the present one cannot know."""
    LEDGER = "ledger"
    """The newest witness in the ledger files says so."""
    RECORD = "record"
    """The copy says that it stood so at the instant that is looked at."""


class LeaseRow(msgspec.Struct, frozen=True, gc=False):
    """One lease. A struct rather than a dataclass: there may be a hundred thousand."""

    domain: str
    mode: Mode
    phase: Phase
    node: str
    process: int
    purpose: str
    correlation_id: str
    fence: int
    expiry_ns: Instant
    shard: int
    origin: LeaseOrigin
    resumes_ns: Instant
    """When its domain can be used by others at the latest, if it is not relinquished."""
    as_of_ns: Instant | None = None
    """When that was said, where it is not now."""
    holder_present: bool | None = None
    """Whether the holder's process runs on this machine. None: it is another machine's, or cannot be told."""
    previous: LeaseOutcome | None = None
    """How the domain's lease before this one ended."""
    granted_ns: Instant | None = None
    floor_ns: Instant | None = None
    settle_to_ns: Instant | None = None
    waiting: int | None = None
    """How many wait for the domain. None: nobody says."""
    renewals: int | None = None
    messages: int | None = None
    """Written under it, as far as is known. None: nobody counted."""
    watermark_ns: Instant | None = None
    """The highest timestamp that is known to be written under it."""
    session: str | None = None


@dataclass(frozen=True, slots=True)
class BagCell:
    """One bag of a log, written to or not."""

    start_ns: Instant
    due_ns: Instant
    state: ClosingState | None
    """None: it has no directory; nobody wrote to it."""
    files: int
    path: str = ""
    """Under the root; empty where there is no directory."""
    damage: str = ""
    """What is wrong with it, as far as the reading of a record found."""


def newest_bags(found: Mapping[Instant, BagCell], span: Span, wait: Span, most: int) -> tuple[BagCell, ...]:
    """Return a log's newest bags, those that nobody wrote to among them. ``wait``: from its end until a bag is due."""
    if not found:
        return ()
    last = max(found)
    starts = range(max(min(found), last - (most - 1) * span), last + 1, span)
    return tuple(found.get(start) or BagCell(start, start + span + wait, None, 0) for start in starts)


@dataclass(frozen=True, slots=True)
class LogView:
    """One log: its newest bags in order of time, and how far it is closed."""

    name: str
    bags: tuple[BagCell, ...]
    horizon_ns: Instant | None
    problem: str = ""
    span_ns: Span = SECOND


@dataclass(frozen=True, slots=True)
class NodeClock:
    """What a node's clock says of itself: live, in answer to a question; of a copy, in something that it signed.

    Only clocks with ``ahead`` can be compared: what was signed at different instants says nothing of each other.
    """

    node: str
    midpoint_ns: Instant | None
    """None, like the radius and the age: nothing is known."""
    radius_ns: Span | None
    """As the node says, without a round trip."""
    status: str
    assumed: bool
    age_ns: Span | None
    """How long before the state's instant that was."""
    epochs: int | None = None
    """How many clock epochs are known: each after the first is a step, a suspend, a boot or a long stall."""
    widest_ns: Span | None = None
    remark: str = ""
    """What the audit found about it."""
    reach: Reach = Reach.NOT_ASKED
    """Whether the node was asked for its time, and answers."""
    problem: str = ""
    """Why it does not answer, is not asked, or has no bound."""
    silent_ns: Span | None = None
    """How long there has been no answer, where there is none."""
    ahead: TimeInterval | None = None
    """True time minus this machine's CLOCK_BOOTTIME, by that node: its interval, widened by round trip and age."""
    trip_ns: Span | None = None
    read_ns: int | None = None
    """CLOCK_BOOTTIME of the answer: another one is another reading."""


@dataclass(frozen=True, slots=True)
class TimeSources:
    """What this machine's sources of time say, and what they have in common: from its agent, or asked for here."""

    freshness: Freshness
    sources: tuple[SourceView, ...] = ()
    together: TimeInterval | None = None
    agent: bool = False


@dataclass(frozen=True, slots=True)
class ClusterState:
    """All that is known of a cluster at one instant."""

    path: str
    clock: ClockView
    mount: Freshness
    cluster_id: str = ""
    """Empty until the mount has answered once."""
    offline: str = ""
    """Why no shard is asked; empty: they are asked."""
    radius_ns_max: Span | None = None
    nodes: tuple[NodeView, ...] = ()
    leases: LeaseRows = NO_LEASES
    """In order of domain."""
    logs: tuple[LogView, ...] = ()
    clocks: tuple[NodeClock, ...] = ()
    times: TimeSources | None = None
    """None: sources of time are asked on a live cluster only."""
    view: ViewKind = ViewKind.LIVE
    checks: tuple[HealthCheck, ...] = ()
    """What was judged where it was asked: keys, room on the mount, this machine's daemons, the other nodes."""
    findings: tuple[Finding, ...] | None = None
    """Whose evidence was complete by then. None: nothing was audited."""
    first_ns: Instant | None = None
    last_ns: Instant | None = None
    """Of a record: the first and the last instant that it tells of."""

    @property
    def shards(self) -> tuple[ShardView, ...]:
        return tuple(sorted((s for node in self.nodes for s in node.shards), key=lambda s: s.shard))
