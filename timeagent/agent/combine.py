"""What several time sources say together: intersection, tolerating liars (Marzullo). Pure. Nothing is averaged.

Every voice is an interval for true time minus CLOCK_BOOTTIME, all for the same instant. With n voices of which at most
f lie, true time lies in n - f of them at least: so it lies in the hull of the points that n - f voices hold. No such
point: more than f lie, and nobody here knows which.

Two kinds of voices. A *measure* (the machine's own time service, a peer) is good to milliseconds and makes the
interval. A *cross-check* (the file server's clock, Roughtime) is good to seconds: it would only make the interval
wider, so it votes on the result and never shapes it. More dissent than liars are tolerated: a contradiction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from ..interval import TimeInterval


class Weight(Enum):
    """What a voice may do."""

    MEASURE = "measure"
    CROSS_CHECK = "cross-check"
    ASSUMED = "assumed"
    """Stated, not measured: counts only where nothing measures."""


@dataclass(frozen=True, slots=True)
class Voice:
    """What one source says: true time minus CLOCK_BOOTTIME is inside ``ahead``, at the instant asked about."""

    source: str
    ahead: TimeInterval
    weight: Weight = Weight.MEASURE
    cluster_time: bool = False
    """Relative to a named reference of this cluster, not to UTC."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """The interval, who shaped it, and who says otherwise (no more than are tolerated)."""

    ahead: TimeInterval
    voices: tuple[str, ...]
    dissenting: tuple[str, ...]
    assumed: bool
    cluster_time: bool


@dataclass(frozen=True, slots=True)
class Contradicted:
    """More voices are wrong than are tolerated."""

    voices: tuple[Voice, ...]
    tolerated: int


@dataclass(frozen=True, slots=True)
class Unheard:
    """No voice that may shape an interval."""


type Verdict = Agreed | Contradicted | Unheard


def tolerated(voices: int, liars: int | None) -> int:
    """Return how many of so many voices may lie: fewer than half, and no more than configured."""
    fewer_than_half = (voices - 1) // 2
    return fewer_than_half if liars is None else min(liars, fewer_than_half)


def hull(intervals: Sequence[TimeInterval], liars: int) -> TimeInterval | None:
    """Return the hull of the points that all but ``liars`` intervals hold, or None if there is no such point."""
    need = len(intervals) - liars
    assert need > 0
    # Both ends belong to an interval: at one instant, begin before ending.
    edges = sorted(edge for each in intervals for edge in ((each.earliest, 0), (each.latest, 1)))
    count, earliest, latest = 0, None, None
    for instant, ends in edges:
        if ends:
            if count >= need:
                latest = instant
            count -= 1
        else:
            count += 1
            if count >= need and earliest is None:
                earliest = instant
    if earliest is None or latest is None:
        return None
    return TimeInterval(earliest, latest)


def combine(voices: Sequence[Voice], liars: int | None = None) -> Verdict:
    """Return what the voices say together. ``liars``: how many may be wrong; None: fewer than half."""
    measures = [voice for voice in voices if voice.weight is Weight.MEASURE]
    checks = [voice for voice in voices if voice.weight is Weight.CROSS_CHECK]
    shaping = measures or [voice for voice in voices if voice.weight is Weight.ASSUMED]
    if not shaping:
        return Unheard()
    of_shaping = tolerated(len(shaping), liars)
    ahead = hull([voice.ahead for voice in shaping], of_shaping)
    if ahead is None:
        return Contradicted(tuple(shaping), of_shaping)
    asked = [*shaping, *checks]
    dissenting = tuple(voice.source for voice in asked if voice.ahead.intersection(ahead) is None)
    of_all = tolerated(len(asked), liars)
    if len(dissenting) > of_all:
        return Contradicted(tuple(asked), of_all)
    return Agreed(
        ahead,
        tuple(voice.source for voice in shaping if voice.source not in dissenting),
        dissenting,
        assumed=not measures,
        cluster_time=any(voice.cluster_time for voice in shaping),
    )
