"""Leases by hand: what shells and operators do with single leases, outside of any session.

A lease that is taken by hand belongs to no process: its holder says process 0, and whoever knows its correlation id may
renew it or give it back. Nothing is written under it. A lease of a process is never touched here, but by revoking it:
what its process wrote nobody else knows, and a lease that is given back without its watermark would hide that.

While a domain moves to another shard its leases have two halves, which only a session keeps together: by hand none is
taken or renewed then, and one that was taken before runs out.
"""

from __future__ import annotations

import contextlib
import logging
import os
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from timeagent.canonical import decode
from timeagent.clock import boot_id
from timeagent.errors import BadRequest, ShardUnavailable, TenureError, TryAgain
from timeagent.units import MS, Span

from .formats.lease import Ending, Holder, LeaseOutcome, Mode, Phase
from .formats.names import check_domain, check_purpose
from .formats.shardmap import shard_text
from .formats.witness import SessionWitness, SignedWitness, Witness
from .lease import wire
from .lease.client import ATTEMPTS
from .session.asking import check_in_time, denial_text

if TYPE_CHECKING:
    import random

    from timeagent.units import Instant, TimeInterval

    from .cluster import Cluster
    from .lease.wire import LeaseView, Reply, Request

NO_PROCESS: Final = 0
"""Whose lease it is that no process keeps."""

_log = logging.getLogger(__name__)

ASK_AGAIN_NS: Final[Span] = 250 * MS
"""How soon a shard is asked again that does not answer, or lets nobody wait, while there is time."""


