"""``Lease``: the holder's side of one lease: its newest witness, what was written under it, and how it is lost.

A loss is found by whoever looks first: the renewal thread, or a call that uses the lease. It is told after every lock
is let go, once to each listener, in the thread that found it. ``Recall`` says what is done when another asks for the
lease, ``SessionLease`` is the lease that keeps others alive with one renewal.
"""

from __future__ import annotations

import logging
import os
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from threading import RLock
from typing import TYPE_CHECKING, Protocol

from appliance.formats.lease import Holder, LeaseOutcome, Mode, covers
from appliance.formats.policy import PolicyNumbers
from appliance.formats.shardmap import ShardMap
from appliance.formats.witness import Revoked, SessionWitness, SignedWitness, Witness
from appliance.lease.client import Ask, LeaseClient
from appliance.lease.wire import PAGE_LEASES_MAX, Age, Inspect, LeasePage, LeaseView, Over, Relinquish
from timeagent.clock import NodeTime
from timeagent.errors import BadRequest, LeaseLost, ShardUnavailable, check_callable
from timeagent.units import Instant, Seconds, Span, TimeInterval, rfc3339, span_of, span_text

from ..formats.hints import NOTHING_WRITTEN, PLACES_MAX, HintedFile, Hints, joined
from ..formats.witness import Half
from .endings import UNKNOWN, LossReason, Outlook, Recall

if TYPE_CHECKING:
    from appliance.lease.transport import Transport  # TLS, and all that it loads, is for those who connect

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loss:
    """One lost lease. ``ended``: the same as the lease's: the last word of the error's code."""

    lease: Lease
    reason: LossReason
    ended: str
    by: Holder | None = None
    """Who revoked it, and as the purpose why; None where nobody did, or its shard does not remember."""

    @property
    def in_doubt(self) -> bool:
        """Whether this clock and a shard's contradict each other: then nobody here knows when the expiry is."""
        return self.ended == "suspect" and self.reason is LossReason.CLOCK_UNSAFE

    def __str__(self) -> str:
        """Return it in words, without the domain."""
        return self.reason + (f" by {self.by.node}/{self.by.process}: {self.by.purpose}" if self.by else "")


type Listener = Callable[[Loss], None]


