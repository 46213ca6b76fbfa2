"""The holder's side: ask one shard for leases, and judge what it says (docs/protocol/lease.md, "The holder").

Every request is asked up to three times under the same id when no answer comes. Results are values, one for each thing
asked for, in order; only BadTime, and BadRequest for a call over its limits, are raised.

A witness is believed unless it breaks what the holder knows itself (``ReplyVerifier``).

A holder waits for a lease in calls that the shard holds back, one after the other, until its time is up
(``AcquireDeadline``). One call waits no longer than an attempt may take. Then it is made again under the same request
id, which has kept its place meanwhile: so a shard that has died, or an answer that was lost, is noticed soon. A shard
without anybody to hold an answer back for (a call inside one process) answers at once; then a pause is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from timeagent.errors import Damaged, ShardUnavailable
from timeagent.units import MS, rfc3339, span_text

from ..formats.hints import Hints
from ..formats.lease import Ending, Holder, LeaseOutcome, Mode, Phase
from ..formats.witness import SignedWitness, Witness
from . import wire
from .reply_verifier import ReplyVerifier, opened, opened_alone
from .wire import REQUESTS_MAX, Age, Refused

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Sequence

    from timeagent.clock import NodeTime
    from timeagent.interval import TimeInterval
    from timeagent.signedtime import SignedTime
    from timeagent.units import Instant, Span

    from ..formats.policy import PolicyNumbers
    from ..formats.sessionlease import SessionWitness
    from ..formats.witness import Revoked
    from .reply_verifier import Opened
    from .transport import Transport


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


ATTEMPTS: Final = 3
_HINT_BYTES_MAX: Final = 128 * 1024
"""How much of one call may be hints: what else a thousand requests may hold is below the limit by more."""
_NO_HINTS: Final[Mapping[bytes, Hints]] = MappingProxyType({})
_NO_CAPS: Final[Mapping[bytes, Instant]] = MappingProxyType({})
_NOTHING_ABOVE: Final[Mapping[str, wire.Above]] = MappingProxyType({})
FIRST_MAP: Final = 1


class Named(Protocol):
    """A lease that this holder has: a Witness is one."""

    @property
    def domain(self) -> str:
        """Its domain."""
        ...

    @property
    def correlation_id(self) -> bytes:
        """Its grant."""
        ...


class Ask(msgspec.Struct, frozen=True, gc=False):
    """One domain asked for: keep it to ask again for the same (a retry keeps its id, and a set its age)."""

    domain: str
    request_id: bytes
    age: Age
    time: SignedTime
    """This node's signed time before it was first sent."""
    mode: Mode = Mode.X


class Giving(msgspec.Struct, frozen=True, gc=False):
    """A lease to give back, with the holder's word about what it wrote. Nothing written: leave the rest out."""

    domain: str
    correlation_id: bytes
    watermark_ns: Instant | None = None
    watermark_time: bytes | None = None
    messages: int = 0
    chain_head: bytes | None = None
    hints: Hints | None = None
    """With what renewals said, about all that was written; None: nothing is known about it."""
    abandoned: bool = False
    """Nothing can be said about what was written: it ends as if it were broken."""


class LeaseGranted(msgspec.Struct, frozen=True, gc=False):
    """The lease is granted, upgraded or renewed."""

    signed: SignedWitness
    witness: Witness
    hints: Hints | None = None
    """About what others wrote before, where that was asked for; None: nothing is known."""


class LeaseDenied(msgspec.Struct, frozen=True, gc=False):
    """Another has the domain. ``earliest_ns``: when it can be had, unless it is relinquished before."""

    domain: str
    reason: wire.Reason
    holder: Holder
    since_ns: Instant
    until_ns: Instant
    earliest_ns: Instant
    place: int
    """The place in the queue: 1 is next."""


