"""The holder's side: ask one shard for leases, and judge what it says (docs/protocol/lease.md, "The holder").

Every request is asked up to three times under the same id when no answer comes. Results are values, one for each thing
asked for, in order; only BadTime, and BadRequest for a call over its limits, are raised.
A witness is believed unless it breaks what the holder knows itself: whose it is, and what the clocks say. Of witnesses
in a row that share a head, and were asked for together, it is judged once what the clocks say of each other.

A holder waits in calls that the shard holds back, one after the other, until its time is up (``AcquireDeadline``). One
waits no longer than an attempt may take, and the next has the same request id, which has kept its place: so a dead
shard, or an answer that was lost, is noticed soon. Inside one process nothing is held back, and a pause is made.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from timeagent.canonical import decode
from timeagent.clock import NodeTime
from timeagent.errors import BadTime, Damaged, ShardUnavailable
from timeagent.signedtime import SignedTime, r2_holds
from timeagent.units import INSTANT_MAX, MS, Instant, Span, TimeInterval, rfc3339, span_text

from ..formats.hints import NOTHING_WRITTEN, Hints
from ..formats.lease import Holder, Mode, Phase
from ..formats.policy import PolicyNumbers
from ..formats.witness import Revoked, SessionWitness, SignedWitness, Witness
from . import wire
from .wire import NO_REQUEST, REQUESTS_MAX, Age, Denied, Over, Refused, Relinquish

if TYPE_CHECKING:
    from .transport import Transport  # TLS, and all that it loads, is for those who connect

PAUSE_NS_MIN: Final[Span] = 5 * MS
PAUSE_NS_MAX: Final[Span] = 250 * MS
"""Who is not waited for asks again after this at the latest: a lease may be relinquished before its expiry."""


class AcquireDeadline:
    """The time that is left for one wait. Reads the boot clock only to count it down."""

    def __init__(
        self, time: NodeTime, policy: PolicyNumbers, timeout_ns: Span, given_up: Callable[[], bool] = lambda: False
    ) -> None:
        """Begin to wait. Once ``given_up`` is true, no time is left."""
        self._time = time
        self._given_up = given_up
        self._slice_ns = policy.attempt_timeout_ns
        self._until_ns = time.boot_ns() + timeout_ns
        self._called_ns = 0
        self._waited_ns = 0
        self._kept_ns = 0
        self._pause_ns = PAUSE_NS_MIN

    def left_ns(self) -> Span:
        return 0 if self._given_up() else max(0, self._until_ns - self._time.boot_ns())

    def over(self) -> bool:
        return self.left_ns() == 0

    def next_call(self) -> tuple[Span, Span]:
        """Return how long the next call may wait, and how long its place is to be kept afterwards: 0 for the last."""
        left = self.left_ns()
        self._called_ns, self._waited_ns = self._time.boot_ns(), min(left, self._slice_ns)
        self._kept_ns = self._slice_ns if self._waited_ns < left else 0
        return self._waited_ns, self._kept_ns

    @property
    def keeps_a_place(self) -> bool:
        """Whether the last call asked for its place to be kept: one more, without waiting, gives it up."""
        return self._kept_ns > 0

    def pause(self, chance: random.Random, earliest_ns: Instant | None = None) -> None:
        """Sleep if the last call was answered before its time, longer each time. ``earliest_ns``: no longer than that.

        A little longer by chance, so that those who wait do not come all at once.
        """
        if self._time.boot_ns() - self._called_ns >= self._waited_ns // 2 > 0:
            self._pause_ns = PAUSE_NS_MIN
            return
        pause = self._pause_ns
        if earliest_ns is not None:
            pause = min(max(earliest_ns - self._time.now().midpoint, PAUSE_NS_MIN), pause)
        self._pause_ns = min(2 * self._pause_ns, PAUSE_NS_MAX)
        self._time.sleep(min(pause + chance.randrange(pause // 4 + 1), self.left_ns()))


class ClockLook(msgspec.Struct, frozen=True, gc=False):
    """One look at this holder's clock."""

    boot_ns: int
    """CLOCK_BOOTTIME before it: who counts on from here takes no instant for an earlier one."""
    now: TimeInterval
    token: SignedTime

    @classmethod
    def of(cls, time: NodeTime) -> ClockLook:
        """Look. Raises BadTime."""
        return cls(time.boot_ns(), *time.now_and_token())