class Losses:
    """What was lost in one session, and the listeners. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = RLock()  # a signal may come while it is had, and whoever handles that may look at a lease
        self._found: deque[Loss] = deque()
        self._of_all: list[Listener] = []

    def found(self, loss: Loss) -> None:
        """Take note, under whatever lock: nobody is told yet."""
        self._found.append(loss)

    def listen(self, listener: Listener) -> None:
        """Tell it of every loss from now on."""
        with self._lock:
            self._of_all.append(listener)

    def listen_to(self, lease: Lease, listener: Listener) -> None:
        """Tell it if this lease is lost: at once, if others have been told already."""
        with self._lock:
            if lease.loss_listeners is not None:
                lease.loss_listeners = (*lease.loss_listeners, listener)
                return
        if lease.loss is not None:
            _tell(listener, lease.loss)

    def tell(self) -> None:
        """Tell everybody of what was found. Call it without any lock."""
        while self._found:
            with self._lock:
                if not self._found:
                    return
                loss = self._found.popleft()
                own, loss.lease.loss_listeners = loss.lease.loss_listeners, None
                listeners = [*(own or ()), *self._of_all]
            for listener in listeners:
                _tell(listener, loss)


def _tell(listener: Listener, loss: Loss) -> None:
    try:
        listener(loss)
    except Exception:  # noqa: BLE001 - whatever an application's function raises
        # The other leases still have to be renewed, and the other listeners told: the lease itself stays lost by name.
        _log.exception("lost-listener-failed domain=%s reason=%s", loss.lease.domain, loss.reason)


@lru_cache(4096)  # a lease is written under many times for each witness of it
def part_of(signed: SignedWitness) -> tuple[int, Half]:
    """Return by which map a shard signed, and how much of a lease that is."""
    head = signed.batch_head()
    return head.going_by, head.half


class Routes(Protocol):
    """How the shards are reached."""

    @property
    def map(self) -> ShardMap:
        """The newest map that is known here."""
        ...

    def transport(self, shard: int) -> Transport:
        """Return the way to a shard. Raises ShardUnavailable when there is none."""
        ...


@dataclass(eq=False)
class Keeper:
    """One session's ports, lock and leases: for its parts, and for the tools that are made of sessions."""

    time: NodeTime
    policy: PolicyNumbers
    routes: Routes
    holder: Holder
    """How its leases name the session."""
    randomness: random.Random
    background: bool = True
    """Whether the session has threads; else it does what is due when it is called."""
    lock: RLock = field(default_factory=RLock)
    """Never held while a shard is asked."""
    losses: Losses = field(default_factory=Losses)
    process: int = field(default_factory=os.getpid)
    held: dict[Lease, None] = field(default_factory=dict)
    """Those that were taken and not given back, in the order in which they were taken."""
    alone: dict[Lease, None] = field(default_factory=dict)
    """Those of the held ones that are under no session lease: each is renewed, and runs out, by itself."""
    unused: dict[Lease, int] = field(default_factory=dict)
    """Those of the held ones that are sticky and that nobody uses; since when, by the boot clock."""
    moved: list[Lease] = field(default_factory=list)
    """Those that have gone on with their second half alone, and are not attended for there yet."""
    put_off: list[tuple[int, Callable[[], None]]] = field(default_factory=list)
    """What a session without threads has to do yet, and from when on, by the boot clock."""
    _clients: dict[int, LeaseClient] = field(default_factory=dict)

    def client(self, shard: int) -> LeaseClient:
        """Return the dealings with a shard. Raises ShardUnavailable when there is no way to it."""
        if shard not in self._clients:
            transport = self.routes.transport(shard)
            self._clients[shard] = LeaseClient(transport, self.time, self.policy, self.holder, self.randomness)
        return self._clients[shard]

    def refuse_child(self, what: str) -> None:
        """Raise BadRequest in a child after fork."""
        if self.process != os.getpid():
            why = f"this {what} belongs to process {self.process}, this is its child {os.getpid()}"
            raise BadRequest("forked", why, hint="open the cluster in the child")

    def hold(self, lease: Lease) -> None:
        """Have a lease. Under the lock."""
        self.held[lease] = None
        if lease.session_lease is None:
            self.alone[lease] = None

    def forget(self, leases: Iterable[Lease]) -> None:
        """Have these no longer."""
        with self.lock:
            for lease in leases:
                self.held.pop(lease, None)
                self.alone.pop(lease, None)

    def in_use(self, domain: str) -> Lease | None:
        """Return a lease on a domain that the session has in use, surely held now, or None. Raises BadTime."""
        with self.lock:
            used = (each for each in self.held if each.domain == domain and each not in self.unused)
            return next((each for each in used if each.surely_held()), None)

    def leases_below(self, domain: str) -> list[LeaseView]:
        """Return the leases on all domains below one of a tree, page by page. Raises ShardUnavailable."""
        below = f"{domain}/"
        ask = self.routes.transport(self.routes.map.shards_of(below)[0]).call
        found: list[LeaseView] = []
        after, more = below, True
        while more:
            (reply,) = ask([Inspect(after_domain=after, leases_max=PAGE_LEASES_MAX)], self.policy.attempt_timeout_ns)
            if not isinstance(reply, LeasePage) or (reply.more and reply.after_domain <= after):  # one that goes on
                raise ShardUnavailable("no-answer", f"the shard of {below!r} does not say what is held: {reply}")
            found += (each for each in reply.leases if each.domain.startswith(below))
            more, after = reply.more and reply.after_domain.startswith(below), reply.after_domain
        return found