class ByHand:
    """One command's dealings with leases. Blocks for the shard, at most three attempts. Starts no shard."""

    def __init__(self, cluster: Cluster, randomness: random.Random) -> None:
        self._cluster = cluster
        self._policy = cluster.policy
        self._random = randomness

    def leases(self, domain: str) -> list[LeaseView]:
        """Return the leases on a domain, unsigned, in the order of their grants. Raises ShardUnavailable."""
        check_domain(domain)
        return self._cluster.routes.inspect(self._cluster.map.shards_of(domain)[0], domain)[1]

    def granted_ns(self, asked_ns: Span, asked: TimeInterval, expiry_ns: Instant) -> Span:
        """Return the term that was granted: what was asked for, if policy, shard and session lease did not cut it.

        Up to one attempt's time-out of difference is taken for that of two clocks, and for the age of the signed time.
        """
        most = min(asked_ns, self._policy.lease_term_max_ns)
        left = expiry_ns - asked.midpoint
        return most if left + self._policy.attempt_timeout_ns >= most else max(0, left)

    def begin_session(self, domain: str, term_ns: Span, purpose: str) -> SessionWitness:
        """Take a session lease of a domain's shard for one term; leases under it are kept by its renewals.

        It is kept by nobody, as what is taken under it. Raises as ``acquire``.
        """
        self._check_served(domain)
        reply = self._termed(wire.BeginSession, term_ns, domain, holder=self._holder(purpose))
        return _stated(reply, SessionWitness)

    def under(self, domain: str, session_id: bytes) -> list[LeaseView]:
        """Return some of the leases under a session lease of a domain's shard, unsigned; none: it is not out there.

        Raises ShardUnavailable.
        """
        question = wire.Inspect(after_domain="", leases_max=wire.PAGE_LEASES_MAX, session_id=session_id)
        while isinstance(page := self._asked(question, domain), wire.LeasePage):
            if page.leases or not page.more:
                return list(page.leases)
            if page.after_domain <= question.after_domain:
                break  # it would be asked for the same for ever
            question = replace(question, after_domain=page.after_domain)
        raise _no_answer(page)

    def acquire(
        self,
        domain: str,
        mode: Mode,
        term_ns: Span,
        wait_ns: Span,
        purpose: str,
        session: tuple[bytes, Holder] | None = None,
    ) -> tuple[Witness, Span]:
        """Take a lease for one term; it is kept by nobody. Raises TryAgain, ShardUnavailable, BadRequest, BadTime.

        Return it with the term that was granted. ``session``: a session lease that was taken by hand, with its holder:
        then that one's expiry is the lease's. A shard that does not answer is asked again while there is time, since
        another node may take it over. Then this waits for earlier holders who may still believe that they have the
        domain; whatever ends that wait, TryAgain with code ``warming`` among it, gives the lease back.
        """
        self._check_served(domain)
        time, name = self._cluster.time, self._name()
        until = time.boot_ns() + wait_ns
        session_id, holder = session or (None, self._holder(purpose))
        age = wire.Age(first_try_ns=time.now().midpoint, request_id=name)
        same = {"request_id": name, "domain": domain, "mode": mode, "phase": Phase.HELD, "holder": holder, "age": age}
        while True:
            asked_at, asked_boot_ns = time.now(), time.boot_ns()
            left = max(0, until - asked_boot_ns)
            wait = min(left, self._policy.attempt_timeout_ns)
            try:
                reply = self._termed(
                    wire.Acquire,
                    term_ns,
                    domain,
                    wait,
                    **same,
                    session_id=session_id,
                    wait_ns=wait,
                    keep_ns=wait if wait < left else 0,
                )
            except ShardUnavailable:
                if time.boot_ns() >= until:
                    raise
                time.sleep(ASK_AGAIN_NS)  # its node may come back, or another take the shard over
                continue
            if isinstance(reply, wire.Granted):
                witness = self._outlive_earlier_holders(_stated(reply, Witness), term_ns, until)
                return witness, self.granted_ns(term_ns, asked_at, witness.expiry_ns)
            if not isinstance(reply, wire.Denied):
                raise _no_answer(reply)
            if time.boot_ns() >= until:
                raise TryAgain("busy", denial_text(reply), hint="allow more time: --wait")
            if time.boot_ns() < asked_boot_ns + wait:
                time.sleep(ASK_AGAIN_NS)  # it did not wait: its queue is full

    def _outlive_earlier_holders(self, witness: Witness, term_ns: Span, until_boot_ns: int) -> Witness:
        """Wait until no earlier holder can believe any more that it has the domain, and keep the lease meanwhile."""
        time, domain, target = self._cluster.time, witness.domain, witness.settle_to_ns
        try:
            while not (now := time.now()).surely_past(target):
                name = witness.correlation_id
                view = next((each for each in self.leases(domain) if each.correlation_id == name), None)
                kept = None if view is None else self.renew(view, term_ns)
                if kept is None:
                    what = f"the lease on {domain!r} was ended meanwhile"
                    raise TryAgain("outrun", what, hint="try again")  # noqa: TRY301 - given back is over too
                witness = replace(witness, expiry_ns=kept.expiry_ns)
                check_in_time(time, domain, target, until_boot_ns)
                time.sleep(min(ASK_AGAIN_NS, max(MS, target - now.earliest)))
        except BaseException:  # an interruption among them
            with contextlib.suppress(TenureError):  # then it ends with its term
                self._asked(wire.Relinquish(self._name(), domain, witness.correlation_id), domain)
            raise
        return witness

    def renew(self, view: LeaseView, term_ns: Span) -> Witness | SessionWitness | None:
        """Move the expiry of a lease that was taken by hand; None: it is over. Raises as ``acquire``.

        Of one under a session lease that of the session lease, and so of all under it.
        """
        _refuse_kept(view)
        domain = view.domain
        if view.session_id is not None:
            reply = self._termed(wire.RenewSession, term_ns, domain, session_id=view.session_id)
            return None if isinstance(reply, wire.Over) else _stated(reply, SessionWitness)
        reply = self._termed(wire.Renew, term_ns, domain, domain=domain, correlation_id=view.correlation_id)
        return None if isinstance(reply, wire.Over) else _stated(reply, Witness)

    def relinquish(self, view: LeaseView, *, whole_session: bool = False) -> LeaseOutcome:
        """Give back a lease that was taken by hand; return how it ended. Raises as ``acquire``.

        ``whole_session``: the session lease that it is under, with every lease under that.
        """
        _refuse_kept(view)
        if whole_session:
            assert view.session_id is not None
            return self._over(wire.DropSession(self._name(), view.session_id), view).outcome
        return self._over(wire.Relinquish(self._name(), view.domain, view.correlation_id), view).outcome

    def revoke(self, view: LeaseView, reason: str) -> tuple[LeaseOutcome, Ending | None]:
        """End any lease, for a reason that the ledger keeps; return how it ended. Raises as ``acquire``.

        While its domain moves its half from the shard that comes is ended first: by it the lease would live on. Where
        that does not answer the other is ended all the same, and a warning says so.
        """
        if not check_purpose(reason).strip():
            raise BadRequest("no-reason", "a revocation without a reason", hint="say why: it stays in the ledger")
        by = self._holder(reason, os.getpid())
        for shard in self._cluster.map.shards_of(view.domain)[1:]:
            try:
                for half in self._cluster.routes.inspect(shard, view.domain)[1]:
                    if half.holder == view.holder:
                        ending = wire.Revoke(self._name(), half.domain, half.correlation_id, by)
                        self._asked(ending, half.domain, shard=shard)
            except ShardUnavailable as problem:
                what = f"{view.domain!r} moves to shard {shard_text(shard)}, by which its holder may go on"
                _log.warning(
                    "half-not-revoked code=%s reason=%s: %s; revoke it again", problem.code, what, problem.message
                )
        over = self._over(wire.Revoke(self._name(), view.domain, view.correlation_id, by), view)
        return over.outcome, over.ending

    def _check_served(self, domain: str) -> None:
        """Refuse where this command itself would run the shard, and end with itself what it took. As ``leases``."""
        routes = self._cluster.routes
        if self._cluster.map.shards_of(check_domain(domain))[0] in routes.own_shards():
            self.leases(domain)

    def _holder(self, purpose: str, process: int = NO_PROCESS) -> Holder:
        return Holder(
            node=self._cluster.settings.node,
            process=process,
            boot=boot_id(),
            incarnation=self._random.randbytes(8),
            purpose=check_purpose(purpose),
        )

    def _name(self) -> bytes:
        return self._random.randbytes(16)

    def _termed(
        self,
        form: type[wire.Acquire | wire.Renew | wire.BeginSession | wire.RenewSession],
        term_ns: Span,
        domain: str,
        waits_ns: Span = 0,
        /,
        **more: Any,  # noqa: ANN401 - the request's own
    ) -> Reply:
        """Ask for what is granted or kept for a term: by the newest map. While the domain moves nothing is."""
        if len(self._cluster.map.shards_of(domain)) > 1:
            raise ShardUnavailable(
                "moving",
                f"{domain!r} moves to another shard, and is held from two: a lease by hand is of one",
                hint="try again when tenure shards ls shows no move; a session keeps its leases meanwhile",
            )
        term = min(term_ns, self._policy.lease_term_max_ns)
        until = self._cluster.time.now().latest + waits_ns + term
        own = {"request_id": self._name(), "map_number": self._cluster.map.number, "expiry_ns_max": until}
        return self._asked(form(**{**own, "term_ns": term, **more}), domain, waits_ns)

    def _over(self, request: wire.Relinquish | wire.DropSession | wire.Revoke, view: LeaseView) -> wire.Over:
        """End something, and return how it ended."""
        reply = self._asked(request, view.domain)
        if not isinstance(reply, wire.Over):
            raise _no_answer(reply)
        return reply

    def _asked(self, request: Request, domain: str, waits_ns: Span = 0, shard: int | None = None) -> Reply:
        """Ask a domain's shard up to three times under the same id. Raises ShardUnavailable, BadRequest if refused."""
        shard = self._cluster.map.shards_of(domain)[0] if shard is None else shard
        transport = self._cluster.routes.transport(shard)
        for attempt in range(ATTEMPTS):
            try:
                (reply,) = transport.call([request], self._policy.attempt_timeout_ns + waits_ns)
                break
            except ShardUnavailable as problem:
                if attempt == ATTEMPTS - 1:
                    raise ShardUnavailable(
                        problem.code,
                        f"shard {shard_text(shard)} does not answer: {problem.message}",
                        hint="tenure shards says who should run it; another node takes over what is asked for",
                    ) from None
        if isinstance(reply, wire.Refused):
            raise BadRequest(reply.code, reply.message, hint=reply.hint)
        if isinstance(reply, wire.Unavailable):
            raise ShardUnavailable(reply.code, reply.message, hint="try again")
        return reply


def _refuse_kept(view: LeaseView) -> None:
    if view.holder.process != NO_PROCESS:
        raise BadRequest(
            "kept-by-process",
            f"the lease {view.correlation_id.hex()} on {view.domain!r} is kept by process {view.holder.process} "
            f"at {view.holder.node}: only that knows what was written under it",
            hint="end that process, or: tenure lease revoke",
        )


def _stated[W: (Witness, SessionWitness)](reply: Reply, form: type[W]) -> W:
    """Return what a shard signed."""
    if not isinstance(reply, wire.Granted | wire.SessionGranted):
        raise _no_answer(reply)
    witness = decode(SignedWitness, reply.signed, "the shard's witness").statement("the shard's witness")
    if not isinstance(witness, form):
        raise _no_answer(witness)
    return witness


def _no_answer(said: Reply | Witness | SessionWitness) -> TryAgain:
    """Return what to raise on a reply that does not answer: of what was asked for, perhaps that it has ended since."""
    if isinstance(said, wire.Over):
        return TryAgain("outrun", "what was asked for was granted, and ended before the answer came", hint="try again")
    why = f"the shard answered with a {type(said).__name__}"
    return ShardUnavailable("answer-damaged", why, hint="tenure shards says which release its node runs")
