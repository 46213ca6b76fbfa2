"""``Lease``: the holder's side of one lease: its newest witness, and what was written under it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from appliance.formats.hints import NOTHING_WRITTEN, Hints, joined
from appliance.formats.lease import LeaseOutcome
from timeagent.errors import LeaseLost, check_callable
from timeagent.units import rfc3339, span_of

from .losses import UNKNOWN, Loss, Outlook, Reason
from .recall import Recall

if TYPE_CHECKING:
    from collections.abc import Callable

    from appliance.formats.hints import Place
    from appliance.formats.lease import Mode
    from appliance.formats.witness import Revoked, SignedWitness, Witness
    from appliance.lease.client import Ended
    from appliance.lease.wire import Age
    from timeagent.interval import TimeInterval
    from timeagent.units import Instant, Seconds, Span

    from .losses import Listener, Losses
    from .standings import Standing


class Keeper(Protocol):
    """The session of a lease, as far as the lease asks it."""

    losses: Losses

    def remaining_ns(self, lease: Lease) -> Span:
        """Return how long it may still be used."""
        ...

    def check(self, lease: Lease, margin_ns: Span) -> None:
        """Raise LeaseLost unless it is surely held, with this much to spare."""
        ...

    def progress(self, lease: Lease) -> None:
        """Take note that its holder gets on."""
        ...

    def listen_for_recall(self, lease: Lease, listener: Callable[[Lease], object]) -> None:
        """Have it called when another asks for the lease."""
        ...


@dataclass(slots=True, eq=False)
class Lease:
    """One held lease. Applications read it; only its session changes it. Two are equal if they are the same one."""

    domain: str
    shard: int
    mode: Mode
    correlation_id: bytes
    fence: int
    """The fencing token: hand it to whatever is written outside of bags."""
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
    own: Hints = NOTHING_WRITTEN
    """Where that is which was written under this lease and is known Committed."""
    _said: Hints = NOTHING_WRITTEN
    """What of it the shard has heard."""
    loss: Loss | None = None
    """Set when it is over against the holder's will."""
    until_ns: Instant | None = None
    """It is over for its holder at this instant, and nothing is asked for beyond it."""
    progress_within_ns: Span | None = None
    """It is renewed only if its holder has got on within this span."""
    progress_boot_ns: int = 0
    trouble: Reason | None = None
    """Why the last renewal failed, if it did."""
    keeper: Keeper | None = field(default=None, repr=False)
    recall: Recall = Recall.IGNORE
    """What is done when another asks for it."""
    recalled: bool = False
    """Whether another has asked for it, as its shard said. Not known where the answer is to ignore it."""
    recall_listeners: tuple[Callable[[Lease], object], ...] = field(default=(), repr=False)
    sticky_ns: Span | None = None
    """How long the session keeps it unused when its user gives it back; None: it goes back to its shard."""
    standing: Standing | None = field(default=None, repr=False)
    """The session lease under which it was taken: then that one's expiry is its own."""
    asked_term_ns: Span | None = None
    """The term that its user asked for; None: no term."""
    _chain_sequence: int = 0

    @property
    def expiry_ns(self) -> Instant:
        """When it expires, unless it, or its session lease, is renewed."""
        return self.own_expiry_ns if self.standing is None else self.standing.expiry_ns

    def take(self, signed: SignedWitness, witness: Witness, hints: Hints | None = None) -> None:
        """Adopt a newer witness of the same lease: a renewal or an upgrade. Never lowers expiry, floor or settle_to.

        Witness, mode and expiry change together: readers judge a frame by the witness that it carries. A stronger mode
        has a higher fence.
        """
        assert witness.correlation_id == self.correlation_id
        later = self.standing is not None or witness.expiry_ns >= self.own_expiry_ns
        if later and witness.fence >= self.fence:
            self.signed = signed
            self.own_expiry_ns = witness.expiry_ns
            self.mode, self.fence = witness.mode, witness.fence
        self.floor_ns = max(self.floor_ns, witness.floor_ns)
        self.settle_to_ns = max(self.settle_to_ns, witness.settle_to_ns)
        self.hints = hints or self.hints

    def usable_until_ns(self, margin_ns: Span) -> Instant:
        """Return the instant from which the holder must not begin anything under this lease."""
        return (self.expiry_ns if self.until_ns is None else min(self.expiry_ns, self.until_ns)) - margin_ns

    def check_held(self, now: TimeInterval, margin_ns: Span) -> None:
        """Raise LeaseLost, by name, unless the lease is surely still valid with the margin to spare."""
        self.end_if_over(now, margin_ns)
        if self.ended is not None:
            why = "" if self.loss is None else f" ({self.loss})"
            raise LeaseLost(
                f"lease-{self.ended}",
                f"the lease on {self.domain!r} (fence {self.fence}) is {self.ended}{why}: its end is "
                f"{rfc3339(self.usable_until_ns(0))}, the time is up to {rfc3339(now.latest)}",
                hint="acquire it again, read what happened meanwhile, then decide anew",
            )

    def lose_to(self, answer: Ended) -> None:
        """Be over as its shard says."""
        revoked = answer.outcome is LeaseOutcome.REVOKED
        self.lose(str(answer.outcome), Reason.REVOKED if revoked else Reason.BROKEN, answer.revoked)

    def end_if_over(self, now: TimeInterval, margin_ns: Span) -> None:
        """Be lost unless it is surely still valid with the margin to spare."""
        if self.ended is None and not now.surely_before(self.usable_until_ns(margin_ns)):
            capped = self.until_ns is not None and self.expiry_ns >= self.until_ns
            self.lose("expired", Reason.HOLD_CAP if capped else self.trouble or Reason.EXPIRED)

    def lose(self, ended: str, reason: Reason, revoked: Revoked | None = None) -> None:
        """Be over, against the holder's will. What has ended before stays what it is."""
        if self.ended is None:
            self.ended = ended
            self.loss = Loss(self, reason, ended, None if revoked is None else revoked.by)
            if self.keeper is not None:
                self.keeper.losses.found(self.loss)

    # -- for the holder ------------------------------------------------------------------------------------------------

    def remaining_ns(self) -> Span:
        """Return how long the lease may still be used, were it not renewed: 0 if it is over. Raises BadTime."""
        return self._kept().remaining_ns(self)

    def outlook(self) -> Outlook:
        """Return whether the lease is held, and how long it is good: ``unknown`` while its shard does not answer.

        Asks only the clock, and what the last renewal brought. Raises BadTime.
        """
        good, trouble = self.remaining_ns(), self.trouble if self.standing is None else self.standing.trouble
        if not good:
            return Outlook("over", 0, None if self.loss is None else self.loss.reason)
        return Outlook("unknown", good, trouble) if trouble in UNKNOWN else Outlook("held", good, None)

    def check(self, *, margin_s: Seconds = 0) -> None:
        """Raise LeaseLost unless the lease is surely held now, with this much to spare: before every side effect.

        A process that stood still past the expiry finds out here, whatever its renewal thread has come to. Never less
        than the policy's margin is kept. Asks only the clock. Raises BadTime, and BadRequest in a child after fork.
        """
        self._kept().check(self, span_of(margin_s, "margin_s"))

    def progress(self) -> None:
        """Say that the work under a lease gets on: one taken with ``progress_within_ns`` is renewed only then.

        A message that is Committed under the lease says so by itself.
        """
        self._kept().progress(self)

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
        self._kept().listen_for_recall(self, listener)

    def _kept(self) -> Keeper:
        assert self.keeper is not None, "a lease that no session has taken"
        return self.keeper

    def wrote(self, timestamp: Instant, time: bytes) -> None:
        """Raise the watermark: a message with this timestamp may exist from now on, whatever comes of the attempt."""
        if self.watermark_ns is None or timestamp > self.watermark_ns:
            self.watermark_ns = timestamp
            self.watermark_time = time

    def committed(self, messages: int, digest: bytes, sequence: int, place: Place) -> None:
        """Count messages that are known Committed, with their frame's digest and sequence; in any order of frames.

        ``place``: where they are.
        """
        self.messages += messages
        self.own = joined(self.own, Hints(places=(place,)))
        if sequence > self._chain_sequence:
            self._chain_sequence = sequence
            self.chain_head = digest

    def unsaid(self) -> Hints | None:
        """Return where it wrote, if the shard has not heard all of it."""
        return None if self.own is self._said else self.own

    def said(self, hints: Hints) -> None:
        """Take note that the shard has heard this."""
        self._said = hints
