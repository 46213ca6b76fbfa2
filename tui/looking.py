"""What is known of one finding, made where waiting holds up nobody: its evidence is read again from the tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from auditor.context import context_of
from auditor.lineage import lineage

from .evidence import explanation_lines

if TYPE_CHECKING:
    from auditor.archive import Archive
    from auditor.finding import Finding
    from auditor.links import Link


@dataclass(frozen=True, slots=True)
class Looked:
    """What is known of one finding."""

    link: Link
    """The top of its chain of evidence."""
    explanation: list[str]


def look_at(finding: Finding, archive: Archive) -> Looked:
    """Put together what is known of a finding. Blocks: it reads the tree. Raises Damaged, Environment."""
    context = context_of(finding, archive.timeline)
    return Looked(lineage(finding, archive), explanation_lines(finding, archive.tree, context))
