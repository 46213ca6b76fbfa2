"""``Lease``: the holder's side of one lease: its newest witness, and what was written under it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from appliance.formats.hints import NOTHING_WRITTEN, Hints, joined
from timeagent.errors import LeaseLost
from timeagent.units import rfc3339

if TYPE_CHECKING:
    from appliance.formats.hints import Place
    from appliance.formats.lease import Mode
    from appliance.formats.witness import SignedWitness, Witness
    from timeagent.interval import TimeInterval
    from timeagent.units import Instant, Span


@dataclass(slots=True, eq=False)
class Lease:
    """One held lease. Applications read it; only its session changes it. Two are equal if they are the same one."""

    domain: str
    shard: int
    mode: Mode
    correlation_id: bytes
    fence: int
    """The fencing token: hand it to whatever is written outside of bags."""
    expiry_ns: Instant
    floor_ns: Instant
    settle_to_ns: Instant
    signed: SignedWitness
    """The witness with which messages are published: the newest, and the one that states ``expiry_ns``."""
    term_ns: Span
    watermark_ns: Instant | None = None
    watermark_time: bytes | None = None
    messages: int = 0
    chain_head: bytes | None = None
    """The digest of the last frame under this lease that is known Committed."""
    ended: str | None = None
    """Why it is over for the holder; None while it is held."""
    hints: Hints | None = None
    """Where the messages are that others wrote about the domain before; None: nothing is known."""
    own: Hints = NOTHING_WRITTEN
    """Where that is which was written under this lease and is known Committed."""
    _said: Hints = NOTHING_WRITTEN
    """What of it the shard has heard."""
    _chain_sequence: int = 0

    def take(self, signed: SignedWitness, witness: Witness, hints: Hints | None = None) -> None:
        """Adopt a newer witness of the same lease: a renewal or an upgrade. Never lowers expiry, floor or settle_to.

        Witness, mode and expiry change together: readers judge a frame by the witness that it carries. A stronger mode
        has a higher fence.
        """
        assert witness.correlation_id == self.correlation_id
        if witness.expiry_ns >= self.expiry_ns and witness.fence >= self.fence:
            self.signed = signed
            self.expiry_ns = witness.expiry_ns
            self.mode, self.fence = witness.mode, witness.fence
        self.floor_ns = max(self.floor_ns, witness.floor_ns)
        self.settle_to_ns = max(self.settle_to_ns, witness.settle_to_ns)
        self.hints = hints or self.hints

    def usable_until_ns(self, margin_ns: Span) -> Instant:
        """Return the instant from which the holder must not begin anything under this lease."""
        return self.expiry_ns - margin_ns

    def check_held(self, now: TimeInterval, margin_ns: Span) -> None:
        """Raise LeaseLost, by name, unless the lease is surely still valid with the margin to spare."""
        if self.ended is None and not now.surely_before(self.usable_until_ns(margin_ns)):
            self.ended = "expired"
        if self.ended is not None:
            raise LeaseLost(
                f"lease-{self.ended}",
                f"the lease on {self.domain!r} (fence {self.fence}) is {self.ended}: its expiry is "
                f"{rfc3339(self.expiry_ns)}, the time is up to {rfc3339(now.latest)}",
                hint="acquire it again, read what happened meanwhile, then decide anew",
            )

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
