"""The history of each session lease: what ledgers and frames tell of it, and what that says of the leases under it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from appliance.formats.lease import Ending, LeaseOutcome
from appliance.formats.sessionlease import SessionEnded, SessionWitness
from appliance.formats.witness import BatchHead, decode_entry
from timeagent.canonical import decode

from .history import EndedFact

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from timeagent.signedtime import SignedTime

    from .chains import Run
    from .finding import Evidence
    from .history import LeaseHistory, Position
    from .index import Index

type SessionName = tuple[bytes, bytes]
"""Incarnation of the shard, session id."""


@dataclass(frozen=True, slots=True)
class SessionTold:
    """One witness of a session lease, as its shard told it."""

    witness: SessionWitness
    head: BatchHead
    token: SignedTime
    position: Position
    where: Evidence


@dataclass(frozen=True, slots=True)
class SessionOver:
    """What a shard said about the end of a session lease."""

    entry: SessionEnded
    token: SignedTime
    position: Position
    where: Evidence


@dataclass(slots=True)
class SessionHistory:
    """All that is known of one session lease."""

    session_id: bytes
    told: list[SessionTold] = field(default_factory=list)
    """In order."""
    over: SessionOver | None = None

    @property
    def name(self) -> str:
        """How a finding names it."""
        return f"session lease {self.session_id.hex()}"

    def ends_of(self, lease: LeaseHistory, run: Run) -> Iterator[EndedFact]:
        """Yield what this says of the end of a lease under it: that it was ended alone, or that it ended with this.

        The second only where the ledger has everything in between: else it may have ended alone, or been given back.
        """
        naming = next((told for told in self.told if lease.correlation_id in told.witness.ended), None)
        if naming is not None:
            yield EndedFact(
                _ending(lease, LeaseOutcome.REVOKED, naming.token.midpoint_ns),
                naming.position,
                naming.token,
                naming.where,
                None,
                stated=False,
            )
        over = self.over
        if over is None or lease.first.position > over.position:
            return
        if run.whole(lease.first.head.sequence, over.position[3]):
            outcome = over.entry.outcome if lease.held else LeaseOutcome.WITHDRAWN
            ending = _ending(lease, outcome, over.entry.ended_ns, over.entry)
            yield EndedFact(ending, over.position, over.token, over.where, None, stated=False)


def _ending(lease: LeaseHistory, outcome: LeaseOutcome, ended_ns: int, word: SessionEnded | None = None) -> Ending:
    return Ending(
        correlation_id=lease.correlation_id,
        outcome=outcome,
        ended_ns=ended_ns,
        watermark_ns=None if word is None else word.watermark_ns,
        watermark_time=None if word is None else word.watermark_time,
        messages=0,
        chain_head=None,
    )


def session_histories(index: Index, runs: Mapping[bytes, Run]) -> dict[SessionName, SessionHistory]:
    """Return every session lease that is known, in order of their names."""
    found: dict[SessionName, SessionHistory] = {}
    for raw_head, place, raw, where in index.entries(""):
        head = decode(BatchHead, raw_head)
        run = runs[head.incarnation]
        position = (head.map_number, run.first_ceiling, head.incarnation, head.sequence, place)
        entry = decode_entry(raw)
        assert isinstance(entry, SessionWitness | SessionEnded)
        history = found.setdefault((head.incarnation, entry.session_id), SessionHistory(entry.session_id))
        if isinstance(entry, SessionWitness):
            history.told.append(SessionTold(entry, head, head.signed_time(), position, where))
        elif history.over is None or position < history.over.position:
            history.over = SessionOver(entry, head.signed_time(), position, where)
    for history in found.values():
        history.told.sort(key=lambda told: told.position)
    return dict(sorted(found.items()))
