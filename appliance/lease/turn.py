"""One turn of a shard: drafts of replies and entries, gathered before they are signed."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from timeagent.canonical import encode
from timeagent.errors import BadRequest
from timeagent.signedtime import SignedTime

from ..formats.lease import Holder, LeaseOutcome
from ..formats.names import check_node, check_purpose
from ..formats.witness import Ended, Entry, Revoked, SessionWitness
from .domain import Bounds, State, hint_bytes
from .wire import Acquire, BeginSession, Granted, Over, Refused, Reply, Revoke, SessionGranted

_HOLDERS_KNOWN: Final = 4096
_REVOCATIONS_KNOWN: Final = 1024
_REVOKED_OR_NOT_KNOWN: Final = frozenset({LeaseOutcome.REVOKED, LeaseOutcome.UNKNOWN})


class Turn(msgspec.Struct):
    bounds: Bounds
    token: SignedTime
    entries: list[Entry | bytes]
    """Bytes: one that is encoded already."""
    answers: dict[bytes, int] = msgspec.field(default_factory=dict)
    """Which entry is the newest witness of a lease or session lease, by its id, of those that this turn witnesses."""

    def note_hints(self, before: State, after: State) -> None:
        """Take account of what a decision has added to the hints: it is not left for others of this turn."""
        grown = hint_bytes(after) - hint_bytes(before)
        if grown:
            left = max(0, self.bounds.hint_bytes_left - grown)
            self.bounds = replace(self.bounds, hint_bytes_left=left)


class Holders:
    """Those whose names were found good: few ask often."""

    def __init__(self) -> None:
        self.good: dict[Holder, bytes] = {}
        """As they are encoded."""

    def refused(self, request: Acquire) -> Refused | None:
        """Refuse who says a bad name."""
        if request.holder in self.good:
            return None
        if (refused := holder_refused(request, request.holder)) is None:
            if len(self.good) >= _HOLDERS_KNOWN:
                self.good.clear()
            self.good[request.holder] = encode(request.holder)
        return refused


def holder_refused(request: Acquire | Revoke | BeginSession, holder: Holder) -> Refused | None:
    """Refuse whoever says a name that no node has, or a purpose that is no purpose."""
    try:
        check_node(holder.node)
        check_purpose(holder.purpose)
    except BadRequest as problem:
        return Refused(request_id=request.request_id, code=problem.code, message=problem.message, hint=problem.hint)
    return None


class Revocations(dict[bytes, Revoked]):
    """The newest revocations of this incarnation, by correlation id: who is told of an end hears of them."""

    def note(self, turn: Turn, request: Revoke, entries: int) -> None:
        """Have the ledger say who revoked a lease, and why, behind the end that this has brought.

        ``entries``: how many there were before: what ended before is not this one's doing.
        """
        last = turn.entries[-1] if len(turn.entries) > entries else None
        if isinstance(last, Ended) and last.ending.correlation_id == request.correlation_id:
            said = Revoked(domain=request.domain, correlation_id=request.correlation_id, by=request.by)
            turn.entries.append(said)
            self[request.correlation_id] = said
            while len(self) > _REVOCATIONS_KNOWN:
                del self[next(iter(self))]

    def told[Answer](self, turn: Turn, answer: Answer, correlation_id: bytes = b"") -> Answer:
        """Say in an answer who revoked the lease that is over, or those that a session's witness names as ended."""
        if isinstance(answer, Over) and answer.outcome in _REVOKED_OR_NOT_KNOWN and correlation_id in self:
            return replace(answer, outcome=LeaseOutcome.REVOKED, revoked=self[correlation_id])
        if self and isinstance(answer, Later) and isinstance(answer.reply, SessionGranted):
            witness = turn.entries[answer.entry]
            assert isinstance(witness, SessionWitness)
            revoked = tuple(self[name] for name in witness.ended if name in self)
            return replace(answer, reply=replace(answer.reply, revoked=revoked))
        return answer


class Later(msgspec.Struct, frozen=True, gc=False):
    """A reply that waits for the turn's signature: its witness is missing."""

    reply: Granted | SessionGranted
    entry: int

    @property
    def request_id(self) -> bytes:
        return self.reply.request_id


type Draft = Reply | Later

type PlainLater = tuple[bytes, int, bytes]
"""A plain grant, of which the witness waits for the turn's signature: request id, entry, and what is known of messages
of the domain, encoded; nil: that was not asked for."""
