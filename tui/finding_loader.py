"""What is known of one finding, made where waiting holds up nobody: its evidence is read again from the tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from auditor.explain.context import context_of
from auditor.explain.lineage import Link, LinkKind, lineage
from auditor.explain.words import context_lines
from auditor.replay.events import NAME_THE_COPY
from auditor.rules.check import own_words
from timeagent.console import printable

from .evidence import explanation_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from auditor.explain.archive import Archive
    from auditor.rules.finding import Finding


@dataclass(frozen=True, slots=True)
class Looked:
    """What is known of one finding."""

    link: Link
    """The top of its chain of evidence."""
    explanation: list[str]


def look_at(finding: Finding, archive: Archive) -> Looked:
    """Put together what is known of a finding. Blocks: it reads the tree. Raises Damaged, Environment."""
    if archive.copy is None:
        return Looked(_without_bytes(finding), list(_told(finding, archive)))
    context = context_of(finding, archive.timeline)
    return Looked(lineage(finding, archive), explanation_lines(finding, archive.tree, context))


def _without_bytes(finding: Finding) -> Link:
    """Return what the audit said, and where the bytes were that it rests on: the chain itself is read from those."""
    under = tuple(
        Link(LinkKind.MISSING, f"{printable(each.path)} at {each.offset}: {NAME_THE_COPY}", where=each)
        for each in finding.evidence
    )
    return Link(LinkKind.FINDING, f"{finding.code}: {finding.title}", (own_words(finding),), under)


def _told(finding: Finding, archive: Archive) -> Iterator[str]:
    yield f"{finding.code}: {finding.title}"
    yield printable(finding.explanation)
    yield from context_lines(context_of(finding, archive.timeline))
    yield f"its bytes are in the copy, and only the index is here: {NAME_THE_COPY}"