@dataclass(slots=True, eq=False, repr=False)
class Lease:
    """One held lease. Applications read it; only its session changes it. Two are equal if they are the same one."""

    domain: str
    shard: int
    own_mode: Mode
    correlation_id: bytes
    fence: int
    """The fencing token: hand it to whatever is written outside of bags."""
    stated_fence: int
    """That of the newest witness: while a lease is held its user sees the same, whichever shard it comes from."""
    own_expiry_ns: Instant
    """Without a session lease: when it expires, unless it is renewed."""
    floor_ns: Instant
    settle_to_ns: Instant
    signed: SignedWitness
    """The witness with which messages are published: the newest, and the one that states ``own_expiry_ns``."""
    term_ns: Span
    """How long each grant and renewal is for: not longer than the policy allows, nor than is left of its hold."""
    age: Age | None = None
    """That of the request that got it."""
    watermark_ns: Instant | None = None
    watermark_time: bytes | None = None
    messages: int = 0
    chain_head: bytes | None = None
    """The digest of the last frame under this lease that is known Committed."""
    ended: str | None = None
    """Why it is over for the holder; None while it is held."""
    delivered: bool = False
    """Whether its shard has said that it has it back."""
    hints: Hints | None = None
    """Where the messages are that others wrote about the domain before; None: nothing is known."""
    told: Hints = NOTHING_WRITTEN
    """What the shard has heard of ``own``."""
    loss: Loss | None = None
    """Set when it is over against the holder's will."""
    until_ns: Instant | None = None
    """It is over for its holder at this instant, and nothing is asked for beyond it."""
    progress_within_ns: Span | None = None
    """It is renewed only if its holder has got on within this span."""
    progress_boot_ns: int = 0
    trouble: LossReason | None = None
    """Why the last renewal failed, if it did."""
    keeper: Keeper | None = field(default=None, repr=False)
    recall: Recall = Recall.IGNORE
    """What is done when another asks for it."""
    recalled: bool = False
    """Whether another has asked for it, as its shard said. Not known where the answer is to ignore it."""
    recall_listeners: tuple[Callable[[Lease], object], ...] = field(default=(), repr=False)
    loss_listeners: tuple[Listener, ...] | None = field(default=(), repr=False)
    """None: they have been told."""
    sticky_ns: Span | None = None
    """How long the session keeps it unused when its user gives it back; None: it goes back to its shard."""
    session_lease: SessionLease | None = field(default=None, repr=False)
    """The session lease under which it was taken: then that one's expiry is its own."""
    uses: int = 1
    """How many uses of one session share it: it goes back after the last."""
    second: Lease | None = field(default=None, repr=False)
    """While its domain moves to another shard: the half from that one. It is renewed and told of messages as a lease of
    its own, and nobody else ever sees it."""
    first: Lease | None = field(default=None, repr=False)
    """Of such a half: the lease that it belongs to."""
    alone_until_ns: Instant | None = None
    """While the second half is missing and its session lease is renewed as half of one: until when it counts alone."""
    asking: Ask | None = field(default=None, repr=False)
    """The request for the second half, as long as it is not known what came of it."""
    chain_sequence: int = 0
    _written: tuple[Hints, tuple[HintedFile, ...]] = (NOTHING_WRITTEN, ())
    """Where that is which was written under it and is known Committed; and the newest places, not joined to it yet."""

    @property
    def expiry_ns(self) -> Instant:
        """When it expires, unless it, or its session lease, is renewed: of both halves the earlier instant."""
        second, alone = self.second, self.alone_until_ns  # first, and once: another thread may end the move meanwhile
        own = self.own_expiry_ns if (together := self.session_lease) is None else together.expiry_ns
        own = own if alone is None else min(own, alone)
        return own if second is None else min(own, second.expiry_ns)

    @property
    def mode(self) -> Mode:
        """In which mode it is held: of both halves the weaker, since a stronger one is asked of one after the other."""
        second = self.second
        return self.own_mode if second is None or covers(second.own_mode, self.own_mode) else second.own_mode

    @property
    def own(self) -> Hints:
        """Where that is which was written under this lease and is known Committed."""
        known, newest = self._written
        return joined(known, Hints(places=newest)) if newest else known

    # -- in two halves -------------------------------------------------------------------------------------------------

    def join(self, second: Lease) -> None:
        """Take the half from the shard to which the domain moves."""
        self.second, second.first, self.alone_until_ns, self.asking = second, self, None, None
        self.floor_ns = max(self.floor_ns, second.floor_ns)
        self.settle_to_ns = max(self.settle_to_ns, second.settle_to_ns)

    def halves(self) -> tuple[Lease, ...]:
        """Return whose witnesses prove that it is held: its own, and both once its own says that it is a half.

        Nobody's: what there is proves nothing to readers, until its other half is there and both are renewed.
        """
        if (half := self.part) is Half.WHOLE:
            return (self,)
        return (self, self.second) if half is Half.LEAVING and self.second is not None else ()

    @property
    def part(self) -> Half:
        """How much of a lease it is, by the newer of its witness and that of its session lease."""
        own, together = part_of(self.signed), self.session_lease
        return (own if together is None else max(part_of(together.signed), own, key=itemgetter(0)))[1]

    @property
    def counts_alone(self) -> bool:
        """Whether it has been whole: what never was is of no use yet where its second half is missing."""
        return Half.WHOLE in (part_of(self.signed)[1], self.part)

    def standing(self) -> Lease:
        """Return the lease that has gone on with this half, or else this."""
        first = self.first or self
        return first if first.second is not self and first.correlation_id == self.correlation_id else self

    def go_on_with_second(self) -> None:
        """Be held from the shard that came alone: its half is whole now, and the other shard is of no map any more."""
        second = self.second
        assert second is not None, f"{self.domain!r} has no other half"
        if self.session_lease is not None:
            self.session_lease.leases.pop(self.correlation_id, None)
            self.session_lease.over = self.session_lease.over or not self.session_lease.leases
        self.shard, self.correlation_id, self.stated_fence = second.shard, second.correlation_id, second.fence
        self.own_mode, self.signed, self.own_expiry_ns = second.own_mode, second.signed, second.own_expiry_ns
        self.session_lease, self.told = second.session_lease, second.told
        self.watermark_ns, self.watermark_time = second.watermark_ns, second.watermark_time
        self.messages, self.chain_head, self.chain_sequence = second.messages, second.chain_head, second.chain_sequence
        if self.session_lease is not None:
            self.session_lease.leases[self.correlation_id] = self
        self.second, self.alone_until_ns = None, None  # last: who has read that there is none finds its state here

    def take(self, signed: SignedWitness, witness: Witness, hints: Hints | None = None) -> None:
        """Adopt a newer witness of the same lease: a renewal or an upgrade. Never lowers expiry, floor or settle_to.

        Witness, mode and expiry change together: readers judge a frame by the witness that it carries.
        """
        assert witness.correlation_id == self.correlation_id
        together = self.session_lease is not None
        if witness.fence >= self.stated_fence and (together or witness.expiry_ns >= self.own_expiry_ns):
            self.signed, self.own_expiry_ns, self.own_mode = signed, witness.expiry_ns, witness.mode
            if witness.fence != self.stated_fence:  # of a stronger mode
                self.fence = self.stated_fence = witness.fence
                if self.first is not None and part_of(signed)[1] is not Half.COMING:  # the other half is past
                    self.first.fence = witness.fence
            if not together and self.counts_alone:
                self.alone_until_ns = None
        self.hints = hints or self.hints
        for each in (self,) if self.first is None else (self, self.first):
            each.floor_ns = max(each.floor_ns, witness.floor_ns)
            each.settle_to_ns = max(each.settle_to_ns, witness.settle_to_ns)

    @property
    def failing(self) -> LossReason | None:
        """Why the last renewal failed, of it, of its session lease or of its other half, if one did."""
        own, second = (self.session_lease or self).trouble, self.second
        return own or (None if second is None else second.failing)

    def usable_until_ns(self, margin_ns: Span) -> Instant:
        """Return the instant from which the holder must not begin anything under this lease."""
        return (self.expiry_ns if (until := self.until_ns) is None else min(self.expiry_ns, until)) - margin_ns

    def cap_ns(self) -> Instant | None:
        """Return the instant beyond which it is not asked for, whoever reads that when; None: nothing caps it.

        The end of its hold; where its holder has to get on, a term after that span is over. Raises BadTime.
        """
        if (within := self.progress_within_ns) is None:  # all of this once: another thread may take it again meanwhile
            return self.until_ns
        time = self._kept().time
        latest = time.now().latest  # before the other: who stands still in between gets a cap that is earlier
        cap = latest - (time.boot_ns() - self.progress_boot_ns) + within + self.term_ns
        return cap if (until := self.until_ns) is None else min(cap, until)

    def check_held(self, now: TimeInterval, margin_ns: Span) -> None:
        """Raise LeaseLost, by name, unless the lease is surely still valid with the margin to spare."""
        self.end_if_over(now, margin_ns)
        if self.ended is not None:
            raise LeaseLost(
                f"lease-{self.ended}",
                f"{self.over_text()} (fence {self.fence}): its end is "
                f"{rfc3339(self.usable_until_ns(0))}, nothing begins under it for {span_text(margin_ns)} before that, "
                f"and the time is up to {rfc3339(now.latest)}",
                hint="acquire it again, read what happened meanwhile, then decide anew",
            )

    def __repr__(self) -> str:
        over = f", over: {self.ended}" if self.ended else ""
        until, which = rfc3339(self.expiry_ns), self.correlation_id.hex()
        return f"<Lease {self.domain!r} {self.mode} fence {self.fence} until {until}, {which}{over}>"

    def lose_to(self, answer: Over) -> None:
        """Be over as its shard says."""
        revoked = answer.outcome is LeaseOutcome.REVOKED
        self.lose(str(answer.outcome), LossReason.REVOKED if revoked else LossReason.BROKEN, answer.revoked)

    def end_if_over(self, now: TimeInterval, margin_ns: Span) -> None:
        """Be lost unless it is surely still valid with the margin to spare."""
        if self.ended is None and not now.surely_before(self.usable_until_ns(margin_ns)):
            capped = self.until_ns is not None and self.expiry_ns >= self.until_ns
            self.lose("expired", LossReason.HOLD_CAP if capped else self.failing or LossReason.EXPIRED)

    def lose(self, ended: str, reason: LossReason, revoked: Revoked | None = None) -> None:
        """Be over, against the holder's will. What has ended before stays what it is."""
        if self.first is not None:
            if self.first.second is self:  # else its lease has gone on without it
                self.first.lose(ended, reason, revoked)
        elif self.ended is None:
            self.ended = ended
            self.loss = Loss(self, reason, ended, None if revoked is None else revoked.by)
            if self.keeper is None:
                self.loss_listeners = None  # nobody has it yet: whoever listens is told at once
            else:
                self.keeper.losses.found(self.loss)

    # -- for the holder ------------------------------------------------------------------------------------------------

    def remaining_ns(self) -> Span:
        """Return how long the lease may still be used, were it not renewed: 0 if it is over. Raises BadTime."""
        keeper = self._kept(own=True)
        left = self.usable_until_ns(keeper.policy.holder_margin_ns) - keeper.time.now().latest
        return max(0, left) if self.ended is None else 0

    def outlook(self) -> Outlook:
        """Return whether the lease is held, and how long it is good: ``unknown`` while its shard does not answer.

        Asks only the clock, and what the last renewal brought. Raises BadTime.
        """
        good, trouble = self.remaining_ns(), self.failing
        if not good:
            return Outlook("over", 0, None if self.loss is None else self.loss.reason)
        return Outlook("unknown", good, trouble) if trouble in UNKNOWN else Outlook("held", good, None)

    def check(self, *, margin_s: Seconds = 0) -> None:
        """Raise LeaseLost unless the lease is surely held now, with this much to spare: before every side effect.

        A process that stood still past the expiry finds out here, whatever its renewal thread has come to. Never less
        than the policy's margin is kept. Asks only the clock. Raises BadTime, and BadRequest in a child after fork.
        """
        keeper, margin_ns = self._kept(own=True), span_of(margin_s, "margin_s")
        now = keeper.time.now()
        try:
            with keeper.lock:
                self.check_held(now, keeper.policy.holder_margin_ns)
        finally:
            keeper.losses.tell()
        if not now.surely_before(self.usable_until_ns(margin_ns)):
            why = f"the lease on {self.domain!r} (fence {self.fence}) is held for less than {span_text(margin_ns)}"
            raise LeaseLost("lease-too-short", why, hint="wait for its renewal, or do less under it at once")

    def over_text(self) -> str | None:
        """Say that it is over, and why; None while it is held, as far as was seen."""
        if self.ended is None:
            return None
        why = "" if self.loss is None else str(self.loss)
        said = why if why.startswith(self.ended) else f"{self.ended} ({why})" if why else self.ended
        return f"the lease on {self.domain!r} is {said}"

    def surely_held(self) -> bool:
        """Whether ``check`` would let it pass: for what is asked often. Asks only the clock. Raises as ``check``."""
        keeper = self._kept(own=True)
        end = self.usable_until_ns(keeper.policy.holder_margin_ns)
        return self.ended is None and keeper.time.now().surely_before(end)

    def progress(self) -> None:
        """Say that the work under a lease gets on: one taken with ``progress_within_s`` is renewed only then.

        A message that is Committed under the lease says so by itself.
        """
        self.progress_boot_ns = self._kept().time.boot_ns()

    def on_lost(self, listener: Listener) -> None:
        """Have a function called, once, if the lease is lost; at once, if it is. Not if it is relinquished.

        It is called in the thread that finds out, often the one that renews: it must not block.
        """
        check_callable(listener=listener)
        self._kept().losses.listen_to(self, listener)

    def on_recall(self, listener: Callable[[Lease], object]) -> None:
        """Have a function called, once, when another asks for the lease: at once, if one has.

        Of a lease that is finished with it is called in the thread that hears: it must not block. Of one that is
        flushed it has a thread of its own, may publish under the lease, and the lease is given back when it returns.
        """
        check_callable(listener=listener)
        with self._kept().lock:
            if not self.recalled:
                self.recall_listeners = (*self.recall_listeners, listener)
                return
        listener(self)

    def _kept(self, *, own: bool = False) -> Keeper:
        """Return its keeper. ``own``: raise BadRequest in a child after fork."""
        assert self.keeper is not None, "a lease that no session has taken"
        if own:
            self.keeper.refuse_child("lease")
        return self.keeper

    def wrote(self, timestamp: Instant, time: bytes) -> None:
        """Raise the watermark: a message with this timestamp may exist from now on, whatever comes of the attempt."""
        if self.watermark_ns is None or timestamp > self.watermark_ns:
            self.watermark_ns, self.watermark_time = timestamp, time

    def committed(self, messages: int, digest: bytes, sequence: int, place: HintedFile) -> None:
        """Count messages that are known Committed, with their frame's digest and sequence; in any order of frames.

        ``place``: where they are. Under the session's lock.
        """
        self.messages += messages
        known, newest = self._written
        self._written = known, (*newest, place)
        if len(newest) >= PLACES_MAX:
            self._written = self.own, ()
        if sequence > self.chain_sequence:
            self.chain_sequence, self.chain_head = sequence, digest

    def unsaid(self) -> Hints | None:
        """Return where it wrote, if the shard has not heard all of it."""
        return None if (own := self.own) == self.told else own


