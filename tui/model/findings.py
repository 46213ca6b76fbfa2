"""The findings of an audit as rows, and the evidence of one as lines that lead on to what they name.

Every verdict is the auditor's. ``evidence_of`` blocks: it reads the tree again; all else is pure.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from auditor.columns.events import NAME_THE_COPY
from auditor.evidence.finding import Check, Finding, Severity, Verdict, own_words
from auditor.explain.context import context_of
from auditor.explain.lineage import Link, LinkKind, lineage
from auditor.explain.words import context_lines, explain_lines
from timeagent.console import counted, printable
from timeagent.units import Instant

from .state import Cell, DetailLine, DomainSubject, FindingSubject, NodeSubject, Subject, Tone
from .tables import OPEN, Column, Listing, ListOptions
from .words import clock_text

if TYPE_CHECKING:
    from auditor.explain.archive import Archive
    from auditor.rules.result import Summary


FINDING_COLUMNS: Final = (
    Column("", 1),
    Column("verdict", 13),
    Column("code", 14, most=24, name=True),
    Column("time", 12, rank=2),
    Column("about", 12, most=120, name=True),
    Column("id", 12, rank=3),
)
FINDING_MARKS: Final = {
    Verdict.VIOLATION: ("✗", Tone.BAD),
    Verdict.INDETERMINATE: ("?", Tone.WARN),
    Verdict.UNVERIFIABLE: ("!", Tone.WARN),
    Verdict.OK: ("i", Tone.PLAIN),
}
FINDING_LEGEND: Final = "  ".join(
    f"{mark} {'to know' if verdict is Verdict.OK else verdict.value}" for verdict, (mark, _) in FINDING_MARKS.items()
)


def verdict_word(finding: Finding) -> str:
    """Return the verdict; of what the rules dealt with, how much it matters."""
    if finding.verdict is not Verdict.OK:
        return finding.verdict.value
    return "to know" if finding.severity is Severity.INFO else finding.severity.value


def _texts(findings: Sequence[Finding]) -> list[str]:
    return [
        f"{each.code} {verdict_word(each)} {each.id} {each.title} {printable(each.subject)}".casefold()
        for each in findings
    ]


FINDINGS: Final = Listing[Finding, Mapping[str, Instant]](
    FINDING_COLUMNS,
    lambda each, times: finding_row(each, times.get(each.id)),
    lambda each: FindingSubject(each.id),
    {
        "worst first": None,
        "time": lambda each, times: times.get(each.id, 0),
        "code": lambda each, _: each.code,
        "about": lambda each, _: each.subject,
    },
    {"none": None, "verdict": lambda each, _: verdict_word(each), "code": lambda each, _: each.code},
    _texts,
    by_name=False,
)
"""The worst come first. What they depend on: when the evidence of each was complete, by its id."""
FINDING_OPTIONS: Final = ListOptions("worst first")


def finding_row(finding: Finding, instant: Instant | None) -> tuple[Cell, ...]:
    mark, tone = FINDING_MARKS[finding.verdict]
    return (
        Cell(mark, tone),
        Cell(verdict_word(finding), tone),
        Cell(finding.code),
        Cell("-" if instant is None else clock_text(instant, 3), Tone.DIM),
        Cell(printable(finding.subject)),
        Cell(finding.id, Tone.DIM),
    )


def summary_cells(summary: Summary) -> list[Cell]:
    mark, bad = ("✗", Tone.BAD) if summary.violations else ("●", Tone.GOOD)
    parts = [
        Cell(f"{mark} {counted(summary.violations, 'violation')}  ", bad),
        Cell(f"{summary.indeterminate} indeterminate  ", Tone.WARN if summary.indeterminate else Tone.PLAIN),
        Cell(f"{summary.unverifiable} unverifiable  ", Tone.WARN if summary.unverifiable else Tone.PLAIN),
        Cell(f"{summary.informational} to know   "),
        Cell(f"{counted(summary.messages, 'message')}  ", Tone.DIM),
        Cell(f"{counted(summary.bags, 'bag')} ({summary.provisional:,} provisional)  ", Tone.DIM),
        Cell(counted(summary.witnesses, "witness", "witnesses"), Tone.DIM),
    ]
    if summary.rejected:
        parts.insert(5, Cell(f"{summary.rejected:,} rejected  ", Tone.WARN))
    return parts


CLOSED: Final = "▸"
LEAF: Final = "·"
CHECKED: Final = {True: ("✓", Tone.GOOD), False: ("✗", Tone.BAD), None: ("?", Tone.WARN)}
EVIDENCE_LEGEND: Final = "✓ holds  ✗ does not  ? cannot be told  ▾ open  ▸ closed  · nothing inside"

type LinkPath = tuple[int, ...]
"""Which link under which: the way from the finding down."""


def chain_lines(
    link: Link, closed: Collection[LinkPath] = (), path: LinkPath = ()
) -> Iterator[tuple[LinkPath, DetailLine, Link]]:
    """Yield the chain as lines, each with the way to its link. ``closed``: links whose insides are not shown."""
    indent = "  " * len(path)
    inside = bool(link.checks or link.under)
    mark = LEAF if not inside else CLOSED if path in closed else OPEN
    failing = sum(check.holds is False for check in link.checks)
    hidden = sum(check.holds is False for check in link.chain()) if path in closed else 0
    told = f"  ✗ {hidden} inside" if hidden else ""
    tone = Tone.BAD if failing or hidden else Tone.STRONG if not path else Tone.PLAIN
    title = printable(link.title)
    known = link.kind is LinkKind.FINDING or title.startswith(link.kind.value)
    head = "" if known else f"{link.kind}: "
    cells = (Cell(f"{indent}{mark} ", Tone.DIM), Cell(f"{head}{title}{told}", tone))
    yield path, DetailLine(cells, subject_of(link)), link
    if path in closed:
        return
    for check in link.checks:
        yield path, DetailLine((Cell(f"{indent}    "), *check_cells(check))), link
    for number, each in enumerate(link.under):
        yield from chain_lines(each, closed, (*path, number))


def check_cells(check: Check) -> tuple[Cell, ...]:
    mark, tone = CHECKED[check.holds]
    plain = Tone.PLAIN if check.holds else tone
    limit = f"{'limit ' if check.holds is not False else 'but must be '}{check.limit}" if check.limit else ""
    return (
        Cell(f"{mark} ", tone),
        Cell(f"{check.what}: ", Tone.DIM if check.holds else tone),
        Cell(printable(check.value) + ("   " if limit else ""), plain),
        Cell(printable(limit), Tone.DIM if check.holds else tone),
    )


def subject_of(link: Link) -> Subject | None:
    """Return what a link leads to: its bytes; a key, to its node."""
    if link.where is not None and link.kind is not LinkKind.MISSING:
        return link.where
    if link.domain is not None:
        return DomainSubject(link.domain)
    return None if link.node is None else NodeSubject(link.node)


def wrapped_lines(lines: Collection[str], width: int) -> list[DetailLine]:
    """Return text in lines of at most a width, what goes on further in."""
    found = []
    for line in lines:
        deep = " " * (len(line) - len(line.lstrip()) + 4)
        pieces = textwrap.wrap(line, max(20, width), subsequent_indent=deep, break_on_hyphens=False) or [""]
        strong = bool(line) and not line.startswith(" ")
        found += [DetailLine((Cell(piece, Tone.STRONG if strong else Tone.PLAIN),)) for piece in pieces]
    return found


@dataclass(frozen=True, slots=True)
class FindingEvidence:
    link: Link
    explanation: list[str]
    """As ``tenure explain`` prints it."""


def evidence_of(finding: Finding, archive: Archive) -> FindingEvidence:
    """Put together what is known of a finding. Blocks: it reads the tree. Raises Damaged, Environment."""
    context = context_lines(context_of(finding, archive.timeline))
    if archive.copy is not None:
        return FindingEvidence(lineage(finding, archive), [*explain_lines(finding, archive.tree), *context])
    # What the audit said, and where the bytes were that it rests on: the chain itself is read from those.
    title = f"{finding.code}: {finding.title}"
    under = tuple(
        Link(LinkKind.MISSING, f"{printable(each.path)} at {each.offset}: {NAME_THE_COPY}", where=each)
        for each in finding.evidence
    )
    missing = f"its bytes are in the copy, and only the index is here: {NAME_THE_COPY}"
    link = Link(LinkKind.FINDING, title, (own_words(finding),), under)
    return FindingEvidence(link, [title, printable(finding.explanation), *context, missing])