ATTEMPTS: Final = 3
_HINT_BYTES_MAX: Final = 128 * 1024
"""How much of one call may be hints: what else a thousand requests may hold is below the limit by more."""
_NONE: Final[Mapping[Any, Any]] = MappingProxyType({})
FIRST_MAP: Final = 1


class Named(Protocol):
    """A lease that this holder has: a Witness is one."""

    @property
    def domain(self) -> str:
        """Its domain."""

    @property
    def correlation_id(self) -> bytes:
        """Its grant."""


class Ask(msgspec.Struct, frozen=True, gc=False):
    """One domain asked for: keep it to ask again for the same (a retry keeps its id, and a set its age)."""

    domain: str
    request_id: bytes
    age: Age
    time: SignedTime
    """This node's signed time before it was first sent."""
    mode: Mode = Mode.X


type About = Ask | Named


class LeaseGranted(msgspec.Struct, frozen=True, gc=False):
    """The lease is granted, upgraded or renewed."""

    signed: SignedWitness
    witness: Witness
    came: ClockLook
    """What the clock said when the answer had come."""
    hints: Hints | None = None
    """About what others wrote before, where that was asked for; None: nothing is known."""


class LeaseUnavailable(msgspec.Struct, frozen=True, gc=False):
    """Not now; ``hint``: the way out. Code ``no-answer``: perhaps done; ask the same again, or name the lease."""

    domain: str
    code: str
    message: str
    hint: str = ""


class Suspect(msgspec.Struct, frozen=True, gc=False):
    """The shard's witness contradicts what this holder knows: it is refused. A clock is out of its bounds."""

    reason: str
    domain: str = ""
    """Empty, as is what follows: it is that of a session lease."""
    correlation_id: bytes = b""
    """Empty: it is another holder's, who may write under it: not to be given back."""


class Stands(msgspec.Struct, frozen=True, gc=False):
    """A session lease is granted or renewed."""

    signed: SignedWitness
    witness: SessionWitness
    leases: int
    """How many leases are out under it, as its shard counts."""
    revoked: tuple[Revoked, ...] = ()
    """Of the leases that its witness names as ended, who revoked them and why, as the shard says, unsigned."""


type Result = LeaseGranted | Denied | Over | LeaseUnavailable | Suspect | Refused
type SessionResult = Stands | Result


def may_ask_again(result: Result) -> bool:
    """Whether the same request has to be asked again: it is denied, or it may have been granted without our knowing.

    What was granted, was given back as useless, or has ended, is over: its request gets nothing any more.
    """
    return isinstance(result, Denied) or (isinstance(result, LeaseUnavailable) and result.code != "late")


