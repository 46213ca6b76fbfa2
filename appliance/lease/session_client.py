"""The holder's side of session leases: ask one shard for one, keep it, give it back; judged as ``client`` judges.

Results are values; only BadTime is raised.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from timeagent.canonical import decode
from timeagent.errors import Damaged
from timeagent.units import Instant, Span

from ..formats.witness import Revoked, SessionWitness, SignedWitness
from . import wire
from .client import FIRST_MAP, ClockLook, LeaseClient, LeaseUnavailable, Result, Suspect, as_result, contradiction


@dataclass(frozen=True, slots=True)
class Stands:
    """The session lease is granted or renewed."""

    signed: SignedWitness
    witness: SessionWitness
    leases: int
    """How many leases are out under it, as its shard counts."""
    revoked: tuple[Revoked, ...] = ()
    """Of the leases that its witness names as ended, who revoked them and why, as the shard says, unsigned."""


type SessionResult = Stands | Result


class SessionClient(LeaseClient):
    """One holder's dealings with one shard, session leases included. Blocks as its base does."""

    def begin_session(self, term_ns: Span, map_number: int = FIRST_MAP) -> SessionResult:
        """Ask for a session lease, going by a map. Raises BadTime."""
        sent = ClockLook.of(self._time)
        request = wire.BeginSession(
            request_id=self._randomness.randbytes(16),
            map_number=map_number,
            holder=self._holder,
            term_ns=term_ns,
            expiry_ns_max=sent.now.latest + term_ns,
        )
        return self._ask_about_session(request, sent)

    def renew_session(
        self, session_id: bytes, term_ns: Span, give_up_ns: Instant | None = None, map_number: int = FIRST_MAP
    ) -> SessionResult:
        """Move its expiry, and so that of every lease under it. Unavailable: it is what it was. Raises BadTime."""
        sent = ClockLook.of(self._time)
        request = wire.RenewSession(
            request_id=self._randomness.randbytes(16),
            map_number=map_number,
            session_id=session_id,
            term_ns=term_ns,
            expiry_ns_max=sent.now.latest + term_ns,
        )
        return self._ask_about_session(request, sent, give_up_ns)

    def drop_session(self, dropping: wire.DropSession, give_up_ns: Instant | None = None) -> SessionResult:
        """Give it back, by a request without an id, with all leases under it: they are over before this is called.

        Raises BadTime.
        """
        return self._ask_about_session(replace(dropping, request_id=self._randomness.randbytes(16)), None, give_up_ns)

    def leases_under(self, session_id: bytes) -> Iterator[tuple[wire.LeaseView, ...]]:
        """Yield the leases under a session lease, unsigned, page by page; no more of them once no answer comes."""
        after, more = "", True
        while more:
            replies = self._call(
                [wire.Inspect(after_domain=after, leases_max=wire.PAGE_LEASES_MAX, session_id=session_id)]
            )
            if isinstance(replies, LeaseUnavailable) or not isinstance(replies[0], wire.LeasePage):
                return
            yield replies[0].leases
            after, more = replies[0].after_domain, replies[0].more

    def _ask_about_session(
        self,
        request: wire.BeginSession | wire.RenewSession | wire.DropSession,
        sent: ClockLook | None,
        give_up_ns: Instant | None = None,
    ) -> SessionResult:
        replies = self._call([request], 0, give_up_ns, patient=isinstance(request, wire.DropSession))
        if isinstance(replies, LeaseUnavailable):
            return replies
        (reply,) = replies
        if sent is None or not isinstance(reply, wire.SessionGranted):
            return as_result(reply, "")
        return self._judge_session(reply, request.session_id if isinstance(request, wire.RenewSession) else None, sent)

    def _judge_session(self, reply: wire.SessionGranted, session_id: bytes | None, sent: ClockLook) -> SessionResult:
        where = "the shard's witness of a session lease"
        came = ClockLook.of(self._time)
        try:
            signed = decode(SignedWitness, reply.signed, where)
            witness = signed.statement(where)
            shards = signed.batch_head(where).signed_time(where)
        except Damaged as problem:
            return LeaseUnavailable("", "answer-damaged", problem.message)
        if (
            not isinstance(witness, SessionWitness)
            or witness.holder != self._holder
            or session_id not in (None, witness.session_id)
        ):
            return Suspect("it is about another session lease, or another holder")
        reason = contradiction(shards, sent.token, came.token) or self._beyond(witness.expiry_ns, came)
        if reason is not None:
            return Suspect(reason)
        if not came.now.surely_before(witness.expiry_ns - self._policy.holder_margin_ns):
            return LeaseUnavailable("", "late", "the answer leaves less than the margin until the expiry")
        return Stands(signed, witness, reply.leases, reply.revoked)
