"""A copied tree that was read as a whole: a value that screens hold; record.py makes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from appliance.formats.policy import Policy
    from auditor.evidence.tree import Tree
    from auditor.replay.timeline import Timeline
    from auditor.report.result import Audit


@dataclass(frozen=True, slots=True)
class Record:
    """What was read. Nothing in it changes."""

    tree: Tree | None
    """None: there is only the index of its audit. Reading takes time, and may hang: never from the screen's thread."""
    audit: Audit
    timeline: Timeline
    policy: Policy
