"""Keys that no trust record of the copy has: a forger's, or those of a record that the copy came too early for.

Each lock file names the newest trust record that its closer found. What was signed before the last bag was closed under
a record of the copy was signed with a key that was in no record then. What was signed later may be good: a copy that
took the trust records first, and the rest while a node joined or got new keys, lacks the record that says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from appliance.formats.framing import Kind
from appliance.formats.lockfile import RECORDS_LAG_NS
from auditor.rules.finding import Finding
from auditor.rules.registry import found

from .signatures import PartialKeyring

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from timeagent.units import Instant

    from .records import ClusterRecords


@dataclass(frozen=True, slots=True)
class Stranger:
    """What goes by a record beyond those of the copy, by its key or its word, and when it was signed at the latest."""

    finding: Finding
    """What is to be said if there was no such record then."""
    signed_ns: int


def known_until(closed: Mapping[int, Instant], newest: int) -> Instant:
    """Return until when there surely was no record after the newest one of the copy; 0: nobody says.

    ``closed``: by record, when the last bag was closed, at the earliest, whose lock file names it. Who found one before
    the newest of the copy found none after that either: they are published in the order of their numbers.
    """
    return max((instant - RECORDS_LAG_NS for number, instant in closed.items() if number <= newest), default=0)


def take_latest(closed: dict[int, Instant], other: Mapping[int, Instant]) -> None:
    """Take what another rack tells of that."""
    for number, instant in other.items():
        closed[number] = max(instant, closed.get(number, 0))


class Strangers:
    """Says of each what it is, when all bags were seen."""

    def __init__(self, records: ClusterRecords, report: Callable[[Finding], None]) -> None:
        """Know of no bag yet."""
        self._records = records
        self._report = report
        self._told: set[str] = set()
        self._waiting: list[Stranger] = []
        self._closed: dict[int, Instant] = {}
        """See ``known_until``."""
        self._named: set[int] = set()
        """Trust records that lock files and frames name."""

    def take(self, strangers: Iterable[Stranger], closed: Mapping[int, Instant], named: Iterable[int]) -> None:
        """Take what a rack tells."""
        self._waiting += strangers
        take_latest(self._closed, closed)
        self._named.update(named)

    def finish(self) -> None:
        """Judge those of all racks: a birth or a seal does not say which trust record it goes by."""
        self.judge(self._waiting)
        if self._waiting and self._missing():
            self._records.doubt_keys()

    def _missing(self) -> list[int]:
        """Return the trust records that are named, and not there."""
        return sorted(number for number in self._named if self._records.missing(Kind.TRUST, number))

    def judge(self, strangers: Iterable[Stranger]) -> None:
        """Report each as a forger's, or one for each file as of a record that is missing from the copy."""
        missing, newest = self._missing(), max(self._records.keyrings, default=0)
        until = known_until(self._closed, newest)
        if missing:
            which = f"trust record {missing[0]}, which is not there"
        elif isinstance(self._records.keys, PartialKeyring):
            which = "a trust record that is not there"
        else:
            which = f"a trust record after {newest}, published when the copy had taken those before it"
        sure = not missing and not isinstance(self._records.keys, PartialKeyring)
        for each in strangers:
            path = each.finding.evidence[0].path
            if sure and each.signed_ns < until:
                self._report(each.finding)
            elif path not in self._told:
                self._told.add(path)
                reason = f"{path} may go by {which}: {each.finding.explanation}"
                self._report(found("unverifiable-trust", path, reason, each.finding.evidence, each.finding.times))