class LeaseOver(msgspec.Struct, frozen=True, gc=False):
    """The lease is over. ``unknown``: the shard knows nothing of it (any more)."""

    domain: str
    outcome: LeaseOutcome
    ending: Ending | None
    revoked: Revoked | None = None
    """Who revoked it and why, as its shard says, unsigned."""


class LeaseUnavailable(msgspec.Struct, frozen=True, gc=False):
    """Not now; ``hint``: the way out. Code ``no-answer``: perhaps done; ask again by ``ask``, or name the lease."""

    domain: str
    code: str
    message: str
    ask: Ask | None = None
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Suspect:
    """The shard's witness contradicts what this holder knows: it is refused. A clock is out of its bounds."""

    reason: str
    signed: SignedWitness
    witness: Witness


type Result = LeaseGranted | LeaseDenied | LeaseOver | LeaseUnavailable | Suspect | Refused


def may_ask_again(result: Result) -> bool:
    """Whether the same request has to be asked again: it is denied, or it may have been granted without our knowing.

    What was granted, was given back as useless, or has ended, is over: its request gets nothing any more.
    """
    return isinstance(result, LeaseDenied) or (isinstance(result, LeaseUnavailable) and result.code != "late")


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

    # -- questions -----------------------------------------------------------------------------------------------------

    def ask(self, domain: str, age: Age | None = None, mode: Mode = Mode.X) -> Ask:
        """Return a new request for a domain. ``age``: that of the set's first try, where this is a later one."""
        now, token = self._time.now_and_token()
        request_id = self._randomness.randbytes(16)
        age = age or Age(first_try_ns=now.midpoint, request_id=request_id)
        return Ask(domain, request_id, age, token, mode)

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
        sent: tuple[TimeInterval, SignedTime] | None = None,
        map_number: int = FIRST_MAP,
        above: Mapping[str, wire.Above] = _NOTHING_ABOVE,
    ) -> list[Result]:
        """Ask once for each domain, all of one shard. ``term_ns``: at most; the policy's longest where left out.

        ``wait_ns``: let the shard hold the answer back so long, unless it can grant before; ``keep_ns``: have it keep
        the places in its queues so long, for the same asks to be made again. ``mode``: of those given as a text only.
        ``session_id``: of the session lease whose expiry is theirs. ``sent``: what the clock says, if it was just read.
        ``map_number``: the map that the holder goes by. ``above``: of a shard that comes, what the other halves say.
        What is granted too late to be of use, or is suspect, is given back at once. Raises BadTime.
        """
        now, token = sent or self._time.now_and_token()
        asked = [self.ask(each, None, mode) if isinstance(each, str) else each for each in asks]
        term = self._policy.lease_term_max_ns if term_ns is None else term_ns
        until = now.latest + wait_ns + term
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
                expiry_ns_max=until,
                wait_ns=wait_ns,
                keep_ns=keep_ns,
                hints_wanted=hints_wanted,
                session_id=session_id,
                above=above.get(each.domain),
            )
            for each in asked
        ]
        found, came = self._exchange(requests, [each.domain for each in asked], token, asked, wait_ns)
        # Judged once: what is given back must not be handed over by a clock that has changed its mind since.
        results = [self._unless_late(result, ask, came) for result, ask in zip(found, asked, strict=True)]
        useless = [
            before.witness
            for before, after in zip(found, results, strict=True)
            if isinstance(before, LeaseGranted | Suspect) and not isinstance(after, LeaseGranted)
        ]
        if useless:
            self.relinquish([Giving(each.domain, each.correlation_id) for each in useless])
        return results

    def renew(
        self,
        leases: Sequence[Named],
        *,
        term_ns: Span | None = None,
        hints: Mapping[bytes, Hints] = _NO_HINTS,
        caps: Mapping[bytes, Instant] = _NO_CAPS,
        give_up_ns: Instant | None = None,
        map_number: int = FIRST_MAP,
    ) -> list[Result]:
        """Move the expiry of leases of one shard. Unavailable: the lease is what it was. Raises BadTime.

        ``hints``: about all that was written so far, by correlation id, of leases about which there is something new.
        ``caps``: by correlation id, the instant beyond which a lease is not wanted, whenever its shard reads this.
        ``give_up_ns``: no answer is waited for beyond this instant. ``map_number``: as for ``acquire``.
        """
        term = self._policy.lease_term_max_ns if term_ns is None else term_ns
        sent, token = self._time.now_and_token()
        until = sent.latest + term
        requests: list[wire.Request] = [
            wire.Renew(
                request_id=self._randomness.randbytes(16),
                map_number=map_number,
                domain=each.domain,
                correlation_id=each.correlation_id,
                term_ns=term,
                expiry_ns_max=min(until, caps.get(each.correlation_id, until)),
                hints=hints.get(each.correlation_id),
            )
            for each in leases
        ]
        found, now = self._exchange(requests, [each.domain for each in leases], token, give_up_ns=give_up_ns)
        return [self._unless_late(each, None, now) for each in found]

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
        caps: Mapping[bytes, Instant] = _NO_CAPS,
        map_number: int = FIRST_MAP,
        above: Mapping[str, wire.Above] = _NOTHING_ABOVE,
    ) -> list[Result]:
        """Make tentative leases of one shard held; floor and settle_to are stated anew. Raises BadTime.

        ``mode``: make held ones stronger. ``request_id``: that of one lease's request, when it is asked again.
        ``caps``: as for ``renew``; ``map_number``, ``above``: as for ``acquire``.
        """
        assert request_id is None or len(leases) == 1
        term = self._policy.lease_term_max_ns if term_ns is None else term_ns
        sent, token = self._time.now_and_token()
        until = sent.latest + wait_ns + term
        requests: list[wire.Request] = [
            wire.Upgrade(
                request_id=request_id or self._randomness.randbytes(16),
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
            for each in leases
        ]
        found, now = self._exchange(requests, [each.domain for each in leases], token, wait_ns=wait_ns)
        return [self._unless_late(each, None, now) for each in found]

    def relinquish(self, givings: Sequence[Giving], give_up_ns: Instant | None = None) -> list[Result]:
        """Give leases of one shard back: they are over for the holder before this is called. Raises BadTime.

        Ended says what the shard made of it: ``expired`` if it had broken the lease before.
        ``give_up_ns``: as for ``renew``.
        """
        requests: list[wire.Request] = [
            wire.Relinquish(
                request_id=self._randomness.randbytes(16),
                domain=each.domain,
                correlation_id=each.correlation_id,
                watermark_ns=each.watermark_ns,
                watermark_time=each.watermark_time,
                messages=each.messages,
                chain_head=each.chain_head,
                hints=each.hints,
                abandoned=each.abandoned,
            )
            for each in givings
        ]
        domains = [each.domain for each in givings]
        return self._exchange(requests, domains, self._time.token(), give_up_ns=give_up_ns, patient=True)[0]

    # -- answers -------------------------------------------------------------------------------------------------------

    def _exchange(
        self,
        requests: list[wire.Request],
        domains: list[str],
        before: SignedTime,
        asks: Sequence[Ask | None] | None = None,
        wait_ns: Span = 0,
        give_up_ns: Instant | None = None,
        *,
        patient: bool = False,
    ) -> tuple[list[Result], TimeInterval | None]:
        """Ask in calls of bounded size, and judge each reply. One call failing leaves the others what they are.

        ``before``: this node's signed time by which witnesses are judged that belong to no ask. Returns with the
        results what the clock said when the last witnesses had come; None where none came.
        """
        asks = asks or [None] * len(requests)
        results: list[Result] = []
        now: TimeInterval | None = None
        for start, end in _calls(requests):
            part = requests[start:end]
            replies = self._call(part, wait_ns, give_up_ns, patient=patient)
            if isinstance(replies, LeaseUnavailable):
                unknown = zip(domains[start:end], asks[start:end], strict=True)
                results += [msgspec.structs.replace(replies, domain=domain, ask=ask) for domain, ask in unknown]
                continue
            verifier = self._verifier() if any(isinstance(reply, wire.Granted) for reply in replies) else None
            now = now if verifier is None else verifier.now
            parts = zip(replies, opened(replies), domains[start:end], asks[start:end], strict=True)
            for reply, both, domain, ask in parts:
                asked = before if ask is None else ask.time
                if isinstance(reply, wire.Granted):
                    assert verifier is not None
                    results.append(self._judge_witness(reply, both, domain, ask, asked, verifier))
                else:
                    results.append(self._judge(reply, domain, ask))
        return results, now

    def _verifier(self) -> ReplyVerifier:
        """Read the clock once for all witnesses of an answer that has come."""
        return ReplyVerifier(*self._time.now_and_token(), self._policy)

    def _call(
        self,
        requests: list[wire.Request],
        wait_ns: Span = 0,
        give_up_ns: Instant | None = None,
        *,
        patient: bool = False,
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

    def _judge(self, reply: wire.Reply, domain: str, ask: Ask | None) -> Result:
        match reply:
            case wire.Denied():
                return LeaseDenied(
                    domain, reply.reason, reply.holder, reply.since_ns, reply.until_ns, reply.earliest_ns, reply.place
                )
            case wire.Over():
                return LeaseOver(domain, reply.outcome, reply.ending, reply.revoked)
            case Refused():
                return reply
            case wire.Unavailable():
                return LeaseUnavailable(domain, reply.code, reply.message, ask)
            case _:
                what = type(reply).__name__
                return LeaseUnavailable(domain, "answer-damaged", f"the shard answered with a {what}", ask)

    def _judge_witness(
        self,
        reply: wire.Granted,
        both: Opened | None,
        domain: str,
        ask: Ask | None,
        before: SignedTime,
        verifier: ReplyVerifier,
    ) -> Result:
        """Believe a witness, or say why not. ``before``: this node's signed time before the request was sent."""
        where = f"the shard's witness on {domain!r}"
        try:
            signed, witness = both or opened_alone(reply.signed, where)
            head_time = verifier.head_time(signed, where)
        except Damaged as problem:
            return LeaseUnavailable(domain, "answer-damaged", problem.message, ask)
        if witness.domain != domain or witness.holder != self._holder:
            whose = witness.holder
            reason: str | None = f"it is about {witness.domain!r} and holder {whose.node}/{whose.process}"
        else:
            reason = verifier.suspicion(witness.expiry_ns, head_time, before)
        return LeaseGranted(signed, witness, reply.hints) if reason is None else Suspect(reason, signed, witness)

    def _too_late(self, witness: Witness | SessionWitness, now: TimeInterval) -> bool:
        return not now.surely_before(witness.expiry_ns - self._policy.holder_margin_ns)

    def _unless_late(self, result: Result, ask: Ask | None, now: TimeInterval | None) -> Result:
        if isinstance(result, LeaseGranted) and now is not None and self._too_late(result.witness, now):
            why = (
                f"the answer leaves less than {span_text(self._policy.holder_margin_ns)} until the expiry "
                f"{rfc3339(result.witness.expiry_ns)}"
            )
            return LeaseUnavailable(result.witness.domain, "late", why, ask)
        return result


def _calls(requests: Sequence[wire.Request]) -> Iterator[tuple[int, int]]:
    """Yield where each call of bounded size begins and ends."""
    start = size = 0
    for number, request in enumerate(requests):
        hints = request.hints if isinstance(request, wire.Renew | wire.Relinquish) else None
        bytes_more = 0 if hints is None else hints.bytes
        if number - start == REQUESTS_MAX or size + bytes_more > _HINT_BYTES_MAX:
            yield start, number
            start, size = number, 0
        size += bytes_more
    if start < len(requests):
        yield start, len(requests)
