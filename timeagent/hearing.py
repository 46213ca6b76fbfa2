"""What each source of the agent said last, and how it counts. Pure bookkeeping: asks nobody, reads no clock.

Sources of one *group* have one origin: the kernel's bound is written by the same chronyd that answers over UDP. So a
group is one voice, that of its first member with something to say; more would make one liar look like two witnesses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .combine import Voice, Weight
from .discipline import Bound, ClockMoment, Rules
from .errors import BadTime
from .interval import TimeInterval
from .sources.port import Source
from .units import SECOND, Span

OWN_GROUP: Final = "own"
"""The machine's own time service: ClockBound, chrony, the kernel. What a peer is told comes from here alone."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A source as the agent asks it."""

    source: Source
    weight: Weight = Weight.MEASURE
    group: str = ""
    period_ns: Span = SECOND

    @property
    def name(self) -> str:
        """The source's own name: unique among the agent's sources."""
        return self.source.name


@dataclass(frozen=True, slots=True)
class _Heard:
    bound: Bound | None
    reason: str
    """Why there is no bound."""


class Hearing:
    """The newest answer of each source."""

    def __init__(self, listed: Sequence[Listed], rules: Rules) -> None:
        """Begin with nothing heard."""
        assert len({each.name for each in listed}) == len(listed), "two sources have one name"
        self.listed = tuple(listed)
        self._rules = rules
        self._heard: dict[str, _Heard] = {}
        self.changed = False
        """Whether anything was noted since this was last set to False."""

    def note(self, listed: Listed, bound: Bound) -> None:
        """Keep what a source said."""
        self._heard[listed.name] = _Heard(bound, "")
        self.changed = True

    def note_refusal(self, listed: Listed, problem: BadTime) -> None:
        """Keep why a source has nothing to say. What it said before counts until it is no longer fresh."""
        before = self._heard.get(listed.name)
        self._heard[listed.name] = _Heard(before.bound if before else None, str(problem))
        self.changed = True

    def forget(self) -> None:
        """The clocks moved: nothing that was said before counts."""
        self._heard.clear()
        self.changed = True

    def complete(self) -> bool:
        """Whether every source has answered or refused since the last ``forget``."""
        return len(self._heard) == len(self.listed)

    def voices(self, now: ClockMoment, *, own: bool = False) -> list[Voice]:
        """Return what counts now, aged to now: one voice a group, none that is not fresh. ``own``: that group only."""
        found, grouped = [], set()
        for each in self.listed:
            bound = self._fresh(each, now)
            if bound is None or each.group in grouped or (own and each.group != OWN_GROUP):
                continue
            if each.group:
                grouped.add(each.group)
            found.append(Voice(each.name, bound.aged(now, self._rules.drift_ppm), each.weight, bound.cluster_time))
        return found

    def _fresh(self, listed: Listed, now: ClockMoment) -> Bound | None:
        heard = self._heard.get(listed.name)
        if heard is None or heard.bound is None:
            return None
        allowed = max(self._rules.fresh_ns, 2 * listed.period_ns)
        return heard.bound if now.boot_ns - heard.bound.at.boot_ns <= allowed else None

    def fields(self, now: ClockMoment, roles: Callable[[str], str]) -> list[dict[str, Any]]:
        """Return one object for each source: what it says of true time minus CLOCK_BOOTTIME, or why it says nothing."""
        counting = {voice.source for voice in self.voices(now)}
        shown = []
        for each in self.listed:
            heard, bound = self._heard.get(each.name), self._fresh(each, now)
            ahead: TimeInterval | None = bound.aged(now, self._rules.drift_ppm) if bound else None
            shown.append(
                {
                    "source": each.name,
                    "weight": each.weight.value,
                    "role": "silent" if ahead is None else roles(each.name) if each.name in counting else "spare",
                    "earliest_ahead_ns": ahead.earliest if ahead else None,
                    "latest_ahead_ns": ahead.latest if ahead else None,
                    "age_ns": now.boot_ns - bound.at.boot_ns if bound else None,
                    "reason": (heard.reason or None) if heard else "not asked yet",
                }
            )
        return shown
