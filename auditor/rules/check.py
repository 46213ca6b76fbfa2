"""What a rule asks of one piece of evidence: the value that was found, the limit that it has, and whether it holds.

A finding about one piece is a check that fails. The same check is shown where everything is shown that was asked: in
``explain``, in the chain of evidence and on the screen. What several families of rules ask is stated here.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from timeagent.console import printable
from timeagent.rules import r2_holds
from timeagent.units import rfc3339, span_text

from .finding import NamedInterval, Verdict
from .registry import found

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy as np
    from numpy.typing import NDArray

    from appliance.formats.policy import Policy
    from timeagent.signedtime import SignedTime
    from timeagent.units import Instant

    from .finding import Evidence, Finding

_RELATIONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "<": operator.lt,
    "≤": operator.le,
    "at most": operator.le,
    "≥": operator.ge,
    "at least": operator.ge,
    ">": operator.gt,
}


class Check(msgspec.Struct, frozen=True):
    """One check. ``code``: of the finding that it is where it fails."""

    code: str
    what: str
    found: Any
    bound: Any
    holds: bool | None
    """None: what it takes to tell is not there."""
    relation: str = ""
    words: Callable[[Any], str] = str
    """How value and limit are shown: put into words only where somebody looks."""

    @property
    def value(self) -> str:
        """What was found."""
        return self.words(self.found)

    @property
    def limit(self) -> str:
        """What it has to be; empty where the value says it all."""
        return f"{self.relation} {self.words(self.bound)}".strip()

    def breaks(self, values: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of many values would fail it."""
        mask: NDArray[np.bool_] = ~_RELATIONS[self.relation](values, self.bound)
        return mask

    def fields(self) -> dict[str, Any]:
        """Return what JSON shows."""
        return {"code": self.code, "what": self.what, "value": self.value, "limit": self.limit, "holds": self.holds}

    def finding(
        self,
        subject: str,
        reason: str,
        evidence: Iterable[Evidence],
        times: Iterable[NamedInterval] = (),
        *,
        verdict: Verdict | None = None,
        title: str = "",
    ) -> Finding:
        """Return the finding that it is: indeterminate where nothing tells whether it holds, else as ``found``."""
        if self.holds is None and verdict is None:
            verdict = Verdict.INDETERMINATE
        return found(self.code, subject, reason, evidence, times, verdict=verdict, title=title)


def clock(instant: Instant) -> str:
    """Return the time of day of an instant in UTC, to the microsecond; ``none`` for 0, a floor that nothing moved."""
    return rfc3339(instant)[11:26] if instant else "none"


def phrase(parts: Iterable[str | Instant]) -> str:
    """Return words with instants among them."""
    return " ".join(part if isinstance(part, str) else clock(part) for part in parts)


def compared(code: str, what: str, value: int, relation: str, bound: int, words: Callable[[int], str] = clock) -> Check:
    """Return the check that a number stands in a relation ("<", "≤", "at most", ...) to another."""
    return Check(code, what, value, bound, _RELATIONS[relation](value, bound), relation, words)


def own_words(finding: Finding) -> Check:
    """Return what only the whole tree shows (a gap, an order, a count) as a check: the finding's own words."""
    holds = False if finding.verdict in (Verdict.VIOLATION, Verdict.OK) else None
    return Check(finding.code, finding.title, printable(finding.explanation), "", holds)


def latest_expiry_ns(token: SignedTime, policy: Policy) -> Instant:
    """Return how far a lease that was granted at a signed time may reach at most."""
    return token.midpoint_ns + policy.lease_term_max_ns + token.radius_ns


def within_term(expiry_ns: Instant, token: SignedTime, policy: Policy) -> Check:
    """term-above-policy: what a lease, or a session lease, may last."""
    what = "expiry within the longest term"
    return compared("term-above-policy", what, expiry_ns, "≤", latest_expiry_ns(token, policy))


def below_ceiling(expiry_ns: Instant, fence: int, ceiling_ns: Instant) -> Check:
    """grant-above-ceiling: whoever comes after a crash begins at the ceiling."""
    return compared("grant-above-ceiling", "expiry below the ceiling", max(expiry_ns, fence), "≤", ceiling_ns)


def radius_allowed(what: str, token: SignedTime, policy: Policy) -> Check:
    """radius-above-policy: an interval that is wide enough satisfies every other rule about time."""
    return compared("radius-above-policy", what, token.radius_ns, "at most", policy.radius_ns_max, span_text)


def in_order(what: str, cause: SignedTime, effect: SignedTime, *, covers: bool = False) -> Check:
    """r2-breach: what came after cannot be signed wholly before. ``covers``: it is signed over what it closes."""
    latest = effect.midpoint_ns + effect.radius_ns + (0 if covers else effect.staleness_ns)
    value, limit = ("closed by" if covers else "written by", latest), ("≥", cause.midpoint_ns - cause.radius_ns)
    return Check("r2-breach", what, value, limit, r2_holds(cause, effect, effect_covers_cause=covers), words=phrase)


type Named = tuple[str, SignedTime]
"""What a signed time is called among the times of a finding."""


def signed_before(
    cause: Named, effect: Named, subject: str, reason: str, evidence: Iterable[Evidence], title: str
) -> Finding:
    """r2-breach: return the finding about two signed times that contradict the order in which they were made."""
    times = [NamedInterval.of(*cause), NamedInterval.of(*effect)]
    return found("r2-breach", subject, reason, evidence, times, title=title)