class LeaseClient:
    """One holder's dealings with one shard. Blocks for its transport, at most three time-outs a call."""

    def __init__(
        self, transport: Transport, time: NodeTime, policy: PolicyNumbers, holder: Holder, randomness: random.Random
    ) -> None:
        self._transport = transport
        self._time = time
        self._policy = policy
        self._holder = holder
        self._randomness = randomness

    # -- leases --------------------------------------------------------------------------------------------------------

    def ask(self, domain: str, age: Age | None = None, mode: Mode = Mode.X, sent: ClockLook | None = None) -> Ask:
        """Return a new request for a domain. ``age``: that of the set's first try, where this is a later one."""
        sent = sent or ClockLook.of(self._time)
        return _ask(domain, self._randomness.randbytes(16), age, mode, sent)

    def _request_ids(self, count: int) -> list[bytes]:
        """Return new ones: the same that one after the other would be."""
        chance = self._randomness.randbytes(16 * count)
        return [chance[at : at + 16] for at in range(0, len(chance), 16)]

    def acquire(  # noqa: PLR0913 - what can be said about a request, by name
        self,
        asks: Sequence[str | Ask],
        *,
        phase: Phase = Phase.HELD,
        mode: Mode = Mode.X,
        term_ns: Span | None = None,
        wait_ns: Span = 0,
        keep_ns: Span = 0,
        hints_wanted: bool = False,
        session_id: bytes | None = None,
        sent: ClockLook | None = None,
        map_number: int = FIRST_MAP,
        above: Mapping[str, wire.Above] = _NONE,
        caps: Mapping[str, Instant] = _NONE,
        give_up_ns: Instant | None = None,
    ) -> list[Result]:
        """Ask once for each domain, all of one shard. ``term_ns``: at most; the policy's longest where left out.

        ``wait_ns``: let the shard hold the answer back so long, unless it can grant before; ``keep_ns``: have it keep
        the places in its queues so long, for the same asks to be made again. ``mode``: of those given as a text only.
        ``session_id``: of the session lease whose expiry is theirs. ``sent``: what the clock says, if it was just read.
        ``map_number``: the map that the holder goes by. ``above``: of a shard that comes, what the other halves say.
        ``caps``: by domain, until when. ``give_up_ns``: as for ``renew``. Late or suspect ones go back. Raises BadTime.
        """
        # Before it is sent: without bounded time nothing is asked for, and what a shard signs then is not from before.
        sent = sent or ClockLook.of(self._time)
        asked = [
            _ask(each, name, None, mode, sent) if isinstance(each, str) else each
            for each, name in zip(asks, self._request_ids(len(asks)), strict=True)
        ]
        term = self._policy.lease_term_max_ns if term_ns is None else term_ns
        until = sent.now.latest + wait_ns + term
        requests: list[wire.Request] = [
            wire.Acquire(
                request_id=each.request_id,
                map_number=map_number,
                domain=each.domain,
                mode=each.mode,
                phase=phase,
                holder=self._holder,
                age=each.age,
                term_ns=term,
                expiry_ns_max=min(until, caps.get(each.domain, until)) if caps else until,
                wait_ns=wait_ns,
                keep_ns=keep_ns,
                hints_wanted=hints_wanted,
                session_id=session_id,
                above=above.get(each.domain),
            )
            for each in asked
        ]
        return self._exchange(requests, asked, sent.token, wait_ns, give_up_ns)

    def renew(
        self,
        leases: Sequence[Named],
        *,
        term_ns: Span | None = None,
        hints: Mapping[bytes, Hints] = _NONE,
        caps: Mapping[bytes, Instant] = _NONE,
        give_up_ns: Instant | None = None,
        map_number: int = FIRST_MAP,
    ) -> list[Result]:
        """Move the expiry of leases of one shard. Unavailable: the lease is what it was. Raises BadTime.

        ``hints``: about all that was written so far, by correlation id, of leases about which there is something new.
        ``caps``: by correlation id, the instant beyond which a lease is not wanted, whenever its shard reads this.
        ``give_up_ns``: no answer is waited for beyond this instant. ``map_number``: as for ``acquire``.
        """
        term = self._policy.lease_term_max_ns if term_ns is None else term_ns
        sent = ClockLook.of(self._time)
        until = sent.now.latest + term
        requests: list[wire.Request] = [
            wire.Renew(
                request_id=request_id,
                map_number=map_number,
                domain=each.domain,
                correlation_id=each.correlation_id,
                term_ns=term,
                expiry_ns_max=min(until, caps.get(each.correlation_id, until)),
                hints=hints.get(each.correlation_id),
            )
            for each, request_id in zip(leases, self._request_ids(len(leases)), strict=True)
        ]
        return self._exchange(requests, leases, sent.token, give_up_ns=give_up_ns)

    def upgrade(  # noqa: PLR0913 - as above
        self,
        leases: Sequence[Named],
        *,
        mode: Mode | None = None,
        request_id: bytes | None = None,
        term_ns: Span | None = None,
        wait_ns: Span = 0,
        keep_ns: Span = 0,
        hints_wanted: bool = False,
        caps: Mapping[bytes, Instant] = _NONE,
        map_number: int = FIRST_MAP,
        above: Mapping[str, wire.Above] = _NONE,
    ) -> list[Result]:
        """Make tentative leases of one shard held; floor and settle_to are stated anew. Raises BadTime.

        ``mode``: make held ones stronger. ``request_id``: that of one lease's request, when it is asked again.
        ``caps``: as for ``renew``; ``map_number``, ``above``: as for ``acquire``.
        """
        assert request_id is None or len(leases) == 1
        term = self._policy.lease_term_max_ns if term_ns is None else term_ns
        sent = ClockLook.of(self._time)
        until = sent.now.latest + wait_ns + term
        request_ids = self._request_ids(len(leases)) if request_id is None else [request_id]
        requests: list[wire.Request] = [
            wire.Upgrade(
                request_id=name,
                map_number=map_number,
                domain=each.domain,
                correlation_id=each.correlation_id,
                term_ns=term,
                expiry_ns_max=min(until, caps.get(each.correlation_id, until)),
                mode=mode,
                wait_ns=wait_ns,
                keep_ns=keep_ns,
                hints_wanted=hints_wanted,
                above=above.get(each.domain),
            )
            for each, name in zip(leases, request_ids, strict=True)
        ]
        return self._exchange(requests, leases, sent.token, wait_ns)

    def relinquish(self, givings: Sequence[Relinquish], give_up_ns: Instant | None = None) -> list[Result]:
        """Give leases of one shard back, by requests without an id: they are over for the holder before this is called.

        Over says what the shard made of it: ``expired`` if it had broken the lease before.
        ``give_up_ns``: as for ``renew``; only then the clock is read, and BadTime raised.
        """
        requests: list[wire.Request] = [
            replace(each, request_id=name) for each, name in zip(givings, self._request_ids(len(givings)), strict=True)
        ]
        return self._exchange(requests, givings, None, give_up_ns=give_up_ns, patient=True)

    # -- session leases ------------------------------------------------------------------------------------------------

    def begin_session(self, term_ns: Span, map_number: int, give_up_ns: Instant | None) -> SessionResult:
        """Ask for a session lease, going by a map. ``give_up_ns``: as for ``renew``. Raises BadTime."""
        sent = ClockLook.of(self._time)
        request = wire.BeginSession(
            request_id=self._randomness.randbytes(16),
            map_number=map_number,
            holder=self._holder,
            term_ns=term_ns,
            expiry_ns_max=sent.now.latest + term_ns,
        )
        return self._about_session(request, sent, give_up_ns)

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
        return self._about_session(request, sent, give_up_ns)

    def drop_session(self, dropping: wire.DropSession, give_up_ns: Instant | None = None) -> SessionResult:
        """Give it back, by a request without an id, with all leases under it: they are over before this is called.

        Raises BadTime.
        """
        request: wire.Request = replace(dropping, request_id=self._randomness.randbytes(16))
        replies = self._call([request], 0, give_up_ns, patient=True)
        return replies if isinstance(replies, LeaseUnavailable) else as_result(replies[0], "")

    def leases_under(self, session_id: bytes) -> Iterator[tuple[wire.LeaseView, ...]]:
        """Yield the leases under a session lease, unsigned, page by page; no more of them once no answer comes."""
        after, more = "", True
        while more:
            question = wire.Inspect(after_domain=after, leases_max=wire.PAGE_LEASES_MAX, session_id=session_id)
            replies = self._call([question], 0)
            if isinstance(replies, LeaseUnavailable) or not isinstance(page := replies[0], wire.LeasePage):
                return
            yield page.leases
            after, more = page.after_domain, page.more and page.after_domain > after  # or it is no page that goes on

    def _about_session(
        self, request: wire.BeginSession | wire.RenewSession, sent: ClockLook, give_up_ns: Instant | None = None
    ) -> SessionResult:
        replies = self._call([request], 0, give_up_ns)
        if isinstance(replies, LeaseUnavailable):
            return replies
        if not isinstance(reply := replies[0], wire.SessionGranted):
            return as_result(reply, "")
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
            or (isinstance(request, wire.RenewSession) and request.session_id != witness.session_id)
        ):
            return Suspect("it is about another session lease, or another holder")
        reason = contradiction(shards, sent.token, came.token) or self._beyond(witness.expiry_ns, came)
        if reason is not None:
            return Suspect(reason)
        if not came.now.surely_before(witness.expiry_ns - self._policy.holder_margin_ns):
            return LeaseUnavailable("", "late", "the answer leaves less than the margin until the expiry")
        return Stands(signed, witness, reply.leases, reply.revoked)

    # -- answers -------------------------------------------------------------------------------------------------------

    def _exchange(
        self,
        requests: list[wire.Request],
        asked: Sequence[About],
        before: SignedTime | None,
        wait_ns: Span = 0,
        give_up_ns: Instant | None = None,
        *,
        patient: bool = False,
    ) -> list[Result]:
        """Ask in calls of bounded size, and judge each reply. One call failing leaves the others what they are.

        ``before``: this node's signed time by which witnesses are judged that belong to no Ask; None: none can come.
        Of what is asked for, what is of no use is given back: it came too late, or is suspect.
        """
        results: list[Result] = []
        came: ClockLook | None = None
        for start, end in _calls(requests):
            replies = self._call(requests[start:end], wait_ns, give_up_ns, patient=patient)
            about = asked[start:end]
            if isinstance(replies, LeaseUnavailable):
                results += [replace(replies, domain=each.domain) for each in about]
            elif before is None or not any(type(reply) is wire.Granted for reply in replies):
                results += [as_result(reply, each.domain) for reply, each in zip(replies, about, strict=True)]
            else:
                # Read again, once for all witnesses of an answer: nothing else says how long it took. The count of
                # the boot clock does not: it stands still with a machine that is paused.
                try:
                    came = ClockLook.of(self._time)
                except BadTime:
                    if type(about[0]) is Ask:  # nobody will ever know of these: all of them are too late
                        never = ClockLook(0, TimeInterval(INSTANT_MAX, INSTANT_MAX), before)
                        self._without_late([*results, *self._judge_all(replies, about, before, never)], never, asked)
                    raise
                results += self._judge_all(replies, about, before, came)
        return results if came is None else self._without_late(results, came, asked)

    def _without_late(self, results: list[Result], came: ClockLook, asked: Sequence[About]) -> list[Result]:
        """Return what can be used. What was asked for and cannot be is given back.

        By the last reading for all, and once: what is given back must not be handed over by a clock that has changed
        its mind since.
        """
        margin, useless = self._policy.holder_margin_ns, []
        for place, each in enumerate(results):
            if type(each) is LeaseGranted and came.now.latest >= (end := each.witness.expiry_ns) - margin:
                why = f"the answer leaves less than {span_text(margin)} until the expiry {rfc3339(end)}"
                results[place] = LeaseUnavailable(each.witness.domain, "late", why)
                useless.append(Relinquish(NO_REQUEST, each.witness.domain, each.witness.correlation_id))
            elif type(each) is Suspect and each.correlation_id:
                useless.append(Relinquish(NO_REQUEST, each.domain, each.correlation_id))
        if useless and type(asked[0]) is Ask:
            self.relinquish(useless)
        return results

    def _call(
        self, requests: list[wire.Request], wait_ns: Span, give_up_ns: Instant | None = None, *, patient: bool = False
    ) -> list[wire.Reply] | LeaseUnavailable:
        """Call up to three times under the same ids; unavailable: why no answer came.

        ``patient``: over as long as a shard takes to be restarted, also where each attempt is refused at once.
        """
        why, hint, tried = "no time was left", "", 0
        while tried < ATTEMPTS:
            if tried:
                pause = self._randomness.randrange(self._policy.attempt_timeout_ns // 4 + 1)
                pause += self._policy.attempt_timeout_ns if patient else 0
                left = pause if give_up_ns is None else max(0, give_up_ns - self._time.now().latest)
                self._time.sleep(min(pause, left))
            timeout = self._policy.attempt_timeout_ns + wait_ns
            if give_up_ns is not None:
                timeout = min(timeout, give_up_ns - self._time.now().latest)
                if timeout <= 0:
                    break
            try:
                return self._transport.call(requests, timeout)
            except ShardUnavailable as problem:
                why, hint = problem.message, "" if problem.code == "no-answer" else problem.hint
            tried += 1
        return LeaseUnavailable("", "no-answer", f"{tried} attempts: {why}", hint=hint)

    def _judge_all(
        self, replies: Sequence[wire.Reply], about: Sequence[About], before: SignedTime, came: ClockLook
    ) -> list[Result]:
        """Believe witnesses, or say why not. ``before``: this node's signed time before the requests were sent."""
        results: list[Result] = []
        head, judged, contradicted = b"", None, None
        for reply, each in zip(replies, about, strict=True):
            if type(reply) is not wire.Granted:
                results.append(as_result(reply, each.domain))
                continue
            where = f"the shard's witness on {each.domain!r}"
            try:
                signed = decode(SignedWitness, reply.signed, where)
                witness = decode(Witness, signed.entry, where)
                asked = each.time if type(each) is Ask else before
                if signed.head != head or asked is not judged:
                    contradicted = contradiction(signed.batch_head(where).signed_time(where), asked, came.token)
                    head, judged = signed.head, asked
            except Damaged as problem:
                results.append(LeaseUnavailable(each.domain, "answer-damaged", problem.message))
                continue
            whose, reason = witness.holder, contradicted or self._beyond(witness.expiry_ns, came)
            if witness.domain != each.domain or whose != self._holder:
                reason = f"it is about {witness.domain!r} and holder {whose.node}/{whose.process}"
            granted = LeaseGranted(signed, witness, came, reply.hints)
            own = witness.correlation_id if whose == self._holder else b""
            results.append(granted if reason is None else Suspect(reason, witness.domain, own))
        return results

    def _beyond(self, expiry_ns: Instant, came: ClockLook) -> str | None:
        """Return why an expiry is to be refused: it is later than any honest shard's clock could make it."""
        longest = came.now.latest + self._policy.granted_ns_max
        return f"its expiry {rfc3339(expiry_ns)} lies beyond {rfc3339(longest)}" if expiry_ns > longest else None


def _ask(domain: str, name: bytes, age: Age | None, mode: Mode, sent: ClockLook) -> Ask:
    return Ask(domain, name, age or Age(first_try_ns=sent.now.midpoint, request_id=name), sent.token, mode)


def as_result(reply: wire.Reply, domain: str) -> Result:
    """Return what is said that is no proof."""
    match reply:
        case Denied() | Over() | Refused():
            return reply
        case wire.Unavailable():
            return LeaseUnavailable(domain, reply.code, reply.message)
        case _:
            return LeaseUnavailable(domain, "answer-damaged", f"the shard answered with a {type(reply).__name__}")


def contradiction(shards: SignedTime, before: SignedTime, after: SignedTime) -> str | None:
    """Return why this holder must refuse what a shard signed with a signed time, or None.

    ``before`` was signed before the request was sent, the witness before ``after`` was looked up: R2 holds between each
    two of the three, or a clock is out of its bounds.
    """
    if not r2_holds(before, shards):
        return (
            f"the shard signed at {rfc3339(shards.interval.latest)} at the latest what was asked for "
            f"at {rfc3339(before.interval.earliest)} at the earliest"
        )
    if not r2_holds(shards, after):
        return (
            f"the shard signed at {rfc3339(shards.interval.earliest)} at the earliest what was here "
            f"at {rfc3339(after.interval.latest)} at the latest"
        )
    return None


def _calls(requests: Sequence[wire.Request]) -> Iterator[tuple[int, int]]:
    """Yield where each call of bounded size begins and ends."""
    start = size = 0
    for number, request in enumerate(requests):
        hints = request.hints if isinstance(request, wire.Renew | Relinquish) else None
        bytes_more = 0 if hints is None or hints is NOTHING_WRITTEN else hints.bytes
        if number - start == REQUESTS_MAX or size + bytes_more > _HINT_BYTES_MAX:
            yield start, number
            start, size = number, 0
        size += bytes_more
    if start < len(requests):
        yield start, len(requests)
