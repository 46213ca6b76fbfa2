"""Every finding code there is: title, verdict, severity. Each has its anchor in docs/findings.md, under its own name.

A code is for ever: scripts and people look for it. A rule module makes findings with ``found`` only, so that no code
can be used that is not listed here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from auditor.finding import Finding, Severity, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from auditor.finding import Evidence, NamedInterval


@dataclass(frozen=True, slots=True)
class Rule:
    """What all findings of one code share."""

    code: str
    title: str
    verdict: Verdict = Verdict.VIOLATION
    severity: Severity = Severity.ERROR


_BREACHES: Final = {
    # bytes and signatures
    "damaged-record": "a marker, policy, trust, map, birth or ceiling record is damaged or misplaced",
    "damaged-lock": "a lock file is damaged",
    "damaged-seal": "a seal is damaged",
    "damaged-ledger": "a witness ledger has been altered",
    "damaged-frame": "a listed file holds a frame that is no frame, or one of another place",
    "forged-record": "a record's signature does not verify",
    "forged-time": "a signed time does not verify",
    "forged-witness": "a witness does not verify",
    # bags
    "altered-file": "a listed file does not hold the bytes that its bag was closed with",
    "lost-file": "a file that its bag was closed with is missing",
    "overwritten-lock": "a lock file is not the one that the rack was sealed with",
    "stale-lock": "a lock file names older records than a frame that it lists",
    "damaged-pack": "a pack is not what its seal and its files make",
    "misplaced-pack": "a pack is not that of its rack's seal",
    # time
    "r1-breach": "a timestamp is too far from its signed time",
    "r2-breach": "what came after was signed before",
    "timestamp-outside-bag": "a message lies in a bag of another time",
    "timestamp-after-expiry": "a message has a timestamp at or after the expiry of its lease",
    "timestamp-below-floor": "a message has a timestamp at or below the floor of its lease",
    # leases
    "tentative-write": "a message was written under a lease that was not held",
    "read-mode-write": "a message was written under a lease of a mode that may not write",
    "foreign-lease": "a message was written under a lease of somebody else",
    "watermark-below-message": "a holder relinquished with a watermark below what it wrote",
    "watermark-beyond-expiry": "a holder relinquished with a watermark at or beyond its expiry",
    "count-mismatch": "a holder relinquished with another number of messages than there are",
    "early-grant": "a lease was granted while another holder had one that conflicts with it",
    "grant-overlap": "what two holders wrote, or were allowed to write, overlaps",
    "fence-not-growing": "a fence is not above the one before it",
    "floor-fell": "a floor or settle_to is below what came before it",
    "chain-fork": "two records claim the same place in a chain",
    "grant-above-ceiling": "a lease was granted beyond the ceiling",
    "grant-without-right": "a shard granted under a ceiling record that is not its own",
    "ceiling-fell": "a ceiling is below the one before it",
    "term-above-policy": "a lease was granted for longer than the policy allows",
    "wrong-shard": "a lease was granted by a shard that does not own its domain",
    # sequences
    "lost-frame": "a frame that its writer knew to be committed is not in the record",
    "sequence-reused": "a writer used one sequence number for two frames",
}

_OTHERS: Final = (
    Rule("late-writer", "a file came too late for its bag, and is void", Verdict.OK, Severity.INFO),
    Rule("ghost-bag", "a bag that its rack was not sealed with holds files, which are void", Verdict.OK, Severity.INFO),
    Rule("premature-lock", "a bag or rack was closed before its time", Verdict.OK, Severity.INFO),
    Rule("off-grid", "a directory is not on its log's grid, and does not exist", Verdict.OK, Severity.WARNING),
    Rule("chain-gap", "a grant names one before it that is not known", Verdict.INDETERMINATE, Severity.WARNING),
    Rule("missing-ledger", "the witness ledger of a run is not there", Verdict.INDETERMINATE, Severity.WARNING),
    Rule("truncated-ledger", "the witness ledger of a run lacks its end", Verdict.INDETERMINATE, Severity.WARNING),
    Rule("unverifiable-trust", "a trust record is missing", Verdict.UNVERIFIABLE),
    Rule("unverifiable-policy", "a policy record is missing", Verdict.UNVERIFIABLE),
    Rule("unverifiable-map", "a shard map is missing", Verdict.UNVERIFIABLE),
    Rule("unverifiable-log", "a log has no birth record", Verdict.UNVERIFIABLE),
    Rule("retained-rack", "what a sealed rack held is not there any more", Verdict.UNVERIFIABLE, Severity.WARNING),
    Rule("unreadable", "a file or directory of the copy cannot be read", Verdict.UNVERIFIABLE),
)

RULES: Final[dict[str, Rule]] = {code: Rule(code, title) for code, title in _BREACHES.items()} | {
    rule.code: rule for rule in _OTHERS
}


def found(
    code: str,
    subject: str,
    explanation: str,
    evidence: Iterable[Evidence],
    times: Iterable[NamedInterval] = (),
    *,
    verdict: Verdict | None = None,
) -> Finding:
    """Make a finding of a registered code. ``verdict``: where the evidence decides it otherwise than usual."""
    rule = RULES[code]
    severity = rule.severity
    if verdict is Verdict.VIOLATION:
        severity = Severity.ERROR
    elif verdict is Verdict.INDETERMINATE:
        severity = Severity.WARNING
    return Finding(
        code, verdict or rule.verdict, severity, rule.title, subject, explanation, tuple(evidence), tuple(times)
    )
