"""What a policy does not allow, in a copy that may have come too early for the policy that does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from appliance.formats.paths import record_name
from auditor.finding import Evidence, NamedInterval
from timeagent.embedded import STALENESS_NS
from timeagent.units import INSTANT_MAX, span_text

from .registry import found

if TYPE_CHECKING:
    from collections.abc import Iterator

    from appliance.formats.policy import Policy
    from auditor.finding import Finding
    from timeagent.signedtime import SignedTime
    from timeagent.units import Instant


@dataclass(frozen=True, slots=True)
class Policies:
    """What the policies of the copy allow, and what is known of newer ones, which it may have come too early for."""

    widest: Policy | None = None
    """What any of them allows at most; None: nobody knows, because one is missing."""
    newest: int = 0
    """The newest one of the copy."""
    until_ns: Instant = INSTANT_MAX
    """Until when there surely was no newer one."""

    def judged(self, finding: Finding, signed_ns: Instant) -> Finding:
        """Return what is to be said of what no policy of the copy allows: unverifiable-policy where a later one may.

        ``signed_ns``: when it was signed, at the latest.
        """
        if signed_ns < self.until_ns:
            return finding
        path, place = f"policy/{record_name(self.newest + 1)}", finding.evidence[0].path
        reason = (
            f"{place} says what policy {self.newest}, and those before it, do not allow; a later one may, "
            "published after the copy had taken those"
        )
        title = "a policy record that the copy lacks may allow it"
        return found("unverifiable-policy", path, reason, [Evidence(path), Evidence(place)], title=title)

    def check_clock(self, what: str, token: SignedTime, where: Evidence) -> Iterator[Finding]:
        """radius-above-policy and stale-time: something was signed by a clock that says too little."""
        if self.widest is not None and token.radius_ns > self.widest.radius_ns_max:
            yield self.judged(wide_radius(what, token, self.widest, where), signed_by(token, self.widest))
        yield from stale_time(what, token, where)


def signed_by(token: SignedTime, widest: Policy | None) -> Instant:
    """Return when something was signed, at the latest: a wider radius than any policy allows must not excuse itself."""
    return token.midpoint_ns + min(token.radius_ns, widest.radius_ns_max if widest else token.radius_ns)


def stale_time(what: str, token: SignedTime, where: Evidence) -> Iterator[Finding]:
    """stale-time: whatever comes after a signed time may be so much older than it shows; no agent says more."""
    if token.staleness_ns > STALENESS_NS:
        reason = (
            f"{what} has a signed time that may have been handed out up to {span_text(token.staleness_ns)} after it "
            f"was made; {span_text(STALENESS_NS)} are allowed"
        )
        yield found("stale-time", what, reason, [where], [NamedInterval.of("the signed time", token)])


def wide_radius(what: str, token: SignedTime, policy: Policy, where: Evidence) -> Finding:
    """radius-above-policy: an interval that is wide enough satisfies every other rule about time."""
    reason = (
        f"{what} has a signed time that is known to {span_text(token.radius_ns)}; the policy allows "
        f"{span_text(policy.radius_ns_max)}, and whoever knows less neither grants, writes nor closes"
    )
    return found("radius-above-policy", what, reason, [where], [NamedInterval.of("the signed time", token)])
