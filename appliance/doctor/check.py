"""One line of the doctor: what was looked at, the verdict, the reason, and the way out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


class Verdict(StrEnum):
    """What is known of one requirement."""

    PASS = "PASS"  # noqa: S105 - a verdict
    FAIL = "FAIL"
    """The requirement is not met: leasehold would refuse to work here, or wait for ever, or could not be believed."""
    UNSURE = "UNSURE"
    """It works, but at a price that should be known; or it cannot be seen from here."""


@dataclass(frozen=True, slots=True)
class Check:
    """A verdict with its reason. ``way_out`` is empty only where nothing has to be done."""

    name: str
    verdict: Verdict
    reason: str
    way_out: str = ""

    def fields(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {"check": self.name, "verdict": self.verdict, "reason": self.reason, "way_out": self.way_out or None}


def passed(name: str, reason: str) -> Check:
    """Return a requirement that is met."""
    return Check(name, Verdict.PASS, reason)


def failed(name: str, reason: str, way_out: str) -> Check:
    """Return a requirement that is not met."""
    return Check(name, Verdict.FAIL, reason, way_out)


def unsure(name: str, reason: str, way_out: str) -> Check:
    """Return what has a price, or cannot be seen."""
    return Check(name, Verdict.UNSURE, reason, way_out)


def exit_status(checks: Sequence[Check]) -> int:
    """Return 0 if all is well, 1 if something failed, 3 if something could not be made sure of."""
    verdicts = {check.verdict for check in checks}
    return 1 if Verdict.FAIL in verdicts else 3 if Verdict.UNSURE in verdicts else 0
