"""What the clocks of several nodes have in common, and whose is outside: by intersection, never by an average. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from timeagent.agent.combine import hull, tolerated
from timeagent.units import span_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from timeagent.interval import TimeInterval
    from timeagent.units import Span

    from .state import NodeClock


@dataclass(frozen=True, slots=True)
class Outside:
    """A clock that has no instant in common with what the others agree on."""

    node: str
    by_ns: Span
    """How far, at least: positive where it is ahead."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """What the clocks that were compared say together."""

    compared: tuple[str, ...]
    not_known: int
    """How many more nodes there are of which no interval is known."""
    common: TimeInterval | None
    """Of true time minus this machine's CLOCK_BOOTTIME. None: no majority has an instant in common."""
    outside: tuple[Outside, ...] = ()

    @property
    def good(self) -> bool:
        """Whether no clock contradicts another."""
        return not self.compared or (self.common is not None and not self.outside)


_PAIR: Final = 2


def agreement(clocks: Sequence[NodeClock]) -> Agreement:
    """Return what as many clocks as possible have in common, more than half of them at least (Marzullo)."""
    known = [(clock.node, clock.ahead) for clock in clocks if clock.ahead is not None]
    names = tuple(node for node, _ in known)
    missing = len(clocks) - len(known)
    for liars in range(tolerated(len(known), None) + 1 if known else 0):
        common = hull([ahead for _, ahead in known], liars)
        if common is not None:
            outside = [
                Outside(node, ahead.earliest - common.latest if ahead.earliest > common.latest else by)
                for node, ahead in known
                if ahead.earliest > common.latest or (by := ahead.latest - common.earliest) < 0
            ]
            return Agreement(names, missing, common, tuple(outside))
    return Agreement(names, missing, None)


def agreement_words(found: Agreement) -> str:
    """Say what comes of it; empty where no clock is known."""
    count = len(found.compared)
    rest = f"; of {found.not_known} more nothing is known" if found.not_known else ""
    if not count:
        return ""
    if found.common is None:
        pair = f"{' and '.join(found.compared)} have no instant in common"
        said = pair if count == _PAIR else f"no majority of {count} clocks has an instant in common"
        return f"{said}: one clock at least is outside its bound{rest}"
    if count == 1:
        return f"only {found.compared[0]} says what time it is: nothing to compare it with{rest}"
    if not found.outside:
        return f"all {count} clocks have ±{span_text(found.common.radius)} in common{rest}"
    far = " and ".join(
        f"{each.node} is {span_text(abs(each.by_ns))} {'ahead of' if each.by_ns > 0 else 'behind'}"
        for each in found.outside
    )
    held = count - len(found.outside)
    return f"{far} all that {held} of {count} clocks have in common: its bound is broken, or theirs are{rest}"
