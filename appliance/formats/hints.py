"""Hints: where a domain's messages are. Advice about where to look, never about whether something is there.

Hints make one claim about some messages: each of them with a timestamp above ``reach_ns`` of its log is in a file that
is named. What is not known raises that bound; nothing ever lowers it. So the claims about two sets of messages make one
about both (``joined``), and forgetting a place keeps a claim true.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Final

import msgspec

from timeagent.canonical import U64, Record
from timeagent.units import Instant

PLACES_MAX: Final = 32
"""How many files are named for one domain, or for what was written under one lease."""
LOGS_MAX: Final = 8
"""How many logs may have a bound of their own."""
ANY_FILE: Final = "*"
"""In place of a file's name: any file of the bag."""
_OVERHEAD_BYTES: Final = 24
"""What a place takes beside its two names: its numbers, and the lengths of everything."""

type LogName = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
type FileName = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]


class HintedFile(Record, frozen=True):
    """A file of a bag that holds messages of the domain."""

    log: LogName
    bag_start_ns: U64
    file_name: FileName
    last_ns: U64
    """No message of the domain in this file, as far as it is known, has a higher timestamp."""

    @property
    def file(self) -> tuple[str, Instant, str]:
        return self.log, self.bag_start_ns, self.file_name


class LogBound(Record, frozen=True):
    """Above which instant all messages in one log are in places that are named."""

    log: LogName
    above_ns: U64


class Hints(Record, frozen=True):
    """Each message with a timestamp above ``reach_ns`` of its log is in one of the places."""

    complete_from_ns: U64 = 0
    """The bound for all logs."""
    bounds: tuple[LogBound, ...] = ()
    """Higher ones, for single logs."""
    places: tuple[HintedFile, ...] = ()

    def reach_ns(self, log: str) -> Instant:
        """Return the instant above which every message in this log is in one of the places."""
        return max((each.above_ns for each in self.bounds if each.log == log), default=self.complete_from_ns)

    @property
    def bytes(self) -> int:
        if not self.places and not self.bounds:
            return 0
        names = [len(place.log) + len(place.file_name) for place in self.places] + [len(b.log) for b in self.bounds]
        return _OVERHEAD_BYTES * len(names) + sum(names)


NOTHING_WRITTEN: Final = Hints()
"""There are no messages: a claim that is true of an empty set."""


def nothing_known(up_to_ns: Instant) -> Hints:
    """Return the claim about messages of which nothing is known but that none is above an instant."""
    return Hints(complete_from_ns=up_to_ns)


def joined(one: Hints, other: Hints, *, places_max: int = PLACES_MAX, bytes_max: int | None = None) -> Hints:
    """Return the claim about the messages of both, within the limits.

    Over a limit the place that is longest past is forgotten, of the log that has most of them: the bound of that log
    rises to it, and the other logs keep theirs.
    """
    complete = max(one.complete_from_ns, other.complete_from_ns)
    bounds: dict[str, Instant] = {}
    for bound in (*one.bounds, *other.bounds):
        bounds[bound.log] = max(bounds.get(bound.log, 0), bound.above_ns)
    files: dict[tuple[str, Instant, str], HintedFile] = {}
    for place in (*one.places, *other.places):
        known = files.pop(place.file, None)
        files[place.file] = place if known is None or known.last_ns <= place.last_ns else known
    places = list(files.values())
    while True:
        complete, bounds = _fewer_bounds(complete, bounds)
        places = [each for each in places if each.last_ns > max(complete, bounds.get(each.log, 0))]
        found = Hints(
            complete_from_ns=complete,
            bounds=tuple(LogBound(log=log, above_ns=instant) for log, instant in sorted(bounds.items())),
            places=tuple(places),
        )
        if len(places) <= places_max and (bytes_max is None or found.bytes <= bytes_max):
            return found
        if not places:
            return nothing_known(max((complete, *bounds.values())))
        ((most, _),) = Counter(each.log for each in places).most_common(1)
        bounds[most] = min(each.last_ns for each in places if each.log == most)


def _fewer_bounds(complete: Instant, bounds: dict[str, Instant]) -> tuple[Instant, dict[str, Instant]]:
    """Let the bound for all logs take in those that are not above it, and the lowest of too many."""
    while len(bounds) > LOGS_MAX:
        complete = max(complete, bounds.pop(min(bounds, key=bounds.__getitem__)))
    return complete, {log: instant for log, instant in bounds.items() if instant > complete}


def capped(hints: Hints, highest_ns: Instant) -> Hints:
    """Return the claim about messages none of which is above an instant."""
    return Hints(
        complete_from_ns=min(hints.complete_from_ns, highest_ns),
        bounds=tuple(
            LogBound(log=each.log, above_ns=highest_ns) if each.above_ns > highest_ns else each for each in hints.bounds
        ),
        places=tuple(
            msgspec.structs.replace(each, last_ns=highest_ns) if each.last_ns > highest_ns else each
            for each in hints.places
        ),
    )
