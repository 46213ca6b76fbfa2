"""The findings of an audit as rows: narrowed, sorted, in groups. Pure; every verdict is the auditor's."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from auditor.rules.finding import Severity, Verdict
from timeagent.console import printable

from .arranging import Heading
from .columns import Column
from .subjects import Cell, Tone
from .words import clock_text, matching

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from auditor.report.result import Summary
    from auditor.rules.finding import Finding
    from timeagent.units import Instant

FINDING_COLUMNS: Final = (
    Column("", 1),
    Column("verdict", 13),
    Column("code", 14, most=24, name=True),
    Column("time", 12, rank=2),
    Column("about", 12, most=120, name=True),
    Column("id", 12, rank=3),
)
MARKS: Final = {
    Verdict.VIOLATION: ("✗", Tone.BAD),
    Verdict.INDETERMINATE: ("?", Tone.WARN),
    Verdict.UNVERIFIABLE: ("!", Tone.WARN),
    Verdict.PROVISIONAL: ("…", Tone.DIM),
    Verdict.OK: ("i", Tone.PLAIN),
}
LEGEND: Final = "  ".join(
    f"{mark} {'to know' if verdict is Verdict.OK else verdict.value}" for verdict, (mark, _) in MARKS.items()
)


class Order(StrEnum):
    """By what findings are sorted."""

    WORST = "worst first"
    TIME = "time"
    CODE = "code"
    ABOUT = "about"


class Group(StrEnum):
    """What findings stand together."""

    NONE = "none"
    VERDICT = "verdict"
    CODE = "code"


@dataclass(frozen=True, slots=True)
class Wanted:
    """How they should be arranged."""

    words: str = ""
    order: Order = Order.WORST
    backwards: bool = False
    group: Group = Group.NONE


type Row = Finding | Heading


def arranged(findings: Sequence[Finding], times: Mapping[str, Instant], wanted: Wanted) -> list[Row]:
    """Return the rows. ``findings``: worst first. ``times``: when the evidence of each was complete, by its id."""
    texts = [
        f"{each.code} {verdict_word(each)} {each.id} {each.title} {printable(each.subject)}".casefold()
        for each in findings
    ]
    found = [findings[place] for place in matching(texts, wanted.words)] if wanted.words else list(findings)
    match wanted.order:
        case Order.WORST:
            pass
        case Order.TIME:
            found.sort(key=lambda each: times.get(each.id, 0))
        case Order.CODE:
            found.sort(key=lambda each: each.code)
        case Order.ABOUT:
            found.sort(key=lambda each: each.subject)
    if wanted.backwards:
        found.reverse()
    if wanted.group is Group.NONE:
        return list(found)
    groups: dict[str, list[Finding]] = {}
    for each in found:
        groups.setdefault(verdict_word(each) if wanted.group is Group.VERDICT else each.code, []).append(each)
    rows: list[Row] = []
    for name, members in groups.items():
        rows += [Heading(name, len(members)), *members]
    return rows


def verdict_word(finding: Finding) -> str:
    """Return the verdict; of what the rules dealt with, how much it matters."""
    if finding.verdict is not Verdict.OK:
        return finding.verdict.value
    return "to know" if finding.severity is Severity.INFO else finding.severity.value


def finding_row(finding: Finding, instant: Instant | None) -> tuple[Cell, ...]:
    """Return the cells of a finding, in the order of FINDING_COLUMNS."""
    mark, tone = MARKS[finding.verdict]
    return (
        Cell(mark, tone),
        Cell(verdict_word(finding), tone),
        Cell(finding.code),
        Cell("-" if instant is None else clock_text(instant, 3), Tone.DIM),
        Cell(printable(finding.subject)),
        Cell(finding.id, Tone.DIM),
    )


def summary_cells(summary: Summary) -> list[Cell]:
    """Say what the audit came to, in one line; every number also says what of."""
    bad = Tone.BAD if summary.violations else Tone.GOOD
    parts = [
        Cell(f"{'✗' if summary.violations else '●'} {_counted(summary.violations, 'violation')}  ", bad),
        Cell(f"{summary.indeterminate} indeterminate  ", Tone.WARN if summary.indeterminate else Tone.PLAIN),
        Cell(f"{summary.unverifiable} unverifiable  ", Tone.WARN if summary.unverifiable else Tone.PLAIN),
        Cell(f"{summary.informational} to know   "),
        Cell(f"{summary.messages:,} messages  ", Tone.DIM),
        Cell(f"{summary.bags:,} bags ({summary.provisional:,} provisional)  ", Tone.DIM),
        Cell(f"{summary.witnesses:,} witnesses", Tone.DIM),
    ]
    if summary.rejected:
        parts.insert(5, Cell(f"{summary.rejected:,} rejected  ", Tone.WARN))
    return parts


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def exported(findings: Iterable[Finding]) -> list[dict[str, object]]:
    """Return findings as they are written to a file."""
    return [finding.fields() for finding in findings]
