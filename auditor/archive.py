"""A copy that was read whole, for looking at: its audit, its timeline, and what is needed to look closer.

Everything that explains one tree again and again (screens, explanations) shares one of these, so that each signature is
checked once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from .audit import Options, audit
from .frames import FrameReader
from .records import load_records
from .replay.events import (
    BagClosed,
    CeilingLinked,
    FrameWritten,
    LeaseEnded,
    LeaseTold,
    LogBorn,
    SessionOver,
    SessionTold,
)
from .replay.judging import changes, judged_timeline
from .replay.lens import AS_IT_WAS
from .replay.reading import read_timeline
from .verification import Signatures

if TYPE_CHECKING:
    from collections.abc import Callable

    from .audit import Audit
    from .chains import ShardName
    from .finding import Finding
    from .load import Tree
    from .records import ClusterRecords
    from .replay.judging import Changes
    from .replay.lens import WhatIf
    from .replay.timeline import Timeline

type ReadingStep = Callable[[str, int, str], None]
"""Told of what goes on: which part of the work ("audit", "timeline"), how much of it is done, and what is read."""


@dataclass(slots=True)
class LeaseTrace:
    """Everything that the evidence tells of one lease, in order of time."""

    told: list[LeaseTold] = field(default_factory=list)
    ended: LeaseEnded | None = None
    frames: list[FrameWritten] = field(default_factory=list)
    session: SessionTrace | None = None
    """The session lease that it was taken under, where anything is known of that."""

    @property
    def expiry_ns(self) -> int:
        """The latest expiry of any of its witnesses; under a session lease, of any of that one's."""
        if self.session is not None:
            return self.session.expiry_ns
        return max(each.witness.expiry_ns for each in self.told)


@dataclass(slots=True)
class SessionTrace:
    """What is known of one session lease."""

    expiry_ns: int = 0
    over: SessionOver | None = None


@dataclass(frozen=True)
class Archive:
    """A tree with its audit and its timeline. Safe to share between threads."""

    tree: Tree
    audit: Audit
    timeline: Timeline
    records: ClusterRecords
    signatures: Signatures
    root_key: bytes | None = None

    @classmethod
    def of(cls, tree: Tree, audited: Audit, timeline: Timeline, root_key: bytes | None = None) -> Archive:
        """Make one of what was read already. Reads the cluster's records once more."""
        signatures = Signatures()
        return cls(tree, audited, timeline, load_records(tree, signatures, root_key)[0], signatures, root_key)

    def changed(self, lens: WhatIf) -> tuple[Timeline, Changes]:
        """Read the tree again as if something had been otherwise. Returns its timeline, and which findings differ.

        Costs as much as reading the tree twice.
        """
        timeline, after = self._judged(lens)
        return timeline, changes(self._as_it_was, after)

    @cached_property
    def _as_it_was(self) -> list[Finding]:
        return self._judged(AS_IT_WAS)[1]

    def _judged(self, lens: WhatIf) -> tuple[Timeline, list[Finding]]:
        return judged_timeline(
            self.tree, lens, root_key=self.root_key, signatures=self.signatures, progress=lambda _done, _what: None
        )

    @cached_property
    def frames(self) -> FrameReader:
        """Reads frames of this tree again, with the answers so far."""
        return FrameReader(self.signatures, self.records.cluster_id)

    @cached_property
    def leases(self) -> dict[str, dict[bytes, LeaseTrace]]:
        """Return every lease by domain and correlation id, those of a domain in the order of their first witness."""
        found: dict[str, dict[bytes, LeaseTrace]] = {}
        sessions: dict[tuple[bytes, bytes], SessionTrace] = {}
        for event in self.timeline.events:
            match event:
                case LeaseTold():
                    leases = found.setdefault(event.witness.domain, {})
                    leases.setdefault(event.witness.correlation_id, LeaseTrace()).told.append(event)
                case SessionTold():
                    session = sessions.setdefault((event.place[1], event.witness.session_id), SessionTrace())
                    session.expiry_ns = max(session.expiry_ns, event.witness.expiry_ns)
                case SessionOver():
                    sessions.setdefault((event.place[1], event.ending.session_id), SessionTrace()).over = event
                case _:
                    pass
        for leases in found.values():
            for trace in leases.values():
                name = trace.told[0].witness.session_id
                trace.session = None if name is None else sessions.get((trace.told[0].place[1], name))
        self._follow(found)
        return found

    def _follow(self, leases: dict[str, dict[bytes, LeaseTrace]]) -> None:
        """Add how each ended and what was written under it: an end may stand before the grant of the same instant."""
        for event in self.timeline.events:
            if isinstance(event, LeaseEnded):
                trace = leases.get(event.domain, {}).get(event.ending.correlation_id)
                if trace is not None:
                    trace.ended = event
            elif isinstance(event, FrameWritten):
                for domain, identifier in event.leases:
                    trace = leases.get(domain, {}).get(identifier)
                    if trace is not None:
                        trace.frames.append(event)

    @cached_property
    def ceilings(self) -> dict[tuple[ShardName, int], CeilingLinked]:
        """Return the ceiling records by shard and number; of two with one number the first."""
        found: dict[tuple[ShardName, int], CeilingLinked] = {}
        for event in self.timeline.events:
            if isinstance(event, CeilingLinked):
                found.setdefault((event.shard, event.record.number), event)
        return found

    @cached_property
    def closings(self) -> dict[str, BagClosed]:
        """Return the closing of each bag by the bag's path."""
        return {event.path: event for event in self.timeline.events if isinstance(event, BagClosed)}

    @cached_property
    def births(self) -> dict[str, LogBorn]:
        """Return the birth of each log."""
        return {event.log: event for event in self.timeline.events if isinstance(event, LogBorn)}


def read_archive(
    tree: Tree, *, root_key: bytes | None = None, options: Options | None = None, step: ReadingStep | None = None
) -> Archive:
    """Audit a tree and read its timeline. Never raises for what is in it. Blocks as long as both take.

    ``step`` is called again and again while that goes on; what it raises ends the reading.
    """
    tell = step or _silent
    signatures = Signatures()

    def audited(done: int, _total: int, _files: int, what: str) -> None:
        tell("audit", done, what)

    result = audit(tree, root_key=root_key, signatures=signatures, options=options or Options(), progress=audited)
    records, _ = load_records(tree, signatures, root_key)
    timeline = read_timeline(
        tree,
        root_key=root_key,
        signatures=signatures,
        findings=result.findings,
        progress=lambda done, what: tell("timeline", done, what),
    )
    return Archive(tree, result, timeline, records, signatures, root_key)


def _silent(_part: str, _done: int, _what: str) -> None:
    pass
