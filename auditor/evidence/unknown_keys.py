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
    from collections.abc import Iterable, Iterator, Mapping

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


def take_latest[K](closed: dict[K, Instant], other: Mapping[K, Instant]) -> None:
    """Take what another rack tells of when something was closed: of each the latest instant counts."""
    for each, instant in other.items():
        closed[each] = max(instant, closed.get(each, 0))


def missing_trust(records: ClusterRecords, named: Iterable[int]) -> list[int]:
    """Return the trust records that are not there, of those that are named."""
    return sorted(number for number in named if records.missing(Kind.TRUST, number))


def judge_strangers(
    records: ClusterRecords, strangers: Iterable[Stranger], closed: Mapping[int, Instant], named: Iterable[int]
) -> Iterator[Finding]:
    """Yield each as a forger's, or one for each file as of a record that is missing from the copy.

    Asked when all bags were seen: a birth or a seal does not say which trust record it goes by. ``closed``: see
    ``known_until``; ``named``: the trust records that lock files and frames name.
    """
    missing, newest = missing_trust(records, named), max(records.keyrings, default=0)
    until, partial, told = known_until(closed, newest), isinstance(records.keys, PartialKeyring), set[str]()
    if missing:
        which = f"trust record {missing[0]}, which is not there"
    elif partial:
        which = "a trust record that is not there"
    else:
        which = f"a trust record after {newest}, published when the copy had taken those before it"
    for each in strangers:
        path = each.finding.evidence[0].path
        if not missing and not partial and each.signed_ns < until:
            yield each.finding
        elif path not in told:
            told.add(path)
            reason = f"{path} may go by {which}: {each.finding.explanation}"
            yield found("unverifiable-trust", path, reason, each.finding.evidence, each.finding.times)
