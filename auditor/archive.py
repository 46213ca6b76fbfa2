"""A copy that was read whole, for looking at: its audit, its timeline, and what is needed to look closer.

Everything that explains one tree again and again (screens, explanations) shares one of these, so that each signature is
checked once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final

from timeagent.errors import BadRequest

from .audit import Options, audit_with_timeline
from .frames import FrameReader
from .records import load_records
from .timeline.events import (
    NAME_THE_COPY,
    NEEDS_TREE,
    BagClosed,
    CeilingLinked,
    FrameWritten,
    LeaseEnded,
    LeaseTold,
    LogBorn,
    SessionOver,
)
from .timeline.gathering import AS_IT_WAS
from .timeline.what_if import changes, judged_timeline
from .verification import Signatures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from timeagent.units import Instant

    from .chains import ShardName
    from .finding import Finding
    from .load import Tree
    from .records import ClusterRecords
    from .result import Audit
    from .timeline.events import Event
    from .timeline.gathering import WhatIf
    from .timeline.timeline_reader import Timeline
    from .timeline.what_if import Changes

DOMAINS_AT_HAND: Final = 32

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

    copy: Tree | None
    """None: there is only what its audit has kept."""
    audit: Audit
    timeline: Timeline
    signatures: Signatures
    root_key: bytes | None = None

    @classmethod
    def of(cls, tree: Tree | None, audited: Audit, timeline: Timeline, root_key: bytes | None = None) -> Archive:
        """Make one of what was read already."""
        return cls(tree, audited, timeline, Signatures(), root_key)

    @property
    def tree(self) -> Tree:
        """The tree, where bytes are needed. Raises BadRequest where there is only the index."""
        if self.copy is None:
            raise BadRequest(NEEDS_TREE, "the bytes are in the copy, and only its index is here", hint=NAME_THE_COPY)
        return self.copy

    @cached_property
    def records(self) -> ClusterRecords:
        """The cluster's records. Reads the tree."""
        return load_records(self.tree, self.signatures, self.root_key)[0]

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
    def leases(self) -> Traces:
        """Return every lease by domain and correlation id, those of a domain in the order of their first witness."""
        return Traces(self.timeline)

    def ceiling(self, shard: ShardName, number: int) -> CeilingLinked | None:
        """Return a ceiling record by shard and number; of two with one number the first."""
        return self.timeline.ceiling(shard, number)

    def closing(self, path: str) -> BagClosed | None:
        """Return how the bag at a path was closed."""
        return self.timeline.closing_of(path)

    @cached_property
    def births(self) -> dict[str, LogBorn]:
        """Return the birth of each log."""
        return {event.log: event for event in self.timeline.kinds(LogBorn)}


class Traces(Mapping[str, "Mapping[bytes, LeaseTrace]"]):
    """The leases of a timeline by domain, put together when they are asked for; those that were asked for last stay."""

    def __init__(self, timeline: Timeline) -> None:
        """Put together nothing yet."""
        self._timeline = timeline
        self._whole = lru_cache(DOMAINS_AT_HAND)(self._traced)

    def __getitem__(self, domain: str) -> Mapping[bytes, LeaseTrace]:
        """Return all leases of a domain, with what was written under each. Raises KeyError where no grant is known."""
        found = self._whole(domain)
        if not found:
            raise KeyError(domain)
        return found

    def __iter__(self) -> Iterator[str]:
        """Yield every domain of which a grant is known. Goes over the state at the end."""
        return (domain for domain in self._timeline.state_at().domains if self._whole(domain))

    def __len__(self) -> int:
        """Count them."""
        return sum(1 for _ in self)

    def within(self, domain: str, first: Instant, last: Instant) -> list[LeaseTrace]:
        """Return the leases of a domain that somebody had, or could have had, within [first, last]; without frames."""
        return list(_traces(self._timeline, self._timeline.lease_events(domain, first, last)).values())

    def _traced(self, domain: str) -> dict[bytes, LeaseTrace]:
        timeline = self._timeline
        events = [event for _, event in timeline.between(timeline.start_ns, timeline.end_ns, domain=domain)]
        found = _traces(timeline, events)
        for event in events:
            if isinstance(event, FrameWritten):
                for name, identifier in event.leases:
                    if name == domain and identifier in found:
                        found[identifier].frames.append(event)
        return found


def _traces(timeline: Timeline, events: Iterable[Event]) -> dict[bytes, LeaseTrace]:
    """Return the leases of one domain by what was said of them: an end may stand before the grant of its instant."""
    found: dict[bytes, LeaseTrace] = {}
    ends: list[LeaseEnded] = []
    for event in events:
        if isinstance(event, LeaseTold):
            found.setdefault(event.witness.correlation_id, LeaseTrace()).told.append(event)
        elif isinstance(event, LeaseEnded):
            ends.append(event)
    for end in ends:
        if end.ending.correlation_id in found:
            found[end.ending.correlation_id].ended = end
    for trace in found.values():
        name = trace.told[0].witness.session_id
        known = None if name is None else timeline.session(trace.told[0].place[1], name)
        trace.session = None if known is None else SessionTrace(*known)
    return found


def read_archive(
    tree: Tree, *, root_key: bytes | None = None, options: Options | None = None, step: ReadingStep | None = None
) -> Archive:
    """Audit a tree and read its timeline. Never raises for what is in it. Blocks as long as both take.

    ``step`` is called again and again while that goes on; what it raises ends the reading.
    """

    def audited(done: int, total: int, _messages: int, what: str) -> None:
        if step:
            step("audit" if done < total else "timeline", done, what)

    signatures = Signatures()
    result, timeline = audit_with_timeline(
        tree, root_key=root_key, signatures=signatures, options=options or Options(), progress=audited
    )
    return Archive(tree, result, timeline, signatures, root_key)
