"""The policy record: the numbers that a whole cluster shares, and the relations that must hold between them.

Numbered, immutable, signed by the cluster root key. What enters the promises about the record (longest term, radius,
tolerance) is judged by the policy that a frame names, the newest one under which its writer found it good.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from timeagent.canonical import U64, Bytes16, Record
from timeagent.errors import BadConfiguration
from timeagent.signedtime import STALENESS_NS
from timeagent.units import MINUTE, MS, SECOND, span_text

from .birth import check_grid


class PolicyNumbers(Protocol):
    """What holders and shards go by: one record, or the newest that a process knows and takes up while it runs."""

    @property
    def span_ns(self) -> int: ...
    @property
    def grace_ns(self) -> int: ...
    @property
    def radius_ns_max(self) -> int: ...
    @property
    def r1_tolerance_ns(self) -> int: ...
    @property
    def lease_term_max_ns(self) -> int: ...
    @property
    def renew_period_ns(self) -> int: ...
    @property
    def holder_margin_ns(self) -> int: ...
    @property
    def attempt_timeout_ns(self) -> int: ...
    @property
    def ceiling_ahead_ns(self) -> int: ...
    @property
    def ceiling_period_ns(self) -> int: ...
    @property
    def granted_ns_max(self) -> int: ...
    @property
    def ahead_ns_max(self) -> int: ...


class Policy(Record, frozen=True):
    """All spans in nanoseconds. ``span``, ``grace`` and ``rack`` are what new logs are born with."""

    number: U64
    cluster_id: Bytes16
    span_ns: U64 = SECOND
    grace_ns: U64 = 2 * SECOND
    rack_ns: U64 = 10 * MINUTE
    seal_delay_ns: U64 = MINUTE
    """How long after a rack's end it is sealed."""
    radius_ns_max: U64 = 250 * MS
    """A clock known less well than this neither grants nor writes."""
    assumed_radius_ns: U64 = 0
    """Where no time source has a bound: take the machine's clock to be this good. 0: refuse to work instead."""
    r1_tolerance_ns: U64 = SECOND
    lease_term_max_ns: U64 = 10 * SECOND
    renew_period_ns: U64 = 3_333 * MS
    holder_margin_ns: U64 = 500 * MS
    """How long before the expiry the holder stops."""
    attempt_timeout_ns: U64 = 1_500 * MS
    """How long one request to a shard may take."""
    batch_ns_max: U64 = 250 * MS
    """How long a writer may gather messages before it flushes."""
    ceiling_ahead_ns: U64 = 2 * SECOND
    """How far beyond the longest term a shard extends its ceiling."""
    ceiling_period_ns: U64 = SECOND

    @property
    def granted_ns_max(self) -> int:
        """How far ahead of a holder's clock an honest shard's expiry can lie: two clocks, each off by a radius."""
        return self.lease_term_max_ns + 2 * self.radius_ns_max

    @property
    def ahead_ns_max(self) -> int:
        """How far ahead of a clock an honest floor or settle_to can lie: a ceiling."""
        return self.granted_ns_max + self.ceiling_ahead_ns

    def after_expiry_ns(self) -> int:
        """Return how long, at worst, a domain is blocked after the expiry of a lease that was not given back."""
        return self.span_ns + self.grace_ns + 3 * self.radius_ns_max

    def takeover_ns(self) -> int:
        """Return how long a domain is blocked, at worst, after its holder died just after renewing."""
        return self.lease_term_max_ns + self.after_expiry_ns()

    def restart_ns(self) -> int:
        """Return how long every domain of a shard is blocked, at worst, after the shard died."""
        return self.takeover_ns() + self.ceiling_ahead_ns + self.radius_ns_max


def _relations(p: Policy) -> Iterator[tuple[bool, str]]:
    """Yield whether each rule holds, and the rule, with the names of numbers in braces."""
    yield (
        0 < 2 * p.renew_period_ns < p.lease_term_max_ns,
        "{renew_period_ns} must be positive and below half of {lease_term_max_ns}",
    )
    attempts = 3 * p.attempt_timeout_ns + p.holder_margin_ns
    rule = "three times a positive {attempt_timeout_ns} plus {holder_margin_ns} must be below "
    rule += "{lease_term_max_ns} minus {renew_period_ns}"
    yield p.attempt_timeout_ns > 0 and attempts < p.lease_term_max_ns - p.renew_period_ns, rule
    yield p.holder_margin_ns >= 2 * p.radius_ns_max, "{holder_margin_ns} must be at least twice {radius_ns_max}"
    yield p.grace_ns > 2 * p.radius_ns_max + SECOND, "{grace_ns} must be above twice {radius_ns_max} plus 1 s"
    rule = f"{{r1_tolerance_ns}} must be above the staleness of a signed time ({span_text(STALENESS_NS)}) plus "
    rule += "{radius_ns_max} plus {batch_ns_max}"
    yield p.r1_tolerance_ns > STALENESS_NS + p.radius_ns_max + p.batch_ns_max, rule
    yield (
        p.seal_delay_ns > p.span_ns + p.grace_ns + 4 * p.radius_ns_max,
        "{seal_delay_ns} must be above {span_ns} plus {grace_ns} plus four times {radius_ns_max}",
    )
    yield p.assumed_radius_ns <= p.radius_ns_max, "{assumed_radius_ns} must not exceed {radius_ns_max}"
    yield (
        0 < p.ceiling_period_ns <= p.ceiling_ahead_ns // 2,
        "{ceiling_period_ns} must be positive and at most half of {ceiling_ahead_ns}",
    )


def check_policy(policy: Policy) -> Policy:
    """Return the policy. Raises BadConfiguration, naming both values, if a relation between its numbers fails."""
    check_grid(policy.span_ns, policy.grace_ns, policy.rack_ns)
    for holds, rule in _relations(policy):
        if not holds:
            spans = {f: f"{f} ({span_text(getattr(policy, f))})" for f in Policy.__struct_fields__ if "_ns" in f}
            what = f"the policy breaks a rule: {rule.format(**spans)}"
            raise BadConfiguration("bad-policy", what, hint="change one of the two")
    return policy
