"""What an audit came to: its findings and counts, which of them are reported, and which make it fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

from auditor.evidence.finding import RULES, Finding, Severity, Verdict
from timeagent.errors import BadRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Counts. ``messages``: in the record, of closed bags; ``bags`` includes the ``provisional`` ones, still open."""

    messages: int
    rejected: int
    bags: int
    witnesses: int
    violations: int = 0
    indeterminate: int = 0
    unverifiable: int = 0
    informational: int = 0
    provisional: int
    ledger_gaps: int
    """Stretches of batches that the ledgers lack: what a killed shard did not write any more. No finding."""


@dataclass(frozen=True, slots=True)
class Audit:
    summary: Summary
    findings: tuple[Finding, ...]
    cluster_id: bytes
    root_key: bytes | None
    pinned: bool
    hashed: bool = True
    """Whether every byte was hashed."""


class FailOn(StrEnum):
    """From what on an audit fails. Each includes what stands before it."""

    NEVER = "never"
    VIOLATION = "violation"
    INDETERMINATE = "indeterminate"
    UNVERIFIABLE = "unverifiable"
    WARNING = "warning"
    """What the rules dealt with, but should not have had to."""
    ANY = "any"
    """What is only worth knowing, too."""


def only(audit: Audit, patterns: Sequence[str]) -> Audit:
    """Return the audit with the findings of some codes or verdicts only; counts of findings follow.

    A pattern is a code, a verdict, or the beginning of a code that ends in ``*``. Raises BadRequest for one that fits
    none that there is.
    """
    if not patterns:
        return audit
    for pattern in patterns:
        if pattern not in set(Verdict) and not any(fnmatchcase(code, pattern) for code in RULES):
            raise BadRequest(
                "no-such-code",
                f"{pattern!r} is neither a finding's code nor a verdict",
                hint="docs/findings.md lists the codes; the verdicts are " + ", ".join(Verdict),
            )
    chosen = (
        each
        for each in audit.findings
        if each.verdict in patterns or any(fnmatchcase(each.code, pattern) for pattern in patterns)
    )
    return with_findings(audit, chosen)


def by_id(audit: Audit, identifiers: Collection[str]) -> Audit:
    return with_findings(audit, (each for each in audit.findings if each.id in identifiers))


def with_findings(audit: Audit, chosen: Iterable[Finding]) -> Audit:
    """Return the audit with these findings, and its counts of them."""
    findings = tuple(chosen)
    counts = Counter(each.verdict for each in findings)
    summary = replace(
        audit.summary,
        violations=counts[Verdict.VIOLATION],
        indeterminate=counts[Verdict.INDETERMINATE],
        unverifiable=counts[Verdict.UNVERIFIABLE],
        informational=counts[Verdict.OK],
    )
    return replace(audit, findings=findings, summary=summary)


DEFAULT: Final = FailOn.WARNING


def exit_status(audit: Audit, fail_on: FailOn = DEFAULT) -> int:
    """Return the exit code: 1 for what is found from ``fail_on`` on, 3 if that is only what could not be verified."""
    unverified = audit.summary.unverifiable > 0 or not audit.hashed
    if unverified and not audit.summary.violations and _counts(Verdict.UNVERIFIABLE, Severity.ERROR, fail_on):
        return 3
    return int(any(_counts(each.verdict, each.severity, fail_on) for each in audit.findings))


def _counts(verdict: Verdict, severity: Severity, fail_on: FailOn) -> bool:
    match verdict:
        case Verdict.VIOLATION | Verdict.INDETERMINATE | Verdict.UNVERIFIABLE:
            least = FailOn(verdict.value)
        case _:
            least = FailOn.ANY if severity is Severity.INFO else FailOn.WARNING
    order = list(FailOn)
    return order.index(least) <= order.index(fail_on)
