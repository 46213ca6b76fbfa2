"""The finding: one result of the audit, with a stable code, a verdict and its evidence."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from timeagent.console import bound_fields, printable
from timeagent.signedtime import SignedTime

if TYPE_CHECKING:
    from timeagent.interval import TimeInterval

ID_CHARACTERS: Final = 12


class Verdict(StrEnum):
    """What a finding says about the cluster."""

    VIOLATION = "violation"
    """Somebody broke a rule, or changed bytes: the evidence proves it."""
    INDETERMINATE = "indeterminate"
    """The evidence has a gap where the answer would be. An unknown outcome is not a crime."""
    UNVERIFIABLE = "unverifiable"
    """Keys or records are missing, so that nothing can be said."""
    PROVISIONAL = "provisional"
    """About something that is still open."""
    OK = "ok"
    """Worth knowing; the rules dealt with it as they should."""


class Severity(StrEnum):
    """How much it matters to who reads it."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True, order=True)
class Evidence:
    """Bytes in the tree: a path under the root, where they begin, and how many they are (0: the name itself)."""

    path: str
    offset: int = 0
    length: int = 0


@dataclass(frozen=True, slots=True)
class NamedInterval:
    """What a clock said, and what about: shown with a finding."""

    what: str
    earliest_ns: int
    latest_ns: int
    key: str = ""
    """The id of the key that signed it; empty for what nobody signed, or nobody asks."""
    epoch: int = 0
    """Which epoch of that clock it was."""
    node: str = ""
    """Whose clock it was."""

    @classmethod
    def of(cls, what: str, said: TimeInterval | SignedTime) -> NamedInterval:
        """Name an interval, or a signed time."""
        if isinstance(said, SignedTime):
            return cls(what, said.interval.earliest, said.interval.latest, said.key_id.hex(), said.clock_epoch)
        return cls(what, said.earliest, said.latest)

    @classmethod
    def at(cls, what: str, instant: int) -> NamedInterval:
        """Name an instant that is exact by definition, such as an expiry."""
        return cls(what, instant, instant)


@dataclass(frozen=True, slots=True)
class Finding:
    """One result. Two findings of one code about the same subject with the same evidence are the same finding."""

    code: str
    verdict: Verdict
    severity: Severity
    title: str
    subject: str
    """What it is about: a file, a lease, a domain."""
    explanation: str
    """One or two sentences with the values that decide it."""
    evidence: tuple[Evidence, ...]
    times: tuple[NamedInterval, ...] = ()
    clocks: tuple[str, ...] = ()
    """The nodes whose clocks it rests on; of two that contradict each other only the wrong one, where that is told."""

    @property
    def id(self) -> str:
        """A short digest of code, subject and evidence: the same in every audit of the same bytes."""
        parts = [self.code, self.subject, *(f"{each.path}\0{each.offset}\0{each.length}" for each in self.evidence)]
        return hashlib.sha256("\0\0".join(parts).encode()).hexdigest()[:ID_CHARACTERS]

    def fields(self) -> dict[str, Any]:
        """Return what JSON shows."""
        return {
            "id": self.id,
            "code": self.code,
            "verdict": self.verdict.value,
            "severity": self.severity.value,
            "title": self.title,
            "subject": printable(self.subject),
            "explanation": printable(self.explanation),
            "docs": f"docs/findings.md#{self.code}",
            "evidence": [{"path": printable(e.path), "offset": e.offset, "length": e.length} for e in self.evidence],
            "times": [
                {
                    "what": each.what,
                    **bound_fields("earliest", each.earliest_ns),
                    **bound_fields("latest", each.latest_ns),
                }
                | ({"node": each.node} if each.node else {})
                for each in self.times
            ],
        } | ({"clocks": list(self.clocks)} if self.clocks else {})


_ORDER: Final = {verdict: position for position, verdict in enumerate(Verdict)}


def in_order(findings: list[Finding]) -> list[Finding]:
    """Return the findings once each, worst first, in an order that depends on nothing but them."""
    unique = {finding.id: finding for finding in findings}
    return sorted(unique.values(), key=lambda f: (_ORDER[f.verdict], f.code, f.subject, f.evidence))
