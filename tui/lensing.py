"""The switches of *what if*: what is taken to have been otherwise, as rows that can be turned. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from auditor.timeline.gathering import WhatIf
from timeagent.units import MS, SECOND, span_text

from .subjects import Cell, Tone

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from auditor.timeline.what_if import Changes
    from timeagent.units import Span

SHIFTS: Final[tuple[Span, ...]] = (
    *(-n * SECOND for n in (60, 10, 5, 2, 1)),
    -250 * MS,
    -10 * MS,
    0,
    10 * MS,
    250 * MS,
    *(n * SECOND for n in (1, 2, 5, 10, 60)),
)
"""By how much more a node's clock is taken to have shown."""
GRACES: Final[tuple[Span | None, ...]] = (None, 0, 250 * MS, 500 * MS, *(n * SECOND for n in (1, 2, 4, 8, 30)))


@dataclass(frozen=True, slots=True)
class Switches:
    """Where every switch stands."""

    drop_late: bool = False
    grace_ns: Span | None = None
    shifts: Mapping[str, Span] = field(default_factory=dict)

    def lens(self) -> WhatIf:
        """Return it as the auditor takes it."""
        shifts = {node: span for node, span in sorted(self.shifts.items()) if span}
        return WhatIf(shifts, self.grace_ns, self.drop_late)

    def turned(self, nodes: Sequence[str], row: int, steps: int) -> Switches:
        """Return the switches with one turned, by so many steps; at its end it stays."""
        if row == 0:
            return Switches(not self.drop_late, self.grace_ns, self.shifts)
        if row == 1:
            place = GRACES.index(self.grace_ns) + steps
            return Switches(self.drop_late, GRACES[max(0, min(place, len(GRACES) - 1))], self.shifts)
        node = nodes[row - 2]
        place = SHIFTS.index(self.shifts.get(node, 0)) + steps
        shift = SHIFTS[max(0, min(place, len(SHIFTS) - 1))]
        return Switches(self.drop_late, self.grace_ns, {**self.shifts, node: shift})


def switch_rows(switches: Switches, nodes: Sequence[str]) -> list[tuple[Cell, ...]]:
    """Return a row for each switch: whether it is turned, what it is, where it stands."""
    rows = [
        _row("drop late messages", "yes" if switches.drop_late else "no", turned=switches.drop_late),
        _row(
            "grace of every log",
            "as it was" if switches.grace_ns is None else span_text(switches.grace_ns),
            turned=switches.grace_ns is not None,
        ),
    ]
    for node in nodes:
        shift = switches.shifts.get(node, 0)
        words = f"{'+' if shift > 0 else '−'}{span_text(abs(shift))}" if shift else "as it was"
        rows.append(_row(f"clock of {node}", words, turned=bool(shift)))
    return rows


def _row(what: str, value: str, *, turned: bool) -> tuple[Cell, ...]:
    tone = Tone.WARN if turned else Tone.PLAIN
    return Cell("[x]" if turned else "[ ]", tone), Cell(what, tone), Cell(value, tone)


def lens_words(lens: WhatIf, changes: Changes | None, problem: str = "") -> str:
    """Say what is otherwise, and what that changes; or why that cannot be told."""
    parts = ["late messages dropped"] if lens.drop_late else []
    if lens.grace_ns is not None:
        parts.append(f"grace {span_text(lens.grace_ns)}")
    parts += [f"clock of {node} {'+' if span > 0 else '−'}{span_text(abs(span))}" for node, span in lens.shifts.items()]
    words = f"WHAT IF {', '.join(parts)}"
    if problem:
        return f"{words}: not known: {problem}; all is shown as it was"
    if changes is None:
        return f"{words}: reading the copy so …"
    return (
        f"{words}: {_told(len(changes.appear), '+', changes.appear)}, {_told(len(changes.vanish), '−', changes.vanish)}"
    )


def _told(count: int, sign: str, findings: Sequence[object]) -> str:
    codes = sorted({str(getattr(each, "code", "")) for each in findings})
    shown = ", ".join(codes[:3]) + ("…" if len(codes) > 3 else "")  # noqa: PLR2004
    more = "more" if sign == "+" else "fewer"
    return f"{count:,} finding{'' if count == 1 else 's'} {more}" + (f" ({shown})" if codes else "")
