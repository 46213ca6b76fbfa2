"""Rules about records that all share: keys of the trust record, limits of the policy, and whose signature holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from appliance.formats.chains import CeilingRecord
from appliance.formats.framing import Kind
from appliance.formats.paths import record_name
from appliance.formats.policy import Policy
from appliance.formats.stamped import CONTEXTS, Signed, Stamped, body_digest
from auditor.evidence.signatures import (
    EndedKey,
    Signatures,
    misattributed,
    refusal_code,
)
from timeagent.errors import Damaged
from timeagent.keys import Purpose
from timeagent.signedtime import STALENESS_NS, SignedTime, TimeFlags
from timeagent.trust import Keyring
from timeagent.units import INSTANT_MAX, Instant, rfc3339, span_text

from ..evidence.finding import (
    Evidence,
    Finding,
    Times,
    asked,
    found,
    latest_expiry_ns,
)
from ..evidence.records import ClusterRecords, known_until


@dataclass(frozen=True, slots=True)
class Policies:
    """What the policies of the copy allow, and what is known of newer ones, which it may have come too early for."""

    widest: Policy | None = None
    """What any of them allows at most; None: nobody knows, because one is missing."""
    newest: int = 0
    """The newest one of the copy."""
    until_ns: Instant = INSTANT_MAX
    """Until when there surely was no newer one."""

    @classmethod
    def of(cls, records: ClusterRecords, closed: Mapping[int, Instant]) -> Policies:
        """Return what a copy says. ``closed``: see ``known_until``."""
        newest = records.newest_policy
        return cls(records.widest, newest.number, known_until(closed, newest.number)) if newest else cls(records.widest)

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
        if self.widest is not None:
            for finding in wide_radius(what, token, self.widest, where):
                yield self.judged(finding, signed_by(token, self.widest))
        yield from stale_time(what, token, where)

    def check_term(self, what: str, expiry_ns: Instant, token: SignedTime, where: Evidence) -> Iterator[Finding]:
        """term-above-policy: a lease, or a session lease, was granted for longer than any policy allows."""
        if self.widest is not None:
            term = asked("term-above-policy", expiry_ns, latest_expiry_ns(token, self.widest))
            reason = f"{what} lasts until {rfc3339(expiry_ns)}; the policy allows {rfc3339(term.bound)}"
            times: Times = {"the witness": token, "the expiry": expiry_ns}
            if not term.holds:
                yield self.judged(term.finding(what, reason, [where], times), token.interval.latest)


def signed_by(token: SignedTime, widest: Policy | None) -> Instant:
    """Return when something was signed, at the latest: a wider radius than any policy allows must not excuse itself."""
    return token.midpoint_ns + min(token.radius_ns, widest.radius_ns_max if widest else token.radius_ns)


def stale_time(what: str, token: SignedTime, where: Evidence) -> Iterator[Finding]:
    """stale-time: whatever comes after a signed time may be so much older than it shows; no agent says more."""
    stale = asked("stale-time", token.staleness_ns, STALENESS_NS, span_text)
    if not stale.holds:
        reason = (
            f"{what} has a signed time that may have been handed out up to {span_text(token.staleness_ns)} after it "
            f"was made; {span_text(STALENESS_NS)} are allowed"
        )
        yield stale.finding(what, reason, [where], {"the signed time": token})


def wide_radius(what: str, token: SignedTime, policy: Policy, where: Evidence) -> Iterator[Finding]:
    """radius-above-policy: an interval that is wide enough satisfies every other rule about time."""
    radius = asked("radius-above-policy", token.radius_ns, policy.radius_ns_max, span_text)
    if not radius.holds:
        reason = (
            f"{what} has a signed time that is known to {span_text(token.radius_ns)}; the policy allows "
            f"{span_text(policy.radius_ns_max)}, and whoever knows less neither grants, writes nor closes"
        )
        yield radius.finding(what, reason, [where], {"the signed time": token})


STAMPED: Final = {Kind.BIRTH: "a log's birth record", Kind.LOCK: "a lock file", Kind.SEAL: "a seal"}


def stamp_findings(
    signatures: Signatures, keyring: Keyring | None, kind: Kind, stamped: Stamped, node: str, where: Evidence
) -> tuple[SignedTime | None, list[Finding]]:
    """forged-time and ended-key: the stamp of a birth, a lock file or a seal. Returns the signed time if it holds."""
    try:
        token = stamped.signed_time(where.path)
    except Damaged as problem:
        title = f"the signed time of {STAMPED[kind]} is none"
        return None, [found("forged-time", where.path, problem.message, [where], title=title)]
    reason = None if token.flags & TimeFlags.NONCE else "the signed time came by the wrong door"
    if keyring is not None and reason is None:
        reason = misattributed(keyring, token, node)
        reason = reason or signatures.refuses_time(keyring, token, body_digest(kind, stamped.body))
    if reason is None:
        return token, []
    code = refusal_code("forged-time", reason)
    title = title_of(code, STAMPED[kind], f"the signed time of {STAMPED[kind]} does not verify")
    said = f"its stamp is refused: {reason}"
    return None, [found(code, where.path, said, [where], {"the stamp": token}, title=title)]


def title_of(code: str, what: str, forged: str = "") -> str:
    """Return the title of a finding about what is refused, where ``forged`` is that of what is nobody's."""
    return f"{what} is signed by a key that did not count then" if code == "ended-key" else forged


def ceiling_findings(
    signatures: Signatures, keyring: Keyring | None, record: CeilingRecord, signed: Signed, where: Evidence
) -> Iterator[Finding]:
    """forged-record, forged-time and ended-key: a ceiling record, signed by its node's witness key."""
    try:
        token = SignedTime.decode(record.time, where.path)
    except Damaged as problem:
        title = "the signed time of a ceiling record is none"
        yield found("forged-time", where.path, problem.message, [where], title=title)
        return
    if keyring is None:
        return
    owner = keyring.node_of(signed.key_id)
    by = signed.key_id, Purpose.WITNESS, token.midpoint_ns
    reason = signatures.refuses(keyring, *by, CONTEXTS[Kind.CEILING], signed.body, signed.signature)
    if owner not in (None, record.node) and (reason is None or isinstance(reason, EndedKey)):
        reason = f"it says node {record.node}, its key is of {owner}"
    forged, what = "forged-record", "signature"
    if not reason:
        forged, what = "forged-time", "signed time"
        reason = misattributed(keyring, token, record.node) or signatures.refuses_time(keyring, token)
    if reason:
        code = refusal_code(forged, reason)
        title = title_of(code, "a ceiling record", f"the {what} of a ceiling record does not verify")
        yield found(code, where.path, reason, [where], title=title)