@dataclass(slots=True, eq=False)
class SessionLease:
    """One session lease, as this process has it. Changed under the session's lock only."""

    shard: int
    session_id: bytes
    signed: SignedWitness
    """Its newest witness, which frames carry beside those of the leases, and the one that states ``expiry_ns``."""
    expiry_ns: Instant
    term_ns: Span
    leases: dict[bytes, Lease] = field(default_factory=dict)
    """Those that are held under it, by correlation id."""
    owed: dict[bytes, Relinquish] = field(default_factory=dict)
    """What was given back, and not acknowledged."""
    over: bool = False
    """Nothing is taken under it any more."""
    trouble: LossReason | None = None
    """Why the last renewal failed, if it did."""

    def take(self, signed: SignedWitness, witness: SessionWitness, revoked: Sequence[Revoked] = ()) -> list[Lease]:
        """Adopt a newer witness. The leases that it names as ended are lost first: it is not used with them.

        Return those that go on with their second half alone from now on: it is whole by this witness.
        """
        told = {each.correlation_id: each for each in revoked}
        for name in witness.ended:
            if (lease := self.leases.pop(name, None)) is not None:
                lease.lose("revoked", LossReason.REVOKED, told.get(name))
        self.trouble = None
        if witness.expiry_ns < self.expiry_ns:
            return []
        was, half = part_of(self.signed)[1], part_of(signed)[1]
        if half is Half.LEAVING is not was:
            for lease in self.leases.values():
                if lease.second is None and lease.counts_alone:
                    lease.alone_until_ns = self.expiry_ns
        self.signed, self.expiry_ns = signed, witness.expiry_ns
        if half is not Half.WHOLE or was is half:
            return []
        moved = [first for each in self.leases.values() if (first := each.first) is not None and first.second is each]
        for lease in moved:
            lease.go_on_with_second()
        for lease in self.leases.values():
            lease.alone_until_ns = None
        return moved

    def usable_until_ns(self, margin_ns: Span) -> Instant:
        """Return the instant from which nothing may be begun under its leases."""
        return self.expiry_ns - margin_ns

    def end_if_over(self, now: TimeInterval, margin_ns: Span) -> None:
        """Be lost unless it is surely still valid with the margin to spare."""
        if not now.surely_before(self.usable_until_ns(margin_ns)):
            self.lose("expired", self.trouble or LossReason.EXPIRED)

    def lose_to(self, answer: Over) -> None:
        """Be over as its shard says."""
        self.lose(str(answer.outcome), LossReason.BROKEN)

    def lose(self, ended: str, reason: LossReason) -> None:
        """Be over, with all leases under it, against the holder's will."""
        self.over = True
        for lease in self.leases.values():
            lease.lose(ended, reason)
        self.leases.clear()
