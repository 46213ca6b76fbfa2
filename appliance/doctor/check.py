"""One line of the doctor: what was looked at, the verdict, the reason, and the way out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final


class CheckVerdict(StrEnum):
    PASS = "PASS"  # noqa: S105 - a verdict
    FAIL = "FAIL"
    """The requirement is not met: tenure would refuse to work here, or wait for ever, or could not be believed."""
    UNSURE = "UNSURE"
    """It works, but at a price that should be known; or it cannot be seen from here."""
    UNKNOWN = "UNKNOWN"
    """Nothing is known of it yet, or nobody may ask."""


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """A verdict with its reason. ``way_out`` is empty only where nothing has to be done."""

    name: str
    verdict: CheckVerdict
    reason: str
    way_out: str = ""

    @property
    def words(self) -> str:
        return f"{self.name}: {self.reason}"

    def fields(self) -> dict[str, Any]:
        return {"check": self.name, "verdict": self.verdict, "reason": self.reason, "way_out": self.way_out or None}


def passed(name: str, reason: str) -> HealthCheck:
    return HealthCheck(name, CheckVerdict.PASS, reason)


def failed(name: str, reason: str, way_out: str) -> HealthCheck:
    return HealthCheck(name, CheckVerdict.FAIL, reason, way_out)


def unsure(name: str, reason: str, way_out: str) -> HealthCheck:
    return HealthCheck(name, CheckVerdict.UNSURE, reason, way_out)


def unknown(name: str, reason: str, way_out: str) -> HealthCheck:
    return HealthCheck(name, CheckVerdict.UNKNOWN, reason, way_out)


def judged(name: str, said: str, wrong: str, way_out: str, *, holds: object) -> HealthCheck:
    """Return a requirement that is met, as is ``said``; or that is not, and what is ``wrong``."""
    return passed(name, said) if holds else failed(name, wrong, way_out)


WORST_FIRST: Final = (CheckVerdict.FAIL, CheckVerdict.UNKNOWN, CheckVerdict.UNSURE, CheckVerdict.PASS)


def worst(checks: Iterable[HealthCheck]) -> CheckVerdict:
    """Return the worst verdict of all; of nothing, that all is well."""
    return min((check.verdict for check in checks), key=WORST_FIRST.index, default=CheckVerdict.PASS)


def not_well(checks: Iterable[HealthCheck]) -> list[HealthCheck]:
    found = [check for check in checks if check.verdict is not CheckVerdict.PASS]
    return sorted(found, key=lambda check: WORST_FIRST.index(check.verdict))


def exit_status(checks: Iterable[HealthCheck]) -> int:
    """Return 0 if all is well, 1 if something failed, 3 if something could not be made sure of."""
    return {CheckVerdict.FAIL: 1, CheckVerdict.PASS: 0}.get(worst(checks), 3)
