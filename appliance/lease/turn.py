"""One turn of a shard: drafts of replies, entries and staged states, gathered before they are signed and written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from timeagent.canonical import encode
from timeagent.errors import BadRequest

from ..formats.lease import LeaseOutcome
from ..formats.names import check_node, check_purpose
from ..formats.sessionlease import SessionWitness
from ..formats.witness import Ended, Revoked
from .domain import hint_bytes
from .wire import Acquire, Granted, Over, Refused, Reply, SessionGranted

if TYPE_CHECKING:
    from collections.abc import Callable

    from timeagent.signedtime import SignedTime

    from ..formats.hints import Hints
    from ..formats.lease import Holder
    from ..formats.witness import Entry
    from .domain import Bounds, State
    from .session_state import SessionRecord
    from .wire import BeginSession, Revoke


_HOLDERS_KNOWN: Final = 4096
_REVOCATIONS_KNOWN: Final = 1024
_REVOKED_OR_NOT_KNOWN: Final = frozenset({LeaseOutcome.REVOKED, LeaseOutcome.UNKNOWN})


class Staged(msgspec.Struct):
    """A domain in this turn: as it was read, and as it will be written."""

    before: State
    revision: int
    """0: not remembered before this turn."""
    state: State
    answers: dict[bytes, int] | None = None
    """Which entry of this turn is the newest witness of each of its leases, by correlation id; None: it has none."""


class StagedSession(msgspec.Struct):
    """A session lease in this turn: as it was read (None: there was none), and as it will be written."""

    before: SessionRecord | None
    now: SessionRecord


class Turn(msgspec.Struct):
    """What one turn gathers."""

    bounds: Bounds
    token: SignedTime
    entries: list[Entry | bytes]
    """Bytes: one that is encoded already."""
    staged: dict[str, Staged] = msgspec.field(default_factory=dict)
    sessions: dict[bytes, StagedSession] = msgspec.field(default_factory=dict)
    """By session id."""
    new: int = 0
    """How many domains will be remembered that were not."""
    plain_new: int = 0
    """How many of them are plain."""
    plain_leases: int = 0
    """How many plain leases have been granted, less those that were given back."""
    granted: dict[str, tuple[bytes, int]] = msgspec.field(default_factory=dict)
    """Plain leases that were granted in this turn, and their entries: by domain, the last of each."""

    def note_hints(self, before: State, after: State) -> None:
        """Take account of what a decision has added to the hints: it is not left for others of this turn."""
        grown = hint_bytes(after) - hint_bytes(before)
        if grown:
            left = max(0, self.bounds.hint_bytes_left - grown)
            self.bounds = replace(self.bounds, hint_bytes_left=left)


class Holders:
    """Those whose names were found good: few ask often."""

    def __init__(self) -> None:
        """Know of nobody."""
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
        if self and isinstance(answer, LaterSession):
            witness = turn.entries[answer.entry]
            assert isinstance(witness, SessionWitness)
            return replace(answer, revoked=tuple(self[name] for name in witness.ended if name in self))
        return answer


class Later(msgspec.Struct, frozen=True, gc=False):
    """A reply that waits for the turn's signature."""

    request_id: bytes
    entry: int
    hints: Hints | None = None


class LaterSession(msgspec.Struct, frozen=True, gc=False):
    """A reply about a session lease that waits for the turn's signature."""

    request_id: bytes
    entry: int
    leases: int
    revoked: tuple[Revoked, ...] = ()


type Draft = Reply | Later | LaterSession


def finished(draft: Draft, witness: Callable[[int], bytes]) -> Reply:
    """Return the reply of a draft, now that the turn is signed. ``witness``: an encoded one, by its entry."""
    if isinstance(draft, Later):
        return Granted(request_id=draft.request_id, signed=witness(draft.entry), hints=draft.hints)
    if isinstance(draft, LaterSession):
        return SessionGranted(
            request_id=draft.request_id, signed=witness(draft.entry), leases=draft.leases, revoked=draft.revoked
        )
    return draft
