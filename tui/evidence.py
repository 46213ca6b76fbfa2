"""A finding's chain of evidence and its explanation as lines that lead on to what they name. Pure."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from auditor.explain.lineage import LinkKind
from auditor.explain.words import context_lines, explain_lines
from timeagent.console import printable

from .subjects import Cell, DomainSubject, Line, NodeSubject, PlaceSubject, Tone

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from auditor.evidence.tree import Tree
    from auditor.explain.context import Context
    from auditor.explain.lineage import Link
    from auditor.rules.check import Check
    from auditor.rules.finding import Finding

    from .subjects import Subject

OPEN: Final = "▾"
CLOSED: Final = "▸"
LEAF: Final = "·"
CHECKED: Final = {True: ("✓", Tone.GOOD), False: ("✗", Tone.BAD), None: ("?", Tone.WARN)}
LEGEND: Final = "✓ holds  ✗ does not  ? cannot be told  ▾ open  ▸ closed  · nothing inside"

type Path = tuple[int, ...]
"""Which link under which: the way from the finding down."""


def chain_lines(link: Link, closed: Collection[Path] = ()) -> list[tuple[Path, Line, Link]]:
    """Return the chain as lines, each with the way to its link. ``closed``: links whose insides are not shown."""
    return list(_lines(link, (), closed))


def _lines(link: Link, path: Path, closed: Collection[Path]) -> Iterator[tuple[Path, Line, Link]]:
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
    yield path, Line(cells, subject_of(link)), link
    if path in closed:
        return
    for check in link.checks:
        yield path, Line((Cell(f"{indent}    "), *check_cells(check))), link
    for number, each in enumerate(link.under):
        yield from _lines(each, (*path, number), closed)


def check_cells(check: Check) -> tuple[Cell, ...]:
    """Return a check: mark, what, value, limit."""
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
        return PlaceSubject(link.where.path, link.where.offset, link.where.length)
    if link.domain is not None:
        return DomainSubject(printable(link.domain))
    return None if link.node is None else NodeSubject(link.node)


def explanation_lines(finding: Finding, tree: Tree, context: Context) -> list[str]:
    """Return the explanation as ``tenure explain`` prints it. Reads the pieces of evidence from the tree."""
    return [*explain_lines(finding, tree), *context_lines(context)]


def wrapped(lines: Collection[str], width: int) -> list[Line]:
    """Return text in lines of at most a width, what goes on further in."""
    found = []
    for line in lines:
        deep = " " * (len(line) - len(line.lstrip()) + 4)
        pieces = textwrap.wrap(line, max(20, width), subsequent_indent=deep, break_on_hyphens=False) or [""]
        strong = bool(line) and not line.startswith(" ")
        found += [Line((Cell(piece, Tone.STRONG if strong else Tone.PLAIN),)) for piece in pieces]
    return found
