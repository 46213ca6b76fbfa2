"""A tree as a timeline: every signed statement that verifies, read once, file by file.

What does not verify makes no event: readers, holders and successors would have refused it too. Damage is the audit's
to report. Nothing is written, and nothing outside the tree is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from auditor.frames import FrameReader
from auditor.records import load_records
from auditor.verification import Signatures

from .bags import BagReading
from .gathering import Gathered
from .lens import AS_IT_WAS
from .shards import ShardReading
from .timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from auditor.finding import Finding
    from auditor.load import Tree
    from auditor.records import ClusterRecords

    from .bags import JudgedFrame
    from .gathering import Gathering
    from .lens import WhatIf


def read_timeline(
    tree: Tree,
    *,
    root_key: bytes | None = None,
    signatures: Signatures | None = None,
    findings: Iterable[Finding] = (),
    lens: WhatIf = AS_IT_WAS,
    progress: Callable[[int, str], None] | None = None,
) -> Timeline:
    """Read a whole tree. Never raises for what is in it. Costs as much as an audit; memory grows with the frames.

    ``findings``: of the tree's audit, to be placed in time. ``signatures``: shared with that audit, each is checked
    once. ``lens``: as if something had been otherwise.
    """
    signatures = signatures or Signatures()
    records, _ = load_records(tree, signatures, root_key)
    found = Gathered()
    for _ in read_frames(tree, records, signatures, lens, found, progress or _silent):
        pass
    return made_timeline(found, findings)


def read_frames(
    tree: Tree,
    records: ClusterRecords,
    signatures: Signatures,
    lens: WhatIf,
    found: Gathering,
    progress: Callable[[int, str], None],
) -> Iterator[JudgedFrame]:
    """Read everything, ledgers first; yield each frame as it is read. ``found``: where everything goes to."""
    shards = ShardReading(tree, records, signatures, lens, found)
    bags = BagReading(tree, records, signatures, FrameReader(signatures, records.cluster_id), lens, found)
    done = 0
    for path in shards.read():
        done += 1
        progress(done, path)
    for log in tree.logs():
        for each in bags.read(log):
            if isinstance(each, str):
                done += 1
                progress(done, each)
            else:
                shards.carried(each.evidence)
                yield each


def made_timeline(found: Gathered, findings: Iterable[Finding]) -> Timeline:
    """Return the timeline of what was read."""
    return Timeline(found.events(), findings=findings, prelocked=found.prelocks, packed=found.packs)


def _silent(_done: int, _what: str) -> None:
    pass
