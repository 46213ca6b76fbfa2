"""The timeline of a tree, in a database that is gone with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from auditor.audit import audit_with_timeline
from auditor.columns.audit_file import temporary_database
from auditor.timeline.timeline_writer import TimelineWriter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from auditor.evidence.finding import Finding
    from auditor.evidence.signatures import Signatures
    from auditor.evidence.tree import Tree
    from auditor.timeline.timeline_reader import Timeline


def read_timeline(tree: Tree, *, signatures: Signatures | None = None, findings: Sequence[Finding] = ()) -> Timeline:
    """Read a tree. ``findings``: placed in time; not those of its audit, unless they are given."""
    return audit_with_timeline(tree, signatures=signatures, findings=findings)[1]


def empty_timeline() -> Timeline:
    """Return the timeline of a tree that tells nothing."""
    return TimelineWriter(temporary_database()).write()
